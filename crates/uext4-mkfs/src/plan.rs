//! The plan of a file system: all that will be written, but for the content of its files.

use crate::error::Result;
use crate::geometry::{self, Geometry};
use crate::inodes::Files;
use crate::journal_device::JournalDevice;
use crate::options::Options;
use crate::populate::{Fill, Job};
use crate::space::Space;
use crate::tables;
use std::collections::BTreeMap;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::features::{Compat, RoCompat};
use uext4_ondisk::{BlockNo, GroupFlags, GroupNo, Ino, Layout, RawGroupDesc};

/// What a file system is to have beside its options.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted<'a> {
    /// What this host calls the device.
    pub(crate) device_name: String,
    pub(crate) external: Option<&'a JournalDevice<'a>>,
    pub(crate) fill: Option<&'a Fill<'a>>,
    /// Least number of inodes, unless the options say how many.
    pub(crate) inodes: u32,
    /// Whether there are to be no more of them than that.
    pub(crate) has_least_inodes: bool,
}

/// A planned file system.
pub(crate) struct Plan {
    /// The options, all settled.
    pub(crate) options: Options,
    pub(crate) geometry: Geometry,
    pub(crate) space: Space,
    pub(crate) descs: Vec<RawGroupDesc>,
    /// Content of blocks.
    pub(crate) blocks: BTreeMap<BlockNo, Vec<u8>>,
    /// Slots of the inode table.
    pub(crate) slots: BTreeMap<Ino, Vec<u8>>,
    /// Pieces of the journal.
    pub(crate) journal: Vec<Extent>,
    /// What is to be done with the content of files.
    pub(crate) jobs: Vec<Job>,
    /// Blocks that the tree takes: the root, `lost+found` and what it was filled with.
    pub(crate) tree_blocks: u64,
    pub(crate) warnings: Vec<String>,
}

impl Plan {
    /// Plans a file system on a device of `device_bytes` bytes.
    pub(crate) fn new(device_bytes: u64, options: &Options, wanted: &Wanted<'_>) -> Result<Self> {
        let has_default_inodes = options.inodes.is_none() && options.inode_ratio.is_none();
        let mut options = options.settled(device_bytes)?;
        let features = options.feature_set()?;
        let mut geometry = geometry::plan(device_bytes, &options)?;
        let mut found = geometry.layout.inodes_count;
        if has_default_inodes && (found < wanted.inodes || wanted.has_least_inodes) {
            // A group's share of what is asked for may be rounded down.
            let mut asked = wanted.inodes;
            loop {
                options.inodes = Some(asked);
                geometry = geometry::plan(device_bytes, &options)?;
                found = geometry.layout.inodes_count;
                if found >= wanted.inodes || asked == u32::MAX {
                    break;
                }
                asked = asked.saturating_add(wanted.inodes - found);
            }
        }
        let layout = geometry.layout.clone();
        let mut space = Space::new(layout.first_data_block.get(), layout.blocks_count);
        for group in (0..layout.group_count).map(GroupNo) {
            let count = u64::from(layout.base_meta_blocks(group));
            if count > 0 {
                space.mark(layout.group_first_block(group).get(), count);
            }
        }
        let mut touched = vec![false; layout.group_count as usize];
        let stride = geometry.sb.s_raid_stride.get();
        let mut descs = match options.packs_tables(&features) {
            true => tables::pack(&layout, &mut space, &mut touched)?,
            false => tables::place(&layout, GroupNo(0), &mut space, &mut touched, stride)?,
        };
        // As in mke2fs, tables may share clusters. Files may not.
        let ratio = u64::from(layout.cluster_blocks);
        space.widen_to_clusters(ratio);
        let mut files = Files::new(&mut geometry, &mut space, &mut touched);
        files.device_name.clone_from(&wanted.device_name);
        files.external = wanted.external;
        files.fill = wanted.fill;
        let mut warnings = files.make(&options, &descs)?;
        warnings.extend(cut_texts(&options));
        let (blocks, slots, journal, jobs) = (files.blocks, files.slots, files.journal, files.jobs);
        let (directories, last_ino, tree_blocks) =
            (files.directories, files.last_ino, files.tree_blocks);
        fill_descriptors(&layout, &space, &touched, last_ino, GroupNo(0), &mut descs);
        for ino in directories {
            if let Some((group, _)) = layout.group_of_ino(ino) {
                let desc = &mut descs[group.get() as usize];
                desc.set_used_dirs(desc.used_dirs() + 1);
            }
        }
        finish_superblock(&mut geometry, &descs);
        Ok(Self {
            options,
            geometry,
            space,
            descs,
            blocks,
            slots,
            journal,
            jobs,
            tree_blocks,
            warnings,
        })
    }

    /// Blocks that nothing uses.
    pub(crate) fn free_blocks(&self) -> u64 {
        let layout = &self.geometry.layout;
        layout.blocks_count - layout.first_data_block.get() - self.space.used_count()
    }
}

/// Warnings of texts that do not fit their fields.
fn cut_texts(options: &Options) -> impl Iterator<Item = String> {
    let texts =
        [("label", &options.label, 16), ("last mounted directory", &options.last_mounted, 64)];
    texts
        .into_iter()
        .filter(|(_, text, most)| text.len() > *most)
        .map(|(what, _, most)| format!("{what} is longer than {most} bytes and was cut"))
}

/// Counts and lazy flags of the groups from `from` on, which `descs` begins with.
pub(crate) fn fill_descriptors(
    layout: &Layout,
    space: &Space,
    touched: &[bool],
    last_ino: Ino,
    from: GroupNo,
    descs: &mut [RawGroupDesc],
) {
    let has_csum = layout.checksums.has_group_checksum();
    let per_group = layout.inodes_per_group;
    let touched = touched.iter().skip(from.get() as usize);
    for (number, (desc, touched)) in (from.get()..).zip(descs.iter_mut().zip(touched)) {
        let group = GroupNo(number);
        let blocks = layout.blocks_in_group(group);
        let first = layout.group_first_block(group).get();
        let used = space.used_in(first..first + u64::from(blocks)).map(|r| r.end - r.start);
        let used = u32::try_from(used.sum::<u64>()).unwrap_or(u32::MAX);
        let inodes = last_ino.get().saturating_sub(number.saturating_mul(per_group)).min(per_group);
        desc.set_free_blocks(layout.bits_for(blocks.saturating_sub(used)));
        desc.set_free_inodes(per_group - inodes);
        if has_csum {
            let mut flags = GroupFlags::empty();
            flags.set(GroupFlags::INODE_UNINIT, inodes == 0);
            // The last group's bitmap must show where the file system ends.
            let is_last = number + 1 == layout.group_count;
            let has_content = *touched || inodes > 0;
            flags.set(GroupFlags::BLOCK_UNINIT, !has_content && !is_last);
            desc.set_flags(flags);
            desc.set_itable_unused(per_group - inodes);
        }
    }
}

fn finish_superblock(geometry: &mut Geometry, descs: &[RawGroupDesc]) {
    let sb = &mut geometry.sb;
    let free_bits: u64 = descs.iter().map(|d| u64::from(d.free_blocks())).sum();
    let free_blocks = free_bits * u64::from(geometry.layout.cluster_blocks);
    let free_inodes = descs.iter().map(RawGroupDesc::free_inodes).sum();
    sb.set_free_blocks_count(free_blocks);
    sb.s_free_inodes_count.set(free_inodes);
    let reserved = sb.reserved_blocks_count().min(free_blocks);
    sb.set_reserved_blocks_count(reserved);
    let size = u64::from(geometry.layout.block_size / 4);
    let has_resize = geometry.layout.features.compat.contains(Compat::RESIZE_INODE);
    if has_resize && (size * size + size + 12) * size * 4 > 1 << 32 {
        // The size of the resize inode needs more than 32 bits.
        let large_file = RoCompat::LARGE_FILE.bits();
        sb.s_feature_ro_compat.set(sb.s_feature_ro_compat.get() | large_file);
    }
}
