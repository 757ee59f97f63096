//! Inodes in memory.
//!
//! What: an [`Inode`] holds the attributes, the root of the extent tree and the pages of one file,
//! each under its own lock. [`InodeTable`] keeps one `Inode` per number. [`InodeRef`] is what
//! callers hold: an unlinked inode lives until the last one is dropped.
//! Invariants: one `Inode` per number. Attributes change under their lock and are written into the
//! inode-table block in the same handle.
//! Locking: `lock` (rank `Directory` or `File`) is the caller's view of the content; `sweep`
//! guards every change of a file's extent tree; `tree` guards its bytes.
//! Kernel counterpart: `fs/ext4/inode.c`, `fs/inode.c`.

mod attributes;
mod context;
mod direct;
mod errseq;
mod goals;
mod overwrites;
mod single_flight;
mod slot;
mod table;
mod written;

pub use attributes::{Attributes, TimeField, now};
pub use context::InodeContext;
pub use errseq::{ErrorCursor, ErrorSequence};
pub(crate) use overwrites::{Access, Excluded, Helper, Overwrites, Ticket, Version};
pub(crate) use single_flight::{Lead, SingleFlight, Turn};
pub(crate) use slot::table_block_of;
pub(crate) use table::Creation;
pub use table::{InodeRef, InodeTable};
pub(crate) use written::WrittenLeaf;

use crate::alloc::{Preallocation, Reservation, Space};
use crate::cache::{Cache, DirtyMark, PageMap};
use crate::journal::{FlushEpoch, Handle};
use crate::sync::state::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex, MutexGuard, OnceLock, RwLock};
use slot::SlotPlace;
use std::sync::Arc;
use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::{FileKind, GroupNo, Ino};

/// Root of an extent tree: `i_block`.
#[derive(Debug)]
pub struct ExtentRoot {
    /// Header and at most four entries.
    pub bytes: [u8; 60],
}

/// Cached data of a file and the promise of blocks for it.
#[derive(Debug)]
pub struct FilePages {
    /// The pages.
    pub map: PageMap,
    /// Blocks promised to dirty pages, and to the extent tree for them.
    pub reservation: Reservation,
    /// Pages that hold a promise of a data block.
    pub reserved: u32,
    /// Dirty pages over unwritten extents.
    pub converting: u32,
    /// When the first page became dirty, in milliseconds of the volume's clock.
    pub dirty_since_ms: u64,
    /// Where a sequential reader would go on.
    pub read_ahead_at: u64,
}

/// The right to change a file's extent tree and to write its data back: what a holder of the sweep
/// lock passes on.
#[derive(Debug, Default)]
pub struct SweepState(());

/// An inode in memory.
#[derive(Debug)]
pub struct Inode {
    context: Arc<InodeContext>,
    ino: Ino,
    kind: FileKind,
    /// Content is loaded and stored where it lies; no page ever holds any of it.
    is_dax: bool,
    seed: InodeSeed,
    place: SlotPlace,
    /// Where its blocks would best be, if they are few.
    data_group: GroupNo,
    /// Content of a directory; content and size of a file.
    lock: RwLock<()>,
    sweep: Mutex<SweepState>,
    /// How syncs share sweeps; made for the first.
    flight: OnceLock<Box<SingleFlight>>,
    /// Taken after the last data write; `None`: none was since the volume was opened.
    written: Mutex<Option<FlushEpoch>>,
    tree: RwLock<ExtentRoot>,
    xattr: RwLock<()>,
    attributes: Mutex<Attributes>,
    pages: Mutex<FilePages>,
    /// Blocks held for it while somebody has it open.
    pub(crate) preallocation: Arc<Preallocation>,
    /// Its direct accesses, once there are any.
    overwrites: OnceLock<Box<Overwrites>>,
    /// Set whenever pages or times become dirty.
    pub(crate) dirty: Arc<DirtyMark>,
    /// Writeback failures, for those who sync.
    pub(crate) errors: ErrorSequence,
    /// Transactions that the last change, and the last change of size or mapping, belong to.
    changed_in: TidCell,
    data_changed_in: TidCell,
    /// A set size shrank the file to nothing: closing it writes it back (`auto_da_alloc`).
    pub(crate) flush_on_close: AtomicBool,
    /// Its size was set, and not all of what lies behind has gone: it is an orphan, and grows only
    /// once that is done. Changes with the file's lock held exclusively.
    unfinished_cut: AtomicBool,
    /// There is no `security.capability`, as somebody has found out. Changes with the lock of the
    /// content held.
    no_capabilities: AtomicBool,
    /// How many need the extra fields to stay as long as they are: see [`Inode::hold_fields`].
    fields_held: AtomicU32,
    refs: AtomicU32,
    referenced: AtomicBool,
    /// Its slot has not been written yet.
    fresh: AtomicBool,
}

impl Inode {
    #[allow(clippy::too_many_arguments)] // the one place that puts the parts together
    fn assemble(
        context: &Arc<InodeContext>,
        ino: Ino,
        data_group: GroupNo,
        kind: FileKind,
        seed: InodeSeed,
        place: SlotPlace,
        attributes: Attributes,
        fresh: bool,
    ) -> Self {
        let rank = if kind == FileKind::Directory { LockRank::Directory } else { LockRank::File };
        let dirty = Arc::new(DirtyMark::new(ino, Arc::clone(&context.budget)));
        let is_dax = kind == FileKind::Regular && direct::is_dax(context.dax, attributes.flags);
        let pages = FilePages {
            map: PageMap::new(Arc::clone(&dirty)),
            reservation: Reservation::empty(&context.space),
            reserved: 0,
            converting: 0,
            dirty_since_ms: 0,
            read_ahead_at: 0,
        };
        // An inode that was in memory before may have left data written and not flushed.
        let written = (!fresh).then(|| context.space.journal().flush_gate().epoch());
        Self {
            context: Arc::clone(context),
            ino,
            kind,
            is_dax,
            seed,
            place,
            data_group,
            lock: RwLock::new(rank, ()),
            sweep: Mutex::new(LockRank::Sweep, SweepState::default()),
            flight: OnceLock::new(),
            written: Mutex::new(LockRank::Leaf, written),
            tree: RwLock::new(LockRank::ExtentTree, ExtentRoot { bytes: attributes.block_map }),
            xattr: RwLock::new(LockRank::Xattr, ()),
            attributes: Mutex::new(LockRank::Attributes, attributes),
            pages: Mutex::new(LockRank::Pages, pages),
            preallocation: Arc::new(Preallocation::new()),
            overwrites: OnceLock::new(),
            dirty,
            errors: ErrorSequence::default(),
            changed_in: TidCell::default(),
            data_changed_in: TidCell::default(),
            flush_on_close: AtomicBool::new(false),
            unfinished_cut: AtomicBool::new(false),
            no_capabilities: AtomicBool::new(false),
            fields_held: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            referenced: AtomicBool::new(true),
            fresh: AtomicBool::new(fresh),
        }
    }

    /// Inode number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Type of the file; never changes.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether the file is in DAX mode. Decided when the inode is loaded, as in ext4; does not
    /// change while it is in memory.
    #[must_use]
    pub fn is_dax(&self) -> bool {
        self.is_dax
    }

    /// Tells two users of one number apart; never changes.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.attributes().generation
    }

    /// Whether its `i_block` leads to blocks: not so for devices, pipes, sockets and symbolic links
    /// whose target stands in the inode.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        match self.kind {
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => self.size() >= Self::FAST_SYMLINK_MAX,
            _ => false,
        }
    }

    /// Whether an extent tree maps its blocks, if it has any; else a block map of ext2 and ext3.
    #[must_use]
    pub fn has_extent_tree(&self) -> bool {
        self.attributes().flags.contains(uext4_ondisk::InodeFlags::EXTENTS)
    }

    /// Symbolic links shorter than this have their target in the inode.
    pub const FAST_SYMLINK_MAX: u64 = 60;

    /// Checksum seed of the inode's metadata blocks.
    #[must_use]
    pub fn seed(&self) -> InodeSeed {
        self.seed
    }

    /// The volume's allocator.
    #[must_use]
    pub fn space(&self) -> &Arc<Space> {
        &self.context.space
    }

    /// The volume's metadata cache.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.context.cache
    }

    /// The group that it stands in.
    #[must_use]
    pub fn group(&self) -> GroupNo {
        self.space().layout().group_of_ino(self.ino).map_or(GroupNo(0), |(group, _)| group)
    }

    /// Lock of a directory's content, or of a file's content and size.
    #[must_use]
    pub fn lock(&self) -> &RwLock<()> {
        &self.lock
    }

    /// Taken by whoever changes the extent tree of a file.
    pub(crate) fn sweep(&self) -> MutexGuard<'_, SweepState> {
        self.sweep.lock()
    }

    /// How syncs share its sweeps.
    pub(crate) fn flight(&self) -> &SingleFlight {
        self.flight.get_or_init(Box::default)
    }

    /// As [`Inode::sweep`] if nobody has it.
    pub(crate) fn try_sweep(&self) -> Option<MutexGuard<'_, SweepState>> {
        self.sweep.try_lock()
    }

    /// Data of the file has been written: a flush that starts later than `epoch` covers it. To be
    /// called before the pages count as clean.
    pub(crate) fn note_written(&self, epoch: FlushEpoch) {
        *self.written.lock() = Some(epoch);
    }

    /// What a flush must cover so that all data written so far is durable, if any was.
    pub(crate) fn written(&self) -> Option<FlushEpoch> {
        let mut written = self.written.lock();
        // Direct overwrites keep no record but that there were some: all that returned before now
        // were complete before now. Under the lock, so that no other sync misses them meanwhile.
        let stored = self.cache().device().dax().is_some();
        if self.overwrites().is_some_and(|of| of.take_unflushed(stored)) {
            *written = Some(self.space().journal().flush_gate().epoch());
        }
        *written
    }

    /// Root of the extent tree.
    #[must_use]
    pub fn tree(&self) -> &RwLock<ExtentRoot> {
        &self.tree
    }

    /// Extended attributes.
    #[must_use]
    pub fn xattr_lock(&self) -> &RwLock<()> {
        &self.xattr
    }

    /// Whether there can be extended attributes: false is certain, and cheap to find out.
    #[must_use]
    pub fn may_have_xattrs(&self) -> bool {
        let attributes = self.attributes.lock();
        attributes.file_acl != 0 || attributes.xattr_area.iter().take(4).any(|&byte| byte != 0)
    }

    /// Keeps the extra fields as long as they are: a plan for what stands behind them takes this
    /// before it looks how much room there is, and drops it when that is written.
    pub(crate) fn hold_fields(&self) -> FieldsHeld<'_> {
        self.fields_held.fetch_add(1, Ordering::SeqCst);
        FieldsHeld(self)
    }

    /// Whether it is known that the file has no capabilities.
    pub(crate) fn has_no_capabilities(&self) -> bool {
        self.no_capabilities.load(Ordering::Acquire)
    }

    /// Notes whether it is known that there are no capabilities. The caller holds the lock of the
    /// content, exclusively if attributes change.
    pub(crate) fn set_no_capabilities(&self, is_known: bool) {
        self.no_capabilities.store(is_known, Ordering::Release);
    }

    /// Attributes for reading. [`Inode::update`] changes them; times may be changed in memory only.
    #[must_use]
    pub fn attributes(&self) -> MutexGuard<'_, Attributes> {
        self.attributes.lock()
    }

    /// Cached data.
    pub(crate) fn pages(&self) -> MutexGuard<'_, FilePages> {
        self.pages.lock()
    }

    pub(crate) fn try_pages(&self) -> Option<MutexGuard<'_, FilePages>> {
        self.pages.try_lock()
    }

    /// Bytes of the file, as callers see it.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.attributes.lock().size
    }

    /// Whether the size is only known in memory yet: a sweep brings it to the inode table, also
    /// where no page is dirty any more.
    fn is_size_late(&self, attributes: &Attributes) -> bool {
        self.kind == FileKind::Regular && attributes.disk_size < attributes.size
    }

    /// Whether there are dirty pages, or times or a size that stand in no transaction.
    pub(crate) fn is_dirty(&self) -> bool {
        let late = {
            let attributes = self.attributes();
            attributes.times_dirty || self.is_size_late(&attributes)
        };
        late || self.is_direct_late() || self.pages().map.dirty() > 0
    }

    /// Whether a cut of the file began and has not ended: the inode is an orphan with links, or
    /// about to become one, or about to cease to be one.
    pub(crate) fn has_unfinished_cut(&self) -> bool {
        self.unfinished_cut.load(Ordering::Acquire)
    }

    /// A cut of the file begins, or has ended.
    pub(crate) fn set_unfinished_cut(&self, is_unfinished: bool) {
        self.unfinished_cut.store(is_unfinished, Ordering::Release);
    }

    /// Times have changed in memory only. `attributes` are this inode's.
    pub(crate) fn note_times(&self, attributes: &mut Attributes) {
        if !attributes.times_dirty {
            attributes.times_dirty = true;
            self.dirty.set();
        }
    }

    /// Notes that this handle changed what fdatasync(2) must make durable.
    pub(crate) fn note_data_change(&self, handle: &Handle<'_>) {
        self.data_changed_in.set(handle.tid());
    }

    /// The transaction that a sync of this inode must wait for.
    pub(crate) fn sync_tid(&self, data_only: bool) -> Option<uext4_ondisk::Tid> {
        if data_only { self.data_changed_in.get() } else { self.changed_in.get() }
    }
}

/// The extra fields of an inode keep their length.
#[derive(Debug)]
pub(crate) struct FieldsHeld<'a>(&'a Inode);

impl Drop for FieldsHeld<'_> {
    fn drop(&mut self) {
        self.0.fields_held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A transaction id that may be absent.
#[derive(Debug, Default)]
struct TidCell(AtomicU64);

impl TidCell {
    const PRESENT: u64 = 1 << 32;

    fn set(&self, tid: uext4_ondisk::Tid) {
        self.0.store(u64::from(tid.get()) | Self::PRESENT, Ordering::Release);
    }

    fn get(&self) -> Option<uext4_ondisk::Tid> {
        let value = self.0.load(Ordering::Acquire);
        #[allow(clippy::cast_possible_truncation)] // the low half is the id
        (value & Self::PRESENT != 0).then_some(uext4_ondisk::Tid(value as u32))
    }
}
