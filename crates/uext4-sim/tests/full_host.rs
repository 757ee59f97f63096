//! Volumes whose image lies on a file system that becomes full.
//!
//! Fault model: a sparse image on a tmpfs of its own (root) that another file fills to the last
//! page, so that every write into a hole of the image is refused with ENOSPC; room comes back while
//! writes wait, or never does. Requests of the device of each kind, through the page cache and past
//! it, and a volume with dirty files, look-ups and syncs under way.
//! Demanded: with room in time nothing fails and nothing is lost; without, syncs fail and say why,
//! closing ends, and what was synced is there when the image is opened with room again. A watchdog
//! ends the program where somebody hangs.
//! Not covered: quotas (`EDQUOT`, a unit test of the device); host file systems that refuse at the
//! flush, as NFS does: a failed flush is final (D19).

#![cfg(not(feature = "shuttle"))]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uext4::{FileKind, MountOptions, NewInode, OpenFile, Owner, Volume};
use uext4_device::{
    Access, Caching, Device, FileDevice, FileOptions, IoBuf, QueueOp, QueueOptions, QueueRequest,
    SharedDevice, Submission, WriteRun,
};
use uext4_sim::mount::{is_root, run, unmount_by_force};
use uext4_sim::oracle::expect_clean;
use uext4_sim::watchdog::Watchdog;

/// Longest time of anything here.
const BOUND: Duration = Duration::from_secs(100);
/// No test waits for the end of it.
const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(300);
const MIB: usize = 1 << 20;

/// A tmpfs with a sparse image.
struct Host {
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(folder.path());
        run(&mut mount).unwrap_or_else(|why| panic!("{why}"));
        let host = Host { folder };
        File::create(host.image()).unwrap().set_len(64 << 20).unwrap();
        host
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Leaves no page.
    fn fill(&self) {
        let mut filler = File::create(self.folder.path().join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }

    fn remove_filler(&self) {
        // Not there: somebody has removed it.
        let _ = fs::remove_file(self.folder.path().join("filler"));
    }

    /// Returns when there is room: a process that another test is about to start has the filler
    /// open, for a moment, if it was open here.
    fn give_room(&self) {
        self.remove_filler();
        while rustix::fs::statvfs(self.folder.path()).unwrap().f_bfree == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn open(&self, caching: Caching, no_space_timeout: Duration) -> Arc<FileDevice> {
        let submission =
            if caching == Caching::Direct { Submission::Uring } else { Submission::Auto };
        let options = FileOptions {
            caching,
            submission,
            no_space_timeout,
            ..FileOptions::new(Access::ReadWrite)
        };
        Arc::new(FileDevice::open_with(&self.image(), &options).unwrap())
    }

    /// A volume on an image whose journal and tables are holes.
    fn volume(&self, no_space_timeout: Duration) -> (Volume, SharedDevice) {
        let device: SharedDevice = self.open(Caching::Buffered, no_space_timeout);
        (Volume::open(Arc::clone(&device), MountOptions::default()).unwrap(), device)
    }

    fn make_file_system(&self) {
        let lazy = "nodiscard,lazy_itable_init=1,lazy_journal_init=1";
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=8", "-E", lazy]);
        run(mke2fs.arg(self.image())).unwrap_or_else(|why| panic!("{why}"));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        unmount_by_force(self.folder.path());
    }
}

fn wait_for(device: &dyn Device) {
    while device.room().unwrap().read().waiting == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn create_empty(volume: &Volume, name: &str) -> OpenFile {
    let (kind, owner) = (FileKind::Regular, Owner::default());
    let new = NewInode { kind, mode: 0o644, owner, rdev: Default::default() };
    let inode = volume.create(&volume.root().unwrap(), name.as_bytes(), &new).unwrap();
    volume.open_file(&inode).unwrap()
}

fn create(volume: &Volume, name: &str, bytes: &[u8]) -> OpenFile {
    let file = create_empty(volume, name);
    assert_eq!(file.write_at(0, bytes).unwrap(), bytes.len());
    file
}

fn content(volume: &Volume, name: &str) -> Vec<u8> {
    let inode = volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap();
    let file = volume.open_file(&inode).unwrap();
    let mut bytes = vec![0; usize::try_from(inode.size()).unwrap()];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn fill_of(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ seed | 1).collect()
}

/// Makes one write each way, with a full store before each; the answers.
fn write_each_way(
    host: &Host,
    device: &Arc<FileDevice>,
    bytes: &[u8],
) -> Vec<(&'static str, io::Result<()>)> {
    let at = |number: u64| number * 4 * MIB as u64;
    let (one, two) = bytes.split_at(bytes.len() / 2);
    host.fill();
    let mut answers = vec![("write_at", device.write_at(at(1), bytes))];
    host.fill();
    let runs = [
        WriteRun { offset: at(2), bufs: &[one] },
        WriteRun { offset: at(2) + one.len() as u64, bufs: &[two] },
    ];
    answers.push(("write_many", device.write_many(&runs)));
    host.fill();
    answers.push(("write_fua", device.write_fua(at(3), bytes)));
    let shared: SharedDevice = device.clone();
    let mut queue = shared.queue(QueueOptions::new(4)).unwrap();
    for (tag, op) in [(4, QueueOp::Write), (5, QueueOp::WriteDurable)] {
        host.fill();
        let mut buf = IoBuf::new(bytes.len()).unwrap();
        buf.copy_from_slice(bytes);
        queue.push(QueueRequest { op, offset: at(tag), buf, tag }).unwrap();
        let mut done = Vec::new();
        queue.reap(1, &mut done).unwrap();
        answers.extend(done.into_iter().map(|done| ("queue", done.result)));
    }
    answers
}

#[test]
fn writes_of_every_kind_wait_for_room() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let _watchdog = Watchdog::start("a full host", BOUND);
    for caching in [Caching::Buffered, Caching::Direct] {
        let host = Host::new();
        let device = host.open(caching, LONG);
        assert_eq!(device.is_direct(), caching == Caching::Direct);
        let bytes = fill_of(7, 64 << 10);
        let over = AtomicBool::new(false);
        let answers = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    if device.room().unwrap().read().waiting > 0 {
                        // The next write's filler may take it again at once.
                        host.remove_filler();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let answers = write_each_way(&host, &device, &bytes);
            over.store(true, Ordering::SeqCst);
            answers
        });
        assert!(answers.iter().all(|answer| answer.1.is_ok()), "{caching:?}: {answers:?}");
        let room = device.room().unwrap().read();
        assert_eq!((room.waits, room.failures), (5, 0));
        for number in 1..=5 {
            let mut back = vec![0; bytes.len()];
            device.read_at(number * 4 * MIB as u64, &mut back).unwrap();
            assert!(back == bytes, "{caching:?}: write {number}");
        }
        device.flush().unwrap();
    }
}

/// Without the time-out every kind of write fails at once, and nothing else does afterwards: a
/// durable write that found no room is no failed flush.
#[test]
fn writes_of_every_kind_fail_without_room() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let _watchdog = Watchdog::start("a full host", BOUND);
    for caching in [Caching::Buffered, Caching::Direct] {
        for timeout in [Duration::ZERO, SHORT] {
            let host = Host::new();
            let device = host.open(caching, timeout);
            let bytes = fill_of(9, 64 << 10);
            for (way, answer) in write_each_way(&host, &device, &bytes) {
                let errno = answer.map_err(|error| error.raw_os_error());
                assert_eq!(errno, Err(Some(libc_enospc())), "{caching:?}: {way}");
            }
            host.give_room();
            device.write_fua(0, &bytes).unwrap();
            device.flush().unwrap();
        }
    }
}

/// A queue's write that is held keeps nobody from reaping what else is done.
#[test]
fn a_queue_goes_on_while_a_write_waits_for_room() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let _watchdog = Watchdog::start("a full host", BOUND);
    for caching in [Caching::Buffered, Caching::Direct] {
        let host = Host::new();
        let device = host.open(caching, LONG);
        let bytes = fill_of(5, 64 << 10);
        device.write_at(0, &bytes).unwrap();
        host.fill();
        let shared: SharedDevice = device.clone();
        let mut queue = shared.queue(QueueOptions::new(8)).unwrap();
        let request = |op, offset, tag| {
            let mut buf = IoBuf::new(bytes.len()).unwrap();
            buf.copy_from_slice(&bytes);
            QueueRequest { op, offset, buf, tag }
        };
        let hole = 8 * MIB as u64;
        queue.push(request(QueueOp::Write, hole, 1)).unwrap();
        queue.push(request(QueueOp::WriteDurable, 2 * hole, 2)).unwrap();
        let mut done = Vec::new();
        // Those that were done before the writes were refused, and more.
        let mut more = 0;
        while more < 5 {
            more += u32::from(device.room().unwrap().read().waiting == 2);
            queue.push(request(QueueOp::Read, 0, 3)).unwrap();
            queue.push(request(QueueOp::Write, 0, 4)).unwrap();
            while queue.in_flight() > 2 {
                queue.reap(1, &mut done).unwrap();
            }
            let both = done.drain(..).all(|one| one.tag > 2 && one.result.is_ok());
            assert!(both, "{caching:?}: a write without room was answered");
        }
        host.give_room();
        queue.reap(2, &mut done).unwrap();
        assert!(done.len() == 2 && done.iter().all(|one| one.result.is_ok()), "{done:?}");
        assert_eq!(device.room().unwrap().read().waiting, 0);
        for place in [1, 2] {
            let mut back = vec![0; bytes.len()];
            device.read_at(place * hole, &mut back).unwrap();
            assert!(back == bytes, "{caching:?}: write {place}");
        }
        // A queue that is dropped holds nothing any more.
        host.fill();
        queue.push(request(QueueOp::Write, 3 * hole, 5)).unwrap();
        queue.submit().unwrap();
        drop(queue);
        assert_eq!(device.room().unwrap().read().waiting, 0);
    }
}

/// D38: a volume whose store is full for a while is slow for a while.
#[test]
fn nothing_is_lost_where_room_comes_in_time() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let _watchdog = Watchdog::start("a full host", BOUND);
    let host = Host::new();
    host.make_file_system();
    let (volume, device) = host.volume(LONG);
    let files: Vec<_> = (1..4).map(|seed| fill_of(seed, 2 * MIB)).collect();
    create(&volume, "early", &files[0]).sync(false).unwrap();
    host.fill();
    let open = [create(&volume, "a", &files[1]), create(&volume, "b", &files[2])];
    std::thread::scope(|scope| {
        let syncs: Vec<_> = open.iter().map(|file| scope.spawn(|| file.sync(false))).collect();
        let whole = scope.spawn(|| volume.sync());
        wait_for(&*device);
        // Others go on: reads of what is there and what waits, look-ups, names, writes to memory.
        for (name, want) in ["early", "a", "b"].iter().zip(&files) {
            assert!(content(&volume, name) == *want, "{name} while writes wait");
        }
        drop(create(&volume, "late", b"written while others wait"));
        assert!(volume.stats().number("writes_waiting_for_room").unwrap() > 0);
        assert!(!volume.read_only());
        host.give_room();
        for sync in syncs {
            sync.join().unwrap().unwrap();
        }
        whole.join().unwrap().unwrap();
    });
    assert!(!volume.read_only());
    let stats = volume.stats();
    assert_eq!(stats.number("writes_waiting_for_room"), Some(0));
    assert_eq!(stats.number("room_failures"), Some(0));
    drop(open);
    volume.close().unwrap();
    drop(device);
    expect_clean(&host.image()).unwrap();
    let (volume, _device) = host.volume(LONG);
    for (name, want) in ["early", "a", "b"].iter().zip(&files) {
        assert!(content(&volume, name) == *want, "{name}");
    }
    assert_eq!(content(&volume, "late"), b"written while others wait");
    volume.close().unwrap();
}

/// Closing a volume while its store is full ends, with room or without: `with_room`.
#[test]
fn closing_waits_for_room_and_not_for_ever() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let _watchdog = Watchdog::start("a full host", BOUND);
    for with_room in [true, false] {
        let host = Host::new();
        host.make_file_system();
        let timeout = if with_room { LONG } else { SHORT };
        let (volume, device) = host.volume(timeout);
        let (synced, unsynced) = (fill_of(1, 2 * MIB), fill_of(2, 2 * MIB));
        create(&volume, "synced", &synced).sync(false).unwrap();
        host.fill();
        // Several, so that each of them meets the full store.
        for name in 0..20 {
            drop(create(&volume, &format!("unsynced{name}"), &unsynced[..100_000]));
        }
        let closed = std::thread::scope(|scope| {
            let closing = scope.spawn(|| volume.close());
            if with_room {
                wait_for(&*device);
                host.give_room();
            }
            closing.join().unwrap()
        });
        assert_eq!(closed.is_ok(), with_room, "{closed:?}");
        let room = device.room().unwrap().read();
        assert_eq!(room.failures > 0, !with_room, "{room:?}");
        drop(device);
        if !with_room {
            assert_eq!(closed.unwrap_err().errno(), libc_enospc());
            host.give_room();
        }
        let (volume, _device) = host.volume(LONG);
        assert!(content(&volume, "synced") == synced);
        for name in (0..20).filter(|_| with_room) {
            assert!(content(&volume, &format!("unsynced{name}")) == unsynced[..100_000]);
        }
        volume.close().unwrap();
        expect_clean(&host.image()).unwrap();
    }
}

/// Writes files without a sync until that fails; how many were written whole, and the errors.
fn write_on(volume: &Volume, names: &str, most: usize) -> (usize, Vec<uext4::Error>) {
    let bytes = fill_of(names.as_bytes()[0], MIB);
    for number in 0..most {
        let file = create_empty(volume, &format!("{names}{number}"));
        match file.write_at(0, &bytes) {
            Ok(written) if written == bytes.len() => {}
            Ok(_) => return (number, vec![file.write_at(0, &bytes).unwrap_err()]),
            Err(error) => return (number, vec![error]),
        }
    }
    (most, Vec::new())
}

/// D38: data that cannot be written does not fill memory. Writers that never sync wait at the limit
/// of dirty data, and are refused when time has run out; what they had acknowledged is kept.
#[test]
fn writers_that_never_sync_do_not_fill_memory() {
    const WRITERS: usize = 3;
    // Together several times what may be dirty, and less than the host has room for.
    const FILES: usize = 5;
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let _watchdog = Watchdog::start("a full host", BOUND);
    for with_room in [true, false] {
        let host = Host::new();
        host.make_file_system();
        let device: SharedDevice =
            host.open(Caching::Buffered, if with_room { LONG } else { SHORT });
        let options = MountOptions {
            cache_bytes: MountOptions::CACHE_BYTES_MIN,
            // The log has no room either, and is not what this is about.
            commit_interval_ms: 3_600_000,
            ..MountOptions::default()
        };
        let volume = Volume::open(Arc::clone(&device), options).unwrap();
        let early = fill_of(1, MIB);
        create(&volume, "early", &early).sync(false).unwrap();
        let budget = volume.page_budget();
        host.fill();
        let most = budget.hard_limit() + WRITERS * MIB / 4096;
        let written = std::thread::scope(|scope| {
            let names = ["x", "y", "z"];
            let writers: Vec<_> = names
                .map(|name| scope.spawn(|| write_on(&volume, name, FILES)))
                .into_iter()
                .collect();
            wait_for(&*device);
            let is_at_limit = || budget.unclean() > budget.hard_limit();
            while !is_at_limit() && !writers.iter().all(|writer| writer.is_finished()) {
                std::thread::yield_now();
            }
            // Others go on: reads, look-ups, names, and the end of what is open.
            for _ in 0..20 {
                assert!(content(&volume, "early") == early);
                assert!(budget.unclean() <= most, "{} pages dirty", budget.unclean());
                std::thread::sleep(Duration::from_millis(1));
            }
            if with_room {
                host.give_room();
            }
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(budget.unclean() <= most, "{} pages dirty", budget.unclean());
        for (whole, errors) in &written {
            assert_eq!(*whole == FILES, with_room, "{errors:?}");
            assert!(errors.iter().all(|error| error.errno() == libc_enospc()), "{errors:?}");
        }
        assert!(!volume.read_only(), "{:?}", volume.read_only_reason());
        host.give_room();
        volume.sync().unwrap();
        let late = create(&volume, "late", &early);
        late.sync(false).unwrap();
        drop(late);
        volume.close().unwrap();
        drop(device);
        let (volume, _device) = host.volume(SHORT);
        for (name, (whole, _)) in ["x", "y", "z"].iter().zip(&written) {
            let bytes = fill_of(name.as_bytes()[0], MIB);
            for number in 0..*whole {
                assert!(content(&volume, &format!("{name}{number}")) == bytes);
            }
        }
        volume.close().unwrap();
        expect_clean(&host.image()).unwrap();
    }
}

fn libc_enospc() -> i32 {
    rustix::io::Errno::NOSPC.raw_os_error()
}

/// A volume that gave up on data keeps it in memory, and writes it when there is room (D18).
#[test]
fn data_that_found_no_room_is_written_later() {
    if !is_root() {
        eprintln!("skipped: not root");
        return;
    }
    let _watchdog = Watchdog::start("a full host", BOUND);
    let host = Host::new();
    host.make_file_system();
    let (volume, device) = host.volume(SHORT);
    let bytes = fill_of(3, 2 * MIB);
    let file = create(&volume, "file", b"");
    file.sync(false).unwrap();
    host.fill();
    file.write_at(0, &bytes).unwrap();
    let failed = file.sync(false).unwrap_err();
    assert_eq!(failed.errno(), libc_enospc());
    assert!(!volume.read_only(), "only data failed");
    host.give_room();
    file.sync(false).unwrap();
    drop(file);
    volume.close().unwrap();
    drop(device);
    let (volume, _device) = host.volume(SHORT);
    assert!(content(&volume, "file") == bytes);
    volume.close().unwrap();
    expect_clean(&host.image()).unwrap();
}
