//! Owners, modes and device numbers that fakeroot(1) and its like pretend.
//!
//! They preload a library that answers in place of libc's stat. The calls of this crate go to the
//! kernel past libc, and would see the owners that files really have; those of std go by libc.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

/// One thread at a time: the library of fakeroot has one conversation with its server.
static ASKED: Mutex<()> = Mutex::new(());

/// Whether another library may answer in place of libc.
fn is_preloaded() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|libraries| !libraries.is_empty())
}

/// The attributes of a name, which is not followed.
///
/// # Errors
/// Those of fstatat(2).
pub fn statat(dir: &OwnedFd, name: &std::ffi::CStr) -> Result<Stat, Errno> {
    if !is_preloaded() {
        return rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fstat(&rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// The attributes of a file that is open.
///
/// # Errors
/// Those of fstat(2).
pub fn fstat(file: &OwnedFd) -> Result<Stat, Errno> {
    let mut stat = rustix::fs::fstat(file)?;
    if is_preloaded() {
        let told = {
            let _one = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
            let file = file.as_fd().try_clone_to_owned();
            file.and_then(|file| File::from(file).metadata())
        };
        let told = told.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        (stat.st_mode, stat.st_rdev) = (told.mode(), told.rdev());
        (stat.st_uid, stat.st_gid) = (told.uid(), told.gid());
    }
    Ok(stat)
}
