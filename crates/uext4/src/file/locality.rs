//! Blocks of small files, side by side.
//!
//! What: the small files of a block group's directories take their blocks from one window that they
//! share. So the files of a directory come to lie together, whichever thread writes them, and also
//! where the directory has more of them than the group has inodes; groups of processors, as the
//! kernel has them, mix the files of all directories that a processor writes to.
//! Invariants: a slot is used by one group at a time; another that needs it takes it over.
//! Locking: windows only; several sweeps may use one.

use crate::alloc::{Allocation, Need, Preallocation, Space};
use crate::error::Result;
use crate::inode::Inode;
use std::sync::Arc;

const SLOT_COUNT: u32 = 64;

#[derive(Debug)]
pub(super) struct Localities {
    slots: Box<[Arc<Preallocation>]>,
    /// Blocks that a window holds at first.
    blocks: u32,
}

impl Localities {
    pub(super) fn new(blocks: u32) -> Self {
        let slot = |_| {
            let preallocation = Preallocation::new();
            preallocation.open();
            Arc::new(preallocation)
        };
        Self { slots: (0..SLOT_COUNT).map(slot).collect(), blocks }
    }

    /// Allocates reserved blocks for an inode of a small file.
    pub(super) fn allocate(&self, space: &Space, inode: &Inode, want: u32) -> Result<Allocation> {
        let key = inode.data_group().get();
        let preallocation = &self.slots[(key % SLOT_COUNT) as usize];
        let need =
            Need { key, want, ahead: self.blocks.max(want), goal: inode.goal(), reserved: true };
        space.allocate_from(preallocation, need, false)
    }
}
