//! Open-file table: file handles the kernel holds.
//!
//! Invariants: a handle is `slot * SHARDS + shard`; the kernel sends each handle it was given in
//! exactly one release. Slots are reused, so the table is as large as the most files ever open.
//!
//! Locking: a reader-writer lock a shard, held only to copy an [`Arc`] out or in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use uext4::OpenFile;

/// Shards of the table.
const SHARDS: u64 = 32;

#[derive(Default)]
struct Shard {
    slots: Vec<Option<Arc<OpenFile>>>,
    free: Vec<usize>,
}

/// The open files of a mount.
pub(crate) struct FileTable {
    shards: Box<[RwLock<Shard>]>,
    next: AtomicU64,
}

impl FileTable {
    /// An empty table.
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Self { shards, next: AtomicU64::new(0) }
    }

    /// Keeps `file` and returns its handle.
    pub(crate) fn insert(&self, file: OpenFile) -> u64 {
        let file = Some(Arc::new(file));
        let number = self.next.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.shards[number as usize].write();
        let slot = match shard.free.pop() {
            Some(slot) => {
                shard.slots[slot] = file;
                slot
            }
            None => {
                shard.slots.push(file);
                shard.slots.len() - 1
            }
        };
        slot as u64 * SHARDS + number
    }

    /// The file of `handle`; `None` for a handle that was never given out.
    pub(crate) fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let shard = self.shards[(handle % SHARDS) as usize].read();
        shard.slots.get((handle / SHARDS) as usize)?.clone()
    }

    /// Gives `handle` up. The file closes when the last request on it is done.
    pub(crate) fn remove(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let slot = (handle / SHARDS) as usize;
        let mut shard = self.shards[(handle % SHARDS) as usize].write();
        let file = shard.slots.get_mut(slot)?.take()?;
        shard.free.push(slot);
        Some(file)
    }

    /// Closes everything: the kernel sends no releases after the connection is gone.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.write());
            drop(gone);
        }
    }
}
