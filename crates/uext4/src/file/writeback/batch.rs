//! Dirty pages on their way to the device: taken from the page cache, and given places there.
//!
//! What: a [`Part`] is the share of one inode in a writeback pass: pages, the blocks that they go
//! to, and the mappings to be made for them. A pass may write and map the parts of several inodes
//! together.
//! Invariants: everything that a mapping will make reachable is in the part's runs: the pages, and
//! zeroes for unwritten neighbours that are converted with them rather than split off. The
//! writeback lock keeps other threads from changing the neighbours; a page that becomes dirty over
//! one is written later, over an extent that is written by then.

use super::Writeback;
use crate::alloc::{Allocation, Space};
use crate::cache::PageImage;
use crate::error::{Error, Result};
use crate::extent::{State, find};
use crate::file::encrypted::stored;
use crate::injected_faults::Fault;
use crate::inode::{DirectIoState, Inode};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_device::WriteRun;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, FileBlock};

/// Most buffers in one device write.
const IO_PAGES: usize = 512;
/// Most writes, and bytes, that are made durable one by one where a flush takes long.
const THROUGH_WRITES_MAX: usize = 16;
const THROUGH_BYTES_MAX: u64 = 1 << 20;

/// The share of one inode in a writeback pass.
pub(in crate::file) struct Part<'a> {
    pub(in crate::file) inode: &'a Inode,
    pub(in crate::file) pages: Vec<PageImage>,
    /// The size that the mappings may reach: all data below it is written, or in this part.
    pub(in crate::file) size: u64,
    /// No dirty page was left in the cache.
    pub(in crate::file) is_last: bool,
    /// Data for blocks that are written already.
    pub(in crate::file) overwrites: Vec<DataRun>,
    pub(in crate::file) pending: Vec<Pending>,
}

/// Data of blocks that follow each other on the device.
#[derive(Debug)]
pub(in crate::file) struct DataRun {
    pub(in crate::file) start: BlockNo,
    pub(in crate::file) data: Vec<Arc<[u8]>>,
}

/// A mapping that is to be made.
pub(in crate::file) struct Pending {
    pub(in crate::file) first: FileBlock,
    pub(in crate::file) len: u32,
    pub(in crate::file) blocks: PendingBlocks,
    /// The data of the blocks; empty once it is written.
    pub(in crate::file) data: Vec<Arc<[u8]>>,
}

pub(in crate::file) enum PendingBlocks {
    Allocated(Allocation),
    Unwritten(BlockNo),
    /// In clusters of which these are new.
    InClusters {
        start: BlockNo,
        clusters: Option<Allocation>,
    },
}

impl PendingBlocks {
    /// Whether they are to be marked used.
    pub(in crate::file) fn are_new(&self) -> bool {
        matches!(self, Self::Allocated(_) | Self::InClusters { clusters: Some(_), .. })
    }
}

impl Pending {
    /// A mapping whose data is elsewhere.
    pub(in crate::file) fn of(first: FileBlock, len: u32, blocks: PendingBlocks) -> Self {
        Self { first, len, blocks, data: Vec::new() }
    }

    /// Blocks or clusters that are to be marked used.
    pub(in crate::file) fn new_units(&self) -> u32 {
        match &self.blocks {
            PendingBlocks::Allocated(_) => self.len,
            PendingBlocks::InClusters { clusters: Some(new), .. } => new.len(),
            PendingBlocks::InClusters { clusters: None, .. } | PendingBlocks::Unwritten(_) => 0,
        }
    }

    pub(in crate::file) fn start(&self) -> BlockNo {
        match &self.blocks {
            PendingBlocks::Allocated(allocation) => allocation.start(),
            PendingBlocks::Unwritten(start) | PendingBlocks::InClusters { start, .. } => *start,
        }
    }

    pub(in crate::file) fn end(&self) -> FileBlock {
        self.first.plus(self.len)
    }

    /// Marks used what is new; returns the first block, and the number of new clusters.
    pub(in crate::file) fn mark_used(
        &mut self,
        space: &Space,
        handle: &mut Handle<'_>,
    ) -> Result<(BlockNo, i64)> {
        match &mut self.blocks {
            PendingBlocks::Allocated(allocation) => {
                Ok((space.mark_used(handle, allocation, self.len)?, 0))
            }
            PendingBlocks::Unwritten(start) => Ok((*start, 0)),
            PendingBlocks::InClusters { start, clusters } => {
                let Some(mut new) = clusters.take() else { return Ok((*start, 0)) };
                let count = new.len();
                space.mark_used(handle, &mut new, count)?;
                Ok((*start, count.into()))
            }
        }
    }

    /// The extent that the mapping will put into the tree.
    pub(in crate::file) fn extent(&self) -> Extent {
        Extent { first: self.first, len: self.len, start: self.start(), unwritten: false }
    }

    /// Takes the data, to write it.
    pub(in crate::file) fn take_run(&mut self) -> DataRun {
        DataRun { start: self.start(), data: std::mem::take(&mut self.data) }
    }

    fn append(&mut self, data: impl IntoIterator<Item = Arc<[u8]>>) {
        let before = self.data.len();
        self.data.extend(data);
        self.len += (self.data.len() - before) as u32;
    }
}

impl<'a> Part<'a> {
    /// A part with no pages: only the attributes of the inode.
    pub(in crate::file) fn of_attributes(inode: &'a Inode) -> Self {
        Self {
            inode,
            pages: Vec::new(),
            size: 0,
            is_last: true,
            overwrites: Vec::new(),
            pending: Vec::new(),
        }
    }
}

impl Writeback {
    /// Takes at most `most` dirty pages from `from` to the end of the file. Pages behind the end
    /// belong to a write that has not set the size yet; if they were mapped now, a crash would
    /// leave blocks behind the end.
    pub(in crate::file) fn take<'a>(
        &self,
        inode: &'a Inode,
        from: FileBlock,
        most: usize,
    ) -> Part<'a> {
        let size = inode.size();
        let mut part = Part { size, ..Part::of_attributes(inode) };
        let mut pages = inode.pages();
        if pages.map.dirty() == 0 {
            return part;
        }
        let (taken, more) = pages.map.begin_writeback(from, self.block_from(size), most);
        (part.pages, part.is_last) = (taken, !more);
        if let (false, Some((last, _))) = (part.is_last, part.pages.last()) {
            part.size = size.min((u64::from(last.get()) + 1) * self.block_size());
        }
        part
    }

    /// Allocates blocks for the pages of all parts that have none.
    pub(in crate::file) fn allocate(&self, parts: &mut [Part<'_>]) -> Result<()> {
        for part in parts {
            let pages = std::mem::take(&mut part.pages);
            let planned = self.plan_pages(part, &pages);
            part.pages = pages;
            planned?;
        }
        Ok(())
    }

    fn plan_pages(&self, part: &mut Part<'_>, pages: &[PageImage]) -> Result<()> {
        let mut rest = pages;
        while let Some(&(first, _)) = rest.first() {
            let spot = find(part.inode, first)?;
            let mapping = spot.mapping;
            let mut len = contiguous(rest).min(mapping.len as usize);
            let blocks = match mapping.state {
                State::Hole => {
                    let want = (len as u32).min(spot.most_new());
                    let (blocks, got) = self.placement.allocate_for(part, &spot, want)?;
                    len = got as usize;
                    Some(blocks)
                }
                _ => None,
            };
            let (here, behind) = rest.split_at(len);
            let data = stored(part.inode, here, self.block_size())?;
            match (mapping.state, blocks) {
                (State::Written(start), _) => part.overwrites.push(DataRun { start, data }),
                (State::Unwritten(start), _) => {
                    let blocks = PendingBlocks::Unwritten(start);
                    part.pending.push(Pending { first, len: len as u32, blocks, data });
                    let next = behind.first().map(|(at, _)| *at);
                    self.widen_conversion(part, spot.before(), next);
                }
                (State::Hole, blocks) => {
                    let blocks = blocks.expect("allocated for a hole");
                    part.pending.push(Pending { first, len: len as u32, blocks, data });
                }
            }
            rest = behind;
        }
        Ok(())
    }

    /// Widens the last conversion to small unwritten neighbours in the same extent, which are
    /// zeroed. ext4 does the same, so that writes at random places do not split an extent into many
    /// small ones. `next` is the next page of the part.
    fn widen_conversion(
        &self,
        part: &mut Part<'_>,
        extent: Option<Extent>,
        next: Option<FileBlock>,
    ) {
        if !self.widens || part.inode.is_encrypted() {
            return;
        }
        let most = self.widen_bytes_max / self.block_size();
        let (Some(extent), Some(mut last)) = (extent, part.pending.pop()) else { return };
        // There may be direct writes in place on the device there, which are yet to be converted.
        let in_place = part.inode.direct_io().is_some_and(DirectIoState::allows_in_place);
        if in_place {
            part.pending.push(last);
            return;
        }
        let zeroes = |count: u32| std::iter::repeat_n(Arc::clone(&self.zeroes), count as usize);
        let is_small = |gap: u32| u64::from(gap) <= most;
        let before = part.pending.last_mut().filter(|before| before.first >= extent.first);
        let gap = last.first.get() - before.as_ref().map_or(extent.first, |b| b.end()).get();
        match before {
            Some(before) if is_small(gap) => {
                before.append(zeroes(gap));
                before.append(std::mem::take(&mut last.data));
                last = part.pending.pop().expect("the one before");
            }
            None if is_small(gap) && gap > 0 => {
                last.data.splice(0..0, zeroes(gap));
                last.first = extent.first;
                last.len += gap;
                last.blocks = PendingBlocks::Unwritten(extent.start);
            }
            _ => {}
        }
        let gap = extent.end().get() - last.end().get();
        let is_alone = next.is_none_or(|next| next >= extent.end());
        // Not behind the end of the file.
        if is_alone && is_small(gap) && extent.end() <= self.block_from(part.size) {
            last.append(zeroes(gap));
        }
        part.pending.push(last);
    }

    /// Gives all runs to the device in one submission. Runs that follow each other become one
    /// write. A few of them that a sync waits for are durable at once, where that saves a flush.
    pub(in crate::file) fn write_runs(&self, mut runs: Vec<DataRun>, for_sync: bool) -> Result<()> {
        if runs.is_empty() {
            return Ok(());
        }
        runs.sort_unstable_by_key(|run| run.start);
        let views: Vec<&[u8]> = runs.iter().flat_map(|run| &run.data).map(|data| &**data).collect();
        let mut writes: Vec<WriteRun<'_>> = Vec::with_capacity(runs.len());
        let (mut from, mut to, mut start, mut next) = (0, 0, runs[0].start, runs[0].start);
        let flush = |from: usize, to: usize, start: BlockNo, writes: &mut Vec<_>| {
            let offset = start.get() * self.block_size();
            writes.push(WriteRun { offset, bufs: &views[from..to] });
        };
        for run in &runs {
            let len = run.data.len();
            if run.start != next || (to > from && to - from + len > IO_PAGES) {
                flush(from, to, start, &mut writes);
                (from, start) = (to, run.start);
            }
            to += len;
            next = run.start.plus(len as u64);
        }
        flush(from, to, start, &mut writes);
        let device = self.space.journal().cache().device();
        let is_small = writes.len() <= THROUGH_WRITES_MAX
            && views.len() as u64 * self.block_size() <= THROUGH_BYTES_MAX;
        let through = for_sync && is_small && self.barrier && device.writes_through();
        let written =
            if through { device.write_many_fua(&writes) } else { device.write_many(&writes) };
        written
            .or_else(|e| if Fault::SwallowedError.is_injected() { Ok(()) } else { Err(e) })
            .map_err(|e| Error::io(format!("writing {} runs from block {start}", writes.len()), e))
    }
}

/// Takes the data of all parts that goes to blocks which are written already.
pub(in crate::file) fn take_overwrites(parts: &mut [Part<'_>]) -> Vec<DataRun> {
    let mut runs = Vec::new();
    parts.iter_mut().for_each(|part| runs.append(&mut part.overwrites));
    runs
}

/// The number of pages at the start of `pages` that follow each other.
fn contiguous(pages: &[PageImage]) -> usize {
    let first = pages[0].0.get();
    pages.iter().zip(first..).take_while(|((at, _), want)| at.get() == *want).count()
}
