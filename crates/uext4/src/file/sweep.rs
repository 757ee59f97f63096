//! Writeback: dirty pages to the device, then their mapping.
//!
//! What: a sweep writes back one inode; a group sweep many, whose data goes to the device in one
//! submission and whose mappings share handles.
//! Invariants: pages are written before the handle that makes them reachable starts (but for the
//! contrasts, see [`super::ordered`] and [`super::unwritten`]). The size that a handle sets is one
//! that was read before the pages were taken, so all data below it is on the device. Under its
//! sweep lock an inode's tree changes by nobody else.
//! Locking: sweep lock; no file lock, so callers go on writing meanwhile (pages are copied). A
//! group takes sweep locks by trying only: an inode that is being swept goes alone, afterwards.

use super::Files;
use super::batch::Part;
use crate::cache::Drain;
use crate::config::{FsyncBatch, WritebackMode};
use crate::error::Result;
use crate::inode::{Inode, InodeRef, SweepState, Turn};
use crate::plant::{self, Fault};
use std::time::Duration;
use uext4_ondisk::{FileBlock, FileKind};

/// Most inodes that are swept together.
const GROUP_INODES: usize = 256;
/// Files with more dirty pages go alone.
const GROUPED_PAGES: usize = 256;
/// Pages that a sweep of `fsync_batch=rescan` takes at a time, as the kernel's page vectors held.
const RESCAN_PAGES: usize = 15;

/// How far a shared sweep has brought an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swept {
    /// What was dirty is on the device and mapped.
    Written,
    /// And that is durable, as are the attributes that the caller asked for.
    Durable,
}

impl Files {
    /// Writes back everything of an inode that is dirty now. A failure is recorded for those who
    /// sync.
    ///
    /// # Errors
    /// A device failure; no space; an aborted journal. The pages stay dirty.
    pub fn sweep(&self, inode: &InodeRef) -> Result<()> {
        let mut state = inode.sweep();
        self.sweep_locked(inode, &mut state)
    }

    /// As [`Files::sweep`], but one sweep serves all callers that came before it began.
    pub(super) fn sweep_shared(&self, inode: &InodeRef, data_only: bool) -> Result<Swept> {
        if self.options.fsync_batch == FsyncBatch::Rescan {
            return self.sweep(inode).map(|()| Swept::Written);
        }
        let patience = Duration::from_micros(self.options.max_batch_time_us.into());
        match inode.flight().take_turn(self.space.journal().waits(), patience) {
            Turn::Served => Ok(Swept::Written),
            Turn::Leads(lead) => {
                if self.options.writeback == WritebackMode::Mapped {
                    return self.sweep_in_convoy(inode, data_only, lead);
                }
                self.sweep(inode)?;
                lead.succeed();
                Ok(Swept::Written)
            }
        }
    }

    pub(super) fn sweep_locked(&self, inode: &Inode, _lock: &mut SweepState) -> Result<()> {
        let rescans = self.options.fsync_batch == FsyncBatch::Rescan;
        let most = if rescans { RESCAN_PAGES } else { self.table.budget().batch_pages() };
        let mut from = FileBlock(0);
        loop {
            let part = self.take_batch(inode, from, most);
            let Some(&(last, _)) = part.pages.last() else {
                return self.catch_up_size(inode, part.size);
            };
            let is_last = part.is_last && !rescans;
            let mut parts = [part];
            let written = self.write_parts(&mut parts, false);
            self.end_parts(&parts, written.is_ok());
            written.inspect_err(|error| inode.errors.record(error.clone()))?;
            if is_last {
                return Ok(());
            }
            from = last.plus(1);
        }
    }

    /// Nothing is dirty below `size`: a size that waited for pages which were punched out since
    /// waits no longer.
    fn catch_up_size(&self, inode: &Inode, size: u64) -> Result<()> {
        if inode.attributes().disk_size >= size || plant::is(Fault::LateSize) {
            return Ok(());
        }
        let _pin = inode.table_block()?;
        self.space.journal().run(1, |handle| self.set_disk_size(inode, handle, size))
    }

    /// Writes and maps what was taken, one after the other as the mode wants it.
    pub(super) fn write_parts(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        self.plan_parts(parts)?;
        let mode = self.options.writeback;
        let (mut runs, mut late) = (Vec::new(), Vec::new());
        for part in &mut *parts {
            runs.append(&mut part.overwrites);
            if mode == WritebackMode::Mapped {
                let to = if plant::is(Fault::MappingBeforeData) { &mut late } else { &mut runs };
                to.extend(part.pending.iter_mut().map(|pending| pending.take_run()));
            }
        }
        self.write_runs(runs)?;
        self.note_written(parts);
        if mode == WritebackMode::Unwritten {
            self.write_and_convert(parts)?;
        }
        self.map_parts(parts, times)?;
        if plant::is(Fault::MappingBeforeData) {
            self.space.journal().commit_all()?;
        }
        self.write_runs(late)
    }

    /// What was written so far is covered by flushes that start now.
    pub(super) fn note_written(&self, parts: &[Part<'_>]) {
        let epoch = self.space.journal().flush_gate().epoch();
        for part in parts.iter().filter(|part| !part.pages.is_empty()) {
            part.inode.note_written(epoch);
        }
    }

    /// The pages are on the device and mapped (`done`), or dirty as before.
    fn end_parts(&self, parts: &[Part<'_>], done: bool) {
        let mut cleaned = 0;
        for part in parts.iter().filter(|part| !part.pages.is_empty()) {
            let mut pages = part.inode.pages();
            let (mut reserved, mut converting) = (pages.reserved, pages.converting);
            for (at, _) in &part.pages {
                let (was_reserved, converted) = pages.map.end_writeback(*at, done);
                reserved = reserved.saturating_sub(u32::from(was_reserved));
                converting = converting.saturating_sub(u32::from(converted));
            }
            // A smaller reservation cannot fail.
            let smaller = self.set_reservation(&mut pages, reserved, converting);
            debug_assert!(smaller.is_ok(), "a reservation grew by writeback");
            cleaned += part.pages.len();
        }
        if done && cleaned > 0 {
            self.table.budget().throttle().cleaned(cleaned);
        }
    }

    /// Writes back the inodes of a drain that `wants` picks, data and times. The first failure is
    /// the caller's; failures of data are recorded with their inodes, too.
    pub(super) fn write_back_drained(
        &self,
        drain: &Drain<'_>,
        wants: impl Fn(&InodeRef) -> bool,
    ) -> Result<()> {
        let mut result = Ok(());
        let mut group = Vec::new();
        let mut pages = 0;
        for &ino in drain.inodes() {
            // One that has left memory was clean.
            let Some(inode) = self.table.find(ino) else { continue };
            inode.dirty.take();
            self.fold_direct_times(&inode);
            if !wants(&inode) {
                mark_if_dirty(&inode);
                continue;
            }
            let dirty = inode.pages().map.dirty();
            if dirty > GROUPED_PAGES {
                self.keep_first(&mut result, self.write_back_one(&inode));
                mark_if_dirty(&inode);
                continue;
            }
            pages += dirty;
            group.push(inode);
            if group.len() == GROUP_INODES || pages >= self.table.budget().batch_pages() {
                self.keep_first(&mut result, self.sweep_group(&group));
                group.drain(..).for_each(|inode| mark_if_dirty(&inode));
                pages = 0;
            }
        }
        self.keep_first(&mut result, self.sweep_group(&group));
        group.iter().for_each(mark_if_dirty);
        result
    }

    pub(super) fn keep_first(&self, first: &mut Result<()>, next: Result<()>) {
        if first.is_ok() {
            *first = next;
        } else {
            self.watch_dropped(next);
        }
    }

    fn write_back_one(&self, inode: &InodeRef) -> Result<()> {
        if inode.kind() == FileKind::Regular {
            self.sweep(inode)?;
        }
        self.write_times(inode)
    }

    /// Writes back inodes, in groups of a size that suits.
    pub(super) fn write_back_group(&self, inodes: &[InodeRef]) -> Result<()> {
        let mut result = Ok(());
        for group in inodes.chunks(GROUP_INODES / 4) {
            self.keep_first(&mut result, self.sweep_group(group));
        }
        result
    }

    /// Writes back data and times of several inodes together.
    fn sweep_group(&self, inodes: &[InodeRef]) -> Result<()> {
        let alone = self.sweep_those_free(inodes);
        let mut result = Ok(());
        for inode in alone {
            self.keep_first(&mut result, self.write_back_one(inode));
        }
        result
    }

    /// Sweeps those that nobody else sweeps. Returns what is left: these, and all if something
    /// failed, since whose failure it is shows when each goes alone.
    pub(super) fn sweep_those_free<'a>(&self, inodes: &'a [InodeRef]) -> Vec<&'a InodeRef> {
        let mut alone = Vec::new();
        let (mut locks, mut parts) = (Vec::new(), Vec::new());
        for inode in inodes {
            if inode.kind() != FileKind::Regular {
                parts.push(Part::of_attributes(inode));
                continue;
            }
            let Some(lock) = inode.try_sweep() else {
                alone.push(inode);
                continue;
            };
            let part = self.take_batch(inode, FileBlock(0), 2 * GROUPED_PAGES);
            if !part.is_last {
                alone.push(inode);
            }
            locks.push(lock);
            parts.push(part);
        }
        let written = self.write_parts(&mut parts, true);
        self.end_parts(&parts, written.is_ok());
        match written {
            Ok(()) => alone,
            Err(error) => {
                self.watch_dropped::<()>(Err(error));
                inodes.iter().collect()
            }
        }
    }
}

fn mark_if_dirty(inode: &InodeRef) {
    if inode.is_dirty() {
        inode.dirty.set();
    }
}
