//! Cache of metadata blocks.
//!
//! What: one [`Buffer`] for each cached block, shared by all threads that read or change it. Blocks
//! are verified when they are read from the device, and sealed (checksums computed) when they are
//! committed.
//! Invariants: a block has at most one live buffer. A referenced buffer is never evicted. A
//! transaction references the buffers it changes, so an evicted buffer is clean or its image is in
//! [`LoggedImages`], where the next read looks before it asks the device.
//! Locking: no ranked lock but leaves is taken under a shard lock, and it is never held over I/O.
//! The loading thread holds the lock of the buffer that it loads.
//! Kernel counterpart: `fs/buffer.c`.

mod buffer;
mod dirty;
mod logged;
mod page_set;
mod pages;
mod read_ahead;
mod seal;
mod spare;
mod throttle;

pub(crate) use buffer::Snapshot;
pub use buffer::{Buffer, BufferRead, BufferState, BufferWrite};
pub use dirty::{DirtyInodes, DirtyMark, Drain};
pub(crate) use logged::{CheckpointImage, LoggedImages};
pub use pages::{Page, PageBudget, PageImage, PageMap};
pub use seal::{BlockKind, Sealer};
pub use throttle::{Paced, Throttle};

use crate::error::{Error, Result};
use crate::injected_faults::Fault;
use crate::invariants::Invariants;
use crate::sync::{LockRank, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_device::SharedDevice;
use uext4_ondisk::BlockNo;
use uext4_ondisk::layout::Layout;
use uext4_ondisk::superblock::SUPERBLOCK_OFFSET;

/// Few in a simulation, whose volumes are so small that nothing would be evicted otherwise.
const SHARD_COUNT: usize = if cfg!(feature = "simulate") { 4 } else { 64 };

/// Metadata blocks in memory.
#[derive(Debug)]
pub struct Cache {
    device: SharedDevice,
    layout: Arc<Layout>,
    sealer: Sealer,
    logged: LoggedImages,
    shards: Box<[Mutex<Shard>]>,
    shard_blocks_max: usize,
    misses: AtomicU64,
    /// Whether the device is far, so that blocks are read ahead.
    is_far: bool,
    /// Blocks that are being read ahead.
    ahead: Mutex<FxHashSet<BlockNo>>,
    invariants: Arc<Invariants>,
}

#[derive(Debug, Default)]
struct Shard {
    buffers: FxHashMap<BlockNo, Arc<Buffer>>,
    /// Second-chance queue of the blocks in `buffers`. May name blocks that are gone.
    clock: VecDeque<BlockNo>,
    /// Number of buffers that have left.
    departures: u64,
}

impl Cache {
    /// A cache over `device` that keeps about `budget_bytes` of clean blocks.
    #[must_use]
    pub fn new(device: SharedDevice, layout: Arc<Layout>, budget_bytes: u64) -> Self {
        let blocks = budget_bytes / u64::from(layout.block_size);
        let shard_blocks = usize::try_from(blocks).unwrap_or(usize::MAX) / SHARD_COUNT;
        Self {
            is_far: device.is_far(),
            ahead: Mutex::new(LockRank::Leaf, FxHashSet::default()),
            device,
            sealer: Sealer::new(&layout),
            layout,
            logged: LoggedImages::default(),
            shards: (0..SHARD_COUNT)
                .map(|_| Mutex::new(LockRank::Shard, Shard::default()))
                .collect(),
            shard_blocks_max: shard_blocks.max(8),
            misses: AtomicU64::new(0),
            invariants: Arc::default(),
        }
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// The geometry of the volume.
    #[must_use]
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Block size in bytes.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.layout.block_size as usize
    }

    /// The block of the primary superblock, and the byte offset of the superblock in it.
    ///
    /// # Errors
    /// A device failure.
    pub(crate) fn superblock(&self) -> Result<(Arc<Buffer>, usize)> {
        let block_size = u64::from(self.layout.block_size);
        let buffer = self.read(BlockNo(SUPERBLOCK_OFFSET / block_size), BlockKind::Superblock)?;
        Ok((buffer, (SUPERBLOCK_OFFSET % block_size) as usize))
    }

    /// What becomes of broken invariants.
    #[must_use]
    pub fn invariants(&self) -> &Arc<Invariants> {
        &self.invariants
    }

    /// The checksums of the volume.
    #[must_use]
    pub fn sealer(&self) -> &Sealer {
        &self.sealer
    }

    /// Durable images that await checkpoint.
    pub(crate) fn logged(&self) -> &LoggedImages {
        &self.logged
    }

    /// Number of blocks in memory, and of reads that had to ask the device.
    #[must_use]
    pub fn occupancy(&self) -> (usize, u64) {
        let blocks = self.shards.iter().map(|s| s.lock().buffers.len()).sum();
        (blocks, self.misses.load(Ordering::Relaxed))
    }

    /// The block, read and verified as `kind` if it is not in memory.
    ///
    /// # Errors
    /// A device failure, a block out of range, a checksum that does not match, or a block that
    /// is in use as a structure of another kind.
    pub fn read(&self, block: BlockNo, kind: BlockKind) -> Result<Arc<Buffer>> {
        if block.get() >= self.layout.blocks_count {
            return Err(seal::out_of_range(block, kind).into());
        }
        loop {
            let buffer = self.find_or_add(block, kind);
            if !buffer.is_ready() {
                let loaded = buffer.load_with(|| self.load(block, kind));
                if !matches!(loaded, Ok(true)) {
                    self.remove_if_same(&buffer);
                }
                if !loaded? {
                    continue;
                }
            }
            buffer.expect_kind(kind)?;
            return Ok(buffer);
        }
    }

    fn find_or_add(&self, block: BlockNo, kind: BlockKind) -> Arc<Buffer> {
        let mut shard = self.shard(block).lock();
        if let Some(buffer) = shard.buffers.get(&block) {
            buffer.touch();
            return Arc::clone(buffer);
        }
        self.make_room(&mut shard);
        let buffer = Arc::new(Buffer::new(block, kind, None));
        shard.insert(&buffer);
        buffer
    }

    /// A zeroed buffer for a block that the caller owns and is about to write as a whole. An older
    /// buffer of the block is dropped.
    pub(crate) fn create(&self, block: BlockNo, kind: BlockKind) -> Arc<Buffer> {
        let zeroes: Arc<[u8]> = vec![0; self.block_size()].into();
        let buffer = Arc::new(Buffer::new(block, kind, Some(zeroes)));
        let mut shard = self.shard(block).lock();
        self.make_room(&mut shard);
        shard.insert(&buffer);
        buffer
    }

    /// The buffer of a block that its owner is about to replace as a whole, so that it is not read.
    /// Such a buffer is the first to be evicted, because file data must not evict metadata.
    ///
    /// # Errors
    /// The block is in use as a structure of another kind.
    pub(crate) fn for_replacement(&self, block: BlockNo, kind: BlockKind) -> Result<Arc<Buffer>> {
        let buffer = self.find_or_add(block, kind);
        if !buffer.is_ready() {
            buffer.take_touch();
        }
        buffer.expect_kind(kind)?;
        Ok(buffer)
    }

    /// The newest bytes of a block if they are in memory: in its buffer, or in an image that awaits
    /// checkpoint. `None` means that the newest bytes are at the final location, as long as no
    /// thread changes the block.
    pub(crate) fn newest(&self, block: BlockNo) -> Option<Arc<[u8]>> {
        let buffer = self.shard(block).lock().buffers.get(&block).map(Arc::clone);
        buffer.and_then(|buffer| buffer.image()).or_else(|| self.logged.get(block))
    }

    /// Drops the buffer of a freed block.
    pub(crate) fn remove(&self, block: BlockNo) -> Option<Arc<Buffer>> {
        self.shard(block).lock().remove(block)
    }

    fn shard(&self, block: BlockNo) -> &Mutex<Shard> {
        // The hash spreads neighbouring blocks (inode tables, bitmaps of a flex group) over shards.
        let hash = block.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.shards[usize::try_from(hash).unwrap_or(0) % SHARD_COUNT]
    }

    fn load(&self, block: BlockNo, kind: BlockKind) -> Result<Arc<[u8]>> {
        if let Some(image) = self.logged.get(block) {
            return Ok(image);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let mut bytes = vec![0; self.block_size()];
        self.device
            .read_at(block.get() * self.block_size() as u64, &mut bytes)
            .map_err(|e| Error::io(format!("reading {kind} block {block}"), e))?;
        if !Fault::UncheckedChecksum.is_injected() {
            self.sealer.verify(block, kind, &bytes)?;
        }
        Ok(bytes.into())
    }

    /// Evicts unreferenced blocks while the shard is over its budget.
    fn make_room(&self, shard: &mut Shard) {
        let mut looks = shard.clock.len();
        while shard.buffers.len() >= self.shard_blocks_max && looks > 0 {
            looks -= 1;
            let Some(block) = shard.clock.pop_front() else { return };
            let Some(buffer) = shard.buffers.get(&block) else { continue };
            if Arc::strong_count(buffer) > 1 || buffer.take_touch() {
                shard.clock.push_back(block);
            } else {
                shard.remove(block);
            }
        }
    }

    fn remove_if_same(&self, buffer: &Arc<Buffer>) {
        let mut shard = self.shard(buffer.block()).lock();
        if shard.buffers.get(&buffer.block()).is_some_and(|b| Arc::ptr_eq(b, buffer)) {
            shard.remove(buffer.block());
        }
    }
}

impl Shard {
    fn remove(&mut self, block: BlockNo) -> Option<Arc<Buffer>> {
        let removed = self.buffers.remove(&block);
        self.departures += u64::from(removed.is_some());
        removed
    }

    fn insert(&mut self, buffer: &Arc<Buffer>) {
        if self.buffers.insert(buffer.block(), Arc::clone(buffer)).is_none() {
            self.clock.push_back(buffer.block());
        }
        // Entries of blocks that are gone pile up only when blocks are freed and created again.
        if self.clock.len() > 2 * self.buffers.len() + 64 {
            let buffers = &self.buffers;
            let mut seen = rustc_hash::FxHashSet::default();
            self.clock.retain(|block| buffers.contains_key(block) && seen.insert(*block));
        }
    }
}
