//! Making an extent longer in place, for a stream that continues at the end of the extent.
//!
//! What: [`super::find`] returns the [`Spot`] of a block. If an extent ends there and the new
//! blocks continue it on the device too, its entry gets a new length. No node is added, split or
//! freed, and no key changes. Therefore nothing is allocated, and the path is not walked again.
//! Invariants: the spot was found under the lock under which the tree changes, and the caller still
//! holds that lock.

use super::Mapping;
use crate::cache::Buffer;
use crate::error::Result;
use crate::inode::{Attributes, Inode};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::FileBlock;
use uext4_ondisk::extent::{Extent, MAX_UNWRITTEN_LEN, write_extent};

/// The place of a block of a file in the tree.
#[derive(Debug)]
pub struct Spot {
    /// The state of the block.
    pub mapping: Mapping,
    /// The last extent of the leaf that begins at or before the block, with its index.
    pub(super) before: Option<(usize, Extent)>,
    /// The leaf. `None`: the root.
    pub(super) leaf: Option<Arc<Buffer>>,
    /// See [`Spot::leaf_first`].
    leaf_first: FileBlock,
    /// See [`Spot::most_new`].
    most_new: u32,
}

impl Spot {
    /// Worst case of blocks that [`Spot::lengthen`] dirties: leaf and inode.
    pub const CREDITS: u32 = 2;

    /// The place of a block in a tree.
    pub(super) fn in_tree(
        mapping: Mapping,
        before: Option<(usize, Extent)>,
        leaf: Option<Arc<Buffer>>,
    ) -> Self {
        // If nothing is before the hole in its leaf, nothing is before it in the file, because a
        // leaf begins where its first extent does.
        Self { mapping, before, leaf, leaf_first: FileBlock(0), most_new: MAX_UNWRITTEN_LEN }
    }

    /// The place of a block in a block map, whose leaf begins with `leaf_first` and has `most_new`
    /// blocks from this one on.
    pub(super) fn in_map(mapping: Mapping, leaf_first: FileBlock, most_new: u32) -> Self {
        Self { mapping, before: None, leaf: None, leaf_first, most_new }
    }

    /// Most blocks, from the block on, that one edit can insert.
    #[must_use]
    pub fn most_new(&self) -> u32 {
        self.most_new
    }

    /// A block from which on nothing is mapped before the hole if [`Spot::before`] is `None`.
    pub(crate) fn leaf_first(&self) -> FileBlock {
        self.leaf_first
    }

    /// The extent that has the block, or the one before it in the same leaf.
    #[must_use]
    pub fn before(&self) -> Option<Extent> {
        self.before.map(|(_, extent)| extent)
    }

    /// Adds `len` blocks to the extent before the block. It ends at the block and may become so
    /// long. `table` is the inode's [`Inode::table_block`]. `change` may change other attributes in
    /// the same step.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn lengthen(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        table: &Arc<Buffer>,
        len: u32,
        change: impl FnOnce(&mut Attributes),
    ) -> Result<()> {
        let fits = |before: &Extent| {
            before.end() == self.mapping.first
                && before.len.saturating_add(len) <= Extent::max_len(before.unwritten)
        };
        let journal = inode.space().journal();
        let (index, before) = self
            .before
            .filter(|(_, before)| fits(before))
            .ok_or_else(|| journal.broken("an extent that is lengthened ends at its spot"))?;
        let longer = Extent { len: before.len + len, ..before };
        let mut root = inode.tree().write();
        let is_there = match &self.leaf {
            Some(leaf) => write_extent(&mut handle.write(leaf)?, index, &longer),
            None => write_extent(&mut root.bytes, index, &longer),
        };
        journal.check(is_there, "an extent that is lengthened is in its node")?;
        inode.note_data_change(handle);
        inode.update_in(handle, table, |attributes| {
            attributes.block_map = root.bytes;
            attributes.add_blocks(inode.space().layout(), len.into());
            change(attributes);
        })
    }
}
