//! Inodes that hold values of attributes (ea_inode).
//!
//! What: how they are found, which equal ones are known, and the lock under which their counts of
//! references change.
//! Invariants: such an inode has no name. It has one link while attributes refer to it, and is an
//! orphan otherwise: from the handle that makes it to the one that sets the first attribute, and
//! from the one that removes the last attribute until it is deleted. As an orphan it is a regular
//! file on the device, because Linux deletes no orphan that is marked as holding a value. So quota
//! counts it as one.
//! Locking: a change of attributes on a file system with such inodes holds the lock from its plan
//! until its handle has changed the entries, so that no count changes in between.
//! Kernel counterpart: `ext4_xattr_inode_iget` and the cache of values in `fs/ext4/xattr.c`.

use super::{Attributes, Inode, InodeRef, InodeTable};
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Handle;
use crate::quota::Owners;
use crate::sync::state::{AtomicBool, Ordering};
use crate::sync::{LockRank, Mutex, MutexGuard, OnceLock};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Weak};
use uext4_ondisk::{CorruptKind, FileKind, Incompat, Ino, InodeFlags, Layout, Place, Timestamp};

/// The orphans of a volume, which stand above this layer.
pub(crate) trait OrphanList: Send + Sync + std::fmt::Debug {
    /// Makes an inode an orphan.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    fn add(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()>;

    /// Takes an inode off the orphans.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    fn remove(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()>;
}

/// Most values that are known for sharing.
const KNOWN_MAX: usize = 4096;

/// Values that a new, equal one may share, by checksum. One that is missing costs an inode.
#[derive(Debug, Default)]
pub(crate) struct KnownValues(FxHashMap<u32, Ino>);

impl KnownValues {
    /// The inode with a value of this checksum.
    pub(crate) fn find(&self, checksum: u32) -> Option<Ino> {
        self.0.get(&checksum).copied()
    }

    /// Notes an inode that attributes refer to.
    pub(crate) fn note(&mut self, checksum: u32, ino: Ino) {
        if self.0.len() >= KNOWN_MAX {
            self.0.clear();
        }
        self.0.insert(checksum, ino);
    }

    /// Forgets an inode that nothing refers to any more.
    pub(crate) fn forget(&mut self, checksum: u32, ino: Ino) {
        if self.find(checksum) == Some(ino) {
            self.0.remove(&checksum);
        }
    }
}

/// The inodes of a volume that hold values.
#[derive(Debug)]
pub struct ValueInodes {
    known: Mutex<KnownValues>,
    parts: OnceLock<(Weak<InodeTable>, Weak<dyn OrphanList>)>,
    /// Numbers of free inodes may be given to new ones.
    is_writable: AtomicBool,
}

impl Default for ValueInodes {
    fn default() -> Self {
        let known = Mutex::new(LockRank::Values, KnownValues::default());
        Self { known, parts: OnceLock::new(), is_writable: AtomicBool::new(false) }
    }
}

impl ValueInodes {
    /// Tells where inodes and orphans are kept, and whether the volume is written. To be called
    /// once.
    pub(crate) fn attach<T: OrphanList + 'static>(
        &self,
        table: &Arc<InodeTable>,
        orphans: &Arc<T>,
        is_writable: bool,
    ) {
        self.is_writable.store(is_writable, Ordering::Relaxed);
        let orphans: Weak<T> = Arc::downgrade(orphans);
        let first = self.parts.set((Arc::downgrade(table), orphans)).is_ok();
        assert!(first, "a volume has one table of inodes");
    }

    /// The lock that a change of attributes holds.
    pub(crate) fn lock(&self) -> MutexGuard<'_, KnownValues> {
        self.known.lock()
    }

    /// The inodes in memory.
    ///
    /// # Errors
    /// The volume is being opened or closed.
    pub(crate) fn table(&self) -> Result<Arc<InodeTable>> {
        let table = self.parts.get().and_then(|(table, _)| table.upgrade());
        table.ok_or_else(|| Error::new(ErrorKind::Internal, "values before the volume is open"))
    }

    /// The orphans.
    ///
    /// # Errors
    /// The volume is being opened or closed.
    pub(crate) fn orphans(&self) -> Result<Arc<dyn OrphanList>> {
        let orphans = self.parts.get().and_then(|(_, orphans)| orphans.upgrade());
        orphans.ok_or_else(|| Error::new(ErrorKind::Internal, "values before the volume is open"))
    }

    /// The inode with the value of an attribute of `owner`. While the reference is held the value
    /// is not deleted.
    ///
    /// # Errors
    /// `Corrupt` for an inode that holds no value, or may not; a device failure.
    pub(crate) fn get(&self, owner: &Inode, ino: Ino) -> Result<InodeRef> {
        let corrupt = |why| {
            let kind = CorruptKind::Rule { what: "extended attribute in an inode", why };
            Error::from(kind.at(Place::Inode(ino)))
        };
        let layout = owner.space().layout();
        let is_ordinary = ino >= layout.first_ino && ino.get() <= layout.inodes_count;
        if !is_ordinary || ino == owner.ino() || owner.space().is_special(ino) {
            return Err(corrupt("may not be in this one"));
        }
        let table = self.table()?;
        // As an entry of a directory: the number could be given to a new file while this inode is
        // in memory.
        let may_be_given = self.is_writable.load(Ordering::Relaxed) && table.find(ino).is_none();
        if may_be_given && matches!(owner.space().is_inode_used(ino), Ok(false)) {
            return Err(corrupt("is in one that is free"));
        }
        let value = table.get_value(ino).map_err(|error| match error.kind() {
            ErrorKind::NotFound => corrupt("is in one that holds no value"),
            _ => error,
        })?;
        // Linux refuses it, too: values could have values without end, and usage would be wrong.
        match value.may_have_xattrs() {
            true => Err(corrupt("is in one that has attributes")),
            false => Ok(value),
        }
    }
}

impl Attributes {
    /// Checksum of the value that the inode holds: a word where other inodes have seconds.
    pub(crate) fn value_checksum(&self) -> u32 {
        word(self.atime)
    }

    /// Sets the checksum of the value.
    pub(crate) fn set_value_checksum(&mut self, checksum: u32) {
        self.atime = Timestamp { secs: checksum.cast_signed().into(), nanos: 0 };
    }

    /// Number and generation of the owner, as Lustre names it in an inode with a value.
    pub(crate) fn value_owner(&self) -> (Ino, u32) {
        (Ino(word(self.mtime)), self.generation)
    }

    /// Gives an inode with a value to other owners.
    pub(crate) fn set_owners(&mut self, owners: Owners, layout: &Layout) {
        let has_room = self.has_room_for_project(layout);
        let [uid, gid, project] = owners.0;
        (self.uid, self.gid) = (uid, gid);
        self.project = if has_room { project } else { 0 };
    }

    /// Number of attributes that refer to the value.
    pub(crate) fn references(&self) -> u64 {
        u64::from(word(self.ctime)) << 32 | self.version & u64::from(u32::MAX)
    }

    /// Sets the number of attributes that refer to the value, and with it the link, and whether the
    /// inode is marked as holding one.
    pub(crate) fn set_references(&mut self, count: u64) {
        let high = u32::try_from(count >> 32).unwrap_or(u32::MAX);
        self.ctime = Timestamp { secs: high.cast_signed().into(), nanos: 0 };
        self.version = count & u64::from(u32::MAX);
        self.links = u32::from(count > 0);
        self.flags.set(InodeFlags::EA_INODE, count > 0);
    }
}

impl Inode {
    /// Whether it holds the value of an attribute, and is no file. Never changes.
    pub(crate) fn is_value(&self) -> bool {
        self.is_value
    }

    /// The values of the volume, if it may have them.
    pub(crate) fn value_inodes(&self) -> Option<&ValueInodes> {
        let has = self.space().layout().features.incompat.contains(Incompat::EA_INODE);
        has.then_some(&self.context.values)
    }
}

/// Whether an inode with these attributes holds the value of an attribute.
pub(super) fn is_value(kind: FileKind, attributes: &Attributes) -> bool {
    kind == FileKind::Regular && attributes.flags.contains(InodeFlags::EA_INODE)
}

/// Checks that nothing but a regular file is marked as holding a value: it would count for nobody.
pub(super) fn check_kind(kind: FileKind, attributes: &Attributes) -> Result<(), CorruptKind> {
    match attributes.flags.contains(InodeFlags::EA_INODE) && kind != FileKind::Regular {
        true => Err(CorruptKind::Rule { what: "inode", why: "holds a value, and is no file" }),
        false => Ok(()),
    }
}

fn word(time: Timestamp) -> u32 {
    #[allow(clippy::cast_possible_truncation)] // the low half is the word
    let word = time.secs as u32;
    word
}
