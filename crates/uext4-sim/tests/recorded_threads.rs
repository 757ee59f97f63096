//! Several threads on one volume, against models.
//!
//! Disjoint names are compared exactly, with what each thread did; one directory whose names all
//! threads create, rename, unlink and link is checked for linearizability.

use rand::SeedableRng;
use rand::rngs::StdRng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use uext4::{FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_sim::broken_syncs::BrokenSyncs;
use uext4_sim::category::{CATEGORIES, Category};
use uext4_sim::crash::judge_at_rest;
use uext4_sim::format::ORDINARY;
use uext4_sim::linear::{Call, Caller, Names, found, is_linearizable};
use uext4_sim::model::{Entry, Mark};
use uext4_sim::operation::Operation;
use uext4_sim::run::{Plan, Shape, make, record};

/// After a clean unmount everything that a thread did is there, and nothing else.
#[test]
fn disjoint_names_are_exactly_what_each_thread_made() {
    for (seed, &category) in (40..).zip(CATEGORIES) {
        let shape = Shape {
            block_size: 1024,
            journal_mib: 1,
            image_mib: 32,
            features: "",
            format: &ORDINARY,
        };
        let mut plan = Plan { category, closes: true, operations: 250, ..Plan::with(seed, shape) };
        if category == Category::NoSpace {
            plan.ablation = "delalloc";
        }
        let mut run =
            record(&plan, BrokenSyncs::None).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let image = run.recording.prefix(run.recording.events().len());
        // As if a sync of everything had been the last thing that happened.
        let history = &mut run.history.threads[0];
        let (operation, started) = (Operation::SyncVolume, u64::MAX - 1);
        history.entries.push(Entry { operation, started, ended: Some(u64::MAX) });
        let mark = Mark { thread: history.thread, index: history.entries.len() - 1 };
        let found = judge_at_rest(&image, &run.history, &[mark]).expect("the machinery works");
        assert!(found.is_empty(), "{plan}: {found:#?}");
    }
}

const THREADS: u64 = 3;
const CALLS: u64 = 7;
const ROUNDS: u64 = 400;

#[test]
fn names_of_a_shared_directory_are_linearizable() {
    let shape =
        Shape { block_size: 1024, journal_mib: 1, image_mib: 16, features: "", format: &ORDINARY };
    let device = Arc::new(make(&shape, 3).expect("an image"));
    let volume = Volume::open(device, MountOptions::default()).expect("it opens");
    let root = volume.root().unwrap();
    let mut overlapping = 0;
    for round in 0..ROUNDS {
        let dir_name = format!("round{round}");
        let owner = Owner::default();
        let kind = FileKind::Directory;
        let directory = NewInode { kind, mode: 0o755, owner, rdev: Default::default() };
        let dir = volume.create(&root, dir_name.as_bytes(), &directory).unwrap();
        let clock = AtomicU64::new(0);
        let calls = Mutex::new(Vec::new());
        let start = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (volume, dir, clock, calls, start) =
                    (&volume, dir.clone(), &clock, &calls, &start);
                scope.spawn(move || {
                    let mut rng = StdRng::seed_from_u64(round << 8 | thread);
                    let mut caller = Caller::new(volume, dir);
                    let mut own = Vec::new();
                    start.wait();
                    for number in 0..CALLS {
                        let fresh = ((thread << 16) | (number + 1)) as u32;
                        let action = caller.choose(&mut rng, fresh);
                        let begin = clock.fetch_add(1, Ordering::SeqCst);
                        let outcome = caller.perform(action);
                        let end = clock.fetch_add(1, Ordering::SeqCst);
                        own.push(Call { action, begin, end, outcome });
                    }
                    calls.lock().unwrap().extend(own);
                });
            }
        });
        let calls = calls.into_inner().unwrap();
        overlapping += calls.iter().filter(|call| call.end > call.begin + 1).count();
        let names = found(&volume, &dir);
        let explained = is_linearizable(&Names::new(), &calls, &names);
        assert!(explained, "round {round}: {calls:#?} ends with {names:?}");
    }
    println!("{ROUNDS} rounds, {overlapping} calls overlapped others");
    assert!(overlapping > 0, "the threads ran one after the other: nothing was tested");
    volume.close().unwrap();
}
