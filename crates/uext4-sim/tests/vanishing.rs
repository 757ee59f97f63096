//! Block devices that vanish, shrink and fill up under a volume.
//!
//! Fault model: a real block device (a loop device, a partition of one) whose end comes nearer at
//! once, so that reads are short and writes find no place; whose backing file is cut away; whose
//! backing file system is full. Threads overwrite files by queues on io_uring, by direct calls, and
//! write and fsync files through the cache; some are always in the middle of something.
//! Demanded: every request is answered, somebody is told, the volume becomes read-only where its
//! journal fails, closing it ends, and when the device is whole again the volume recovers, e2fsck
//! finds nothing, and everything is there that a sync or a durable write had acknowledged. A
//! watchdog ends the program where somebody hangs.
//! Not covered: devices that come back while the volume is open; lost flushes (crash states).

#![cfg(not(feature = "shuttle"))]

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uext4::{
    DirectDone, DirectOp, DirectOptions, DirectRequest, FileKind, InodeRef, IoBuf, MountOptions,
    NewInode, OpenFile, Owner, SetAttr, Volume,
};
use uext4_device::{Access, Caching, FileDevice, FileOptions, SharedDevice, Submission};
use uext4_sim::mount::{run, unmount_by_force, why_no_loop};
use uext4_sim::oracle::{expect_clean, image_folder, program};
use uext4_sim::watchdog::Watchdog;

const BLOCK: usize = 4096;
/// Of a file that is overwritten.
const BLOCKS: usize = 256;
const SECTOR: usize = 512;
const DEPTH: usize = 16;
const SECTORS_OF_DEVICE: u64 = 256 << 11;
/// Where the partition starts, in sectors.
const START: u64 = 2048;
/// A thread that has met so many errors in a row has seen enough.
const ERRORS_MAX: u32 = 200;
/// Longest time of anything here.
const BOUND: Duration = Duration::from_secs(100);

fn command(name: &str, words: &[&str]) -> String {
    run(Command::new(name).args(words)).unwrap_or_else(|why| panic!("{why}"))
}

/// An image on a loop device, with one partition in it if it is to shrink.
struct Store {
    folder: tempfile::TempDir,
    /// The image's file system, if it has one of its own.
    mounted: bool,
    node: String,
    partition: bool,
}

impl Store {
    /// `of_its_own`: on a tmpfs of which nothing else takes space.
    fn new(of_its_own: bool, partition: bool) -> Store {
        let folder = image_folder().unwrap();
        let path = folder.path().to_str().unwrap();
        if of_its_own {
            command("mount", &["-t", "tmpfs", "-o", "size=300m", "none", path]);
        }
        let mut store = Store { folder, mounted: of_its_own, node: String::new(), partition };
        let file = File::create(store.image()).unwrap();
        file.set_len((SECTORS_OF_DEVICE + START) * SECTOR as u64).unwrap();
        let image = store.image();
        let output = command("losetup", &["-f", "--show", "-P", image.to_str().unwrap()]);
        store.node = output.trim().to_owned();
        if partition {
            let (start, len) = (START.to_string(), SECTORS_OF_DEVICE.to_string());
            command("addpart", &[&store.node, "1", &start, &len]);
        }
        // A log that is not yet there: writing it takes space.
        let words = ["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=32"];
        let lazy = ["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"];
        let device = store.device();
        let path = [device.to_str().unwrap()];
        command("mke2fs", &[&words[..], &lazy, &path].concat());
        store
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    fn device(&self) -> PathBuf {
        PathBuf::from(if self.partition { format!("{}p1", self.node) } else { self.node.clone() })
    }

    fn resize_partition(&self, sectors: u64) {
        command("resizepart", &[&self.node, "1", &sectors.to_string()]);
    }

    /// Sets what the tmpfs may hold to little more than it holds, which grows meanwhile.
    fn fill_up(&self) {
        let small = (1..50).map(|more| {
            let stat = rustix::fs::statvfs(self.folder.path()).unwrap();
            let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
            used / 1024 + 128 * more
        });
        let mut results = small.map(|size| self.limit(&format!("{size}k")));
        assert!(results.any(|result| result.is_ok()), "it grows faster than it can be limited");
    }

    fn limit(&self, size: &str) -> Result<String, String> {
        let options = format!("remount,size={size}");
        run(Command::new("mount").args(["-o", &options]).arg(self.folder.path()))
    }

    fn open(&self) -> Volume {
        let (caching, submission) = (Caching::Direct, Submission::Uring);
        let options = FileOptions { caching, submission, ..FileOptions::new(Access::ReadWrite) };
        let device: SharedDevice =
            Arc::new(FileDevice::open_with(&self.device(), &options).unwrap());
        let mut options = MountOptions::default();
        options.parse("errors=remount-ro").unwrap();
        Volume::open(device, options).unwrap()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let quietly = |name: &str, words: &[&str]| drop(run(Command::new(name).args(words)));
        if !self.node.is_empty() {
            if self.partition {
                quietly("delpart", &[&self.node, "1"]);
            }
            quietly("losetup", &["-d", &self.node]);
        }
        if self.mounted {
            // A loop device lets go of its file some time after the command has returned.
            let end = Instant::now() + Duration::from_secs(5);
            while Instant::now() < end {
                if run(Command::new("umount").arg(self.folder.path())).is_ok() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            unmount_by_force(self.folder.path());
        }
    }
}

/// Each sector says which write of which block it is of.
fn fill(buf: &mut [u8], block: usize, version: u64) {
    for sector in buf.chunks_mut(SECTOR) {
        let word = (version << 16 | block as u64).to_le_bytes();
        sector.chunks_mut(8).for_each(|part| part.copy_from_slice(&word));
    }
}

/// The least version of a block's sectors; `None` for bytes that nobody wrote.
fn version(buf: &[u8], block: usize) -> Option<(u64, u64)> {
    let mut range = (u64::MAX, 0);
    for sector in buf.chunks(SECTOR) {
        let word = u64::from_le_bytes(sector[..8].try_into().unwrap());
        let same = sector.chunks(8).all(|part| part == word.to_le_bytes());
        if !same || word & 0xffff != block as u64 {
            return None;
        }
        range = (range.0.min(word >> 16), range.1.max(word >> 16));
    }
    Some(range)
}

/// What one thread knows of its file.
struct Known {
    file: OpenFile,
    name: &'static str,
    /// By block: newest write begun, newest write that returned, newest that is durable.
    begun: Vec<u64>,
    written: Vec<u64>,
    durable: Vec<u64>,
}

impl Known {
    fn create(volume: &Volume, name: &'static str) -> Known {
        let file = volume.open_file(&create(volume, name).unwrap()).unwrap();
        let mut bytes = vec![0; BLOCKS * BLOCK];
        bytes.chunks_mut(BLOCK).enumerate().for_each(|(block, buf)| fill(buf, block, 1));
        assert_eq!(file.write_direct_at(0, &bytes).unwrap(), bytes.len());
        file.sync(false).unwrap();
        Known::fresh(file, name)
    }

    /// Each block was written once.
    fn fresh(file: OpenFile, name: &'static str) -> Known {
        let ones = || vec![1; BLOCKS];
        Known { file, name, begun: ones(), written: ones(), durable: ones() }
    }

    fn begin(&mut self, block: usize, buf: &mut [u8]) -> u64 {
        self.begun[block] += 1;
        fill(buf, block, self.begun[block]);
        self.begun[block]
    }

    fn sync(&mut self, log: &mut Log) {
        // All that had returned before.
        if log.note(self.file.sync(true)).is_some() {
            self.durable.clone_from(&self.written);
        }
    }

    fn check_block(&self, block: usize, buf: &[u8]) {
        let (least, most) = (self.durable[block], self.begun[block]);
        let found = version(buf, block);
        let fits = found.is_some_and(|found| found.0 >= least && found.1 <= most);
        assert!(fits, "{} block {block}: {found:?}, not {least} to {most}", self.name);
    }

    fn check(&self, volume: &Volume) {
        let inode = volume.lookup(&volume.root().unwrap(), self.name.as_bytes()).unwrap();
        let file = volume.open_file(&inode).unwrap();
        let mut bytes = vec![0; BLOCKS * BLOCK];
        assert_eq!(file.read_direct_at(0, &mut bytes).unwrap(), bytes.len());
        bytes.chunks(BLOCK).enumerate().for_each(|(block, buf)| self.check_block(block, buf));
    }
}

fn create(volume: &Volume, name: &str) -> uext4::Result<InodeRef> {
    let (kind, owner) = (FileKind::Regular, Owner::default());
    let new = NewInode { kind, mode: 0o644, owner, rdev: Default::default() };
    volume.create(&volume.root()?, name.as_bytes(), &new)
}

#[derive(Default)]
struct Log {
    done: u64,
    errors: u64,
    in_a_row: u32,
    first: Option<String>,
}

impl Log {
    fn note<T>(&mut self, result: uext4::Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                self.in_a_row = 0;
                Some(value)
            }
            Err(error) => {
                self.errors += 1;
                self.in_a_row += 1;
                self.first.get_or_insert(error.to_string());
                None
            }
        }
    }
}

/// Ends the threads however the test ends.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the threads share.
struct Load {
    volume: Volume,
    /// Rounds that all threads have done.
    rounds: AtomicU64,
    over: AtomicBool,
}

impl Load {
    fn goes_on(&self, log: &Log) -> bool {
        self.rounds.fetch_add(1, Ordering::Relaxed);
        !self.over.load(Ordering::Relaxed) && log.in_a_row < ERRORS_MAX
    }

    /// Reads, overwrites and durable overwrites by a queue; each block is in one request at most.
    fn queued(&self, known: &mut Known) -> Log {
        let mut log = Log::default();
        let mut rng = StdRng::seed_from_u64(1);
        let options = DirectOptions { depth: DEPTH, polled: false, memory: Vec::new() };
        let mut queue = self.volume.direct_queue(options).unwrap();
        let file = queue.register(known.file.inode()).unwrap();
        let mut busy: Vec<Option<(DirectOp, u64)>> = vec![None; BLOCKS];
        let mut done = Vec::new();
        while self.goes_on(&log) {
            while queue.in_flight() < DEPTH {
                let block = rng.random_range(0..BLOCKS);
                if busy[block].is_some() {
                    continue;
                }
                let ops =
                    [DirectOp::Read, DirectOp::Write, DirectOp::Write, DirectOp::WriteDurable];
                let op = ops[rng.random_range(0..4)];
                let mut buf = IoBuf::new(BLOCK).unwrap();
                let version = if op == DirectOp::Read { 0 } else { known.begin(block, &mut buf) };
                busy[block] = Some((op, version));
                let (offset, tag) = ((block * BLOCK) as u64, block as u64);
                queue.push(DirectRequest { file, op, offset, buf, tag }).unwrap();
            }
            log.note(queue.reap(rng.random_range(1..=DEPTH), &mut done));
            done.drain(..).for_each(|one| answered(one, known, &mut busy, &mut log));
            if rng.random_range(0..10) == 0 {
                known.sync(&mut log);
            }
        }
        while queue.in_flight() > 0 {
            log.note(queue.reap(1, &mut done));
            done.drain(..).for_each(|one| answered(one, known, &mut busy, &mut log));
        }
        assert!(busy.iter().all(Option::is_none), "a request that nobody answered");
        log
    }

    fn direct(&self, known: &mut Known) -> Log {
        let mut log = Log::default();
        let mut rng = StdRng::seed_from_u64(2);
        let mut buf = vec![0; BLOCK];
        while self.goes_on(&log) {
            let block = rng.random_range(0..BLOCKS);
            let offset = (block * BLOCK) as u64;
            match rng.random_range(0..5) {
                0 => {
                    if log.note(known.file.read_direct_at(offset, &mut buf)).is_some() {
                        known.check_block(block, &buf);
                    }
                }
                1 => {
                    let version = known.begin(block, &mut buf);
                    let written = known.file.write_direct_durably_at(offset, &buf);
                    if log.note(written).is_some() {
                        (known.written[block], known.durable[block]) = (version, version);
                    }
                }
                2 => known.sync(&mut log),
                _ => {
                    let version = known.begin(block, &mut buf);
                    if log.note(known.file.write_direct_at(offset, &buf)).is_some() {
                        known.written[block] = version;
                    }
                }
            }
        }
        log
    }

    /// New files through the cache; the names of those that an fsync acknowledged.
    fn buffered(&self) -> (Log, Vec<String>) {
        let (mut log, mut durable) = (Log::default(), Vec::new());
        for number in 0.. {
            if !self.goes_on(&log) {
                break;
            }
            let name = format!("b{number}");
            let Some(inode) = log.note(create(&self.volume, &name)) else { continue };
            let Some(file) = log.note(self.volume.open_file(&inode)) else { continue };
            let data = name.as_bytes().repeat(3000);
            if log.note(file.write_at(0, &data)).is_some() && log.note(file.sync(false)).is_some() {
                durable.push(name);
            }
        }
        (log, durable)
    }
}

fn answered(
    one: DirectDone,
    known: &mut Known,
    busy: &mut [Option<(DirectOp, u64)>],
    log: &mut Log,
) {
    let block = usize::try_from(one.tag).unwrap();
    let (op, version) = busy[block].take().expect("it was asked, once");
    if log.note(one.result).is_none() {
        return;
    }
    match op {
        DirectOp::Read => known.check_block(block, &one.buf),
        DirectOp::Write => known.written[block] = version,
        DirectOp::WriteDurable => {
            (known.written[block], known.durable[block]) = (version, version);
        }
    }
}

/// Ends the program where something hangs, and runs one test at a time: names of loop devices are
/// found by all.
struct Watched {
    _alone: MutexGuard<'static, ()>,
    _dog: Watchdog,
}

impl Watched {
    fn start() -> Watched {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Watched { _alone, _dog: Watchdog::start("a device that vanishes", BOUND) }
    }
}

fn can_run() -> bool {
    let missing = ["losetup", "addpart", "resizepart", "mke2fs", "e2fsck", "mount"];
    let missing = missing.into_iter().find(|name| program(name).is_none());
    let why = why_no_loop().map(str::to_owned).or(missing.map(|name| format!("no {name}")));
    if let Some(why) = &why {
        println!("skipped: {why}");
    }
    why.is_none()
}

/// Works on the device until it fails, and on; then makes it whole and looks what is there.
fn lose(store: &Store, fail: &dyn Fn(), restore: &dyn Fn()) {
    let volume = store.open();
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut files = [Known::create(&volume, "queued"), Known::create(&volume, "direct")];
    volume.sync().unwrap();
    let load = Load { volume: volume.clone(), rounds, over };
    let [queued, direct] = &mut files;
    let (logs, durable) = std::thread::scope(|scope| {
        let queued = scope.spawn(|| load.queued(queued));
        let direct = scope.spawn(|| load.direct(direct));
        let buffered = scope.spawn(|| load.buffered());
        let ends = Ends(&load.over);
        while load.rounds.load(Ordering::Relaxed) < 600 {
            std::thread::sleep(Duration::from_millis(1));
        }
        fail();
        std::thread::sleep(Duration::from_millis(600));
        drop(ends);
        let (buffered, durable) = buffered.join().unwrap();
        ([queued.join().unwrap(), direct.join().unwrap(), buffered], durable)
    });
    for (log, name) in logs.iter().zip(["queued", "direct", "buffered"]) {
        println!("{name}: {} done, {} errors, first: {:?}", log.done, log.errors, log.first);
        assert!(log.done > 20, "{name}: only {} requests", log.done);
    }
    assert!(logs[2].errors > 0, "the buffered thread was told nothing");
    // Where no commit was tried, because all data failed before it.
    let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let _ = volume.set_attr(files[0].file.inode(), &change);
    let _ = volume.space().journal().commit_all();
    let reason = volume.read_only_reason();
    println!("{reason:?}; {} files acknowledged", durable.len());
    assert!(reason.is_some() && volume.read_only(), "the journal has lost its place");
    files.iter_mut().for_each(|known| {
        known.file.sync(false).expect_err("an aborted journal says so");
    });
    drop(load);
    volume.close().expect_err("a volume that failed says so");

    let files = files.map(|known| {
        let Known { file, name, begun, written, durable } = known;
        drop(file);
        (name, begun, written, durable)
    });
    restore();
    let volume = store.open();
    for (name, begun, written, durable) in files {
        let inode = volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap();
        let file = volume.open_file(&inode).unwrap();
        Known { file, name, begun, written, durable }.check(&volume);
    }
    for name in &durable {
        let root = volume.root().unwrap();
        let file = volume.open_file(&volume.lookup(&root, name.as_bytes()).unwrap()).unwrap();
        let mut found = vec![0; name.len() * 3000 + 1];
        assert_eq!(file.read_at(0, &mut found).unwrap(), found.len() - 1, "{name}");
        assert_eq!(&found[..found.len() - 1], name.as_bytes().repeat(3000), "{name}");
    }
    volume.close().unwrap();
    expect_clean(&store.device()).unwrap();
}

/// All but its first MiB: data, log and metadata are gone. Reads are short, writes find no place.
#[test]
fn a_device_that_vanishes() {
    let _watched = Watched::start();
    if can_run() {
        let store = Store::new(false, true);
        lose(&store, &|| store.resize_partition(2048), &|| {
            store.resize_partition(SECTORS_OF_DEVICE);
        });
    }
}

/// What lies behind 48 MiB has gone, and what lies before it goes on working.
#[test]
fn a_device_that_shrinks() {
    let _watched = Watched::start();
    if can_run() {
        let store = Store::new(false, true);
        lose(&store, &|| store.resize_partition(48 << 11), &|| {
            store.resize_partition(SECTORS_OF_DEVICE);
        });
    }
}

/// What was written once can be written again, and no more.
#[test]
fn a_store_that_is_full() {
    let _watched = Watched::start();
    if can_run() {
        let store = Store::new(true, false);
        lose(&store, &|| store.fill_up(), &|| drop(store.limit("300m").unwrap()));
    }
}

/// The backing file is cut below everything: a loop device answers reads of what is not there with
/// errors, and with short counts where a part is.
#[test]
fn a_backing_file_that_is_cut() {
    let _watched = Watched::start();
    if !can_run() {
        return;
    }
    let store = Store::new(false, false);
    let volume = store.open();
    drop(Known::create(&volume, "queued"));
    volume.close().unwrap();
    let saved = cut(&store.image());

    let options = FileOptions::auto(Access::ReadWrite);
    FileDevice::open_with(&store.device(), &options).expect("the device is as long as it was");
    saved.put_back(&store.image());
    let volume = store.open();
    let inode = volume.lookup(&volume.root().unwrap(), b"queued").unwrap();
    let file = volume.open_file(&inode).unwrap();
    let mut block = vec![0; BLOCK];
    // Where its blocks lie is known from here on.
    file.read_direct_at(0, &mut block).unwrap();
    let saved = cut(&store.image());
    let options = DirectOptions { depth: DEPTH, polled: false, memory: Vec::new() };
    let mut queue = volume.direct_queue(options).unwrap();
    let registered = queue.register(&inode).unwrap();
    let mut done = Vec::new();
    for round in 0..4 {
        for tag in 0..DEPTH as u64 {
            let buf = IoBuf::new(BLOCK * 4).unwrap();
            let offset = (round * DEPTH as u64 + tag) * buf.len() as u64;
            let (file, op) = (registered, DirectOp::Read);
            queue.push(DirectRequest { file, op, offset, buf, tag }).unwrap();
        }
        while queue.in_flight() > 0 {
            queue.reap(1, &mut done).unwrap();
        }
    }
    assert_eq!(done.len(), 4 * DEPTH);
    assert!(done.iter().all(|one| one.result.is_err()), "a read of nothing: {done:?}");
    file.read_direct_at(0, &mut block).unwrap_err();
    file.read_at(0, &mut block).unwrap_err();
    drop(queue);
    saved.put_back(&store.image());
    // Nothing was written meanwhile, so nothing is wrong.
    Known::fresh(file, "queued").check(&volume);
    drop(inode);
    volume.close().unwrap();
    expect_clean(&store.device()).unwrap();
}

/// What a file held behind its first MiB.
struct Saved(Vec<(u64, Vec<u8>)>);

fn cut(image: &Path) -> Saved {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let mut saved = Vec::new();
    for at in (1 << 20..fs::metadata(image).unwrap().len()).step_by(1 << 20) {
        let mut bytes = vec![0; 1 << 20];
        file.read_exact_at(&mut bytes, at).unwrap();
        if bytes.iter().any(|&byte| byte != 0) {
            saved.push((at, bytes));
        }
    }
    file.set_len(1 << 20).unwrap();
    Saved(saved)
}

impl Saved {
    fn put_back(&self, image: &Path) {
        let file = File::options().write(true).open(image).unwrap();
        file.set_len((SECTORS_OF_DEVICE + START) * SECTOR as u64).unwrap();
        for (at, bytes) in &self.0 {
            file.write_all_at(bytes, *at).unwrap();
        }
    }
}
