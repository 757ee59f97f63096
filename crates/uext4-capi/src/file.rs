//! Open files.

use std::ffi::{c_char, c_int, c_void};

use uext4::{
    AllocateMode, Device, ErrorKind, FileKind, InodeRef, LastLink, NewInode, OpenFile, SetAttr,
    removing_privs,
};

use crate::args;
use crate::failure::{Failure, Result, count, status};
use crate::inode::{InodeHandle, UEXT4_NOFOLLOW, delete_unlinked};
use crate::names::permissions;
use crate::place::Place;
use crate::volume::{VolumeHandle, given};

/// For uext4_file_open: the file may be changed, not only read.
pub const UEXT4_OPEN_WRITE: u32 = 2;
/// For uext4_file_open: a file that is not there is made, with the permissions mode.
pub const UEXT4_OPEN_CREATE: u32 = 4;
/// For uext4_file_open, with UEXT4_OPEN_CREATE: fail with EEXIST if the name is there.
pub const UEXT4_OPEN_EXCLUSIVE: u32 = 8;
/// For uext4_file_open: the file is emptied.
pub const UEXT4_OPEN_TRUNCATE: u32 = 16;

/// For uext4_file_allocate: every byte of the range gets a block; the file becomes longer if the
/// range ends behind it.
pub const UEXT4_ALLOCATE: u32 = 0;
/// For uext4_file_allocate: the same, and the size stays.
pub const UEXT4_ALLOCATE_KEEP_SIZE: u32 = 1;
/// For uext4_file_allocate: the range becomes a hole.
pub const UEXT4_ALLOCATE_PUNCH_HOLE: u32 = 2;
/// For uext4_file_allocate: the range becomes zero, and keeps or gets its blocks.
pub const UEXT4_ALLOCATE_ZERO: u32 = 3;
/// For uext4_file_allocate: the same, and the size stays.
pub const UEXT4_ALLOCATE_ZERO_KEEP_SIZE: u32 = 4;
/// For uext4_file_allocate: the range is taken out; whole blocks.
pub const UEXT4_ALLOCATE_COLLAPSE: u32 = 5;
/// For uext4_file_allocate: a hole is put in; whole blocks.
pub const UEXT4_ALLOCATE_INSERT: u32 = 6;

/// An open file, or a directory that is open to be synced. May be used by any number of threads.
#[derive(Debug)]
pub struct FileHandle {
    open: OpenFile,
    is_writable: bool,
    volume: VolumeHandle,
}

impl FileHandle {
    /// Changes the content, by a caller without CAP_FSETID.
    fn change<T>(&self, work: impl FnOnce(&OpenFile) -> uext4::Result<T>) -> Result<T> {
        if !self.is_writable {
            return Err(Failure::new(libc::EBADF, "the file is not open for writing"));
        }
        let group = self.volume.owner().gid;
        let privs = self.volume.volume().privs_for(self.open.inode(), group);
        Ok(removing_privs(privs, || work(&self.open)).0?)
    }
}

/// Does the work of a call on a file.
unsafe fn with_file(
    file: *const FileHandle,
    work: impl FnOnce(&FileHandle) -> Result<usize>,
) -> i64 {
    // SAFETY: a file or NULL, see the crate.
    let file = unsafe { file.as_ref() };
    count(file.map(|file| &file.volume), || {
        work(file.ok_or_else(|| Failure::invalid("file is NULL"))?)
    })
}

/// The same for a call that succeeds or fails.
unsafe fn status_of(
    file: *const FileHandle,
    work: impl FnOnce(&FileHandle) -> Result<()>,
) -> c_int {
    // SAFETY: as this function's caller says. No errno is longer than an int.
    unsafe { with_file(file, |file| work(file).map(|()| 0)) as c_int }
}

/// Opens a file, by path as with uext4_lookup; path may be NULL, for at itself. Flags:
/// UEXT4_OPEN_WRITE and the like, UEXT4_NOFOLLOW. A directory can be opened for
/// uext4_file_sync. What is made is of the owner that the volume was opened with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_open(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut FileHandle,
) -> c_int {
    // SAFETY: objects and a string, or NULL, see the crate.
    let (handle, at, path) = unsafe { (volume.as_ref(), at.as_ref(), args::optional_text(path)) };
    status(handle, || {
        args::check_place(file, "file")?;
        let volume = given(handle)?;
        let opened = open(volume, &Place::new(volume, at, path)?, flags, mode)?;
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(file, Box::into_raw(Box::new(opened))) };
        Ok(())
    })
}

fn open(volume: &VolumeHandle, place: &Place<'_>, flags: u32, mode: u32) -> Result<FileHandle> {
    const ALL: u32 = UEXT4_NOFOLLOW
        | UEXT4_OPEN_WRITE
        | UEXT4_OPEN_CREATE
        | UEXT4_OPEN_EXCLUSIVE
        | UEXT4_OPEN_TRUNCATE;
    let has = |flag: u32| flags & flag != 0;
    let is_writable = has(UEXT4_OPEN_WRITE);
    if flags & !ALL != 0 || (has(UEXT4_OPEN_TRUNCATE) && !is_writable) {
        return Err(Failure::invalid("flags that no file is opened with"));
    }
    let inode = match has(UEXT4_OPEN_CREATE) {
        true => find_or_make(volume, place, flags, permissions(mode)?)?,
        false => place.inode(flags & UEXT4_NOFOLLOW)?,
    };
    let failed = |error| place.failed(error);
    match inode.kind() {
        FileKind::Regular => {}
        FileKind::Directory if !is_writable => {}
        FileKind::Directory => return Err(failed(ErrorKind::IsADirectory.into())),
        FileKind::Symlink => {
            return Err(failed(ErrorKind::TooManySymlinks.into()));
        }
        _ => {
            return Err(failed(uext4::Error::new(
                ErrorKind::InvalidArgument,
                "not a regular file",
            )));
        }
    }
    if is_writable && volume.volume().read_only() {
        return Err(failed(ErrorKind::ReadOnly.into()));
    }
    let open = volume.volume().open_file(&inode).map_err(failed)?;
    if has(UEXT4_OPEN_TRUNCATE) {
        volume.volume().set_attr(&inode, &cut(volume, &inode, 0)).map_err(failed)?;
    }
    Ok(FileHandle { open, is_writable, volume: volume.clone() })
}

/// A new length of a file.
fn cut(volume: &VolumeHandle, inode: &InodeRef, size: u64) -> SetAttr {
    let kill_priv = Some(volume.volume().privs_for(inode, volume.owner().gid));
    SetAttr { size: Some(size), kill_priv, ..SetAttr::default() }
}

fn find_or_make(
    volume: &VolumeHandle,
    place: &Place<'_>,
    flags: u32,
    mode: u16,
) -> Result<InodeRef> {
    let is_exclusive = flags & UEXT4_OPEN_EXCLUSIVE != 0;
    let last = if flags & UEXT4_NOFOLLOW == 0 { LastLink::Follow } else { LastLink::Keep };
    let owner = volume.owner();
    let new = NewInode { kind: FileKind::Regular, mode, owner, rdev: Device::default() };
    place.work(|volume, from, path| volume.find_or_create_at(from, path, last, is_exclusive, &new))
}

/// Closes a file and gives it back, also where this fails: something that was written before could
/// not be written back, and no sync has told of it. Data is not made durable; see uext4_file_sync.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_close(file: *mut FileHandle) -> c_int {
    if file.is_null() {
        return status(None, || Err(Failure::invalid("file is NULL")));
    }
    // SAFETY: it came from `Box::into_raw` and is given back once, see the crate.
    let FileHandle { open, volume, .. } = *unsafe { Box::from_raw(file) };
    status(Some(&volume), || {
        let flushed = open.flush();
        drop(open);
        delete_unlinked(&volume);
        Ok(flushed?)
    })
}

/// Reads up to len bytes at byte offset. Returns how many: fewer than asked only at the end of the
/// file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_pread(
    file: *const FileHandle,
    buf: *mut c_void,
    len: usize,
    offset: u64,
) -> i64 {
    // SAFETY: an object and a buffer of that length, see the crate.
    unsafe { with_file(file, |file| Ok(file.open.read_at(offset, args::bytes_mut(buf, len)?)?)) }
}

/// Writes len bytes at byte offset. Returns how many: fewer than given only if an error came after
/// the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_pwrite(
    file: *const FileHandle,
    buf: *const c_void,
    len: usize,
    offset: u64,
) -> i64 {
    let work = |file: &FileHandle| {
        // SAFETY: a buffer of that length, see the crate.
        let bytes = unsafe { args::bytes(buf, len) }?;
        file.change(|open| open.write_at(offset, bytes))
    };
    // SAFETY: an object, see the crate.
    unsafe { with_file(file, work) }
}

/// Writes len bytes at the end of the file, wherever that is by then, and returns how many. If
/// offset is not NULL the byte where they begin is put there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_append(
    file: *const FileHandle,
    buf: *const c_void,
    len: usize,
    offset: *mut u64,
) -> i64 {
    let work = |file: &FileHandle| {
        // SAFETY: a buffer of that length, see the crate.
        let bytes = unsafe { args::bytes(buf, len) }?;
        let (at, written) = file.change(|open| open.append(bytes))?;
        if !offset.is_null() {
            // SAFETY: a valid place, see the crate.
            unsafe { args::put(offset, at) };
        }
        Ok(written)
    };
    // SAFETY: an object, see the crate.
    unsafe { with_file(file, work) }
}

/// Makes a file durable, or the names in a directory. With data_only not 0, only what is needed to
/// read its data back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_sync(file: *const FileHandle, data_only: c_int) -> c_int {
    // SAFETY: an object, see the crate.
    unsafe { status_of(file, |file| Ok(file.open.sync(data_only != 0)?)) }
}

/// Cuts a file, or lengthens it by a hole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_truncate(file: *const FileHandle, size: u64) -> c_int {
    let work = |file: &FileHandle| {
        let volume = &file.volume;
        file.change(|open| {
            let change = cut(volume, open.inode(), size);
            volume.volume().set_attr(open.inode(), &change).map(drop)
        })
    };
    // SAFETY: an object, see the crate.
    unsafe { status_of(file, work) }
}

/// Size of a file in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_size(file: *const FileHandle) -> i64 {
    let work = |file: &FileHandle| {
        let size = file.volume.volume().attr(file.open.inode()).size;
        Ok(usize::try_from(size).unwrap_or(usize::MAX))
    };
    // SAFETY: an object, see the crate.
    unsafe { with_file(file, work) }
}

/// Allocates, punches, zeroes, takes out or puts in a range of bytes, as fallocate(2). What is
/// UEXT4_ALLOCATE or one of its like.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_allocate(
    file: *const FileHandle,
    what: u32,
    offset: u64,
    len: u64,
) -> c_int {
    let work = |file: &FileHandle| {
        let mode = match what {
            UEXT4_ALLOCATE => AllocateMode::Allocate { keep_size: false },
            UEXT4_ALLOCATE_KEEP_SIZE => AllocateMode::Allocate { keep_size: true },
            UEXT4_ALLOCATE_PUNCH_HOLE => AllocateMode::PunchHole,
            UEXT4_ALLOCATE_ZERO => AllocateMode::ZeroRange { keep_size: false },
            UEXT4_ALLOCATE_ZERO_KEEP_SIZE => AllocateMode::ZeroRange { keep_size: true },
            UEXT4_ALLOCATE_COLLAPSE => AllocateMode::CollapseRange,
            UEXT4_ALLOCATE_INSERT => AllocateMode::InsertRange,
            _ => return Err(Failure::invalid("a way to allocate that is not known")),
        };
        file.change(|open| open.allocate(mode, offset, len))
    };
    // SAFETY: an object, see the crate.
    unsafe { status_of(file, work) }
}

/// The first byte at or behind offset that may hold data; -ENXIO if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_seek_data(file: *const FileHandle, offset: u64) -> i64 {
    // SAFETY: an object, see the crate.
    unsafe { with_file(file, |file| position(file.open.seek_data(offset))) }
}

/// The first byte at or behind offset that is in a hole, or the end of the file; -ENXIO past that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_file_seek_hole(file: *const FileHandle, offset: u64) -> i64 {
    // SAFETY: an object, see the crate.
    unsafe { with_file(file, |file| position(file.open.seek_hole(offset))) }
}

fn position(found: uext4::Result<u64>) -> Result<usize> {
    // No file is longer than 16 TiB.
    Ok(usize::try_from(found?).unwrap_or(usize::MAX))
}
