//! What becomes of the block with attributes beside an inode.
//!
//! Invariants: of a block that other inodes share only the count of references changes.

use crate::alloc::{Allocation, Space};
use crate::cache::{BlockKind, Buffer};
use crate::error::Result;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::xattr::{MAX_REFCOUNT, RawXattrHeader};
use uext4_ondisk::{BlockNo, CorruptKind, Place};

#[derive(Debug)]
pub(super) enum BlockChange {
    /// There is no change.
    Keep,
    /// The inode gets its first block.
    New(Vec<u8>, Allocation),
    /// The block's content changes. The allocation is for a copy, if other inodes share the block.
    Rewrite(Vec<u8>, Arc<Buffer>, Option<Allocation>),
    /// The block has no attributes left.
    Drop(Arc<Buffer>),
}

impl BlockChange {
    /// The block that the inode loses.
    pub(super) fn dropped(&self) -> Option<&Arc<Buffer>> {
        if let Self::Drop(buffer) = self { Some(buffer) } else { None }
    }

    /// Whether the inode leaves a block that other inodes keep.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn leaves_shared(&self) -> Result<bool> {
        Ok(match self {
            Self::Keep | Self::New(..) => false,
            Self::Rewrite(_, _, copy) => copy.is_some(),
            Self::Drop(buffer) => reference_count(buffer)? > 1,
        })
    }

    /// Credits of [`BlockChange::apply`].
    pub(super) fn credits(&self, space: &Space) -> u32 {
        let blocks = space.credits().blocks;
        // A new block; a block that is freed, with its revoke.
        let (new, freed) = (1 + blocks, 2 + blocks);
        match self {
            Self::Keep => 0,
            Self::New(..) => new,
            Self::Rewrite(_, _, None) => 1,
            Self::Rewrite(_, _, Some(_)) => 1 + new,
            Self::Drop(_) => freed,
        }
    }

    /// Changes the block. Returns the number of the inode's block, if that changes, and how many
    /// blocks the inode gets.
    ///
    /// # Errors
    /// The journal is aborted.
    pub(super) fn apply(
        self,
        handle: &mut Handle<'_>,
        space: &Space,
    ) -> Result<(Option<BlockNo>, i64)> {
        Ok(match self {
            Self::Keep => (None, 0),
            Self::New(image, allocation) => {
                (Some(new_block(space, handle, allocation, &image)?), 1)
            }
            Self::Rewrite(image, buffer, allocation) => match allocation {
                Some(allocation) if leave_shared(handle, &buffer)? => {
                    (Some(new_block(space, handle, allocation, &image)?), 0)
                }
                // The other inodes have dropped their references since the plan, or there were
                // none.
                _ => {
                    handle.write(&buffer)?.copy_from_slice(&image);
                    (None, 0)
                }
            },
            Self::Drop(buffer) => {
                detach(space, handle, &buffer)?;
                (Some(BlockNo(0)), -1)
            }
        })
    }
}

/// Number of inodes that share an attribute block.
pub(super) fn reference_count(buffer: &Buffer) -> Result<u32> {
    let count = RawXattrHeader::from_prefix(&buffer.read()).map_or(0, |h| h.h_refcount.get());
    if (1..=MAX_REFCOUNT).contains(&count) {
        return Ok(count);
    }
    let kind = CorruptKind::Range {
        what: "extended attributes",
        field: "h_refcount",
        min: 1,
        max: u64::from(MAX_REFCOUNT),
        found: u64::from(count),
    };
    Err(kind.at(Place::Block(buffer.block())).into())
}

/// Drops one reference to a shared block. False, without a change, if there is only one.
fn leave_shared(handle: &mut Handle<'_>, buffer: &Arc<Buffer>) -> Result<bool> {
    if reference_count(buffer)? <= 1 {
        return Ok(false);
    }
    let mut bytes = handle.write(buffer)?;
    let Some(header) = RawXattrHeader::mut_from_prefix(&mut bytes) else { return Ok(false) };
    // Another inode may have dropped its reference before the block was locked.
    let count = header.h_refcount.get();
    if count <= 1 {
        return Ok(false);
    }
    header.h_refcount.set(count - 1);
    Ok(true)
}

/// Drops the reference to a shared block, or frees the block.
fn detach(space: &Space, handle: &mut Handle<'_>, buffer: &Arc<Buffer>) -> Result<()> {
    if leave_shared(handle, buffer)? {
        return Ok(());
    }
    handle.forget(buffer.block())?;
    space.free(handle, buffer.block(), 1)
}

fn new_block(
    space: &Space,
    handle: &mut Handle<'_>,
    mut allocation: Allocation,
    image: &[u8],
) -> Result<BlockNo> {
    let block = space.mark_used(handle, &mut allocation, 1)?;
    let buffer = handle.create(block, BlockKind::Xattr)?;
    handle.write(&buffer)?.copy_from_slice(image);
    Ok(block)
}
