//! Names: making, linking, renaming and removing them.

use std::ffi::{c_char, c_int, c_void};

use uext4::{Device, FileKind, NewInode, Owner, RenameMode, Volume};

use crate::args::{self, Shared, at_place, count_at_place};
use crate::failure::{Failure, Result};
use crate::inode::{InodeHandle, UEXT4_NOFOLLOW};
use crate::place::Place;
use crate::volume::VolumeHandle;

/// For uext4_rename: fail with EEXIST if the new name is there.
pub const UEXT4_RENAME_NOREPLACE: u32 = 1;
/// For uext4_rename: what has the new name gets the old one.
pub const UEXT4_RENAME_EXCHANGE: u32 = 2;

/// What uext4_mknod makes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct NewFile {
    /// Type and permissions, as st_mode of stat(2); a directory or a regular file, too.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group. That of a directory with set-group-id takes its place.
    pub gid: u32,
    /// Driver, of a device file.
    pub rdev_major: u32,
    /// Device of that driver.
    pub rdev_minor: u32,
}

// SAFETY: numbers without padding.
unsafe impl Shared for NewFile {}

/// Makes a directory with these permissions, set-id bits left out; no umask applies. It is of the
/// owner that the volume was opened with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_mkdir(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    mode: u32,
) -> c_int {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        let new = NewInode {
            kind: FileKind::Directory,
            mode: permissions(mode)?,
            owner: volume.owner(),
            rdev: Device::default(),
        };
        place.work(|volume, from, path| volume.create_at(from, path, &new)).map(drop)
    };
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, work) }
}

/// Makes a file of any type but a symbolic link, also a device file, pipe or socket, with an owner
/// of its own. new_size is sizeof *new_file. If inode is not NULL the new inode is held there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_mknod(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    new_file: *const NewFile,
    new_size: usize,
    inode: *mut *mut InodeHandle,
) -> c_int {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        // SAFETY: a structure of that size, see the crate.
        let new = unsafe { args::structure(new_file, new_size, "new_file") }?;
        let new = new_inode(&new)?;
        let made = place.work(|volume, from, path| volume.create_at(from, path, &new))?;
        if !inode.is_null() {
            // SAFETY: a valid place, see the crate.
            unsafe { args::put(inode, InodeHandle::raw(made, volume)) };
        }
        Ok(())
    };
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, work) }
}

/// Permission bits; more is refused.
pub(crate) fn permissions(mode: u32) -> Result<u16> {
    let bits = u16::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
    bits.ok_or_else(|| Failure::invalid("mode has more than permission bits"))
}

fn new_inode(new: &NewFile) -> Result<NewInode> {
    let kind = match new.mode & libc::S_IFMT {
        libc::S_IFREG => FileKind::Regular,
        libc::S_IFDIR => FileKind::Directory,
        libc::S_IFCHR => FileKind::CharDevice,
        libc::S_IFBLK => FileKind::BlockDevice,
        libc::S_IFIFO => FileKind::Fifo,
        libc::S_IFSOCK => FileKind::Socket,
        _ => return Err(Failure::invalid("mode has no type that can be made so")),
    };
    Ok(NewInode {
        kind,
        mode: permissions(new.mode & !libc::S_IFMT)?,
        owner: Owner { uid: new.uid, gid: new.gid },
        rdev: Device { major: new.rdev_major, minor: new.rdev_minor },
    })
}

/// Makes a symbolic link at path that leads to target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_symlink(
    volume: *const VolumeHandle,
    target: *const c_char,
    at: *const InodeHandle,
    path: *const c_char,
) -> c_int {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        // SAFETY: a string, see the crate.
        let target = unsafe { args::text(target, "target") }?;
        let owner = volume.owner();
        place.work(|volume, from, path| volume.symlink_at(from, path, target, owner)).map(drop)
    };
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, work) }
}

/// Where a symbolic link leads: fills buf with at most size bytes, without a zero byte, and returns
/// the length of the whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_readlink(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    buf: *mut c_void,
    size: usize,
) -> i64 {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        let inode = place.inode(UEXT4_NOFOLLOW)?;
        let target = volume.volume().read_link(&inode).map_err(|error| place.failed(error))?;
        // SAFETY: a buffer of that size, see the crate.
        unsafe { args::give(&target, buf, size) }
    };
    // SAFETY: as this function's caller says.
    unsafe { count_at_place(volume, at, path, work) }
}

/// Gives a file that is there another name. A symbolic link at the end of path is not followed, as
/// with link(2). path may be NULL, for at itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_link(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    new_at: *const InodeHandle,
    new_path: *const c_char,
) -> c_int {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        // SAFETY: an object and a string, or NULL, see the crate.
        let (new_at, new_path) = unsafe { (new_at.as_ref(), args::text(new_path, "new_path")?) };
        let new = Place::new(volume, new_at, Some(new_path))?;
        let inode = place.inode(UEXT4_NOFOLLOW)?;
        new.work(|volume, from, path| volume.link_at(&inode, from, path))
    };
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, work) }
}

/// Removes a name of something that is no directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_unlink(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
) -> c_int {
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, |_, place| place.work(Volume::unlink_at)) }
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_rmdir(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
) -> c_int {
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, |_, place| place.work(Volume::rmdir_at)) }
}

/// Renames. What has the new name is replaced, unless flags (UEXT4_RENAME_NOREPLACE or
/// UEXT4_RENAME_EXCHANGE) say otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_rename(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    new_at: *const InodeHandle,
    new_path: *const c_char,
    flags: u32,
) -> c_int {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        // SAFETY: an object and a string, or NULL, see the crate.
        let (new_at, new_path) = unsafe { (new_at.as_ref(), args::text(new_path, "new_path")?) };
        let mode = match flags {
            0 => RenameMode::Replace,
            UEXT4_RENAME_NOREPLACE => RenameMode::NoReplace,
            UEXT4_RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Failure::invalid("flags that this call does not have")),
        };
        let (new_from, new_path) = Place::new(volume, new_at, Some(new_path))?.parts()?;
        place.work(|volume, from, path| volume.rename_at(from, path, &new_from, new_path, mode))
    };
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, work) }
}
