//! Pass 5: bitmaps and counts of the groups, and the totals.

use uext4_ondisk::{BlockNo, GroupNo, bitmap};

use crate::log::Log;
use crate::problem::Problem;
use crate::report::Counts;
use crate::volume::{Inodes, Volume, kind};

/// Counts of one group.
pub(crate) struct Sum {
    log: Log,
    free_blocks: u64,
    free_inodes: u64,
    used_blocks: u64,
}

/// Clusters (bits of the block bitmap) of a group.
fn clusters(volume: &Volume<'_>, group: GroupNo) -> u32 {
    volume.layout.blocks_in_group(group).div_ceil(volume.layout.cluster_blocks)
}

/// What the passes say the block bitmap of a group must be.
fn used_blocks(volume: &Volume<'_>, group: GroupNo) -> Vec<u8> {
    let mut bytes = vec![0; volume.block_size()];
    let first = u64::from(group.get()) * u64::from(volume.layout.clusters_per_group);
    volume.claims.bitmap(first, clusters(volume, group), &mut bytes);
    bytes
}

fn free(map: &[u8], bits: u32) -> u32 {
    bitmap::count_zeros(map, bits)
}

/// Free clusters in groups without a block bitmap, before any file has claimed a block.
pub(crate) fn fixed_in_uninit(volume: &Volume<'_>) -> Vec<u32> {
    let each = volume.group_numbers().zip(&volume.groups).map(|(group, found)| {
        if !found.block_uninit {
            return 0;
        }
        free(&used_blocks(volume, group), clusters(volume, group))
    });
    each.collect()
}

/// Compares one group's bitmaps and counts.
pub(crate) fn group(volume: &Volume<'_>, inodes: &Inodes, fixed: &[u32], index: usize) -> Sum {
    let group = GroupNo(index as u32);
    let mut log = volume.log();
    let free_blocks = blocks(volume, group, fixed, &mut log);
    let free_inodes = self::inodes(volume, inodes, group, &mut log);
    let all = u64::from(volume.layout.blocks_in_group(group));
    let free_in_blocks = u64::from(free_blocks) * u64::from(volume.layout.cluster_blocks);
    Sum {
        log,
        free_blocks: free_blocks.into(),
        free_inodes: free_inodes.into(),
        used_blocks: all.saturating_sub(free_in_blocks),
    }
}

/// Bits that are set in `want` only, in `found` only, and the first that differs.
fn differences(want: &[u8], found: &[u8], bits: u32) -> Option<(u64, u64, u64)> {
    let whole = (bits / 8) as usize;
    let (mut used, mut unused, mut first) = (0, 0, None);
    if want.get(..whole) == found.get(..whole) && bits.is_multiple_of(8) {
        return None;
    }
    for bit in 0..bits {
        let (w, f) = (bitmap::test(want, bit), bitmap::test(found, bit));
        if w != f {
            first.get_or_insert(u64::from(bit));
            if w { used += 1 } else { unused += 1 }
        }
    }
    first.map(|first| (used, unused, first))
}

fn read(volume: &Volume<'_>, block: Option<BlockNo>, log: &mut Log) -> Option<Vec<u8>> {
    volume.block(block?.get(), log)
}

/// Returns the free clusters of the group.
fn blocks(volume: &Volume<'_>, group: GroupNo, fixed: &[u32], log: &mut Log) -> u32 {
    let layout = &volume.layout;
    let at = group.get() as usize;
    let Some(found) = volume.groups.get(at) else { return 0 };
    let bits = clusters(volume, group);
    let want = used_blocks(volume, group);
    let count = free(&want, bits);
    let first_block = layout.group_first_block(group).get();
    if found.block_uninit {
        let used = u64::from(fixed.get(at).copied().unwrap_or(0).saturating_sub(count));
        if used > 0 {
            log.add(Problem::BlockBitmap { group, used, unused: 0, first: first_block });
        }
    } else if let Some(map) = read(volume, found.block_bitmap, log) {
        if let Some((used, unused, first)) = differences(&want, &map, bits) {
            let first = first_block + first * u64::from(layout.cluster_blocks);
            log.add(Problem::BlockBitmap { group, used, unused, first });
        }
        let (size, per_group) = (layout.desc_size.min(64), layout.clusters_per_group);
        if found.desc.verify_block_bitmap(&layout.checksums, size, &map, per_group).is_err() {
            log.add(Problem::BlockBitmapChecksum { group });
        }
        if !bitmap::all_set(&map, bits, layout.block_size * 8 - bits) {
            log.add(Problem::BlockBitmapPadding { group });
        }
    }
    if found.desc.free_blocks() != count {
        log.add(Problem::GroupFreeBlocks { group, found: found.desc.free_blocks(), want: count });
    }
    count
}

/// Returns the free inodes of the group.
fn inodes(volume: &Volume<'_>, inodes: &Inodes, group: GroupNo, log: &mut Log) -> u32 {
    let layout = &volume.layout;
    let at = group.get() as usize;
    let (Some(found), Some(known)) = (volume.groups.get(at), inodes.groups.get(at)) else {
        return 0;
    };
    let bits = layout.inodes_per_group;
    let mut want = vec![0; volume.block_size()];
    let mut dirs = 0;
    for (bit, kind) in (0..).zip(&known.kinds) {
        if kind & kind::USED != 0 {
            bitmap::set(&mut want, bit);
            let is_dir = kind & kind::TYPE == kind::DIRECTORY;
            dirs += u32::from(is_dir);
        }
    }
    let count = free(&want, bits);
    if !found.inode_uninit
        && let Some(map) = read(volume, found.inode_bitmap, log)
    {
        if let Some((used, unused, first)) = differences(&want, &map, bits) {
            let first = u64::from(layout.ino_of(group, first as u32).get());
            log.add(Problem::InodeBitmap { group, used, unused, first });
        }
        let size = layout.desc_size.min(64);
        if found.desc.verify_inode_bitmap(&layout.checksums, size, &map, bits).is_err() {
            log.add(Problem::InodeBitmapChecksum { group });
        }
        if !bitmap::all_set(&map, bits, layout.block_size * 8 - bits) {
            log.add(Problem::InodeBitmapPadding { group });
        }
    }
    if found.desc.free_inodes() != count {
        log.add(Problem::GroupFreeInodes { group, found: found.desc.free_inodes(), want: count });
    }
    if found.desc.used_dirs() != dirs {
        log.add(Problem::GroupDirs { group, found: found.desc.used_dirs(), want: dirs });
    }
    count
}

/// The totals of the superblock.
pub(crate) fn total(volume: &Volume<'_>, sums: Vec<Sum>, counts: &mut Counts, log: &mut Log) {
    let (mut free_blocks, mut free_inodes) = (0, 0);
    for sum in sums {
        log.absorb(sum.log);
        free_blocks += sum.free_blocks;
        free_inodes += sum.free_inodes;
        counts.blocks_used += sum.used_blocks;
    }
    counts.blocks = volume.layout.blocks_count;
    counts.inodes = u64::from(volume.layout.inodes_count);
    counts.blocks_used += volume.layout.first_data_block.get();
    // Stale after a crash, because the kernel writes them only at unmount. In blocks, unlike the
    // groups' counts.
    let free_blocks = free_blocks * u64::from(volume.layout.cluster_blocks);
    let found = volume.sb.free_blocks_count();
    if found != free_blocks {
        log.add(Problem::SuperFreeBlocks { found, want: free_blocks });
    }
    let found = u64::from(volume.sb.s_free_inodes_count.get());
    if found != free_inodes {
        log.add(Problem::SuperFreeInodes { found, want: free_inodes });
    }
}
