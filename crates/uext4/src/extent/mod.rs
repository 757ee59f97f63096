//! Extent trees and block maps: where the blocks of a file are on the device.
//!
//! What: [`lookup`] finds the mapping of a block, and [`list`] visits all extents. [`Edit`] is the
//! general change of a tree, and [`Spot::lengthen`] the most frequent one. [`Shift`] moves extents
//! along their file. [`Growth`] adds blocks to directories.
//! On disk: `Documentation/filesystems/ext4/ifork.rst`. The root is `i_block`, other nodes are
//! blocks. The depth of a tree is at most 5. A block map of ext2 and ext3 has up to three levels of
//! indirect blocks; `mapping.rs` and `edit.rs` are where the two forms part.
//! Invariants: a tree changes only under its inode's writeback lock (a directory's content lock),
//! so what was planned from it is valid until the change is applied. Every run that a look-up
//! returns is in the data area, and so is every node. The key of an index entry is the first block
//! of its subtree, and the subtree ends before the next key. Therefore a look-up and a change find
//! the same entry.
//! Locking: the tree's own lock is held during a look-up or a change; a change holds it inside a
//! handle. Blocks of the tree are read under it.
//! Kernel counterpart: `fs/ext4/extents.c`, `fs/ext4/indirect.c`.

mod block_map;
mod build;
mod edit;
mod growth;
mod lengthen;
mod map_edit;
mod map_path;
mod mapping;
mod shift;
mod tree;
mod tree_path;

pub use block_map::indirect_blocks;
pub use build::{build, nodes_for};
pub use edit::{Edit, NodeAllocations, NodeSource, Removed, edit_credits};
pub use growth::{Growth, allocate_growth, grow, grow_credits};
pub use lengthen::Spot;
pub use mapping::{Mapping, State, block_of, find, first_mapped, list, lookup, lookup_extent};
pub(crate) use mapping::{all_nodes, has_empty_node, top_indirect, written_leaf};
pub use shift::{Distance, Shift, ShiftPins};
pub use tree::{leaves_from, node_blocks};

#[cfg(test)]
pub(crate) mod harness;
