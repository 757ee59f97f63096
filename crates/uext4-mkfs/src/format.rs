//! The whole run: plan, files, descriptors, output.

use crate::error::{MkfsError, Result};
use crate::geometry::Geometry;
use crate::journal_device::{self, JournalDevice};
use crate::options::Options;
use crate::output::{Image, Output};
use crate::plan::{Plan, Wanted};
use crate::populate::{Carrier, Fill};
use uext4_device::Device;
use uext4_ondisk::features::Incompat;
use uext4_ondisk::{GroupFlags, GroupNo};

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
    let settled = options.settled(device.len())?;
    let features = settled.feature_set()?;
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        return journal_device::make(device, &settled, &features);
    }
    let inodes = fill.map_or(Ok(0), Fill::inodes)?;
    let wanted =
        Wanted { device_name: device.name(), external, fill, inodes, has_least_inodes: false };
    let plan = Plan::new(device.len(), &options, &wanted)?;
    let (options, geometry, mut descs) = (&plan.options, &plan.geometry, plan.descs);
    let journal_blocks = plan.journal.iter().map(|e| u64::from(e.len)).sum();
    if options.only_plans {
        return Ok(report(geometry, journal_blocks, 0, plan.warnings));
    }
    let mut output = Output::new(device, options, &geometry.layout)?;
    if output.tables_will_be_zero() {
        for desc in &mut descs {
            desc.set_flags(desc.flags() | GroupFlags::INODE_ZEROED);
        }
    }
    let (blocks, slots, journal) = (plan.blocks, plan.slots, plan.journal);
    let image = Image { geometry, space: &plan.space, descs, blocks, slots, journal };
    output.erase(&image, options)?;
    match fill {
        Some(fill) => {
            let carrier = Carrier::new(device, fill, &plan.jobs);
            let carried = carrier.run(|| output.write(image))?;
            output.writer.written += carried;
        }
        None => output.write(image)?,
    }
    if let Some(external) = external {
        external.add_user(geometry.layout.uuid)?;
    }
    output.writer.finish(&geometry.sb)?;
    Ok(report(geometry, journal_blocks, output.writer.written, plan.warnings))
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
