//! Connections that were mounted by another program: `/dev/fd/N` in the place of the directory, as
//! mount.fuse3(8) and container runtimes give them to a server of FUSE.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{PidfdFlags, PidfdGetfdFlags};

/// What stands for the directory of such a mount, which is not known.
pub(crate) const NO_DIR: &str = "/proc/self/fd";

/// The number N of a directory `/dev/fd/N`.
pub(crate) fn number(dir: &Path) -> Option<i32> {
    let number = dir.to_str()?.strip_prefix("/dev/fd/")?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

/// The descriptor of that number. The caller's own stays open, and goes with the process.
///
/// # Errors
/// It is not open, or something else than `/dev/fuse`.
pub(crate) fn connection(number: i32) -> io::Result<OwnedFd> {
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let connection = rustix::process::pidfd_getfd(&own, number, PidfdGetfdFlags::empty())?;
    let device = rustix::fs::fstat(&connection)?.st_rdev;
    // Character device 10:229 (Documentation/admin-guide/devices.txt).
    if (rustix::fs::major(device), rustix::fs::minor(device)) != (10, 229) {
        return Err(io::Error::other("is not /dev/fuse"));
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_descriptors_are_connections() {
        assert_eq!(number(Path::new("/dev/fd/5")), Some(5));
        for dir in ["/dev/fd/", "/dev/fd/x", "/dev/fd/5/a", "/mnt", "/dev/fd/-1", "fd/5"] {
            assert_eq!(number(Path::new(dir)), None, "{dir}");
        }
        assert!(connection(0).is_err() && connection(987_654).is_err());
    }
}
