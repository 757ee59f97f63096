//! The mount table of this process, `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Type of our mounts in the table.
pub const FS_TYPE: &str = "fuse.uext4";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Device number of the mount; the minor of a FUSE mount is its connection's number.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What it is mounted with here, such as `rw,nosuid,nodev`.
    pub flags: String,
    /// Whether nothing can be changed through it.
    pub read_only: bool,
    /// Type, such as `fuse.uext4`.
    pub fs_type: String,
    /// Source: for our mounts the image.
    pub source: OsString,
    /// What the file system itself is mounted with, such as `rw,allow_other`.
    pub options: String,
}

impl MountPoint {
    /// Whether the file system is mounted with the option `word`.
    #[must_use]
    pub fn has_option(&self, word: &str) -> bool {
        self.options.split(',').any(|option| option == word)
    }
}

/// The topmost mount at `dir`, compared by path only: a dead FUSE mount cannot be looked at.
///
/// # Errors
/// The table cannot be read.
pub fn find(dir: &Path) -> io::Result<Option<MountPoint>> {
    last(|mount| mount.dir == dir)
}

/// The last mount below `dir`, not on it.
///
/// # Errors
/// The table cannot be read.
pub fn below(dir: &Path) -> io::Result<Option<MountPoint>> {
    last(|mount| mount.dir != dir && mount.dir.starts_with(dir))
}

/// The mount of a device number as stat(2) shows it.
///
/// # Errors
/// The table cannot be read.
pub fn of_device(device: u64) -> io::Result<Option<MountPoint>> {
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    last(|mount| mount.device == device)
}

/// A mount of ours whose source is `wanted`.
///
/// # Errors
/// The table cannot be read.
pub fn find_source(wanted: impl Fn(&OsStr) -> bool) -> io::Result<Option<MountPoint>> {
    last(|mount| mount.fs_type == FS_TYPE && wanted(&mount.source))
}

/// The last mount that is `wanted`: later lines lie over earlier ones.
fn last(wanted: impl Fn(&MountPoint) -> bool) -> io::Result<Option<MountPoint>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse).rfind(wanted))
}

/// One line of the table; `None` for a line of another shape.
fn parse(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|b| *b == b' ');
    let device = fields.nth(2)?;
    let dir = fields.nth(1)?;
    let flags = String::from_utf8_lossy(fields.next()?).into_owned();
    let read_only = flags.split(',').any(|flag| flag == "ro");
    let mut tail = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = tail.next()?;
    let source = tail.next()?;
    let options = tail.next().unwrap_or_default();
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(MountPoint {
        device: (major.parse().ok()?, minor.parse().ok()?),
        dir: PathBuf::from(OsString::from_vec(unescape(dir))),
        flags,
        read_only,
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        source: OsString::from_vec(unescape(source)),
        options: String::from_utf8_lossy(options).into_owned(),
    })
}

/// Undoes the octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            digits.iter().try_fold(0u8, |value, digit| match digit {
                b'0'..=b'7' => value.checked_mul(8)?.checked_add(digit - b'0'),
                _ => None,
            })
        };
        match (*first, after.get(..3).and_then(octal)) {
            (b'\\', Some(byte)) => {
                plain.push(byte);
                rest = &after[3..];
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

/// The absolute path of `dir` without touching `dir` itself, which may be a dead mount: its parent
/// is resolved, the last part is taken as it stands.
///
/// # Errors
/// The parent does not exist, or the working directory is gone.
pub fn absolute(dir: &Path) -> io::Result<PathBuf> {
    let whole = std::path::absolute(dir)?;
    match (whole.parent(), whole.file_name()) {
        (Some(parent), Some(name)) if name.as_bytes() != b".." => {
            Ok(parent.canonicalize()?.join(name))
        }
        _ => whole.canonicalize(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = br"36 35 0:52 / /mnt/a\040b rw,nosuid shared:1 - fuse.uext4 /img\134x rw,fd=3";
        let mount = parse(line).unwrap();
        assert_eq!(mount.device, (0, 52));
        assert_eq!(mount.dir, Path::new("/mnt/a b"));
        assert_eq!(mount.fs_type, FS_TYPE);
        assert!(!mount.read_only && mount.flags == "rw,nosuid");
        assert_eq!(mount.source, OsString::from(r"/img\x"));
        assert!(mount.has_option("fd=3") && !mount.has_option("nosuid"));
    }

    #[test]
    fn other_lines_are_no_mounts() {
        for line in [&b""[..], b"1 2", b"36 35 0:52 / /mnt rw shared:1 - ", b"a b c d e - f g"] {
            assert_eq!(parse(line), None);
        }
    }
}
