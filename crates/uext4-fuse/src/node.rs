//! Node table: which inodes the kernel knows, and how many look-ups it owes us for each.
//!
//! Invariants:
//! - The node id is the inode number, but for the root (node 1, inode 2).
//! - An entry is a few words: the kernel may know millions of inodes, and the engine need keep none
//!   of them in memory for that.
//! - No inode number is reused while the kernel knows it. An entry holds the [`InodeRef`] of an
//!   inode that has lost its last link, and the drop that follows the last forget frees it. Who
//!   makes an entry looks at the links after that, and who takes the last link at the entry after
//!   that ([`NodeTable::keep_unlinked`]), each with a reference in hand: one sees the other.
//! - The generation tells an inode from another that got its number all the same.
//! - No [`InodeRef`] is dropped under a shard's lock: that drop may truncate a large file.
//!
//! Locking: one small mutex a shard, never held over a call into the engine.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::Mutex;
use uext4::{ErrorKind, Ino, InodeRef, Volume};
use uext4_fuse_server::Errno;

use crate::failure::Answer;

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
    generation: u32,
    /// Open files that can make pages dirty in the kernel.
    writers: u32,
    lookups: u64,
    /// The inode, once it has no links.
    unlinked: Option<Box<InodeRef>>,
}

type Shard = Mutex<HashMap<u64, Node, BuildHasherDefault<InoHasher>>>;

/// A shard with room for more than this, and eight times what it needs, gives memory back.
const IDLE_CAPACITY: usize = 1024;

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

    /// The inode of `node`.
    ///
    /// # Errors
    /// `ESTALE` when the kernel was never told of it; a failure to read it.
    pub(crate) fn get(&self, volume: &Volume, node: u64) -> Answer<InodeRef> {
        if node == ROOT_NODE {
            return Ok(self.root.clone());
        }
        let generation = self.shard(node).lock().get(&node).map(|known| known.generation);
        let (Some(generation), Ok(ino)) = (generation, u32::try_from(node)) else {
            return Err(Errno::STALE.into());
        };
        match volume.inode_again(Ino(ino), generation) {
            Err(error) if *error.kind() == ErrorKind::NotFound => Err(Errno::STALE.into()),
            other => Ok(other?),
        }
    }

    /// Counts one look-up of `inode` and returns its node id.
    pub(crate) fn remember(&self, inode: &InodeRef) -> u64 {
        let node = node_of(inode.ino());
        if node == ROOT_NODE {
            return node;
        }
        let generation = inode.generation();
        let unknown = || Node { generation, writers: 0, lookups: 0, unlinked: None };
        let other = {
            let mut shard = self.shard(node).lock();
            let known = shard.entry(node).or_insert_with(unknown);
            known.lookups += 1;
            let is_other = std::mem::replace(&mut known.generation, generation) != generation;
            if is_other { known.unlinked.take() } else { None }
        };
        drop(other);
        if inode.attributes().links == 0 {
            self.keep_unlinked(inode.clone());
        }
        node
    }

    /// Holds `inode` until the kernel forgets it, if it has lost its last link.
    pub(crate) fn keep_unlinked(&self, inode: InodeRef) {
        if inode.attributes().links > 0 {
            return;
        }
        let (node, generation) = (node_of(inode.ino()), inode.generation());
        let mut inode = Some(Box::new(inode));
        if let Some(known) = self.shard(node).lock().get_mut(&node)
            && known.generation == generation
        {
            std::mem::swap(&mut known.unlinked, &mut inode);
        }
        // Not under the lock.
        drop(inode);
    }

    /// Takes back `lookups` look-ups. True: it was the last one, and lets an unlinked inode go.
    pub(crate) fn forget(&self, node: u64, lookups: u64) -> bool {
        let gone = {
            let mut shard = self.shard(node).lock();
            match shard.get_mut(&node) {
                Some(known) if known.lookups > lookups => {
                    known.lookups -= lookups;
                    return false;
                }
                Some(_) => {}
                None => return false,
            }
            let gone = shard.remove(&node);
            if shard.capacity() > IDLE_CAPACITY.max(8 * shard.len()) {
                let some = 2 * shard.len();
                shard.shrink_to(some);
            }
            gone
        };
        gone.is_some_and(|gone| gone.unlinked.is_some())
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

    /// How many nodes the kernel knows, but for the root.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
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
