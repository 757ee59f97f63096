//! The kernel must not replay a growth.
//!
//! It counts the groups before it replays the log, and uses that count until it is unmounted. A
//! mount that replays a growth would accept more data than fits into the old groups, and drop it.
//! So from before the commit of a growth until its superblock is in place, the superblock in place
//! names a journal device although the journal is an inode. The kernel refuses to mount that and
//! changes nothing. e2fsck and this engine do not look at the number if there is an inode.
//! Invariants: while the superblock in place is so, the log holds one that is not: a replay always
//! ends the refusal.
//! Kernel counterpart: `ext4_load_journal` in `fs/ext4/super.c`, which has had the check from the
//! beginning; it counts groups in `ext4_fill_super`.

use crate::error::{Error, Result};
use crate::file::FileContext;
use uext4_ondisk::RawSuperblock;
use uext4_ondisk::superblock::SUPERBLOCK_OFFSET;

/// A number that no device has.
const NO_DEVICE: u32 = 1;

/// Has the kernel refuse the file system until the superblock is checkpointed. There is a log.
///
/// A journal on a device of its own has no such way: there the number is a hint, and the kernel may
/// be told otherwise.
///
/// # Errors
/// Those of a commit and of a checkpoint; a device failure.
pub(super) fn keep_kernel_out(context: &FileContext) -> Result<()> {
    let journal = context.space.journal();
    let (buffer, at) = context.cache().superblock()?;
    let read = || RawSuperblock::from_prefix(&buffer.read()[at..]);
    if read().is_none_or(|raw| raw.s_journal_inum.get() == 0) {
        return Ok(());
    }
    // An empty log is far from a checkpoint, which would write the superblock.
    journal.commit_all()?;
    journal.checkpoint_all()?;
    journal.run(1, |handle| handle.write(&buffer).map(drop))?;
    journal.commit_all()?;
    let Some(mut raw) = read() else { return Ok(()) };
    raw.s_journal_dev.set(NO_DEVICE);
    raw.seal();
    let device = context.cache().device();
    let failed = |e| Error::io("writing the superblock", e);
    device.write_at(SUPERBLOCK_OFFSET, raw.bytes()).map_err(failed)?;
    device.flush().map_err(failed)
}
