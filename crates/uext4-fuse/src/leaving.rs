//! Files that have lost their last name, and that the kernel has not let go of yet.
//!
//! What: unlink(2) of the kernel's own ext4 frees the blocks before it returns. Through FUSE the
//! kernel lets go by a release and a forget that nobody waits for, so a program that removes a
//! file to make room, and writes at once, would find none. A request that finds no room therefore
//! waits for what is on its way ([`Leaving::again`]), and is tried again.
//!
//! Invariants: a request waits for [`PATIENCE`] at most. A wait that was in vain is not repeated
//! until something has left: files that are open without a name stay as long as their users like.
//!
//! Locking: a mutex of its own, taken with no other lock held.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long a request waits for room at most.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long statfs(2) waits for what was just removed.
const SETTLING: Duration = Duration::from_millis(100);

/// Counts of files without a name.
#[derive(Default)]
pub(crate) struct Leaving {
    /// That the kernel still holds.
    held: AtomicU64,
    /// That have left: their blocks are free.
    left: AtomicU64,
    /// What `left` was when a wait was in vain, and one more.
    in_vain: Mutex<u64>,
    changed: Condvar,
}

/// A request that may be tried again.
pub(crate) struct Patience<'a> {
    leaving: &'a Leaving,
    seen: u64,
    until: Option<Instant>,
}

impl Leaving {
    /// A file has lost its last name; the kernel holds it.
    pub(crate) fn expect(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    /// A file that was expected has left, and what was free to be deleted has been.
    pub(crate) fn leave(&self) {
        self.held.fetch_sub(1, Ordering::SeqCst);
        self.tell();
    }

    /// Something that was open has been closed; it may have been the last user of a file.
    pub(crate) fn close(&self) {
        if self.held.load(Ordering::SeqCst) > 0 {
            self.tell();
        }
    }

    fn tell(&self) {
        self.left.fetch_add(1, Ordering::SeqCst);
        // Whoever waits has looked before we came, or has not looked yet.
        drop(self.in_vain.lock());
        self.changed.notify_all();
    }

    /// For a request that begins.
    pub(crate) fn patience(&self) -> Patience<'_> {
        Patience { leaving: self, seen: self.left.load(Ordering::SeqCst), until: None }
    }

    /// Waits a moment for what is on its way, so that free space is what a program expects that
    /// has just removed something.
    pub(crate) fn settle(&self) {
        let mut patience = self.patience();
        patience.until = Some(Instant::now() + SETTLING);
        while self.held.load(Ordering::SeqCst) > 0 && patience.again() {}
    }
}

impl Patience<'_> {
    /// Whether something has left since this was asked last, or leaves within the time that is left
    /// to the request.
    pub(crate) fn again(&mut self) -> bool {
        let until = *self.until.get_or_insert_with(|| Instant::now() + PATIENCE);
        let mut in_vain = self.leaving.in_vain.lock();
        loop {
            let left = self.leaving.left.load(Ordering::SeqCst);
            if left != self.seen {
                self.seen = left;
                return Instant::now() < until;
            }
            if self.leaving.held.load(Ordering::SeqCst) == 0 || *in_vain == left + 1 {
                return false;
            }
            if self.leaving.changed.wait_until(&mut in_vain, until).timed_out() {
                *in_vain = self.leaving.left.load(Ordering::SeqCst) + 1;
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_since_the_request_began_is_worth_another_try() {
        let leaving = Leaving::default();
        leaving.expect();
        let mut patience = leaving.patience();
        leaving.leave();
        assert!(patience.again());
        assert!(!patience.again(), "nobody is expected");
    }

    #[test]
    fn a_wait_ends_with_the_file_and_one_in_vain_is_not_repeated() {
        let leaving = Leaving::default();
        leaving.expect();
        leaving.expect();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| leaving.patience().again());
            leaving.leave();
            // Whether it waited or came later, it may try again or has nothing to wait for.
            let _ = waiting.join().expect("no panic");
        });
        assert!(!leaving.patience().again(), "one stays open");
        let before = *leaving.in_vain.lock();
        assert_eq!(before, leaving.left.load(Ordering::SeqCst) + 1);
        assert!(!leaving.patience().again());
        leaving.close();
        assert_ne!(before, leaving.left.load(Ordering::SeqCst) + 1, "a close is a reason to wait");
    }
}
