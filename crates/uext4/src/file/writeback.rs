//! Writeback: dirty pages to the device, then their mapping.
//!
//! What: a writeback pass writes back one inode, or a group of them, whose data goes to the device
//! in one submission and whose mappings share handles. Each pass takes pages, allocates blocks,
//! writes the data, inserts the mappings, and then ends the writeback of the pages.
//! Invariants: pages are written before the handle that makes them reachable starts (unless an
//! ablation chooses otherwise). The size that a handle sets was read before the pages were taken,
//! so all data below it is on the device. The writeback lock keeps other threads from changing the
//! tree of the inode.
//! Locking: writeback lock. No file lock, so callers go on writing meanwhile; pages are copied
//! then. A group only tries writeback locks: an inode whose lock is busy is written back alone,
//! afterwards.

use super::Files;
use super::batch::{DataRun, Part, Pending, take_overwrites};
use crate::cache::Drain;
use crate::error::Result;
use crate::inode::{Inode, InodeRef, Joined, WritebackState};
use crate::plant::{self, Fault};
use std::time::Duration;
use uext4_ondisk::{FileBlock, FileKind};

/// Most inodes of a group.
const GROUP_INODES: usize = 256;
/// Files with more dirty pages are written back alone.
const GROUPED_PAGES: usize = 256;

/// How far a shared pass has brought an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// What was dirty is on the device and mapped.
    Written,
    /// It is also durable, as are the attributes that the caller asked for.
    Durable,
}

impl Files {
    /// Writes back everything of an inode that is dirty now. A failure is also recorded for open
    /// files that sync later.
    ///
    /// # Errors
    /// A device failure; no space; an aborted journal. The pages stay dirty.
    pub fn write_back(&self, inode: &InodeRef) -> Result<()> {
        let mut state = inode.writeback();
        self.write_back_locked(inode, &mut state)
    }

    /// Writes an inode back for a sync. One pass serves all callers that came before it began, and
    /// may serve syncs of other inodes as well.
    pub(super) fn write_back_shared(
        &self,
        inode: &InodeRef,
        data_only: bool,
    ) -> Result<Persistence> {
        if let Some(ablated) = self.ablations.write_back_for_sync(self, inode) {
            return ablated;
        }
        match self.join_writeback(inode) {
            Joined::Served => Ok(Persistence::Written),
            Joined::Leads(lead) => self.write_back_grouped(inode, data_only, lead),
        }
    }

    /// Joins the callers that sync an inode: waits for a pass of another one, or leads a pass.
    pub(super) fn join_writeback<'a>(&self, inode: &'a Inode) -> Joined<'a> {
        let patience = Duration::from_micros(self.options.max_batch_time_us.into());
        inode.flight().join(self.space.journal().waits(), patience)
    }

    /// As [`Files::write_back`]. The caller holds the writeback lock.
    pub(super) fn write_back_locked(
        &self,
        inode: &Inode,
        _lock: &mut WritebackState,
    ) -> Result<()> {
        if let Some(ablated) = self.ablations.write_back_locked(self, inode) {
            return ablated;
        }
        let most = self.table.budget().batch_pages();
        let mut from = FileBlock(0);
        loop {
            let part = self.take_batch(inode, from, most);
            let Some(&(last, _)) = part.pages.last() else {
                return self.catch_up_size(inode, part.size);
            };
            let is_last = part.is_last;
            self.write_back_part(part)?;
            if is_last {
                return Ok(());
            }
            from = last.plus(1);
        }
    }

    /// Writes and maps the pages of one part, and ends their writeback.
    pub(super) fn write_back_part(&self, part: Part<'_>) -> Result<()> {
        let mut parts = [part];
        let written = self.write_parts(&mut parts, false);
        self.end_parts(&parts, written.is_ok());
        written.inspect_err(|error| parts[0].inode.errors.record(error.clone()))
    }

    /// Brings `size`, below which no page is dirty, to the inode table. Pages that would have
    /// brought it may have been punched out.
    pub(super) fn catch_up_size(&self, inode: &Inode, size: u64) -> Result<()> {
        if inode.attributes().disk_size >= size || plant::is(Fault::LateSize) {
            return Ok(());
        }
        let _pin = inode.table_block()?;
        self.space.journal().run(1, |handle| self.set_disk_size(inode, handle, size))
    }

    /// Finds places for the pages that were taken, writes them, and then maps them. With `times`
    /// also brings lazy timestamps into a transaction.
    pub(super) fn write_parts(&self, parts: &mut [Part<'_>], times: bool) -> Result<()> {
        self.plan_parts(parts)?;
        if let Some(ablated) = self.ablations.write_and_map(self, parts, times) {
            return ablated;
        }
        let mut runs = take_overwrites(parts);
        let pending = parts.iter_mut().flat_map(|part| &mut part.pending);
        let new: Vec<DataRun> = pending.map(Pending::take_run).collect();
        if plant::is(Fault::MappingBeforeData) {
            self.write_runs(runs)?;
            self.note_written(parts);
            self.map_parts(parts, times)?;
            self.space.journal().commit_all()?;
            return self.write_runs(new);
        }
        runs.extend(new);
        self.write_runs(runs)?;
        self.note_written(parts);
        self.map_parts(parts, times)
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

    /// Writes back the inodes of a drain that `wants` picks, data and times. Returns the first
    /// failure; failures of data are recorded with their inodes as well.
    pub(super) fn write_back_drained(
        &self,
        drain: &Drain<'_>,
        wants: impl Fn(&InodeRef) -> bool,
    ) -> Result<()> {
        let mut result = Ok(());
        let mut group = Vec::new();
        let mut pages = 0;
        for &ino in drain.inodes() {
            // An inode that has left memory was clean.
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
                self.keep_first(&mut result, self.write_back_group(&group));
                group.drain(..).for_each(|inode| mark_if_dirty(&inode));
                pages = 0;
            }
        }
        self.keep_first(&mut result, self.write_back_group(&group));
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
            self.write_back(inode)?;
        }
        self.write_times(inode)
    }

    /// Writes back inodes in groups of a suitable size.
    pub(super) fn write_back_in_groups(&self, inodes: &[InodeRef]) -> Result<()> {
        let mut result = Ok(());
        for group in inodes.chunks(GROUP_INODES / 4) {
            self.keep_first(&mut result, self.write_back_group(group));
        }
        result
    }

    /// Writes back data and times of several inodes together.
    fn write_back_group(&self, inodes: &[InodeRef]) -> Result<()> {
        let alone = self.try_write_back_group(inodes);
        let mut result = Ok(());
        for inode in alone {
            self.keep_first(&mut result, self.write_back_one(inode));
        }
        result
    }

    /// Writes back, as one group, the inodes whose writeback lock is free. Returns the others. If
    /// anything fails it returns all of them, because writing each back alone shows which one
    /// fails.
    pub(super) fn try_write_back_group<'a>(&self, inodes: &'a [InodeRef]) -> Vec<&'a InodeRef> {
        let mut alone = Vec::new();
        let (mut locks, mut parts) = (Vec::new(), Vec::new());
        for inode in inodes {
            if inode.kind() != FileKind::Regular {
                parts.push(Part::of_attributes(inode));
                continue;
            }
            let Some(lock) = inode.try_writeback() else {
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
