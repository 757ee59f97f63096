//! Programs that are to stay on their processor.
//!
//! What: a thread that answers a request runs on its program's processor, as a rule, and so the
//! scheduler wakes the program on another one if that is idle. The program's next request comes
//! from there, and its answer sends the program back: each request wakes a halted processor and
//! takes 30 to 70 us instead of 7. The kernel's client has no word against it (it does not wake on
//! the current processor). But to the scheduler a processor that runs nothing except `SCHED_IDLE`
//! is idle: a thread that answers under [`IdlePolicy`] has its program wake where it slept.
//!
//! A thread under that policy gets a share of some thousandths where others want the processor. So
//! it is entered for an answer alone, and left before the next request is served; and only for a
//! [`TERM`] after a program was seen to be sent to and fro, which happens where processors are
//! idle. The change of policy and back takes 1 us. A program that computes right after its answer
//! keeps the thread from leaving the policy for a while: with the thread in its own group of the
//! scheduler it is not seen, without (`sched_autogroup_enabled` 0) another program waited 25 ms.
//!
//! By io_uring the queue tells the program's processor ([`Programs`], [`Answers`]). A thread that
//! reads `/dev/fuse` is bound to it for that term ([`Binding`]): else the scheduler would wake the
//! thread on an idle one.
//!
//! Locking: none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use uext4_device::IdlePolicy;

use crate::whereabouts::Whereabouts;

/// So long the answers on a processor are given under [`IdlePolicy`], when a program has moved
/// there. Short, because the processor may get busy; a move costs some 60 us.
const TERM: Duration = Duration::from_millis(20);
/// A program that comes from another processor so often in a row is sent to and fro; a move now and
/// then is the scheduler's balance of load.
const MOVES: u64 = 4;
/// Requests after a term in which a program may show that it would be moved again.
const WATCHED: u32 = 16;
/// Programs (threads of them) that are remembered; others share their places.
const PLACES: usize = 256;

/// The processor that each program's last request came from.
pub(crate) struct Programs {
    /// Number of the thread (32 bits), moves in a row (16), processor (16); 0 is nobody.
    places: [AtomicU64; PLACES],
    /// Programs can be kept where they are.
    is_possible: bool,
}

impl Programs {
    pub(crate) fn new() -> Self {
        Self::with(IdlePolicy::can_be_left())
    }

    fn with(is_possible: bool) -> Self {
        Self { places: std::array::from_fn(|_| AtomicU64::new(0)), is_possible }
    }

    /// Notes a request; whether its program is being sent to and fro.
    fn are_moving(&self, pid: u32, processor: u16) -> bool {
        let place = &self.places[pid as usize % PLACES];
        let before = place.load(Ordering::Relaxed);
        let unmoved = u64::from(pid) << 32 | u64::from(processor);
        let has_moved = before >> 32 == u64::from(pid) && before as u16 != processor;
        let moves = if has_moved { ((before >> 16 & 0xFFFF) + 1).min(MOVES) } else { 0 };
        let now = unmoved | moves << 16;
        if before != now {
            place.store(now, Ordering::Relaxed);
        }
        moves == MOVES
    }
}

/// How answers are given on a processor.
pub(crate) struct Answers {
    processor: u16,
    start: Instant,
    /// Nanoseconds from `start` until which programs are to stay; 0 is never.
    until: AtomicU64,
}

impl Answers {
    pub(crate) fn new(processor: u16) -> Self {
        Self { processor, start: Instant::now(), until: AtomicU64::new(0) }
    }

    /// A request of the thread `pid` has come.
    pub(crate) fn note(&self, programs: &Programs, pid: u32) {
        // 0: of no program, or of one of another namespace.
        if programs.is_possible && pid != 0 && programs.are_moving(pid, self.processor) {
            self.until.store(self.elapsed() + TERM.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// The policy to give an answer under.
    pub(crate) fn policy(&self) -> Option<IdlePolicy> {
        // An error: the program may move, then.
        self.keep_programs().then(IdlePolicy::enter)?.ok()
    }

    fn keep_programs(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let is_over = self.elapsed() >= until;
        if is_over {
            self.until.store(0, Ordering::Relaxed);
        }
        !is_over
    }

    fn elapsed(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Where a thread that reads `/dev/fuse` runs: anywhere, or for a while on its program's processor.
pub(crate) struct Binding {
    /// Processors that it may use; `None`: programs cannot be kept where they are.
    home: Option<CpuSet>,
    bound: Cell<Option<Bound>>,
}

#[derive(Clone, Copy)]
struct Bound {
    processor: usize,
    /// Answers are given under [`IdlePolicy`] until then.
    until: Instant,
    /// Requests since then.
    watched: u32,
}

impl Binding {
    /// Of the calling thread, which may use the processors of `home` from now on, and is under a
    /// policy that [`IdlePolicy::can_be_left`].
    pub(crate) fn new(home: Option<CpuSet>) -> Self {
        let binding = Self { home, bound: Cell::new(None) };
        binding.run_anywhere();
        binding
    }

    /// Binds the thread to a processor; whether it may run there.
    pub(crate) fn bind(&self, processor: usize) -> bool {
        if !self.home.is_some_and(|home| home.is_set(processor)) {
            return false;
        }
        let mut only = CpuSet::new();
        only.set(processor);
        let is_bound = rustix::thread::sched_setaffinity(None, &only).is_ok();
        if is_bound {
            let until = Instant::now() + TERM;
            self.bound.set(Some(Bound { processor, until, watched: 0 }));
        }
        is_bound
    }

    /// A request of `pid` has come: when the term is over, goes on where the program would move,
    /// and ends the binding where it would not.
    pub(crate) fn note(&self, pid: u32, places: &Whereabouts) {
        let Some(mut bound) = self.bound.get() else { return };
        if pid == 0 || Instant::now() < bound.until {
            return;
        }
        if bound.watched == 0 {
            places.forget();
        }
        let moved_to = places.found(pid).filter(|processor| *processor != bound.processor);
        if moved_to.is_some_and(|processor| self.bind(processor)) {
            return;
        }
        bound.watched += 1;
        self.bound.set(Some(bound));
        if bound.watched == WATCHED {
            self.end();
        } else {
            places.ask(pid);
        }
    }

    /// The thread may run anywhere again.
    pub(crate) fn end(&self) {
        if self.bound.take().is_some() {
            self.run_anywhere();
        }
    }

    fn run_anywhere(&self) {
        if let Some(home) = &self.home {
            // An error: it stays, and is bound elsewhere in time.
            let _ = rustix::thread::sched_setaffinity(None, home);
        }
    }

    /// The policy to give an answer under.
    pub(crate) fn policy(&self) -> Option<IdlePolicy> {
        let is_due = self.bound.get().is_some_and(|bound| Instant::now() < bound.until);
        // An error: the program may move, then.
        is_due.then(IdlePolicy::enter)?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_sent_to_and_fro_is_kept_for_a_term() {
        let programs = Programs::with(true);
        let [first, second] = [0, 1].map(Answers::new);
        first.note(&programs, 7);
        for _ in 0..10 {
            second.note(&programs, 7);
            second.note(&programs, 7);
            first.note(&programs, 7);
        }
        assert!(!first.keep_programs() && !second.keep_programs(), "it moves now and then");
        for _ in 0..10 {
            first.note(&programs, 8);
            second.note(&programs, 9);
        }
        assert!(!first.keep_programs() && !second.keep_programs(), "two programs");
        second.note(&programs, 7);
        first.note(&programs, 7);
        second.note(&programs, 7);
        assert!(second.keep_programs() && !first.keep_programs());
        second.until.store(1, Ordering::Relaxed);
        assert!(!second.keep_programs(), "the term is over");
    }

    /// Fault model: a thread that stays bound, or is bound where it may not be, or was started by
    /// one that is bound and may not go elsewhere.
    #[test]
    fn a_reader_follows_its_program_and_comes_back() {
        std::thread::spawn(|| {
            let affinity = || rustix::thread::sched_getaffinity(None).unwrap();
            let (home, places) = (affinity(), Whereabouts::new());
            let processor = (0..CpuSet::MAX_CPU).find(|n| home.is_set(*n)).unwrap();
            let binding = Binding::new(Some(home));
            assert!(binding.bind(processor));
            let started = std::thread::spawn(move || {
                let _bound_to_nothing = Binding::new(Some(home));
                rustix::thread::sched_getaffinity(None).unwrap()
            });
            assert_eq!(started.join().unwrap(), home);
            binding.note(1, &places);
            assert_eq!(affinity().count(), 1);
            let over = Bound { processor, until: Instant::now(), watched: 0 };
            binding.bound.set(Some(over));
            for _ in 0..WATCHED {
                assert_eq!(affinity().count(), 1);
                // A request of no program says nothing.
                binding.note(0, &places);
                binding.note(u32::MAX, &places);
            }
            assert_eq!(affinity(), home, "a program that does not move");
            assert!(!Binding { home: Some(CpuSet::new()), ..Binding::new(None) }.bind(processor));
            assert!(!Binding::new(None).bind(processor));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn programs_move_where_the_policy_could_not_be_left() {
        let programs = Programs::with(false);
        let [first, second] = [0, 1].map(Answers::new);
        for _ in 0..10 {
            first.note(&programs, 7);
            second.note(&programs, 7);
        }
        assert!(!second.keep_programs());
    }
}
