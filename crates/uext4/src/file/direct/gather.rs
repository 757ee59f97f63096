//! Direct writes that change more than bytes, several at a time.
//!
//! What: writes that extend the file, that fill holes or unwritten ranges, or that meet cached
//! pages. Writes that are given together share device submissions, and handles of up to 64 mappings
//! each. Blocks are reserved and allocated as for dirty pages, but the bytes never become pages.
//! Invariants: all data is on the device before the handle that maps it starts. Of two writes that
//! overlap, the one that was given later is done later. The pages of the range are dropped first,
//! and none comes back while the file is held.
//! Locking: the files exclusively, by inode number. Then, for a group, writeback locks, which are
//! only tried, as group writeback does. Waits for space happen with file locks held only.

use super::DirectIo;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::file::clusters::OwnClusters;
use crate::file::page_bytes::within;
use crate::file::reserve::Need;
use crate::file::write::front_half;
use crate::file::writeback::{Part, Pending};
use crate::inode::{DirectIoState, ExclusiveGuard, Inode, InodeRef, WritebackState};
use crate::sync::MutexGuard;
use std::sync::Arc;
use uext4_device::WriteRun;
use uext4_ondisk::{FileBlock, InodeFlags};

/// Most bytes of one write that go into one round.
const CHUNK_BYTES: u64 = 1 << 20;
/// Most writes of a round.
const GROUP_WRITES: usize = 64;

/// One write and its result.
#[derive(Debug)]
pub(super) struct GatheredWrite<'a> {
    inode: &'a InodeRef,
    offset: u64,
    data: &'a [u8],
    durable: bool,
    done: usize,
    result: Option<Result<()>>,
}

impl<'a> GatheredWrite<'a> {
    pub(super) fn new(inode: &'a InodeRef, offset: u64, data: &'a [u8], durable: bool) -> Self {
        Self { inode, offset, data, durable, done: 0, result: None }
    }

    /// The bytes that were written. An error that came after the first of them is not reported.
    pub(super) fn into_result(self) -> Result<usize> {
        match self.result {
            Some(Err(error)) if self.done == 0 => Err(error),
            _ => Ok(self.done),
        }
    }

    fn is_open(&self) -> bool {
        self.result.is_none()
    }

    /// The part for the next round.
    fn chunk(&self) -> Chunk<'a> {
        let offset = self.offset + self.done as u64;
        let most = CHUNK_BYTES - offset % CHUNK_BYTES;
        let len = (self.data.len() - self.done).min(most as usize);
        Chunk { inode: self.inode, offset, data: &self.data[self.done..self.done + len] }
    }
}

/// The part of a write that one round writes.
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

/// The plan for the chunks of one inode.
struct Plan<'a> {
    inode: &'a Inode,
    /// Data over holes and unwritten blocks, as whole blocks.
    pages: Vec<(FileBlock, Arc<[u8]>)>,
    /// Data over written blocks: the byte of the device, and the bytes that go there.
    plain: Vec<(u64, &'a [u8])>,
    holes: u32,
    unwritten: u32,
    end: u64,
    /// What is reserved for it.
    need: Need,
    clusters: OwnClusters,
}

impl Plan<'_> {
    fn unreserve(&self) {
        self.inode.pages().unreserve_allocated(self.need);
    }
}

impl DirectIo {
    /// Does all the writes. Each has its result on return. The caller holds no lock.
    pub(super) fn write_gathered(&self, writes: &mut [GatheredWrite<'_>]) {
        while writes.iter().any(GatheredWrite::is_open) {
            let round = self.choose(writes);
            self.stats.groups.add(1);
            self.stats.grouped.add(round.len() as u64);
            self.write_round(writes, &round);
        }
        for write in writes.iter_mut().filter(|write| write.done > 0) {
            let is_sync = write.inode.attributes().flags.contains(InodeFlags::SYNC);
            let ended = match is_sync || write.durable {
                true => self.syncs.sync(write.inode, !is_sync),
                // On the device, and mapped, as any other direct write.
                false if write.inode.is_encrypted() => self.syncs.write_back(write.inode),
                false => continue,
            };
            if let Err(error) = ended {
                write.done = 0;
                write.result = Some(Err(error));
            }
        }
    }

    /// Chooses the writes of the next round: none overlaps another, or an earlier one that has to
    /// wait.
    fn choose(&self, writes: &[GatheredWrite<'_>]) -> Vec<usize> {
        let mut seen: Vec<(u32, FileBlock, FileBlock)> = Vec::new();
        let mut chosen = Vec::new();
        for (index, write) in writes.iter().enumerate().filter(|(_, write)| write.is_open()) {
            let rest = write.offset + write.data.len() as u64;
            let (first, end) = self.context.blocks_of(write.chunk().offset, rest);
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

    fn write_round(&self, writes: &mut [GatheredWrite<'_>], round: &[usize]) {
        let mut inodes: Vec<&InodeRef> = round.iter().map(|&index| writes[index].inode).collect();
        inodes.dedup_by_key(|inode| inode.ino());
        let _exclusive: Vec<_> = inodes.iter().map(|inode| inode.lock().write()).collect();
        let mut ready = Vec::with_capacity(round.len());
        for &index in round {
            let chunk = writes[index].chunk();
            match self.check_write(&chunk) {
                Ok(()) if self.context.is_paged(chunk.inode) => {
                    let written = self.writer.write_locked(chunk.inode, chunk.offset, chunk.data);
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
        // Writing each alone shows which one fails.
        for (index, chunk) in ready {
            let written = self.write_alone(chunk);
            note(&mut writes[index], chunk.data.len(), written);
        }
    }

    fn check_write(&self, chunk: &Chunk<'_>) -> Result<()> {
        self.context.check_content(chunk.inode)?;
        self.writer.check_write(chunk.inode, chunk.offset, chunk.data)?;
        self.writer.leave_inode(chunk.inode)?;
        if self.context.is_paged(chunk.inode) {
            return Ok(());
        }
        if chunk.inode.direct_io_or_init().is_cached() {
            self.stats.cached.add(u64::from(!chunk.inode.pages().map.is_empty()));
            self.drop_pages(
                chunk.inode,
                self.context.block_at(chunk.offset),
                self.context.block_from(chunk.end()),
            )?;
        }
        Ok(())
    }

    /// Writes `data` at byte `offset` past the page cache, or as much of it as there is space for:
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
        let mut has_reclaimed = false;
        loop {
            let releases = self.context.space.releases();
            match self.write_chunks(&[chunk], true) {
                Ok(_) => return Ok(chunk.data.len()),
                Err(error) if error.is_lack_of_room() => {
                    let is_full = *error.kind() == ErrorKind::NoSpace;
                    if !(is_full && self.syncs.make_room(&mut has_reclaimed, releases)?) {
                        let front = front_half(chunk.offset, chunk.data, self.context.block_size());
                        chunk.data = front.ok_or(error)?;
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes chunks, which are ordered by inode and offset. Mappings and sizes change for all of
    /// them or for none. False if it may not wait (`waits`) and the writeback lock of an inode is
    /// busy.
    fn write_chunks(&self, chunks: &[Chunk<'_>], waits: bool) -> Result<bool> {
        let _drained = self.exclude_in_place(chunks)?;
        let mut plans = Vec::new();
        for chunks in chunks.chunk_by(|a, b| a.inode.ino() == b.inode.ino()) {
            plans.push(self.plan_chunks(chunks)?);
        }
        for (at, plan) in plans.iter().enumerate() {
            let end = self.context.block_from(plan.end);
            let loaded = plan.inode.load_usage();
            let reserved = loaded.and_then(|()| plan.inode.pages().reserve(plan.need, end));
            if let Err(error) = reserved {
                plans[..at].iter().for_each(Plan::unreserve);
                return Err(error);
            }
        }
        let written = self.write_plans(&mut plans, waits);
        plans.iter().for_each(Plan::unreserve);
        written
    }

    /// Keeps writes in place out of blocks that are about to be written in part, because zeroes may
    /// be put around the part.
    fn exclude_in_place<'a>(&self, chunks: &[Chunk<'a>]) -> Result<Vec<ExclusiveGuard<'a>>> {
        let is_whole = |at: u64| at.is_multiple_of(self.context.block_size());
        let meets_some = |chunk: &&Chunk<'_>| {
            let direct_io = chunk.inode.direct_io();
            direct_io.is_some_and(DirectIoState::allows_in_place)
                && !(is_whole(chunk.offset) && is_whole(chunk.end()))
        };
        let exclude = |chunk: &Chunk<'a>| {
            let (first, end) = self.context.blocks_of(chunk.offset, chunk.end());
            chunk.inode.drain_direct_io(first, end)
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
            need: Need::default(),
            clusters: OwnClusters::default(),
        };
        for chunk in chunks {
            let before = (plan.holes, plan.unwritten);
            self.plan_chunk_of(&mut plan, chunk)?;
            let counter = match () {
                () if chunk.end() > inode.size() => &self.stats.extending,
                () if plan.holes > before.0 => &self.stats.holes,
                () if plan.unwritten > before.1 => &self.stats.unwritten,
                () => &self.stats.held,
            };
            counter.add(1);
        }
        (plan.need.pages, plan.need.conversions) = (plan.holes, plan.unwritten);
        Ok(plan)
    }

    fn plan_chunk_of<'a>(&self, plan: &mut Plan<'a>, chunk: &Chunk<'a>) -> Result<()> {
        let (mut at, last) = self.context.blocks_of(chunk.offset, chunk.end());
        while at < last {
            let mapping = lookup(plan.inode, at)?;
            let end = mapping.end().min(last);
            let count = end.get() - at.get();
            if let State::Written(start) = mapping.state {
                // Partial blocks are written as such, because another thread may write the other
                // part of the block at the same time.
                let bytes = self.context.overlap(at, end, chunk.offset, chunk.data);
                let first = start.get() * self.context.block_size();
                let place = first + bytes.start - self.context.offset_of(at);
                plan.plain.push((place, &chunk.data[within(&bytes, chunk.offset)]));
            } else {
                for block in at.get()..end.get() {
                    let at = FileBlock(block);
                    plan.pages.push((at, self.context.new_page(at, chunk.offset, chunk.data)));
                }
                if mapping.state == State::Hole {
                    plan.need.units += plan.clusters.missing(plan.inode, at, end)?;
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

    fn write_plans(&self, plans: &mut [Plan<'_>], waits: bool) -> Result<bool> {
        let mut locks: Vec<MutexGuard<'_, WritebackState>> = Vec::with_capacity(plans.len());
        for plan in &*plans {
            let lock = match waits {
                true => Some(plan.inode.writeback()),
                false => plan.inode.try_writeback(),
            };
            let Some(lock) = lock else { return Ok(false) };
            locks.push(lock);
        }
        let sizes: Vec<u64> = plans.iter().map(|plan| plan.inode.size()).collect();
        let written = self.write_and_map(plans);
        for (plan, size) in plans.iter().zip(sizes) {
            let mut attributes = plan.inode.attributes();
            if written.is_err() {
                // The size stays as far as it has reached the inode table, because the data below
                // it is mapped.
                attributes.size = size.max(attributes.disk_size);
                continue;
            }
            if attributes.touch_content_if_new() {
                plan.inode.note_times(&mut attributes);
            }
        }
        written.map(|()| true)
    }

    /// Writes the data of the plans and maps it. The caller holds the writeback locks.
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
        self.context.writeback.allocate(&mut parts)?;
        for part in &parts {
            let units = part.pending.iter().map(Pending::new_units).sum();
            part.inode.pages().note_allocated(units);
        }
        self.context.writeback.write_allocated(&mut parts, false)?;
        let epoch = self.context.journal().flush_gate().epoch();
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
        self.context.cache().device().write_many(&runs).map_err(error)
    }
}

/// Notes the result of a chunk of `len` bytes.
fn note(write: &mut GatheredWrite<'_>, len: usize, written: Result<usize>) {
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
