//! Schedules of the journal and the allocator, explored.
//!
//! Run with `--features shuttle`; `cargo xtask test` does. The engine's locks, conditions, threads,
//! and the atomics of journal, allocator and buffers are the explorer's then: at each of them it
//! may switch threads, at random or by PCT (few, well placed switches). A thread that waits for
//! ever is a deadlock, which the explorer reports with the schedule that leads there.
//!
//! Fault model: any interleaving at those places, under sequentially consistent atomics. Not
//! covered: weaker orderings of the processor; interleavings inside one place; timeouts (they never
//! run out, so that nothing may depend on them).

#![cfg(feature = "shuttle")]

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner, thread};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use uext4::{
    AllocateMode, DirectOp, DirectOptions, DirectRequest, FileKind, InodeRef, IoBuf, MountOptions,
    NewInode, OpenFile, Owner, SetAttr, Volume,
};
use uext4_device::{
    Device, Fault, FaultDevice, FaultPlan, MemoryDevice, Operation, SharedDevice, Times,
};
use uext4_sim::crash::{Checker, CheckerAfterErrors, Judge};
use uext4_sim::linear::{Call, Caller, Names, found, is_linearizable};
use uext4_sim::run::{Shape, make};

#[path = "schedules/races.rs"]
mod races;

/// Random schedules of each scenario; PCT gets a third of them.
const SCHEDULES: usize = 3_000;

static IMAGE: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let shape = Shape { block_size: 1024, journal_mib: 1, image_mib: 4, features: "" };
    make(&shape, 1).expect("an image")
});

/// Explores a scenario; in turns, for the canary plants its fault in the whole process.
fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    explore_now(scenario, SCHEDULES);
}

fn explore_now(scenario: impl Fn() + Send + Sync + Copy + 'static, schedules: usize) {
    LazyLock::force(&IMAGE);
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.max_steps = MaxSteps::FailAfter(20_000_000);
        Runner::new(scheduler, config).run(scenario);
    };
    run(Box::new(RandomScheduler::new_from_seed(0x0ca5_cade, schedules)));
    run(Box::new(PctScheduler::new_from_seed(0x0ca5_cade, 3, schedules / 3)));
}

/// A volume whose memory for metadata is so small that each commit starts a checkpoint.
fn open(device: SharedDevice) -> Volume {
    let options = MountOptions { cache_bytes: 256 << 10, ..MountOptions::default() };
    Volume::open(device, options).expect("the image opens")
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o644, owner: Owner { uid: 0, gid: 0 }, rdev: Default::default() }
}

fn create(volume: &Volume, dir: &InodeRef, name: &str) -> uext4::Result<InodeRef> {
    volume.create(dir, name.as_bytes(), &new(FileKind::Regular))
}

fn expect_clean(device: &MemoryDevice) {
    assert_eq!(Checker.findings(device).expect("the checker works"), [""; 0]);
}

/// Handles join, leave and wait; commits close and open; every fsync returns.
#[test]
fn join_and_commit() {
    explore(joining);
}

fn joining() {
    let device = Arc::new(IMAGE.snapshot());
    let volume = open(device.clone());
    let threads: Vec<_> = (0..3)
        .map(|n| {
            let volume = volume.clone();
            thread::spawn(move || {
                let root = volume.root().unwrap();
                let inode = create(&volume, &root, &format!("a{n}")).unwrap();
                let file = volume.open_file(&inode).unwrap();
                file.write_at(0, &[n as u8 + 1; 700]).unwrap();
                file.sync(n == 1).unwrap();
                if n == 2 {
                    volume.unlink(&root, b"a2").unwrap();
                }
            })
        })
        .collect();
    volume.sync().unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
    volume.close().unwrap();
    expect_clean(&device);
    let volume = open(device);
    let root = volume.root().unwrap();
    assert!(volume.lookup(&root, b"a0").is_ok() && volume.lookup(&root, b"a1").is_ok());
    assert!(volume.lookup(&root, b"a2").is_err());
    volume.close().unwrap();
}

/// Checkpoints go on while others commit; blocks that are freed meanwhile are not written home.
#[test]
fn checkpoint_against_commit() {
    explore(|| {
        let device = Arc::new(IMAGE.snapshot());
        let volume = open(device.clone());
        let root = volume.root().unwrap();
        let threads: Vec<_> = (0..2)
            .map(|n| {
                let (volume, root) = (volume.clone(), root.clone());
                thread::spawn(move || {
                    for round in 0..2 {
                        let name = format!("d{n}-{round}");
                        volume.create(&root, name.as_bytes(), &new(FileKind::Directory)).unwrap();
                        volume.space().journal().commit_all().unwrap();
                        volume.rmdir(&root, name.as_bytes()).unwrap();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        volume.close().unwrap();
        expect_clean(&device);
    });
}

/// A device that fails ends the journal: everybody is told, nobody waits for ever, and what is on
/// the device recovers.
#[test]
fn abort() {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NTH: AtomicU64 = AtomicU64::new(0);
    explore(|| {
        let nth = NTH.fetch_add(1, Ordering::Relaxed) % 9 + 1;
        let medium = Arc::new(IMAGE.snapshot());
        let faulty = Arc::new(FaultDevice::new(medium.clone()));
        let volume = open(faulty.clone());
        faulty.reset();
        let operation = if nth.is_multiple_of(2) { Operation::Flush } else { Operation::Write };
        let (times, fault) = (Times::Onwards, Fault::Io);
        faulty.arm(FaultPlan { operation, nth: nth.div_ceil(2), times, fault });
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let volume = volume.clone();
                thread::spawn(move || -> uext4::Result<()> {
                    let root = volume.root()?;
                    for round in 0..2 {
                        let inode = create(&volume, &root, &format!("f{n}-{round}"))?;
                        let file = volume.open_file(&inode)?;
                        file.write_at(0, &[7; 1500])?;
                        file.sync(false)?;
                    }
                    Ok(())
                })
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let failed = results.iter().filter(|result| result.is_err()).count();
        let closed = volume.close();
        assert!(faulty.struck() == 0 || failed > 0 || closed.is_err());
        faulty.reset();
        open(medium.clone()).close().unwrap();
        let found = CheckerAfterErrors.findings(&medium).expect("the checker works");
        assert_eq!(found, [""; 0]);
    });
}

/// Joins, commits, checkpoints and a failing device together, with reserved handles: everybody gets
/// in or is told, nobody waits for ever, and what is on the device recovers.
fn admission(words: &'static str, nth: u64) {
    let medium = Arc::new(IMAGE.snapshot());
    let faulty = Arc::new(FaultDevice::new(medium.clone()));
    let mut options = MountOptions { cache_bytes: 256 << 10, ..MountOptions::default() };
    for word in words.split(',') {
        options.parse(word).expect("a mount option");
    }
    let volume = Volume::open(faulty.clone(), options).expect("the image opens");
    faulty.reset();
    // In one of three the device works to the end.
    if !nth.is_multiple_of(3) {
        let operation = if nth.is_multiple_of(2) { Operation::Flush } else { Operation::Write };
        let (times, fault) = (Times::Onwards, Fault::Io);
        faulty.arm(FaultPlan { operation, nth: nth / 2 % 23 + 1, times, fault });
    }
    let threads: Vec<_> = (0..3)
        .map(|n| {
            let volume = volume.clone();
            thread::spawn(move || enter_in_every_way(&volume, n))
        })
        .collect();
    let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let failed = results.iter().filter(|result| result.is_err()).count();
    let closed = volume.close();
    assert!(faulty.struck() == 0 || failed > 0 || closed.is_err());
    assert!(faulty.struck() > 0 || failed == 0 && closed.is_ok(), "{results:?} {closed:?}");
    faulty.reset();
    open(medium.clone()).close().unwrap();
    let found = CheckerAfterErrors.findings(&medium).expect("the checker works");
    assert_eq!(found, [""; 0]);
}

/// Needs of half a transaction, of a whole one, and small ones, reserved and not.
fn enter_in_every_way(volume: &Volume, thread: u32) -> uext4::Result<()> {
    let journal = volume.space().journal();
    let root = volume.root()?;
    let reserved = journal.reserve(journal.reserved_max() - 20 * thread)?;
    let inode = create(volume, &root, &format!("f{thread}"))?;
    reserved.run(|handle| inode.update(handle, |a| a.mode = a.mode & !0o777 | 0o600))?;
    let tid = journal.run(journal.credits_max() - thread, |handle| {
        inode.update(handle, |_| ())?;
        Ok(handle.tid())
    })?;
    if thread == 1 {
        journal.wait_durable(tid)?;
    }
    drop(journal.reserve(5)?);
    volume.open_file(&inode)?.sync(false)
}

fn explore_admission(words: &'static str) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NTH: AtomicU64 = AtomicU64::new(0);
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    explore(move || {
        // Each commit leaves no room for the next.
        #[cfg(feature = "plant")]
        uext4::plant::set(Some(uext4::plant::Fault::TinyLog));
        admission(words, NTH.fetch_add(1, Ordering::Relaxed));
        #[cfg(feature = "plant")]
        uext4::plant::set(None);
    });
}

#[test]
fn admission_in_line_with_a_checkpointer() {
    explore_admission("journal_join=fifo,checkpoint=background");
}

#[test]
fn admission_of_a_herd_that_checkpoints() {
    explore_admission("journal_join=herd,journal_credits=worst,checkpoint=inline");
}

#[test]
fn admission_in_line_with_checkpoints_by_joiners() {
    explore_admission("journal_join=fifo,journal_credits=worst,checkpoint=inline");
}

/// Blocks are claimed, freed and claimed again by several threads: none twice.
#[test]
fn allocator() {
    explore(|| {
        let device = Arc::new(IMAGE.snapshot());
        let volume = open(device.clone());
        let root = volume.root().unwrap();
        let threads: Vec<_> = (0..3)
            .map(|n: u8| {
                let (volume, root) = (volume.clone(), root.clone());
                thread::spawn(move || {
                    let inode = create(&volume, &root, &format!("x{n}")).unwrap();
                    let file = volume.open_file(&inode).unwrap();
                    file.write_at(0, &vec![n + 1; 9_000]).unwrap();
                    file.sync(false).unwrap();
                    let cut = SetAttr { size: Some(1_000), ..SetAttr::default() };
                    volume.set_attr(&inode, &cut).unwrap();
                    file.write_at(20_000, &vec![n + 1; 5_000]).unwrap();
                    file.sync(true).unwrap();
                    let mut back = vec![0; 1_000];
                    file.read_at(0, &mut back).unwrap();
                    assert!(back.iter().all(|&byte| byte == n + 1));
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        volume.close().unwrap();
        expect_clean(&device);
    });
}

/// An image with 14 free blocks.
static FULL: LazyLock<MemoryDevice> = LazyLock::new(|| fill(IMAGE.snapshot()));

/// Likewise, of which none is root's: what is given back goes to root's reserve first, and past
/// the cells.
static BARE: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let device = MemoryDevice::new(4 << 20);
    let options = uext4_mkfs::Options {
        block_size: Some(1024),
        journal_mib: Some(1),
        reserved_percent: 0.0,
        discard: false,
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&device, &options).expect("an image");
    fill(device)
});

fn fill(device: MemoryDevice) -> MemoryDevice {
    let device = Arc::new(device);
    let volume = open(device.clone());
    let root = volume.root().unwrap();
    for name in ["w0", "w1", "taker"] {
        create(&volume, &root, name).unwrap();
    }
    let fill = create(&volume, &root, "fill").unwrap();
    volume.sync().unwrap();
    let blocks = volume.stat_fs().blocks_free - 14;
    let file = volume.open_file(&fill).unwrap();
    file.allocate(AllocateMode::Allocate { keep_size: false }, 0, blocks * 1024).unwrap();
    drop((fill, root, file));
    volume.close().unwrap();
    device.snapshot()
}

/// On a nearly full volume: a write that was acknowledged finds its blocks, whoever claims others
/// meanwhile.
#[test]
fn promises() {
    explore(|| {
        let device = Arc::new(FULL.snapshot());
        let volume = open(device.clone());
        let root = volume.root().unwrap();
        let mut threads: Vec<_> = (0..2)
            .map(|n| {
                let inode = volume.lookup(&root, format!("w{n}").as_bytes()).unwrap();
                let volume = volume.clone();
                thread::spawn(move || {
                    let file = volume.open_file(&inode).unwrap();
                    if file.write_at(0, &[5; 3_000]).is_ok() {
                        file.sync(false).expect("space was promised");
                    }
                })
            })
            .collect();
        let inode = volume.lookup(&root, b"taker").unwrap();
        let taker = volume.clone();
        threads.push(thread::spawn(move || {
            let file = taker.open_file(&inode).unwrap();
            for n in 0..4 {
                // Refused when it is full.
                let mode = AllocateMode::Allocate { keep_size: false };
                let _ = file.allocate(mode, n * 3 * 1024, 2 * 1024);
            }
        }));
        for thread in threads {
            thread.join().unwrap();
        }
        volume.close().unwrap();
        expect_clean(&device);
    });
}

/// On a nearly full volume: claims, frees that the next claim needs back, promises and commits.
/// What was promised is there, a volume is full only if it is, and the counts do not drift.
fn little_space(words: &'static str) {
    let device = Arc::new(FULL.snapshot());
    let mut options = MountOptions { cache_bytes: 256 << 10, ..MountOptions::default() };
    words.split(',').for_each(|word| options.parse(word).expect("a mount option"));
    let volume = Volume::open(device.clone(), options).expect("the image opens");
    let root = volume.root().unwrap();
    let file_of = |name: &str| {
        let inode = volume.lookup(&root, name.as_bytes()).unwrap();
        (volume.clone(), inode)
    };
    let mut threads = Vec::new();
    let (of, inode) = file_of("w0");
    threads.push(thread::spawn(move || {
        let file = of.open_file(&inode).unwrap();
        for _ in 0..2 {
            // Others have at most eleven of the fourteen: promises of six and two, and three that
            // are claimed for a promise that still stands. What is freed comes back.
            let mode = AllocateMode::Allocate { keep_size: false };
            file.allocate(mode, 0, 3 * 1024).expect("there is space");
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            of.set_attr(&inode, &cut).unwrap();
        }
    }));
    let (of, inode) = file_of("w1");
    threads.push(thread::spawn(move || {
        let file = of.open_file(&inode).unwrap();
        if file.write_at(0, &[5; 1_000]).is_ok() {
            file.sync(false).expect("space was promised");
        }
    }));
    let of = volume.clone();
    threads.push(thread::spawn(move || {
        let mut promise = uext4::alloc::Reservation::none(of.space());
        let is_promised = promise.try_set(2).is_ok();
        of.space().journal().commit_all().unwrap();
        if is_promised {
            promise.try_set(1).expect("less than before");
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    // Not before: the committer gives frees back when it has woken who waited.
    volume.clone().close().unwrap();
    let free = volume.stat_fs().blocks_free;
    expect_clean(&device);
    let volume = open(device);
    assert_eq!(volume.stat_fs().blocks_free, free);
    volume.close().unwrap();
}

#[test]
fn allocate_free_reserve_and_commit() {
    explore(|| little_space("mb_free=sharded"));
}

#[test]
fn allocate_free_reserve_and_commit_by_the_contrast() {
    explore(|| {
        little_space("mb_free=global,mb_trylock=0,mb_optimize_scan=0,mb_stream_goal=global")
    });
}

/// Names of one directory that three threads change are explained by some order of the calls.
#[test]
fn names_are_linearizable() {
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::sync::atomic::{AtomicU64, Ordering};
    static ROUND: AtomicU64 = AtomicU64::new(0);
    explore(|| {
        let round = ROUND.fetch_add(1, Ordering::Relaxed);
        let volume = open(Arc::new(IMAGE.snapshot()));
        let root = volume.root().unwrap();
        let clock = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..3_u64)
            .map(|thread| {
                let (volume, dir, clock) = (volume.clone(), root.clone(), clock.clone());
                thread::spawn(move || {
                    let mut rng = StdRng::seed_from_u64(round << 8 | thread);
                    let mut caller = Caller::new(&volume, dir);
                    (0..4_u64)
                        .map(|number| {
                            let fresh = ((thread << 16) | (number + 1)) as u32;
                            let action = caller.choose(&mut rng, fresh);
                            let begin = clock.fetch_add(1, Ordering::SeqCst);
                            let outcome = caller.perform(action);
                            let end = clock.fetch_add(1, Ordering::SeqCst);
                            Call { action, begin, end, outcome }
                        })
                        .collect::<Vec<Call>>()
                })
            })
            .collect();
        let calls: Vec<Call> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        let names = found(&volume, &root);
        assert!(is_linearizable(&Names::new(), &calls, &names), "{calls:#?} ends with {names:?}");
        volume.close().unwrap();
    });
}

/// Lets others run before each overwrite, in some schedules long enough for a removal, a commit,
/// and the next user of the block.
#[derive(Debug)]
struct Yielding(Arc<MemoryDevice>, usize);

impl Yielding {
    fn new(inner: Arc<MemoryDevice>) -> Yielding {
        static SCHEDULE: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let turn = SCHEDULE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Yielding(inner, [2, 20, 60, 1500][turn % 4])
    }
}

impl Device for Yielding {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)?;
        thread::yield_now();
        Ok(())
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        // What was left free on the full image lies at its end, the log in its front.
        if offset > self.len() / 2 {
            (0..self.1).for_each(|_| thread::yield_now());
        }
        self.0.write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> std::io::Result<()> {
        self.0.write_vectored_at(offset, bufs)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
    fn punch(&self, offset: u64, len: u64) -> std::io::Result<bool> {
        self.0.punch(offset, len)
    }
}

/// The image with 14 free blocks, of which file `w0` has taken four, and written them.
fn with_a_direct_file() -> (Arc<MemoryDevice>, Volume, OpenFile) {
    let device = Arc::new(FULL.snapshot());
    let volume = open(Arc::new(Yielding::new(device.clone())));
    let inode = volume.lookup(&volume.root().unwrap(), b"w0").unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_direct_at(0, &[1; 4096]).unwrap();
    // What a later transaction frees is not the file's own to take again.
    volume.sync().unwrap();
    // Known from here on.
    file.write_direct_at(0, &[1; 4096]).unwrap();
    (device, volume, file)
}

/// Direct overwrites, by a call and by a queue, while the blocks go and another file takes them:
/// what lands there is that file's.
fn overwriting() {
    let (device, volume, file) = with_a_direct_file();
    let before: Vec<u64> = blocks(&volume, file.inode()).collect();
    let file = Arc::new(file);
    let by_call = thread::spawn({
        let file = file.clone();
        move || drop(file.write_direct_at(1024, &[2; 1024]))
    });
    let by_queue = thread::spawn({
        let (volume, file) = (volume.clone(), file.clone());
        move || {
            let options = DirectOptions { depth: 2, polled: false, memory: Vec::new() };
            let mut queue = volume.direct_queue(options).unwrap();
            let known = queue.register(file.inode()).unwrap();
            let mut buf = IoBuf::new(1024).unwrap();
            buf.fill(2);
            let (op, offset) = (DirectOp::Write, 2048);
            queue.push(DirectRequest { file: known, op, offset, buf, tag: 0 }).unwrap();
            // Its own request stands in its way.
            file.allocate(AllocateMode::PunchHole, 3072, 1024).unwrap();
            queue.reap(1, &mut Vec::new()).unwrap();
        }
    });
    let taker = thread::spawn({
        let (volume, file) = (volume.clone(), file.clone());
        move || {
            file.allocate(AllocateMode::PunchHole, 0, 3072).unwrap();
            volume.sync().unwrap();
            let inode = volume.lookup(&volume.root().unwrap(), b"w1").unwrap();
            let other = volume.open_file(&inode).unwrap();
            let mut count = 0;
            // All there is.
            while let Ok(more) = other.write_direct_at(count as u64, &[3; 2 * 1024]) {
                count += more;
            }
            (other, count)
        }
    });
    by_call.join().unwrap();
    by_queue.join().unwrap();
    let (other, count) = taker.join().unwrap();
    let took_some = blocks(&volume, other.inode()).any(|block| before.contains(&block));
    TAKEN.fetch_add(u64::from(took_some), std::sync::atomic::Ordering::Relaxed);
    let mut back = vec![0; count];
    assert_eq!(other.read_direct_at(0, &mut back).unwrap(), count);
    assert!(back.iter().all(|&byte| byte == 3), "a block of another file was overwritten");
    drop((file, other));
    volume.close().unwrap();
    expect_clean(&device);
}

/// Schedules in which the blocks became the other file's.
static TAKEN: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

fn blocks(volume: &Volume, inode: &InodeRef) -> impl Iterator<Item = u64> {
    let mut blocks = Vec::new();
    let mut add = |extent: uext4::Extent| {
        blocks.extend((0..u64::from(extent.len)).map(|n| extent.start.get() + n));
        true
    };
    volume.extents(inode, uext4::FileBlock(0), &mut add).unwrap();
    blocks.into_iter()
}

#[test]
fn direct_overwrites_and_removals() {
    explore(overwriting);
    let taken = TAKEN.load(std::sync::atomic::Ordering::Relaxed);
    assert!(taken > 1_000, "the blocks were taken in {taken} schedules only");
}

/// A direct overwrite that has returned is what a buffered read shows, whoever else reads through
/// the cache, or cuts the file, meanwhile.
fn caching() {
    let (device, volume, file) = with_a_direct_file();
    let file = Arc::new(file);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let file = file.clone();
            thread::spawn(move || {
                let mut back = [0; 1024];
                file.read_at(0, &mut back).unwrap();
                assert!(back.iter().all(|&byte| byte == back[0]));
            })
        })
        .collect();
    file.write_direct_at(0, &[2; 1024]).unwrap();
    let mut back = [0; 1024];
    file.read_at(0, &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 2), "an old page: it says {}", back[0]);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    drop(file);
    volume.close().unwrap();
    expect_clean(&device);
}

#[test]
fn direct_overwrites_and_pages() {
    explore(caching);
}

/// Whole unwritten blocks are written directly, by a call and by a queue, while parts of them are
/// written through the cache, and directly, and the file is synced: of what was written whole
/// nothing is lost but those parts.
fn converting() {
    let (device, volume, file) = with_a_direct_file();
    file.allocate(AllocateMode::ZeroRange { keep_size: true }, 0, 4096).unwrap();
    // Known from here on.
    file.write_direct_at(3072, &[1; 1024]).unwrap();
    let file = Arc::new(file);
    let by_call = thread::spawn({
        let file = file.clone();
        move || assert_eq!(file.write_direct_at(0, &[2; 1024]).unwrap(), 1024)
    });
    let by_queue = thread::spawn({
        let (volume, file) = (volume.clone(), file.clone());
        move || {
            let options = DirectOptions { depth: 2, polled: false, memory: Vec::new() };
            let mut queue = volume.direct_queue(options).unwrap();
            let known = queue.register(file.inode()).unwrap();
            let mut buf = IoBuf::new(1024).unwrap();
            buf.fill(2);
            let (op, offset) = (DirectOp::Write, 1024);
            queue.push(DirectRequest { file: known, op, offset, buf, tag: 0 }).unwrap();
            queue.submit().unwrap();
            // Its own request stands in its way.
            file.write_direct_at(1024 + 512, &[4; 512]).unwrap();
            let mut done = Vec::new();
            queue.reap(1, &mut done).unwrap();
            assert_eq!(done.pop().unwrap().result.unwrap(), 1024);
        }
    });
    file.write_direct_at(512, &[4; 512]).unwrap();
    for block in 0..2 {
        file.write_at(block * 1024 + 100, &[3; 100]).unwrap();
    }
    volume.sync().unwrap();
    by_call.join().unwrap();
    by_queue.join().unwrap();
    let mut back = [0; 2048];
    assert_eq!(file.read_at(0, &mut back).unwrap(), 2048);
    for (block, bytes) in back.chunks(1024).enumerate() {
        let is_right = |at: usize| match at {
            100..200 => [2, 3].contains(&bytes[at]),
            0..512 => bytes[at] == 2,
            _ => [2, 4].contains(&bytes[at]),
        };
        let wrong = (0..1024).find(|&at| !is_right(at));
        assert_eq!(wrong, None, "what was written to block {block} is lost");
    }
    IN_PLACE.fetch_add(
        volume.stats().number("direct_writes_in_place").unwrap(),
        std::sync::atomic::Ordering::Relaxed,
    );
    drop(file);
    volume.close().unwrap();
    expect_clean(&device);
}

/// Writes that went in place and were converted, in all schedules: one is the first of each.
static IN_PLACE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

#[test]
fn direct_writes_to_unwritten_blocks() {
    explore(converting);
    let in_place = IN_PLACE.load(std::sync::atomic::Ordering::Relaxed);
    println!("{in_place} in place");
    assert!(in_place > 1_000, "{in_place} in place only");
}

#[cfg(feature = "plant")]
#[test]
fn a_blind_conversion_is_found() {
    expect_failure("a_blind_conversion_is_found", "is lost", || {
        uext4::plant::set(Some(uext4::plant::Fault::BlindConversion));
        explore_now(converting, 2_000);
    });
}

/// The canaries of both: who does not wait for accesses under way.
#[cfg(feature = "plant")]
#[test]
fn a_removal_that_does_not_wait_is_found() {
    expect_failure("a_removal_that_does_not_wait_is_found", "of another file", || {
        uext4::plant::set(Some(uext4::plant::Fault::LateEpoch));
        explore_now(overwriting, 2_000);
    });
}

/// And who waits, but does not see all who are inside.
#[cfg(feature = "plant")]
#[test]
fn a_removal_without_a_fence_is_found() {
    expect_failure("a_removal_without_a_fence_is_found", "of another file", || {
        uext4::plant::set(Some(uext4::plant::Fault::MissingFence));
        explore_now(overwriting, 2_000);
    });
}

#[cfg(feature = "plant")]
#[test]
fn a_page_without_a_fence_is_found() {
    expect_failure("a_page_without_a_fence_is_found", "an old page", || {
        uext4::plant::set(Some(uext4::plant::Fault::MissingFence));
        explore_now(caching, 2_000);
    });
}

#[cfg(feature = "plant")]
#[test]
fn a_page_that_does_not_wait_is_found() {
    expect_failure("a_page_that_does_not_wait_is_found", "an old page", || {
        uext4::plant::set(Some(uext4::plant::Fault::LateEpoch));
        explore_now(caching, 2_000);
    });
}

/// The canary: without the wake-up by the last handle a commit waits for ever under some schedule.
#[cfg(feature = "plant")]
#[test]
fn a_lost_wake_up_is_found() {
    expect_deadlock("a_lost_wake_up_is_found", || {
        uext4::plant::set(Some(uext4::plant::Fault::LostWakeUp));
        explore_now(joining, 2_000);
    });
}

/// Room is left to joiners to make, and none of those in line is told.
#[cfg(feature = "plant")]
#[test]
fn an_unsent_joiner_is_found() {
    expect_deadlock("an_unsent_joiner_is_found", || {
        uext4::plant::set(Some(uext4::plant::Fault::UnsentJoiner));
        explore_now(|| admission("checkpoint=inline", 0), 2_000);
    });
}

/// In a process of its own, which a deadlock inside may end in any way but well.
#[cfg(feature = "plant")]
fn expect_deadlock(test: &str, planted: impl FnOnce()) {
    expect_failure(test, "deadlock", planted);
}

/// Likewise, for a failure that says `word`.
#[cfg(feature = "plant")]
fn expect_failure(test: &str, word: &str, planted: impl FnOnce()) {
    const ROLE: &str = "UEXT4_SCHEDULES_CANARY";
    if std::env::var_os(ROLE).is_some() {
        planted();
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, "1")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = said + &String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains(word), "not found: {said}");
}
