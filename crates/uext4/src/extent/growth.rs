//! Adding blocks to a directory or a slow symbolic link, one at a time, inside one handle.

use super::edit::{Edit, NodeAllocations, NodeSource, edit_credits};
use crate::alloc::Allocation;
use crate::error::Result;
use crate::inode::Inode;
use crate::journal::Handle;
use crate::quota::QuotaHold;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, FileBlock};

/// Allocations for a file that grows: data blocks, and the nodes that the tree may need for them.
#[derive(Debug)]
pub struct Growth {
    blocks: Vec<NewBlock>,
    nodes: NodeAllocations,
    /// Room for them below the limits of the file's owners.
    held: Option<QuotaHold>,
}

impl Growth {
    /// Allocates `blocks` data blocks behind block `end` of a file.
    ///
    /// # Errors
    /// Those of [`allocate_growth`].
    pub fn allocate(inode: &Inode, end: FileBlock, blocks: u32) -> Result<Self> {
        let places: Vec<FileBlock> = (0..blocks).map(|i| end.plus(i)).collect();
        let mut goal = match end.get().checked_sub(1) {
            Some(last) => super::block_of(inode, FileBlock(last))?.plus(1),
            None => inode.goal(),
        };
        let mut allocations = Vec::with_capacity(places.len());
        let layout = inode.space().layout();
        for at in &places {
            // Inside a cluster a block goes behind the one before it.
            let has_cluster = layout.index_in_cluster(at.get().into()) > 0;
            let allocate = || inode.space().allocate(goal, 1);
            let allocation = if has_cluster { None } else { Some(allocate()?) };
            let start = allocation.as_ref().map_or(goal, Allocation::start);
            goal = start.plus(1);
            allocations.push(NewBlock { start, allocation });
        }
        allocations.reverse();
        let nodes = NodeAllocations::for_edits(inode, &places, NodeSource::Free)?;
        Ok(Self { blocks: allocations, nodes, held: None })
    }
}

/// The place of a new block.
#[derive(Debug)]
struct NewBlock {
    start: BlockNo,
    /// `None` where the file has the block's cluster already.
    allocation: Option<Allocation>,
}

/// Allocates `blocks` data blocks behind the end of `inode`. The caller holds the directory's lock
/// exclusively, and no handle.
///
/// # Errors
/// `NoSpace`; a corrupt tree; a device failure.
pub fn allocate_growth(inode: &Inode, blocks: u32) -> Result<Growth> {
    let block_size = u64::from(inode.space().layout().block_size);
    let end = u32::try_from(inode.size() / block_size).unwrap_or(u32::MAX);
    let mut growth = Growth::allocate(inode, FileBlock(end), blocks)?;
    let new = growth.blocks.iter().filter(|block| block.allocation.is_some()).count();
    growth.held = inode.hold_units(u32::try_from(new).unwrap_or(u32::MAX))?;
    Ok(growth)
}

/// Worst case of blocks that `blocks` calls of [`grow`] dirty, the new blocks not included.
#[must_use]
pub fn grow_credits(inode: &Inode, blocks: u32) -> u32 {
    blocks * (inode.space().credits().blocks + edit_credits(inode))
}

/// Maps one of the allocated blocks at `at`. The caller creates its buffer and sets the size.
///
/// # Errors
/// Those of [`Edit::apply`].
pub fn grow(
    handle: &mut Handle<'_>,
    inode: &Inode,
    growth: &mut Growth,
    at: FileBlock,
) -> Result<BlockNo> {
    let journal = inode.space().journal();
    let NewBlock { start, allocation } = growth
        .blocks
        .pop()
        .ok_or_else(|| journal.broken("the blocks by which a directory grows are allocated"))?;
    let clusters = i64::from(allocation.is_some());
    if let Some(mut allocation) = allocation {
        inode.space().mark_used(handle, &mut allocation, 1)?;
    }
    let new = Extent { first: at, len: 1, start, unwritten: false };
    let edit = Edit { first: at, end: at.plus(1), new: Some(new) };
    edit.apply_with(handle, inode, &mut growth.nodes, clusters)?;
    Ok(start)
}
