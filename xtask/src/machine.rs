//! What this machine has: programs, rights, FUSE.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Folders of system programs, which an ordinary user's PATH often lacks on Debian.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// PATH with the folders of system programs appended.
pub(crate) fn search_path() -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.iter().map(PathBuf::from));
    std::env::join_paths(folders).unwrap_or(path)
}

/// Where a program is, if it is installed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path())
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Why nothing can be mounted here, or `None` if it can.
pub(crate) fn why_no_fuse() -> Option<&'static str> {
    if !Path::new("/dev/fuse").exists() {
        return Some("/dev/fuse is missing");
    }
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("/dev/fuse cannot be opened");
    }
    if !is_root() && program("fusermount3").is_none() {
        return Some("fusermount3 (Debian package fuse3) is missing, and this is not root");
    }
    None
}

/// Whether something is mounted on a folder.
pub(crate) fn is_mounted(folder: &Path) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    let Some(wanted) = folder.to_str() else { return false };
    // The fifth field is the mount point, with blanks as octal escapes.
    let wanted = wanted.replace('\\', "\\134").replace(' ', "\\040");
    table.lines().any(|line| line.split(' ').nth(4) == Some(&wanted))
}
