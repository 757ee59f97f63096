//! A thread that was taken over tries what it must not, in a process of its own.
//!
//! Fault model: a filter that was not installed, or that a thread escapes which was there before; a
//! path that is left open. Not covered: that the threads of a mount are confined
//! (`tests/confinement.rs`).

use super::*;

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

/// Names the image for the child.
const IMAGE: &str = "UEXT4_TEST_IMAGE";

/// Whether this kernel has both; asked in a thread that ends.
fn is_possible() -> bool {
    let landlock = || {
        let status =
            rules([Path::new("/")], None, &[]).and_then(|rules| Ok(rules.restrict_self()?.ruleset));
        status.is_ok_and(|status| status != RulesetStatus::NotEnforced)
    };
    let has_landlock = thread::spawn(landlock).join().unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_landlock && status.contains("Seccomp:")
}

#[test]
fn an_intruder_gets_nowhere() {
    if !is_possible() {
        eprintln!("skipped: no Landlock or no seccomp");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    fs::write(&image, b"image").unwrap();
    for name in ["other", "journal"] {
        fs::write(scratch.path().join(name), name).unwrap();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "confine::tests::intruder"])
        .env(IMAGE, &image)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// What fails on every thread, whatever Landlock knows of it.
fn try_calls() {
    for refused in [
        errno(UdpSocket::bind("127.0.0.1:0")),
        errno(TcpListener::bind("127.0.0.1:0")),
        errno(TcpStream::connect("127.0.0.1:9")),
        errno(Command::new("/bin/true").status()),
        errno(rustix::process::chroot("/").map_err(io::Error::from)),
        errno(
            rustix::mount::unmount("/proc", rustix::mount::UnmountFlags::DETACH)
                .map_err(Into::into),
        ),
        errno(rustix::thread::set_thread_uid(rustix::process::getuid()).map_err(Into::into)),
    ] {
        assert_eq!(refused, Some(libc::EPERM));
    }
}

/// The process that is confined, where it is the child of `an_intruder_gets_nowhere`.
#[test]
fn intruder() {
    let Some(image) = std::env::var_os(IMAGE).map(PathBuf::from) else { return };
    let other = image.with_file_name("other");
    let (go, wait) = mpsc::channel::<()>();
    // Started before: without Landlock, but not without seccomp.
    let early = thread::spawn(move || {
        wait.recv().unwrap();
        try_calls();
    });
    let log = UnixDatagram::bind(image.with_file_name("log")).unwrap();
    let mut open_before = File::open(&other).unwrap();
    let journal = image.with_file_name("journal");
    Confinement::new([&*image, &*journal], None, &[]).unwrap().enter_mounted(None);
    calls(false);
    go.send(()).unwrap();
    early.join().unwrap();
    // A thread that is started now, as one that serves requests.
    thread::spawn(move || {
        try_calls();
        for path in [other.as_path(), "/etc/passwd".as_ref(), "/dev/null".as_ref()] {
            assert_eq!(errno(File::open(path)), Some(libc::EACCES), "{path:?}");
        }
        for path in ["/proc/self/mem", "/proc/self/comm"] {
            let opened = File::options().write(true).open(path);
            assert_eq!(errno(opened), Some(libc::EACCES), "{path}");
        }
        for name in ["new", "other"] {
            let path = image.with_file_name(name);
            assert_eq!(errno(fs::write(path, b"")), Some(libc::EACCES), "{name}");
        }
        assert_eq!(errno(fs::remove_file(&image)), Some(libc::EACCES));
        assert_eq!(errno(fs::read_dir("/proc")), Some(libc::EACCES));
        if rustix::process::geteuid().is_root() {
            let kernel = errno(File::open("/proc/kcore"));
            assert!(matches!(kernel, Some(libc::EPERM | libc::ENOENT)), "{kernel:?}");
            let init = errno(File::open("/proc/1/environ").and_then(|mut f| f.read(&mut [0; 9])));
            assert!(init.is_some(), "of a process that is not ours");
        }
        // What a mount needs goes on.
        assert_eq!(fs::read(&image).unwrap(), b"image");
        for path in [&image, &journal] {
            File::options().read(true).write(true).open(path).unwrap();
        }
        fs::read("/proc/self/mountinfo").unwrap();
        fs::read("/proc/1/status").unwrap();
        let mut text = String::new();
        open_before.read_to_string(&mut text).unwrap();
        assert_eq!(text, "other");
        let to_log = UnixDatagram::unbound().unwrap();
        to_log.send_to(b"line", image.with_file_name("log")).unwrap();
        assert_eq!(log.recv(&mut [0; 9]).unwrap(), 4);
        thread::spawn(|| {}).join().unwrap();
    })
    .join()
    .unwrap();
}
