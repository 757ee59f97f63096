//! From options to a superblock: sizes, counts and features, by mke2fs's rules.

use crate::defaults::{CLASSIC_INODE_SIZE, Errors};
use crate::error::{MkfsError, Result};
use crate::options::Options;
use uext4_ondisk::encryption::{MODE_AES_256_CTS, MODE_AES_256_XTS};
use uext4_ondisk::features::{Compat, Features, Incompat, RoCompat};
use uext4_ondisk::superblock::{
    CHECKSUM_TYPE_CRC32C, DEFAULT_MOUNT_WORDS, ERRORS_CONTINUE, FLAG_SIGNED_HASH, FLAG_TEST, MAGIC,
    STATE_VALID,
};
use uext4_ondisk::{GroupNo, Layout, RawSuperblock, checksum};

/// First inode that is not reserved.
const FIRST_INO: u32 = 11;
/// Blocks that the last group must have beyond its own metadata to be worth having.
const LAST_GROUP_SLACK: u64 = 50;
const DEFAULT_FLEX_GROUPS: u32 = 16;
const EXTRA_ISIZE: u16 = 32;
/// Mounts, or more, and seconds between two checks, where they are on.
const CHECK_MOUNTS: u16 = 20;
const CHECK_SECONDS: u32 = 180 * 86400;
/// Most bytes per inode.
const INODE_RATIO_MAX: u32 = 64 << 20;

/// The geometry of a file system, before any block is allocated.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) sb: RawSuperblock,
    pub(crate) layout: Layout,
    pub(crate) time: u32,
}

/// Sizes as asked for, defaults filled in.
struct Request {
    block_size: u32,
    inode_size: u32,
    /// Blocks of a cluster; 1 without bigalloc.
    cluster_blocks: u32,
    blocks: u64,
    blocks_per_group: u32,
    inodes: u64,
    /// Blocks of descriptors to reserve for growth, where it is not the default number.
    reserved_gdt: Option<u32>,
    /// Backups with sparse_super2.
    backups: u32,
}

/// Largest cluster (mke2fs's limit), and most clusters of a group.
const CLUSTER_BYTES_MAX: u32 = 512 << 20;
const CLUSTERS_PER_GROUP_MAX: u32 = 65528;
/// Blocks of a cluster if nothing else is asked for.
const DEFAULT_CLUSTER_BLOCKS: u32 = 16;

/// Blocks of a cluster.
fn cluster_blocks(options: &Options, features: &Features, block_size: u32) -> Result<u32> {
    if !features.ro_compat.contains(RoCompat::BIGALLOC) {
        return match options.cluster_size {
            Some(_) => Err(MkfsError::option("-C is for clusters: use it with -O bigalloc")),
            None => Ok(1),
        };
    }
    let size = options.cluster_size.unwrap_or(block_size * DEFAULT_CLUSTER_BLOCKS);
    let is_cluster = size.is_power_of_two() && (1024..=CLUSTER_BYTES_MAX).contains(&size);
    if !is_cluster || size <= block_size {
        let message = format!(
            "invalid cluster size {size}: want a power of two above the block size {block_size}, \
             at most {CLUSTER_BYTES_MAX}"
        );
        return Err(MkfsError::option(message));
    }
    Ok(size / block_size)
}

fn request(device_bytes: u64, options: &Options, features: &Features) -> Result<Request> {
    let bytes = options.size.unwrap_or(device_bytes);
    if bytes > device_bytes {
        let message = format!("{bytes} bytes do not fit on a device of {device_bytes}");
        return Err(MkfsError::option(message));
    }
    let block_size = options.block_size.unwrap_or(0);
    if !block_size.is_power_of_two() || !(1024..=65536).contains(&block_size) {
        let message =
            format!("invalid block size {block_size}: want a power of two from 1024 to 65536");
        return Err(MkfsError::option(message));
    }
    let mut blocks = bytes / u64::from(block_size);
    if options.size.is_none() {
        // As in mke2fs, a file system that fills the device ends on a page boundary.
        let per_page = u64::from(4096 / block_size).max(1);
        blocks -= blocks % per_page;
    }
    let cluster_blocks = cluster_blocks(options, features, block_size)?;
    blocks -= blocks % u64::from(cluster_blocks);
    let inode_size = options.inode_size.unwrap_or(CLASSIC_INODE_SIZE);
    if options.revision_0 && inode_size != CLASSIC_INODE_SIZE {
        return Err(MkfsError::option("revision 0 has inodes of 128 bytes"));
    }
    if !inode_size.is_power_of_two() || !(128..=block_size).contains(&inode_size) {
        let message = format!("invalid inode size {inode_size} (min 128/max {block_size})");
        return Err(MkfsError::option(message));
    }
    let cluster_size = block_size * cluster_blocks;
    let ratio = match options.inode_ratio {
        Some(ratio) => ratio,
        None => {
            let ratio = options.default_inode_ratio(bytes)?;
            ratio.max(block_size).max(cluster_size.min(INODE_RATIO_MAX))
        }
    };
    if !(1024..=INODE_RATIO_MAX).contains(&ratio) {
        let message = format!("invalid inode ratio {ratio} (min 1024/max {INODE_RATIO_MAX})");
        return Err(MkfsError::option(message));
    }
    let reserved = options.reserved_percent.unwrap_or(0.0);
    if !(0.0..=50.0).contains(&reserved) {
        let message = format!("invalid reserved blocks percent {reserved}");
        return Err(MkfsError::option(message));
    }
    let bytes = blocks * u64::from(block_size);
    let by_ratio = (bytes / u64::from(ratio)).min(u64::from(u32::MAX));
    let inodes = options.inodes.map_or(by_ratio, u64::from);
    if inodes * u64::from(inode_size) >= bytes {
        let message = format!(
            "{inodes} inodes of {inode_size} bytes are too many for {blocks} blocks of {block_size}"
        );
        return Err(MkfsError::option(message));
    }
    // The count of free blocks (or clusters) has 16 bits in the old descriptors.
    let most = (block_size * 8).min(CLUSTERS_PER_GROUP_MAX);
    let most = most.saturating_mul(cluster_blocks) / (8 * cluster_blocks) * (8 * cluster_blocks);
    let blocks_per_group = options.blocks_per_group.unwrap_or(most);
    let unit = 8 * cluster_blocks;
    if !(256..=most).contains(&blocks_per_group) || !blocks_per_group.is_multiple_of(unit) {
        let message =
            format!("-g {blocks_per_group}: want a multiple of {unit} from 256 to {most}");
        return Err(MkfsError::option(message));
    }
    let mut request = Request {
        block_size,
        inode_size,
        cluster_blocks,
        blocks,
        blocks_per_group,
        inodes,
        reserved_gdt: None,
        backups: options.backups.unwrap_or(2),
    };
    request.reserved_gdt = reserved_gdt(&request, options, features)?;
    Ok(request)
}

/// Blocks of descriptors for growth up to `-E resize=`, as mke2fs counts them. Where the
/// descriptors that there are anyway are enough, it is as if nothing had been asked for.
fn reserved_gdt(request: &Request, options: &Options, features: &Features) -> Result<Option<u32>> {
    let Some(size) = options.resize else { return Ok(None) };
    let blocks = size.blocks(request.block_size);
    if blocks <= request.blocks {
        return Err(MkfsError::option("resize: want more blocks than the file system has"));
    }
    if options.revision_0 {
        return Err(MkfsError::option("resize: revision 0 has no resize inode"));
    }
    let per_block = u64::from(request.block_size / desc_size(features));
    let of = |blocks: u64| blocks.div_ceil(u64::from(request.blocks_per_group)).div_ceil(per_block);
    let more = (of(blocks) - of(request.blocks)).min(u64::from(request.block_size / 4));
    Ok(u32::try_from(more).ok().filter(|more| *more > 0))
}

/// Bytes of a group descriptor.
fn desc_size(features: &Features) -> u32 {
    if features.incompat.contains(Incompat::BIT64) { 64 } else { 32 }
}

/// Lays out a file system on a device of `device_bytes` bytes.
pub(crate) fn plan(device_bytes: u64, options: &Options) -> Result<Geometry> {
    let mut features = options.feature_set()?;
    let request = request(device_bytes, options, &features)?;
    if features.incompat.contains(Incompat::INLINE_DATA) && request.inode_size == 128 {
        let message = "inodes of 128 bytes are too small for inline_data";
        return Err(MkfsError::option(message));
    }
    if request.blocks > u64::from(u32::MAX) && !features.incompat.contains(Incompat::BIT64) {
        return Err(MkfsError::option("a file system above 2^32 blocks needs the 64bit feature"));
    }
    if request.blocks > u64::from(u32::MAX) {
        // The resize inode has block numbers of 32 bits.
        features.compat.remove(Compat::RESIZE_INODE);
    }
    if request.reserved_gdt.is_some() {
        if features.incompat.contains(Incompat::META_BG) {
            return Err(MkfsError::option(
                "resize: the resize inode and meta_bg exclude each other",
            ));
        }
        features.compat.insert(Compat::RESIZE_INODE);
    }
    if options.desc_size.is_some_and(|size| size != 0 && size != desc_size(&features)) {
        let message = "desc_size: want 64 with the feature 64bit and 32 without";
        return Err(MkfsError::option(message));
    }
    let time = options.time.unwrap_or_else(now);
    let mut sb = base_superblock(&request, options, features, time)?;
    fit_groups(&mut sb, &request)?;
    let reserved = options.reserved_percent.unwrap_or(0.0) * sb.blocks_count() as f64 / 100.0;
    sb.set_reserved_blocks_count(reserved as u64);
    let layout = Layout::new(&sb, Some(device_bytes))?;
    Ok(Geometry { sb, layout, time })
}

/// The superblock of a journal device of `device_bytes` bytes.
pub(crate) fn journal_superblock(
    device_bytes: u64,
    options: &Options,
    features: Features,
) -> Result<RawSuperblock> {
    let request = request(device_bytes, options, &features)?;
    let time = options.time.unwrap_or_else(now);
    let mut sb = base_superblock(&request, options, features, time)?;
    sb.set_blocks_count(request.blocks);
    sb.s_blocks_per_group.set(request.blocks_per_group);
    sb.s_clusters_per_group.set(request.blocks_per_group);
    // There are no directories.
    sb.s_flags.set(0);
    Ok(sb)
}

/// Seconds since 1970, limited to the field.
fn now() -> u32 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u32::try_from(d.as_secs()).unwrap_or(u32::MAX))
}

/// Everything that does not depend on the number of groups.
fn base_superblock(
    request: &Request,
    options: &Options,
    features: Features,
    time: u32,
) -> Result<RawSuperblock> {
    let mut sb = RawSuperblock::zeroed();
    let log = request.block_size.trailing_zeros() - 10;
    features.put(&mut sb);
    sb.s_magic.set(MAGIC);
    sb.s_rev_level.set(u32::from(!options.revision_0));
    sb.s_log_block_size.set(log);
    sb.s_log_cluster_size.set(log + request.cluster_blocks.trailing_zeros());
    sb.s_first_data_block.set(u32::from(log == 0 && request.cluster_blocks == 1));
    sb.s_first_ino.set(FIRST_INO);
    sb.s_inode_size.set(u16::try_from(request.inode_size).unwrap_or(u16::MAX));
    if request.inode_size > 128 {
        sb.s_min_extra_isize.set(EXTRA_ISIZE);
        sb.s_want_extra_isize.set(EXTRA_ISIZE);
    }
    if features.incompat.contains(Incompat::BIT64) {
        sb.s_desc_size.set(64);
    }
    if features.incompat.contains(Incompat::FLEX_BG) {
        sb.s_log_groups_per_flex = flex_log(options)?;
    }
    sb.s_state.set(STATE_VALID);
    sb.s_errors.set(options.errors.map_or(ERRORS_CONTINUE, Errors::number));
    sb.s_mkfs_time.set(time);
    sb.s_lastcheck.set(time);
    sb.s_wtime.set(time);
    sb.s_default_mount_opts.set(mount_options(options)?);
    sb.s_uuid = options.uuid.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    set_periodic_check(&mut sb, options.periodic_check == Some(true));
    sb.s_raid_stride.set(raid_stride(options)?);
    sb.s_raid_stripe_width.set(options.stripe_width.unwrap_or(0));
    let seed = options.hash_seed.unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    for (word, bytes) in sb.s_hash_seed.iter_mut().zip(seed.chunks_exact(4)) {
        word.set(bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u32::from(byte)));
    }
    sb.s_def_hash_version = options.hash_algorithm.unwrap_or_default().number();
    sb.s_flags.set(if options.is_test { FLAG_SIGNED_HASH | FLAG_TEST } else { FLAG_SIGNED_HASH });
    sb.s_volume_name.iter_mut().zip(options.label.bytes()).for_each(|(to, from)| *to = from);
    let mounted = options.last_mounted.bytes();
    sb.s_last_mounted.iter_mut().zip(mounted).for_each(|(to, from)| *to = from);
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        sb.s_checksum_type = CHECKSUM_TYPE_CRC32C;
    }
    if features.incompat.contains(Incompat::ENCRYPT) {
        sb.s_encrypt_algos = [MODE_AES_256_XTS, MODE_AES_256_CTS, 0, 0];
    }
    if features.incompat.contains(Incompat::CASEFOLD) {
        options.encoding.unwrap_or_default().put(&mut sb);
    }
    if features.incompat.contains(Incompat::CSUM_SEED) {
        sb.s_checksum_seed.set(checksum::crc32c(!0, &sb.s_uuid));
    }
    Ok(sb)
}

/// The bits of the default mount options.
fn mount_options(options: &Options) -> Result<u32> {
    let words = options.default_mount_options.as_deref().unwrap_or("").split(',');
    let mut bits = 0;
    for word in words.map(str::trim).filter(|word| !word.is_empty()) {
        let (name, is_set) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        let Some((_, bit)) = DEFAULT_MOUNT_WORDS.iter().find(|(known, _)| *known == name) else {
            return Err(MkfsError::option(format!("{word}: no default mount option")));
        };
        bits = if is_set { bits | bit } else { bits & !bit };
    }
    Ok(bits)
}

fn raid_stride(options: &Options) -> Result<u16> {
    let stride = u16::try_from(options.stride.unwrap_or(0));
    stride.map_err(|_| MkfsError::option("stride: want less than 65536 blocks"))
}

/// Checks by number of mounts and by time, or none. File systems of one host are not all due at
/// once: the number depends on the UUID.
fn set_periodic_check(sb: &mut RawSuperblock, is_on: bool) {
    if !is_on {
        sb.s_max_mnt_count.set(u16::MAX);
        return;
    }
    let sum = sb.s_uuid.iter().map(|byte| u16::from(*byte)).sum::<u16>();
    sb.s_max_mnt_count.set(CHECK_MOUNTS + sum % CHECK_MOUNTS);
    sb.s_checkinterval.set(CHECK_SECONDS);
}

fn flex_log(options: &Options) -> Result<u8> {
    let groups = options.flex_groups.unwrap_or(DEFAULT_FLEX_GROUPS);
    if !groups.is_power_of_two() {
        return Err(MkfsError::option(format!("-G {groups} is not a power of two")));
    }
    Ok(u8::try_from(groups.trailing_zeros()).unwrap_or(0))
}

/// Divides the blocks into groups and the inodes among them. If the last group is too small for its
/// own metadata, it is left out; if a group has too many inodes, groups become smaller. Then the
/// division starts again.
fn fit_groups(sb: &mut RawSuperblock, request: &Request) -> Result<()> {
    let mut blocks = request.blocks;
    let mut per_group = request.blocks_per_group;
    let first = u64::from(sb.s_first_data_block.get());
    loop {
        let groups = blocks.saturating_sub(first).div_ceil(u64::from(per_group));
        let groups = u32::try_from(groups).map_err(|_| MkfsError::option("too many groups"))?;
        if groups == 0 {
            return Err(too_small());
        }
        sb.set_blocks_count(blocks);
        sb.s_blocks_per_group.set(per_group);
        sb.s_clusters_per_group.set(per_group / request.cluster_blocks);
        if !fit_inodes(sb, request, groups) {
            if per_group < 256 || request.cluster_blocks > 1 {
                return Err(MkfsError::option("too many inodes: use a larger -i or a smaller -N"));
            }
            // One bitmap cannot have all inodes of a group.
            (per_group, blocks) = (per_group - 8, request.blocks);
            continue;
        }
        if sb.s_inodes_count.get() <= FIRST_INO {
            return Err(too_small());
        }
        choose_backups(sb, groups, request.backups);
        let desc_blocks = set_reserved_gdt(sb, groups, request)?;
        let layout = Layout::new(sb, None)?;
        let tables = u64::from(layout.inode_table_blocks()) + 2;
        let copies = u64::from(1 + desc_blocks + u32::from(sb.s_reserved_gdt_blocks.get()));
        if tables + copies > u64::from(per_group) {
            return Err(MkfsError::option("too many inodes: use a larger -i or a smaller -N"));
        }
        let has_copy = layout.has_super(GroupNo(groups - 1));
        let overhead = tables + if has_copy { copies } else { 0 };
        let rest = (blocks - first) % u64::from(per_group);
        if groups == 1 && rest != 0 && rest < overhead {
            return Err(too_small());
        }
        if rest != 0 && rest < overhead + LAST_GROUP_SLACK {
            blocks -= rest;
            continue;
        }
        return Ok(());
    }
}

fn too_small() -> MkfsError {
    MkfsError::option("not enough space to build the file system: give a larger size")
}

/// Divides the inodes among the groups. False when a group would have more than its bitmap.
fn fit_inodes(sb: &mut RawSuperblock, request: &Request, groups: u32) -> bool {
    let (block, inode) = (request.block_size, request.inode_size);
    let wanted = request.inodes.max(u64::from(FIRST_INO) + 1);
    let mut per_group = wanted.div_ceil(u64::from(groups));
    if per_group > u64::from(block) * 8 {
        return false;
    }
    // The count of free inodes has 16 bits in the old descriptors.
    per_group = per_group.min((1 << 16) - u64::from(block / inode));
    loop {
        // Tables are whole blocks, bitmaps whole bytes.
        let table = (per_group * u64::from(inode)).div_ceil(u64::from(block));
        let fitted = (table * u64::from(block) / u64::from(inode)).max(8) & !7;
        if let Ok(total) = u32::try_from(fitted * u64::from(groups)) {
            sb.s_inodes_per_group.set(u32::try_from(fitted).unwrap_or(u32::MAX));
            sb.s_inodes_count.set(total);
            return true;
        }
        per_group -= 1;
    }
}

/// sparse_super2: backups in group 1 and in the last group. As in mke2fs, a single one is in group
/// 1, and stands in the second field.
fn choose_backups(sb: &mut RawSuperblock, groups: u32, count: u32) {
    if Features::of(sb).compat.contains(Compat::SPARSE_SUPER2) {
        let backups = match (groups, count) {
            (0..=1, _) | (_, 0) => [0, 0],
            (2, _) | (_, 1) => [0, 1],
            _ => [1, groups - 1],
        };
        sb.s_backup_bgs.iter_mut().zip(backups).for_each(|(field, group)| field.set(group));
    }
}

/// Reserves descriptor blocks for growth to 1024 times the size, as far as the resize inode allows.
/// Returns the blocks of descriptors.
fn set_reserved_gdt(sb: &mut RawSuperblock, groups: u32, request: &Request) -> Result<u32> {
    let features = Features::of(sb);
    let block_size = request.block_size;
    let per_block = block_size / desc_size(&features);
    let desc_blocks = groups.div_ceil(per_block);
    let mut reserved = 0;
    if features.compat.contains(Compat::RESIZE_INODE) {
        let most = sb.blocks_count().saturating_mul(1024).min(u64::from(u32::MAX));
        let most = most - u64::from(sb.s_first_data_block.get());
        let groups = most.div_ceil(u64::from(sb.s_blocks_per_group.get()));
        let blocks = groups.div_ceil(u64::from(per_block));
        let blocks = blocks.saturating_sub(u64::from(desc_blocks));
        let blocks = request.reserved_gdt.map_or(blocks, u64::from);
        reserved = blocks.min(u64::from(block_size / 4));
    }
    let reserved = u16::try_from(reserved).unwrap_or(u16::MAX);
    sb.s_reserved_gdt_blocks.set(reserved);
    let limit = sb.s_blocks_per_group.get() / 4 * 3;
    if desc_blocks + u32::from(reserved) > limit {
        let message = "group descriptors would fill most of a group: use larger blocks";
        return Err(MkfsError::option(message));
    }
    Ok(desc_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_room_is_refused_in_plain_words() {
        for kib in [8, 12, 20, 24] {
            let options = Options::default().settled(kib << 10).unwrap();
            let error = plan(kib << 10, &options).err().map(|e| e.to_string());
            assert_eq!(
                error.as_deref(),
                Some("not enough space to build the file system: give a larger size")
            );
        }
    }
}
