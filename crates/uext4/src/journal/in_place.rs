//! A journal without a log: the file system has none.
//!
//! What: transactions gather changes, close and are sealed as with a log. In place of the log the
//! committing thread writes the blocks to their final locations, in one call, and flushes once.
//! There is nothing to checkpoint, to revoke or to replay.
//! Invariants: a transaction holds its buffers until its writes have ended, so no block leaves
//! memory while its newest content is nowhere else. Freed blocks are reused only when the freeing
//! transaction is on the device, so an allocated block never belongs to two files there.
//! Not promised: a crash during the writes leaves any part of them. The superblock says meanwhile
//! that the file system was not closed cleanly, so e2fsck repairs it.
//! Kernel counterpart: the parts of `fs/ext4/ext4_jbd2.c` for `!ext4_handle_valid`.

use super::Journal;
use super::checkpoint::write_in_place;
use super::locate::LogLocation;
use super::log::LogMap;
use super::record::RecordFormat;
use crate::cache::{Cache, Snapshot};
use crate::config::{DataMode, MountOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::sync::stage;
use std::sync::Arc;
use uext4_ondisk::Tid;
use uext4_ondisk::journal::superblock::RawJournalSuperblock;

/// Size of a log for which transactions would be as large: 128 MiB, as mke2fs makes for most
/// devices. The memory of the volume bounds them further.
pub(super) const AS_LARGE_AS_LOG: u32 = 32 << 10;

impl Journal {
    /// The journal of a file system without a log. The device has not changed; [`Journal::begin`]
    /// must follow.
    ///
    /// # Errors
    /// Options that need a log.
    pub fn without_log(
        cache: &Arc<Cache>,
        options: &MountOptions,
        images_max: usize,
    ) -> Result<Arc<Self>> {
        check_options(options)?;
        let block_size = cache.block_size();
        let nowhere = LogLocation::default();
        let map = LogMap::new(cache.device(), block_size, nowhere, 0, AS_LARGE_AS_LOG);
        let superblock = RawJournalSuperblock::zeroed();
        let format = RecordFormat::new(superblock.format(), 0);
        let config = options.clone();
        Ok(Self::assemble(cache, config, images_max, map, format, superblock, Tid(1)))
    }

    /// Whether transactions go to a log. If not, they are written to their final locations.
    #[must_use]
    pub fn has_log(&self) -> bool {
        !self.map.is_empty()
    }

    /// Free blocks and inodes according to the bitmaps on the device. The journal is closed.
    pub(crate) fn final_free(&self) -> Option<(u64, u32)> {
        self.free_space_hooks().map(|space| space.journaled_free())
    }

    /// Writes sealed images to their final locations. They are durable when this returns, and so is
    /// the data that was written before.
    pub(super) fn write_without_log(&self, images: &mut [Snapshot]) -> Result<()> {
        images.sort_unstable_by_key(|snapshot| snapshot.block);
        stage("metadata write");
        write_in_place(&self.cache, images, |snapshot| (snapshot.block, &snapshot.image))?;
        stage("metadata flush");
        if Fault::SkippedBarrier.is_injected() {
            return Ok(());
        }
        self.flush.cover(self.flush.epoch())
    }
}

/// Refuses options that would promise what only a log can keep.
fn check_options(options: &MountOptions) -> Result<()> {
    let refused = match options {
        _ if options.data_mode == DataMode::Journal => "data=journal",
        _ if options.journal_async_commit => "journal_async_commit",
        _ => return Ok(()),
    };
    let why = format!("mount option '{refused}': the file system has no journal");
    Err(Error::new(ErrorKind::InvalidArgument, why))
}
