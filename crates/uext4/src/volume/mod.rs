//! A mounted volume: the engine's front door.
//!
//! What: [`Volume::open`] makes a device a usable file system: superblock, journal replay, space,
//! orphans. [`Volume::close`] leaves a clean image. In between it offers the operations of [`Vfs`],
//! with the volume's reaction to damage.
//! Invariants: `needs_recovery` is durable in the superblock before anything else of the volume
//! changes. It is removed only when the log is empty and everything is checkpointed.
//! Kernel counterpart: `fs/ext4/super.c`.

mod attributes;
mod by_path;
mod extents;
mod fast_commit;
mod flusher;
mod growth;
mod label;
mod mmp;
mod mmp_wait;
mod mount;
mod operations;
mod path;
mod quota;
mod stats;
mod superblock;
mod walk_ahead;

use crate::alloc::{FreeRun, Space};
use crate::cache::PageBudget;
use crate::config::MountOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::extent;
use crate::file::Trouble;
use crate::inode::InodeRef;
use crate::sync::Mutex;
use crate::sync::state::{AtomicBool, Ordering};
use crate::sync::time::Instant;
use crate::vfs::Vfs;
use flusher::Flusher;
pub use growth::{Growth, growth_blocks};
use mmp::Claim;
pub use mmp::{clear_mmp, mmp_holder};
pub use path::{LastLink, PathEnd, Resolved, SYMLINKS_MAX};
pub use stats::VolumeStats;
use std::sync::Arc;
use std::time::Duration;
use superblock::LiveSuperblock;
use uext4_device::SharedDevice;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{BlockNo, FileBlock, GroupNo, Layout, RawGroupDesc, RawSuperblock};
use walk_ahead::WalkAhead;

/// A mounted file system. Clones share it.
#[derive(Clone, Debug)]
pub struct Volume {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    vfs: Arc<Vfs>,
    superblock: LiveSuperblock,
    /// With `mmp`: this host's claim on the device.
    claim: Option<Claim>,
    read_only_reason: Option<String>,
    flusher: Mutex<Option<Flusher>>,
    /// Where the device is far: reads directories before they are listed.
    walk_ahead: Mutex<Option<WalkAhead>>,
    recovery: RecoveryReport,
    orphan_problems: Vec<Error>,
    /// The result of closing the volume. The lock is held while it is closed, so that other callers
    /// wait.
    end: Mutex<Option<Result<()>>>,
    /// Closing has lost changes that were not synced.
    has_lost: AtomicBool,
    opened: Instant,
}

/// The repairs that opening a volume made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Transactions replayed from the journal.
    pub transactions: u32,
    /// Blocks that the replay wrote to their final locations.
    pub blocks: usize,
    /// Fast commits of a kernel that were repeated.
    pub fast_commits: u32,
    /// Orphans that were found and can be deleted or truncated. [`Volume::orphan_problems`] has the
    /// others.
    pub orphans: usize,
    /// The file system has no journal and was not closed cleanly: only e2fsck finds what a crash
    /// has left. It stays marked until then.
    pub is_unchecked: bool,
}

/// Space of a volume, as statfs(2) reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks for data and directories: those of the file system less its own overhead.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks less those that are reserved for the administrator and for nodes of extent
    /// trees.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
    /// From the UUID.
    pub fsid: u64,
}

impl Volume {
    /// Opens the file system on `device`: replays its journal and deletes orphans. With `read_only`
    /// the device is never written; a dirty journal is replayed into memory.
    ///
    /// # Errors
    /// No file system, features that are not supported (named), counts that do not fit the device,
    /// corrupt metadata, a device failure.
    pub fn open(device: SharedDevice, options: MountOptions) -> Result<Self> {
        mount::open(device, None, options)
    }

    /// As [`Volume::open`], of a file system whose journal is on a device of its own. That must be
    /// the journal of this file system and of no other. A volume that is opened read-only writes to
    /// neither device.
    ///
    /// # Errors
    /// Those of [`Volume::open`]; another journal.
    pub fn open_with_journal(
        device: SharedDevice,
        journal: SharedDevice,
        options: MountOptions,
    ) -> Result<Self> {
        mount::open(device, Some(journal), options)
    }

    /// Writes everything back and leaves a clean image. From its begin on, calls by other clones
    /// that would change the volume are refused. Calls under way are waited for, so everything that
    /// they acknowledge is in the image. Afterwards other clones can only read.
    ///
    /// # Errors
    /// The first failure; the journal then stays to be replayed.
    pub fn close(self) -> Result<()> {
        self.inner.shut_down(FilesWithoutName::Delete)
    }

    /// As [`Volume::close`], but files that have lost their last name and are in use can still be
    /// read. They stay orphans, which the next mount deletes.
    ///
    /// # Errors
    /// Those of [`Volume::close`].
    pub fn remount_read_only(&self) -> Result<()> {
        self.inner.shut_down(FilesWithoutName::Keep)
    }

    /// Whether a close that failed has lost changes that were not synced. If not, everything is
    /// durable, and the journal holds the blocks that are not checkpointed. Also true if it is not
    /// known.
    #[must_use]
    pub fn has_lost_changes(&self) -> bool {
        self.inner.has_lost.load(Ordering::SeqCst)
    }

    /// Forgets the volume as a crash would: nothing more is written, the image needs recovery.
    pub fn abandon(self) {
        self.inner.end.lock().get_or_insert(Ok(()));
        self.inner.vfs.files.context.set_read_only();
        self.inner.stop_threads();
        let cause = Error::new(ErrorKind::ReadOnly, "the volume was abandoned");
        self.space().journal().stop_threads(cause);
        if let Some(claim) = &self.inner.claim {
            claim.abandon();
        }
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// The first writeback failure; a failed flush; an aborted journal.
    pub fn sync(&self) -> Result<()> {
        let files = &self.inner.vfs.files;
        let Some(_call) = files.context.begin_sync_call()? else { return Ok(()) };
        self.watch(files.syncs.sync_all())
    }

    /// Space of the volume.
    #[must_use]
    pub fn stat_fs(&self) -> StatFs {
        let layout = self.layout();
        let raw = self.superblock();
        let free = self.space().free_counts();
        // Descriptors count clusters.
        let blocks_free = free.blocks.saturating_mul(layout.cluster_blocks.into());
        let kept = raw.reserved_blocks_count().saturating_add(self.space().node_pool_blocks());
        let uuid = layout.uuid.chunks_exact(8).fold(0, |id, half| {
            id ^ half.iter().fold(0_u64, |value, &byte| value << 8 | u64::from(byte))
        });
        StatFs {
            block_size: layout.block_size,
            blocks: layout.blocks_count.saturating_sub(self.inner.superblock.overhead_blocks),
            blocks_free,
            blocks_available: blocks_free.saturating_sub(kept),
            inodes: u64::from(layout.inodes_count),
            inodes_free: free.inodes,
            name_max: 255,
            fsid: uuid,
        }
    }

    /// The superblock as it is in memory.
    #[must_use]
    pub fn superblock(&self) -> RawSuperblock {
        self.inner.superblock.read()
    }

    /// The options that it was opened with.
    #[must_use]
    pub fn options(&self) -> &MountOptions {
        &self.inner.vfs.files.context.options
    }

    /// Geometry.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        self.space().layout()
    }

    /// A group's descriptor.
    #[must_use]
    pub fn group_desc(&self, group: GroupNo) -> RawGroupDesc {
        self.space().group_desc(group)
    }

    /// The free runs of a group in ascending order, as the journal will have them. Blocks that have
    /// been mapped or freed count; cached data without a place does not. Several threads may ask at
    /// a time.
    ///
    /// # Errors
    /// See [`Space::free_runs`].
    pub fn free_runs(&self, group: GroupNo) -> Result<Vec<FreeRun>> {
        self.watch(self.space().free_runs(group))
    }

    /// Tells the device which blocks are free in the `len` bytes from byte `start`, in runs of at
    /// least `min_len` bytes. Returns the number of bytes in these runs. A file that holds the
    /// image gets holes there. Other calls go on meanwhile.
    ///
    /// # Errors
    /// `ReadOnly`; those of [`Space::trim`].
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let files = &self.inner.vfs.files;
        let _call = files.context.begin_call()?;
        files.context.check_writable()?;
        self.watch(self.space().trim(start, len, min_len))
    }

    /// Sets a hook that is called with the reason when a discard fails for the first time, on any
    /// thread. It must not use the volume. The first hook stays.
    pub fn set_discard_hook(&self, hook: impl Fn(&str) + Send + Sync + 'static) {
        self.space().discards().set_hook(Box::new(hook));
    }

    /// Calls `visit` with each extent of an inode from block `from` on, in ascending order, until
    /// it returns false. Cached data has no extent before it is written back: sync first to see it.
    /// Inodes without blocks (devices, short symbolic links) have none.
    ///
    /// # Errors
    /// See [`extent::list`].
    pub fn extents(
        &self,
        inode: &InodeRef,
        from: FileBlock,
        visit: &mut dyn FnMut(Extent) -> bool,
    ) -> Result<()> {
        self.watch(extent::list(inode, from, visit))
    }

    /// Fills `buf` with whole blocks of the device, from block `first` on. Of a volume that was
    /// opened read-only they are as a replay of its journal leaves them; of another, what is cached
    /// or in the log is not in them.
    ///
    /// # Errors
    /// A range past the end of the device; a device failure.
    pub fn read_blocks(&self, first: BlockNo, buf: &mut [u8]) -> Result<()> {
        let offset = first.get().saturating_mul(u64::from(self.layout().block_size));
        let device = self.inner.vfs.files.context.cache().device();
        device.read_at(offset, buf).map_err(|error| Error::io("read of blocks", error))
    }

    /// Whether a request to the device takes a round trip of a network (`Device::is_far`).
    #[must_use]
    pub fn is_far(&self) -> bool {
        self.inner.vfs.files.context.cache().is_far()
    }

    /// Whether changes are refused.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.inner.vfs.files.context.is_read_only()
    }

    /// The reason why the volume is read-only although it was not asked to be.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        let journal = self.space().journal();
        let was_asked = self.options().read_only;
        if self.inner.read_only_reason.is_none() && !was_asked && journal.is_aborted() {
            return Some(journal.aborted_error().to_string());
        }
        self.inner.read_only_reason.clone()
    }

    /// The repairs that opening the volume made.
    #[must_use]
    pub fn recovery(&self) -> RecoveryReport {
        self.inner.recovery
    }

    /// Why orphans that a crash left were not cleaned up: one error for each. They stay for e2fsck,
    /// or for the next mount.
    #[must_use]
    pub fn orphan_problems(&self) -> &[Error] {
        &self.inner.orphan_problems
    }

    /// The volume's space, for measurements.
    #[must_use]
    pub fn space(&self) -> &Arc<Space> {
        &self.inner.vfs.files.context.space
    }

    /// Cached pages and their limits, for measurements.
    #[must_use]
    pub fn page_budget(&self) -> &PageBudget {
        self.inner.vfs.files.context.table.budget()
    }

    /// Dirty data is written back when it is older than `age`, in place of
    /// [`MountOptions::dirty_expire_ms`]. It is looked for five times as often, once a second at
    /// most and every 5 seconds at least.
    pub fn set_dirty_expire(&self, age: Duration) {
        self.inner.vfs.files.syncs.expiry.set(age);
    }

    /// Sets the hook that is told of damage and of an aborted journal as they happen. The first
    /// hook stays.
    ///
    /// It runs on any thread of the volume, with locks held: it must not use the volume, nor wait.
    pub fn set_trouble_hook(&self, hook: impl Fn(Trouble<'_>) + Send + Sync + 'static) {
        self.inner.vfs.files.context.damage.set_trouble_hook(Box::new(hook));
    }

    /// Sets the hook that `errors=panic` calls when damage is found or the journal is aborted. It
    /// ends the process and does not return. Without a hook, or if it returns, the volume refuses
    /// changes, because a library does not end its program. The first hook stays.
    ///
    /// The hook runs on any thread of the volume, with locks held: it must not use the volume.
    pub fn set_panic_hook(&self, hook: impl Fn(&Error) + Send + Sync + 'static) {
        self.inner.vfs.files.context.damage.set_panic_hook(Box::new(hook));
    }

    /// Returns the result. Damage that it names has the consequences of `errors=` first.
    fn watch<T>(&self, result: Result<T>) -> Result<T> {
        self.inner.vfs.files.context.watch(result)
    }

    /// Runs an operation that may change the volume, unless that is being closed. Damage that it
    /// meets has the consequences of `errors=`.
    fn change<T>(&self, operation: impl FnOnce(&Vfs) -> Result<T>) -> Result<T> {
        let vfs = &self.inner.vfs;
        let _call = vfs.files.context.begin_call()?;
        self.watch(operation(vfs))
    }
}

impl Inner {
    fn stop_threads(&self) {
        let walk_ahead = self.walk_ahead.lock().take();
        // Joins the threads, which must not be done under the lock.
        drop(walk_ahead);
        let flusher = self.flusher.lock().take();
        drop(flusher);
    }

    fn shut_down(&self, nameless: FilesWithoutName) -> Result<()> {
        let mut end = self.end.lock();
        if let Some(ended) = &*end {
            return ended.clone();
        }
        // This result stays if closing panics, so that the volume is not closed twice.
        *end = Some(Err(Error::new(ErrorKind::Internal, "closing the volume panicked")));
        let ended = self.end_once(nameless);
        // After the last change of the device, and if closing failed as well.
        let released = self.claim.as_ref().map_or(Ok(()), Claim::release);
        let ended = ended.and(released);
        *end = Some(ended.clone());
        ended
    }

    fn end_once(&self, nameless: FilesWithoutName) -> Result<()> {
        let files = &self.vfs.files;
        let stopped = files.context.stop_calls();
        self.stop_threads();
        let journal = files.context.space.journal();
        if self.superblock.read_only_mount {
            files.context.note_clean_end();
            return stopped;
        }
        let deleted = match nameless {
            FilesWithoutName::Delete => files.deletion.delete_all_unlinked(),
            FilesWithoutName::Keep => files.deletion.delete_unlinked(),
        };
        let was_unsynced = files.syncs.is_unsynced();
        let synced = files.syncs.sync_all();
        let has_lost = synced.is_err() && (was_unsynced || journal.flush_gate().has_failed());
        self.has_lost.store(has_lost, Ordering::SeqCst);
        files.context.set_read_only();
        let emptied = journal.close();
        stopped.and(deleted).and(synced).and(emptied)?;
        self.superblock.mark_clean(!files.context.orphans.is_empty(), journal.final_free())?;
        files.context.note_clean_end();
        Ok(())
    }
}

/// What closing does to files that have lost their last name and are in use.
#[derive(Clone, Copy)]
enum FilesWithoutName {
    Delete,
    Keep,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // A caller that wants to know of failures calls `close`.
        let _ = self.shut_down(FilesWithoutName::Delete);
    }
}
