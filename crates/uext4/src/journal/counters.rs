//! What admission to transactions counts of itself, since the mount.

use crate::stats::{Histogram, WaitFor};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counters of admission to transactions.
#[derive(Debug, Default)]
pub struct AdmissionStats {
    /// Attempts to join, or to reserve credits, that were refused, by cause. With
    /// `journal_join=fifo` one for each wait (two if the log turned out to be full meanwhile);
    /// with `herd` one for each attempt.
    pub refused: ByCause<AtomicU64>,
    /// Time that joiners slept, by the last cause of each sleep.
    pub waited: ByCause<Histogram>,
    /// How often a sleeping joiner was woken.
    pub wake_ups: AtomicU64,
    /// Most credits that one transaction has had outstanding.
    pub credits_high_water: AtomicU32,
    /// Credits reserved and not started now.
    pub reserved: AtomicU32,
    /// Most credits that were ever reserved and not started.
    pub reserved_high_water: AtomicU32,
}

/// One of something for each cause that keeps a joiner out.
#[derive(Debug, Default)]
pub struct ByCause<T> {
    /// The running transaction is closed for its commit.
    pub locked: T,
    /// The running transaction has no room for the need.
    pub full: T,
    /// The log has no room for another transaction.
    pub log_space: T,
    /// Too many credits are reserved.
    pub reserved: T,
}

impl<T> ByCause<T> {
    /// That of one cause.
    #[must_use]
    pub const fn of(&self, cause: WaitFor) -> &T {
        match cause {
            WaitFor::TransactionFull => &self.full,
            WaitFor::LogSpace => &self.log_space,
            WaitFor::ReservedCredits => &self.reserved,
            _ => &self.locked,
        }
    }

    /// All of them with their causes.
    #[must_use]
    pub const fn each(&self) -> [(WaitFor, &T); 4] {
        [
            (WaitFor::TransactionLocked, &self.locked),
            (WaitFor::TransactionFull, &self.full),
            (WaitFor::LogSpace, &self.log_space),
            (WaitFor::ReservedCredits, &self.reserved),
        ]
    }
}

impl AdmissionStats {
    /// A transaction has `credits` outstanding. Most often a look and no write.
    pub(super) fn note_credits(&self, credits: u32) {
        if credits > self.credits_high_water.load(Ordering::Relaxed) {
            self.credits_high_water.fetch_max(credits, Ordering::Relaxed);
        }
    }

    pub(super) fn note_reserved(&self, reserved: u32) {
        self.reserved.store(reserved, Ordering::Relaxed);
        self.reserved_high_water.fetch_max(reserved, Ordering::Relaxed);
    }
}
