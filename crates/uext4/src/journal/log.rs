//! The log as a ring of blocks: their places on the device, and which are in use.
//!
//! On disk: blocks `first .. end` of the journal inode, or of the journal device. The block before
//! `first` holds the journal superblock, as a rule.
//! Invariants: the largest transaction always fits, because the next transaction opens only when
//! `Journal::has_room` says so. Blocks become free only when the tail has durably moved past them.

use super::locate::LogLocation;
use crate::error::{Error, Result};
use std::collections::VecDeque;
use uext4_device::{SharedDevice, WriteRun};
use uext4_ondisk::journal::superblock::RawJournalSuperblock;
use uext4_ondisk::{BlockNo, Tid};

/// Blocks of the journal on the device.
#[derive(Debug)]
pub(super) struct LogMap {
    device: SharedDevice,
    /// Whether the device is the journal's alone, so that a flush of the other does not cover it.
    is_apart: bool,
    block_size: usize,
    /// Physical block of each journal block, as runs: (journal block, start, count).
    runs: Vec<(u32, BlockNo, u32)>,
    /// The block of the journal superblock.
    superblock: u32,
    /// First block of the ring.
    pub(super) first: u32,
    /// One past the last block of the ring.
    pub(super) end: u32,
}

impl LogMap {
    /// The log at `location`. `device` is the file system's.
    pub(super) fn new(
        device: &SharedDevice,
        block_size: usize,
        location: LogLocation,
        first: u32,
        end: u32,
    ) -> Self {
        let LogLocation { runs, device: apart, superblock } = location;
        let is_apart = apart.is_some();
        let device = apart.unwrap_or_else(|| device.clone());
        Self { device, is_apart, block_size, runs, superblock, first, end }
    }

    pub(super) fn is_apart(&self) -> bool {
        self.is_apart
    }

    /// Makes what was written to a journal device durable. Of a journal inside the file system the
    /// flush of that does so.
    pub(super) fn flush_apart(&self) -> Result<()> {
        if !self.is_apart {
            return Ok(());
        }
        self.flush()
    }

    /// Whether the log is best written durably at once: the flush before the commit block then has
    /// nothing left to do, if no data was written beside it.
    pub(super) fn writes_through(&self) -> bool {
        self.device.writes_through()
    }

    /// Makes what was written to the log durable, and all else on its device.
    pub(super) fn flush(&self) -> Result<()> {
        self.device.flush().map_err(|e| Error::io("flushing the journal's device", e))
    }

    /// Reads the block of the journal superblock.
    pub(super) fn read_superblock(&self, bytes: &mut [u8]) -> Result<()> {
        self.read(self.superblock, bytes)
    }

    pub(super) fn len(&self) -> u32 {
        self.end - self.first
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Device byte offset of journal block `at`, and the number of contiguous blocks from there.
    fn locate(&self, at: u32) -> Option<(u64, u32)> {
        let index = self.runs.partition_point(|&(first, _, _)| first <= at).checked_sub(1)?;
        let (first, start, count) = self.runs[index];
        let skip = at - first;
        (skip < count)
            .then(|| ((start.get() + u64::from(skip)) * self.block_size as u64, count - skip))
    }

    /// Reads journal block `at`.
    pub(super) fn read(&self, at: u32, bytes: &mut [u8]) -> Result<()> {
        let (offset, _) = self.locate(at).ok_or_else(|| unmapped(at))?;
        self.device
            .read_at(offset, bytes)
            .map_err(|e| Error::io(format!("reading journal block {at}"), e))
    }

    /// Writes `blocks` from journal block `first` on, wrapping at the end of the ring: one vectored
    /// write for each contiguous piece, all in one call. Returns the position after the last block.
    /// With `durable` they are in no volatile cache then.
    pub(super) fn write(&self, first: u32, mut blocks: &[&[u8]], durable: bool) -> Result<u32> {
        let mut at = first;
        let mut runs = Vec::with_capacity(2);
        while !blocks.is_empty() {
            let (offset, contiguous) = self.locate(at).ok_or_else(|| unmapped(at))?;
            let until_wrap = (self.end - at).min(contiguous) as usize;
            let (bufs, later) = blocks.split_at(until_wrap.min(blocks.len()));
            runs.push(WriteRun { offset, bufs });
            at = self.after(at, bufs.len() as u32);
            blocks = later;
        }
        let written = match durable {
            true => self.device.write_many_fua(&runs),
            false => self.device.write_many(&runs),
        };
        written.map_err(|e| Error::io(format!("writing journal blocks from {first} on"), e))?;
        Ok(at)
    }

    /// Writes one block. With `durable` it is in no volatile cache when this returns.
    pub(super) fn write_block(&self, at: u32, block: &[u8], durable: bool) -> Result<()> {
        let (offset, _) = self.locate(at).ok_or_else(|| unmapped(at))?;
        let written = match durable {
            true => self.device.write_fua(offset, block),
            false => self.device.write_at(offset, block),
        };
        written.map_err(|e| Error::io(format!("writing journal block {at}"), e))
    }

    /// Seals and writes the journal superblock, [`LogMap::write_block`] says how durably.
    pub(super) fn write_superblock(
        &self,
        superblock: &mut RawJournalSuperblock,
        durable: bool,
    ) -> Result<()> {
        superblock.seal();
        let mut bytes = vec![0; self.block_size];
        bytes[..superblock.bytes().len()].copy_from_slice(superblock.bytes());
        self.write_block(self.superblock, &bytes, durable)
    }

    /// The ring position `count` blocks after `at`.
    pub(super) fn after(&self, at: u32, count: u32) -> u32 {
        self.first + (at - self.first + count) % self.len()
    }
}

fn unmapped(at: u32) -> Error {
    Error::new(crate::error::ErrorKind::Internal, format!("journal block {at} is not mapped"))
}

/// Which blocks of the ring are in use.
#[derive(Debug)]
pub(super) struct LogRing {
    /// Next block to write.
    pub(super) head: u32,
    /// Blocks not in use.
    pub(super) free: u32,
    /// Transactions in the log that are not fully checkpointed, oldest first, including the one
    /// being written: id, first block, number of blocks.
    entries: VecDeque<(Tid, u32, u32)>,
}

/// The start of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogTail {
    pub(super) tid: Tid,
    pub(super) start: u32,
    /// Blocks that become free when the tail is durably here.
    pub(super) gained: u32,
}

impl LogRing {
    pub(super) fn empty(map: &LogMap) -> Self {
        // One block is never used, so that a full ring differs from an empty one.
        Self { head: map.first, free: map.len() - 1, entries: VecDeque::new() }
    }

    /// Takes blocks for transaction `tid`. Returns the first one; `None` if the ring does not end
    /// with the transaction before `tid`, or has no room, although `tid` was opened.
    pub(super) fn reserve(&mut self, map: &LogMap, tid: Tid, blocks: u32) -> Option<u32> {
        let follows = |&(last, start, len): &(Tid, u32, u32)| {
            last.next() == tid && map.after(start, len) == self.head
        };
        if self.free < blocks || !self.entries.back().is_none_or(follows) {
            return None;
        }
        let start = self.head;
        self.head = map.after(start, blocks);
        self.free -= blocks;
        self.entries.push_back((tid, start, blocks));
        Some(start)
    }

    /// Drops the transactions before `oldest`, or all up to `durable` if there is none, and returns
    /// the new tail. `next` is the id of the transaction that will be written at `head`.
    pub(super) fn advance(&mut self, oldest: Option<Tid>, durable: Tid, next: Tid) -> LogTail {
        let mut gained = 0;
        while let Some(&(tid, _, blocks)) = self.entries.front() {
            let needed = match oldest {
                Some(oldest) => !oldest.is_after(tid),
                None => tid.is_after(durable),
            };
            if needed {
                break;
            }
            gained += blocks;
            self.entries.pop_front();
        }
        let (tid, start) = self.entries.front().map_or((next, self.head), |&(t, s, _)| (t, s));
        LogTail { tid, start, gained }
    }

    /// The oldest transaction in the log that is not fully checkpointed, and its first block.
    pub(super) fn oldest(&self) -> Option<(Tid, u32)> {
        self.entries.front().map(|&(tid, start, _)| (tid, start))
    }

    /// Whether the blocks from `tail` to the head are those in use.
    pub(super) fn holds(&self, map: &LogMap, tail: LogTail) -> bool {
        let used = map.len().checked_sub(1 + self.free + tail.gained);
        used.is_some_and(|used| map.after(tail.start, used) == self.head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use uext4_device::MemoryDevice;

    fn map() -> LogMap {
        let device: SharedDevice = Arc::new(MemoryDevice::new(64 * 1024));
        // Journal blocks 0..4 at 10, 4..12 at 20; the ring is 1..12.
        let runs = vec![(0, BlockNo(10), 4), (4, BlockNo(20), 8)];
        LogMap::new(&device, 1024, LogLocation { runs, ..LogLocation::default() }, 1, 12)
    }

    #[test]
    fn writes_follow_runs_and_wrap() {
        let map = map();
        let blocks: Vec<Vec<u8>> = (0..6).map(|i| vec![i; 1024]).collect();
        let views: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        assert_eq!(map.write(9, &views, false).unwrap(), 4);
        let mut read = vec![0; 1024];
        for (i, at) in [9, 10, 11, 1, 2, 3].into_iter().enumerate() {
            map.read(at, &mut read).unwrap();
            assert_eq!(usize::from(read[0]), i);
        }
    }

    #[test]
    fn a_ring_that_was_damaged_is_noticed() {
        let map = map();
        let ring = || {
            let mut ring = LogRing::empty(&map);
            assert_eq!(ring.reserve(&map, Tid(7), 3), Some(1));
            ring
        };
        let tail = LogTail { tid: Tid(7), start: 1, gained: 0 };
        assert!(ring().holds(&map, tail));
        assert_eq!(ring().reserve(&map, Tid(9), 1), None, "a transaction is missing");
        assert_eq!(ring().reserve(&map, Tid(8), 8), None, "there is no room");
        let head = LogRing { head: 5, ..ring() };
        assert!(!head.holds(&map, tail));
        let mut head = head;
        assert_eq!(head.reserve(&map, Tid(8), 1), None, "the head is elsewhere");
        let free = |free| LogRing { free, ..ring() }.holds(&map, tail);
        assert!(!free(8) && !free(6) && !free(11) && free(7));
        assert!(!ring().holds(&map, LogTail { gained: 1, ..tail }));
    }

    #[test]
    fn the_tail_moves_to_the_oldest_transaction_that_is_needed() {
        let map = map();
        let mut ring = LogRing::empty(&map);
        assert_eq!(ring.reserve(&map, Tid(7), 3), Some(1));
        assert_eq!(ring.reserve(&map, Tid(8), 2), Some(4));
        assert_eq!(ring.reserve(&map, Tid(9), 2), Some(6));
        let tail = ring.advance(Some(Tid(8)), Tid(9), Tid(10));
        assert_eq!(tail, LogTail { tid: Tid(8), start: 4, gained: 3 });
        // No transaction is needed, but 9 is not durable yet.
        let tail = ring.advance(None, Tid(8), Tid(10));
        assert_eq!(tail, LogTail { tid: Tid(9), start: 6, gained: 2 });
        let tail = ring.advance(None, Tid(9), Tid(10));
        assert_eq!(tail, LogTail { tid: Tid(10), start: 8, gained: 2 });
    }
}
