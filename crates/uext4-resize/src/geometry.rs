//! From a superblock and a size to the superblock afterwards.
//!
//! Descriptors of new groups go to the blocks that are reserved for them. If these do not suffice,
//! a step uses them up; the next one turns to meta groups (meta_bg), whose descriptors are in the
//! groups themselves, as the kernel does when it grows a mounted file system. So nothing moves.

use crate::error::{ResizeError, Result};
use uext4::growth_blocks;
use uext4_ondisk::{Compat, Features, GroupNo, Incompat, Layout, RawGroupDesc, RawSuperblock};

/// Blocks that the last group must have beyond its own metadata to be worth having.
const LAST_GROUP_SLACK: u64 = 50;

/// The blocks that a file system gets of a device with `blocks` of them: whole clusters, and no
/// last group that is too small for its own metadata.
///
/// # Errors
/// Those of [`next`].
pub fn fitting_blocks(sb: &RawSuperblock, blocks: u64) -> Result<u64> {
    let layout = Layout::new(sb, None)?;
    let mut blocks = blocks - blocks % u64::from(layout.cluster_blocks);
    loop {
        let groups = group_count(&layout, blocks)?;
        if groups <= layout.group_count {
            return Ok(blocks);
        }
        let new = Layout::new(&grown(sb, &layout, blocks)?, None)?;
        let last = GroupNo(groups - 1);
        let overhead = u64::from(new.base_meta_blocks(last) + new.inode_table_blocks()) + 2;
        let rest = u64::from(new.blocks_in_group(last));
        let is_whole = rest == u64::from(new.blocks_per_group);
        if is_whole || rest >= overhead + LAST_GROUP_SLACK {
            return Ok(blocks);
        }
        blocks -= rest;
    }
}

/// The superblock after the next step towards `blocks` blocks, which are more than there are and
/// come from [`fitting_blocks`]. The step changes at most `changes_max` blocks of the file system.
/// Free counts are those of before.
///
/// # Errors
/// The file system cannot be grown so far.
pub fn next(sb: &RawSuperblock, blocks: u64, changes_max: u32) -> Result<RawSuperblock> {
    let layout = Layout::new(sb, None)?;
    // The last step is possible as well, or none is made.
    grown(sb, &layout, blocks)?;
    let per_block = layout.descs_per_block();
    let descs = layout.desc_block_count();
    let mut limit = u32::MAX;
    if layout.reserved_gdt_blocks > 0 {
        limit = descs + layout.reserved_gdt_blocks;
    }
    let step = |limit: u32| {
        let groups = u64::from(limit) * u64::from(per_block);
        let end = layout.first_data_block.get() + groups * u64::from(layout.blocks_per_group);
        grown(sb, &layout, blocks.min(end))
    };
    let mut new = step(limit)?;
    let mut changes = growth_blocks(&layout, &Layout::new(&new, None)?);
    if changes > changes_max {
        // Descriptor blocks can come in several steps, the rest cannot.
        let added = Layout::new(&new, None)?.desc_block_count() - descs;
        let fewer = added.saturating_sub(changes - changes_max);
        new = step(descs + fewer)?;
        changes = growth_blocks(&layout, &Layout::new(&new, None)?);
    }
    if changes > changes_max || new.blocks_count() <= layout.blocks_count {
        return Err(ResizeError::Refused(format!(
            "has too small a journal to grow: a step changes {changes} blocks, a transaction has \
             at most {changes_max}; make the journal larger (tune2fs -O ^has_journal, then tune2fs \
             -J size=64)"
        )));
    }
    Ok(new)
}

fn group_count(layout: &Layout, blocks: u64) -> Result<u32> {
    let blocks = blocks.saturating_sub(layout.first_data_block.get());
    let groups = blocks.div_ceil(u64::from(layout.blocks_per_group));
    u32::try_from(groups).map_err(|_| ResizeError::Refused("would have too many groups".to_owned()))
}

/// The superblock with `blocks` blocks, all of them reached in one step.
fn grown(old: &RawSuperblock, layout: &Layout, blocks: u64) -> Result<RawSuperblock> {
    let refused = |why: String| Err(ResizeError::Refused(why));
    if blocks > u64::from(u32::MAX) && !layout.has_64bit() {
        return refused(
            "cannot have 2^32 blocks or more without the feature 64bit: convert it first \
             (resize2fs -b)"
                .to_owned(),
        );
    }
    let groups = group_count(layout, blocks)?;
    let Some(inodes) = groups.checked_mul(layout.inodes_per_group) else {
        let per_group = u64::from(layout.inodes_per_group);
        return refused(format!(
            "cannot have {} inodes, {per_group} in each group: the most is {}",
            u64::from(groups) * per_group,
            u32::MAX
        ));
    };
    let mut sb = *old;
    let before = old.blocks_count().max(1);
    let reserved = u128::from(old.reserved_blocks_count()) * u128::from(blocks);
    let reserved = u64::try_from(reserved / u128::from(before)).unwrap_or(0);
    sb.set_blocks_count(blocks);
    sb.set_reserved_blocks_count(reserved);
    sb.s_inodes_count.set(inodes);
    choose_backups(&mut sb, layout.group_count, groups);
    place_descriptors(&mut sb, layout, groups)?;
    Ok(sb)
}

/// sparse_super2: the backups stay where they are. A file system that was too small for both gets
/// what it lacks.
fn choose_backups(sb: &mut RawSuperblock, old: u32, new: u32) {
    if !Features::of(sb).compat.contains(Compat::SPARSE_SUPER2) {
        return;
    }
    let [first, last] = &mut sb.s_backup_bgs;
    if old == 1 && first.get() == 0 && new > 1 {
        first.set(1);
    }
    if old <= 2 && last.get() == 0 && new > 2 {
        last.set(new - 1);
    }
}

/// Finds the descriptors of `groups` groups a place.
fn place_descriptors(sb: &mut RawSuperblock, layout: &Layout, groups: u32) -> Result<()> {
    let has = layout.desc_block_count();
    let added = groups.div_ceil(layout.descs_per_block()).saturating_sub(has);
    let reserved = layout.reserved_gdt_blocks;
    if layout.has_meta_bg() || added == 0 {
        return Ok(());
    }
    if added <= reserved {
        sb.s_reserved_gdt_blocks.set(u16::try_from(reserved - added).unwrap_or(0));
        return Ok(());
    }
    if sb.s_rev_level.get() == 0 {
        return Err(ResizeError::Refused(format!(
            "of revision 0 cannot have more than {} groups: it has no blocks reserved for group \
             descriptors (resize_inode), and no features such as meta_bg; convert it first \
             (tune2fs -r 1)",
            has * layout.descs_per_block()
        )));
    }
    let mut features = Features::of(sb);
    features.compat.remove(Compat::RESIZE_INODE);
    features.incompat.insert(Incompat::META_BG);
    features.put(sb);
    sb.s_reserved_gdt_blocks.set(0);
    sb.s_first_meta_bg.set(has + reserved);
    Ok(())
}

/// Sets the counts of free blocks and inodes, and what the metadata of all groups takes.
pub(crate) fn count_free(
    sb: &mut RawSuperblock,
    old: &Layout,
    new: &Layout,
    groups: &[RawGroupDesc],
) {
    let last = GroupNo(old.group_count.saturating_sub(1));
    let bits = u64::from(new.bits_in_group(last) - old.bits_in_group(last))
        + groups.iter().map(|desc| u64::from(desc.free_blocks())).sum::<u64>();
    let blocks = bits * u64::from(new.cluster_blocks);
    sb.set_free_blocks_count(sb.free_blocks_count() + blocks);
    let inodes = groups.iter().map(RawGroupDesc::free_inodes).sum::<u32>();
    sb.s_free_inodes_count.set(sb.s_free_inodes_count.get().saturating_add(inodes));
    let overhead = sb.s_overhead_clusters.get();
    if overhead != 0 {
        let all = new.blocks_count.saturating_sub(old.blocks_count);
        let taken = all.saturating_sub(blocks) / u64::from(new.cluster_blocks);
        let overhead = u64::from(overhead) + taken;
        sb.s_overhead_clusters.set(u32::try_from(overhead).unwrap_or(0));
    }
}
