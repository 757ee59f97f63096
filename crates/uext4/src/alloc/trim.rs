//! Telling the device which blocks nobody needs: trim and `-o discard`.
//!
//! What: [`Space::trim`] goes through the groups and discards free runs, as fstrim(8) asks for;
//! [`Space::discard_freed`] discards what a transaction has freed, before it can be allocated.
//! Invariants: **a block is discarded only while nobody can have it**: it is free on the device
//! (neither in the journaled bitmap nor pending, so a crash finds nothing that needs it), and it
//! is allocated, or still pending, in memory until the device has answered. Blocks that are being
//! discarded count as pending: who finds nothing else waits for them.
//! Locking: group lock for an allocation; none while the device works.
//! Kernel counterpart: `ext4_trim_fs`, `ext4_issue_discard`.

use super::available::Use;
use super::{Allocation, Space};
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Freed;
use crate::plant::{self, Fault};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use uext4_ondisk::{BlockNo, GroupNo, bitmap};

/// Called with why the first discard failed.
pub type DiscardHook = Box<dyn Fn(&str) + Send + Sync>;

/// What was told the device, and what it said.
#[derive(Default)]
pub struct Discards {
    /// Freed blocks are discarded.
    on_free: AtomicBool,
    /// Trims that hold blocks allocated.
    running: AtomicU32,
    requests: AtomicU64,
    bytes: AtomicU64,
    failures: AtomicU64,
    /// The device cannot: it is not asked again for what is freed.
    unsupported: AtomicBool,
    hook: OnceLock<DiscardHook>,
}

/// Counts since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardStats {
    /// Requests that the device took.
    pub requests: u64,
    /// Bytes in these.
    pub bytes: u64,
    /// Requests that failed, or that the device cannot do.
    pub failures: u64,
}

impl fmt::Debug for Discards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discards").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl Discards {
    /// `-o discard`: what is freed is discarded.
    pub(crate) fn discard_on_free(&self) {
        self.on_free.store(true, Ordering::Relaxed);
    }

    /// What the first failure calls, on any thread; the first hook stays.
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

    /// Gives a trim time to give its blocks back, if there is one.
    pub(super) fn wait(&self) {
        if self.running.load(Ordering::Acquire) > 0 {
            crate::sync::thread::pause();
        }
    }

    fn note(&self, bytes: u64, done: &io::Result<bool>) {
        let why = match done {
            Ok(true) => {
                self.requests.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                return;
            }
            Ok(false) => {
                self.unsupported.store(true, Ordering::Relaxed);
                "the device cannot".to_owned()
            }
            Err(error) => error.to_string(),
        };
        if self.failures.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(hook) = self.hook.get()
        {
            hook(&why);
        }
    }
}

/// A free run that a trim holds.
struct Held<'a> {
    space: &'a Space,
    allocation: Option<Allocation>,
    number: GroupNo,
    start: BlockNo,
    len: u32,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // In this order: at no moment do the blocks count nowhere, and who finds nothing pending
        // sees that there was a release.
        drop(self.allocation.take());
        self.space.releases.fetch_add(1, Ordering::AcqRel);
        self.space.count_pending(self.number, -i64::from(self.len));
    }
}

/// One group's part of a trim.
#[derive(Clone, Copy)]
struct Part {
    number: GroupNo,
    from: u32,
    to: u32,
}

impl Space {
    /// What the device was told.
    #[must_use]
    pub fn discards(&self) -> &Discards {
        &self.discards
    }

    /// Discards the free runs of at least `min_len` bytes in the `len` bytes from byte `start` of
    /// the file system; returns how many bytes. Units and checks are those of `FITRIM`: whole
    /// blocks count, and a run that the range cuts counts as far as it is inside. Others go on
    /// meanwhile.
    ///
    /// # Errors
    /// `InvalidArgument` for a range that begins behind the end or is shorter than a block, or a
    /// minimum that exceeds a group; `Unsupported` if the device cannot discard; a corrupt bitmap;
    /// a device failure.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let layout = &self.layout;
        let block_size = u64::from(layout.block_size);
        let (first, blocks) = (start / block_size, len / block_size);
        let least = u32::try_from(min_len / block_size).unwrap_or(u32::MAX).max(1);
        if first >= layout.blocks_count || blocks == 0 || least > layout.blocks_per_group {
            let context = format!("nothing to trim in {len} bytes from {start}, least {min_len}");
            return Err(Error::new(ErrorKind::InvalidArgument, context));
        }
        let end = first.saturating_add(blocks).min(layout.blocks_count);
        let first = first.max(layout.first_data_block.get());
        let Some((group, bit)) = layout.group_of(BlockNo(first)) else { return Ok(0) };
        let mut trimmed = 0;
        for number in group.get()..layout.group_count {
            let number = GroupNo(number);
            let begin = layout.group_first_block(number).get();
            if begin >= end {
                break;
            }
            let inside = u32::try_from(end - begin).unwrap_or(u32::MAX);
            let to = inside.min(layout.blocks_in_group(number));
            let from = if number == group { bit } else { 0 };
            trimmed += self.trim_group(Part { number, from, to }, least)?;
        }
        Ok(trimmed * block_size)
    }

    /// Blocks discarded.
    fn trim_group(&self, part: Part, least: u32) -> Result<u64> {
        if self.groups[part.number.get() as usize].free_blocks() < least {
            return Ok(0);
        }
        let mut trimmed = 0;
        let mut rest = part;
        self.discards.running.fetch_add(1, Ordering::AcqRel);
        let result = loop {
            match self.hold_free_run(rest, least) {
                Ok(Some((held, next))) => {
                    rest.from = next;
                    let (start, len) = (held.start, held.len);
                    let held = (!plant::is(Fault::UnallocatedTrim)).then_some(held);
                    let done = self.discard(start, len);
                    drop(held);
                    match done {
                        Ok(()) => trimmed += u64::from(len),
                        Err(error) => break Err(error),
                    }
                }
                Ok(None) => break Ok(trimmed),
                Err(error) => break Err(error),
            }
        };
        self.discards.running.fetch_sub(1, Ordering::AcqRel);
        self.evict_released_maps();
        result
    }

    /// Allocates the first free run of a part that is long enough and not promised to cached data;
    /// returns it and where to go on.
    fn hold_free_run(&self, part: Part, least: u32) -> Result<Option<(Held<'_>, u32)>> {
        let Part { number, from, to } = part;
        let group = &self.groups[number.get() as usize];
        let mut state = group.lock();
        let busy = group.map(&mut state, &self.cache)?.busy();
        let Some((bit, len)) = bitmap::free_runs(busy, from, to).find(|&(_, len)| len >= least)
        else {
            return Ok(None);
        };
        // As for every other allocation: what is promised to others is not to be had. What is kept
        // back is, for it comes back.
        let allowed = self.shared.available.reserve(len.into(), least.into(), Use::Nodes);
        let Some(len) = u32::try_from(allowed).ok().filter(|&len| len > 0) else {
            return Ok(None);
        };
        group.allocate(&mut state, bit, len);
        self.count_pending(number, i64::from(len));
        let start = self.layout.group_first_block(number).plus(u64::from(bit));
        let allocation = Some(Allocation::new(Arc::clone(group), start, bit, len, None));
        Ok(Some((Held { space: self, allocation, number, start, len }, bit + len)))
    }

    fn count_pending(&self, number: GroupNo, blocks: i64) {
        self.shared.pending_blocks.add(number.get() as usize, blocks);
    }

    fn discard(&self, start: BlockNo, len: u32) -> Result<()> {
        let block_size = u64::from(self.layout.block_size);
        let bytes = u64::from(len) * block_size;
        let done = self.cache.device().discard(start.get() * block_size, bytes);
        self.discards.note(bytes, &done);
        match done {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::new(ErrorKind::Unsupported, "the device cannot discard blocks"))
            }
            Err(error) => {
                let context = format!("discarding {len} blocks from {start}");
                Err(Error::io(context, error))
            }
        }
    }

    /// With `-o discard`: these runs have been freed durably and cannot be allocated yet. Whether
    /// the device forgets them is its affair: failures are counted, the first is told.
    pub(super) fn discard_freed(&self, freed: &[Freed]) {
        if !self.discards.on_free.load(Ordering::Relaxed) {
            return;
        }
        let mut freed = freed.to_vec();
        freed.sort_unstable();
        let mut rest = freed.into_iter();
        let mut run = rest.next();
        while let Some(Freed { start, mut len }) = run {
            run = rest.next();
            while let Some(next) = run.filter(|next| next.start == start.plus(u64::from(len))) {
                len = match len.checked_add(next.len) {
                    Some(len) => len,
                    None => break,
                };
                run = rest.next();
            }
            if self.discards.unsupported.load(Ordering::Relaxed) {
                return;
            }
            // Noted where it failed.
            let _ = self.discard(start, len);
        }
    }
}
