//! Telling the device which blocks are unused: trim and `-o discard`.
//!
//! What: [`Space::trim`] discards the free runs of all groups, as fstrim(8) asks for.
//! [`Space::discard_freed`] discards what a transaction has freed, before it can be allocated
//! again.
//! Invariants: **a block is discarded only while no caller can allocate it**. On the device it is
//! free: neither the journaled bitmap has it nor is it pending, so that no crash recovery needs it.
//! In memory it is allocated, or still pending, until the device has answered. Blocks that are
//! being discarded count as pending, so that a caller that finds nothing else waits for them.
//! Locking: the group's lock for the allocation; no lock while the device works.
//! Kernel counterpart: `ext4_trim_fs`, `ext4_issue_discard`.

use super::available::Use;
use super::block::joined;
use super::{Allocation, Space};
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::journal::Freed;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use uext4_ondisk::{BlockNo, GroupNo, bitmap};

/// Called with the reason when the first discard fails.
pub type DiscardHook = Box<dyn Fn(&str) + Send + Sync>;

/// The discards of a volume, and how the device answered.
#[derive(Default)]
pub struct Discards {
    /// Freed blocks are discarded.
    on_free: AtomicBool,
    /// Trims that have blocks allocated.
    running: AtomicU32,
    requests: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    /// The device cannot discard: `-o discard` does not ask it again.
    unsupported: AtomicBool,
    hook: OnceLock<DiscardHook>,
}

/// Counts since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardStats {
    /// Requests that succeeded.
    pub requests: u64,
    /// Bytes in these.
    pub bytes: u64,
    /// Requests that failed, or that the device does not support.
    pub failures: u64,
}

impl fmt::Debug for Discards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discards").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Discards {
    /// Discards what is freed from now on (`-o discard`).
    pub(crate) fn discard_on_free(&self) {
        self.on_free.store(true, Ordering::Relaxed);
    }

    /// Sets what the first failure calls, on any thread. Only the first hook counts.
    pub(crate) fn set_hook(&self, hook: DiscardHook) {
        let _ = self.hook.set(hook);
    }

    /// Counts.
    #[must_use]
    pub fn stats(&self) -> DiscardStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiscardStats {
            requests: load(&self.requests),
            bytes: load(&self.bytes),
            failures: load(&self.failures),
        }
    }

    /// Gives a running trim time to release its blocks.
    pub(super) fn wait(&self) {
        if self.running.load(Ordering::Acquire) > 0 {
            crate::sync::thread::pause();
        }
    }
}

/// A free run that a trim has allocated.
struct TrimRun<'a> {
    space: &'a Space,
    allocation: Option<Allocation>,
    number: GroupNo,
    len: u32,
}

impl Drop for TrimRun<'_> {
    fn drop(&mut self) {
        // In this order: the blocks are counted at every moment, and a thread that finds nothing
        // pending sees that there was a release.
        drop(self.allocation.take());
        self.space.releases.fetch_add(1, Ordering::AcqRel);
        self.space.shared.pending_blocks.add(self.number, -i64::from(self.len));
    }
}

impl Space {
    /// The discards of the volume.
    #[must_use]
    pub fn discards(&self) -> &Discards {
        &self.discards
    }

    /// Discards the free runs of at least `min_len` bytes in the `len` bytes from byte `start` of
    /// the file system. Returns how many bytes. Units and checks are those of `FITRIM`: whole
    /// blocks count, and a run across the end of the range counts with its part inside. Other
    /// calls continue meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument` for a range that begins behind the end or is shorter than a block, or a
    /// minimum longer than a group; `Unsupported` if the device cannot discard; a corrupt bitmap;
    /// a device failure.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let layout = &self.layout;
        let block_size = u64::from(layout.block_size);
        let (first, blocks) = (start / block_size, len / block_size);
        let least = u32::try_from(min_len / block_size).unwrap_or(u32::MAX).max(1);
        let least_bits = layout.bits_for(least);
        if first >= layout.blocks_count || blocks == 0 || least > layout.blocks_per_group {
            let context = format!("nothing to trim in {len} bytes from {start}, least {min_len}");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let end = first.saturating_add(blocks).min(layout.blocks_count);
        let first = first.max(layout.first_data_block.get());
        let Some((group, bit)) = layout.bit_of(BlockNo(first)) else { return Ok(0) };
        let mut trimmed = 0;
        for number in group.get()..layout.group_count {
            let number = GroupNo(number);
            let begin = layout.group_first_block(number).get();
            if begin >= end {
                break;
            }
            let inside = u32::try_from(end - begin).unwrap_or(u32::MAX);
            let to = layout.bits_for(inside).min(layout.bits_in_group(number));
            let from = if number == group { bit } else { 0 };
            trimmed += self.trim_group(number, from..to, least_bits)?;
        }
        Ok(trimmed * block_size)
    }

    /// Blocks discarded.
    fn trim_group(&self, number: GroupNo, bits: Range<u32>, least: u32) -> Result<u64> {
        if self.groups[number.get() as usize].free_blocks() < least {
            return Ok(0);
        }
        self.discards.running.fetch_add(1, Ordering::AcqRel);
        let trimmed = self.trim_runs(number, bits, least);
        self.discards.running.fetch_sub(1, Ordering::AcqRel);
        self.evict_released_maps();
        trimmed
    }

    fn trim_runs(&self, number: GroupNo, mut bits: Range<u32>, least: u32) -> Result<u64> {
        let mut trimmed = 0;
        while let Some((run, bit)) = self.allocate_free_run(number, bits.clone(), least)? {
            let start = self.layout.block_of_bit(number, bit);
            let len = run.len * self.layout.cluster_blocks;
            bits.start = bit + run.len;
            let _run = (!Fault::UnallocatedTrim.is_injected()).then_some(run);
            trimmed += self.discard(start, len)?;
        }
        Ok(trimmed)
    }

    /// Allocates the first free run of a group within `bits` that is long enough and not reserved.
    /// Returns it and its first bit.
    fn allocate_free_run(
        &self,
        number: GroupNo,
        bits: Range<u32>,
        least: u32,
    ) -> Result<Option<(TrimRun<'_>, u32)>> {
        let group = &self.groups[number.get() as usize];
        let mut state = group.lock();
        let allocated = group.map(&mut state, &self.cache)?.allocated();
        let run = bitmap::free_runs(allocated, bits.start, bits.end).find(|run| run.1 >= least);
        let Some((bit, len)) = run else { return Ok(None) };
        let bitmap = state.block_bitmap(&self.cache, number)?;
        // Reserved blocks are not available to a trim. Those set aside are, because it returns
        // them.
        let allowed = self.shared.available.reserve(len.into(), least.into(), Use::Nodes);
        let Some(len) = u32::try_from(allowed).ok().filter(|&len| len > 0) else {
            return Ok(None);
        };
        let allocated = group.allocate(&mut state, bit, len, bitmap.as_deref());
        allocated.inspect_err(|_| self.shared.available.release(len.into()))?;
        self.shared.pending_blocks.add(number, i64::from(len));
        let start = self.layout.block_of_bit(number, bit);
        let group = Arc::clone(group);
        let allocation = Some(Allocation { group, start, bit, len, bitmap: None });
        Ok(Some((TrimRun { space: self, allocation, number, len }, bit)))
    }

    /// Discards whole clusters; the last one of the file system may be short. Returns how many
    /// blocks.
    fn discard(&self, start: BlockNo, len: u32) -> Result<u64> {
        let block_size = u64::from(self.layout.block_size);
        let len = u64::from(len).min(self.layout.blocks_count.saturating_sub(start.get()));
        let bytes = len * block_size;
        let discards = &self.discards;
        let (why, error) = match self.cache.device().discard(start.get() * block_size, bytes) {
            Ok(true) => {
                discards.requests.fetch_add(1, Ordering::Relaxed);
                discards.bytes.fetch_add(bytes, Ordering::Relaxed);
                return Ok(len);
            }
            Ok(false) => {
                discards.unsupported.store(true, Ordering::Relaxed);
                let error = Error::new(ErrorKind::Unsupported, "the device cannot discard blocks");
                ("the device cannot".to_owned(), error)
            }
            Err(error) => {
                let context = format!("discarding {len} blocks from {start}");
                (error.to_string(), Error::io(context, error))
            }
        };
        if discards.failures.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(hook) = discards.hook.get()
        {
            hook(&why);
        }
        Err(error)
    }

    /// Discards runs that have been freed durably and cannot be allocated yet (`-o discard`). A
    /// failure is counted, and the first is reported; otherwise it has no effect.
    pub(super) fn discard_freed(&self, freed: &[Freed]) {
        if !self.discards.on_free.load(Ordering::Relaxed) {
            return;
        }
        let mut freed = freed.to_vec();
        freed.sort_unstable();
        for Freed { start, len } in joined(&freed) {
            if self.discards.unsupported.load(Ordering::Relaxed) {
                return;
            }
            // `discard` has counted a failure.
            let _ = self.discard(start, len);
        }
    }
}
