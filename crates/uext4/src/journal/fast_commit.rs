//! Fast commits that a kernel left: read behind the log, and their outcome written to the log as an
//! ordinary transaction.
//!
//! What: after the replay of the log [`LeftFastCommits::read`] reads what is behind it. The volume
//! works out which blocks the records change, and [`LeftFastCommits::log`] makes them the
//! transaction that the records belong to. The next replay finds that transaction; then the fast
//! commits are of an older one, and mean nothing.
//! Invariants: **until the first block of the transaction is durable, a recovery repeats the fast
//! commits; from then on it replays the transaction** (docs/journal.md, J17). So the place is
//! emptied first, the log begins there, the rest of the transaction is durable before its first
//! block is written, and that block is written alone.
//! Kernel counterpart: `fs/jbd2/recovery.c` (`fc_do_one_pass`).

use super::locate::LogLocation;
use super::log::LogMap;
use super::record::RecordFormat;
use crate::cache::{BlockKind, Snapshot};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::stage;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use uext4_device::{OverlayDevice, SharedDevice};
use uext4_ondisk::journal::fast_commit::{Record, Scan};
use uext4_ondisk::journal::replay::ReplayPlan;
use uext4_ondisk::journal::superblock::{JournalLayout, RawJournalSuperblock};
use uext4_ondisk::{BlockNo, Tid};

/// Fast commits behind a log that has been replayed and not emptied.
#[derive(Debug)]
pub struct LeftFastCommits {
    /// Their records, in order.
    pub records: Vec<Record>,
    /// Number of fast commits.
    pub commits: u32,
    location: LogLocation,
    layout: JournalLayout,
    superblock: RawJournalSuperblock,
    /// The transaction that they belong to.
    tid: Tid,
    /// The log block where it will be written.
    at: u32,
    last_commit_secs: u64,
}

impl LeftFastCommits {
    /// Reads the fast commits behind the transactions of `plan`. `None` if there are none.
    ///
    /// # Errors
    /// Features that are not known; a device failure.
    pub(super) fn read(
        map: &LogMap,
        location: &LogLocation,
        layout: &JournalLayout,
        superblock: &RawJournalSuperblock,
        plan: &ReplayPlan,
        inode_size: u32,
    ) -> Result<Option<Self>> {
        // The plan skips a number behind the last transaction.
        let tid = Tid(plan.next_tid.get().wrapping_sub(1));
        let mut scan = Scan::new(tid, inode_size);
        let mut bytes = vec![0; layout.format.block_size as usize];
        for block in layout.fast_commits.clone() {
            map.read(block, &mut bytes)?;
            let goes_on = scan
                .block(&bytes)
                .map_err(|unknown| Error::new(ErrorKind::RefusedFeatures, unknown.to_string()))?;
            if !goes_on {
                break;
            }
        }
        let (records, commits) = scan.finish();
        Ok((!records.is_empty()).then(|| Self {
            records,
            commits,
            location: location.clone(),
            layout: layout.clone(),
            superblock: *superblock,
            tid,
            at: plan.next_log_block,
            last_commit_secs: plan.last_commit_secs,
        }))
    }

    fn map(&self, device: &SharedDevice, location: LogLocation) -> LogMap {
        let block_size = self.layout.format.block_size as usize;
        LogMap::new(device, block_size, location, self.layout.first, self.layout.end)
    }

    /// Blocks that transactions may take.
    #[must_use]
    pub fn log_blocks(&self) -> u32 {
        self.layout.end.saturating_sub(self.layout.first)
    }

    /// Whether a block belongs to the journal.
    #[must_use]
    pub fn is_of_journal(&self, block: BlockNo) -> bool {
        let holds = |&(_, start, len): &(u32, BlockNo, u32)| {
            (start.get()..start.get() + u64::from(len)).contains(&block.get())
        };
        self.location.own_runs().iter().any(holds)
    }

    /// Makes the journal of a copy of the device an empty one. Returns a copy of the journal
    /// device, if there is one.
    ///
    /// # Errors
    /// A device failure.
    pub fn empty_journal_of(&self, copy: &SharedDevice) -> Result<Option<SharedDevice>> {
        let mut superblock = self.superblock;
        superblock.s_start.set(0);
        superblock.s_sequence.set(self.tid.get());
        let mut location = self.location.clone();
        location.device = location.device.map(|log| Arc::new(OverlayDevice::new(log)) as _);
        let apart = location.device.clone();
        self.map(copy, location).write_superblock(&mut superblock, false)?;
        Ok(apart)
    }

    /// Writes the blocks that the records change to the log.
    ///
    /// # Errors
    /// `NeedsRecovery` if the log has no room for them; a device failure.
    pub fn log(&self, device: &SharedDevice, changed: Vec<(BlockNo, Arc<[u8]>)>) -> Result<()> {
        let map = self.map(device, self.location.clone());
        let format = RecordFormat::new(self.layout.format, self.last_commit_secs);
        let kind = BlockKind::Plain;
        let images: Vec<Snapshot> = changed
            .into_iter()
            .map(|(block, image)| Snapshot { block, kind, unsealed: 0, image })
            .collect();
        if format.blocks_needed(images.len(), 0) >= map.len() {
            let why = "the outcome of the fast commits is larger than the log; run e2fsck";
            return Err(Error::new(ErrorKind::NeedsRecovery, why));
        }
        let flush = || {
            map.flush_apart()?;
            device.flush().map_err(|e| Error::io("flushing the fast commits", e))
        };
        let block_size = self.layout.format.block_size as usize;
        stage("fast commits: empty");
        // Something of a transaction that was not committed may be there.
        map.write_block(self.at, &vec![0; block_size], true)?;
        let mut superblock = self.superblock;
        superblock.s_start.set(self.at);
        superblock.s_sequence.set(self.tid.get());
        map.write_superblock(&mut superblock, true)?;
        stage("fast commits: write");
        let commit = format.commit_block(self.tid);
        let mut blocks = format.encode(self.tid, &images, &BTreeSet::new());
        blocks.push(Cow::Owned(commit));
        let views: Vec<&[u8]> = blocks.iter().skip(1).map(|block| &**block).collect();
        map.write(map.after(self.at, 1), &views, false)?;
        flush()?;
        stage("fast commits: first block");
        map.write_block(self.at, &blocks[0], true)?;
        stage("");
        Ok(())
    }
}
