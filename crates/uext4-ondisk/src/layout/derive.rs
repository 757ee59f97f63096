//! Geometry from a superblock, with every field checked against the others and the device.

use super::Layout;
use crate::casefold::Encoding;
use crate::error::FormatError;
use crate::features::{Compat, Features, Incompat, RoCompat};
use crate::hash::NameHash;
use crate::inode::FULL_EXTRA_SIZE;
use crate::superblock::{MAGIC, RawSuperblock};
use crate::units::{BlockNo, Ino};

/// First inode that is not reserved, in file systems of revision 0.
const REV0_FIRST_INO: u32 = 11;
/// Bytes of an inode in file systems of revision 0.
const REV0_INODE_SIZE: u32 = 128;
/// Largest physical block number an extent can hold, plus one.
const MAX_BLOCKS: u64 = 1 << 48;
/// `s_creator_os` of the Hurd.
pub(crate) const CREATOR_HURD: u32 = 1;

fn bad(field: &'static str, found: impl Into<u64>, want: &'static str) -> FormatError {
    FormatError::Superblock { field, found: found.into(), want }
}

/// How names fold, if they do.
fn encoding(sb: &RawSuperblock, features: &Features) -> Result<Option<Encoding>, FormatError> {
    if !features.incompat.contains(Incompat::CASEFOLD) {
        return Ok(None);
    }
    let unknown = || bad("s_encoding", sb.s_encoding.get(), "want 1, UTF-8 of Unicode 12.1");
    Encoding::of(sb).ok_or_else(unknown).map(Some)
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
            new_extra_isize: new_extra_isize(sb, inode_size, &features),
            min_extra_isize: min_extra_isize(sb, inode_size, &features),
            first_ino: Ino(first_ino),
            reserved_gdt_blocks: reserved_gdt(sb, &features),
            groups_per_flex: groups_per_flex(sb, &features)?,
            checksums: sb.checksums(),
            name_hash: NameHash {
                seed: sb.hash_seed(),
                default_version: sb.s_def_hash_version,
                unsigned: sb.hash_is_unsigned(),
            },
            encoding: encoding(sb, &features)?,
            features,
            uuid: sb.s_uuid,
            is_hurd: sb.s_creator_os.get() == CREATOR_HURD,
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
}

fn block_size(sb: &RawSuperblock) -> Result<(u32, u32), FormatError> {
    let log = sb.s_log_block_size.get();
    let size = match log {
        0 => 1024,
        1 => 2048,
        2 => 4096,
        3..=6 => 1024 << log,
        _ => return Err(bad("s_log_block_size", log, "want 0 to 6")),
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

/// All the fields known today, or more where the superblock asks for that; what no inode can have
/// is not listened to.
fn new_extra_isize(sb: &RawSuperblock, inode_size: u32, features: &Features) -> u16 {
    let room = u16::try_from(inode_size.saturating_sub(REV0_INODE_SIZE)).unwrap_or(u16::MAX);
    let asked = match features.ro_compat.contains(RoCompat::EXTRA_ISIZE) {
        true => [sb.s_want_extra_isize.get(), sb.s_min_extra_isize.get()],
        false => [0; 2],
    };
    let fits = |size: &u16| *size <= room && size.is_multiple_of(4);
    let known = FULL_EXTRA_SIZE.min(room);
    asked.into_iter().filter(fits).fold(known, u16::max)
}

fn min_extra_isize(sb: &RawSuperblock, inode_size: u32, features: &Features) -> u16 {
    let asked = sb.s_min_extra_isize.get();
    let is_asked = features.ro_compat.contains(RoCompat::EXTRA_ISIZE)
        && u32::from(asked) <= inode_size.saturating_sub(REV0_INODE_SIZE)
        && asked.is_multiple_of(4);
    if is_asked { asked } else { 0 }
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
pub(super) mod tests {
    use super::*;

    /// A 1 GiB file system of 4 KiB blocks with the default features.
    pub(in crate::layout) fn sample() -> RawSuperblock {
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
    fn new_inodes_have_the_extra_fields_that_the_superblock_asks_for() {
        let extra = |size: u16, feature: bool, want: u16, min: u16| {
            let mut sb = sample();
            sb.s_inode_size.set(size);
            sb.s_want_extra_isize.set(want);
            sb.s_min_extra_isize.set(min);
            let mut features = Features::default();
            features.edit(if feature { "extra_isize" } else { "huge_file" }).unwrap();
            features.put(&mut sb);
            Layout::new(&sb, None).unwrap().new_extra_isize
        };
        assert_eq!(extra(128, true, 32, 32), 0);
        assert_eq!(extra(256, false, 64, 64), 32);
        assert_eq!(extra(256, true, 28, 28), 32, "never less than is known");
        assert_eq!(extra(256, true, 64, 32), 64);
        assert_eq!(extra(256, true, 32, 48), 48);
        assert_eq!(extra(256, true, 132, 33), 32, "no inode has these");
        assert_eq!(extra(1024, true, 132, 33), 132);
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
        refuse(&|sb| sb.s_log_block_size.set(7), "s_log_block_size");
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
