//! Inodes: by path or number, their attributes.

use std::ffi::{c_char, c_int};

use uext4::{Attr, FileKind, Ino, InodeRef, SetAttr, SetTime, Timestamp};

use crate::args::{self, Shared};
use crate::failure::{Failure, Result, status};
use crate::place::Place;
use crate::volume::{VolumeHandle, given};

/// Flag of calls that take a path: a symbolic link at its end is not followed.
pub const UEXT4_NOFOLLOW: u32 = 1;

/// An inode that is in use: its number goes to no other file, even when its last name is removed.
/// May be used by any number of threads.
#[derive(Debug)]
pub struct InodeHandle {
    inode: InodeRef,
    volume: VolumeHandle,
}

impl InodeHandle {
    pub(crate) fn raw(inode: InodeRef, volume: &VolumeHandle) -> *mut Self {
        Box::into_raw(Box::new(Self { inode, volume: volume.clone() }))
    }

    pub(crate) fn inode(&self) -> &InodeRef {
        &self.inode
    }

    pub(crate) fn volume(&self) -> &VolumeHandle {
        &self.volume
    }
}

/// Attributes of an inode, as of statx(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Attributes {
    /// Number.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Space in use, in units of 512 bytes.
    pub blocks: u64,
    /// Last access: seconds since 1970.
    pub atime: i64,
    /// Last change of the content.
    pub mtime: i64,
    /// Last change of the inode.
    pub ctime: i64,
    /// Creation, where has_crtime is not 0.
    pub crtime: i64,
    /// Nanoseconds of atime.
    pub atime_nsec: u32,
    /// Nanoseconds of mtime.
    pub mtime_nsec: u32,
    /// Nanoseconds of ctime.
    pub ctime_nsec: u32,
    /// Nanoseconds of crtime.
    pub crtime_nsec: u32,
    /// Whether the inode has room for the time of its creation.
    pub has_crtime: u32,
    /// Type and permissions, as st_mode of stat(2).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Tells files of the same number apart.
    pub generation: u32,
    /// Inode flags, as of FS_IOC_GETFLAGS.
    pub flags: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Driver, of a device file.
    pub rdev_major: u32,
    /// Device of that driver.
    pub rdev_minor: u32,
}

// SAFETY: numbers without padding.
unsafe impl Shared for Attributes {}

/// For uext4_changes: mode, the permission bits.
pub const UEXT4_SET_MODE: u32 = 1;
/// For uext4_changes: uid.
pub const UEXT4_SET_UID: u32 = 2;
/// For uext4_changes: gid.
pub const UEXT4_SET_GID: u32 = 4;
/// For uext4_changes: size; the file is cut, or lengthened by a hole.
pub const UEXT4_SET_SIZE: u32 = 8;
/// For uext4_changes: atime.
pub const UEXT4_SET_ATIME: u32 = 16;
/// For uext4_changes: mtime.
pub const UEXT4_SET_MTIME: u32 = 32;
/// For uext4_changes: the access time becomes the current one.
pub const UEXT4_SET_ATIME_NOW: u32 = 64;
/// For uext4_changes: the modification time becomes the current one.
pub const UEXT4_SET_MTIME_NOW: u32 = 128;

/// Attributes to set: those of which mask has the bit.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Changes {
    /// UEXT4_SET_MODE and the like.
    pub mask: u32,
    /// Permission bits, set-id and sticky bits included.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Last access: seconds since 1970.
    pub atime: i64,
    /// Last change of the content.
    pub mtime: i64,
    /// Nanoseconds of atime.
    pub atime_nsec: u32,
    /// Nanoseconds of mtime.
    pub mtime_nsec: u32,
}

// SAFETY: numbers without padding.
unsafe impl Shared for Changes {}

/// Finds an inode by path and holds it: for further calls, whose paths begin at it, or that have
/// NULL as path and mean the inode itself. The path begins at the inode at, or at the root if that
/// is NULL or the path begins with a slash. Flags: UEXT4_NOFOLLOW.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_lookup(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    inode: *mut *mut InodeHandle,
) -> c_int {
    // SAFETY: objects and a string, or NULL, see the crate.
    let (handle, at, path) = unsafe { (volume.as_ref(), at.as_ref(), args::optional_text(path)) };
    status(handle, || {
        args::check_place(inode, "inode")?;
        let volume = given(handle)?;
        let found = Place::new(volume, at, path)?.inode(flags)?;
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(inode, InodeHandle::raw(found, volume)) };
        Ok(())
    })
}

/// Finds an inode by its number and generation, and holds it. The root is number 2. A generation of
/// 0 stands for any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_inode_by_number(
    volume: *const VolumeHandle,
    ino: u64,
    generation: u32,
    inode: *mut *mut InodeHandle,
) -> c_int {
    // SAFETY: an object or NULL, see the crate.
    let handle = unsafe { volume.as_ref() };
    status(handle, || {
        args::check_place(inode, "inode")?;
        let volume = given(handle)?;
        let absent = |_| Failure::new(libc::ENOENT, format_args!("inode {ino}: not found"));
        let number = Ino(u32::try_from(ino).map_err(absent)?);
        let found = match generation {
            0 => volume.volume().inode(number),
            generation => volume.volume().inode_again(number, generation),
        }?;
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(inode, InodeHandle::raw(found, volume)) };
        Ok(())
    })
}

/// Gives an inode back. If it has no name any more it is deleted. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_inode_free(inode: *mut InodeHandle) {
    if inode.is_null() {
        return;
    }
    // SAFETY: it came from `Box::into_raw` and is given back once, see the crate.
    let InodeHandle { inode, volume } = *unsafe { Box::from_raw(inode) };
    status(Some(&volume), || {
        drop(inode);
        delete_unlinked(&volume);
        Ok(())
    });
}

/// Deletes what has lost its last name and its last user.
pub(crate) fn delete_unlinked(volume: &VolumeHandle) {
    // What could not be deleted is an orphan, which the next mount deletes.
    let _ = volume.volume().delete_unlinked();
}

/// Attributes of an inode, by path as with uext4_lookup; path may be NULL, for at itself.
/// attributes_size is sizeof *attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_getattr(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    attributes: *mut Attributes,
    attributes_size: usize,
) -> c_int {
    // SAFETY: objects and a string, or NULL, see the crate.
    let (handle, at, path) = unsafe { (volume.as_ref(), at.as_ref(), args::optional_text(path)) };
    status(handle, || {
        args::check_place(attributes, "attributes")?;
        let volume = given(handle)?;
        let inode = Place::new(volume, at, path)?.inode(flags)?;
        let value = Attributes::from(&volume.volume().attr(&inode));
        // SAFETY: a structure of that size, see the crate.
        unsafe { args::fill(attributes, attributes_size, &value) };
        Ok(())
    })
}

/// Sets attributes of an inode, by path as with uext4_lookup; path may be NULL, for at itself.
/// changes_size is sizeof *changes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_setattr(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    changes: *const Changes,
    changes_size: usize,
) -> c_int {
    // SAFETY: objects and a string, or NULL, see the crate.
    let (handle, at, path) = unsafe { (volume.as_ref(), at.as_ref(), args::optional_text(path)) };
    status(handle, || {
        // SAFETY: a structure of that size, see the crate.
        let changes = unsafe { args::structure(changes, changes_size, "changes") }?;
        let change = set_attr(&changes)?;
        let volume = given(handle)?;
        let place = Place::new(volume, at, path)?;
        let inode = place.inode(flags)?;
        let removes = change.size.is_some() || change.uid.is_some() || change.gid.is_some();
        let kill_priv = (removes && inode.kind() != FileKind::Directory)
            .then(|| volume.volume().privs_for(&inode, volume.owner().gid));
        let done = volume.volume().set_attr(&inode, &SetAttr { kill_priv, ..change });
        done.map(drop).map_err(|error| place.failed(error))
    })
}

fn set_attr(changes: &Changes) -> Result<SetAttr> {
    const ALL: u32 = 2 * UEXT4_SET_MTIME_NOW - 1;
    let has = |bit: u32| changes.mask & bit != 0;
    if changes.mask & !ALL != 0 {
        return Err(Failure::invalid("mask has bits that no attribute has"));
    }
    if has(UEXT4_SET_MODE) && changes.mode > 0o7777 {
        return Err(Failure::invalid("mode has more than permission bits"));
    }
    let time = |at, now, secs, nanos: u32| match (has(at), has(now)) {
        (true, true) => Err(Failure::invalid("a time that is given and is the current one")),
        (true, false) if nanos >= 1_000_000_000 => {
            Err(Failure::invalid("a second or more of nanoseconds"))
        }
        (true, false) => Ok(Some(SetTime::At(Timestamp { secs, nanos }))),
        (false, now) => Ok(now.then_some(SetTime::Now)),
    };
    Ok(SetAttr {
        mode: has(UEXT4_SET_MODE).then_some((changes.mode & 0o7777) as u16),
        uid: has(UEXT4_SET_UID).then_some(changes.uid),
        gid: has(UEXT4_SET_GID).then_some(changes.gid),
        size: has(UEXT4_SET_SIZE).then_some(changes.size),
        atime: time(UEXT4_SET_ATIME, UEXT4_SET_ATIME_NOW, changes.atime, changes.atime_nsec)?,
        mtime: time(UEXT4_SET_MTIME, UEXT4_SET_MTIME_NOW, changes.mtime, changes.mtime_nsec)?,
        ..SetAttr::default()
    })
}

/// The type as st_mode of stat(2) has it.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::Symlink => libc::S_IFLNK,
    }
}

impl From<&Attr> for Attributes {
    fn from(attr: &Attr) -> Self {
        let crtime = attr.crtime.unwrap_or_default();
        Self {
            ino: attr.ino.get().into(),
            size: attr.size,
            blocks: attr.blocks_512,
            atime: attr.atime.secs,
            mtime: attr.mtime.secs,
            ctime: attr.ctime.secs,
            crtime: crtime.secs,
            atime_nsec: attr.atime.nanos,
            mtime_nsec: attr.mtime.nanos,
            ctime_nsec: attr.ctime.nanos,
            crtime_nsec: crtime.nanos,
            has_crtime: attr.crtime.is_some().into(),
            mode: type_bits(attr.kind) | u32::from(attr.mode),
            uid: attr.uid,
            gid: attr.gid,
            links: attr.links,
            generation: attr.generation,
            flags: attr.flags.bits(),
            block_size: attr.block_size,
            rdev_major: attr.rdev.major,
            rdev_minor: attr.rdev.minor,
        }
    }
}
