//! What all operations on file content share.
//!
//! What: [`FileContext`] has the parts of the volume that they use, and the checks that several of
//! them make. `gate`, `damage`, `access_times` and `page_bytes` have more of it.
//! Locking: none, but for the leaf locks of attributes.

use super::ablation::Ablations;
use super::damage::Damage;
use super::gate::CallGate;
use super::large_file::SMALL_FILE_MAX;
use super::placement::Placement;
use super::writeback::Writeback;
use super::{Orphans, block_from, block_size};
use crate::alloc::Space;
use crate::cache::Cache;
use crate::config::{DataMode, MountOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Inode, InodeTable};
use crate::journal::Journal;
use crate::sync::state::{AtomicBool, Ordering};
use crate::sync::time::Instant;
use std::io;
use std::sync::Arc;
use uext4_ondisk::{FileBlock, FileKind, InodeFlags, RoCompat};

/// What all operations on file content share.
#[derive(Debug)]
pub struct FileContext {
    /// The volume's allocator.
    pub(crate) space: Arc<Space>,
    /// The inodes in memory.
    pub(crate) table: Arc<InodeTable>,
    /// Inodes that must be truncated or deleted after a crash.
    pub(crate) orphans: Arc<Orphans>,
    /// The volume's reaction to damage.
    pub(crate) damage: Arc<Damage>,
    pub(crate) options: MountOptions,
    pub(super) placement: Arc<Placement>,
    pub(super) writeback: Writeback,
    pub(super) ablations: Ablations,
    /// Calls that are under way.
    pub(super) gate: CallGate,
    /// The file system has the feature `large_file`.
    pub(super) has_large_file: AtomicBool,
    /// Changes are refused.
    pub(super) read_only: AtomicBool,
    /// The volume was opened read-only, so nothing of it was ever changed.
    pub(super) opened_read_only: bool,
    started: Instant,
    /// A block of zeroes.
    pub(super) zeroes: Arc<[u8]>,
}

impl FileContext {
    pub(crate) fn new(
        space: Arc<Space>,
        table: Arc<InodeTable>,
        orphans: Arc<Orphans>,
        damage: Arc<Damage>,
        options: MountOptions,
        read_only: bool,
    ) -> Self {
        let has_large_file = space.layout().features.ro_compat.contains(RoCompat::LARGE_FILE);
        let zeroes: Arc<[u8]> = vec![0; space.layout().block_size as usize].into();
        let ablations = Ablations::new(&options, &space);
        let placement = Arc::new(Placement::new(&space, &options.alloc));
        let shared = super::writeback::Shared {
            space: Arc::clone(&space),
            budget: Arc::clone(table.budget()),
            placement: Arc::clone(&placement),
            ablations: ablations.clone(),
            zeroes: Arc::clone(&zeroes),
        };
        Self {
            writeback: Writeback::new(shared, &options),
            placement,
            zeroes,
            ablations,
            space,
            table,
            orphans,
            damage,
            options,
            has_large_file: AtomicBool::new(has_large_file),
            read_only: AtomicBool::new(read_only),
            gate: CallGate::default(),
            opened_read_only: read_only,
            started: Instant::now(),
        }
    }

    pub(super) fn journal(&self) -> &Arc<Journal> {
        self.space.journal()
    }

    /// The volume's metadata cache.
    pub(crate) fn cache(&self) -> &Cache {
        &self.table.context().cache
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire) || self.journal().is_aborted()
    }

    /// Refuses changes from now on.
    pub fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// # Errors
    /// `ReadOnly`, or what aborted the journal.
    pub fn check_writable(&self) -> Result<()> {
        if self.read_only.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::ReadOnly, String::new()));
        }
        if self.journal().is_aborted() {
            return Err(self.journal().aborted_error());
        }
        Ok(())
    }

    /// # Errors
    /// As [`FileContext::check_writable`]; `NotPermitted` for immutable inodes; `Unsupported` for
    /// files with a block map where block numbers have more than 32 bits, or blocks are in
    /// clusters.
    pub fn check_changeable(&self, inode: &Inode) -> Result<()> {
        self.check_writable()?;
        let flags = inode.attributes().flags;
        if flags.contains(InodeFlags::IMMUTABLE) {
            let context = format!("immutable inode {}", inode.ino());
            return Err(Error::new(ErrorKind::NotPermitted, context));
        }
        let is_large = self.space.layout().blocks_count > 1 << 32;
        if is_large && inode.has_blocks() && !inode.has_extent_tree() {
            let context = format!(
                "inode {} has a block map, whose numbers have 32 bits: it is read-only here",
                inode.ino()
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let has_clusters = self.space.layout().has_clusters();
        if has_clusters && inode.has_blocks() && !inode.has_extent_tree() {
            let context = format!(
                "inode {} has a block map, which has no clusters: it is read-only here",
                inode.ino()
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(())
    }

    /// Checks that the content of a file may change.
    ///
    /// # Errors
    /// Those of [`FileContext::check_changeable`]; `NotPermitted` for a file with a Merkle tree.
    pub fn check_content(&self, inode: &Inode) -> Result<()> {
        self.check_changeable(inode)?;
        self.check_not_sealed(inode)
    }

    /// # Errors
    /// `NotPermitted` for a file with a Merkle tree.
    pub fn check_not_sealed(&self, inode: &Inode) -> Result<()> {
        if inode.is_verity() {
            let context = format!("inode {} has a Merkle tree", inode.ino());
            return Err(Error::new(ErrorKind::NotPermitted, context));
        }
        Ok(())
    }

    /// # Errors
    /// `NotPermitted` for inodes that are append-only.
    pub fn check_not_append_only(&self, inode: &Inode) -> Result<()> {
        if inode.attributes().flags.contains(InodeFlags::APPEND) {
            let context = format!("append-only inode {}", inode.ino());
            return Err(Error::new(ErrorKind::NotPermitted, context));
        }
        Ok(())
    }

    /// # Errors
    /// `NotPermitted` for inodes that are immutable or append-only: they keep their names, links,
    /// owners, modes and extended attributes.
    pub fn check_not_protected(&self, inode: &Inode) -> Result<()> {
        self.check_not_append_only(inode)?;
        if inode.attributes().flags.contains(InodeFlags::IMMUTABLE) {
            let context = format!("immutable inode {}", inode.ino());
            return Err(Error::new(ErrorKind::NotPermitted, context));
        }
        Ok(())
    }

    pub(super) fn block_size(&self) -> u64 {
        block_size(&self.space)
    }

    /// The block that contains byte `offset`.
    pub(super) fn block_at(&self, offset: u64) -> FileBlock {
        FileBlock(u32::try_from(offset / self.block_size()).unwrap_or(u32::MAX))
    }

    /// The first byte of a block.
    pub(super) fn offset_of(&self, at: FileBlock) -> u64 {
        u64::from(at.get()) * self.block_size()
    }

    /// The first block that begins at or after byte `offset`.
    pub(super) fn block_from(&self, offset: u64) -> FileBlock {
        block_from(&self.space, offset)
    }

    /// The first block that has bytes of `offset .. end`, and the block after the last.
    pub(super) fn blocks_of(&self, offset: u64, end: u64) -> (FileBlock, FileBlock) {
        (self.block_at(offset), self.block_from(end))
    }

    pub(super) fn clock_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Checks that a file can reach byte `end`, which it is about to.
    ///
    /// # Errors
    /// `FileTooBig`; an aborted journal.
    pub(super) fn check_end(&self, inode: &Inode, end: u64) -> Result<()> {
        if end <= SMALL_FILE_MAX {
            return Ok(());
        }
        self.check_fits(inode, end)?;
        self.set_large_file(inode)
    }

    /// Checks that a file can reach byte `end`. Changes nothing.
    ///
    /// # Errors
    /// `FileTooBig`.
    pub(super) fn check_fits(&self, inode: &Inode, end: u64) -> Result<()> {
        if end <= SMALL_FILE_MAX {
            return Ok(());
        }
        let layout = self.space.layout();
        let blocks = match inode.has_extent_tree() {
            true => layout.max_file_blocks(),
            false => layout.max_block_map_blocks(),
        };
        let max = blocks.saturating_mul(self.block_size());
        if end > max {
            return Err(Error::new(
                ErrorKind::FileTooBig,
                format!("file end {end}, at most {max}"),
            ));
        }
        Ok(())
    }

    /// Whether the data of a file goes through the journal. Does not change while it is in memory.
    pub(super) fn is_journaled(&self, inode: &Inode) -> bool {
        inode.kind() == FileKind::Regular
            && self.journal().has_log()
            && !inode.is_encrypted()
            && (self.options.data_mode == DataMode::Journal
                || inode.attributes().flags.contains(InodeFlags::JOURNAL_DATA))
    }

    /// Whether direct I/O of a file goes through its pages.
    pub(super) fn is_paged(&self, inode: &Inode) -> bool {
        inode.is_encrypted() || self.is_journaled(inode)
    }

    /// Reads bytes of the device that belong to a file.
    pub(super) fn load(&self, inode: &Inode, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let device = self.cache().device();
        match device.dax() {
            Some(memory) if inode.is_dax() => memory.load(at, buf),
            _ => device.read_at(at, buf),
        }
    }

    /// Writes bytes of the device that belong to a file.
    #[inline]
    pub(super) fn store(&self, inode: &Inode, at: u64, buf: &[u8]) -> io::Result<()> {
        let device = self.cache().device();
        match device.dax() {
            Some(memory) if inode.is_dax() => memory.store(at, buf),
            _ => device.write_at(at, buf),
        }
    }
}
