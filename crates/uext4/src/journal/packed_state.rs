//! The state of the running transaction, packed into one atomic word.
//!
//! What: id (32 bits), closed flag (1), open handles (14), credits taken (17). Joining and leaving
//! are one atomic operation each and touch nothing else.
//! Invariants: `credits` is the number of blocks in the transaction plus what its open handles and
//! the reservations may still add. It never exceeds the limit given to [`PackedState::join`]. No
//! handle joins a closed transaction.

use crate::sync::atomic::{AtomicU64, Ordering};
use uext4_ondisk::Tid;

const CREDIT_BITS: u32 = 17;
const HANDLE_BITS: u32 = 14;
const HANDLE_ONE: u64 = 1 << CREDIT_BITS;
/// Most handles that one transaction can have open.
pub(super) const HANDLES_MAX: u32 = (1 << HANDLE_BITS) - 1;
const CLOSED: u64 = 1 << (CREDIT_BITS + HANDLE_BITS);
const TID_SHIFT: u32 = 32;

/// Most credits one transaction can have.
pub(super) const CREDITS_MAX: u32 = (1 << CREDIT_BITS) - 1;

/// The packed state. See the module.
#[derive(Debug)]
pub(super) struct PackedState(AtomicU64);

/// The state at one moment, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunningState {
    pub(super) tid: Tid,
    pub(super) closed: bool,
    pub(super) handles: u32,
    pub(super) credits: u32,
}

/// The reason why a handle cannot join now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The transaction is closed for its commit.
    Closed,
    /// All credits, or all handles, are taken.
    Full,
}

impl RunningState {
    #[allow(clippy::cast_possible_truncation)]
    const fn unpack(word: u64) -> Self {
        Self {
            tid: Tid((word >> TID_SHIFT) as u32),
            closed: word & CLOSED != 0,
            handles: (word >> CREDIT_BITS) as u32 & HANDLES_MAX,
            credits: (word & CREDITS_MAX as u64) as u32,
        }
    }

    const fn pack(self) -> u64 {
        (self.tid.get() as u64) << TID_SHIFT
            | if self.closed { CLOSED } else { 0 }
            | (self.handles as u64) << CREDIT_BITS
            | self.credits as u64
    }
}

impl PackedState {
    /// An open, empty transaction.
    pub(super) fn new(tid: Tid) -> Self {
        Self(AtomicU64::new(RunningState { tid, closed: false, handles: 0, credits: 0 }.pack()))
    }

    pub(super) fn load(&self) -> RunningState {
        RunningState::unpack(self.0.load(Ordering::Acquire))
    }

    /// Adds one handle with `need` credits.
    pub(super) fn join(&self, need: u32, credits_max: u32) -> Result<RunningState, Refusal> {
        self.add(HANDLE_ONE + u64::from(need), need, credits_max)
    }

    /// Takes `need` credits for a handle that starts later, in this transaction or another.
    pub(super) fn reserve(&self, need: u32, credits_max: u32) -> Result<RunningState, Refusal> {
        self.add(u64::from(need), need, credits_max)
    }

    /// Returns credits of [`PackedState::reserve`]. Does nothing if the transaction is closed,
    /// because the next one opens with the credits that are reserved then.
    pub(super) fn unreserve(&self, credits: u32) {
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            (!RunningState::unpack(word).closed).then(|| word - u64::from(credits))
        });
    }

    fn add(&self, delta: u64, need: u32, credits_max: u32) -> Result<RunningState, Refusal> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let now = RunningState::unpack(word);
            if now.closed {
                return Err(Refusal::Closed);
            }
            if now.handles == HANDLES_MAX || now.credits + need > credits_max {
                return Err(Refusal::Full);
            }
            let added = word + delta;
            match self.0.compare_exchange_weak(word, added, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(RunningState::unpack(added)),
                Err(seen) => word = seen,
            }
        }
    }

    /// Takes `more` credits for an open handle. False if they do not fit.
    pub(super) fn extend(&self, more: u32, credits_max: u32) -> bool {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
                let now = RunningState::unpack(word);
                (now.credits + more <= credits_max).then(|| word + u64::from(more))
            })
            .is_ok()
    }

    /// Removes one handle and returns its `unused` credits. Returns the state after that. `None`
    /// if there were not so many: the handle, if there is one, is removed all the same, so that no
    /// thread waits for it.
    pub(super) fn leave(&self, unused: u32) -> Option<RunningState> {
        let delta = HANDLE_ONE + u64::from(unused);
        let word = self.0.fetch_sub(delta, Ordering::AcqRel);
        let before = RunningState::unpack(word);
        if before.handles > 0 && before.credits >= unused {
            return Some(RunningState::unpack(word - delta));
        }
        let mended = if before.handles > 0 { u64::from(unused) } else { delta };
        self.0.fetch_add(mended, Ordering::AcqRel);
        None
    }

    /// Closes the transaction: no handle joins from now on.
    pub(super) fn close(&self) -> RunningState {
        RunningState::unpack(self.0.fetch_or(CLOSED, Ordering::AcqRel) | CLOSED)
    }

    /// Opens transaction `tid`, the next one or an empty one again, with `credits` reserved.
    pub(super) fn open(&self, tid: Tid, credits: u32) {
        let state = RunningState { tid, closed: false, handles: 0, credits };
        self.0.store(state.pack(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_leaves_than_joins_are_noticed() {
        let state = PackedState::new(Tid(7));
        assert_eq!(state.leave(0), None);
        assert!(state.join(5, 256).is_ok());
        assert_eq!(state.leave(6), None);
        let now = state.load();
        assert_eq!((now.tid, now.handles, now.credits, now.closed), (Tid(7), 0, 5, false));
    }

    #[test]
    fn join_leave_close_open() {
        let state = PackedState::new(Tid(u32::MAX));
        assert_eq!(state.join(100, 256).map(|now| now.tid), Ok(Tid(u32::MAX)));
        assert_eq!(state.join(200, 256), Err(Refusal::Full));
        assert!(state.extend(156, 256) && !state.extend(1, 256));
        assert_eq!(state.close().handles, 1);
        assert_eq!(state.join(1, 256), Err(Refusal::Closed));
        let left = state.leave(246).unwrap();
        assert_eq!((left.handles, left.credits, left.closed), (0, 10, true));
        state.open(left.tid.next(), 7);
        let now = state.load();
        assert_eq!((now.tid, now.handles, now.credits, now.closed), (Tid(0), 0, 7, false));
    }

    #[test]
    fn reserved_credits_are_counted_until_the_transaction_closes() {
        let state = PackedState::new(Tid(1));
        assert_eq!(state.reserve(200, 256).map(|now| (now.handles, now.credits)), Ok((0, 200)));
        assert_eq!(state.reserve(57, 256), Err(Refusal::Full));
        state.unreserve(50);
        assert_eq!(state.load().credits, 150);
        // A reserved handle's credits are counted already.
        assert_eq!(state.join(0, 256).map(|now| (now.handles, now.credits)), Ok((1, 150)));
        state.close();
        assert_eq!(state.reserve(1, 256), Err(Refusal::Closed));
        state.unreserve(50);
        assert_eq!(state.load().credits, 150);
    }
}
