//! Reservation windows: blocks claimed beyond a need, so that a stream finds its next ones where
//! its last ones are.
//!
//! What: a [`Window`] holds one claim and where its stream goes on (`key`). A file that grows takes
//! from its own; small files of one block group share one (a locality group). A window that is
//! used up is followed by one four times its size, up to one maximal extent and a share of what is
//! free, so that streams side by side come to lie in a few long extents each.
//! Invariants: what a window holds is claimed in memory and stands in no bitmap that is written: a
//! crash loses nothing. Only a window that somebody uses ([`Window::open`]) holds blocks. Windows
//! are given back before an allocation fails or waits for a commit, and count as free for
//! statfs(2). Blocks go back into a window only if the running transaction has taken them, see
//! [`Space::free_or_recycle`].
//! Locking: a window's lock and the list's are leaves; a claim is dropped after they are released,
//! for that takes its group. Who changes metadata with a window's blocks takes the claim out
//! ([`Space::draw`]) and puts the rest back.
//! Kernel counterpart: preallocation in `fs/ext4/mballoc.c`.

use super::privilege::as_user;
use super::{Claim, Count, Space};
use crate::error::Result;
use crate::journal::Handle;
use crate::plant::{self, Fault};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use std::sync::{Arc, Weak};
use uext4_ondisk::extent::MAX_UNWRITTEN_LEN;
use uext4_ondisk::{BlockNo, Tid};

/// Blocks of a stream's first window.
const FIRST_BLOCKS: u32 = 16;
/// How much larger each following window is.
const GROWTH: u32 = 4;
/// A window holds at most this part of the free blocks.
const SHARE: i64 = 32;
const SHARD_COUNT: usize = 16;

/// Blocks held for a stream, or for the small files of a group.
#[derive(Debug)]
pub struct Window {
    inner: Mutex<Inner>,
    /// Whether the list of the space names it.
    listed: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Where the stream goes on: a block of the file; the group, for a locality group.
    key: u32,
    /// Blocks of the last window.
    size: u32,
    users: u32,
    /// What the transaction has taken for the file; see [`Space::free_or_recycle`].
    fresh: Fresh,
}

#[derive(Debug)]
enum State {
    Empty,
    Held(Claim),
    /// Somebody takes from it in a handle.
    Out,
    /// Likewise, and what is left is to be given back.
    Recalled,
}

/// The latest runs that a transaction has taken.
#[derive(Debug, Default)]
struct Fresh {
    tid: Option<Tid>,
    runs: Vec<(BlockNo, u32)>,
}

/// What a stream asks for.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Where in the stream.
    pub key: u32,
    /// Most blocks.
    pub want: u32,
    /// Blocks of a new window at least; 0: as the stream's windows have grown.
    pub ahead: u32,
    /// Where a new window would best begin.
    pub goal: BlockNo,
    /// The blocks that are wanted were promised before.
    pub promised: bool,
}

/// Counts of windows since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    /// Windows that hold blocks now.
    pub held: u64,
    /// Windows filled.
    pub filled: u64,
    /// Windows taken back because space ran out.
    pub recalled: u64,
    /// Blocks that went back into a window in the transaction that had taken them.
    pub recycled_blocks: u64,
}

/// All windows of a volume.
#[derive(Debug)]
pub(super) struct Windows {
    shards: Box<[Mutex<Vec<Weak<Window>>>]>,
    /// Windows that are not empty.
    held: AtomicUsize,
    filled: AtomicU64,
    recalled: AtomicU64,
    recycled_blocks: AtomicU64,
}

impl Windows {
    pub(super) fn new() -> Self {
        let shard = || Mutex::new(LockRank::Leaf, Vec::new());
        Self {
            shards: (0..SHARD_COUNT).map(|_| shard()).collect(),
            held: AtomicUsize::new(0),
            filled: AtomicU64::new(0),
            recalled: AtomicU64::new(0),
            recycled_blocks: AtomicU64::new(0),
        }
    }

    fn of_shard(shard: &Mutex<Vec<Weak<Window>>>) -> Vec<Arc<Window>> {
        shard.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Puts a window on the list, once.
    fn list(&self, window: &Arc<Window>) {
        if window.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let weak = Arc::downgrade(window);
        let shard = (weak.as_ptr().addr() >> 6) % SHARD_COUNT;
        let mut list = self.shards[shard].lock();
        if list.len() == list.capacity() {
            // Files come and go: the list stays as long as twice those in memory.
            list.retain(|window| window.strong_count() > 0);
        }
        list.push(weak);
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

impl Window {
    /// An empty window that nobody uses.
    #[must_use]
    pub fn new() -> Self {
        let inner =
            Inner { state: State::Empty, key: 0, size: 0, users: 0, fresh: Fresh::default() };
        Self { inner: Mutex::new(LockRank::Leaf, inner), listed: AtomicBool::new(false) }
    }

    /// One more user: from the first on it may hold blocks.
    pub fn open(&self) {
        self.inner.lock().users += 1;
    }

    /// A user goes; with the last one the blocks go back.
    pub fn close(&self, space: &Space) {
        let claim = {
            let mut inner = self.inner.lock();
            inner.users = inner.users.saturating_sub(1);
            if inner.users > 0 {
                return;
            }
            inner.size = 0;
            inner.empty()
        };
        space.let_go(claim);
    }

    /// Whether somebody uses it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.inner.lock().users > 0
    }

    /// Blocks held now, those not counted that somebody takes from.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        match &self.inner.lock().state {
            State::Held(claim) => claim.len(),
            State::Empty | State::Out | State::Recalled => 0,
        }
    }

    /// The file ends at `key` now: that is where the stream goes on.
    pub fn rewind(&self, key: u32) {
        let mut inner = self.inner.lock();
        inner.key = inner.key.min(key);
    }

    /// The transaction of `handle` has taken a run for the file that this is the window of, and no
    /// data is on its way there.
    pub fn note_taken(&self, handle: &Handle<'_>, start: BlockNo, len: u32) {
        self.inner.lock().fresh.note(handle.tid(), start, len);
    }
}

impl Inner {
    /// Takes the claim out; what somebody works with, he is to give back.
    fn empty(&mut self) -> Option<Claim> {
        match std::mem::replace(&mut self.state, State::Empty) {
            State::Held(claim) => Some(claim),
            State::Empty => None,
            State::Out | State::Recalled => {
                self.state = State::Recalled;
                None
            }
        }
    }
}

impl Fresh {
    /// Most runs that are kept in mind: those of a larger file wait for the commit when it is cut.
    const RUNS_MAX: usize = 16;

    fn note(&mut self, tid: Tid, start: BlockNo, len: u32) {
        if self.tid.replace(tid) != Some(tid) {
            self.runs.clear();
        }
        match self.runs.last_mut() {
            Some((last, count)) if last.plus(u64::from(*count)) == start => *count += len,
            _ => {
                if self.runs.len() == Self::RUNS_MAX {
                    self.runs.remove(0);
                }
                self.runs.push((start, len));
            }
        }
    }

    /// What of a run transaction `tid` has taken, and forgets that.
    fn forget(&mut self, tid: Tid, start: BlockNo, len: u32) -> Option<(BlockNo, u32)> {
        if self.tid != Some(tid) && !plant::is(Fault::LateRecycling) {
            return None;
        }
        let end = start.get() + u64::from(len);
        self.runs
            .iter()
            .enumerate()
            .rev()
            .find_map(|(index, &(first, count))| {
                let from = first.max(start);
                let to = end.min(first.get() + u64::from(count));
                let part =
                    u32::try_from(to.checked_sub(from.get())?).ok().filter(|&part| part > 0)?;
                Some((index, from, part))
            })
            .map(|(index, from, part)| {
                // Files are cut from their end; what remains of anything else is not worth knowing.
                let left = from.get() - self.runs[index].0.get();
                self.runs[index].1 = u32::try_from(left).unwrap_or(0);
                self.runs.retain(|&(_, count)| count > 0);
                (from, part)
            })
    }
}

/// A window's claim, taken out so that a handle can take from it. Dropping it puts the rest back.
#[derive(Debug)]
pub struct Draw<'a> {
    space: &'a Space,
    window: &'a Window,
    claim: Option<Claim>,
    taken: u32,
    fresh: Option<(Tid, BlockNo)>,
}

impl Draw<'_> {
    /// First block.
    #[must_use]
    pub fn start(&self) -> BlockNo {
        self.claim.as_ref().map_or(BlockNo(0), Claim::start)
    }

    /// Blocks left.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // an empty one is not drawn
    pub fn len(&self) -> u32 {
        self.claim.as_ref().map_or(0, Claim::len)
    }

    /// As [`Space::take`].
    ///
    /// # Errors
    /// As [`Space::take`].
    pub fn take(&mut self, handle: &mut Handle<'_>, len: u32) -> Result<BlockNo> {
        let claim = self.claim.as_mut().expect("a drawn window has its claim until it is dropped");
        let start = self.space.take(handle, claim, len)?;
        self.taken += len;
        self.fresh = Some((handle.tid(), start));
        Ok(start)
    }
}

impl Drop for Draw<'_> {
    fn drop(&mut self) {
        let mut rest = self.claim.take();
        let is_empty = {
            let mut inner = self.window.inner.lock();
            inner.key += self.taken;
            if let Some((tid, start)) = self.fresh {
                inner.fresh.note(tid, start, self.taken);
            }
            let is_wanted = matches!(inner.state, State::Out) && inner.users > 0;
            let kept = rest.take_if(|rest| is_wanted && rest.len() > 0);
            inner.state = kept.map_or(State::Empty, State::Held);
            matches!(inner.state, State::Empty)
        };
        if is_empty {
            self.space.windows.held.fetch_sub(1, Ordering::AcqRel);
        }
        drop(rest);
    }
}

impl Space {
    /// Counts of windows.
    #[must_use]
    pub fn window_stats(&self) -> WindowStats {
        let windows = &self.windows;
        WindowStats {
            held: windows.held.load(Ordering::Relaxed) as u64,
            filled: windows.filled.load(Ordering::Relaxed),
            recalled: windows.recalled.load(Ordering::Relaxed),
            recycled_blocks: windows.recycled_blocks.load(Ordering::Relaxed),
        }
    }

    /// Claims one run of at most `need.want` blocks: from the window if it goes on there, else
    /// from a new one. Not to be called with a handle open.
    ///
    /// # Errors
    /// As [`Space::claim`].
    pub fn claim_from(&self, window: &Arc<Window>, need: Need, moves: bool) -> Result<Claim> {
        let (size, stale) = {
            let mut inner = window.inner.lock();
            let goes_on = inner.key == need.key;
            if let State::Held(claim) = &mut inner.state
                && goes_on
            {
                let front = claim.split_front(need.want);
                if claim.len() == 0 {
                    inner.state = State::Empty;
                    self.windows.held.fetch_sub(1, Ordering::AcqRel);
                }
                inner.key += if moves { front.len() } else { 0 };
                self.shared.counters.add(Count::WindowHits, 1);
                return Ok(front);
            }
            let size = match inner.size {
                _ if inner.users == 0 || !self.shared.options.reserve => 0,
                _ if need.ahead > 0 => need.ahead,
                0 => FIRST_BLOCKS,
                size if goes_on => (size * GROWTH).min(MAX_UNWRITTEN_LEN),
                size => size,
            };
            (size, inner.empty())
        };
        self.let_go(stale);
        let mut claim = self.claim_ahead(need, size)?;
        let front = claim.split_front(need.want);
        if size > 0 {
            let key = need.key + if moves { front.len() } else { 0 };
            self.settle(window, claim, key, size);
        }
        Ok(front)
    }

    /// Claims what is wanted and up to `size` blocks together.
    fn claim_ahead(&self, need: Need, size: u32) -> Result<Claim> {
        let share = u32::try_from(self.shared.available.total() / SHARE).unwrap_or(u32::MAX);
        let extra = size.min(share).saturating_sub(need.want);
        if !need.promised {
            return self.claim(need.goal, need.want + extra);
        }
        // What is claimed ahead must leave what others were promised alone.
        let available = &self.shared.available;
        let ahead = || available.take(i64::from(extra), 1);
        let taken = if extra > 0 { as_user(ahead) } else { 0 };
        let claim = self.claim_reserved(need.goal, need.want + u32::try_from(taken).unwrap_or(0));
        available.give(taken);
        claim
    }

    /// Puts the rest of a new claim into its window.
    fn settle(&self, window: &Arc<Window>, claim: Claim, key: u32, size: u32) {
        let mut claim = Some(claim).filter(|claim| claim.len() > 0);
        if claim.is_some() {
            self.windows.list(window);
        }
        let mut inner = window.inner.lock();
        if inner.users > 0 && matches!(inner.state, State::Empty) {
            (inner.key, inner.size) = (key, size);
            if let Some(claim) = claim.take() {
                inner.state = State::Held(claim);
                self.windows.held.fetch_add(1, Ordering::AcqRel);
                self.windows.filled.fetch_add(1, Ordering::Relaxed);
            }
        }
        drop(inner);
        drop(claim);
    }

    /// Takes a window out that goes on at `key`, for a handle to take from.
    pub fn draw<'a>(&'a self, window: &'a Window, key: u32) -> Option<Draw<'a>> {
        let mut inner = window.inner.lock();
        if inner.key != key || !matches!(inner.state, State::Held(_)) {
            return None;
        }
        let State::Held(claim) = std::mem::replace(&mut inner.state, State::Out) else {
            unreachable!("looked at above")
        };
        self.shared.counters.add(Count::WindowHits, 1);
        Some(Draw { space: self, window, claim: Some(claim), taken: 0, fresh: None })
    }

    /// Frees blocks of a file as [`Space::free`] does; but what the running transaction has taken
    /// for the file goes back into its window and can be taken again at once.
    ///
    /// Why that is safe: a block that T takes is one that no durable or committing transaction
    /// says is in use, or it could not have been claimed. If T takes it and frees it, then nothing
    /// that a crash may bring back leads there: before T is durable the state before it counts, in
    /// which the block is free; after that the state at its end, in which it is free, or what T
    /// took it for last. So whatever is written there meanwhile is written to a free block, or to
    /// its owner. Blocks with an image in the log are not recycled (the caller sees to it), nor are
    /// blocks that data may still be on its way to. Had an earlier transaction taken the block, a
    /// crash before T is durable would bring the file back with the block of another.
    ///
    /// # Errors
    /// As [`Space::free`].
    pub fn free_or_recycle(
        &self,
        handle: &mut Handle<'_>,
        window: &Arc<Window>,
        start: BlockNo,
        len: u32,
    ) -> Result<()> {
        let fresh = window
            .inner
            .lock()
            .fresh
            .forget(handle.tid(), start, len)
            .filter(|_| self.shared.options.reserve);
        let Some((from, part)) = fresh else { return self.free(handle, start, len) };
        let before = u32::try_from(from.get() - start.get()).unwrap_or(0);
        if before > 0 {
            self.free(handle, start, before)?;
        }
        if len > before + part {
            self.free(handle, from.plus(u64::from(part)), len - before - part)?;
        }
        self.windows.recycled_blocks.fetch_add(u64::from(part), Ordering::Relaxed);
        let (mut at, mut left) = (from, part);
        while left > 0 {
            // A stream goes on from the end of a group in the next one; a claim does not.
            let (group, bit) = self.locate(at)?;
            let here = left.min(self.layout.blocks_in_group(group) - bit);
            self.restore(window, self.free_to_claim(handle, at, here)?);
            at = at.plus(u64::from(here));
            left -= here;
        }
        Ok(())
    }

    /// Puts blocks back before those that a window holds, if they lie there.
    fn restore(&self, window: &Arc<Window>, mut claim: Claim) {
        self.windows.list(window);
        let mut inner = window.inner.lock();
        let mut left = None;
        if inner.users == 0 {
            left = Some(claim);
        } else {
            match std::mem::replace(&mut inner.state, State::Empty) {
                State::Empty => {
                    inner.state = State::Held(claim);
                    self.windows.held.fetch_add(1, Ordering::AcqRel);
                }
                State::Held(rest) => {
                    // The one that the stream comes to next is the better one to hold.
                    left = claim.join(rest);
                    inner.state = State::Held(claim);
                }
                state => {
                    inner.state = state;
                    left = Some(claim);
                }
            }
        }
        drop(inner);
        drop(left);
    }

    /// Takes all windows back, because space runs out; false if that brings nothing. Takes groups,
    /// so not to be called with a page lock held. May pause for those who take from a window now.
    pub fn give_back_windows(&self) -> bool {
        if self.windows.held.load(Ordering::Acquire) == 0 || plant::is(Fault::HoardedWindows) {
            return false;
        }
        let (mut found, mut out) = (false, false);
        for shard in &self.windows.shards {
            for window in Windows::of_shard(shard) {
                let claim = {
                    let mut inner = window.inner.lock();
                    inner.size /= GROWTH;
                    let claim = inner.empty();
                    out |= matches!(inner.state, State::Recalled);
                    claim
                };
                found |= claim.is_some();
                let given = u64::from(claim.is_some());
                self.shared.counters.add(Count::WindowsGivenBack, given);
                self.windows.recalled.fetch_add(given, Ordering::Relaxed);
                self.let_go(claim);
            }
        }
        if !found && out {
            crate::sync::thread::pause();
        }
        found || out
    }

    fn let_go(&self, claim: Option<Claim>) {
        if claim.is_some() {
            self.windows.held.fetch_sub(1, Ordering::AcqRel);
        }
        drop(claim);
    }

    /// What all windows hold, but for those that somebody takes from now.
    pub(super) fn window_blocks(&self) -> i64 {
        let windows = self.windows.shards.iter().flat_map(Windows::of_shard);
        windows.map(|window| i64::from(window.blocks())).sum()
    }
}
