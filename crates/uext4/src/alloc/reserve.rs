//! Blocks promised to data that is in memory and not written back yet.
//!
//! Invariants: what is promised never exceeds what is free, so that acknowledged data always finds
//! blocks. A promise is given back when blocks are allocated for it or the data is dropped.

use super::Space;
use super::available::Use;
use crate::error::{Error, ErrorKind, Result};
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
    pub fn empty(space: &Arc<Space>) -> Self {
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
    pub fn try_resize(&mut self, blocks: u32) -> Result<()> {
        self.try_resize_from(blocks, Use::Any)
    }

    /// As [`Reservation::try_resize`]; what it grows by is for nodes that conversions need, so it
    /// may come from what is kept back for these.
    ///
    /// # Errors
    /// As [`Reservation::try_resize`].
    pub fn try_resize_with_nodes(&mut self, blocks: u32) -> Result<()> {
        self.try_resize_from(blocks, Use::Nodes)
    }

    fn try_resize_from(&mut self, blocks: u32, purpose: Use) -> Result<()> {
        let more = i64::from(blocks) - i64::from(self.blocks);
        if more > 0 {
            if self.space.shared.available.reserve(more, more, purpose) < more {
                return Err(Error::new(ErrorKind::NoSpace, String::new()));
            }
        } else {
            self.space.shared.available.release(-more);
        }
        self.blocks = blocks;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.space.shared.available.release(i64::from(self.blocks));
    }
}
