//! Checksums of metadata blocks: verified when a block is read, computed when it is committed.
//!
//! On disk: each kind of block has its checksum in its own place. Those of bitmaps are in the group
//! descriptors. Inodes and descriptors are slots of their block, each with its own checksum.
//! Invariants: `bitmaps` holds, for each group, the checksums of the latest committed bitmap
//! images. So a descriptor that is committed later carries them, whichever operation changed it
//! last. The readers of a slot verify it, because an unused slot need not have a checksum.

use crate::sync::state::{AtomicU32, Ordering};
use std::fmt;
use std::sync::OnceLock;
use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::{
    BlockNo, Checksums, Corrupt, CorruptKind, GroupNo, Ino, Place, RawGroupDesc, RawInode,
    RawSuperblock, bitmap, dir_entry, extent, group_desc, htree, inode, layout::Layout, orphan,
    superblock, xattr,
};

/// The kind of structure in a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// The primary superblock and the rest of its block.
    Superblock,
    /// Group descriptors from group `first` on; a slot is a descriptor.
    GroupDescs {
        /// Group of slot 0.
        first: GroupNo,
    },
    /// Block bitmap of a group.
    BlockBitmap(GroupNo),
    /// Inode bitmap of a group.
    InodeBitmap(GroupNo),
    /// Part of an inode table; a slot is an inode.
    InodeTable {
        /// Inode of slot 0.
        first: Ino,
    },
    /// Extent tree node outside the inode.
    ExtentNode {
        /// Checksum seed of the inode.
        seed: InodeSeed,
    },
    /// Directory block with entries.
    DirLeaf {
        /// Checksum seed of the inode.
        seed: InodeSeed,
    },
    /// Root or node of a directory index.
    DirIndex {
        /// Checksum seed of the inode.
        seed: InodeSeed,
    },
    /// Extended attributes.
    Xattr,
    /// Block of the orphan file.
    Orphan {
        /// Checksum seed of the inode.
        seed: InodeSeed,
    },
    /// Indirect block of a block map, which has no checksum.
    Indirect,
    /// Block of a quota file, which has no checksum.
    Quota,
    /// Journaled without a checksum (target of a slow symbolic link).
    Plain,
    /// Data of a regular file, where that goes through the journal.
    Data,
}

impl BlockKind {
    /// Whether one block can be of both kinds: a directory block may become part of an index. Seeds
    /// of one block differ only on a hostile or damaged file system.
    #[must_use]
    pub fn is_same_structure(self, other: Self) -> bool {
        let is_directory = |kind| matches!(kind, Self::DirLeaf { .. } | Self::DirIndex { .. });
        self == other || (is_directory(self) && is_directory(other) && self.seed() == other.seed())
    }

    fn seed(self) -> InodeSeed {
        match self {
            Self::ExtentNode { seed }
            | Self::DirLeaf { seed }
            | Self::DirIndex { seed }
            | Self::Orphan { seed } => seed,
            _ => InodeSeed::NONE,
        }
    }
}

impl fmt::Display for BlockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superblock => "superblock",
            Self::GroupDescs { .. } => "group descriptor",
            Self::BlockBitmap(_) => "block bitmap",
            Self::InodeBitmap(_) => "inode bitmap",
            Self::InodeTable { .. } => "inode table",
            Self::ExtentNode { .. } => "extent",
            Self::DirLeaf { .. } => "directory",
            Self::DirIndex { .. } => "directory index",
            Self::Xattr => "xattr",
            Self::Orphan { .. } => "orphan file",
            Self::Indirect => "indirect",
            Self::Quota => "quota file",
            Self::Plain => "symlink",
            Self::Data => "data",
        })
    }
}

/// Computes and checks the checksums of one volume.
#[derive(Debug)]
pub struct Sealer {
    layout: Layout,
    /// One for each group, once the descriptors have been read.
    bitmaps: OnceLock<Box<[BitmapChecksums]>>,
}

#[derive(Debug, Default)]
struct BitmapChecksums {
    blocks: AtomicU32,
    inodes: AtomicU32,
}

impl Sealer {
    pub(super) fn new(layout: &Layout) -> Self {
        Self { layout: layout.clone(), bitmaps: OnceLock::new() }
    }

    fn checksums(&self) -> &Checksums {
        &self.layout.checksums
    }

    /// Takes the checksums of all bitmaps from the descriptors. Called once, at mount.
    pub(crate) fn note_groups(&self, descs: &[RawGroupDesc]) {
        let of = |desc: &RawGroupDesc| BitmapChecksums {
            blocks: AtomicU32::new(desc.block_bitmap_csum()),
            inodes: AtomicU32::new(desc.inode_bitmap_csum()),
        };
        let first = self.bitmaps.set(descs.iter().map(of).collect()).is_ok();
        debug_assert!(first, "the descriptors are read once");
    }

    fn bitmaps_of(&self, group: GroupNo) -> Option<&BitmapChecksums> {
        self.bitmaps.get()?.get(group.get() as usize)
    }

    /// Computes the checksum of a bitmap image that is about to be committed.
    pub(crate) fn note_bitmap(&self, kind: BlockKind, image: &[u8]) {
        let (group, bits) = match kind {
            BlockKind::BlockBitmap(group) => (group, self.layout.clusters_per_group),
            BlockKind::InodeBitmap(group) => (group, self.layout.inodes_per_group),
            _ => return,
        };
        let Some(entry) = self.bitmaps_of(group) else { return };
        let Some(csum) = bitmap::bitmap_csum(self.checksums(), image, bits) else { return };
        match kind {
            BlockKind::BlockBitmap(_) => entry.blocks.store(csum, Ordering::Relaxed),
            _ => entry.inodes.store(csum, Ordering::Relaxed),
        }
    }

    /// Whether sealing changes blocks of this kind.
    pub(crate) fn has_own_checksum(&self, kind: BlockKind) -> bool {
        match kind {
            BlockKind::BlockBitmap(_)
            | BlockKind::InodeBitmap(_)
            | BlockKind::Indirect
            | BlockKind::Quota
            | BlockKind::Plain
            | BlockKind::Data => false,
            BlockKind::GroupDescs { .. } => self.checksums().has_group_checksum(),
            // The hash of an attribute block is part of the format with or without checksums. The
            // xattr layer maintains it.
            _ => self.checksums().is_crc32c(),
        }
    }

    /// Checks a block that was read from the device.
    pub(crate) fn verify(
        &self,
        block: BlockNo,
        kind: BlockKind,
        bytes: &[u8],
    ) -> Result<(), Corrupt> {
        let checked = match kind {
            // Verified at mount, or by the readers of the slots.
            BlockKind::Superblock
            | BlockKind::GroupDescs { .. }
            | BlockKind::InodeTable { .. }
            | BlockKind::Indirect
            | BlockKind::Quota
            | BlockKind::Plain
            | BlockKind::Data => Ok(()),
            BlockKind::BlockBitmap(group) | BlockKind::InodeBitmap(group) => {
                return self.verify_bitmap(group, kind, bytes);
            }
            BlockKind::ExtentNode { seed } => extent::verify_extent_block(bytes, seed),
            BlockKind::DirLeaf { seed } => dir_entry::verify_dir_leaf(bytes, seed),
            BlockKind::DirIndex { seed } => htree::verify_dx(bytes, seed),
            BlockKind::Xattr => xattr::verify_xattr_block(bytes, self.checksums(), block),
            BlockKind::Orphan { seed } => orphan::verify_orphan_block(bytes, seed, block),
        };
        checked.map_err(|kind| kind.at(Place::Block(block)))
    }

    fn verify_bitmap(&self, group: GroupNo, kind: BlockKind, bytes: &[u8]) -> Result<(), Corrupt> {
        let Some(entry) = self.bitmaps_of(group) else { return Ok(()) };
        let mut desc = RawGroupDesc::zeroed();
        desc.set_block_bitmap_csum(entry.blocks.load(Ordering::Relaxed));
        desc.set_inode_bitmap_csum(entry.inodes.load(Ordering::Relaxed));
        let size = self.layout.desc_size;
        let checked = if matches!(kind, BlockKind::BlockBitmap(_)) {
            let bits = self.layout.clusters_per_group;
            desc.verify_block_bitmap(self.checksums(), size, bytes, bits)
        } else {
            let bits = self.layout.inodes_per_group;
            desc.verify_inode_bitmap(self.checksums(), size, bytes, bits)
        };
        checked.map_err(|kind| kind.at(Place::Group(group)))
    }

    /// Computes the checksums of an image that is about to be written.
    pub(crate) fn seal(&self, block: BlockNo, kind: BlockKind, bytes: &mut [u8], unsealed: u128) {
        match kind {
            BlockKind::Superblock => self.seal_superblock(bytes),
            BlockKind::GroupDescs { first } => self.seal_descs(first, bytes, unsealed),
            BlockKind::InodeTable { first } => self.seal_inodes(first, bytes, unsealed),
            BlockKind::ExtentNode { seed } => extent::seal_extent_block(bytes, seed),
            BlockKind::DirLeaf { seed } => dir_entry::seal_dir_leaf(bytes, seed),
            BlockKind::DirIndex { seed } => htree::seal_dx(bytes, seed),
            BlockKind::Xattr => xattr::seal_xattr_block(bytes, self.checksums(), block),
            BlockKind::Orphan { seed } => orphan::seal_orphan_block(bytes, seed, block),
            BlockKind::BlockBitmap(_)
            | BlockKind::InodeBitmap(_)
            | BlockKind::Indirect
            | BlockKind::Quota
            | BlockKind::Plain
            | BlockKind::Data => {}
        }
    }

    fn seal_superblock(&self, bytes: &mut [u8]) {
        let at = (superblock::SUPERBLOCK_OFFSET % u64::from(self.layout.block_size)) as usize;
        let Some(bytes) = bytes.get_mut(at..at + superblock::SUPERBLOCK_SIZE) else { return };
        if let Some(raw) = RawSuperblock::mut_from_prefix(bytes) {
            raw.seal();
        }
    }

    fn seal_descs(&self, first: GroupNo, bytes: &mut [u8], unsealed: u128) {
        let size = usize::from(self.layout.desc_size);
        for (slot, group) in slots(unsealed, first.get()) {
            let Some(bytes) = bytes.get_mut(slot * size..(slot + 1) * size) else { return };
            let Some(entry) = self.bitmaps_of(GroupNo(group)) else { return };
            if self.checksums().is_crc32c()
                && let Ok(mut desc) = RawGroupDesc::read(bytes, self.layout.desc_size)
            {
                desc.set_block_bitmap_csum(entry.blocks.load(Ordering::Relaxed));
                desc.set_inode_bitmap_csum(entry.inodes.load(Ordering::Relaxed));
                desc.write(bytes, self.layout.desc_size);
            }
            group_desc::seal_slot(bytes, self.checksums(), GroupNo(group));
        }
    }

    fn seal_inodes(&self, first: Ino, bytes: &mut [u8], unsealed: u128) {
        let size = self.layout.inode_size as usize;
        for (slot, ino) in slots(unsealed, first.get()) {
            let Some(bytes) = bytes.get_mut(slot * size..(slot + 1) * size) else { return };
            let Ok(raw) = RawInode::read(bytes) else { return };
            let seed = self.checksums().inode_seed(Ino(ino), raw.i_generation.get());
            inode::seal_inode(bytes, seed);
        }
    }
}

/// The slots in a mask, each with the number of what it holds. That of slot 0 is `first`.
fn slots(mut mask: u128, first: u32) -> impl Iterator<Item = (usize, u32)> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let slot = mask.trailing_zeros();
            mask &= mask - 1;
            (slot as usize, first.saturating_add(slot))
        })
    })
}

pub(super) fn out_of_range(block: BlockNo, kind: BlockKind) -> Corrupt {
    let what = match kind {
        BlockKind::ExtentNode { .. } => "extent node",
        BlockKind::DirLeaf { .. } | BlockKind::DirIndex { .. } => "directory block",
        _ => "metadata block",
    };
    CorruptKind::Rule { what, why: "lies outside the file system" }.at(Place::Block(block))
}
