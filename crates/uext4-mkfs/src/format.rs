//! The whole run: plan, files, descriptors, output.

use crate::error::{MkfsError, Result};
use crate::geometry::{self, Geometry};
use crate::inodes::Files;
use crate::journal_device::{self, JournalDevice};
use crate::options::Options;
use crate::output::{Image, Output};
use crate::populate::{Carrier, Fill};
use crate::space::Space;
use crate::tables;
use uext4_device::Device;
use uext4_ondisk::features::{Compat, Incompat, RoCompat};
use uext4_ondisk::{GroupFlags, GroupNo, Ino, Layout, RawGroupDesc};

/// What was made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes per block.
    pub block_size: u32,
    /// Bytes per cluster; those of a block without bigalloc.
    pub cluster_size: u32,
    /// Bytes per inode.
    pub inode_size: u32,
    /// Blocks of a group.
    pub blocks_per_group: u32,
    /// Inodes of a group.
    pub inodes_per_group: u32,
    /// Blocks of the file system; may be fewer than asked for, when a last group would have been
    /// too small.
    pub blocks: u64,
    /// Blocks that only the superuser may use.
    pub reserved_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u64,
    /// UUID.
    pub uuid: [u8; 16],
    /// Features, in e2fsprogs spelling.
    pub features: Vec<String>,
    /// Blocks with a backup of the superblock.
    pub backups: Vec<u64>,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// What the caller should tell its user.
    pub warnings: Vec<String>,
}

/// Makes an ext4 file system on `device`, or with the feature `journal_dev` a journal for another.
/// All that the device held is lost.
///
/// # Errors
/// [`MkfsError::Option`] before anything is written; [`MkfsError::Io`] when the device fails,
/// which then holds no file system.
pub fn format(device: &dyn Device, options: &Options) -> Result<Report> {
    format_with_journal(device, options, None)
}

/// Makes an ext4 file system whose journal is on another device (`-J device=`). It becomes the user
/// of that journal when all else of it is there but the superblock.
///
/// # Errors
/// Those of [`format()`]; a journal that has a user, or whose blocks have another size.
pub fn format_with_journal(
    device: &dyn Device,
    options: &Options,
    external: Option<&JournalDevice<'_>>,
) -> Result<Report> {
    format_filled(device, options, external, None)
}

/// Makes an ext4 file system that holds a tree of files. As without it, nothing looks like a
/// complete file system until all is written.
///
/// # Errors
/// Those of [`format_with_journal()`]; [`MkfsError::Source`]: a file of the tree cannot be read, or
/// not be stored.
pub fn format_filled(
    device: &dyn Device,
    options: &Options,
    external: Option<&JournalDevice<'_>>,
    fill: Option<&Fill<'_>>,
) -> Result<Report> {
    if device.read_only() && !options.only_plans {
        return Err(MkfsError::option("the device is read-only"));
    }
    let mut options = options.clone();
    if let Some(external) = external {
        external.adapt(&mut options)?;
    }
    let has_default_inodes = options.inodes.is_none() && options.inode_ratio.is_none();
    let mut options = options.settled(device.len())?;
    let features = options.feature_set()?;
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        return journal_device::make(device, &options, &features);
    }
    let mut geometry = geometry::plan(device.len(), &options)?;
    let inodes = fill.map_or(Ok(0), Fill::inodes)?;
    let mut asked = inodes;
    while has_default_inodes && geometry.layout.inodes_count < inodes && asked < u32::MAX {
        options.inodes = Some(asked);
        geometry = geometry::plan(device.len(), &options)?;
        // A group's share of what is asked for may be rounded down.
        asked = asked.saturating_add(inodes.saturating_sub(geometry.layout.inodes_count));
    }
    let options = &options;
    let layout = geometry.layout.clone();
    let first = layout.first_data_block.get();
    let mut space = Space::new(first, layout.blocks_count);
    for group in (0..layout.group_count).map(GroupNo) {
        let count = u64::from(layout.base_meta_blocks(group));
        if count > 0 {
            space.mark(layout.group_first_block(group).get(), count);
        }
    }
    let mut touched = vec![false; layout.group_count as usize];
    let mut descs = match options.packs_tables(&features) {
        true => tables::pack(&layout, &mut space, &mut touched)?,
        false => {
            let stride = geometry.sb.s_raid_stride.get();
            tables::place(&layout, GroupNo(0), &mut space, &mut touched, stride)?
        }
    };
    // As in mke2fs, tables may share clusters. Files may not.
    let ratio = u64::from(layout.cluster_blocks);
    space.widen_to_clusters(ratio);
    let mut files = Files::new(&mut geometry, &mut space, &mut touched);
    files.device_name = device.name();
    files.external = external;
    files.fill = fill;
    let mut warnings = files.make(options, &descs)?;
    for (what, text, most) in
        [("label", &options.label, 16), ("last mounted directory", &options.last_mounted, 64)]
    {
        if text.len() > most {
            warnings.push(format!("{what} is longer than {most} bytes and was cut"));
        }
    }
    let (blocks, slots, journal, jobs) = (files.blocks, files.slots, files.journal, files.jobs);
    let (directories, last_ino) = (files.directories, files.last_ino);
    fill_descriptors(&layout, &space, &touched, last_ino, GroupNo(0), &mut descs);
    for ino in directories {
        if let Some((group, _)) = layout.group_of_ino(ino) {
            let desc = &mut descs[group.get() as usize];
            desc.set_used_dirs(desc.used_dirs() + 1);
        }
    }
    finish_superblock(&mut geometry, &descs);
    let journal_blocks = journal.iter().map(|e| u64::from(e.len)).sum();
    if options.only_plans {
        return Ok(report(&geometry, journal_blocks, 0, warnings));
    }
    let mut output = Output::new(device, options, &geometry.layout)?;
    if output.tables_will_be_zero() {
        for desc in &mut descs {
            desc.set_flags(desc.flags() | GroupFlags::INODE_ZEROED);
        }
    }
    let image = Image { geometry: &geometry, space: &space, descs, blocks, slots, journal };
    output.erase(&image, options)?;
    match fill {
        Some(fill) => {
            let carrier = Carrier::new(device, fill, &jobs);
            let carried = carrier.run(|| output.write(image))?;
            output.writer.written += carried;
        }
        None => output.write(image)?,
    }
    if let Some(external) = external {
        external.add_user(geometry.layout.uuid)?;
    }
    output.writer.finish(&geometry.sb)?;
    Ok(report(&geometry, journal_blocks, output.writer.written, warnings))
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

fn report(
    geometry: &Geometry,
    journal_blocks: u64,
    bytes_written: u64,
    warnings: Vec<String>,
) -> Report {
    let (sb, layout) = (&geometry.sb, &geometry.layout);
    let groups = (1..layout.group_count).map(GroupNo);
    let backups = groups.filter(|&g| layout.has_super(g));
    Report {
        block_size: layout.block_size,
        cluster_size: layout.block_size * layout.cluster_blocks,
        inode_size: layout.inode_size,
        blocks_per_group: layout.blocks_per_group,
        inodes_per_group: layout.inodes_per_group,
        blocks: layout.blocks_count,
        reserved_blocks: sb.reserved_blocks_count(),
        free_blocks: sb.free_blocks_count(),
        inodes: layout.inodes_count,
        groups: layout.group_count,
        journal_blocks,
        uuid: layout.uuid,
        features: uext4_ondisk::Features::of(sb).names(),
        backups: backups.map(|g| layout.group_first_block(g).get()).collect(),
        bytes_written,
        warnings,
    }
}
