//! Open directories.

use std::ffi::{CString, c_char, c_int};

use uext4::{FileKind, InodeRef};

use crate::args;
use crate::failure::{Failure, Result, count, status};
use crate::inode::{InodeHandle, delete_unlinked, type_bits};
use crate::place::Place;
use crate::volume::{VolumeHandle, given};

/// Entries that are read at a time.
const BATCH: usize = 128;

/// An open directory: a position in the list of its entries. One thread at a time may use it; more
/// of them may be open on one directory.
#[derive(Debug)]
pub struct DirHandle {
    inode: InodeRef,
    /// Position behind the last entry that was given.
    cursor: u64,
    /// Entries that were read and not given yet, the next one at the end.
    ahead: Vec<(CString, Entry)>,
    /// The one that was given last.
    current: Option<(CString, Entry)>,
    volume: VolumeHandle,
}

/// An entry of a directory. It is valid until the next call on the same open directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Inode number.
    pub ino: u64,
    /// Position behind this entry, for uext4_dir_seek. It stays valid while the directory changes.
    pub next: u64,
    /// Name, with a zero byte at its end.
    pub name: *const c_char,
    /// Length of the name in bytes.
    pub name_length: u32,
    /// Type as st_mode of stat(2) has it, without permissions; 0 if the directory does not say.
    pub r#type: u32,
}

impl DirHandle {
    fn read_ahead(&mut self) -> Result<()> {
        let mut ahead = Vec::with_capacity(BATCH);
        self.volume.volume().read_dir(&self.inode, self.cursor, &mut |entry| {
            if ahead.len() == BATCH {
                return false;
            }
            // No name has a zero byte: the engine refuses such entries as corrupt.
            let Ok(name) = CString::new(entry.name) else { return true };
            let entry = Entry {
                ino: entry.ino.get().into(),
                next: entry.next,
                name: std::ptr::null(),
                name_length: entry.name.len() as u32,
                r#type: entry.kind.map_or(0, type_bits),
            };
            ahead.push((name, entry));
            true
        })?;
        ahead.reverse();
        self.ahead = ahead;
        Ok(())
    }

    /// The next entry; `None` at the end.
    fn next(&mut self) -> Result<Option<&Entry>> {
        if self.ahead.is_empty() {
            self.read_ahead()?;
        }
        self.current = self.ahead.pop();
        Ok(self.current.as_mut().map(|(name, entry)| {
            self.cursor = entry.next;
            entry.name = name.as_ptr();
            &*entry
        }))
    }
}

/// Opens a directory to list it, by path as with uext4_lookup; path may be NULL, for at itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_dir_open(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    dir: *mut *mut DirHandle,
) -> c_int {
    // SAFETY: objects and a string, or NULL, see the crate.
    let (handle, at, path) = unsafe { (volume.as_ref(), at.as_ref(), args::optional_text(path)) };
    status(handle, || {
        args::check_place(dir, "dir")?;
        let volume = given(handle)?;
        let place = Place::new(volume, at, path)?;
        let inode = place.inode(0)?;
        if inode.kind() != FileKind::Directory {
            return Err(place.failed(uext4::ErrorKind::NotADirectory.into()));
        }
        let volume = volume.clone();
        let opened = DirHandle { inode, cursor: 0, ahead: Vec::new(), current: None, volume };
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(dir, Box::into_raw(Box::new(opened))) };
        Ok(())
    })
}

/// The next entry, "." and ".." among them: returns 1 and puts it in *entry, 0 at the end, or a
/// negative errno. An entry that is there all the time is listed once; one that is made or removed
/// meanwhile may be listed or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_dir_next(dir: *mut DirHandle, entry: *mut *const Entry) -> c_int {
    // SAFETY: a directory that no other thread uses, or NULL, see the crate.
    let dir = unsafe { dir.as_mut() };
    let volume = dir.as_ref().map(|dir| dir.volume.clone());
    let found = count(volume.as_ref(), || {
        args::check_place(entry, "entry")?;
        let dir = dir.ok_or_else(|| Failure::invalid("dir is NULL"))?;
        let Some(next) = dir.next()? else { return Ok(0) };
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(entry, next) };
        Ok(1)
    });
    // No errno is longer than an int.
    found as c_int
}

/// Goes to a position: next of an entry of this directory, or 0 for its begin.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_dir_seek(dir: *mut DirHandle, position: u64) -> c_int {
    // SAFETY: a directory that no other thread uses, or NULL, see the crate.
    let dir = unsafe { dir.as_mut() };
    status(None, || {
        let dir = dir.ok_or_else(|| Failure::invalid("dir is NULL"))?;
        dir.ahead.clear();
        dir.cursor = position;
        Ok(())
    })
}

/// Closes a directory. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_dir_close(dir: *mut DirHandle) {
    if dir.is_null() {
        return;
    }
    // SAFETY: it came from `Box::into_raw` and is given back once, see the crate.
    let DirHandle { inode, volume, .. } = *unsafe { Box::from_raw(dir) };
    status(Some(&volume), || {
        drop(inode);
        delete_unlinked(&volume);
        Ok(())
    });
}
