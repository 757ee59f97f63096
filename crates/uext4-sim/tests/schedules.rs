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
use std::sync::{Arc, LazyLock};
use uext4::{FileKind, InodeRef, MountOptions, NewInode, Owner, SetAttr, Volume};
use uext4_device::{Fault, FaultDevice, FaultPlan, MemoryDevice, Operation, SharedDevice, Times};
use uext4_sim::crash::{Checker, Judge};
use uext4_sim::run::{Shape, make};

/// Random schedules of each scenario; PCT gets a third of them.
const SCHEDULES: usize = 90;

static IMAGE: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let shape = Shape { block_size: 1024, journal_mib: 1, image_mib: 4, features: "" };
    make(&shape, 1).expect("an image")
});

fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    LazyLock::force(&IMAGE);
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.max_steps = MaxSteps::FailAfter(20_000_000);
        Runner::new(scheduler, config).run(scenario);
    };
    run(Box::new(RandomScheduler::new_from_seed(0x0ca5_cade, SCHEDULES)));
    run(Box::new(PctScheduler::new_from_seed(0x0ca5_cade, 3, SCHEDULES / 3)));
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
    explore(|| {
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
    });
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
        let failed = threads.into_iter().filter(|_| true).map(|t| t.join().unwrap());
        let failed = failed.filter(Result::is_err).count();
        let closed = volume.close();
        assert!(faulty.struck() == 0 || failed > 0 || closed.is_err());
        faulty.reset();
        open(medium.clone()).close().unwrap();
        expect_clean(&medium);
    });
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
