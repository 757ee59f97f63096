//! Invariants of the engine's own state: broken only by a bug of uext4, or by failing memory.
//!
//! What: an invariant is checked where a state is produced, and again before the state can reach
//! the device. A broken one aborts the journal: a library does not end its program, and a bad
//! state must not become durable. With the feature `strict-invariants`, which test harnesses have,
//! it panics as well. The volume refuses changes from then on, the next mount finds the error
//! recorded, and the last committed state is what a replay brings back.
//! Checks reach this through [`Journal::check`](crate::journal::Journal::check), or through the
//! budget of pages where there is no journal.

use crate::error::{Error, ErrorKind};
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

type Reaction = Box<dyn Fn(Error) + Send + Sync>;

/// Counts broken invariants of one volume, and reacts to them.
#[derive(Default)]
pub struct Invariants {
    broken: AtomicU64,
    reaction: OnceLock<Reaction>,
}

impl fmt::Debug for Invariants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invariants").field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Invariants {
    /// Sets what a broken invariant does: it aborts the journal. Called once, at mount.
    pub(crate) fn set_reaction(&self, reaction: Reaction) {
        let _ = self.reaction.set(reaction);
    }

    /// Reacts unless the invariant `what` holds. The caller holds no lock of rank `Journal` or
    /// higher.
    pub(crate) fn check(&self, holds: bool, what: &'static str) {
        if !holds {
            self.broken(what);
        }
    }

    /// Reacts to the broken invariant `what`.
    #[cold]
    pub(crate) fn broken(&self, what: &'static str) -> Error {
        self.broken.fetch_add(1, Ordering::Relaxed);
        let error = Error::new(ErrorKind::Internal, format!("broken invariant: {what}"));
        if let Some(react) = self.reaction.get() {
            react(error.clone());
        }
        let panics = cfg!(feature = "strict-invariants") && !std::thread::panicking();
        assert!(!panics, "{error}");
        error
    }

    /// How many checks have failed.
    #[must_use]
    pub fn broken_count(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }
}
