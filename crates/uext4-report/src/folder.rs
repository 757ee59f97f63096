//! The folder of a report, opened once: what is read and what is written lie in the same one, even
//! if its name leads elsewhere meanwhile.
//!
//! Invariant: a file is written under a name of its own and renamed when it is whole. What had the
//! name before, a hard link or a symbolic one of somebody else's file too, is left as it is, and
//! a write that fails leaves the old report.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Result, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};

/// Names that are tried for a file that is not whole yet.
const TRIES: u32 = 100;

/// Opens a folder, which itself may be named by a symbolic link.
pub(crate) fn open(folder: &Path) -> Result<OwnedFd> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}

/// Writes a file of a folder, in place of what has that name.
pub(crate) fn put(folder: &OwnedFd, name: &OsStr, text: &str) -> Result<()> {
    let (mut file, temporary) = temporary(folder)?;
    let whole = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    let renamed = whole.and_then(|()| Ok(rustix::fs::renameat(folder, &*temporary, folder, name)?));
    if renamed.is_err() {
        // What failed first is what there is to tell.
        let _ = rustix::fs::unlinkat(folder, &*temporary, AtFlags::empty());
    }
    renamed
}

/// A new file, with its name.
fn temporary(folder: &OwnedFd) -> Result<(File, String)> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(0o666);
    let process = std::process::id();
    for number in 0..TRIES {
        let temporary = format!(".uext4-report-{process}-{number}");
        match rustix::fs::openat(folder, &*temporary, flags, mode) {
            Ok(file) => return Ok((File::from(file), temporary)),
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}
