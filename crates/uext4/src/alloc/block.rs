//! Allocating blocks, marking them used, and freeing them. Where they come from: `criteria.rs`.

use super::Space;
use super::available::Use;
use super::group::Group;
use super::privilege::as_user;
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::journal::{Freed, Handle};
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, CorruptKind, GroupNo, Place, bitmap};

/// Blocks that are allocated in memory and not yet marked used in the journaled bitmap. No other
/// thread can get them. Dropping the allocation releases them.
///
/// Lengths of allocations and of requests for them are in bits of the block bitmap: blocks, or
/// clusters where the file system has them (`file/clusters.rs`).
#[derive(Debug)]
pub struct Allocation {
    pub(super) group: Arc<Group>,
    pub(super) start: BlockNo,
    /// Index of the first block in its group.
    pub(super) bit: u32,
    pub(super) len: u32,
    /// Keeps the bitmap in memory, so that marking the blocks used reads nothing.
    pub(super) bitmap: Option<Arc<Buffer>>,
}

impl Allocation {
    /// First block.
    #[must_use]
    pub fn start(&self) -> BlockNo {
        self.start
    }

    /// Number of blocks left.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // an empty allocation can only be dropped
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Splits off the first `len` blocks, or all if there are fewer.
    #[must_use]
    pub fn split_front(&mut self, len: u32) -> Self {
        let len = len.min(self.len);
        let front = Self {
            group: Arc::clone(&self.group),
            start: self.start,
            bit: self.bit,
            len,
            bitmap: self.bitmap.clone(),
        };
        self.advance(len);
        front
    }

    /// Merges with an allocation that begins where this one ends. Returns it if it does not.
    pub(super) fn join(&mut self, mut next: Self) -> Option<Self> {
        let blocks = u64::from(self.len) * u64::from(self.cluster_blocks());
        let is_next = self.start.plus(blocks) == next.start;
        if !is_next || !Arc::ptr_eq(&self.group, &next.group) {
            return Some(next);
        }
        self.len += std::mem::take(&mut next.len);
        None
    }

    fn cluster_blocks(&self) -> u32 {
        self.group.shared.policy.cluster_blocks()
    }

    fn advance(&mut self, len: u32) {
        self.start = self.start.plus(u64::from(len) * u64::from(self.cluster_blocks()));
        self.bit += len;
        self.len -= len;
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.len > 0 {
            let group = &self.group;
            let released = group.release(&[(self.bit, self.len)]);
            group.shared.available.release(i64::from(released));
        }
    }
}

/// Longest wait for reserved blocks, in pauses of about a millisecond.
const RESERVED_WAITS_MAX: u32 = 200;

impl Space {
    /// Allocates one run of at most `want` blocks near `goal`. No handle may be open, because the
    /// call may wait for a commit that makes freed blocks usable.
    ///
    /// # Errors
    /// `NoSpace`; a corrupt bitmap; a device failure.
    pub fn allocate(&self, goal: BlockNo, want: u32) -> Result<Allocation> {
        self.allocate_for(goal, want, 0, Use::Any)
    }

    /// Allocates a block for a node of an extent tree from which blocks are removed, or in which
    /// they are converted. The node pool may be used. Otherwise as [`Space::allocate`].
    ///
    /// # Errors
    /// The errors of [`Space::allocate`].
    pub fn allocate_node(&self, goal: BlockNo) -> Result<Allocation> {
        self.allocate_for(goal, 1, 0, Use::Nodes)
    }

    /// Allocates as [`Space::allocate`] does, with up to `ahead` blocks more that the caller does
    /// not need yet. They never come from the root reserve.
    pub(super) fn allocate_for(
        &self,
        goal: BlockNo,
        want: u32,
        ahead: u32,
        purpose: Use,
    ) -> Result<Allocation> {
        loop {
            let releases = self.releases();
            if let Some(found) = self.allocate_unreserved(goal, want, ahead, purpose)? {
                return Ok(found);
            }
            if !self.reclaim_blocks(releases)? {
                return Err(Error::new(ErrorKind::NoSpace, String::new()));
            }
        }
    }

    /// Allocates blocks that were reserved before. The caller then shrinks its reservation by what
    /// it got. The call waits while no block is found: the reserved blocks may be in allocations of
    /// other threads that are about to be dropped (nodes for a worst case), or may have moved
    /// between groups while these were searched one after the other. No handle may be open.
    ///
    /// # Errors
    /// The errors of [`Space::allocate`]. `NoSpace` means that the counters disagree with the
    /// bitmaps.
    pub fn allocate_reserved(&self, goal: BlockNo, want: u32) -> Result<Allocation> {
        let mut waits = 0;
        loop {
            let releases = self.releases();
            if let Some(found) = self.search(goal, want)? {
                self.shared.available.force_reserve(i64::from(found.len()));
                return Ok(found);
            }
            if self.reclaim_blocks(releases)? {
                continue;
            }
            if waits == RESERVED_WAITS_MAX {
                return Err(Error::new(ErrorKind::NoSpace, String::new()));
            }
            waits += 1;
            crate::sync::thread::pause();
        }
    }

    /// Allocates blocks that are not reserved.
    fn allocate_unreserved(
        &self,
        goal: BlockNo,
        want: u32,
        ahead: u32,
        purpose: Use,
    ) -> Result<Option<Allocation>> {
        // Reserved during the search, so that it takes no blocks that are reserved for others.
        let mut taken = self.shared.available.reserve(i64::from(want), 1, purpose);
        if taken == 0 {
            return Ok(None);
        }
        taken += self.reserve_ahead(ahead);
        let found = self.search(goal, u32::try_from(taken).unwrap_or(want));
        let got = found.as_ref().ok().and_then(Option::as_ref).map_or(0, Allocation::len);
        self.shared.available.release(taken - i64::from(got));
        found
    }

    /// Reserves blocks that are allocated ahead of a need, without the root reserve.
    pub(super) fn reserve_ahead(&self, blocks: u32) -> i64 {
        if blocks == 0 {
            return 0;
        }
        as_user(|| self.shared.available.reserve(i64::from(blocks), 1, Use::Any))
    }

    /// Marks the first `len` blocks of an allocation used in the journaled bitmap. From then on
    /// they belong to a file. Costs two credits.
    ///
    /// # Errors
    /// Those of [`Handle::write`]; a device failure.
    pub fn mark_used(
        &self,
        handle: &mut Handle<'_>,
        allocation: &mut Allocation,
        len: u32,
    ) -> Result<BlockNo> {
        let left = allocation.len;
        let journal = self.journal();
        journal.check(len > 0 && len <= left, "blocks to mark used are in an allocation")?;
        let start = allocation.start;
        let group = &allocation.group;
        if Fault::ForgottenAllocation.is_injected() {
            group.release(&[(allocation.bit, len)]);
        }
        let mut state = group.lock();
        let known = state.map.as_ref().is_some_and(|map| map.is_allocated(allocation.bit, len));
        journal.check(known, "blocks to mark used are allocated in memory")?;
        let buffer = match allocation.bitmap.take() {
            Some(buffer) => buffer,
            None => state.block_bitmap_for_change(handle, &self.cache, group.number)?,
        };
        let mut bytes = handle.write(&buffer)?;
        let is_new = bitmap::all_clear(&bytes, allocation.bit, len);
        let free = state.desc.free_blocks().checked_sub(len).filter(|_| is_new);
        journal.check(free.is_some(), "blocks to mark used are free in the journaled bitmap")?;
        bitmap::set_range(&mut bytes, allocation.bit, len);
        drop(bytes);
        state.desc.set_free_blocks(free.unwrap_or(0));
        self.shared.journaled_blocks.add(group.number, -i64::from(len));
        self.write_desc(handle, group.number, &state.desc)?;
        drop(state);
        if Fault::LostBits.is_injected() {
            group.release(&[(allocation.bit, len)]);
        }
        allocation.bitmap = Some(buffer);
        allocation.advance(len);
        Ok(start)
    }

    /// Frees blocks of a file. They stay allocated in memory until the transaction is durable.
    /// Costs two credits for each group that the run touches. Every cluster of the run is freed.
    ///
    /// # Errors
    /// `Corrupt` if they are not all in use, or hold the file system's own metadata.
    pub fn free(&self, handle: &mut Handle<'_>, start: BlockNo, len: u32) -> Result<()> {
        self.check_run(start, u64::from(len))?;
        for part in self.group_parts(start, len) {
            let (number, bit, at, here) = part?;
            let _frees = self.shared.policy.lock_frees();
            self.free_in_group(handle, number, bit, here)?;
            let freed = Freed { start: at, len: here * self.layout.cluster_blocks };
            self.shared.pending_blocks.add(number, i64::from(here));
            if Fault::EarlyDiscard.is_injected() {
                self.discard_freed(&[freed]);
            }
            if Fault::EarlyReuse.is_injected() {
                self.release_in_group(number, &[freed]);
            } else {
                handle.freed(freed);
            }
        }
        Ok(())
    }

    /// Frees blocks of a file and returns them as an allocation, so that no other thread can get
    /// them. The run lies in one group. Costs two credits.
    pub(super) fn free_to_allocation(
        &self,
        handle: &mut Handle<'_>,
        start: BlockNo,
        len: u32,
    ) -> Result<Allocation> {
        let (number, bit) = self.locate(start)?;
        self.free_in_group(handle, number, bit, len)?;
        let group = Arc::clone(&self.groups[number.get() as usize]);
        let bitmap = group.lock().block_bitmap(&self.cache, number)?;
        Ok(Allocation { group, start, bit, len, bitmap })
    }

    /// Reads what [`Space::free`] of a run changes. While the pins live, freeing it reads nothing.
    /// Called before the handle starts.
    ///
    /// # Errors
    /// `Corrupt` where [`Space::free`] returns it; a corrupt bitmap; a device failure.
    pub fn pin_run(&self, start: BlockNo, len: u32) -> Result<Vec<Arc<Buffer>>> {
        self.check_run(start, u64::from(len))?;
        let mut pins = Vec::new();
        for part in self.group_parts(start, len) {
            let (number, bit, _, here) = part?;
            let group = &self.groups[number.get() as usize];
            let mut state = group.lock();
            let map = group.map(&mut state, &self.cache)?;
            let is_used = bitmap::all_set(map.allocated(), bit, here);
            let buffer = state.block_bitmap(&self.cache, number)?;
            if !is_used || buffer.as_ref().is_some_and(|b| !bitmap::all_set(&b.read(), bit, here)) {
                return Err(free_already(number));
            }
            pins.extend(buffer);
        }
        self.evict_maps();
        Ok(pins)
    }

    fn free_in_group(
        &self,
        handle: &mut Handle<'_>,
        number: GroupNo,
        bit: u32,
        len: u32,
    ) -> Result<()> {
        let group = &self.groups[number.get() as usize];
        let mut state = group.lock();
        group.map(&mut state, &self.cache)?;
        let buffer = state.block_bitmap_for_change(handle, &self.cache, number)?;
        if !bitmap::all_set(&buffer.read(), bit, len) {
            return Err(free_already(number));
        }
        bitmap::clear_range(&mut handle.write(&buffer)?, bit, len);
        let free = state.desc.free_blocks() + len;
        state.desc.set_free_blocks(free);
        self.shared.journaled_blocks.add(number, i64::from(len));
        self.write_desc(handle, number, &state.desc)
    }

    /// Releases runs whose freeing is durable, with each group's lock taken once.
    pub(super) fn release_by_group(&self, mut freed: Vec<Freed>) {
        freed.sort_unstable();
        freed.chunk_by(|a, b| self.group_of_freed(a) == self.group_of_freed(b)).for_each(|runs| {
            self.release_in_group(self.group_of_freed(&runs[0]), &joined(runs));
        });
    }

    pub(super) fn group_of_freed(&self, run: &Freed) -> GroupNo {
        self.locate(run.start).map_or(GroupNo(0), |(group, _)| group)
    }

    /// Releases runs of one group, which are in ascending order.
    pub(super) fn release_in_group(&self, number: GroupNo, runs: &[Freed]) {
        let group = &self.groups[number.get() as usize];
        let bit =
            |run: &Freed| Some((self.layout.bit_of(run.start)?.1, self.layout.bits_for(run.len)));
        let blocks = i64::from(group.release(&runs.iter().filter_map(bit).collect::<Vec<_>>()));
        self.shared.available.release(blocks);
        // In this order: a thread that finds nothing pending sees that there was a release.
        self.releases.fetch_add(1, Ordering::AcqRel);
        self.shared.pending_blocks.add(number, -blocks);
    }

    /// The clusters of a run by group: the group, the first bit, the first block, and the number of
    /// bits.
    pub(super) fn group_parts(
        &self,
        start: BlockNo,
        len: u32,
    ) -> impl Iterator<Item = Result<(GroupNo, u32, BlockNo, u32)>> {
        let before = self.layout.index_in_cluster(start.get());
        let start = BlockNo(start.get() - u64::from(before));
        let bits = self.layout.bits_for(len.saturating_add(before));
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = start.plus(u64::from(done) * u64::from(self.layout.cluster_blocks));
            let part = (done < bits).then(|| self.locate(at))?.map(|(number, bit)| {
                (number, bit, at, (bits - done).min(self.layout.bits_in_group(number) - bit))
            });
            done = part.as_ref().map_or(bits, |part| done + part.3);
            Some(part)
        })
    }

    pub(super) fn locate(&self, block: BlockNo) -> Result<(GroupNo, u32)> {
        self.layout.bit_of(block).ok_or_else(|| {
            let why = "lies outside the file system";
            CorruptKind::Rule { what: "block", why }.at(Place::Block(block)).into()
        })
    }
}

fn free_already(number: GroupNo) -> Error {
    let why = "a block to be freed is free already";
    CorruptKind::Rule { what: "block bitmap", why }.at(Place::Group(number)).into()
}

/// Ascending runs, with adjacent ones joined.
pub(super) fn joined(runs: &[Freed]) -> Vec<Freed> {
    let mut joined: Vec<Freed> = Vec::with_capacity(runs.len());
    for run in runs {
        let last = joined.last_mut();
        match last.filter(|last| last.start.plus(u64::from(last.len)) == run.start) {
            Some(last) if last.len.checked_add(run.len).is_some() => last.len += run.len,
            _ => joined.push(*run),
        }
    }
    joined
}
