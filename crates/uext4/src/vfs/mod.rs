//! Names: operations on directories and attributes, by inode.
//!
//! What: [`Vfs`] has the operations that the file system layer of an operating system asks for:
//! look up, create, link, unlink, rename, attributes. Paths and permissions are up to the caller.
//! Invariants: a change of names or attributes is one handle, so a crash shows all of it or
//! nothing. All reads, checks and allocations come before the handle, under the locks of everything
//! that it changes. Three steps have handles of their own: a size that is set together with other
//! attributes, the data that a rename over a file writes first, and the deletion of an inode that
//! has lost its last name and user.
//! Locking: a directory before its entries. Two directories: ancestors first, else by number, and
//! under the rename lock. Then files. See `docs/locking.md`.
//! Kernel counterpart: `fs/namei.c`, `fs/ext4/namei.c`.

mod attempt;
mod attr;
mod create;
mod encryption;
mod fast_commit;
mod flags;
mod link;
mod listed_files;
mod open_file;
mod project;
mod remove;
mod rename;
mod set_id;
mod symlink;
mod walk_ahead;

pub use attr::{Attr, Device, SetAttr, SetTime};
pub use create::{NewInode, Owner};
pub use open_file::OpenFile;
pub use rename::RenameMode;
pub use set_id::{Privs, removing_privs};
pub(crate) use walk_ahead::WalkQueue;

use crate::cache::Buffer;
use crate::dir;
use crate::error::{Error, ErrorKind, Result};
use crate::file::Files;
use crate::inode::{Attributes, Inode, InodeRef};
use crate::stats::Calls;
use crate::sync::{LockRank, Mutex};
use crate::xattr;
use std::sync::Arc;
use uext4_ondisk::inode::LINK_MAX;
use uext4_ondisk::{CorruptKind, FileKind, Ino, InodeFlags, Place, RoCompat};

/// Operations by inode.
#[derive(Debug)]
pub struct Vfs {
    pub(crate) files: Arc<Files>,
    /// Held while an entry moves between directories, so that the shape of the tree is stable.
    rename: Mutex<()>,
    pub(crate) calls: Calls,
    /// Where the device is far: directories to be read before they are listed.
    walk_queue: Option<Arc<WalkQueue>>,
}

impl Vfs {
    /// Operations over `files`.
    #[must_use]
    pub fn new(files: Arc<Files>) -> Self {
        let is_far = files.context.cache().is_far();
        let walk_queue = is_far.then(|| Arc::new(WalkQueue::new()));
        let rename = Mutex::new(LockRank::Rename, ());
        Self { files, rename, calls: Calls::default(), walk_queue }
    }

    /// Directories to be read before they are listed; `None` where it does not pay.
    pub(crate) fn walk_queue(&self) -> Option<&Arc<WalkQueue>> {
        self.walk_queue.as_ref()
    }

    /// An inode by number.
    ///
    /// # Errors
    /// `NotFound` when it is not in use; `Corrupt`; a device failure.
    pub fn inode(&self, ino: Ino) -> Result<InodeRef> {
        self.files.syncs.trim_inodes();
        let space = &self.files.context.space;
        let free = || Error::new(ErrorKind::NotFound, format!("inode {ino}"));
        if ino != Ino::ROOT && (space.is_special(ino) || self.is_surely_free(ino)) {
            return Err(free());
        }
        let inode = self.files.context.table.get(ino).map_err(|error| match error.kind() {
            // A read-only volume shows every inode that it can read, whatever the bitmap says. A
            // slot that was never used holds arbitrary bytes; only the bitmap shows that it is
            // free.
            ErrorKind::Corrupt(_) if matches!(space.is_inode_used(ino), Ok(false)) => free(),
            _ => error,
        })?;
        let links = inode.attributes().links;
        if links == 0 { Err(free()) } else { Ok(inode) }
    }

    /// An inode by number and generation, for a caller that has seen it before. Also finds an inode
    /// that has lost its last link and is still in use.
    ///
    /// # Errors
    /// `NotFound` when it is gone; else those of [`Vfs::inode`].
    pub fn inode_again(&self, ino: Ino, generation: u32) -> Result<InodeRef> {
        let find = || self.files.context.table.find_named(ino);
        let inode = match find().map_or_else(|| self.inode(ino), Ok) {
            // It may have been read and have lost its last link since the search in the table.
            Err(error) if *error.kind() == ErrorKind::NotFound => find().ok_or(error)?,
            found => found?,
        };
        if inode.generation() == generation {
            return Ok(inode);
        }
        Err(Error::new(ErrorKind::NotFound, format!("inode {ino} of another generation")))
    }

    /// Whether the bitmap shows an inode as free, on a volume where the number could be given to a
    /// new file. A bitmap that cannot be read shows nothing, because no inode is allocated from it.
    fn is_surely_free(&self, ino: Ino) -> bool {
        !self.files.context.is_read_only()
            && matches!(self.files.context.space.is_inode_used(ino), Ok(false))
    }

    /// The inode that `name` leads to in `dir`, which may be `.` or `..`.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NameTooLong`; `Corrupt`; a device failure.
    pub fn lookup(&self, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        expect_directory(dir)?;
        self.files.syncs.trim_inodes();
        match name {
            b"." => return Ok(dir.clone()),
            b".." => return self.parent(dir),
            _ => {}
        }
        let _shared = dir.lock().read();
        let entry = dir::lookup(dir, name)?.ok_or(ErrorKind::NotFound)?;
        let inode = self.linked(dir, entry.ino)?;
        self.check_found(dir, &inode)?;
        Ok(inode)
    }

    /// The parent of a directory. The root is its own parent.
    fn parent(&self, dir: &InodeRef) -> Result<InodeRef> {
        if dir.ino() == Ino::ROOT {
            return Ok(dir.clone());
        }
        let _shared = dir.lock().read();
        let entry = dir::parent_entry(dir)?;
        self.linked(dir, entry.ino)
    }

    /// The inode that an entry of `dir` names. An entry that names a free inode is corrupt, and so
    /// is one that names the value of an attribute, or the directory itself, which this thread may
    /// have locked.
    fn linked(&self, dir: &Inode, ino: Ino) -> Result<InodeRef> {
        let corrupt = |why| {
            let kind = CorruptKind::Rule { what: "directory entry", why };
            Error::from(kind.at(Place::Inode(dir.ino())))
        };
        if ino == dir.ino() {
            return Err(corrupt("names its own directory"));
        }
        if ino != Ino::ROOT && self.files.context.space.is_special(ino) {
            return Err(corrupt("names a reserved inode"));
        }
        let inode = match self.files.context.table.find_named(ino) {
            Some(inode) => inode,
            // The number could be given to a new inode while this one is in memory.
            None if self.is_surely_free(ino) => {
                return Err(corrupt("names an inode that is free"));
            }
            None => self.files.context.table.get(ino).map_err(|error| match error.kind() {
                ErrorKind::NotFound => corrupt("names an inode that is free, or is no file"),
                _ => error,
            })?,
        };
        let links = inode.attributes().links;
        if links == 0 { Err(corrupt("names an inode without links")) } else { Ok(inode) }
    }

    /// Lists a directory from `cursor` (0: the start); `visit` returns false to stop.
    ///
    /// # Errors
    /// `NotADirectory`; `Corrupt`; a device failure.
    pub fn read_dir(
        &self,
        dir: &InodeRef,
        cursor: u64,
        visit: &mut dyn FnMut(dir::DirEntry<'_>) -> bool,
    ) -> Result<()> {
        expect_directory(dir)?;
        let _shared = dir.lock().read();
        self.files.context.note_access(dir, true);
        match &self.walk_queue {
            Some(queue) => self.read_dir_ahead(dir, cursor, visit, queue),
            None => dir::read(dir, cursor, visit),
        }
    }

    /// As [`Vfs::read_dir`], under the directory's lock. The rest of the directory is read with its
    /// first block; its subdirectories that are not in memory are queued, and so are files that are
    /// expected to be read.
    fn read_dir_ahead(
        &self,
        dir: &InodeRef,
        cursor: u64,
        visit: &mut dyn FnMut(dir::DirEntry<'_>) -> bool,
        queue: &WalkQueue,
    ) -> Result<()> {
        if cursor == 0 {
            // What fails here fails again below, where it matters.
            let _ = dir::read_ahead(dir, dir::LISTED_BYTES);
        }
        let (mut below, mut files) = (Vec::new(), Vec::new());
        dir::read(dir, cursor, &mut |entry| {
            let is_below = !matches!(entry.name, b"." | b"..");
            let goes_on = visit(entry);
            match entry.kind {
                _ if !goes_on || !is_below => {}
                Some(FileKind::Directory) if below.len() < walk_ahead::QUEUE_MAX => {
                    below.push(entry.ino);
                }
                Some(FileKind::Regular) if files.len() < listed_files::FILES_MAX => {
                    files.push(entry.ino);
                }
                _ => {}
            }
            goes_on
        })?;
        below.retain(|ino| self.files.context.table.find(*ino).is_none());
        queue.add(dir.ino(), cursor == 0, &below, &files);
        Ok(())
    }

    /// Sets an extended attribute, or removes it (`None`).
    ///
    /// # Errors
    /// `Exists`, `NoXattr` by `mode`; `NotPermitted` for an immutable or append-only inode;
    /// `NoSpace`; `ReadOnly`; see [`xattr::AttributeChange::plan`].
    pub fn xattr_change(
        &self,
        inode: &InodeRef,
        name: &[u8],
        value: Option<&[u8]>,
        mode: xattr::Mode,
    ) -> Result<()> {
        self.files.context.check_writable()?;
        self.lengthen_fields(inode)?;
        let change = || self.deleting_values(|| self.change_locked(inode, name, value, mode));
        // A removed value counts until it is deleted, which `deleting_values` has just done.
        change().or_else(|error| match error.kind() {
            ErrorKind::QuotaExceeded => change(),
            _ => Err(error),
        })?;
        self.files.syncs.honour_sync_flag(inode)
    }

    /// Makes a change that may set or remove attributes, and then deletes the values that no
    /// attribute refers to: those that it removes, and new ones of a change that failed. The caller
    /// holds no lock.
    fn deleting_values<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = change();
        // The change is done, or has failed, without this.
        let _ = self.files.context.watch(self.files.deletion.delete_unlinked());
        result
    }

    /// Sets or removes an attribute, under the lock of the inode.
    fn change_locked(
        &self,
        inode: &InodeRef,
        name: &[u8],
        value: Option<&[u8]>,
        mode: xattr::Mode,
    ) -> Result<()> {
        let _exclusive = inode.lock().write();
        self.files.context.check_not_protected(inode)?;
        if name == set_id::CAPABILITY {
            inode.set_no_capabilities(false);
        }
        let space = &self.files.context.space;
        let change = xattr::AttributeChange::plan(inode, name, value, mode)?;
        let acl_mode = match (name, value) {
            (create::ACL_ACCESS, Some(value)) => {
                xattr::acl::Acl::from_caller(value)?.map(|acl| acl.mode())
            }
            _ => None,
        };
        space.journal().run(change.credits() + 1, |handle| {
            change.apply(handle)?;
            inode.update(handle, |attributes| {
                if let Some(mode) = acl_mode {
                    attributes.mode = (attributes.mode & !0o777) | (mode & 0o777);
                }
                attributes.touch();
            })
        })
    }

    /// Lengthens the extra fields of an inode that an older driver made with shorter ones, before
    /// its attributes change: extended attributes behind them move. Where they cannot the inode
    /// stays as it is.
    fn lengthen_fields(&self, inode: &InodeRef) -> Result<()> {
        let is_short = |inode: &Inode| {
            let attributes = inode.attributes();
            let may_change = !attributes.flags.contains(InodeFlags::IMMUTABLE);
            may_change && attributes.wanted_extra_isize(inode.space().layout()).is_some()
        };
        if !is_short(inode) {
            return Ok(());
        }
        let _exclusive = inode.lock().write();
        // Without a block for them, or with damaged ones, the attributes stay where they are.
        let Ok(Some(change)) = xattr::AttributeChange::plan_fields(inode) else { return Ok(()) };
        self.files.context.space.journal().run(change.credits(), |handle| change.apply(handle))
    }

    fn check_name(name: &[u8]) -> Result<()> {
        if name.len() > uext4_ondisk::dir_entry::NAME_MAX {
            return Err(ErrorKind::NameTooLong.into());
        }
        let reserved = matches!(name, b"" | b"." | b"..");
        if reserved || name.contains(&b'/') || name.contains(&0) {
            return Err(Error::new(ErrorKind::InvalidArgument, "a name that no entry can have"));
        }
        Ok(())
    }

    /// Checks that a directory may lose an entry. An append-only directory may not.
    fn check_loser(&self, dir: &InodeRef) -> Result<()> {
        self.check_parent(dir)?;
        self.files.context.check_not_append_only(dir)
    }

    /// Checks that an inode may lose a name, or that its name may move.
    fn check_removable(&self, inode: &InodeRef) -> Result<()> {
        self.files.context.check_changeable(inode)?;
        self.files.context.check_not_append_only(inode)
    }

    /// Checks that a directory may get an entry. A removed directory may not.
    fn check_parent(&self, dir: &InodeRef) -> Result<()> {
        expect_directory(dir)?;
        self.files.context.check_changeable(dir)?;
        if dir.attributes().links == 0 {
            return Err(Error::new(ErrorKind::NotFound, "directory is removed"));
        }
        Ok(())
    }

    /// Checks that a directory can have one more subdirectory.
    fn check_links(&self, dir: &Inode) -> Result<()> {
        let unlimited =
            self.files.context.space.layout().features.ro_compat.contains(RoCompat::DIR_NLINK);
        if !unlimited && dir.attributes().links >= u32::from(LINK_MAX) {
            return Err(ErrorKind::TooManyLinks.into());
        }
        Ok(())
    }
}

/// The table blocks of the inodes that a handle will change.
fn pin(inodes: &[&Inode]) -> Result<Vec<Arc<Buffer>>> {
    inodes.iter().map(|inode| inode.table_block()).collect()
}

fn expect_directory(inode: &Inode) -> Result<()> {
    if inode.kind() == FileKind::Directory {
        return Ok(());
    }
    Err(ErrorKind::NotADirectory.into())
}

/// Counts a new subdirectory. A link count of 1 means more than the format can count.
fn add_subdirectory(attributes: &mut Attributes) {
    if attributes.links == 1 {
        return;
    }
    attributes.links += 1;
    if attributes.links > u32::from(LINK_MAX) {
        attributes.links = 1;
    }
}

/// Discounts a subdirectory.
fn drop_subdirectory(attributes: &mut Attributes) {
    if attributes.links > 2 {
        attributes.links -= 1;
    }
}
