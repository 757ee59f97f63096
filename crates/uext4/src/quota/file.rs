//! A quota file in the metadata cache.
//!
//! Invariants: `runs` has the blocks of the file without a gap, from its first on. Entries are
//! inserted by one thread at a time, which holds the lock of the quota inode.

use crate::cache::{BlockKind, Buffer, Cache};
use crate::error::{Error, Result};
use crate::journal::Handle;
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4_ondisk::quota::{
    self as format, BLOCK_SIZE, EntryPlace, QuotaBlocks, QuotaEntry, QuotaInfo, QuotaKind,
};
use uext4_ondisk::{BlockNo, CorruptKind, Ino, Place};

type Block = [u8; BLOCK_SIZE];

/// The quota file of one kind of owners.
#[derive(Debug)]
pub struct QuotaFile {
    pub(super) kind: QuotaKind,
    pub(super) ino: Ino,
    pub(super) info: QuotaInfo,
    /// First block of the file, length, first block on the device.
    runs: Vec<(u32, u32, BlockNo)>,
}

/// Why a block of a quota file cannot be read or written.
#[derive(Debug)]
pub(super) enum Failure {
    Damage(CorruptKind),
    Other(Error),
}

impl From<CorruptKind> for Failure {
    fn from(kind: CorruptKind) -> Self {
        Self::Damage(kind)
    }
}

/// The bytes of an entry.
#[derive(Clone, Debug)]
pub(super) struct EntryBuffer {
    buffer: Arc<Buffer>,
    /// Block 0 is the first of the buffer.
    at: EntryPlace,
}

impl EntryBuffer {
    pub(super) fn write(&self, handle: &mut Handle<'_>, entry: &QuotaEntry) -> Result<()> {
        self.at.write(&mut handle.write(&self.buffer)?, entry);
        Ok(())
    }
}

impl QuotaFile {
    /// The file in these runs, which follow each other, with a length of `size` bytes.
    ///
    /// # Errors
    /// `Corrupt`; a device failure.
    pub fn open(
        cache: &Arc<Cache>,
        kind: QuotaKind,
        ino: Ino,
        runs: Vec<(u32, u32, BlockNo)>,
        size: u64,
    ) -> Result<Self> {
        let mut file = Self { kind, ino, info: QuotaInfo::new(), runs };
        let held = u64::from(file.capacity(cache)) * BLOCK_SIZE as u64;
        let first = file.block(cache, 0).map_err(|failure| file.error(failure))?;
        file.info = QuotaInfo::read(&first, kind, size.min(held))
            .map_err(|kind| file.error(Failure::Damage(kind)))?;
        Ok(file)
    }

    /// Times of grace, of space and of inodes.
    pub(super) fn grace(&self) -> [u32; 2] {
        [self.info.space_grace, self.info.inode_grace]
    }

    /// Calls `visit` with every entry.
    ///
    /// # Errors
    /// `Corrupt`; a device failure.
    pub fn list(&self, cache: &Arc<Cache>, visit: &mut dyn FnMut(QuotaEntry)) -> Result<QuotaInfo> {
        let mut trial = TrialFile::new(self, cache);
        format::walk(&mut trial, &self.info, visit).map_err(|failure| self.error(failure))?;
        Ok(self.info)
    }

    pub(super) fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Damage(kind) => kind.at(Place::Inode(self.ino)).into(),
            Failure::Other(error) => error,
        }
    }

    /// Blocks of 1 KiB that the file has room for.
    pub(super) fn capacity(&self, cache: &Cache) -> u32 {
        let blocks = self.runs.last().map_or(0, |&(first, len, _)| first.saturating_add(len));
        blocks.saturating_mul(per_block(cache))
    }

    pub(super) fn append(&mut self, block: BlockNo) {
        let end = self.runs.last().map_or(0, |&(first, len, _)| first.saturating_add(len));
        match self.runs.last_mut() {
            Some((_, len, start)) if start.plus(u64::from(*len)) == block => *len += 1,
            _ => self.runs.push((end, 1, block)),
        }
    }

    /// The buffer that has a block of 1 KiB, and the block's first byte in it.
    fn buffer(&self, cache: &Cache, block: u32) -> Result<(Arc<Buffer>, usize), Failure> {
        let per_block = per_block(cache);
        let (at, within) = (block / per_block, (block % per_block) as usize * BLOCK_SIZE);
        let next = self.runs.partition_point(|&(first, ..)| first <= at);
        let run = next.checked_sub(1).and_then(|n| self.runs.get(n));
        let outside = CorruptKind::Rule { what: "quota file", why: "leads outside itself" };
        let Some(&(first, _, start)) = run.filter(|&&(first, len, _)| at - first < len) else {
            return Err(outside.into());
        };
        let on_device = start.plus(u64::from(at - first));
        let buffer = cache.read(on_device, BlockKind::Quota).map_err(Failure::Other)?;
        Ok((buffer, within))
    }

    fn block(&self, cache: &Cache, block: u32) -> Result<Block, Failure> {
        let (buffer, at) = self.buffer(cache, block)?;
        let mut copy = [0; BLOCK_SIZE];
        copy.copy_from_slice(&buffer.read()[at..at + BLOCK_SIZE]);
        Ok(copy)
    }

    fn entry_buffer(&self, cache: &Cache, place: EntryPlace) -> Result<EntryBuffer> {
        let (buffer, at) =
            self.buffer(cache, place.block).map_err(|failure| self.error(failure))?;
        Ok(EntryBuffer { buffer, at: EntryPlace { block: 0, at: at + place.at } })
    }

    /// The entry of an id.
    pub(super) fn find(
        &self,
        cache: &Arc<Cache>,
        id: u32,
    ) -> Result<Option<(EntryBuffer, QuotaEntry)>> {
        let mut trial = TrialFile::new(self, cache);
        let found =
            format::find(&mut trial, &self.info, id).map_err(|failure| self.error(failure))?;
        let Some((place, entry)) = found else { return Ok(None) };
        Ok(Some((self.entry_buffer(cache, place)?, entry)))
    }

    /// Inserts an entry. The file has the blocks that it needs.
    pub(super) fn insert(
        &mut self,
        handle: &mut Handle<'_>,
        cache: &Arc<Cache>,
        entry: &QuotaEntry,
    ) -> Result<EntryBuffer> {
        let mut info = self.info;
        let mut trial = TrialFile::new(self, cache);
        let place =
            format::insert(&mut trial, &mut info, entry).map_err(|failure| self.error(failure))?;
        for (block, bytes) in trial.written {
            let (buffer, at) = self.buffer(cache, block).map_err(|failure| self.error(failure))?;
            handle.write(&buffer)?[at..at + BLOCK_SIZE].copy_from_slice(&bytes);
        }
        self.info = info;
        self.write_info(handle, cache)?;
        self.entry_buffer(cache, place)
    }

    pub(super) fn write_info(&self, handle: &mut Handle<'_>, cache: &Cache) -> Result<()> {
        let (buffer, at) = self.buffer(cache, 0).map_err(|failure| self.error(failure))?;
        self.info.write(&mut handle.write(&buffer)?[at..at + BLOCK_SIZE], self.kind);
        Ok(())
    }
}

/// Blocks of 1 KiB in a block of the file system.
fn per_block(cache: &Cache) -> u32 {
    cache.layout().block_size / BLOCK_SIZE as u32
}

/// A quota file whose changes are collected.
pub(super) struct TrialFile<'a> {
    file: &'a QuotaFile,
    cache: &'a Cache,
    written: BTreeMap<u32, Block>,
}

impl<'a> TrialFile<'a> {
    pub(super) fn new(file: &'a QuotaFile, cache: &'a Cache) -> Self {
        Self { file, cache, written: BTreeMap::new() }
    }
}

impl QuotaBlocks for TrialFile<'_> {
    type Error = Failure;

    fn read(&mut self, block: u32) -> Result<Block, Failure> {
        match self.written.get(&block) {
            Some(bytes) => Ok(*bytes),
            None => self.file.block(self.cache, block),
        }
    }

    fn write(&mut self, block: u32, bytes: &Block) -> Result<(), Failure> {
        self.written.insert(block, *bytes);
        Ok(())
    }
}
