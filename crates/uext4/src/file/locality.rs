//! Blocks of small files, side by side.
//!
//! What: the small files of the directories of a block group take their blocks from one shared
//! preallocation. So the files of a directory lie together, whichever thread writes them, and even
//! if the directory has more files than the group has inodes. The kernel's locality groups belong
//! to processors, and mix the files of all directories that a processor writes to.
//! Invariants: a slot serves one group at a time. Another group that needs it takes it over.
//! Locking: those of preallocations only; several writeback passes may use one.

use crate::alloc::{Allocation, Need, Preallocation};
use crate::error::Result;
use crate::inode::Inode;
use std::sync::Arc;

const SLOT_COUNT: u32 = 64;

#[derive(Debug)]
pub(super) struct Localities {
    slots: Box<[Arc<Preallocation>]>,
    /// Blocks that a preallocation holds at first.
    blocks: u32,
}

impl Localities {
    pub(super) fn new(blocks: u32) -> Self {
        let slot = |_| {
            let preallocation = Preallocation::default();
            preallocation.open();
            Arc::new(preallocation)
        };
        Self { slots: (0..SLOT_COUNT).map(slot).collect(), blocks }
    }

    /// Allocates reserved blocks for the inode of a small file.
    pub(super) fn allocate(&self, inode: &Inode, want: u32) -> Result<Allocation> {
        let key = inode.data_group().get();
        let preallocation = &self.slots[(key % SLOT_COUNT) as usize];
        let need =
            Need { key, want, ahead: self.blocks.max(want), goal: inode.goal(), reserved: true };
        inode.space().allocate_from(preallocation, need, false)
    }
}
