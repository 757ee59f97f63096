//! Data that goes through the journal: `data=journal`, and files with the JOURNAL_DATA flag.
//!
//! What: a block of such a file is journaled as a metadata block is: its new block image joins the
//! handle that inserts its mapping and sets size and times. Therefore a write that fits one handle
//! is there after a crash wholly or not at all, and the writes of a thread are there in their
//! order. Nothing is delayed: there are no dirty pages, writeback finds nothing to do, and fsync is
//! a commit.
//! Invariants: a page of such a file is clean and equal to its block. The newest bytes of a block
//! are in its buffer, else in a block image that is not yet checkpointed, else in its final
//! location; reads look in that order ([`JournaledData::newer_images`]). Such a block is never
//! written in place. A freed block is revoked if the log has an image of it, because otherwise a
//! replay would write the image over the next user of the block.
//! Locking: file lock exclusively, then the writeback lock. New block images are made before the
//! handle starts, so the handle only exchanges images.
//! Kernel counterpart: `ext4_journalled_write_end` in `fs/ext4/inode.c`.

use super::FileContext;
use super::placement::HoleNeed;
use super::writeback::{Pending, PendingBlocks};
use crate::cache::{BlockKind, Buffer};
use crate::error::Result;
use crate::extent::{Mapping, NodeAllocations, NodeSource, State, edit_credits, find, lookup};
use crate::injected_faults::Fault;
use crate::inode::Inode;
use crate::journal::Handle;
use crate::quota::QuotaHold;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, FileBlock};

/// Most bytes of data that one handle brings; less where the journal is small.
const DATA_BYTES_PER_HANDLE: u64 = 1 << 20;
/// The data of a handle is at most this part of a transaction, so that others can join as well.
const DATA_SHARE: u32 = 4;
/// A handle asks for at most this part of a transaction, mappings and all.
const CREDIT_SHARE: u32 = 2;
/// Least number of revokes that one handle makes room for.
const REVOKES_PER_HANDLE_MIN: u32 = 32;

/// The next content of one block of a file.
pub(super) struct Patch {
    at: FileBlock,
    buffer: Arc<Buffer>,
    image: Arc<[u8]>,
}

impl Patch {
    /// Costs one credit.
    pub(super) fn apply(&self, handle: &mut Handle<'_>) -> Result<()> {
        handle.replace_data(&self.buffer, Arc::clone(&self.image))
    }
}

/// The revokes of a run that is removed.
pub(super) struct Revokes {
    pub(super) count: u32,
    /// The run was shortened to its last part, so that there are no more.
    pub(super) was_shortened: bool,
}

/// The part of a write that one handle does.
struct JournaledChunk {
    patches: Vec<Patch>,
    /// Runs that become written.
    maps: Vec<Pending>,
    nodes: NodeAllocations,
    credits: u32,
    /// The byte of the file behind it.
    end: u64,
    /// Room for the new blocks below the limits of the owners.
    holds: Vec<QuotaHold>,
}

/// Writes data through the journal.
#[derive(Debug)]
pub(super) struct JournaledData {
    context: Arc<FileContext>,
}

impl JournaledData {
    pub(super) fn new(context: &Arc<FileContext>) -> Self {
        Self { context: Arc::clone(context) }
    }

    /// Writes as much of the front of `buf` at byte `offset` as fits one handle; returns how much
    /// that is. The caller holds the file exclusively.
    ///
    /// # Errors
    /// Those of [`super::Files::write`]; nothing is written then.
    pub(super) fn write(&self, inode: &Inode, offset: u64, buf: &[u8]) -> Result<usize> {
        let _writeback = inode.writeback();
        let chunk = self.plan_chunk(inode, offset, buf)?;
        let JournaledChunk { patches, mut maps, mut nodes, credits, end, holds } = chunk;
        let _lent = inode.lend(holds);
        self.context.journal().run(credits, |handle| {
            for map in &mut maps {
                self.context.writeback.map_one(handle, inode, map, &mut nodes, false)?;
            }
            patches.iter().try_for_each(|patch| patch.apply(handle))?;
            inode.note_data_change(handle);
            inode.update(handle, |attributes| {
                attributes.set_size(attributes.size.max(end));
                attributes.touch_content();
            })
        })?;
        show(inode, patches);
        Ok(usize::try_from(end - offset).unwrap_or(usize::MAX))
    }

    /// Allocates and reads the blocks that writing the front of `buf` needs.
    fn plan_chunk(&self, inode: &Inode, offset: u64, buf: &[u8]) -> Result<JournaledChunk> {
        let credits_max = self.context.journal().credits_max();
        let most_credits = credits_max / CREDIT_SHARE;
        let most_blocks = u32::try_from(DATA_BYTES_PER_HANDLE / self.context.block_size())
            .unwrap_or(u32::MAX)
            // One more for a write that begins and ends inside a block.
            .saturating_add(1)
            .min(credits_max / DATA_SHARE);
        let first = self.context.block_at(offset);
        let wanted_end = offset + buf.len() as u64;
        let last = self.context.block_from(wanted_end).min(first.plus(most_blocks.max(1)));
        let per_map = self.context.space.credits().blocks + edit_credits(inode);

        let mut chunk = JournaledChunk {
            patches: Vec::new(),
            maps: Vec::new(),
            nodes: NodeAllocations::default(),
            credits: 1,
            end: wanted_end,
            holds: Vec::new(),
        };
        let mut at = first;
        while at < last {
            let spot = find(inode, at)?;
            let mapping = spot.mapping;
            let is_mapped = matches!(mapping.state, State::Written(_));
            let overhead = if is_mapped { 0 } else { per_map };
            let room = most_credits.saturating_sub(chunk.credits + overhead);
            if room == 0 && at > first {
                break;
            }
            let len = mapping.len.min(last.get() - at.get()).min(room.max(1));
            let (start, len) = match mapping.state {
                State::Written(start) => (start, len),
                State::Unwritten(start) => {
                    chunk.maps.push(Pending::of(at, len, PendingBlocks::Unwritten(start)));
                    (start, len)
                }
                State::Hole => {
                    let placed = chunk.maps.last().map(Pending::extent);
                    let origin = inode.goal();
                    let want = len.min(spot.most_new());
                    let need = HoleNeed { want, reserved: false, placed, origin };
                    let (blocks, len) = self.context.placement.place(inode, &spot, &need)?;
                    let map = Pending::of(at, len, blocks);
                    let start = map.start();
                    chunk.holds.extend(inode.hold_units(map.new_units())?);
                    chunk.maps.push(map);
                    (start, len)
                }
            };
            // A revoke of a transaction hides every image of the block that it has. A block of a
            // hole was another's; in a cluster, an unwritten one can be as well.
            if !is_mapped && self.context.journal().is_revoked(start, len) {
                self.context.journal().commit_all()?;
            }
            for i in 0..len {
                let block = start.plus(u64::from(i));
                let patch = self.plan_patch(inode, at.plus(i), block, is_mapped, offset, buf)?;
                chunk.patches.push(patch);
            }
            chunk.credits += overhead + len;
            at = at.plus(len);
        }
        chunk.end = wanted_end.min(self.context.offset_of(at));
        let is_conversion = |map: &Pending| matches!(map.blocks, PendingBlocks::Unwritten(_));
        let only_converts = chunk.maps.iter().all(is_conversion);
        let source = if only_converts { NodeSource::Pool } else { NodeSource::Free };
        let places: Vec<FileBlock> = chunk.maps.iter().map(|map| map.first).collect();
        chunk.nodes = NodeAllocations::for_edits(inode, &places, source)?;
        Ok(chunk)
    }

    /// The block image with its part of the caller's bytes. There are no bytes to keep where
    /// nothing is written yet, and behind the end of the file.
    fn plan_patch(
        &self,
        inode: &Inode,
        at: FileBlock,
        block: BlockNo,
        is_written: bool,
        offset: u64,
        buf: &[u8],
    ) -> Result<Patch> {
        let cache = self.context.cache();
        let from = self.context.offset_of(at);
        let is_covered =
            offset <= from && from + self.context.block_size() <= offset + buf.len() as u64;
        if is_covered || !is_written || from >= inode.size() {
            let buffer = cache.for_replacement(block, BlockKind::Data)?;
            return Ok(Patch { at, buffer, image: self.context.new_page(at, offset, buf) });
        }
        let buffer = cache.read(block, BlockKind::Data)?;
        let mut image: Arc<[u8]> = buffer.read()[..].into();
        self.context.copy_in(at, Arc::make_mut(&mut image), offset, buf);
        Ok(Patch { at, buffer, image })
    }

    /// The patch that gives a block its first content.
    pub(super) fn new_block(
        &self,
        at: FileBlock,
        block: BlockNo,
        image: Arc<[u8]>,
    ) -> Result<Patch> {
        let buffer = self.context.cache().for_replacement(block, BlockKind::Data)?;
        Ok(Patch { at, buffer, image })
    }

    /// Zeroes bytes `from .. to` of one block, if it is written, in a handle of its own. The caller
    /// holds the file lock and the writeback lock.
    pub(super) fn zero(&self, inode: &Inode, at: FileBlock, from: u64, to: u64) -> Result<()> {
        let Some(patch) = self.plan_zeroes(inode, at, from, to)? else { return Ok(()) };
        let _pin = inode.table_block()?;
        self.context.journal().run(2, |handle| {
            patch.apply(handle)?;
            inode.note_data_change(handle);
            inode.update(handle, |attributes| attributes.touch_content())
        })?;
        show(inode, [patch]);
        Ok(())
    }

    /// The patch that zeroes the last block behind byte `size`, for the handle that truncates the
    /// file to that size.
    pub(super) fn plan_tail(&self, inode: &Inode, size: u64) -> Result<Option<Patch>> {
        let within = size % self.context.block_size();
        if within == 0 || Fault::UnzeroedTail.is_injected() {
            return Ok(None);
        }
        self.plan_zeroes(inode, self.context.block_at(size), within, self.context.block_size())
    }

    fn plan_zeroes(
        &self,
        inode: &Inode,
        at: FileBlock,
        from: u64,
        to: u64,
    ) -> Result<Option<Patch>> {
        let State::Written(block) = lookup(inode, at)?.state else {
            return Ok(None);
        };
        let buffer = self.context.cache().read(block, BlockKind::Data)?;
        let mut image: Arc<[u8]> = buffer.read()[..].into();
        Arc::make_mut(&mut image)[from as usize..to as usize].fill(0);
        Ok(Some(Patch { at, buffer, image }))
    }

    /// The blocks among `count` from `start` whose bytes may be newer than in their final
    /// locations, as distances from `start`, with those bytes. A caller that reads the device
    /// afterwards and puts these bytes over it has the content of the file, because it holds the
    /// file and nothing becomes newer meanwhile.
    pub(super) fn newer_images(
        &self,
        inode: &Inode,
        start: BlockNo,
        count: u32,
    ) -> Vec<(u32, Arc<[u8]>)> {
        if !self.context.is_journaled(inode) {
            return Vec::new();
        }
        let distance = |block: BlockNo| u32::try_from(block.get() - start.get()).unwrap_or(0);
        let logged = self.context.journal().logged_data(start, count);
        let newest = |block| Some((distance(block), self.context.cache().newest(block)?));
        logged.into_iter().filter_map(newest).collect()
    }

    /// Most revokes of data in one handle. A transaction should have room for many handles.
    pub(super) fn revokes_per_handle(&self) -> u32 {
        (self.context.journal().credits_max() / 8).max(REVOKES_PER_HANDLE_MIN)
    }

    /// Shortens a run that is to be freed, at its front, until at most `most` of its blocks have to
    /// be revoked. `None` if that leaves nothing.
    pub(super) fn limit_to_revokes(&self, mapping: &mut Mapping, most: u32) -> Option<Revokes> {
        let (State::Written(start) | State::Unwritten(start)) = mapping.state else {
            return Some(Revokes { count: 0, was_shortened: false });
        };
        let logged = self.context.journal().logged_data(start, mapping.len);
        let count = u32::try_from(logged.len()).unwrap_or(u32::MAX);
        if count <= most {
            return Some(Revokes { count, was_shortened: false });
        }
        let first_kept = logged.get((count - most) as usize)?;
        let skipped = u32::try_from(first_kept.get() - start.get()).unwrap_or(0);
        *mapping = mapping.last_part(mapping.len - skipped);
        Some(Revokes { count: most, was_shortened: true })
    }
}

/// Brings the pages up to date with what a handle has put into their blocks.
pub(super) fn show(inode: &Inode, patches: impl IntoIterator<Item = Patch>) {
    let mut pages = inode.pages();
    for patch in patches {
        pages.map.put_journaled(patch.at, patch.image);
    }
}
