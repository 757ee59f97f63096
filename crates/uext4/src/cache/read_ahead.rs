//! Reading metadata blocks before they are asked for, many at a time.
//!
//! What: the blocks that are not in memory are read by one call of the device, neighbours by one
//! request of it, and become clean buffers. It pays where a request takes long
//! (`Device::is_far`).
//! Invariants: a buffer that is inserted holds the newest bytes. No thread can change a block
//! without a buffer of it, and none can come and go while the block is read, because departures
//! from its shard are counted. The caller sees to it that the blocks keep their owner: it holds
//! the directory's lock, or they are of a kind that never moves. A failure, or a block that fails
//! its checks, inserts nothing: the caller that needs the block reads it and gets the error.

use super::{BlockKind, Buffer, Cache};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_device::ReadRun;
use uext4_ondisk::BlockNo;

/// Most bytes of one request of the device.
const RUN_BYTES_MAX: usize = 1 << 20;

/// A block to be read, and the departures from its shard before.
struct Absent {
    block: BlockNo,
    kind: BlockKind,
    departures: u64,
}

impl Cache {
    /// Whether reading ahead pays.
    pub(crate) fn is_far(&self) -> bool {
        self.is_far
    }

    /// Whether a block is in memory, or is being read.
    pub(crate) fn has_buffer(&self, block: BlockNo) -> bool {
        self.shard(block).lock().buffers.contains_key(&block)
    }

    /// Reads those of the blocks that are not in memory, and that no other call of this reads.
    pub(crate) fn read_ahead(&self, blocks: impl IntoIterator<Item = (BlockNo, BlockKind)>) {
        let mut absent = self.absent(blocks);
        absent.sort_unstable_by_key(|one| one.block);
        let block_size = self.block_size();
        let mut bytes = vec![0; absent.len() * block_size];
        let follows = |a: &Absent, b: &Absent| a.block.plus(1) == b.block;
        let most = RUN_BYTES_MAX / block_size;
        let mut reads = Vec::new();
        let mut rest = &mut *bytes;
        for run in absent.chunk_by(follows).flat_map(|run| run.chunks(most.max(1))) {
            let (buf, after) = rest.split_at_mut(run.len() * block_size);
            reads.push(ReadRun { offset: run[0].block.get() * block_size as u64, buf });
            rest = after;
        }
        let read = if reads.is_empty() { Ok(()) } else { self.device.read_many(&mut reads) };
        if read.is_ok() {
            self.misses.fetch_add(absent.len() as u64, Ordering::Relaxed);
            for (one, image) in absent.iter().zip(bytes.chunks_exact(block_size)) {
                self.insert_read(one, image);
            }
        }
        let mut ahead = self.ahead.lock();
        for one in &absent {
            ahead.remove(&one.block);
        }
    }

    /// Those of the blocks that have to be read. They are marked as being read ahead.
    fn absent(&self, blocks: impl IntoIterator<Item = (BlockNo, BlockKind)>) -> Vec<Absent> {
        let mut absent = Vec::new();
        for (block, kind) in blocks {
            if block.get() >= self.layout.blocks_count {
                continue;
            }
            let departures = {
                let shard = self.shard(block).lock();
                if shard.buffers.contains_key(&block) {
                    continue;
                }
                shard.departures
            };
            // Looked at after the departures: an image that leaves its transaction's buffer is
            // here first.
            if self.logged.get(block).is_none() && self.ahead.lock().insert(block) {
                absent.push(Absent { block, kind, departures });
            }
        }
        absent
    }

    fn insert_read(&self, one: &Absent, image: &[u8]) {
        if self.sealer.verify(one.block, one.kind, image).is_err() {
            return;
        }
        let buffer = Arc::new(Buffer::new(one.block, one.kind, Some(image.into())));
        let mut shard = self.shard(one.block).lock();
        if shard.departures == one.departures && !shard.buffers.contains_key(&one.block) {
            self.make_room(&mut shard);
            shard.insert(&buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicU64;
    use std::io;
    use std::sync::OnceLock;
    use std::sync::Weak;
    use uext4_device::{Device, MemoryDevice};
    use uext4_ondisk::layout::Layout;
    use uext4_ondisk::superblock::{RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

    /// Memory whose reads are counted. While blocks are read ahead, a block comes and goes.
    #[derive(Debug)]
    struct Meddled {
        memory: MemoryDevice,
        calls: AtomicU64,
        runs: AtomicU64,
        cache: OnceLock<(Weak<Cache>, BlockNo)>,
    }

    impl Device for Meddled {
        fn len(&self) -> u64 {
            self.memory.len()
        }
        fn read_only(&self) -> bool {
            false
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.memory.read_at(offset, buf)
        }
        fn read_many(&self, reads: &mut [ReadRun<'_>]) -> io::Result<()> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            self.runs.fetch_add(reads.len() as u64, Ordering::Relaxed);
            reads.iter_mut().try_for_each(|run| self.read_at(run.offset, run.buf))?;
            if let Some((cache, block)) = self.cache.get()
                && let Some(cache) = cache.upgrade()
            {
                // Another thread reads it, changes it, writes it and evicts it.
                cache.create(*block, BlockKind::Data);
                self.memory.write_at(block.get() * cache.block_size() as u64, &[9; 8])?;
                cache.remove(*block);
            }
            Ok(())
        }
        fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
            self.memory.write_at(offset, buf)
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
        fn punch(&self, _: u64, _: u64) -> io::Result<bool> {
            Ok(false)
        }
    }

    fn cache() -> Option<(Arc<Cache>, Arc<Meddled>)> {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8 << 20).unwrap();
        let mut mke2fs = std::process::Command::new("/sbin/mke2fs");
        match mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096"]).arg(image.path()).status() {
            Ok(status) => assert!(status.success()),
            Err(error) => {
                eprintln!("skipped: mke2fs: {error}");
                return None;
            }
        }
        let memory = MemoryDevice::load(image.path()).unwrap();
        let mut bytes = [0; SUPERBLOCK_SIZE];
        memory.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
        let superblock = RawSuperblock::read(&bytes).unwrap();
        let layout = Arc::new(Layout::new(&superblock, Some(memory.len())).unwrap());
        let (calls, runs) = (AtomicU64::new(0), AtomicU64::new(0));
        let device = Arc::new(Meddled { memory, calls, runs, cache: OnceLock::new() });
        Some((Arc::new(Cache::new(device.clone(), layout, 8 << 20)), device))
    }

    fn data(blocks: impl IntoIterator<Item = u64>) -> Vec<(BlockNo, BlockKind)> {
        blocks.into_iter().map(|block| (BlockNo(block), BlockKind::Data)).collect()
    }

    /// Fault model: neighbours are read one by one; what is in memory is read again.
    #[test]
    fn neighbours_are_one_request_and_what_is_there_is_none() {
        let Some((cache, device)) = cache() else { return };
        cache.read(BlockNo(1003), BlockKind::Data).unwrap();
        cache.read_ahead(data([1010, 1000, 1001, 1002, 1003, 1004, 1 << 40]));
        let counts = [&device.calls, &device.runs].map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [1, 3], "calls, and 1000 to 1002, 1004, 1010");
        assert!(data([1000, 1002, 1004, 1010]).iter().all(|(block, _)| cache.has_buffer(*block)));
        assert!(cache.ahead.lock().is_empty());
    }

    /// Fault model: a block changes and leaves memory while it is read, and the old bytes stay.
    #[test]
    fn a_block_that_came_and_went_is_not_kept() {
        let Some((cache, device)) = cache() else { return };
        device.cache.set((Arc::downgrade(&cache), BlockNo(1001))).unwrap();
        cache.read_ahead(data([1000, 1001, 1002]));
        assert_eq!(cache.read(BlockNo(1001), BlockKind::Data).unwrap().read()[..8], [9; 8]);
        assert!(cache.has_buffer(BlockNo(1000)));
    }
}
