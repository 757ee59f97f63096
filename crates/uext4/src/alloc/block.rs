//! Claiming, taking and freeing blocks.
//!
//! Policy: from the goal's group on, a first pass takes only a run of the whole length from a
//! group that nobody holds; a second takes what there is, still skipping held groups; the last
//! waits for each group.

use super::Space;
use super::group::{Group, GroupState};
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::{Freed, Handle};
use crate::plant::{self, Fault};
use crate::sync::atomic::Ordering;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, CorruptKind, GroupNo, Place, bitmap};

/// Blocks that nobody else can take, not yet in the journaled bitmap. Dropping it gives them
/// back.
#[derive(Debug)]
pub struct Claim {
    space: Arc<Space>,
    start: BlockNo,
    len: u32,
    /// Keeps the bitmap in memory, so that taking the blocks reads nothing.
    bitmap: Option<Arc<Buffer>>,
}

impl Claim {
    /// First block.
    #[must_use]
    pub fn start(&self) -> BlockNo {
        self.start
    }

    /// Number of blocks left.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // an empty claim only drops
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Takes the first `len` blocks as a claim of their own; at most as many as there are.
    #[must_use]
    pub fn split_front(&mut self, len: u32) -> Self {
        let len = len.min(self.len);
        let front = Self {
            space: Arc::clone(&self.space),
            start: self.start,
            len,
            bitmap: self.bitmap.clone(),
        };
        self.start = self.start.plus(u64::from(len));
        self.len -= len;
        front
    }

    /// Takes in a claim that goes on where this one ends; else that one comes back.
    pub(super) fn join(&mut self, mut next: Self) -> Option<Self> {
        let group = |claim: &Self| claim.space.layout.group_of(claim.start).map(|(group, _)| group);
        if self.start.plus(u64::from(self.len)) != next.start || group(self) != group(&next) {
            return Some(next);
        }
        self.len += std::mem::take(&mut next.len);
        None
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.len > 0 {
            self.space.unclaim(Freed { start: self.start, len: self.len });
        }
    }
}

/// Longest wait for promised blocks, in pauses of about a millisecond.
const CLAIM_WAITS_MAX: u32 = 200;

/// How choosy a pass over the groups is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// The whole length, in a group nobody holds.
    Whole,
    /// Any run, in a group nobody holds.
    Any,
    /// Any run; waits for the group.
    Last,
}

impl Space {
    /// Claims one run of at most `want` blocks near `goal`. Not to be called with a handle open:
    /// it may wait for a commit that makes freed blocks usable.
    ///
    /// # Errors
    /// `NoSpace`; a corrupt bitmap; a device failure.
    pub fn claim(&self, goal: BlockNo, want: u32) -> Result<Claim> {
        loop {
            if let Some(claim) = self.claim_unreserved(goal, want)? {
                return Ok(claim);
            }
            if !self.reclaim_pending()? {
                return Err(Error::new(ErrorKind::NoSpace, String::new()));
            }
        }
    }

    /// As [`Space::claim`] for blocks that were reserved before; the caller gives the
    /// reservation back for what it got. What was promised may lie in claims of others that are
    /// about to be dropped (nodes claimed for a worst case), or have moved between groups while
    /// they were searched one after the other: that is waited for.
    ///
    /// # Errors
    /// As [`Space::claim`]; `NoSpace` means that the counters disagree with the bitmaps.
    pub fn claim_reserved(&self, goal: BlockNo, want: u32) -> Result<Claim> {
        let mut waits = 0;
        loop {
            if let Some(claim) = self.search(goal, want)? {
                return Ok(claim);
            }
            if self.reclaim_pending()? {
                continue;
            }
            if waits == CLAIM_WAITS_MAX {
                return Err(Error::new(ErrorKind::NoSpace, String::new()));
            }
            waits += 1;
            crate::sync::thread::pause();
        }
    }

    /// Leaves alone what is promised to cached data.
    fn claim_unreserved(&self, goal: BlockNo, want: u32) -> Result<Option<Claim>> {
        // Promised to ourselves while we search, so that no promise to others is broken.
        let taken = self.promise(i64::from(want), 1);
        if taken == 0 {
            return Ok(None);
        }
        let found = self.search(goal, u32::try_from(taken).unwrap_or(want));
        self.reserved_blocks.fetch_sub(taken, Ordering::AcqRel);
        found
    }

    /// Journals `len` blocks off the front of a claim: they belong to a file from now on. Costs
    /// two credits.
    ///
    /// # Errors
    /// Those of [`Handle::write`]; a device failure.
    pub fn take(&self, handle: &mut Handle<'_>, claim: &mut Claim, len: u32) -> Result<BlockNo> {
        assert!(len > 0 && len <= claim.len, "taking {len} of {} claimed blocks", claim.len);
        let start = claim.start;
        let (number, bit) = self.locate(start)?;
        let mut state = self.groups[number.get() as usize].lock();
        let buffer = state.block_bitmap_for_change(handle, &self.cache, number)?;
        bitmap::set_range(&mut handle.write(&buffer)?, bit, len);
        let free = state.desc.free_blocks().saturating_sub(len);
        state.desc.set_free_blocks(free);
        self.journaled_blocks.fetch_sub(i64::from(len), Ordering::AcqRel);
        self.write_desc(handle, number, &state.desc)?;
        claim.start = start.plus(u64::from(len));
        claim.len -= len;
        Ok(start)
    }

    /// Frees blocks of a file. They stay busy until the transaction is durable. Costs two
    /// credits for each group that the run touches.
    ///
    /// # Errors
    /// `Corrupt` if they are not all in use, or hold the file system's own metadata.
    pub fn free(&self, handle: &mut Handle<'_>, start: BlockNo, len: u32) -> Result<()> {
        self.check_run(start, u64::from(len))?;
        let mut at = start;
        let mut left = len;
        while left > 0 {
            let (number, bit) = self.locate(at)?;
            let here = left.min(self.layout.blocks_in_group(number) - bit);
            self.free_in_group(handle, number, bit, here)?;
            let freed = Freed { start: at, len: here };
            self.pending_blocks.fetch_add(i64::from(here), Ordering::AcqRel);
            if plant::is(Fault::EarlyReuse) {
                self.release(freed);
            } else {
                handle.freed(freed);
            }
            at = at.plus(u64::from(here));
            left -= here;
        }
        Ok(())
    }

    /// Frees blocks of a file into a claim: nobody else can take them meanwhile. The run lies in one
    /// group. Costs two credits.
    pub(super) fn free_to_claim(
        &self,
        handle: &mut Handle<'_>,
        start: BlockNo,
        len: u32,
    ) -> Result<Claim> {
        let (number, bit) = self.locate(start)?;
        self.free_in_group(handle, number, bit, len)?;
        let bitmap = self.groups[number.get() as usize].lock().block_bitmap(&self.cache, number)?;
        Ok(Claim { space: self.shared(), start, len, bitmap })
    }

    /// Reads what [`Space::free`] of a run changes: while the pins live, it reads nothing. To be
    /// called before the handle.
    ///
    /// # Errors
    /// `Corrupt` as [`Space::free`]; a corrupt bitmap; a device failure.
    pub fn pin_run(&self, start: BlockNo, len: u32) -> Result<Vec<Arc<Buffer>>> {
        self.check_run(start, u64::from(len))?;
        let mut pins = Vec::new();
        let (mut at, mut left) = (start, len);
        while left > 0 {
            let (number, bit) = self.locate(at)?;
            let here = left.min(self.layout.blocks_in_group(number) - bit);
            let mut state = self.groups[number.get() as usize].lock();
            let is_used = bitmap::all_set(state.busy(&self.cache, number)?, bit, here);
            let buffer = state.block_bitmap(&self.cache, number)?;
            if !is_used || buffer.as_ref().is_some_and(|b| !bitmap::all_set(&b.read(), bit, here)) {
                return Err(free_already(number));
            }
            pins.extend(buffer);
            at = at.plus(u64::from(here));
            left -= here;
        }
        Ok(pins)
    }

    fn free_in_group(
        &self,
        handle: &mut Handle<'_>,
        number: GroupNo,
        bit: u32,
        len: u32,
    ) -> Result<()> {
        let mut state = self.groups[number.get() as usize].lock();
        state.busy(&self.cache, number)?;
        let buffer = state.block_bitmap_for_change(handle, &self.cache, number)?;
        if !bitmap::all_set(&buffer.read(), bit, len) {
            return Err(free_already(number));
        }
        bitmap::clear_range(&mut handle.write(&buffer)?, bit, len);
        let free = state.desc.free_blocks() + len;
        state.desc.set_free_blocks(free);
        self.journaled_blocks.fetch_add(i64::from(len), Ordering::AcqRel);
        self.write_desc(handle, number, &state.desc)
    }

    /// The freeing of a run is durable: it can be claimed.
    pub(super) fn release(&self, run: Freed) {
        self.pending_blocks.fetch_sub(i64::from(run.len), Ordering::AcqRel);
        self.unclaim(run);
    }

    fn unclaim(&self, run: Freed) {
        let Ok((number, bit)) = self.locate(run.start) else { return };
        let group = &self.groups[number.get() as usize];
        let mut state = group.lock();
        if let Some(busy) = &mut state.busy {
            bitmap::clear_range(busy, bit, run.len);
        }
        group.blocks_released(run.len);
        self.free_blocks.fetch_add(i64::from(run.len), Ordering::AcqRel);
    }

    fn search(&self, goal: BlockNo, want: u32) -> Result<Option<Claim>> {
        let (goal_group, goal_bit) = self.layout.group_of(goal).unwrap_or((GroupNo(0), 0));
        for pass in [Pass::Whole, Pass::Any, Pass::Last] {
            let count = self.layout.group_count;
            for step in 0..count {
                let number = GroupNo((goal_group.get() + step) % count);
                let from = if step == 0 { goal_bit } else { 0 };
                if let Some(claim) = self.search_group(number, from, want, pass)? {
                    return Ok(Some(claim));
                }
            }
        }
        Ok(None)
    }

    fn search_group(
        &self,
        number: GroupNo,
        from: u32,
        want: u32,
        pass: Pass,
    ) -> Result<Option<Claim>> {
        let group = &self.groups[number.get() as usize];
        let blocks = self.layout.blocks_in_group(number);
        let least = if pass == Pass::Whole { want.min(blocks / 2) } else { 1 };
        if group.free_blocks() < least || group.largest_run() < least {
            return Ok(None);
        }
        let state = if pass == Pass::Last { Some(group.lock()) } else { group.try_lock() };
        let Some(mut state) = state else { return Ok(None) };
        let Some((bit, len)) = self.find_run(group, &mut state, number, from, want, least)? else {
            return Ok(None);
        };
        let bitmap = state.block_bitmap(&self.cache, number)?;
        if let Some(busy) = &mut state.busy {
            bitmap::set_range(busy, bit, len);
        }
        group.blocks_claimed(len);
        self.free_blocks.fetch_sub(i64::from(len), Ordering::AcqRel);
        let start = self.layout.group_first_block(number).plus(u64::from(bit));
        Ok(Some(Claim { space: self.shared(), start, len, bitmap }))
    }

    /// A free run of at least `least` and at most `want` blocks: at the goal, else the first
    /// long enough after it, else the longest.
    fn find_run(
        &self,
        group: &Group,
        state: &mut GroupState,
        number: GroupNo,
        from: u32,
        want: u32,
        least: u32,
    ) -> Result<Option<(u32, u32)>> {
        let blocks = self.layout.blocks_in_group(number);
        let busy = state.busy(&self.cache, number)?;
        let mut longest = (0, 0);
        for (begin, end) in [(from, blocks), (0, from)] {
            for (bit, len) in bitmap::free_runs(busy, begin, end) {
                if len >= want || (bit == from && len >= least) {
                    return Ok(Some((bit, len.min(want))));
                }
                if len > longest.1 {
                    longest = (bit, len);
                }
            }
        }
        if from == 0 {
            // Only a search that did not cut a run in two knows the longest.
            group.note_largest_run(longest.1);
        }
        Ok((longest.1 >= least).then_some(longest))
    }

    pub(super) fn locate(&self, block: BlockNo) -> Result<(GroupNo, u32)> {
        self.layout.group_of(block).ok_or_else(|| {
            let why = "lies outside the file system";
            CorruptKind::Rule { what: "block", why }.at(Place::Block(block)).into()
        })
    }
}

fn free_already(number: GroupNo) -> Error {
    let why = "a block to be freed is free already";
    CorruptKind::Rule { what: "block bitmap", why }.at(Place::Group(number)).into()
}
