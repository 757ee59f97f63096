//! Inodes in memory.
//!
//! What: an [`Inode`] holds the attributes, the root of the extent tree and the pages of one file,
//! each under its own lock. [`InodeTable`] keeps one `Inode` per number. Callers hold an
//! [`InodeRef`]: an unlinked inode lives until the last reference is dropped.
//! Invariants: one `Inode` per number. Attributes change under their lock and are written into the
//! inode-table block in the same handle.
//! Locking: `lock` (rank `Directory` or `File`) guards the content as callers see it. `writeback`
//! guards every change of a file's extent tree; `tree` guards the bytes of its root.
//! Kernel counterpart: `fs/ext4/inode.c`, `fs/inode.c`.

mod attributes;
mod direct;
mod direct_io_state;
mod encryption;
mod errseq;
mod goals;
mod inline;
mod reserved_clusters;
mod slot;
mod stray_names;
mod table;
mod usage;
mod values;
mod verity;
mod written;

pub use attributes::{Attributes, TimeField, now};
pub(crate) use direct_io_state::{
    CountedReadGuard, DirectIoState, ExclusiveGuard, Helper, ReadToken, Version,
};
use encryption::Encryption;
pub(crate) use encryption::{ENCRYPTION_BYTES, is_encryptable};
pub use errseq::{ErrorCursor, ErrorSequence};
pub(crate) use inline::InlineState;
pub use reserved_clusters::ReservedClusters;
pub(crate) use reserved_clusters::{HolePage, cluster_bytes};
pub(crate) use slot::{put_slot, table_block_of};
use stray_names::StrayNames;
pub(crate) use table::Creation;
pub use table::{InodeRef, InodeTable};
pub use values::ValueInodes;
pub(crate) use values::{KnownValues, OrphanList};
pub(crate) use verity::VerityInfo;
pub(crate) use written::WrittenLeaf;

use crate::alloc::{Preallocation, Reservation, Space};
use crate::cache::{Cache, DirtyMark, PageBudget, PageMap};
use crate::config::DaxMode;
use crate::crypt::KeyRing;
use crate::journal::{FlushEpoch, Handle};
use crate::quota::{Owners, QuotaHold};
use crate::sync::state::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{LockRank, Mutex, MutexGuard, OnceLock, RwLock};
use slot::SlotPlace;
use std::ops::RangeInclusive;
use std::sync::Arc;
use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::{FileBlock, FileKind, GroupNo, Incompat, Ino, InodeFlags};

/// The parts of a volume that all of its inodes share.
#[derive(Debug)]
pub struct InodeContext {
    /// The metadata cache.
    pub cache: Arc<Cache>,
    /// The allocator.
    pub space: Arc<Space>,
    /// The budget of the pages of all files.
    pub budget: Arc<PageBudget>,
    /// Which files are in DAX mode.
    pub dax: DaxMode,
    /// The keys of encrypted inodes.
    pub keys: KeyRing,
    /// The inodes that hold values of attributes.
    pub values: ValueInodes,
}

/// Root of an extent tree: `i_block`.
#[derive(Debug)]
pub struct ExtentRoot {
    /// Header and at most four entries.
    pub bytes: [u8; 60],
}

/// Room below the limits of an inode's owners.
#[derive(Debug)]
pub struct FileQuota {
    /// For the reserved data blocks.
    pub hold: QuotaHold,
    /// For blocks of a mapping that is being inserted and was not reserved.
    lent: Vec<QuotaHold>,
}

/// Cached data of a file and the reservation of blocks for it.
#[derive(Debug)]
pub struct FilePages {
    /// The pages.
    pub map: PageMap,
    /// Blocks reserved for dirty pages, and for the extent tree that will map them.
    pub reservation: Reservation,
    /// What is held below the limits of the owners, if the inode counts.
    pub quota: Option<Box<FileQuota>>,
    /// Blocks that are reserved for data, or clusters.
    pub(crate) reserved: u32,
    /// Number of pages over holes.
    pub hole_pages: u32,
    /// Which clusters those are in.
    pub clusters: ReservedClusters,
    /// How many of them have been mapped since, and charged, so that quota holds nothing for them.
    /// Counted where there is quota or clusters.
    pub(crate) charged: u32,
    /// How many of them the mapping has that is being inserted.
    mapping: u32,
    /// How many of them a direct write has allocated. The reservation has no space for these.
    pub(crate) allocated: u32,
    /// Number of dirty pages over unwritten extents.
    pub converting: u32,
    /// The file has had a block map, whose nodes are counted in another way.
    pub by_block_map: bool,
    /// All pages with a reservation are before this block.
    pub reserved_end: FileBlock,
    /// When the first page became dirty, in milliseconds of the volume's clock.
    pub dirty_since_ms: u64,
    /// Byte at which a sequential reader would continue.
    pub read_ahead_at: u64,
    /// Bytes that were last read ahead of it, where reads take long.
    window: u32,
}

impl FilePages {
    /// How many bytes to read ahead, where reads take long: twice as many as last time, or the
    /// least for a reader that begins.
    pub(crate) fn next_window(&mut self, range: RangeInclusive<u32>, begins: bool) -> u64 {
        let next = if begins { *range.start() } else { self.window.saturating_mul(2) };
        self.window = next.clamp(*range.start(), *range.end());
        self.window.into()
    }

    /// Blocks or clusters for which space is reserved, and which are not mapped yet.
    pub(crate) fn unmapped(&self) -> u32 {
        self.reserved.saturating_sub(self.charged)
    }

    /// Begins the insertion of a mapping with so many reserved blocks or clusters.
    pub(crate) fn begin_mapping(&mut self, units: u32) {
        self.mapping = units;
    }

    /// Ends it: what quota did not charge is mapped all the same.
    pub(crate) fn end_mapping(&mut self) {
        if self.quota.is_none() {
            self.charged += self.mapping.min(self.unmapped());
        }
        self.mapping = 0;
    }

    /// Takes the room below limits that is held for up to `bytes` of the mapping which is being
    /// inserted: it becomes usage.
    fn take_room(&mut self, bytes: u64) -> u64 {
        let unit = cluster_bytes(self.reservation.space().layout());
        let most = self.mapping.min(self.unmapped());
        let Some(FileQuota { hold, lent }) = self.quota.as_deref_mut() else { return 0 };
        if !lent.is_empty() {
            let take = |taken, hold: &mut QuotaHold| taken + hold.become_usage(bytes - taken);
            return lent.iter_mut().fold(0, take);
        }
        let units = u32::try_from(bytes / unit).unwrap_or(u32::MAX).min(most);
        self.mapping -= units;
        self.charged += units;
        hold.become_usage(u64::from(units) * unit)
    }

    /// The reserved blocks are for other owners from now on.
    fn move_quota(&mut self, owners: Owners) {
        if let Some(FileQuota { hold, lent }) = self.quota.as_deref_mut() {
            [hold].into_iter().chain(lent).for_each(|hold| hold.move_to(owners));
        }
    }
}

/// The right to change a file's extent tree and to write its data back. The holder of the writeback
/// lock passes it to the functions that need it.
#[derive(Debug, Default)]
pub struct WritebackState(());

/// An inode in memory.
#[derive(Debug)]
pub struct Inode {
    context: Arc<InodeContext>,
    ino: Ino,
    kind: FileKind,
    /// DAX mode: content is loaded and stored in place, and no page ever holds any of it.
    is_dax: bool,
    /// Its contents, names or target are encrypted. Only an empty directory becomes so, with its
    /// lock held exclusively.
    encrypted: AtomicBool,
    /// Whether its blocks are mapped by an extent tree: what the flags say, for readers without the
    /// lock of the attributes.
    tree_form: AtomicBool,
    /// How, once that was asked.
    encryption: OnceLock<Box<Encryption>>,
    stray_names: StrayNames,
    seed: InodeSeed,
    place: SlotPlace,
    /// The group where its blocks would best be, if they are few.
    data_group: GroupNo,
    /// Content of a directory; content and size of a file.
    lock: RwLock<()>,
    writeback: Mutex<WritebackState>,
    /// A pass of a sync over it runs. Changes under the lock of the group writeback's queue.
    pub(crate) in_sync_pass: AtomicBool,
    /// The flush epoch after the last data write; `None` if there was no write since the volume was
    /// opened.
    written: Mutex<Option<FlushEpoch>>,
    tree: RwLock<ExtentRoot>,
    xattr: RwLock<()>,
    attributes: Mutex<Attributes>,
    pages: Mutex<FilePages>,
    /// Blocks that are kept for it while it is open.
    pub(crate) preallocation: Arc<Preallocation>,
    /// State of its direct I/O, once there has been any.
    direct_io: OnceLock<Box<DirectIoState>>,
    /// Set whenever pages or times become dirty.
    pub(crate) dirty: Arc<DirtyMark>,
    /// Writeback failures, for handles that sync.
    pub(crate) errors: ErrorSequence,
    /// The transaction of the last change, and that of the last change of size or mapping.
    changed_in: TidCell,
    data_changed_in: TidCell,
    /// The file was truncated to nothing: closing it writes it back (`auto_da_alloc`).
    pub(crate) flush_on_close: AtomicBool,
    /// A truncate has set the size and has not removed everything behind it. The inode is an orphan
    /// until that is done, and must not grow before. Changes with the file's lock held exclusively.
    unfinished_truncate: AtomicBool,
    /// It was made without a name and has had none since: a link may give it one. Changes with the
    /// file's lock held exclusively.
    awaits_name: AtomicBool,
    /// Its blocks are nodes that another file had, of which the log may have images.
    holds_nodes: AtomicBool,
    /// It holds the value of an attribute (ea_inode), and is no file.
    is_value: bool,
    /// It has a Merkle tree. Changes with the file's lock held exclusively, and once.
    sealed: AtomicBool,
    /// Its Merkle tree, once it has been read.
    pub(crate) verity: OnceLock<Box<VerityInfo>>,
    /// The file is known to have no `security.capability`. Changes with the lock of the content
    /// held.
    no_capabilities: AtomicBool,
    /// Where the data of a regular file is: an [`InlineState`]. Changes with the file's lock held
    /// exclusively.
    inline: AtomicU32,
    /// Number of [`FieldsHeld`] guards: see [`Inode::hold_fields`].
    fields_held: AtomicU32,
    refs: AtomicU32,
    referenced: AtomicBool,
    /// Its slot has not been written yet.
    fresh: AtomicBool,
    /// The volume keeps quota, and the inode counts.
    is_charged: bool,
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
        let sealed = attributes.flags.contains(InodeFlags::VERITY);
        let is_value = values::is_value(kind, &attributes);
        let is_file = kind == FileKind::Regular && !is_value;
        let is_dax = is_file && direct::is_dax(context.dax, attributes.flags);
        let quota = context.space.quota_of(ino, attributes.owners());
        let is_charged = quota.is_some();
        let encrypted = AtomicBool::new(encryption::is_encrypted(kind, attributes.flags));
        let has_tree = has_tree_form(attributes.flags, &context.space);
        let pages = FilePages {
            map: PageMap::new(Arc::clone(&dirty)),
            reservation: Reservation::empty(&context.space),
            quota: quota.map(|hold| Box::new(FileQuota { hold, lent: Vec::new() })),
            reserved: 0,
            hole_pages: 0,
            clusters: ReservedClusters::new(context.space.layout()),
            converting: 0,
            by_block_map: !has_tree,
            charged: 0,
            allocated: 0,
            mapping: 0,
            reserved_end: FileBlock(0),
            dirty_since_ms: 0,
            read_ahead_at: 0,
            window: 0,
        };
        // The inode may have been in memory before, and may have left data that is written and not
        // flushed.
        let inline = match fresh {
            true if !is_dax && !is_value => {
                InlineState::of_new(context.space.layout(), kind, &attributes)
            }
            _ => InlineState::of(kind, &attributes),
        };
        let written = (!fresh).then(|| context.space.journal().flush_gate().epoch());
        Self {
            context: Arc::clone(context),
            ino,
            kind,
            is_dax,
            encrypted,
            tree_form: AtomicBool::new(has_tree),
            encryption: OnceLock::new(),
            stray_names: StrayNames::unknown(),
            seed,
            place,
            data_group,
            lock: RwLock::new(rank, ()),
            writeback: Mutex::new(LockRank::Writeback, WritebackState::default()),
            in_sync_pass: AtomicBool::new(false),
            written: Mutex::new(LockRank::Leaf, written),
            tree: RwLock::new(LockRank::ExtentTree, attributes.tree_root(context.space.layout())),
            xattr: RwLock::new(LockRank::Xattr, ()),
            attributes: Mutex::new(LockRank::Attributes, attributes),
            pages: Mutex::new(LockRank::Pages, pages),
            preallocation: Arc::new(Preallocation::default()),
            direct_io: OnceLock::new(),
            dirty,
            errors: ErrorSequence::default(),
            changed_in: TidCell::default(),
            data_changed_in: TidCell::default(),
            flush_on_close: AtomicBool::new(false),
            unfinished_truncate: AtomicBool::new(false),
            awaits_name: AtomicBool::new(false),
            holds_nodes: AtomicBool::new(false),
            is_value,
            sealed: AtomicBool::new(sealed),
            verity: OnceLock::new(),
            no_capabilities: AtomicBool::new(false),
            inline: AtomicU32::new(inline as u32),
            fields_held: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            referenced: AtomicBool::new(true),
            fresh: AtomicBool::new(fresh),
            is_charged,
        }
    }

    /// The parts of the volume that all inodes share.
    pub(crate) fn context(&self) -> &Arc<InodeContext> {
        &self.context
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

    /// Whether the file is in DAX mode. The mode is decided when the inode is loaded, as in ext4,
    /// and does not change while it is in memory.
    #[must_use]
    pub fn is_dax(&self) -> bool {
        self.is_dax
    }

    /// Distinguishes successive files that have the same number; never changes.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.attributes().generation
    }

    /// Whether its `i_block` leads to blocks. It does not for devices, pipes, sockets and symbolic
    /// links whose target is in the inode.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        match self.kind {
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => self.size() >= Self::FAST_SYMLINK_MAX,
            _ => false,
        }
    }

    /// Whether its blocks, if any, are mapped by an extent tree rather than by a block map of ext2
    /// and ext3. Changes when the file is converted, and never while other calls look. An inode
    /// that has its data in itself has the form that it gets when the data leaves it.
    #[must_use]
    pub fn has_extent_tree(&self) -> bool {
        self.tree_form.load(Ordering::Acquire)
    }

    /// Whether it has a Merkle tree (fs-verity), so that every read is verified.
    #[must_use]
    pub fn is_verity(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// The file gets its Merkle tree. The caller holds the file exclusively.
    pub(crate) fn set_sealed(&self) {
        self.sealed.store(true, Ordering::Release);
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

    /// The group that the inode is in.
    #[must_use]
    pub fn group(&self) -> GroupNo {
        self.space().layout().group_of_ino(self.ino).map_or(GroupNo(0), |(group, _)| group)
    }

    /// Lock of a directory's content, or of a file's content and size.
    #[must_use]
    pub fn lock(&self) -> &RwLock<()> {
        &self.lock
    }

    /// The writeback lock: held while the extent tree of a file changes.
    pub(crate) fn writeback(&self) -> MutexGuard<'_, WritebackState> {
        self.writeback.lock()
    }

    /// The writeback lock if it is free.
    pub(crate) fn try_writeback(&self) -> Option<MutexGuard<'_, WritebackState>> {
        self.writeback.try_lock()
    }

    /// Notes that data of the file has been written: a flush that starts later than `epoch` covers
    /// it. Called before the pages count as clean.
    pub(crate) fn note_written(&self, epoch: FlushEpoch) {
        *self.written.lock() = Some(epoch);
    }

    /// The epoch that a flush must cover so that all data written so far is durable; `None` if none
    /// was written.
    pub(crate) fn written(&self) -> Option<FlushEpoch> {
        let mut written = self.written.lock();
        // Direct overwrites record only that there were some: all that have returned were complete
        // before now. Under the lock, because another sync must not miss them meanwhile.
        let stored = self.cache().device().dax().is_some();
        if self.direct_io().is_some_and(|of| of.take_unflushed(stored)) {
            *written = Some(self.space().journal().flush_gate().epoch());
        }
        *written
    }

    /// Root of the extent tree.
    #[must_use]
    pub fn tree(&self) -> &RwLock<ExtentRoot> {
        &self.tree
    }

    /// The lock of the extended attributes.
    #[must_use]
    pub fn xattr_lock(&self) -> &RwLock<()> {
        &self.xattr
    }

    /// Whether there may be extended attributes; false is certain. Reads no block.
    #[must_use]
    pub fn may_have_xattrs(&self) -> bool {
        let attributes = self.attributes.lock();
        attributes.file_acl != 0 || attributes.xattr_area.iter().take(4).any(|&byte| byte != 0)
    }

    /// Whether its blocks are metadata, which has to be revoked when it is freed.
    pub(crate) fn has_metadata_blocks(&self) -> bool {
        let is_file = self.kind == FileKind::Regular && !self.is_value;
        !is_file || self.holds_nodes.load(Ordering::Acquire)
    }

    /// Notes that the file has got blocks that were nodes of another.
    pub(crate) fn set_holds_nodes(&self) {
        self.holds_nodes.store(true, Ordering::Release);
    }

    /// Keeps the extra fields at their length. A plan for the bytes behind them takes this guard
    /// before it looks how much room there is, and drops it when the bytes are written.
    pub(crate) fn hold_fields(&self) -> FieldsHeld<'_> {
        self.fields_held.fetch_add(1, Ordering::SeqCst);
        FieldsHeld(self)
    }

    /// Whether it is known that the file has no capabilities.
    pub(crate) fn has_no_capabilities(&self) -> bool {
        self.no_capabilities.load(Ordering::Acquire)
    }

    /// Sets whether the file is known to have no capabilities. The caller holds the lock of the
    /// content, exclusively if attributes change.
    pub(crate) fn set_no_capabilities(&self, is_known: bool) {
        self.no_capabilities.store(is_known, Ordering::Release);
    }

    /// The attributes, for reading. [`Inode::update`] changes them; only times may be changed in
    /// memory alone.
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

    /// Whether the size in memory is ahead of the inode table. Writeback brings it there, even if
    /// no page is dirty any more.
    fn is_size_ahead(&self, attributes: &Attributes) -> bool {
        self.kind == FileKind::Regular && attributes.disk_size < attributes.size
    }

    /// Whether there are dirty pages, or times or a size that are in no transaction yet.
    pub(crate) fn is_dirty(&self) -> bool {
        let is_ahead = {
            let attributes = self.attributes();
            attributes.times_dirty || self.is_size_ahead(&attributes)
        };
        is_ahead || self.has_lazy_direct_times() || self.pages().map.dirty() > 0
    }

    /// Whether a truncate of the file has begun and not ended: the inode is an orphan with links,
    /// or is about to become or to cease to be one.
    pub(crate) fn has_unfinished_truncate(&self) -> bool {
        self.unfinished_truncate.load(Ordering::Acquire)
    }

    /// Notes that a truncate of the file begins, or has ended.
    pub(crate) fn set_unfinished_truncate(&self, is_unfinished: bool) {
        self.unfinished_truncate.store(is_unfinished, Ordering::Release);
    }

    /// Notes that times have changed in memory only. `attributes` are this inode's.
    pub(crate) fn note_times(&self, attributes: &mut Attributes) {
        if !attributes.times_dirty {
            attributes.times_dirty = true;
            self.dirty.set();
        }
    }

    /// Whether it was made without a name and has had none since.
    pub(crate) fn awaits_name(&self) -> bool {
        self.awaits_name.load(Ordering::Acquire)
    }

    /// Notes that it was made without a name, or has got one.
    pub(crate) fn set_awaits_name(&self, awaits: bool) {
        self.awaits_name.store(awaits, Ordering::Release);
    }

    /// Notes that this handle changes something that fdatasync(2) must make durable.
    pub(crate) fn note_data_change(&self, handle: &Handle<'_>) {
        self.data_changed_in.set(handle.tid());
    }

    /// The transaction that a sync of this inode must wait for.
    pub(crate) fn sync_tid(&self, data_only: bool) -> Option<uext4_ondisk::Tid> {
        if data_only { self.data_changed_in.get() } else { self.changed_in.get() }
    }
}

/// Whether blocks of an inode with these flags are mapped by an extent tree.
fn has_tree_form(flags: InodeFlags, space: &Space) -> bool {
    let incompat = space.layout().features.incompat;
    flags.contains(InodeFlags::EXTENTS)
        || (flags.contains(InodeFlags::INLINE_DATA) && incompat.contains(Incompat::EXTENT))
}

/// While this exists the extra fields of the inode keep their length.
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
