//! Admission to transactions on the smallest legal journal, in every mode, with many threads.
//!
//! Fault model: none but the schedule of the machine, on logs that are full all the while; a
//! watchdog ends what hangs. Demanded: everybody gets in, the counters name the mode, memory for
//! images is bounded, the volume is clean and shows everything. Not covered: crashes
//! (`crash_states`) and chosen schedules (`schedules`).

#![cfg(not(feature = "shuttle"))]

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use uext4::{FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::MemoryDevice;
use uext4_sim::crash::{Checker, Judge};
use uext4_sim::format::ORDINARY;
use uext4_sim::run::{Shape, make};
use uext4_sim::watchdog::Watchdog;

const THREADS: u32 = 24;
const ROUNDS: u32 = 12;

/// What a run leaves of its counters.
#[derive(Debug, Default)]
struct Told {
    refused: [u64; 4],
    waited: [u64; 4],
    wake_ups: u64,
    checkpoints: u64,
    forced: u64,
    reserved_high_water: u32,
    images_most: usize,
}

fn options(words: &str) -> MountOptions {
    let mut options =
        MountOptions { cache_bytes: MountOptions::CACHE_BYTES_MIN, ..MountOptions::default() };
    for word in words.split(',') {
        options.parse(word).expect("a mount option");
    }
    options
}

fn new(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o644, owner: Owner { uid: 0, gid: 0 }, rdev: Default::default() }
}

/// Makes and syncs files, every second time with a change in a reserved handle between.
fn work(volume: &Volume, thread: u32) {
    let journal = volume.space().journal();
    let root = volume.root().unwrap();
    let dir = volume.create(&root, format!("d{thread}").as_bytes(), &new(FileKind::Directory));
    let dir = dir.unwrap();
    for round in 0..ROUNDS {
        let reserved = (round % 2 == 0).then(|| journal.reserve(9).unwrap());
        let name = format!("f{round}");
        let inode = volume.create(&dir, name.as_bytes(), &new(FileKind::Regular)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        file.write_at(0, &vec![thread as u8 + 1; 3_000]).unwrap();
        match reserved {
            // One in four is not needed.
            Some(reserved) if round % 8 != 0 => reserved
                .run(|handle| inode.update(handle, |a| a.mode = a.mode & !0o777 | 0o600))
                .unwrap(),
            _ => {}
        }
        if !(round + thread).is_multiple_of(3) {
            file.sync(false).unwrap();
        }
    }
}

fn run(words: &str, block_size: u32) -> Told {
    // 1024 blocks.
    let journal_mib = block_size / 1024;
    let shape = Shape { block_size, journal_mib, image_mib: 24, features: "", format: &ORDINARY };
    let device = Arc::new(make(&shape, 1).expect("an image"));
    let volume = Volume::open(device.clone(), options(words)).expect("it opens");
    let watchdog = Watchdog::start(words, Duration::from_secs(120));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || work(volume, thread));
        }
    });
    go_round_the_log(&volume);
    let told = read(&volume);
    volume.close().expect("it closes");
    drop(watchdog);
    assert_eq!(Checker.findings(&device).expect("the checker works"), [""; 0], "{words}");
    expect_content(&device);
    println!("{words}, {block_size}: {told:?}");
    told
}

/// However few commits the threads needed: the log is gone round.
fn go_round_the_log(volume: &Volume) {
    let journal = volume.space().journal();
    let root = volume.root().unwrap();
    for round in 0.. {
        let name = format!("more{round}");
        volume.create(&root, name.as_bytes(), &new(FileKind::Regular)).unwrap();
        journal.commit_all().unwrap();
        if journal.stats().blocks_logged.load(Relaxed) > 2_500 {
            break;
        }
    }
}

fn read(volume: &Volume) -> Told {
    let journal = volume.space().journal();
    let stats = journal.stats();
    let admission = &stats.admission;
    assert!(journal.waits().blocked().is_empty());
    assert_eq!(admission.reserved.load(Relaxed), 0);
    assert!(admission.credits_high_water.load(Relaxed) <= journal.credits_max());
    assert!(admission.reserved_high_water.load(Relaxed) <= journal.reserved_max());
    let (refused, waited) = (&admission.refused, &admission.waited);
    Told {
        refused: [&refused.locked, &refused.full, &refused.log_space, &refused.reserved]
            .map(|count| count.load(Relaxed)),
        waited: [&waited.locked, &waited.full, &waited.log_space, &waited.reserved]
            .map(|histogram| histogram.read().count),
        wake_ups: admission.wake_ups.load(Relaxed),
        checkpoints: stats.checkpoints.load(Relaxed),
        forced: stats.checkpoints_forced.load(Relaxed),
        reserved_high_water: admission.reserved_high_water.load(Relaxed),
        images_most: stats.images_high_water.load(Relaxed) as usize,
    }
}

fn expect_content(device: &Arc<MemoryDevice>) {
    let volume = Volume::open(device.clone(), MountOptions::default()).expect("it opens again");
    let root = volume.root().unwrap();
    for thread in 0..THREADS {
        let dir = volume.lookup(&root, format!("d{thread}").as_bytes()).unwrap();
        for round in 0..ROUNDS {
            let inode = volume.lookup(&dir, format!("f{round}").as_bytes()).unwrap();
            let changed = round % 2 == 0 && round % 8 != 0;
            assert_eq!(inode.attributes().mode & 0o777, if changed { 0o600 } else { 0o644 });
            let mut bytes = vec![0; 4_000];
            let read = volume.open_file(&inode).unwrap().read_at(0, &mut bytes).unwrap();
            assert_eq!(read, 3_000);
            assert!(bytes[..read].iter().all(|&byte| u32::from(byte) == thread + 1));
        }
    }
    volume.close().unwrap();
}

#[test]
fn the_default_wakes_once_for_each_wait_and_never_forces_a_checkpoint() {
    for block_size in [1024, 4096] {
        let told = run("journal_join=fifo,journal_credits=exact,checkpoint=background", block_size);
        assert_eq!(told.forced, 0);
        assert!(told.checkpoints > 0 && told.reserved_high_water > 0);
        // Reservations and reserved handles wait as well.
        let waits: u64 = told.waited.iter().sum();
        assert_eq!(told.wake_ups, waits, "{told:?}");
        assert!(told.images_most <= 2 * 1024 + 256, "{told:?}");
    }
}

#[test]
fn each_ablation_alone() {
    run("journal_join=herd", 1024);
    let told = run("journal_credits=worst", 1024);
    // Transactions fill with credits that nobody uses.
    assert!(told.refused[1] > 0, "{told:?}");
    let told = run("checkpoint=inline", 1024);
    assert!(told.forced > 0 && told.forced == told.checkpoints, "{told:?}");
    assert!(told.refused[2] > 0 && told.waited[2] > 0, "{told:?}");
    assert!(told.images_most <= 2 * 1024 + 256, "{told:?}");
}

#[test]
fn ablations_together() {
    for block_size in [1024, 4096] {
        // Whether threads meet at a full transaction is the scheduler's choice.
        let met = (0..10).any(|_| {
            let told = run("journal_join=herd,journal_credits=worst,checkpoint=inline", block_size);
            assert!(told.forced > 0 && told.refused[2] > 0, "{told:?}");
            told.refused[1] > 0
        });
        assert!(met, "no transaction was full in ten runs");
    }
    run("journal_join=fifo,journal_credits=worst,checkpoint=inline", 1024);
    run("journal_join=herd,journal_credits=worst,checkpoint=background", 1024);
    run("journal_join=herd,journal_credits=exact,checkpoint=inline", 1024);
}
