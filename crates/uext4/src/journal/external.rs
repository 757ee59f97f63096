//! The journal of a file system on a device of its own.
//!
//! What: [`LogLocation::on`] finds the log there, once the device has turned out to be the journal
//! of this file system and of no other.
//! Invariants: two devices have two caches, and a flush of one says nothing of the other. A commit
//! flushes both before its commit block, a checkpoint flushes the data before the tail moves
//! (docs/journal.md, J18).
//! Kernel counterpart: `ext4_get_dev_journal` in `fs/ext4/super.c`.

use super::locate::LogLocation;
use crate::error::{Error, ErrorKind, Result};
use uext4_device::{Device, SharedDevice};
use uext4_ondisk::journal::superblock::JOURNAL_SUPERBLOCK_SIZE;
use uext4_ondisk::journal::{JournalDeviceError, JournalDeviceLayout, RawJournalSuperblock};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{BlockNo, FormatError, RawSuperblock};

impl LogLocation {
    /// The journal on `device`, which must be that of the file system with this superblock.
    ///
    /// # Errors
    /// No journal, another one, one that another file system uses; a device failure.
    pub fn on(device: &SharedDevice, superblock: &RawSuperblock) -> Result<Self> {
        let layout = check(&**device, superblock)?;
        Ok(Self {
            runs: vec![(0, BlockNo(0), layout.blocks)],
            device: Some(device.clone()),
            superblock: layout.superblock,
        })
    }
}

fn check(device: &dyn Device, superblock: &RawSuperblock) -> Result<JournalDeviceLayout> {
    let wrong = |error: JournalDeviceError| {
        Error::new(ErrorKind::InvalidArgument, format!("journal device: {error}"))
    };
    if device.len() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
        return Err(wrong(FormatError::NoSuperblock { found: 0 }.into()));
    }
    let mut bytes = [0; SUPERBLOCK_SIZE];
    let failed = |error| Error::io("reading the journal device", error);
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).map_err(failed)?;
    let layout = JournalDeviceLayout::read(&bytes, device.len()).map_err(wrong)?;
    let mut bytes = [0; JOURNAL_SUPERBLOCK_SIZE];
    device.read_at(layout.superblock_offset(), &mut bytes).map_err(failed)?;
    let journal = RawJournalSuperblock::read(&bytes).map_err(|kind| wrong(kind.into()))?;
    layout.check(&journal, superblock).map_err(wrong)?;
    Ok(layout)
}
