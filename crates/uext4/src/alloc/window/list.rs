//! All windows of a volume: their counts, and taking them back when space runs out.

use super::{GROWTH, State, Window};
use crate::alloc::{Count, Space};
use crate::plant::{self, Fault};
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{LockRank, Mutex};
use std::sync::{Arc, Weak};

const SHARD_COUNT: usize = 16;

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
pub(in crate::alloc) struct Windows {
    shards: Box<[Mutex<Vec<Weak<Window>>>]>,
    /// Windows that are not empty.
    pub(super) held: AtomicUsize,
    pub(super) filled: AtomicU64,
    recalled: AtomicU64,
    pub(super) recycled_blocks: AtomicU64,
}

impl Windows {
    pub(in crate::alloc) fn new() -> Self {
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
    pub(super) fn list(&self, window: &Arc<Window>) {
        if window.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let weak = Arc::downgrade(window);
        let mut list = self.shards[shard_of(&weak)].lock();
        if list.len() == list.capacity() {
            // Files come and go: the list stays as long as twice those in memory.
            list.retain(|window| window.strong_count() > 0);
        }
        list.push(weak);
    }
}

/// Spread by address; in a simulation, whose runs must not depend on addresses, by thread.
fn shard_of(window: &Weak<Window>) -> usize {
    let number = match cfg!(feature = "simulate") {
        true => crate::sync::thread::slot(),
        false => window.as_ptr().addr() >> 6,
    };
    number % SHARD_COUNT
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

    /// Takes all windows back, because space runs out; false if that brings nothing. Takes groups,
    /// so not to be called with a page lock held. May pause for those who take from a window now.
    pub fn give_back_windows(&self) -> bool {
        if self.windows.held.load(Ordering::Acquire) == 0 || plant::is(Fault::HoardedWindows) {
            return false;
        }
        let (mut found, mut out) = (false, false);
        for shard in &self.windows.shards {
            for window in Windows::of_shard(shard) {
                let (claim, pieces) = {
                    let mut inner = window.inner.lock();
                    inner.size /= GROWTH;
                    let claim = inner.empty();
                    out |= matches!(inner.state, State::Recalled);
                    (claim, std::mem::take(&mut inner.pieces))
                };
                let given = u64::from(claim.is_some()) + u64::from(!pieces.is_empty());
                found |= given > 0;
                self.shared.counters.add(Count::WindowsGivenBack, given);
                self.windows.recalled.fetch_add(given, Ordering::Relaxed);
                self.let_go(claim);
                self.let_go_pieces(pieces);
            }
        }
        if !found && out {
            crate::sync::thread::pause();
        }
        found || out
    }

    /// What all windows hold, but for those that somebody takes from now.
    pub(in crate::alloc) fn window_blocks(&self) -> i64 {
        let windows = self.windows.shards.iter().flat_map(Windows::of_shard);
        windows.map(|window| i64::from(window.blocks())).sum()
    }
}
