//! Node table: which inodes the kernel holds, and how many look-ups it owes us for each.
//!
//! Invariants:
//! - The node id is the inode number, but for the root (node 1, inode 2).
//! - An entry holds an [`InodeRef`], so an inode number cannot be reused while the kernel knows it:
//!   an unlinked inode is freed by the drop that follows the last forget.
//! - No [`InodeRef`] is dropped under a shard's lock: that drop may truncate a large file.
//!
//! Locking: one small mutex a shard, never held over a call into the engine.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;
use uext4::{Ino, InodeRef};

/// Shards of the table; a power of two.
const SHARDS: usize = 64;

/// Node id of the root in the FUSE protocol.
pub(crate) const ROOT_NODE: u64 = 1;

/// Spreads inode numbers, which are small and dense, over the buckets.
#[derive(Default)]
struct InoHasher(u64);

impl Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // Fibonacci hashing: an odd constant near 2^64 / golden ratio.
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

struct Node {
    inode: InodeRef,
    lookups: u64,
    /// Open files that can make pages dirty in the kernel.
    writers: u64,
}

type Shard = Mutex<HashMap<u64, Node, BuildHasherDefault<InoHasher>>>;

/// The nodes that the kernel knows.
pub(crate) struct NodeTable {
    root: InodeRef,
    shards: Box<[Shard]>,
}

impl NodeTable {
    /// A table that knows only the root.
    pub(crate) fn new(root: InodeRef) -> Self {
        Self { root, shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    fn shard(&self, node: u64) -> &Shard {
        // The mask keeps the index below SHARDS, so the cast loses nothing.
        &self.shards[(node & (SHARDS as u64 - 1)) as usize]
    }

    /// The inode of `node`; `None` when the kernel was never told of it.
    pub(crate) fn get(&self, node: u64) -> Option<InodeRef> {
        if node == ROOT_NODE {
            return Some(self.root.clone());
        }
        self.shard(node).lock().get(&node).map(|n| n.inode.clone())
    }

    /// Counts one look-up of `inode` and returns its node id.
    pub(crate) fn remember(&self, inode: InodeRef) -> u64 {
        let node = node_of(inode.ino());
        if node == ROOT_NODE {
            return node;
        }
        let mut shard = self.shard(node).lock();
        if let Some(known) = shard.get_mut(&node) {
            known.lookups += 1;
            drop(shard);
            // Here, and not under the lock, the second reference goes.
            drop(inode);
        } else {
            shard.insert(node, Node { inode, lookups: 1, writers: 0 });
        }
        node
    }

    /// Takes back `lookups` look-ups; the last one lets the inode go.
    pub(crate) fn forget(&self, node: u64, lookups: u64) {
        let gone = {
            let mut shard = self.shard(node).lock();
            match shard.get_mut(&node) {
                Some(known) if known.lookups > lookups => {
                    known.lookups -= lookups;
                    None
                }
                Some(_) => shard.remove(&node),
                None => None,
            }
        };
        drop(gone);
    }

    /// Counts an open file that may be written.
    pub(crate) fn add_writer(&self, node: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.writers += 1;
        }
    }

    /// Takes back what [`NodeTable::add_writer`] counted.
    pub(crate) fn remove_writer(&self, node: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.writers = known.writers.saturating_sub(1);
        }
    }

    /// Whether the kernel may hold dirty pages of `node`.
    pub(crate) fn has_writers(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|known| known.writers > 0)
    }

    /// Forgets everything but the root: the kernel sends no forgets at unmount.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            drop(gone);
        }
    }
}

/// The node id of an inode number.
pub(crate) fn node_of(ino: Ino) -> u64 {
    if ino == Ino::ROOT { ROOT_NODE } else { u64::from(ino.get()) }
}
