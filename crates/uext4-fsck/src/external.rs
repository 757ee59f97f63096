//! The journal on a device of its own, without a replay.

use uext4_device::Device;
use uext4_ondisk::Ino;
use uext4_ondisk::journal::superblock::JOURNAL_SUPERBLOCK_SIZE;
use uext4_ondisk::journal::{JournalDeviceError, JournalDeviceLayout, RawJournalSuperblock};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use crate::hidden::journal_superblock;
use crate::log::Log;
use crate::problem::Problem;
use crate::volume::Volume;

/// An external journal has no inode.
const NO_INODE: Ino = Ino(0);

/// Checks that `device` is the journal of the file system, and its superblocks.
pub(crate) fn journal(volume: &Volume<'_>, device: &dyn Device, log: &mut Log) {
    let bad = |why: String| Problem::JournalDevice { why };
    let mut bytes = [0; SUPERBLOCK_SIZE];
    if let Err(error) = device.read_at(SUPERBLOCK_OFFSET, &mut bytes) {
        return log.add(bad(format!("cannot be read: {error}")));
    }
    let layout = match JournalDeviceLayout::read(&bytes, device.len()) {
        Ok(layout) => layout,
        Err(error) => return log.add(bad(error.to_string())),
    };
    let mut bytes = [0; JOURNAL_SUPERBLOCK_SIZE];
    if let Err(error) = device.read_at(layout.superblock_offset(), &mut bytes) {
        return log.add(bad(format!("cannot be read: {error}")));
    }
    if let Ok(superblock) = RawJournalSuperblock::read(&bytes) {
        match layout.check(&superblock, &volume.sb) {
            Ok(()) => {}
            // e2fsck, which looks for others only, finds no fault in a journal without a user.
            Err(error @ JournalDeviceError::OtherUser { .. }) if superblock.users().len() <= 1 => {
                log.add(Problem::JournalDeviceUser { why: error.to_string() });
            }
            Err(error) => return log.add(bad(error.to_string())),
        }
    }
    journal_superblock(volume, NO_INODE, &bytes, layout.blocks.into(), log);
}
