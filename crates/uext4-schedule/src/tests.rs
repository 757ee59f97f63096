use crate::atomic::{AtomicU64, Ordering};
use crate::time::Instant;
use crate::{
    Condvar, Failure, Mutex, Order, Outcome, Places, Policy, RwLock, Settings, Stops, run, thread,
};
use std::sync::Arc;
use std::time::Duration;

fn settings(seed: u64) -> Settings {
    let order = if seed.is_multiple_of(2) { Order::Random } else { Order::Priority };
    Settings {
        seed,
        policy: Policy { order, mean: 4, preemptions_max: u64::MAX, stops: None },
        step: Duration::from_nanos(100),
        patience: Duration::from_secs(3600),
        processors: 2,
    }
}

/// Two threads add to a number with a load and a store.
fn lost_update(seed: u64) -> Outcome<u64> {
    lost_update_with(settings(seed))
}

fn lost_update_with(settings: Settings) -> Outcome<u64> {
    run(settings, || {
        let sum = Arc::new(AtomicU64::new(0));
        let adders: Vec<_> = (0..2)
            .map(|_| {
                let sum = Arc::clone(&sum);
                thread::spawn("adder", move || {
                    for _ in 0..3 {
                        let before = sum.load(Ordering::SeqCst);
                        sum.store(before + 1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        adders.into_iter().for_each(|adder| adder.join().unwrap());
        sum.load(Ordering::SeqCst)
    })
}

#[test]
fn a_seed_gives_the_same_run_and_another_one_another() {
    let outcomes: Vec<_> = (0..40).map(lost_update).collect();
    for (seed, outcome) in (0..).zip(&outcomes) {
        let again = lost_update(seed);
        assert_eq!((again.trace, again.steps), (outcome.trace, outcome.steps), "seed {seed}");
        assert_eq!(again.result, outcome.result);
    }
    assert!(outcomes.iter().any(|outcome| outcome.result != Ok(6)), "no update was ever lost");
    assert!(outcomes.iter().any(|outcome| outcome.result == Ok(6)), "one was lost always");
    assert_ne!(outcomes[0].trace, outcomes[2].trace);
}

/// Preemptions are so rare that none meets the window; a place where threads are stopped does.
#[test]
fn stops_at_a_place_meet_its_window() {
    let nap = Duration::from_micros(10);
    let lost = |stops: Option<Stops>| {
        let rare = |seed| {
            let settings = settings(seed);
            let policy = Policy { mean: 100_000, stops, ..settings.policy };
            Settings { policy, ..settings }
        };
        (0..60).filter(|seed| lost_update_with(rare(*seed)).result != Ok(6)).count()
    };
    assert_eq!(lost(None), 0);
    let stops = |which| {
        let places = Places::Lines { one_of: 16, which };
        Some(Stops { places, threads: (1, 0), mean: 1, nap, iterations: 0 })
    };
    let by_place: Vec<_> = (0..16).map(|which| lost(stops(which))).collect();
    assert!(by_place.iter().any(|count| *count > 30), "{by_place:?}");
    assert!(by_place.contains(&0), "{by_place:?}");
}

#[test]
fn locks_exclude_and_conditions_wake() {
    for seed in 0..60 {
        let outcome = run(settings(seed), || {
            let shared = Arc::new((Mutex::new(0_u64), Condvar::new(), RwLock::new(0_u64)));
            let workers: Vec<_> = (0..4_u64)
                .map(|iteration| {
                    let shared = Arc::clone(&shared);
                    thread::spawn("worker", move || {
                        let (iterations, changed, sum) = &*shared;
                        let mut at = iterations.lock();
                        while *at != iteration {
                            changed.wait(&mut at);
                        }
                        let before = *sum.read();
                        *sum.write() = before + iteration;
                        *at += 1;
                        drop(at);
                        changed.notify_all();
                    })
                })
                .collect();
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            *shared.2.read()
        });
        assert_eq!(outcome.result, Ok(6), "seed {seed}");
    }
}

#[test]
fn the_clock_jumps_to_the_next_deadline() {
    let outcome = run(settings(1), || {
        let begun = Instant::now();
        let sleeper = thread::spawn("sleeper", || thread::sleep(Duration::from_secs(60)));
        let (lock, never) = (Mutex::new(()), Condvar::new());
        let timed_out = never.wait_for(&mut lock.lock(), Duration::from_secs(5)).timed_out();
        let waited = begun.elapsed();
        sleeper.join().unwrap();
        (timed_out, waited.as_secs(), begun.elapsed().as_secs())
    });
    assert_eq!(outcome.result, Ok((true, 5, 60)));
}

#[test]
fn a_deadlock_is_told_with_what_each_waits_for() {
    let cross = |seed| {
        run(settings(seed), || {
            let locks = Arc::new((Mutex::new(()), Mutex::new(())));
            let other = Arc::clone(&locks);
            let crossing = thread::spawn("crossing", move || {
                let _second = other.1.lock();
                let _first = other.0.lock();
            });
            let first = locks.0.lock();
            crate::about("the second");
            let second = locks.1.lock();
            drop((first, second));
            crossing.join().unwrap();
        })
    };
    let failures: Vec<Failure> = (0..40).filter_map(|seed| cross(seed).result.err()).collect();
    let Some(Failure::Deadlock(text)) = failures.first() else { panic!("no deadlock") };
    assert!(text.contains("crossing: waits for") && text.contains("the second at"), "{text}");
    assert!(text.contains("tests.rs:"), "{text}");
    assert!(failures.len() < 40, "always a deadlock");
}

#[test]
fn time_without_progress_and_panics_end_a_run() {
    let outcome = run(settings(3), || {
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    });
    let result: Result<(), Failure> = outcome.result;
    assert!(matches!(result, Err(Failure::Stalled(_))), "{result:?}");
    assert!(outcome.time > Duration::from_secs(3600));
    let outcome = run(settings(4), || {
        thread::spawn("faulty", || panic!("an injected panic")).join().unwrap();
    });
    assert_eq!(outcome.result, Err(Failure::Panicked("faulty: an injected panic".to_owned())));
}

#[test]
fn a_writer_that_waits_stops_new_readers() {
    let outcome = run(settings(2), || {
        let lock = Arc::new(RwLock::new(0));
        let held = lock.read();
        let writer = {
            let lock = Arc::clone(&lock);
            thread::spawn("writer", move || *lock.write() = 1)
        };
        thread::sleep(Duration::from_millis(1));
        let is_refused = lock.try_read().is_none();
        drop(held);
        writer.join().unwrap();
        (is_refused, *lock.read())
    });
    assert_eq!(outcome.result, Ok((true, 1)));
}

/// The main thread ends iterations; the other one waits for five of them, or for a second.
#[test]
fn a_thread_waits_for_turns_of_others() {
    let waited = |iterations: u32| {
        let outcome = run(settings(5), move || {
            let slow = thread::spawn("slow", || {
                let begun = Instant::now();
                thread::linger(5, Duration::from_secs(1));
                begun.elapsed()
            });
            for _ in 0..iterations {
                thread::sleep(Duration::from_millis(10));
                crate::iteration();
            }
            slow.join().unwrap()
        });
        outcome.result.unwrap().as_millis()
    };
    assert!((40..=60).contains(&waited(9)), "{}", waited(9));
    assert_eq!(waited(4), 1000);
}
