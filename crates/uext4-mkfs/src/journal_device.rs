//! Journal devices: a log for a file system on another device (`-O journal_dev`), and what a file
//! system enters there that uses it (`-J device=`).
//!
//! On disk: a superblock with the feature `journal_dev` at byte 1024, the journal superblock in the
//! block after its, and the log behind that. Blocks of the log are numbered from the start of the
//! device.
//! Invariants: the superblock is written last. A journal with a user gets no second one, because
//! the kernel opens none that has two.

use crate::error::{MkfsError, Result};
use crate::format::Report;
use crate::geometry;
use crate::options::Options;
use crate::output::Writer;
use uext4_device::Device;
use uext4_ondisk::features::{Compat, Features, Incompat};
use uext4_ondisk::journal::superblock::{
    JOURNAL_SUPERBLOCK_SIZE, MIN_JOURNAL_BLOCKS, RawJournalSuperblock,
};
use uext4_ondisk::journal::{JournalDeviceLayout, MAX_DEVICE_BLOCKS};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{RawSuperblock, uuid_text};

/// A journal device for a new file system.
#[derive(Debug)]
pub struct JournalDevice<'a> {
    device: &'a dyn Device,
    /// The host's number of the block device (`s_journal_dev`); 0 for a file.
    number: u32,
    layout: JournalDeviceLayout,
    superblock: RawJournalSuperblock,
}

impl<'a> JournalDevice<'a> {
    /// Reads what a journal device says of itself. `number` is what the host calls it.
    ///
    /// # Errors
    /// No journal device, or a damaged one.
    pub fn read(device: &'a dyn Device, number: u32) -> Result<Self> {
        let io = |source| MkfsError::Journal { why: format!("cannot read it: {source}") };
        let wrong = |why: String| MkfsError::Journal { why };
        if device.len() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
            return Err(wrong("no journal device".to_owned()));
        }
        let mut bytes = [0; SUPERBLOCK_SIZE];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes).map_err(io)?;
        let layout = JournalDeviceLayout::read(&bytes, device.len());
        let layout = layout.map_err(|error| wrong(error.to_string()))?;
        let mut bytes = [0; JOURNAL_SUPERBLOCK_SIZE];
        device.read_at(layout.superblock_offset(), &mut bytes).map_err(io)?;
        let superblock =
            RawJournalSuperblock::read(&bytes).map_err(|kind| wrong(kind.to_string()))?;
        if let Some(user) = superblock.users().first() {
            let why = format!(
                "in use by the file system {}; uext4 mkfs -F -O journal_dev makes it anew",
                uuid_text(user)
            );
            return Err(wrong(why));
        }
        Ok(Self { device, number, layout, superblock })
    }

    /// What the options must say on this journal.
    pub(crate) fn adapt(&self, options: &mut Options) -> Result<()> {
        let size = self.layout.block_size;
        if options.journal_mib.is_some() {
            return Err(MkfsError::option(
                "-J size= is of a journal that is made, not of a device",
            ));
        }
        if *options.block_size.get_or_insert(size) != size {
            let why = format!("its blocks have {size} bytes: use -b {size}");
            return Err(MkfsError::Journal { why });
        }
        options.features.push_str(",has_journal");
        Ok(())
    }

    /// Names the journal in the superblock of a file system.
    pub(crate) fn enter(&self, sb: &mut RawSuperblock) {
        sb.s_journal_inum.set(0);
        sb.s_journal_uuid = self.layout.uuid;
        sb.s_journal_dev.set(self.number);
    }

    /// Enters the file system among the users of the journal, durably.
    pub(crate) fn add_user(&self, uuid: [u8; 16]) -> Result<()> {
        let mut superblock = self.superblock;
        superblock.s_nr_users.set(1);
        superblock.s_users[0] = uuid;
        superblock.seal();
        let at = self.layout.superblock_offset();
        let io = |source| MkfsError::Io { what: "the journal device", source };
        self.device.write_at(at, superblock.bytes()).map_err(io)?;
        self.device.flush().map_err(io)
    }
}

/// Makes a journal device.
pub(crate) fn make(device: &dyn Device, options: &Options, features: &Features) -> Result<Report> {
    let sb = geometry::journal_superblock(device.len(), options, *features)?;
    let blocks = sb.blocks_count();
    if blocks < MIN_JOURNAL_BLOCKS.into() {
        let why = format!("a journal has at least {MIN_JOURNAL_BLOCKS} blocks, not {blocks}");
        return Err(MkfsError::option(why));
    }
    if blocks > MAX_DEVICE_BLOCKS.into() {
        let why = format!(
            "a journal device has at most {MAX_DEVICE_BLOCKS} blocks, not {blocks}: give a size"
        );
        return Err(MkfsError::option(why));
    }
    let layout = JournalDeviceLayout::of(&sb, device.len())
        .map_err(|error| MkfsError::option(error.to_string()))?;
    let length = layout.blocks;
    let behind = length - layout.superblock - 1;
    let warnings = match MIN_JOURNAL_BLOCKS.checked_sub(behind).filter(|&few| few > 0) {
        Some(few) => vec![format!(
            "the kernel mounts no file system on it: its log has {behind} blocks, {few} fewer than \
             it wants"
        )],
        None => Vec::new(),
    };
    let report = report(&sb, &layout, features, warnings);
    if options.only_plans {
        return Ok(report);
    }
    let mut writer = Writer::new(device, options)?;
    let size = u64::from(layout.block_size);
    if !writer.is_zero {
        writer.wipe_ends()?;
        if options.lazy_journal_init != Some(true) && options.assume_zeroed != Some(true) {
            let first = layout.superblock_offset();
            writer.zero("journal", first, blocks * size - first)?;
        }
    }
    let journal =
        RawJournalSuperblock::fresh(layout.block_size, length, layout.superblock + 1, layout.uuid);
    writer.put_at("journal superblock", layout.superblock_offset(), journal.bytes())?;
    writer.finish(&sb)?;
    Ok(Report { bytes_written: writer.written, ..report })
}

fn report(
    sb: &RawSuperblock,
    layout: &JournalDeviceLayout,
    features: &Features,
    warnings: Vec<String>,
) -> Report {
    Report {
        block_size: layout.block_size,
        blocks: sb.blocks_count(),
        uuid: layout.uuid,
        features: features.names(),
        warnings,
        ..Report::default()
    }
}

/// The features of a journal device: of others it keeps checksums.
pub(crate) fn features_of(set: Features) -> Features {
    let ro_compat = set.ro_compat & uext4_ondisk::RoCompat::METADATA_CSUM;
    Features { compat: Compat::empty(), incompat: Incompat::JOURNAL_DEV, ro_compat }
}
