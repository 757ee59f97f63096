//! Blocks reserved for data that is in memory and not written back yet.
//!
//! Invariants: the reserved blocks never exceed the free ones, so that acknowledged data always
//! finds blocks. A reservation is released when blocks are allocated for it or the data is dropped.
//! Kernel counterpart: `ext4_da_reserve_space` in `fs/ext4/inode.c`.

use super::Space;
use super::available::Use;
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use std::sync::Arc;

/// Reserved blocks of an inode. Dropping it releases them.
#[derive(Debug)]
pub struct Reservation {
    space: Arc<Space>,
    blocks: u32,
}

impl Reservation {
    /// A reservation of no blocks.
    #[must_use]
    pub fn empty(space: &Arc<Space>) -> Self {
        Self { space: Arc::clone(space), blocks: 0 }
    }

    /// Where the blocks are.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Blocks reserved.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Grows or shrinks to `blocks` without waiting.
    ///
    /// # Errors
    /// `NoSpace`; the reservation is unchanged.
    pub fn try_resize(&mut self, blocks: u32) -> Result<()> {
        self.try_resize_from(blocks, Use::Any)
    }

    /// Resizes as [`Reservation::try_resize`] does. The additional blocks are for nodes that
    /// conversions need, so they may come from the node pool.
    ///
    /// # Errors
    /// The errors of [`Reservation::try_resize`].
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
            let surplus = i64::from(Fault::SurplusRelease.is_injected());
            self.space.shared.available.release(surplus - more);
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
