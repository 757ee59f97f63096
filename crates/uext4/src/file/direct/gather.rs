//! Direct writes that change more than bytes: many at a time.
//!
//! What: writes that extend, that fill holes or unwritten ranges, or that meet cached pages. What
//! is given together is done together: inodes share device writes, and handles, of up to 64
//! mappings each. Blocks are reserved and allocated as for dirty pages; the bytes never become
//! pages.
//! Invariants: all data is on the device before the handle that maps it starts. Of writes that
//! overlap, the one that was given later is done later. Pages of the range are gone before, and
//! none comes while the file is held.
//! Locking: the files exclusively, by inode number; then, for a group, sweep locks by trying, as a
//! group sweep does. Room is made, and waited for, with file locks held only.

use super::super::Files;
use super::super::batch::Part;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::inode::{Excluded, Inode, InodeRef, Overwrites, SweepState};
use crate::sync::MutexGuard;
use std::sync::Arc;
use uext4_device::WriteRun;
use uext4_ondisk::{FileBlock, InodeFlags};

/// Most bytes of one write that go together with others.
const CHUNK_BYTES: u64 = 1 << 20;
/// Most writes that go together.
const GROUP_WRITES: usize = 64;

/// One write, and what has come of it.
#[derive(Debug)]
pub(super) struct Write<'a> {
    inode: &'a InodeRef,
    offset: u64,
    data: &'a [u8],
    durable: bool,
    done: usize,
    result: Option<Result<()>>,
}

impl<'a> Write<'a> {
    pub(super) fn new(inode: &'a InodeRef, offset: u64, data: &'a [u8], durable: bool) -> Self {
        Self { inode, offset, data, durable, done: 0, result: None }
    }

    /// Bytes written; an error that came after the first of them is not told.
    pub(super) fn into_result(self) -> Result<usize> {
        match self.result {
            Some(Err(error)) if self.done == 0 => Err(error),
            _ => Ok(self.done),
        }
    }

    fn is_open(&self) -> bool {
        self.result.is_none()
    }

    /// The part that is next.
    fn chunk(&self) -> Chunk<'a> {
        let offset = self.offset + self.done as u64;
        let most = CHUNK_BYTES - offset % CHUNK_BYTES;
        let len = (self.data.len() - self.done).min(most as usize);
        Chunk { inode: self.inode, offset, data: &self.data[self.done..self.done + len] }
    }
}

/// What is written of one write in one round.
#[derive(Clone, Copy, Debug)]
struct Chunk<'a> {
    inode: &'a InodeRef,
    offset: u64,
    data: &'a [u8],
}

impl Chunk<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// What the chunks of one inode come to.
struct Plan<'a> {
    inode: &'a Inode,
    /// Over holes and unwritten blocks: whole blocks.
    pages: Vec<(FileBlock, Arc<[u8]>)>,
    /// Over written ones: byte of the device, and what goes there.
    plain: Vec<(u64, &'a [u8])>,
    holes: u32,
    unwritten: u32,
    end: u64,
}

impl Files {
    /// Does all the writes; each then has its result. The caller holds no lock.
    pub(super) fn write_gathered(&self, writes: &mut [Write<'_>]) {
        while writes.iter().any(Write::is_open) {
            let round = self.choose(writes);
            self.direct.groups.add(1);
            self.direct.grouped.add(round.len() as u64);
            self.write_round(writes, &round);
        }
        for write in writes.iter_mut().filter(|write| write.done > 0) {
            let is_sync = write.inode.attributes().flags.contains(InodeFlags::SYNC);
            if !is_sync && !write.durable {
                continue;
            }
            if let Err(error) = self.sync(write.inode, !is_sync) {
                write.done = 0;
                write.result = Some(Err(error));
            }
        }
    }

    /// The next writes that can go together: none overlaps another, or one that came before it and
    /// has to wait.
    fn choose(&self, writes: &[Write<'_>]) -> Vec<usize> {
        let mut seen: Vec<(u32, FileBlock, FileBlock)> = Vec::new();
        let mut chosen = Vec::new();
        for (index, write) in writes.iter().enumerate().filter(|(_, write)| write.is_open()) {
            let rest = write.offset + write.data.len() as u64;
            let (first, end) = (self.block_at(write.chunk().offset), self.block_from(rest));
            let ino = write.inode.ino().get();
            let is_free = |&(other, from, to): &(u32, FileBlock, FileBlock)| {
                other != ino || to <= first || from >= end
            };
            if seen.iter().all(is_free) && chosen.len() < GROUP_WRITES {
                chosen.push(index);
            }
            seen.push((ino, first, end));
        }
        chosen.sort_by_key(|&index| (writes[index].inode.ino(), writes[index].chunk().offset));
        chosen
    }

    fn write_round(&self, writes: &mut [Write<'_>], round: &[usize]) {
        let mut inodes: Vec<&InodeRef> = round.iter().map(|&index| writes[index].inode).collect();
        inodes.dedup_by_key(|inode| inode.ino());
        let _exclusive: Vec<_> = inodes.iter().map(|inode| inode.lock().write()).collect();
        let mut ready = Vec::with_capacity(round.len());
        for &index in round {
            let chunk = writes[index].chunk();
            match self.check_write(&chunk) {
                Ok(()) if self.is_journaled(chunk.inode) => {
                    let written = self.write_locked(chunk.inode, chunk.offset, chunk.data);
                    note(&mut writes[index], chunk.data.len(), written);
                }
                Ok(()) => ready.push((index, chunk)),
                Err(error) => writes[index].result = Some(Err(error)),
            }
        }
        let chunks: Vec<Chunk<'_>> = ready.iter().map(|(_, chunk)| *chunk).collect();
        if chunks.len() > 1 && matches!(self.write_chunks(&chunks, false), Ok(true)) {
            for (index, chunk) in ready {
                note(&mut writes[index], chunk.data.len(), Ok(chunk.data.len()));
            }
            return;
        }
        // Whose failure it is shows when each goes alone.
        for (index, chunk) in ready {
            let written = self.write_alone(chunk);
            note(&mut writes[index], chunk.data.len(), written);
        }
    }

    fn check_write(&self, chunk: &Chunk<'_>) -> Result<()> {
        self.check_changeable(chunk.inode)?;
        self.check_end(chunk.end())?;
        self.check_append_only(chunk.inode, chunk.offset, chunk.data)?;
        self.finish_cut_before(chunk.inode, chunk.end())?;
        if self.is_journaled(chunk.inode) {
            return Ok(());
        }
        if chunk.inode.overwrites_to_be().is_cached() {
            self.direct.cached.add(u64::from(!chunk.inode.pages().map.is_empty()));
            self.drop_pages(
                chunk.inode,
                self.block_at(chunk.offset),
                self.block_from(chunk.end()),
            )?;
        }
        Ok(())
    }

    /// Writes `data` at byte `offset` past the page cache, or as much of it as there is space for;
    /// at least one block, or it fails. The caller holds the file exclusively.
    pub(in crate::file) fn write_past_cache(
        &self,
        inode: &InodeRef,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        self.write_alone(Chunk { inode, offset, data })
    }

    /// Writes a chunk, or as much of it as there is space for. The caller holds the file.
    fn write_alone(&self, mut chunk: Chunk<'_>) -> Result<usize> {
        let mut swept = false;
        loop {
            let releases = self.space.releases();
            match self.write_chunks(&[chunk], true) {
                Ok(_) => return Ok(chunk.data.len()),
                Err(error) if *error.kind() == ErrorKind::NoSpace => {
                    // As a buffered write that finds no space.
                    if self.space.discard_preallocations() {
                    } else if !swept {
                        self.watch_dropped(self.delete_unlinked());
                        self.sweep_everything();
                        swept = true;
                    } else if !self.space.reclaim_blocks(releases)? {
                        let half = chunk.offset + chunk.data.len() as u64 / 2;
                        let len = (half - half % self.block_size()).saturating_sub(chunk.offset);
                        if len == 0 {
                            return Err(error);
                        }
                        chunk.data = &chunk.data[..len as usize];
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes chunks, ordered by inode and offset, all or none as far as mappings and sizes go.
    /// False: it does not `wait`, and an inode is being swept.
    fn write_chunks(&self, chunks: &[Chunk<'_>], waits: bool) -> Result<bool> {
        let _excluded = self.exclude_in_place(chunks)?;
        let mut plans = Vec::new();
        for chunks in chunks.chunk_by(|a, b| a.inode.ino() == b.inode.ino()) {
            plans.push(self.plan_chunks(chunks)?);
        }
        for at in 0..plans.len() {
            if let Err(error) = self.reserve_plan(&plans[at], true) {
                plans[..at].iter().for_each(|plan| self.unreserve_plan(plan));
                return Err(error);
            }
        }
        let written = self.write_plans(&mut plans, waits);
        plans.iter().for_each(|plan| self.unreserve_plan(plan));
        written
    }

    /// Keeps others' writes in place out of blocks that are to be written in part: there may be
    /// zeroes around what is written.
    fn exclude_in_place<'a>(&self, chunks: &[Chunk<'a>]) -> Result<Vec<Excluded<'a>>> {
        let is_whole = |at: u64| at.is_multiple_of(self.block_size());
        let meets_some = |chunk: &&Chunk<'_>| {
            let overwrites = chunk.inode.overwrites();
            overwrites.is_some_and(Overwrites::allows_in_place)
                && !(is_whole(chunk.offset) && is_whole(chunk.end()))
        };
        let exclude = |chunk: &Chunk<'a>| {
            let (first, end) = (self.block_at(chunk.offset), self.block_from(chunk.end()));
            chunk.inode.exclude_direct(first, end)
        };
        chunks.iter().filter(meets_some).map(exclude).collect()
    }

    fn plan_chunks<'a>(&self, chunks: &[Chunk<'a>]) -> Result<Plan<'a>> {
        let inode: &Inode = chunks[0].inode;
        let mut plan = Plan {
            inode,
            pages: Vec::new(),
            plain: Vec::new(),
            holes: 0,
            unwritten: 0,
            end: chunks.iter().map(Chunk::end).max().unwrap_or(0),
        };
        for chunk in chunks {
            let before = (plan.holes, plan.unwritten);
            self.plan_chunk_of(&mut plan, chunk)?;
            let counter = match () {
                () if chunk.end() > inode.size() => &self.direct.extending,
                () if plan.holes > before.0 => &self.direct.holes,
                () if plan.unwritten > before.1 => &self.direct.unwritten,
                () => &self.direct.held,
            };
            counter.add(1);
        }
        Ok(plan)
    }

    fn plan_chunk_of<'a>(&self, plan: &mut Plan<'a>, chunk: &Chunk<'a>) -> Result<()> {
        let block_size = self.block_size();
        let (mut at, last) = (self.block_at(chunk.offset), self.block_from(chunk.end()));
        while at < last {
            let mapping = lookup(&self.space, plan.inode, at)?;
            let end = mapping.end().min(last);
            let count = end.get() - at.get();
            if let State::Written(start) = mapping.state {
                // Parts of blocks, too: others may be writing the other part by now.
                let first_byte = u64::from(at.get()) * block_size;
                let from = first_byte.max(chunk.offset);
                let to = (u64::from(end.get()) * block_size).min(chunk.end());
                let place = start.get() * block_size + (from - first_byte);
                let (from, to) = ((from - chunk.offset) as usize, (to - chunk.offset) as usize);
                plan.plain.push((place, &chunk.data[from..to]));
            } else {
                for block in at.get()..end.get() {
                    let at = FileBlock(block);
                    plan.pages.push((at, self.new_page(at, chunk.offset, chunk.data)));
                }
                let into = if mapping.state == State::Hole {
                    &mut plan.holes
                } else {
                    &mut plan.unwritten
                };
                *into += count;
            }
            at = end;
        }
        Ok(())
    }

    /// Reserves blocks for a plan, beside what is reserved for pages.
    fn reserve_plan(&self, plan: &Plan<'_>, more: bool) -> Result<()> {
        if plan.holes + plan.unwritten == 0 {
            return Ok(());
        }
        let mut pages = plan.inode.pages();
        let (reserved, converting) = (pages.reserved, pages.converting);
        let (reserved, converting) = if more {
            (reserved + plan.holes, converting + plan.unwritten)
        } else {
            (reserved.saturating_sub(plan.holes), converting.saturating_sub(plan.unwritten))
        };
        self.set_reservation(&mut pages, reserved, converting)
    }

    fn unreserve_plan(&self, plan: &Plan<'_>) {
        // A smaller reservation cannot fail.
        let smaller = self.reserve_plan(plan, false);
        debug_assert!(smaller.is_ok(), "a reservation grew by a direct write");
    }

    fn write_plans(&self, plans: &mut [Plan<'_>], waits: bool) -> Result<bool> {
        let mut sweeps: Vec<MutexGuard<'_, SweepState>> = Vec::with_capacity(plans.len());
        for plan in &*plans {
            let sweep = match waits {
                true => Some(plan.inode.sweep()),
                false => plan.inode.try_sweep(),
            };
            let Some(sweep) = sweep else { return Ok(false) };
            sweeps.push(sweep);
        }
        let sizes: Vec<u64> = plans.iter().map(|plan| plan.inode.size()).collect();
        let written = self.write_and_map(plans);
        for (plan, size) in plans.iter().zip(sizes) {
            let mut attributes = plan.inode.attributes();
            if written.is_err() {
                // As far as it reached the inode table it stays: the data below it is there.
                attributes.size = size.max(attributes.disk_size);
                continue;
            }
            if attributes.touch_content_anew() {
                plan.inode.note_times(&mut attributes);
            }
        }
        written.map(|()| true)
    }

    /// The caller holds the sweep locks.
    fn write_and_map(&self, plans: &mut [Plan<'_>]) -> Result<()> {
        self.write_plain(plans)?;
        let mut parts = Vec::with_capacity(plans.len());
        for plan in &mut *plans {
            let mut attributes = plan.inode.attributes();
            attributes.size = attributes.size.max(plan.end);
            let size = attributes.size;
            drop(attributes);
            let pages = std::mem::take(&mut plan.pages);
            parts.push(Part { pages, size, ..Part::of_attributes(plan.inode) });
        }
        self.write_parts(&mut parts, false)?;
        let epoch = self.space.journal().flush_gate().epoch();
        plans.iter().for_each(|plan| plan.inode.note_written(epoch));
        Ok(())
    }

    fn write_plain(&self, plans: &[Plan<'_>]) -> Result<()> {
        let plain = || plans.iter().flat_map(|plan| &plan.plain);
        let views: Vec<[&[u8]; 1]> = plain().map(|(_, data)| [*data]).collect();
        if views.is_empty() {
            return Ok(());
        }
        let runs =
            plain().zip(&views).map(|((offset, _), bufs)| WriteRun { offset: *offset, bufs });
        let runs: Vec<WriteRun<'_>> = runs.collect();
        let error = |e| Error::io(format!("writing {} runs", runs.len()), e);
        self.cache().device().write_many(&runs).map_err(error)
    }
}

/// A chunk of `len` bytes has been tried.
fn note(write: &mut Write<'_>, len: usize, written: Result<usize>) {
    match written {
        Ok(count) => {
            write.done += count;
            if count < len || write.done == write.data.len() {
                write.result = Some(Ok(()));
            }
        }
        Err(error) => write.result = Some(Err(error)),
    }
}
