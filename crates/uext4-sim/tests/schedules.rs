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
#[cfg(feature = "injected-faults")]
use uext4::injected_faults::{self, inject};
use uext4::{FileKind, InodeRef, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Fault, FaultDevice, FaultPlan, MemoryDevice, Operation, SharedDevice, Times};
use uext4_sim::crash::{Checker, CheckerAfterErrors, Judge};
use uext4_sim::format::ORDINARY;
use uext4_sim::linear::{Call, Caller, Names, found, is_linearizable};
use uext4_sim::run::{Shape, make};

#[path = "schedules/direct.rs"]
mod direct;
#[path = "schedules/durable.rs"]
mod durable;
#[path = "schedules/races.rs"]
mod races;
#[path = "schedules/space.rs"]
mod space;

/// Random schedules of each scenario; PCT gets a third of them.
const SCHEDULES: usize = 3_000;

static IMAGE: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let shape =
        Shape { block_size: 1024, journal_mib: 1, image_mib: 4, features: "", format: &ORDINARY };
    make(&shape, 1).expect("an image")
});

static WITH_VERITY: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let (image_mib, features) = (4, "verity");
    let shape = Shape { block_size: 1024, journal_mib: 1, image_mib, features, format: &ORDINARY };
    make(&shape, 1).expect("an image")
});

/// Explores a scenario, one at a time: an injected fault is of the whole process.
fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    explore_now(scenario, SCHEDULES);
}

fn explore_now(scenario: impl Fn() + Send + Sync + Copy + 'static, schedules: usize) {
    LazyLock::force(&IMAGE);
    LazyLock::force(&WITH_VERITY);
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
/// A small cache; and no pool for nodes, or a full volume would have free blocks.
fn small() -> MountOptions {
    let mut options = MountOptions { cache_bytes: 256 << 10, ..MountOptions::default() };
    options.parse("mb_node_pool=0").expect("a mount option");
    options
}

fn open(device: SharedDevice) -> Volume {
    Volume::open(device, small()).expect("the image opens")
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

/// Checkpoints go on while others commit; blocks that are freed meanwhile are not checkpointed.
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
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    explore(move || {
        // Each commit leaves no room for the next.
        #[cfg(feature = "injected-faults")]
        inject(Some(injected_faults::Fault::TinyLog));
        admission(words, NTH.fetch_add(1, Ordering::Relaxed));
        #[cfg(feature = "injected-faults")]
        inject(None);
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

/// Without the wake-up by the last handle a commit waits for ever under some schedule.
#[cfg(feature = "injected-faults")]
#[test]
fn a_lost_wake_up_is_found() {
    expect_deadlock("a_lost_wake_up_is_found", || {
        inject(Some(injected_faults::Fault::LostWakeUp));
        explore_now(joining, 2_000);
    });
}

/// Room is left to joiners to make, and none of those in line is told.
#[cfg(feature = "injected-faults")]
#[test]
fn an_unsent_joiner_is_found() {
    expect_deadlock("an_unsent_joiner_is_found", || {
        inject(Some(injected_faults::Fault::UnsentJoiner));
        explore_now(|| admission("checkpoint=inline", 0), 2_000);
    });
}

/// In a process of its own, which a deadlock inside may end in any way but well.
#[cfg(feature = "injected-faults")]
fn expect_deadlock(test: &str, faulty: impl FnOnce()) {
    expect_failure(test, "deadlock", faulty);
}

/// In a process of its own, expects a failure that says `word`, or one of several between bars.
#[cfg(feature = "injected-faults")]
fn expect_failure(test: &str, word: &str, faulty: impl FnOnce()) {
    const ROLE: &str = "UEXT4_SCHEDULES_FAULT";
    if std::env::var_os(ROLE).is_some() {
        faulty();
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
    let is_it = word.split('|').any(|word| said.contains(word));
    assert!(!output.status.success() && is_it, "not found: {said}");
}
