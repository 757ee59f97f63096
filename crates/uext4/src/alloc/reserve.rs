//! Blocks promised to data that is in memory and not written back yet.
//!
//! Invariants: what is promised never exceeds what is free, so that acknowledged data always finds
//! blocks. A promise is given back when blocks are claimed for it or the data is dropped.

use super::Space;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::Ordering;
use std::sync::Arc;

/// A promise of blocks, held by an inode. Dropping it gives it back.
#[derive(Debug)]
pub struct Reservation {
    space: Arc<Space>,
    blocks: u32,
}

impl Reservation {
    /// A promise of nothing.
    #[must_use]
    pub fn none(space: &Arc<Space>) -> Self {
        Self { space: Arc::clone(space), blocks: 0 }
    }

    /// Blocks promised.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Makes the promise `blocks` large if there is space without waiting.
    ///
    /// # Errors
    /// `NoSpace`; the promise is as before.
    pub fn try_set(&mut self, blocks: u32) -> Result<()> {
        let more = i64::from(blocks) - i64::from(self.blocks);
        if more > 0 {
            if self.space.promise(more, more) < more {
                return Err(Error::new(ErrorKind::NoSpace, String::new()));
            }
        } else {
            self.space.reserved_blocks.fetch_add(more, Ordering::AcqRel);
        }
        self.blocks = blocks;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.space.reserved_blocks.fetch_sub(i64::from(self.blocks), Ordering::AcqRel);
    }
}

impl Space {
    /// Promises up to `want` blocks of those that are free and promised to nobody, at least
    /// `least` of them or none; returns how many.
    ///
    /// Two counters decide: whoever claims takes its promise back after it has taken its blocks
    /// from the free ones. So the free blocks are looked at again once the promise stands: a claim
    /// that began and ended between the two looks would have made room twice.
    pub(super) fn promise(&self, want: i64, least: i64) -> i64 {
        loop {
            let mut taken = 0;
            let mut promised = 0;
            let take = |now: i64| {
                taken = (self.free_blocks.load(Ordering::Acquire) - now).min(want);
                promised = now + taken;
                (taken >= least.max(1)).then_some(promised)
            };
            let reserved = &self.reserved_blocks;
            if reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_err() {
                return 0;
            }
            if promised <= self.free_blocks.load(Ordering::Acquire) {
                return taken;
            }
            reserved.fetch_sub(taken, Ordering::AcqRel);
        }
    }

    /// Waits until freed blocks are usable, for a caller that met `NoSpace`; false if waiting
    /// brings nothing. Not to be called with a handle open.
    ///
    /// # Errors
    /// The journal is aborted.
    pub fn wait_for_frees(&self) -> Result<bool> {
        self.reclaim_pending()
    }
}
