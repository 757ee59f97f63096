//! How many threads read `/dev/fuse` at a time.
//!
//! What: one, as a rule: the scheduler then moves it to its client, and both share a processor,
//! which is what makes requests cheap (7 us a stat, against 45 us where each wakes the other across
//! processors). Two cases need more, and both are looked for in one of [`EVERY`] requests:
//! - The client stays on another processor, because it has others to talk to. Two readers then
//!   share the wake-ups (39 us a stat, against 90).
//! - Requests wait whenever one is taken, and there are processors to spare.
//!
//! A number above one holds for [`TERM`] requests; then it is tried with one less. The figures are
//! from two processors.

use std::fs;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// One request in so many is looked at.
const EVERY: u64 = 64;
/// So many looks in a row must say the same.
const LOOKS: u32 = 16;
/// Requests until a number above one is tried with one less.
const TERM: u64 = 4096;

/// What the looks have found.
pub(crate) struct Placement {
    requests: AtomicU64,
    /// Looks in a row that found the client on another processor, and a request waiting.
    apart: AtomicU32,
    waiting: AtomicU32,
    /// Request at which the number of readers is due to fall.
    until: AtomicU64,
    /// Most readers that waiting requests bring.
    readers_max: u32,
}

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Stay,
    More,
    Fewer,
}

impl Placement {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let readers_max = u32::try_from(processors / 2).unwrap_or(1).max(1);
        Self {
            requests: AtomicU64::new(0),
            apart: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            until: AtomicU64::new(0),
            readers_max,
        }
    }

    /// Counts a request of the process `pid`; `is_waiting` tells whether another is waiting.
    pub(crate) fn look(&self, pid: u32, readers: u32, is_waiting: impl FnOnce() -> bool) -> Advice {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(EVERY) {
            return Advice::Stay;
        }
        let is_apart =
            || processor_of(pid).is_some_and(|its| its != rustix::thread::sched_getcpu());
        self.judge(number, readers, is_apart, is_waiting)
    }

    fn judge(
        &self,
        number: u64,
        readers: u32,
        is_apart: impl FnOnce() -> bool,
        is_waiting: impl FnOnce() -> bool,
    ) -> Advice {
        if readers > 1 && number >= self.until.load(Ordering::Relaxed) {
            return self.decide(number, Advice::Fewer);
        }
        let is_row = |row: &AtomicU32, is: bool| {
            let so_far = if is { row.load(Ordering::Relaxed) + 1 } else { 0 };
            row.store(so_far, Ordering::Relaxed);
            so_far >= LOOKS
        };
        let wants_company = readers < self.readers_max && is_row(&self.waiting, is_waiting());
        if wants_company || (readers == 1 && is_row(&self.apart, is_apart())) {
            return self.decide(number, Advice::More);
        }
        Advice::Stay
    }

    fn decide(&self, number: u64, advice: Advice) -> Advice {
        self.until.store(number + TERM, Ordering::Relaxed);
        self.apart.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
        advice
    }
}

/// The processor that a process ran on last (proc_pid_stat(5), field 39).
fn processor_of(pid: u32) -> Option<usize> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_apart_bring_a_second_reader_for_a_term() {
        let placement = Placement { readers_max: 1, ..Placement::new() };
        let judge = |number, readers, apart| {
            placement.judge(number, readers, || apart, || unreachable!("one processor"))
        };
        for look in 0..u64::from(LOOKS) - 1 {
            assert_eq!(judge(look, 1, true), Advice::Stay);
        }
        assert_eq!(judge(100, 1, false), Advice::Stay, "the row is broken");
        for _ in 1..LOOKS {
            assert_eq!(judge(200, 1, true), Advice::Stay);
        }
        assert_eq!(judge(300, 1, true), Advice::More);
        assert_eq!(judge(301, 2, true), Advice::Stay);
        assert_eq!(judge(300 + TERM, 2, true), Advice::Fewer);
    }

    #[test]
    fn waiting_requests_bring_readers_as_processors_allow() {
        let placement = Placement { readers_max: 3, ..Placement::new() };
        let mut readers = 1;
        for number in 0..100 {
            match placement.judge(number, readers, || false, || true) {
                Advice::More => readers += 1,
                other => assert_eq!(other, Advice::Stay),
            }
        }
        assert_eq!(readers, 3);
    }

    #[test]
    fn this_process_runs_somewhere() {
        assert!(processor_of(std::process::id()).is_some());
        assert_eq!(processor_of(0), None);
    }
}
