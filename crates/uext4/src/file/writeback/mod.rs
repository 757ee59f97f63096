//! Writeback: dirty pages to the device, then their mapping.
//!
//! What: a writeback pass takes dirty pages of one inode, or of a group of inodes, allocates blocks
//! for them, writes their data in one submission, inserts the mappings, and then ends the writeback
//! of the pages. docs/writeback.md draws the states that a page goes through.
//! Invariants: pages are written before the handle that makes them reachable starts (unless an
//! ablation chooses otherwise). The size that a handle sets was read before the pages were taken,
//! so all data below it is on the device. The writeback lock keeps other threads from changing the
//! tree of the inode.
//! Locking: the caller holds the writeback lock of each inode. No file lock is taken, so callers go
//! on writing meanwhile; pages are copied then.

mod batch;
mod mapping;

pub(super) use batch::{DataRun, Part, Pending, PendingBlocks, take_overwrites};
pub(super) use mapping::{HandlePlan, Item};

use super::ablation::Ablations;
use super::placement::Placement;
use super::reserve::Need;
use super::{block_from, block_size};
use crate::alloc::Space;
use crate::cache::PageBudget;
use crate::config::MountOptions;
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::inode::{Inode, WritebackState};
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::FileBlock;

/// Writes dirty pages back.
#[derive(Debug)]
pub(super) struct Writeback {
    space: Arc<Space>,
    budget: Arc<PageBudget>,
    placement: Arc<Placement>,
    ablations: Ablations,
    /// A block of zeroes.
    zeroes: Arc<[u8]>,
    /// Conversions are widened to small unwritten neighbours, which are zeroed.
    widens: bool,
    widen_bytes_max: u64,
    /// Flushes are wanted.
    barrier: bool,
}

/// The parts of a volume that writeback uses.
pub(super) struct Shared {
    pub(super) space: Arc<Space>,
    pub(super) budget: Arc<PageBudget>,
    pub(super) placement: Arc<Placement>,
    pub(super) ablations: Ablations,
    pub(super) zeroes: Arc<[u8]>,
}

impl Writeback {
    pub(super) fn new(shared: Shared, options: &MountOptions) -> Self {
        let Shared { space, budget, placement, ablations, zeroes } = shared;
        // The zeroes must be durable before the mapping, because no page hides what a block held.
        let widens = !options.journal_async_commit && ablations.writes_before_mapping();
        let widen_bytes_max = options.extent_max_zeroout.into();
        let barrier = options.barrier;
        Self { space, budget, placement, ablations, zeroes, widens, widen_bytes_max, barrier }
    }

    /// Writes back everything of an inode that is dirty now. A failure is also recorded with the
    /// inode.
    ///
    /// # Errors
    /// A device failure; no space; an aborted journal. The pages stay dirty.
    pub(super) fn write_back(&self, inode: &Inode, _lock: &mut WritebackState) -> Result<()> {
        if let Some(ablated) = self.ablations.write_back(self, inode) {
            return ablated;
        }
        let most = self.budget.batch_pages();
        let mut from = FileBlock(0);
        loop {
            let part = self.take(inode, from, most);
            let Some(&(last, _)) = part.pages.last() else {
                return self.catch_up_size(inode, part.size);
            };
            let is_last = part.is_last;
            self.write_part(part)?;
            if is_last {
                return Ok(());
            }
            from = last.plus(1);
        }
    }

    /// Runs a pass over one part.
    pub(super) fn write_part(&self, part: Part<'_>) -> Result<()> {
        let mut parts = [part];
        let written = self.pass(&mut parts, false);
        written.inspect_err(|error| parts[0].inode.errors.record(error.clone()))
    }

    /// Runs a pass over parts whose pages have been taken. With `times` also brings lazy timestamps
    /// into a transaction. After a failure the pages are dirty again.
    pub(super) fn pass(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        let written = self.write_and_map(parts, times);
        self.end(parts, written.is_ok());
        written
    }

    fn write_and_map(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        self.allocate(parts)?;
        self.write_allocated(parts, times)
    }

    /// The rest of a pass whose parts have blocks, without its end: for parts that are not pages
    /// of the cache.
    pub(super) fn write_allocated(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        let journal = self.space.journal();
        if journal.is_aborted() && parts.iter().any(|part| !part.pending.is_empty()) {
            // Nothing can map these blocks any more, and their allocation may be what is broken.
            return Err(journal.aborted_error());
        }
        if let Some(ablated) = self.ablations.write_and_map(self, parts, times) {
            return ablated;
        }
        if Fault::MappingBeforeData.is_injected() {
            return self.map_before_data(parts, times);
        }
        let mut runs = take_overwrites(parts);
        if !Fault::SkippedData.is_injected() {
            take_new(parts, &mut runs);
        }
        // Changes under a lock that this does not hold; a wrong look costs a flush, or saves none.
        let for_sync = parts.iter().any(|part| part.inode.in_sync_pass.load(Ordering::Relaxed));
        self.write_runs(runs, for_sync)?;
        self.note_written(parts);
        self.map(parts, times)
    }

    /// The injected fault: the mappings are durable before the data is written.
    fn map_before_data(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        self.write_runs(take_overwrites(parts), false)?;
        let mut new = Vec::new();
        take_new(parts, &mut new);
        self.note_written(parts);
        self.map(parts, times)?;
        self.space.journal().commit_all()?;
        self.write_runs(new, false)
    }

    /// Notes that a flush which starts now covers the data of these parts.
    pub(super) fn note_written(&self, parts: &[Part<'_>]) {
        let epoch = self.space.journal().flush_gate().epoch();
        for part in parts.iter().filter(|part| !part.pages.is_empty()) {
            part.inode.note_written(epoch);
        }
    }

    /// Ends the writeback of the pages of all parts: they are on the device and mapped (`done`), or
    /// become dirty again.
    fn end(&self, parts: &[Part<'_>], done: bool) {
        let mut cleaned = 0;
        for part in parts.iter().filter(|part| !part.pages.is_empty()) {
            let mut pages = part.inode.pages();
            let mut ended = Need::default();
            for (at, _) in &part.pages {
                let (was_reserved, converted) = pages.map.end_writeback(*at, done);
                if was_reserved {
                    ended.units += pages.clusters.remove(*at, true);
                    ended.pages += 1;
                }
                ended.conversions += u32::from(converted);
            }
            pages.unreserve(ended);
            cleaned += part.pages.len();
        }
        if done && cleaned > 0 {
            self.budget.throttle().cleaned(cleaned);
        }
    }

    /// Brings `size`, below which no page is dirty, to the inode table. Pages that would have
    /// brought it may have been punched out.
    pub(super) fn catch_up_size(&self, inode: &Inode, size: u64) -> Result<()> {
        if inode.attributes().disk_size >= size || Fault::LateSize.is_injected() {
            return Ok(());
        }
        let _pin = inode.table_block()?;
        self.space.journal().run(1, |handle| self.set_disk_size(inode, handle, size))
    }

    pub(super) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    pub(super) fn block_size(&self) -> u64 {
        block_size(&self.space)
    }

    fn block_from(&self, offset: u64) -> FileBlock {
        block_from(&self.space, offset)
    }
}

/// Adds the data of all parts that goes to blocks which are not mapped as written yet to `runs`.
fn take_new(parts: &mut [Part<'_>], runs: &mut Vec<DataRun>) {
    for part in parts {
        runs.extend(part.pending.iter_mut().map(Pending::take_run));
    }
}
