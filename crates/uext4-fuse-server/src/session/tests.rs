//! Sessions on real mounts, as root.
//!
//! Fault models: rings that the kernel does not take, one or all, before and after the connection
//! is decided; a panic in a handler, and beside it. In each the mount must answer, or the session
//! end: programs that wait for ever are the failure.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use super::*;
use crate::abi::{Attr, AttrOut, StatfsOut};
use crate::handler::{Caller, Offer, Wanted};
use crate::opcode::Opcode;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The parameter is one for all tests.
static SWITCH: Mutex<()> = Mutex::new(());

/// A root directory that says of itself how many blocks it has.
#[derive(Default)]
struct Root {
    switches_off: bool,
    panics: AtomicBool,
}

impl Handler for Root {
    fn init(&self, offer: &Offer, _notifier: &Notifier) -> Wanted {
        if self.switches_off {
            fs::write(PARAMETER, "N").unwrap();
        }
        let max_readahead = offer.max_readahead;
        let flags = offer.flags;
        Wanted { flags, max_write: 1 << 20, max_readahead, max_background: 16, time_gran: 1 }
    }

    fn getattr(&self, _caller: Caller, node: u64) -> Answer<AttrOut> {
        let attr = Attr { ino: node, mode: 0o40_755, nlink: 2, ..Attr::default() };
        Ok(AttrOut::new(Duration::ZERO, attr))
    }

    fn statfs(&self, _caller: Caller, _node: u64) -> Answer<StatfsOut> {
        assert!(!self.panics.load(Ordering::Relaxed), "planted");
        Ok(StatfsOut { blocks: 4711, ..StatfsOut::default() })
    }
}

/// A folder that is mounted on, with its connection.
struct Mount {
    dir: tempfile::TempDir,
}

impl Mount {
    fn new() -> (Self, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let data = std::ffi::CString::new(data).unwrap();
        let flags = MountFlags::empty();
        rustix::mount::mount("test", dir.path(), "fuse", flags, Some(data.as_c_str())).unwrap();
        (Self { dir }, device.into())
    }

    /// What statfs(2) says, on each processor once.
    fn ask(&self) -> Result<(), Errno> {
        let processors = rustix::thread::sched_getaffinity(None).unwrap();
        for n in (0..rustix::thread::CpuSet::MAX_CPU).filter(|n| processors.is_set(*n)) {
            self.ask_on(n)?;
        }
        Ok(())
    }

    fn ask_on(&self, processor: usize) -> Result<(), Errno> {
        let path = self.dir.path().to_owned();
        in_time(self.dir.path(), "statfs", move || {
            let mut processors = rustix::thread::CpuSet::new();
            processors.set(processor);
            rustix::thread::sched_setaffinity(None, &processors).unwrap();
            rustix::fs::statfs(&path).map(|found| assert_eq!(found.f_blocks, 4711))
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(self.dir.path());
    }
}

/// Requests under way fail.
fn unmount(dir: &Path) {
    let _ = rustix::mount::unmount(dir, UnmountFlags::FORCE);
    let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
}

/// What `work` returns, on another thread; fails the test where it hangs.
fn in_time<T: Send + 'static>(
    dir: &Path,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (tell, told) = mpsc::channel();
    let worker = thread::spawn(move || tell.send(work()));
    match told.recv_timeout(PATIENCE) {
        Ok(value) => value,
        Err(RecvTimeoutError::Disconnected) => panic!("{what}: {:?}", worker.join()),
        Err(RecvTimeoutError::Timeout) => {
            unmount(dir);
            panic!("{what} hangs");
        }
    }
}

/// With the kernel's side of io_uring on; the tests that need it skip elsewhere.
fn with_io_uring(test: impl FnOnce()) {
    let _alone = SWITCH.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let forbidden = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    if forbidden.is_ok_and(|text| text.trim() != "0") {
        eprintln!("skipped: kernel.io_uring_disabled");
        return;
    }
    let before = fs::read_to_string(PARAMETER);
    let Some(before) = before.ok().filter(|_| can_mount() && fs::write(PARAMETER, "Y").is_ok())
    else {
        eprintln!("skipped: needs root, /dev/fuse and Linux 6.14");
        return;
    };
    struct Restore(String);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = fs::write(PARAMETER, &self.0);
        }
    }
    let _restore = Restore(before);
    test();
}

fn can_mount() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()
}

fn config(io_uring: IoUring) -> Config {
    Config { io_uring, ..Config::default() }
}

/// The session of a mount by rings with less room for a payload, from queue `first` on, than the
/// kernel wants: it refuses them.
fn refused(connection: OwnedFd, io_uring: IoUring, first: u16) -> io::Result<Session<Root>> {
    let handler = Arc::new(Root::default());
    Session::start_with(connection, handler, &config(io_uring), |core, payload| {
        Rings::prepare_with(core, |queue| if queue >= first { 8192 } else { payload })
    })
}

#[test]
fn a_mount_whose_rings_are_refused_answers_by_the_device() {
    with_io_uring(|| {
        for first in [0, 1] {
            let (mount, connection) = Mount::new();
            let session = refused(connection, IoUring::Auto, first).unwrap();
            let expected = "the kernel refuses to register: Invalid argument";
            match session.transport() {
                Transport::Device(why) => assert!(why.starts_with(expected), "{why}"),
                // One processor has one queue.
                Transport::IoUring => assert_eq!(session.rings.as_ref().unwrap().count(), 1),
            }
            mount.ask().unwrap();
            let (session, dir) = (Arc::new(session), mount.dir.path().to_owned());
            drop(mount);
            let joined = Arc::clone(&session);
            in_time(&dir, "join", move || joined.join()).unwrap();
        }
    });
}

#[test]
fn a_session_that_must_have_rings_ends_where_they_are_refused() {
    with_io_uring(|| {
        let (mount, connection) = Mount::new();
        let error = refused(connection, IoUring::On, 0).err().expect("refused").to_string();
        assert!(error.contains("refuses to register"), "{error}");
        assert!(error.contains("-o io_uring=off"), "{error}");
        // Its connection is closed, by rings that are still going perhaps.
        let mut asked = mount.ask();
        while asked.is_ok() {
            asked = mount.ask();
        }
        assert!(matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED)), "{asked:?}");
    });
}

#[test]
fn a_switch_that_goes_off_during_init_leaves_a_mount_that_answers() {
    with_io_uring(|| {
        let (mount, connection) = Mount::new();
        let handler = Arc::new(Root { switches_off: true, ..Root::default() });
        let session = Session::start(connection, handler, &Config::default()).unwrap();
        assert!(matches!(session.transport(), Transport::Device(_)), "{:?}", session.transport());
        mount.ask().unwrap();
    });
}

fn on_both(test: impl Fn(IoUring)) {
    if !can_mount() {
        eprintln!("skipped: needs root and /dev/fuse");
        return;
    }
    test(IoUring::Off);
    with_io_uring(|| test(IoUring::On));
}

#[test]
fn a_handler_that_panics_fails_its_request_alone() {
    on_both(|io_uring| {
        let (mount, connection) = Mount::new();
        let handler = Arc::new(Root::default());
        let session =
            Arc::new(Session::start(connection, Arc::clone(&handler), &config(io_uring)).unwrap());
        handler.panics.store(true, Ordering::Relaxed);
        assert_eq!(mount.ask(), Err(Errno::IO));
        handler.panics.store(false, Ordering::Relaxed);
        mount.ask().unwrap();
        let dir = mount.dir.path().to_owned();
        drop(mount);
        let told = in_time(&dir, "join", move || session.join()).unwrap_err();
        assert!(told.to_string().contains("panicked"), "{told}");
    });
}

#[test]
fn a_thread_that_panics_beside_its_handler_ends_the_session() {
    on_both(|io_uring| {
        let (mount, connection) = Mount::new();
        let handler = Arc::new(Root::default());
        let session = Arc::new(Session::start(connection, handler, &config(io_uring)).unwrap());
        session.core.panics_on.store(Opcode::Statfs as u32, Ordering::Relaxed);
        let path = mount.dir.path().to_owned();
        let asked = thread::spawn(move || rustix::fs::statfs(&path).map(drop));
        let told = in_time(mount.dir.path(), "join", move || session.join()).unwrap_err();
        assert!(told.to_string().contains("panicked"), "{told}");
        // As the end of the process does.
        unmount(mount.dir.path());
        assert!(asked.join().unwrap().is_err());
    });
}
