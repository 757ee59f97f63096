//! Counters of admission to transactions, since the mount.

use crate::stats::{Histogram, WaitFor};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counters of admission to transactions.
#[derive(Debug, Default)]
pub struct AdmissionStats {
    /// Refused attempts to join or to reserve credits, by cause. With `journal_join=fifo` a wait
    /// counts once, or twice if the log turned out to be full meanwhile. With `herd` each attempt
    /// counts.
    pub refused: ByCause<AtomicU64>,
    /// Time that joiners slept, by the latest cause of each sleep.
    pub waited: ByCause<Histogram>,
    /// Wake-ups of sleeping joiners.
    pub wake_ups: AtomicU64,
    /// Most credits that one transaction ever had.
    pub credits_high_water: AtomicU32,
    /// Credits that are reserved now.
    pub reserved: AtomicU32,
    /// Most credits that were ever reserved.
    pub reserved_high_water: AtomicU32,
}

/// One value for each cause that makes a joiner wait.
#[derive(Debug, Default)]
pub struct ByCause<T> {
    /// The running transaction is closed for its commit.
    pub locked: T,
    /// The running transaction has no room for the credits.
    pub full: T,
    /// The log has no room for another transaction.
    pub log_space: T,
    /// Too many credits are reserved.
    pub reserved: T,
}

impl<T> ByCause<T> {
    /// The value of one cause.
    #[must_use]
    pub const fn of(&self, cause: WaitFor) -> &T {
        match cause {
            WaitFor::TransactionFull => &self.full,
            WaitFor::LogSpace => &self.log_space,
            WaitFor::ReservedCredits => &self.reserved,
            _ => &self.locked,
        }
    }
}

impl AdmissionStats {
    /// Records that a transaction has `credits`. Writes only if that is a new maximum.
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
