//! Validated geometry of a file system: which block and inode belongs to which group, and where
//! the fixed structures stand.
//!
//! On disk: computed from the superblock (Documentation: blockgroup.rst, blockmap.rst).
//!
//! Invariants: a `Layout` that exists is sane: no division by zero, no group or table outside the
//! device, every count in range. Building one allocates nothing in proportion to any count.

use crate::checksum::Checksums;
use crate::error::FormatError;
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::superblock::{MAGIC, RawSuperblock};
use crate::units::{BlockNo, GroupNo, Ino};

/// First inode that is not reserved, in file systems of revision 0.
const REV0_FIRST_INO: u32 = 11;
/// Bytes of an inode in file systems of revision 0.
const REV0_INODE_SIZE: u32 = 128;
/// Largest physical block number an extent can hold, plus one.
const MAX_BLOCKS: u64 = 1 << 48;

/// Geometry of one file system. Counts are checked against each other and the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes per block: 1024, 2048 or 4096.
    pub block_size: u32,
    /// Binary logarithm of `block_size`.
    pub log_block_size: u32,
    /// Blocks of the file system.
    pub blocks_count: u64,
    /// Block that group 0 starts with: 1 with 1024-byte blocks, else 0.
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
    /// First inode that is not reserved.
    pub first_ino: Ino,
    /// Descriptor blocks kept back after the group descriptors.
    pub reserved_gdt_blocks: u32,
    /// Groups whose metadata is packed together: 1 without flex_bg.
    pub groups_per_flex: u32,
    /// Kind and seed of checksums.
    pub checksums: Checksums,
    /// Feature sets.
    pub features: Features,
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// First meta group (meta_bg).
    first_meta_bg: u32,
    /// Groups with a backup (sparse_super2); 0 is none.
    backup_bgs: [u32; 2],
}

fn bad(field: &'static str, found: impl Into<u64>, want: &'static str) -> FormatError {
    FormatError::Superblock { field, found: found.into(), want }
}

/// `Err` unless `ok`.
fn demand(
    ok: bool,
    field: &'static str,
    found: impl Into<u64>,
    want: &'static str,
) -> Result<(), FormatError> {
    if ok { Ok(()) } else { Err(bad(field, found, want)) }
}

impl Layout {
    /// Derives and checks the geometry.
    ///
    /// `device_bytes` is the length of the device; `None` skips that check. The superblock's
    /// checksum is not looked at ([`RawSuperblock::read`] does), nor whether its features are
    /// supported ([`crate::features::support`]).
    ///
    /// # Errors
    /// [`FormatError`], naming the field at fault and its value.
    pub fn new(sb: &RawSuperblock, device_bytes: Option<u64>) -> Result<Self, FormatError> {
        if sb.s_magic.get() != MAGIC {
            return Err(FormatError::NoSuperblock { found: sb.s_magic.get() });
        }
        let features = Features::of(sb);
        let (block_size, log_block_size) = block_size(sb)?;
        let blocks_count = sb.blocks_count();
        let first_data_block = first_data_block(sb, block_size, &features)?;
        check_blocks(blocks_count, first_data_block, block_size, device_bytes)?;
        let cluster_blocks = cluster_blocks(sb, log_block_size, &features)?;
        let blocks_per_group = blocks_per_group(sb, block_size, cluster_blocks)?;
        let data_blocks = blocks_count.saturating_sub(u64::from(first_data_block));
        let groups = data_blocks.div_ceil(u64::from(blocks_per_group));
        let group_count = u32::try_from(groups)
            .map_err(|_| bad("s_blocks_count", blocks_count, "too many groups"))?;
        let (inode_size, first_ino) = inode_size(sb, block_size)?;
        let layout = Self {
            block_size,
            log_block_size,
            blocks_count,
            first_data_block: BlockNo(u64::from(first_data_block)),
            blocks_per_group,
            clusters_per_group: blocks_per_group.checked_div(cluster_blocks).unwrap_or(0),
            cluster_blocks,
            inodes_per_group: sb.s_inodes_per_group.get(),
            inodes_count: sb.s_inodes_count.get(),
            group_count,
            desc_size: desc_size(sb, &features)?,
            inode_size,
            first_ino: Ino(first_ino),
            reserved_gdt_blocks: reserved_gdt(sb, &features),
            groups_per_flex: groups_per_flex(sb, &features)?,
            checksums: sb.checksums(),
            features,
            uuid: sb.s_uuid,
            first_meta_bg: sb.s_first_meta_bg.get(),
            backup_bgs: sb.s_backup_bgs.map(zerocopy::little_endian::U32::get),
        };
        layout.check_inodes()?;
        layout.check_descriptors()?;
        Ok(layout)
    }

    fn check_inodes(&self) -> Result<(), FormatError> {
        let per_group = self.inodes_per_group;
        let max = self.block_size.saturating_mul(8);
        let min = self.inodes_per_block();
        let ok = per_group >= min && per_group <= max && per_group.is_multiple_of(8);
        demand(ok, "s_inodes_per_group", per_group, "want a multiple of 8 that fits a bitmap")?;
        let total = u64::from(per_group).saturating_mul(u64::from(self.group_count));
        let found = self.inodes_count;
        let want = "want s_inodes_per_group times the number of groups";
        demand(u64::from(found) == total, "s_inodes_count", found, want)?;
        let first = self.first_ino.get();
        demand(first >= REV0_FIRST_INO && first <= found, "s_first_ino", first, "out of range")
    }

    fn check_descriptors(&self) -> Result<(), FormatError> {
        let reserved = self.reserved_gdt_blocks;
        let want = "want at most a block of block numbers";
        demand(reserved <= self.block_size / 4, "s_reserved_gdt_blocks", reserved, want)?;
        if self.has_meta_bg() {
            let max = self.desc_block_count();
            let found = self.first_meta_bg;
            return demand(found <= max, "s_first_meta_bg", found, "past the descriptors");
        }
        let end = self.desc_block_no(self.desc_block_count().saturating_sub(1));
        let found = self.blocks_count;
        demand(end.get() < found, "s_blocks_count", found, "descriptors do not fit")
    }

    /// Whether block numbers have 64 bits.
    #[must_use]
    pub fn has_64bit(&self) -> bool {
        self.features.incompat.contains(Incompat::BIT64)
    }

    /// Whether group descriptors stand in their meta group.
    #[must_use]
    pub fn has_meta_bg(&self) -> bool {
        self.features.incompat.contains(Incompat::META_BG)
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

    /// Whether a run of blocks lies inside the file system.
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
        self.group_first_block(group).plus(u64::from(self.has_super(group)))
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

    /// Blocks at a group's start that hold the superblock, the group descriptors and the blocks
    /// kept back for more of them.
    #[must_use]
    pub fn base_meta_blocks(&self, group: GroupNo) -> u32 {
        let copy = u32::from(self.has_super(group));
        let before = u32::from(group.get() == 0 && self.super_block_no() > self.first_data_block);
        if !self.has_meta_bg() {
            let tables = self.desc_block_count().saturating_add(self.reserved_gdt_blocks);
            let all = tables.saturating_add(1).saturating_add(before);
            return if copy == 1 { all } else { 0 };
        }
        let meta_group = group.get().checked_div(self.descs_per_block()).unwrap_or(0);
        if meta_group < self.first_meta_bg {
            let tables = self.first_meta_bg.saturating_add(self.reserved_gdt_blocks);
            return if copy == 1 { tables.saturating_add(1) } else { 0 };
        }
        // Of each meta group, the first two groups and the last hold one descriptor block.
        let at = group.get().checked_rem(self.descs_per_block()).unwrap_or(0);
        let holds = at <= 1 || at == self.descs_per_block().saturating_sub(1);
        copy.saturating_add(u32::from(holds))
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

fn block_size(sb: &RawSuperblock) -> Result<(u32, u32), FormatError> {
    let log = sb.s_log_block_size.get();
    let size = match log {
        0 => 1024,
        1 => 2048,
        2 => 4096,
        3..=6 => return Err(bad("s_log_block_size", log, "blocks above 4096 bytes unsupported")),
        _ => return Err(bad("s_log_block_size", log, "want 0 to 2")),
    };
    Ok((size, log.saturating_add(10)))
}

fn first_data_block(
    sb: &RawSuperblock,
    block_size: u32,
    features: &Features,
) -> Result<u32, FormatError> {
    let found = sb.s_first_data_block.get();
    let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
    let want = u32::from(block_size == 1024 && !bigalloc);
    demand(found == want, "s_first_data_block", found, "want 1 with 1024-byte blocks, else 0")?;
    Ok(found)
}

fn check_blocks(
    blocks: u64,
    first: u32,
    block_size: u32,
    device_bytes: Option<u64>,
) -> Result<(), FormatError> {
    demand(blocks > u64::from(first), "s_blocks_count", blocks, "no block groups")?;
    demand(blocks <= MAX_BLOCKS, "s_blocks_count", blocks, "want at most 2^48")?;
    let Some(device_bytes) = device_bytes else { return Ok(()) };
    let bytes = blocks.saturating_mul(u64::from(block_size));
    if bytes > device_bytes {
        return Err(FormatError::DeviceTooSmall { blocks, block_size, device_bytes });
    }
    Ok(())
}

fn cluster_blocks(
    sb: &RawSuperblock,
    log_block_size: u32,
    features: &Features,
) -> Result<u32, FormatError> {
    let log = sb.s_log_cluster_size.get();
    if !features.ro_compat.contains(RoCompat::BIGALLOC) {
        return Ok(1);
    }
    let shift = log.saturating_add(10).checked_sub(log_block_size);
    // A cluster is at most 512 MiB, as in mke2fs.
    let blocks = shift.filter(|_| log <= 19).and_then(|s| 1_u32.checked_shl(s));
    blocks.ok_or_else(|| bad("s_log_cluster_size", log, "out of range"))
}

fn blocks_per_group(
    sb: &RawSuperblock,
    block_size: u32,
    cluster_blocks: u32,
) -> Result<u32, FormatError> {
    let found = sb.s_blocks_per_group.get();
    let clusters = found.checked_div(cluster_blocks).unwrap_or(0);
    let max = block_size.saturating_mul(8);
    let fits = clusters > 0 && clusters <= max && found.is_multiple_of(cluster_blocks);
    // The kernel refuses anything that is not a whole number of bitmap bytes.
    let ok = fits && clusters.is_multiple_of(8) && found >= 256;
    demand(ok, "s_blocks_per_group", found, "want a multiple of 8 that fits a bitmap block")?;
    let of_clusters = sb.s_clusters_per_group.get();
    let want = "want s_blocks_per_group in clusters";
    demand(of_clusters == clusters, "s_clusters_per_group", of_clusters, want)?;
    Ok(found)
}

fn inode_size(sb: &RawSuperblock, block_size: u32) -> Result<(u32, u32), FormatError> {
    if sb.s_rev_level.get() == 0 {
        return Ok((REV0_INODE_SIZE, REV0_FIRST_INO));
    }
    let size = u32::from(sb.s_inode_size.get());
    let ok = size.is_power_of_two() && size >= REV0_INODE_SIZE && size <= block_size;
    demand(ok, "s_inode_size", size, "want a power of two from 128 to the block size")?;
    Ok((size, sb.s_first_ino.get()))
}

fn desc_size(sb: &RawSuperblock, features: &Features) -> Result<u16, FormatError> {
    if !features.incompat.contains(Incompat::BIT64) {
        return Ok(32);
    }
    let found = sb.s_desc_size.get();
    demand(found == 64, "s_desc_size", found, "want 64 with the 64bit feature")?;
    Ok(found)
}

fn reserved_gdt(sb: &RawSuperblock, features: &Features) -> u32 {
    // The field is set only with resize_inode; elsewhere it is not defined.
    if features.compat.contains(Compat::RESIZE_INODE) {
        u32::from(sb.s_reserved_gdt_blocks.get())
    } else {
        0
    }
}

fn groups_per_flex(sb: &RawSuperblock, features: &Features) -> Result<u32, FormatError> {
    let log = u32::from(sb.s_log_groups_per_flex);
    if !features.incompat.contains(Incompat::FLEX_BG) || log == 0 {
        return Ok(1);
    }
    1_u32.checked_shl(log).ok_or_else(|| bad("s_log_groups_per_flex", log, "want at most 31"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 1 GiB file system of 4 KiB blocks with the default features.
    pub(crate) fn sample() -> RawSuperblock {
        let mut sb = RawSuperblock::zeroed();
        sb.s_magic.set(MAGIC);
        sb.s_rev_level.set(1);
        sb.s_log_block_size.set(2);
        sb.s_log_cluster_size.set(2);
        sb.s_blocks_per_group.set(32768);
        sb.s_clusters_per_group.set(32768);
        sb.s_inodes_per_group.set(8192);
        sb.s_inodes_count.set(8 * 8192);
        sb.s_first_ino.set(11);
        sb.s_inode_size.set(256);
        sb.s_desc_size.set(64);
        sb.s_reserved_gdt_blocks.set(127);
        sb.s_log_groups_per_flex = 4;
        let mut features = Features::default();
        features.edit("resize_inode,64bit,flex_bg,sparse_super,metadata_csum,huge_file").unwrap();
        features.put(&mut sb);
        sb.set_blocks_count(262_144);
        sb
    }

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
    fn powers() {
        let powers: Vec<u32> =
            (2..400).filter(|&n| [3, 5, 7].iter().any(|&b| is_power_of(n, b))).collect();
        assert_eq!(powers, [3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
        assert!(!is_power_of(u32::MAX, 3));
    }

    #[test]
    fn nonsense_is_refused_by_field() {
        let refuse = |change: &dyn Fn(&mut RawSuperblock), field: &str| {
            let mut sb = sample();
            change(&mut sb);
            match Layout::new(&sb, Some(1 << 30)) {
                Err(FormatError::Superblock { field: found, .. }) => assert_eq!(found, field),
                other => panic!("{field}: {other:?}"),
            }
        };
        refuse(&|sb| sb.s_log_block_size.set(6), "s_log_block_size");
        refuse(&|sb| sb.s_log_block_size.set(u32::MAX), "s_log_block_size");
        refuse(&|sb| sb.s_first_data_block.set(1), "s_first_data_block");
        refuse(&|sb| sb.set_blocks_count(0), "s_blocks_count");
        refuse(&|sb| sb.set_blocks_count(1 << 50), "s_blocks_count");
        refuse(&|sb| sb.s_blocks_per_group.set(0), "s_blocks_per_group");
        refuse(&|sb| sb.s_blocks_per_group.set(65536), "s_blocks_per_group");
        refuse(&|sb| sb.s_clusters_per_group.set(1), "s_clusters_per_group");
        refuse(&|sb| sb.s_inodes_per_group.set(0), "s_inodes_per_group");
        refuse(&|sb| sb.s_inodes_per_group.set(8191), "s_inodes_per_group");
        refuse(&|sb| sb.s_inodes_count.set(8192), "s_inodes_count");
        refuse(&|sb| sb.s_first_ino.set(0), "s_first_ino");
        refuse(&|sb| sb.s_inode_size.set(0), "s_inode_size");
        refuse(&|sb| sb.s_inode_size.set(8192), "s_inode_size");
        refuse(&|sb| sb.s_desc_size.set(0), "s_desc_size");
        refuse(&|sb| sb.s_reserved_gdt_blocks.set(1025), "s_reserved_gdt_blocks");
        refuse(&|sb| sb.s_log_groups_per_flex = 32, "s_log_groups_per_flex");
        let small = Layout::new(&sample(), Some((1 << 30) - 1));
        assert!(matches!(small, Err(FormatError::DeviceTooSmall { .. })));
    }
}
