//! Content of files: reading, writing, writeback, truncation, space.
//!
//! What: [`Files`] has the operations on the content of inodes. Data is cached in pages and written
//! back with delayed allocation; journaled data is never dirty (`journaled`).
//! Invariants: **data is on the device before its mapping exists**: writeback allocates blocks in
//! memory, writes the data, and only then inserts written extents and the new size in one handle
//! (`ablation` has the other orders). **Space is reserved before a write is acknowledged.** An
//! operation that removes blocks holds the file exclusively and its writeback lock, so no write to
//! them is under way.
//! Locking: file lock, writeback lock, then handles; the pages have a leaf lock for short copies.
//! No lock but the first two is held over data I/O.
//! Kernel counterpart: `fs/ext4/inode.c`, `mm/filemap.c`, `fs/fs-writeback.c`.

mod ablation;
mod allocate;
mod damage;
mod dax;
mod delete;
mod direct;
mod gate;
mod group_writeback;
mod journaled;
mod locality;
mod orphan;
mod passes;
mod placement;
mod read;
mod reclaim;
mod reserve;
mod seek;
mod shift;
mod sync;
mod truncate;
mod write;
mod writeback;

pub use allocate::AllocateMode;
pub use damage::{Damage, PanicHook};
pub use delete::Unlinked;
pub use direct::{
    DIRECT_ALIGNMENT, DirectDone, DirectFile, DirectOp, DirectOptions, DirectQueue, DirectRequest,
};
pub use orphan::{FoundOrphans, ORPHAN_CREDITS, Orphans};
pub use seek::Seek;

use crate::alloc::Space;
use crate::cache::Cache;
use crate::config::{Atime, MountOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Inode, InodeTable, TimeField};
use crate::sync::state::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::time::Instant;
use std::sync::Arc;
use uext4_ondisk::{FileBlock, InodeFlags};

/// The operations on file content, and the state that they share.
#[derive(Debug)]
pub struct Files {
    space: Arc<Space>,
    table: Arc<InodeTable>,
    orphans: Orphans,
    damage: Arc<Damage>,
    options: MountOptions,
    placement: Arc<placement::Placement>,
    writeback: writeback::Writeback,
    /// Writeback passes that syncs share.
    group_writeback: group_writeback::GroupWriteback,
    /// Numbers of unlinked inodes that are being deleted, and that have been.
    deleting: AtomicUsize,
    deleted: AtomicU64,
    read_only: AtomicBool,
    /// Calls that are under way.
    gate: gate::CallGate,
    /// The volume was opened read-only, so nothing of it was ever changed.
    opened_read_only: bool,
    started: Instant,
    /// Shard of the inode table where reclaim continues.
    reclaim_hand: AtomicUsize,
    /// A thread is reclaiming pages; one is enough.
    reclaiming: AtomicBool,
    /// A block of zeroes.
    zeroes: Arc<[u8]>,
    ablations: ablation::Ablations,
    /// Counters of direct I/O.
    pub(crate) direct: direct::DirectStats,
}

impl Files {
    /// Operations over the inodes of `table`.
    #[must_use]
    pub fn new(
        space: Arc<Space>,
        table: Arc<InodeTable>,
        orphans: Orphans,
        damage: Arc<Damage>,
        options: MountOptions,
        read_only: bool,
    ) -> Self {
        let zeroes: Arc<[u8]> = vec![0; space.layout().block_size as usize].into();
        let ablations = ablation::Ablations::new(&options, &space);
        let placement = Arc::new(placement::Placement::new(&space, &options.alloc));
        let shared = writeback::Shared {
            space: Arc::clone(&space),
            budget: Arc::clone(table.budget()),
            placement: Arc::clone(&placement),
            ablations: ablations.clone(),
            zeroes: Arc::clone(&zeroes),
        };
        Self {
            writeback: writeback::Writeback::new(shared, &options),
            placement,
            zeroes,
            ablations,
            direct: direct::DirectStats::default(),
            space,
            table,
            orphans,
            damage,
            options,
            group_writeback: group_writeback::GroupWriteback::default(),
            deleting: AtomicUsize::new(0),
            deleted: AtomicU64::new(0),
            read_only: AtomicBool::new(read_only),
            gate: gate::CallGate::default(),
            opened_read_only: read_only,
            started: Instant::now(),
            reclaim_hand: AtomicUsize::new(0),
            reclaiming: AtomicBool::new(false),
        }
    }

    /// The volume's metadata cache.
    pub(crate) fn cache(&self) -> &Cache {
        &self.table.context().cache
    }

    /// The volume's allocator.
    #[must_use]
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// The inodes in memory.
    #[must_use]
    pub fn table(&self) -> &Arc<InodeTable> {
        &self.table
    }

    /// Inodes that must be truncated or deleted after a crash.
    #[must_use]
    pub fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Mount options.
    #[must_use]
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire) || self.space.journal().is_aborted()
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
        if self.space.journal().is_aborted() {
            return Err(self.space.journal().aborted_error());
        }
        Ok(())
    }

    /// # Errors
    /// As [`Files::check_writable`]; `NotPermitted` for immutable inodes; `Unsupported` for files
    /// that have a block map, which are read-only.
    pub fn check_changeable(&self, inode: &Inode) -> Result<()> {
        self.check_writable()?;
        let flags = inode.attributes().flags;
        if flags.contains(InodeFlags::IMMUTABLE) {
            let context = format!("immutable inode {}", inode.ino());
            return Err(Error::new(ErrorKind::NotPermitted, context));
        }
        if inode.has_blocks() && !flags.contains(InodeFlags::EXTENTS) {
            let context = format!("inode {} has a block map, which is read-only", inode.ino());
            return Err(Error::new(ErrorKind::Unsupported, context));
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

    fn block_size(&self) -> u64 {
        block_size(&self.space)
    }

    /// The block that contains byte `offset`.
    fn block_at(&self, offset: u64) -> FileBlock {
        FileBlock(u32::try_from(offset / self.block_size()).unwrap_or(u32::MAX))
    }

    /// The first block that begins at or after byte `offset`.
    fn block_from(&self, offset: u64) -> FileBlock {
        block_from(&self.space, offset)
    }

    fn clock_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn check_end(&self, end: u64) -> Result<()> {
        let max = self.space.layout().max_file_blocks().saturating_mul(self.block_size());
        if end > max {
            return Err(Error::new(
                ErrorKind::FileTooBig,
                format!("file end {end}, at most {max}"),
            ));
        }
        Ok(())
    }

    /// Notes an access, if the mount options want it. The access time changes in memory; it reaches
    /// the device with the next change of the inode, or when the volume is closed.
    pub fn note_access(&self, inode: &Inode, is_directory: bool) {
        if !(is_directory && self.options.nodiratime) {
            // Without the guard: thread A reads; thread B closes the volume and writes all times
            // out; A changes one, which memory then shows and the image does not have.
            self.set_access_time(inode, || self.try_begin_call());
        }
    }

    /// Sets the access time to now, if the mount options want it and `begin` gives the right to it.
    fn set_access_time<T>(&self, inode: &Inode, begin: impl FnOnce() -> Option<T>) {
        if self.is_read_only() {
            return;
        }
        let mut attributes = inode.attributes();
        if attributes.flags.contains(InodeFlags::NOATIME) {
            return;
        }
        let now = attributes.now(TimeField::Access);
        let stale = match self.options.atime {
            Atime::None => false,
            Atime::Strict => true,
            Atime::Relative => {
                attributes.atime <= attributes.mtime
                    || attributes.atime <= attributes.ctime
                    || now.secs.saturating_sub(attributes.atime.secs) >= 24 * 60 * 60
            }
        };
        if stale
            && attributes.atime != now
            && let Some(_right) = begin()
        {
            attributes.atime = now;
            inode.note_times(&mut attributes);
        }
    }
}

fn block_size(space: &Space) -> u64 {
    u64::from(space.layout().block_size)
}

/// The first block that begins at or after byte `offset`.
fn block_from(space: &Space, offset: u64) -> FileBlock {
    FileBlock(u32::try_from(offset.div_ceil(block_size(space))).unwrap_or(u32::MAX))
}
