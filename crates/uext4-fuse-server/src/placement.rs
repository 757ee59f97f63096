//! How many threads read `/dev/fuse` at a time, and where.
//!
//! What: one, as a rule: the scheduler then moves it to its client, and both share a processor,
//! which is what makes requests cheap (7 us a stat, against 45 us where each wakes the other across
//! processors). Two cases are looked for, once in [`EVERY`]:
//! - The client stays on another processor. The reader then follows it ([`crate::affinity`]) or,
//!   where it may not, a second one shares the wake-ups (39 us a stat, against 90).
//! - Requests wait whenever one is taken, and there are processors to spare: one reader more.
//!
//! A number above one holds for [`TERM`] looks; then it is tried with one less. The figures are
//! from two processors.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::whereabouts::Whereabouts;

/// Time between looks, of which each wakes a thread.
const EVERY: Duration = Duration::from_millis(1);
/// So many looks in a row must find a client on another processor.
const APART: u32 = 4;
/// So many looks in a row must find requests waiting.
const WAITING: u32 = 16;
/// Looks until a number above one is tried with one less.
const TERM: u64 = 64;

/// What the looks have found.
pub(crate) struct Placement {
    start: Instant,
    /// Nanoseconds from `start` at which the next look is due.
    due: AtomicU64,
    looks: AtomicU64,
    /// Looks in a row that found the client on another processor, and a request waiting.
    apart: AtomicU32,
    waiting: AtomicU32,
    /// Look at which the number of readers is due to fall.
    until: AtomicU64,
    /// Most readers that waiting requests bring.
    readers_max: u32,
}

/// What a look leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Stay,
    /// The client stays on this other processor.
    Apart(usize),
    More,
    Fewer,
}

impl Placement {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let readers_max = u32::try_from(processors / 2).unwrap_or(1).max(1);
        Self {
            start: Instant::now(),
            due: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            apart: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            until: AtomicU64::new(0),
            readers_max,
        }
    }

    /// A request of the process `pid` has come; `is_waiting` tells whether another is waiting.
    pub(crate) fn look(
        &self,
        pid: u32,
        readers: u32,
        places: &Whereabouts,
        is_waiting: impl FnOnce() -> bool,
    ) -> Advice {
        let now = self.start.elapsed().as_nanos() as u64;
        // A request of no program says nothing.
        if pid == 0 || now < self.due.load(Ordering::Relaxed) {
            return Advice::Stay;
        }
        self.due.store(now + EVERY.as_nanos() as u64, Ordering::Relaxed);
        let here = rustix::thread::sched_getcpu();
        let is_elsewhere = |place: &usize| *place != here;
        let apart = places.found(pid).filter(is_elsewhere);
        places.ask(pid);
        self.judge(readers, apart, is_waiting)
    }

    fn judge(
        &self,
        readers: u32,
        apart: Option<usize>,
        is_waiting: impl FnOnce() -> bool,
    ) -> Advice {
        let number = self.looks.fetch_add(1, Ordering::Relaxed);
        if readers > 1 && number >= self.until.load(Ordering::Relaxed) {
            return self.decide(number, Advice::Fewer);
        }
        let is_row = |row: &AtomicU32, is: bool, looks: u32| {
            let so_far = if is { row.load(Ordering::Relaxed) + 1 } else { 0 };
            row.store(so_far, Ordering::Relaxed);
            so_far >= looks
        };
        if readers < self.readers_max && is_row(&self.waiting, is_waiting(), WAITING) {
            return self.decide(number, Advice::More);
        }
        let is_apart = readers == 1 && is_row(&self.apart, apart.is_some(), APART);
        if let (true, Some(processor)) = (is_apart, apart) {
            return self.decide(number, Advice::Apart(processor));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_apart_are_told_of_when_they_stay_so() {
        let placement = Placement { readers_max: 1, ..Placement::new() };
        let judge = |readers, apart: bool| {
            placement.judge(readers, apart.then_some(7), || unreachable!("one processor"))
        };
        for _ in 1..APART {
            assert_eq!(judge(1, true), Advice::Stay);
        }
        assert_eq!(judge(1, false), Advice::Stay, "the row is broken");
        for _ in 1..APART {
            assert_eq!(judge(1, true), Advice::Stay);
        }
        assert_eq!(judge(1, true), Advice::Apart(7));
        for _ in 1..TERM {
            assert_eq!(judge(2, true), Advice::Stay);
        }
        assert_eq!(judge(2, true), Advice::Fewer);
    }

    #[test]
    fn waiting_requests_bring_readers_as_processors_allow() {
        let placement = Placement { readers_max: 3, ..Placement::new() };
        let mut readers = 1;
        for _ in 0..50 {
            match placement.judge(readers, None, || true) {
                Advice::More => readers += 1,
                other => assert_eq!(other, Advice::Stay),
            }
        }
        assert_eq!(readers, 3);
    }

    #[test]
    fn one_look_in_a_while() {
        let (placement, places) = (Placement::new(), Whereabouts::new());
        for pid in [0, 1, 1] {
            placement.look(pid, 1, &places, || false);
        }
        assert_eq!(placement.looks.load(Ordering::Relaxed), 1);
    }
}
