//! Validated geometry of a file system: the group of each block and inode, and the places of
//! the fixed structures.
//!
//! On disk: computed from the superblock (Documentation: blockgroup.rst, blockmap.rst).
//!
//! Invariants: every `Layout` is sane: no division by zero, no group or table outside the
//! device, every count in range. Building one allocates nothing in proportion to any count.

pub(crate) mod derive;

use crate::casefold::Encoding;
use crate::checksum::Checksums;
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::hash::NameHash;
use crate::units::{BlockNo, GroupNo, Ino};

/// Geometry of one file system. Counts are checked against each other and the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes per block: a power of two from 1024 to 65536; above 4096 it is only read.
    pub block_size: u32,
    /// Binary logarithm of `block_size`.
    pub log_block_size: u32,
    /// Blocks of the file system.
    pub blocks_count: u64,
    /// First block of group 0: 1 with 1024-byte blocks, otherwise 0.
    pub first_data_block: BlockNo,
    /// Blocks per group.
    pub blocks_per_group: u32,
    /// Clusters per group: bits in use of a block bitmap.
    pub clusters_per_group: u32,
    /// Blocks per cluster: 1 without bigalloc.
    pub cluster_blocks: u32,
    /// Inodes per group.
    pub inodes_per_group: u32,
    /// Inodes of the file system.
    pub inodes_count: u32,
    /// Number of groups.
    pub group_count: u32,
    /// Bytes per group descriptor: 32 or 64.
    pub desc_size: u16,
    /// Bytes per inode: a power of two from 128 to the block size.
    pub inode_size: u32,
    /// Bytes of extra fields in a new inode (`i_extra_isize`); 0 if inodes have 128 bytes.
    pub new_extra_isize: u16,
    /// `s_min_extra_isize`, the extra fields that an inode should have if more do not fit; 0 is no
    /// wish.
    pub min_extra_isize: u16,
    /// First inode that is not reserved.
    pub first_ino: Ino,
    /// Blocks reserved after the group descriptors for more of them.
    pub reserved_gdt_blocks: u32,
    /// Groups whose metadata is packed together: 1 without flex_bg.
    pub groups_per_flex: u32,
    /// Kind and seed of checksums.
    pub checksums: Checksums,
    /// How directories hash names.
    pub name_hash: NameHash,
    /// How names fold in directories that fold case (casefold).
    pub encoding: Option<Encoding>,
    /// Feature sets.
    pub features: Features,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Made by the Hurd, whose inodes have other fields in the places of the change counter (a
    /// block number) and of the high half of the attribute block (bits of the mode).
    pub is_hurd: bool,
    /// First meta group (meta_bg).
    first_meta_bg: u32,
    /// Groups with a backup (sparse_super2); 0 is none.
    backup_bgs: [u32; 2],
}

impl Layout {
    /// Whether block numbers have 64 bits.
    #[must_use]
    pub fn has_64bit(&self) -> bool {
        self.features.incompat.contains(Incompat::BIT64)
    }

    /// Whether group descriptors are in their meta group.
    #[must_use]
    pub fn has_meta_bg(&self) -> bool {
        self.features.incompat.contains(Incompat::META_BG)
    }

    /// Whether hosts claim the file system before they write (`mmp`).
    #[must_use]
    pub fn has_mmp(&self) -> bool {
        self.features.incompat.contains(Incompat::MMP)
    }

    /// Whether metadata carries CRC-32C.
    #[must_use]
    pub fn has_metadata_csum(&self) -> bool {
        self.checksums.is_crc32c()
    }

    /// Bytes of the file system.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks_count.saturating_mul(u64::from(self.block_size))
    }

    /// Byte offset of a block on the device.
    #[must_use]
    pub fn byte_of(&self, block: BlockNo) -> u64 {
        block.get().saturating_mul(u64::from(self.block_size))
    }

    /// Whether a block may hold data: inside the file system and not before group 0.
    #[must_use]
    pub fn is_valid_block(&self, block: BlockNo) -> bool {
        block >= self.first_data_block && block.get() < self.blocks_count
    }

    /// Whether a run of blocks is inside the file system.
    #[must_use]
    pub fn is_valid_run(&self, start: BlockNo, count: u64) -> bool {
        start >= self.first_data_block
            && start.get().checked_add(count).is_some_and(|end| end <= self.blocks_count)
    }

    /// Group of a block and the block's index in it; `None` outside the file system.
    #[must_use]
    pub fn group_of(&self, block: BlockNo) -> Option<(GroupNo, u32)> {
        if !self.is_valid_block(block) {
            return None;
        }
        let at = block.get().checked_sub(self.first_data_block.get())?;
        let per_group = u64::from(self.blocks_per_group);
        let group = u32::try_from(at.checked_div(per_group)?).ok()?;
        let index = u32::try_from(at.checked_rem(per_group)?).ok()?;
        Some((GroupNo(group), index))
    }

    /// First block of a group.
    #[must_use]
    pub fn group_first_block(&self, group: GroupNo) -> BlockNo {
        let at = u64::from(group.get()).saturating_mul(u64::from(self.blocks_per_group));
        self.first_data_block.plus(at)
    }

    /// Blocks of a group: the last one may be short. 0 for a group that does not exist.
    #[must_use]
    pub fn blocks_in_group(&self, group: GroupNo) -> u32 {
        let first = self.group_first_block(group).get();
        let rest = self.blocks_count.saturating_sub(first);
        u32::try_from(rest).unwrap_or(u32::MAX).min(self.blocks_per_group)
    }

    /// Group and bit of a block in the block bitmaps, which have a bit for each cluster. `None`
    /// outside the file system.
    #[must_use]
    pub fn bit_of(&self, block: BlockNo) -> Option<(GroupNo, u32)> {
        let (group, index) = self.group_of(block)?;
        Some((group, index >> self.cluster_shift()))
    }

    /// First block of the cluster that a bit of a group's block bitmap stands for.
    #[must_use]
    pub fn block_of_bit(&self, group: GroupNo, bit: u32) -> BlockNo {
        self.group_first_block(group).plus(u64::from(bit) << self.cluster_shift())
    }

    /// Index of a block in its cluster; the clusters of a file are counted alike.
    #[must_use]
    pub fn index_in_cluster(&self, block: u64) -> u32 {
        // Groups are whole clusters, and with clusters the first group begins with block 0.
        (block as u32) & self.cluster_blocks.saturating_sub(1)
    }

    /// Bits of a group's block bitmap: its clusters, of which the last may be short.
    #[must_use]
    pub fn bits_in_group(&self, group: GroupNo) -> u32 {
        self.bits_for(self.blocks_in_group(group))
    }

    /// Clusters that hold `blocks` blocks from the first block of a cluster on.
    #[must_use]
    pub fn bits_for(&self, blocks: u32) -> u32 {
        let mask = self.cluster_blocks.saturating_sub(1);
        blocks.saturating_add(mask) >> self.cluster_shift()
    }

    /// Whether blocks are allocated in clusters of more than one (bigalloc).
    #[must_use]
    pub fn has_clusters(&self) -> bool {
        self.cluster_blocks > 1
    }

    /// The cluster size is a power of two.
    fn cluster_shift(&self) -> u32 {
        self.cluster_blocks.trailing_zeros() & 31
    }

    /// Group of an inode and the inode's index in it; `None` for inode 0 and past the last.
    #[must_use]
    pub fn group_of_ino(&self, ino: Ino) -> Option<(GroupNo, u32)> {
        let at = ino.get().checked_sub(1)?;
        if ino.get() > self.inodes_count {
            return None;
        }
        let group = at.checked_div(self.inodes_per_group)?;
        Some((GroupNo(group), at.checked_rem(self.inodes_per_group)?))
    }

    /// The inode with index `index` in `group`.
    #[must_use]
    pub fn ino_of(&self, group: GroupNo, index: u32) -> Ino {
        let first = group.get().saturating_mul(self.inodes_per_group);
        Ino(first.saturating_add(index).saturating_add(1))
    }

    /// Blocks of a group's inode table.
    #[must_use]
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block().max(1))
    }

    /// Inodes in a block of the inode table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size.checked_div(self.inode_size).unwrap_or(1)
    }

    /// Group descriptors in a block.
    #[must_use]
    pub fn descs_per_block(&self) -> u32 {
        self.block_size.checked_div(u32::from(self.desc_size)).unwrap_or(1)
    }

    /// Blocks of group descriptors.
    #[must_use]
    pub fn desc_block_count(&self) -> u32 {
        self.group_count.div_ceil(self.descs_per_block().max(1))
    }

    /// Block that holds the primary superblock. With bigalloc it is block 1 of a group that starts
    /// with block 0, where blocks have 1024 bytes.
    #[must_use]
    pub fn super_block_no(&self) -> BlockNo {
        BlockNo(u64::from(self.block_size == 1024))
    }

    /// Block `n` of the (primary) group descriptors.
    #[must_use]
    pub fn desc_block_no(&self, n: u32) -> BlockNo {
        if !self.has_meta_bg() || n < self.first_meta_bg {
            return self.super_block_no().plus(u64::from(n).saturating_add(1));
        }
        let group = GroupNo(n.saturating_mul(self.descs_per_block()));
        match self.super_copy(group) {
            Some(copy) => copy.plus(1),
            None => self.group_first_block(group),
        }
    }

    /// Block and byte in it of a group's descriptor; `None` for a group that does not exist.
    #[must_use]
    pub fn desc_place(&self, group: GroupNo) -> Option<(BlockNo, u32)> {
        if group.get() >= self.group_count {
            return None;
        }
        let per_block = self.descs_per_block();
        let block = self.desc_block_no(group.get().checked_div(per_block)?);
        let slot = group.get().checked_rem(per_block)?;
        Some((block, slot.checked_mul(u32::from(self.desc_size))?))
    }

    /// Whether a group starts with a copy of the superblock.
    #[must_use]
    pub fn has_super(&self, group: GroupNo) -> bool {
        let group = group.get();
        if group == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_bgs.contains(&group);
        }
        if group == 1 || !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].iter().any(|&base| is_power_of(group, base))
    }

    /// Block of a group's copy of the superblock.
    #[must_use]
    pub fn super_copy(&self, group: GroupNo) -> Option<BlockNo> {
        if !self.has_super(group) {
            return None;
        }
        Some(self.group_first_block(group).max(self.super_block_no()))
    }

    /// First block and number of a group's copies of group descriptors; a number of 0 is none.
    #[must_use]
    pub fn desc_copies(&self, group: GroupNo) -> (BlockNo, u32) {
        let copy = self.super_copy(group);
        let first = copy.map_or(self.group_first_block(group), |copy| copy.plus(1));
        let count = if self.is_in_meta_group(group) {
            // In each meta group, the first two groups and the last have one descriptor block.
            let at = group.get().checked_rem(self.descs_per_block()).unwrap_or(0);
            u32::from(at <= 1 || at == self.descs_per_block().saturating_sub(1))
        } else if copy.is_none() {
            0
        } else if self.has_meta_bg() {
            self.first_meta_bg
        } else {
            self.desc_block_count()
        };
        (first, count)
    }

    /// Blocks reserved for more descriptors, behind those that a group has.
    #[must_use]
    pub fn reserved_desc_blocks(&self, group: GroupNo) -> u32 {
        let has = self.has_super(group) && !self.is_in_meta_group(group);
        if has { self.reserved_gdt_blocks } else { 0 }
    }

    /// Whether a group's descriptor is in the group's meta group.
    #[must_use]
    pub fn is_in_meta_group(&self, group: GroupNo) -> bool {
        let meta_group = group.get().checked_div(self.descs_per_block()).unwrap_or(0);
        self.has_meta_bg() && meta_group >= self.first_meta_bg
    }

    /// Blocks at a group's start with the superblock, the group descriptors and the blocks reserved
    /// for more of them.
    #[must_use]
    pub fn base_meta_blocks(&self, group: GroupNo) -> u32 {
        let (first, count) = self.desc_copies(group);
        // From the group's first block on: block 0 lies before the primary superblock where blocks
        // have 1024 bytes and group 0 begins with block 0.
        let before = first.get().saturating_sub(self.group_first_block(group).get());
        let before = u32::try_from(before).unwrap_or(u32::MAX);
        before.saturating_add(count).saturating_add(self.reserved_desc_blocks(group))
    }

    /// Most blocks a file can have.
    #[must_use]
    pub fn max_file_blocks(&self) -> u64 {
        let by_mapping = u64::from(u32::MAX);
        if self.features.ro_compat.contains(RoCompat::HUGE_FILE) {
            return by_mapping;
        }
        // i_blocks counts 512-byte sectors in 32 bits.
        let sectors_per_block = u64::from(self.block_size / 512);
        u64::from(u32::MAX).checked_div(sectors_per_block).unwrap_or(by_mapping)
    }

    /// Most blocks a file with a block map can have. Where `i_blocks` has 32 bits its indirect
    /// blocks count too.
    #[must_use]
    pub fn max_block_map_blocks(&self) -> u64 {
        let by_map = crate::block_map::max_blocks(self.block_size);
        let counted = self.max_file_blocks();
        let per_block = u64::from(self.block_size / 4).max(1);
        // At least as many as there are, on each level.
        let lowest = counted.div_ceil(per_block);
        let middle = lowest.div_ceil(per_block);
        let indirect = lowest.saturating_add(middle).saturating_add(3);
        let is_counted = !self.features.ro_compat.contains(RoCompat::HUGE_FILE);
        by_map.min(counted.saturating_sub(if is_counted { indirect } else { 0 }))
    }
}

/// Whether `n` is `base` to a power of at least 1.
fn is_power_of(n: u32, base: u32) -> bool {
    let mut power = base;
    while power < n {
        match power.checked_mul(base) {
            Some(next) => power = next,
            None => return false,
        }
    }
    power == n
}

#[cfg(test)]
mod tests {
    use super::derive::tests::sample;
    use super::*;

    #[test]
    fn geometry_of_a_sound_superblock() {
        let layout = Layout::new(&sample(), Some(1 << 30)).unwrap();
        assert_eq!((layout.group_count, layout.desc_block_count()), (8, 1));
        assert_eq!((layout.inode_table_blocks(), layout.inodes_per_block()), (512, 16));
        assert_eq!(layout.group_of(BlockNo(32768)), Some((GroupNo(1), 0)));
        assert_eq!(layout.group_of(BlockNo(262_144)), None);
        assert_eq!(layout.group_of_ino(Ino(0)), None);
        assert_eq!(layout.group_of_ino(Ino(8193)), Some((GroupNo(1), 0)));
        assert_eq!(layout.ino_of(GroupNo(1), 0), Ino(8193));
        assert_eq!(layout.desc_place(GroupNo(3)), Some((BlockNo(1), 192)));
        let with_super: Vec<u32> = (0..8).filter(|&g| layout.has_super(GroupNo(g))).collect();
        assert_eq!(with_super, [0, 1, 3, 5, 7]);
        assert_eq!(layout.base_meta_blocks(GroupNo(1)), 129);
        assert_eq!(layout.base_meta_blocks(GroupNo(2)), 0);
    }

    #[test]
    fn bits_of_clusters() {
        let mut sb = sample();
        let one = Layout::new(&sb, None).unwrap();
        assert_eq!(one.bit_of(BlockNo(32769)), Some((GroupNo(1), 1)));
        assert_eq!((one.block_of_bit(GroupNo(1), 1), one.bits_for(7)), (BlockNo(32769), 7));
        let mut features = Features::of(&sb);
        features.edit("bigalloc,^resize_inode").unwrap();
        features.put(&mut sb);
        sb.s_reserved_gdt_blocks.set(0);
        sb.s_log_cluster_size.set(4);
        sb.s_clusters_per_group.set(8192);
        sb.set_blocks_count(2 * 32768 + 9);
        sb.s_inodes_count.set(3 * 8192);
        let four = Layout::new(&sb, None).unwrap();
        assert_eq!(four.bit_of(BlockNo(32768 + 7)), Some((GroupNo(1), 1)));
        assert_eq!(four.block_of_bit(GroupNo(1), 1), BlockNo(32768 + 4));
        assert_eq!((four.bits_in_group(GroupNo(0)), four.bits_in_group(GroupNo(2))), (8192, 3));
    }

    #[test]
    fn small_blocks_of_clusters_have_the_superblock_in_block_1_of_group_0() {
        let mut sb = sample();
        let mut features = Features::of(&sb);
        features.edit("bigalloc,meta_bg,^resize_inode").unwrap();
        features.put(&mut sb);
        sb.s_reserved_gdt_blocks.set(0);
        sb.s_log_block_size.set(0);
        sb.s_log_cluster_size.set(1);
        sb.s_blocks_per_group.set(16384);
        sb.s_clusters_per_group.set(8192);
        sb.s_inodes_count.set(16 * 8192);
        for (first_meta_bg, tables) in [(0, 1), (1, 1)] {
            sb.s_first_meta_bg.set(first_meta_bg);
            let layout = Layout::new(&sb, None).unwrap();
            assert_eq!((layout.group_count, layout.first_data_block), (16, BlockNo(0)));
            assert_eq!(layout.desc_place(GroupNo(1)), Some((BlockNo(2), 64)));
            assert_eq!(layout.super_copy(GroupNo(1)), Some(BlockNo(16384)));
            assert_eq!(layout.desc_copies(GroupNo(0)), (BlockNo(2), tables));
            assert_eq!(layout.desc_copies(GroupNo(1)), (BlockNo(16385), tables));
            // Block 0 is before the superblock.
            assert_eq!(layout.base_meta_blocks(GroupNo(0)), 3);
            assert_eq!(layout.base_meta_blocks(GroupNo(1)), 2);
        }
    }

    #[test]
    fn powers() {
        let powers: Vec<u32> =
            (2..400).filter(|&n| [3, 5, 7].iter().any(|&b| is_power_of(n, b))).collect();
        assert_eq!(powers, [3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
        assert!(!is_power_of(u32::MAX, 3));
    }
}
