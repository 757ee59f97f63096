//! What a server answers, changed at random: errors, and nothing worse.
//!
//! Fault model: bytes of a server that make the client panic, hang past its deadline, or take
//! memory that nothing asked for. `cargo xtask fuzz nbd` looks for such bytes for longer.

mod played;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use played::{Script, play, valid};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const SEEDS: u32 = 800;
const THREADS: usize = 8;
/// A script that takes longer hangs: many times the timeout of its device.
const HANGS: Duration = Duration::from_secs(20);
/// What the requests, the threads and their buffers take at most.
const MEMORY_MAX_KIB: u64 = 256 << 10;

#[test]
fn scripts_as_they_are_go_well() {
    let folder = tempfile::tempdir().unwrap();
    for structured in [false, true] {
        // A machine that is too busy for the short timeout is no fault.
        let went_well = (0..50).any(|_| play(folder.path(), &valid(structured)));
        assert!(went_well, "structured: {structured}");
    }
}

#[test]
fn mutated_answers_are_errors_at_worst() {
    let panics = Arc::new(AtomicUsize::new(0));
    let (count, report) = (Arc::clone(&panics), std::panic::take_hook());
    // Threads of the device tell nobody else.
    std::panic::set_hook(Box::new(move |info| {
        count.fetch_add(1, Ordering::SeqCst);
        report(info);
    }));
    let (next, before) = (Arc::new(AtomicU32::new(0)), memory_peak_kib());
    let (done, finished) = mpsc::channel();
    for _ in 0..THREADS {
        let (next, done) = (Arc::clone(&next), done.clone());
        std::thread::spawn(move || {
            let folder = tempfile::tempdir().unwrap();
            loop {
                let seed = next.fetch_add(1, Ordering::SeqCst);
                if seed >= SEEDS {
                    return;
                }
                play(folder.path(), &mutated(seed));
                let _ = done.send(seed);
            }
        });
    }
    drop(done);
    for _ in 0..SEEDS {
        finished.recv_timeout(HANGS).expect("one of the scripts hangs, or its thread panicked");
    }
    assert_eq!(panics.load(Ordering::SeqCst), 0, "panics");
    let taken = memory_peak_kib().saturating_sub(before);
    assert!(taken < MEMORY_MAX_KIB, "{taken} KiB");
}

/// A valid script with up to four mutations.
fn mutated(seed: u32) -> Script {
    let mut random = StdRng::seed_from_u64(seed.into());
    let mut script = valid(!seed.is_multiple_of(3));
    for _ in 0..random.random_range(1..=4) {
        let which = random.random_range(0..script.len());
        let answer = &mut script[which];
        if answer.is_empty() {
            continue;
        }
        // Headers are more than data, which may be anything.
        let at = random.random_range(0..answer.len().min(64));
        match random.random_range(0..8) {
            0 => answer[at] ^= 1 << random.random_range(0..8),
            1 => answer[at] = random.random(),
            // A number of the protocol, or a part of one, at its least, its most, or in between.
            2..=4 => {
                let len = [2, 4, 8][random.random_range(0..3)].min(answer.len() - at);
                let number: u64 =
                    [0, 1, u64::MAX, 1 << 63, random.random()][random.random_range(0..5)];
                answer[at..at + len].copy_from_slice(&number.to_be_bytes()[8 - len..]);
            }
            5 => answer.truncate(at),
            6 => {
                let more: Vec<u8> =
                    (0..random.random_range(1..40)).map(|_| random.random()).collect();
                answer.splice(at..at, more);
            }
            _ => {
                let again = answer.clone();
                answer.extend(again);
            }
        }
    }
    script
}

/// Most memory that this process has had, in KiB.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches("kB").trim().parse().unwrap()
}
