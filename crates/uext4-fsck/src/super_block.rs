//! Before the passes: superblock, group descriptors, and the blocks of fixed metadata.

use std::time::{SystemTime, UNIX_EPOCH};

use uext4_device::Device;
use uext4_ondisk::mmp::{SEQ_CLEAN, SEQ_FSCK, SEQ_MAX};
use uext4_ondisk::superblock::{MAGIC, STATE_ERROR, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{
    BlockNo, Compat, CorruptKind, Features, FormatError, GroupFlags, GroupNo, Incompat, Layout,
    RawGroupDesc, RawMmp, RawSuperblock, RoCompat, group_desc,
};

use crate::claims::Claims;
use crate::log::Log;
use crate::problem::Problem;
use crate::volume::{Group, Volume};
use crate::{CheckError, Options};

const COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::IMAGIC_INODES)
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);

const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENT)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);

const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::QUOTA)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::READONLY)
    .union(RoCompat::PROJECT)
    .union(RoCompat::SHARED_BLOCKS)
    .union(RoCompat::VERITY)
    .union(RoCompat::ORPHAN_PRESENT);

/// Reads and checks superblock and descriptors. `Ok(None)`: a fatal finding is in `log`.
pub(crate) fn open<'d>(
    device: &'d dyn Device,
    journal: Option<&'d dyn Device>,
    options: &Options,
    log: &mut Log,
) -> Result<Option<Volume<'d>>, CheckError> {
    let sb = find(device, log)?;
    refuse(&sb, journal.is_some())?;
    let journal = journal.filter(|_| has_external_journal(&sb));
    if Features::of(&sb).ro_compat.contains(RoCompat::METADATA_CSUM) && sb.s_checksum_type != 1 {
        log.add(Problem::SuperChecksumType { found: sb.s_checksum_type });
        return Ok(None);
    }
    if let Err(FormatError::SuperblockChecksum { want, found }) = sb.verify_checksum() {
        log.add(Problem::SuperChecksum { found, want });
    }
    let has_clusters = Features::of(&sb).ro_compat.contains(RoCompat::BIGALLOC);
    let why = if sb.s_rev_level.get() > 1 {
        Some(format!("revision {} is unknown", sb.s_rev_level.get()))
    } else if !has_clusters && sb.s_log_cluster_size != sb.s_log_block_size {
        Some("clusters are not blocks, without the bigalloc feature".to_owned())
    } else {
        None
    };
    if let Some(why) = why {
        log.add(Problem::SuperGeometry { why });
        return Ok(None);
    }
    let layout = match geometry(&sb, device.len()) {
        Ok(layout) => layout,
        Err(FormatError::DeviceTooSmall { blocks, block_size, device_bytes }) => {
            let device = device_bytes / u64::from(block_size);
            log.add(Problem::SuperDeviceSize { blocks, device });
            return Ok(None);
        }
        Err(error) => {
            log.add(Problem::SuperGeometry { why: error.to_string() });
            return Ok(None);
        }
    };
    let max = layout.blocks_count / 2;
    if sb.reserved_blocks_count() > max {
        log.add(Problem::SuperReserved { found: sb.reserved_blocks_count(), max });
        return Ok(None);
    }
    if let Err(why) = mmp_block(device, &sb, &layout) {
        log.add(Problem::SuperMmp { block: sb.s_mmp_block.get(), why });
        return Ok(None);
    }
    let claims = Claims::new(&layout);
    let mut volume = Volume {
        device,
        journal,
        options: options.clone(),
        sb,
        layout,
        groups: Vec::new(),
        claims,
    };
    fields(&volume, log);
    volume.groups = descriptors(&volume, log);
    fixed_blocks(&volume, log);
    Ok(Some(volume))
}

/// The block by which hosts claim the file system. A claim that is alive is no finding: as for
/// `e2fsck -n`, which only looks.
fn mmp_block(device: &dyn Device, sb: &RawSuperblock, layout: &Layout) -> Result<(), String> {
    if !layout.has_mmp() {
        return Ok(());
    }
    let block = BlockNo(sb.s_mmp_block.get());
    if block <= layout.first_data_block || !layout.is_valid_block(block) {
        return Err("outside the file system".to_owned());
    }
    let mut bytes = [0; size_of::<RawMmp>()];
    device.read_at(layout.byte_of(block), &mut bytes).map_err(|error| error.to_string())?;
    let raw = RawMmp::from_prefix(&bytes).unwrap_or_else(RawMmp::zeroed);
    raw.verify(&layout.checksums).map_err(|kind| kind.to_string())?;
    match raw.mmp_seq.get() {
        SEQ_FSCK => Err("a checker is at work, or was ended; `uext4 tune --clear-mmp`".to_owned()),
        SEQ_CLEAN | ..=SEQ_MAX => Ok(()),
        other => Err(format!("its state {other:#x} is unknown; `uext4 tune --clear-mmp`")),
    }
}

fn read(device: &dyn Device, offset: u64) -> Result<RawSuperblock, CheckError> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    if offset + SUPERBLOCK_SIZE as u64 > device.len() {
        return Err(CheckError::NoFileSystem);
    }
    device.read_at(offset, &mut bytes).map_err(CheckError::Device)?;
    RawSuperblock::from_prefix(&bytes).ok_or(CheckError::NoFileSystem)
}

/// The primary superblock, or a backup if the primary is invalid.
fn find(device: &dyn Device, log: &mut Log) -> Result<RawSuperblock, CheckError> {
    let primary = read(device, SUPERBLOCK_OFFSET)?;
    if primary.s_magic.get() == MAGIC {
        return Ok(primary);
    }
    for (log_size, block) in [(0_u32, 8193_u64), (1, 16384), (2, 32768)] {
        let Ok(backup) = read(device, block << (log_size + 10)) else { continue };
        let fits = backup.s_log_block_size.get() == log_size;
        if backup.s_magic.get() == MAGIC && fits && geometry(&backup, device.len()).is_ok() {
            log.add(Problem::SuperMagic { found: primary.s_magic.get() });
            return Ok(backup);
        }
    }
    Err(CheckError::NoFileSystem)
}

/// The geometry. Of descriptors of more than 64 bytes the known part is read.
fn geometry(sb: &RawSuperblock, device_bytes: u64) -> Result<Layout, FormatError> {
    let size = sb.s_desc_size.get();
    let is_64bit = Features::of(sb).incompat.contains(Incompat::BIT64);
    let is_large = size > 64 && size <= 1024 && size.is_power_of_two();
    if !(is_64bit && is_large) {
        return Layout::new(sb, Some(device_bytes));
    }
    let mut usual = *sb;
    usual.s_desc_size.set(64);
    let mut layout = Layout::new(&usual, Some(device_bytes))?;
    layout.desc_size = size;
    Ok(layout)
}

/// As in e2fsck, a UUID means an external journal, whatever else is there.
fn has_external_journal(sb: &RawSuperblock) -> bool {
    let has_journal = Features::of(sb).compat.contains(Compat::HAS_JOURNAL);
    let no_inode = has_journal && sb.s_journal_inum.get() == 0;
    sb.s_journal_uuid != [0; 16] || (no_inode && sb.s_journal_dev.get() != 0)
}

/// Refuses what cannot be checked. `has_journal_device`: that of an external journal is at hand.
fn refuse(sb: &RawSuperblock, has_journal_device: bool) -> Result<(), CheckError> {
    let features = Features::of(sb);
    // The kernel ignores unknown compatible features. A check must know them.
    let mut names = features.compat.difference(COMPAT).names();
    names.extend(features.incompat.difference(INCOMPAT).refused_names());
    names.extend(features.ro_compat.difference(RO_COMPAT).names());
    if !names.is_empty() {
        return Err(CheckError::Refused { names: names.join(" ") });
    }
    match has_external_journal(sb) && !has_journal_device {
        true => Err(CheckError::JournalElsewhere),
        false => Ok(()),
    }
}

/// Fields whose findings are only warnings.
fn fields(volume: &Volume<'_>, log: &mut Log) {
    let (sb, layout) = (&volume.sb, &volume.layout);
    if sb.s_state.get() & STATE_ERROR != 0 {
        log.add(Problem::SuperErrors {});
    }
    let max = u16::try_from(layout.inode_size - 128).unwrap_or(u16::MAX);
    for found in [sb.s_want_extra_isize.get(), sb.s_min_extra_isize.get()] {
        if layout.inode_size > 128 && (found > max || found % 4 != 0) {
            log.add(Problem::SuperExtraIsize { found });
        }
    }
    let reserved = sb.s_reserved_gdt_blocks.get();
    if reserved != 0 && !volume.compat(Compat::RESIZE_INODE) && sb.s_rev_level.get() != 0 {
        log.add(Problem::SuperReservedGdt { found: reserved });
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |d| d.as_secs());
    let times = [
        ("last mount time", RawSuperblock::time(sb.s_mtime, sb.s_mtime_hi)),
        ("last write time", RawSuperblock::time(sb.s_wtime, sb.s_wtime_hi)),
    ];
    for (field, time) in times {
        if time > now.saturating_add(86_400) {
            log.add(Problem::SuperFutureTime { field });
        }
    }
}

fn descriptors(volume: &Volume<'_>, log: &mut Log) -> Vec<Group> {
    let layout = &volume.layout;
    let mut groups = Vec::new();
    let per_block = layout.descs_per_block();
    let mut bytes = vec![0; volume.block_size()];
    let size = usize::from(layout.desc_size);
    for index in 0..layout.desc_block_count() {
        let block = layout.desc_block_no(index);
        let is_there = volume.is_valid(block.get()) && volume.read(block, &mut bytes, log);
        if !is_there {
            bytes.fill(0);
        }
        let first = index * per_block;
        let slots = bytes.chunks_exact(size).take((layout.group_count - first) as usize);
        for (group, slot) in (first..).map(GroupNo).zip(slots) {
            groups.push(descriptor(volume, group, slot, log));
        }
    }
    groups
}

fn descriptor(volume: &Volume<'_>, group: GroupNo, slot: &[u8], log: &mut Log) -> Group {
    let layout = &volume.layout;
    let desc =
        RawGroupDesc::read(slot, layout.desc_size).unwrap_or_else(|_| RawGroupDesc::zeroed());
    let mut trusted = layout.checksums.has_group_checksum();
    if let Err(CorruptKind::Checksum { want, found, .. }) =
        group_desc::verify_slot(slot, &layout.checksums, group)
    {
        log.add(Problem::GroupChecksum { group, found, want });
        trusted = false;
    }
    let flags = desc.flags();
    let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    let says_so = flags.intersects(uninit) || desc.itable_unused() != 0;
    if says_so && !layout.checksums.has_group_checksum() {
        log.add(Problem::GroupUninit { group });
    }
    let inode_uninit = trusted && flags.contains(GroupFlags::INODE_UNINIT);
    let block_uninit = trusted && flags.contains(GroupFlags::BLOCK_UNINIT);
    if block_uninit && group.get() + 1 == layout.group_count && layout.group_count > 1 {
        log.add(Problem::GroupUninitLast { group });
    }
    let per_group = layout.inodes_per_group;
    let unused = desc.itable_unused();
    let mut inodes_scanned = per_group;
    if trusted {
        if unused > per_group || (unused > desc.free_inodes()) {
            log.add(Problem::GroupUnusedInodes { group, found: unused });
        } else if inode_uninit {
            inodes_scanned = 0;
        } else {
            inodes_scanned = per_group - unused;
        }
    }
    let mut result = Group {
        desc,
        block_uninit,
        inode_uninit,
        inodes_scanned,
        block_bitmap: Some(desc.block_bitmap()),
        inode_bitmap: Some(desc.inode_bitmap()),
        inode_table: Some(desc.inode_table()),
    };
    places(volume, group, &mut result, log);
    result
}

/// Whether bitmaps and table can be where the descriptor says.
fn places(volume: &Volume<'_>, group: GroupNo, found: &mut Group, log: &mut Log) {
    let layout = &volume.layout;
    let (mut first, mut end) = (layout.first_data_block.get(), layout.blocks_count);
    if !volume.incompat(Incompat::FLEX_BG) {
        first = layout.group_first_block(group).get();
        end = first + u64::from(layout.blocks_in_group(group));
    }
    let fits = |block: BlockNo, count: u32| {
        let block = block.get();
        block != 0 && block >= first && block.saturating_add(count.into()) <= end
    };
    let (desc, table) = (found.desc, layout.inode_table_blocks());
    if !fits(desc.block_bitmap(), 1) {
        let block = desc.block_bitmap().get();
        log.add(Problem::GroupBlockBitmapPlace { group, block });
        found.block_bitmap = None;
    }
    if !fits(desc.inode_bitmap(), 1) {
        let block = desc.inode_bitmap().get();
        log.add(Problem::GroupInodeBitmapPlace { group, block });
        found.inode_bitmap = None;
    }
    if !fits(desc.inode_table(), table) {
        let block = desc.inode_table().get();
        log.add(Problem::GroupInodeTablePlace { group, block });
        found.inode_table = None;
    }
}

/// Claims superblocks, descriptors, bitmaps and inode tables.
fn fixed_blocks(volume: &Volume<'_>, log: &mut Log) {
    let layout = &volume.layout;
    // With clusters, neighbours share them.
    let alone = layout.cluster_blocks == 1;
    for group in volume.group_numbers() {
        let first = layout.group_first_block(group).get();
        let most = u64::from(layout.blocks_in_group(group));
        volume.claims.mark(first, u64::from(layout.base_meta_blocks(group)).min(most));
    }
    for (group, found) in volume.group_numbers().zip(&volume.groups) {
        let table = u64::from(layout.inode_table_blocks());
        let parts = [
            ("block bitmap", found.block_bitmap, 1),
            ("inode bitmap", found.inode_bitmap, 1),
            ("inode table", found.inode_table, table),
        ];
        for (what, block, count) in parts {
            let Some(block) = block else { continue };
            if volume.claims.mark(block.get(), count) && alone {
                log.add(Problem::GroupOverlap { group, what, block: block.get() });
            }
        }
    }
    let mmp = volume.sb.s_mmp_block.get();
    if volume.incompat(Incompat::MMP) && volume.is_valid(mmp) {
        volume.claims.mark(mmp, 1);
    }
}
