//! The mount table of this process, `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use uext4_device::LoopSource;

use crate::block;

/// Type of our mounts in the table.
pub const FS_TYPE: &str = "fuse.uext4";
/// Type of those that have a block device as their source ([`crate::FuseBlk`]).
pub const BLOCK_FS_TYPE: &str = "fuseblk.uext4";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Device number of the mount.
    pub device: (u32, u32),
    /// Where it is mounted.
    pub dir: PathBuf,
    /// What it is mounted with here, such as `rw,nosuid,nodev`.
    pub flags: String,
    /// Whether nothing can be changed through it.
    pub read_only: bool,
    /// Type, such as `fuse.uext4`.
    pub fs_type: String,
    /// Source: for our mounts the image, also where the table shows the loop device that stands
    /// for it.
    pub source: OsString,
    /// Source as the table shows it.
    pub shown_source: OsString,
    /// What the file system itself is mounted with, such as `rw,allow_other`.
    pub options: String,
}

impl MountPoint {
    /// Whether it is a mount of ours.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE || self.is_block()
    }

    /// Whether it is a mount of ours with a block device as its source.
    #[must_use]
    pub fn is_block(&self) -> bool {
        self.fs_type == BLOCK_FS_TYPE
    }

    /// Whether sync(2) of the whole system reaches its server.
    #[must_use]
    pub fn hears_sync(&self) -> bool {
        self.is_block() && block::passes_sync_on()
    }

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
    last(|mount| mount.is_ours() && wanted(&mount.source))
}

/// The number of the connection of a FUSE mount, by the mount's device: the device's number as the
/// kernel has it.
#[must_use]
pub fn connection((major, minor): (u32, u32)) -> u32 {
    major << 20 | minor
}

/// What a FUSE mount has in /sys/class/bdi, by the mount's device. That of a block device itself
/// has the plain name.
#[must_use]
pub fn bdi((major, minor): (u32, u32)) -> String {
    let suffix = if major == 0 { "" } else { "-fuseblk" };
    format!("{major}:{minor}{suffix}")
}

/// The last mount that is `wanted`: later lines lie over earlier ones.
fn last(wanted: impl Fn(&MountPoint) -> bool) -> io::Result<Option<MountPoint>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse).map(named).rfind(wanted))
}

/// Finds the image that a loop device stands for.
fn named(mount: MountPoint) -> MountPoint {
    match mount.is_block().then(|| LoopSource::name_of(mount.device)).flatten() {
        Some(source) => MountPoint { source, ..mount },
        None => mount,
    }
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
    let source = OsString::from_vec(unescape(source));
    Some(MountPoint {
        device: (major.parse().ok()?, minor.parse().ok()?),
        dir: PathBuf::from(OsString::from_vec(unescape(dir))),
        flags,
        read_only,
        fs_type: String::from_utf8_lossy(fs_type).into_owned(),
        source: source.clone(),
        shown_source: source,
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
    fn a_block_device_is_another_connection() {
        let mount = parse(b"36 35 7:3 / /mnt rw - fuseblk.uext4 /dev/loop3 rw").unwrap();
        assert!(mount.is_ours() && mount.is_block());
        assert_eq!((connection(mount.device), bdi(mount.device)), (7340035, "7:3-fuseblk".into()));
        assert_eq!((connection((0, 52)), bdi((0, 52))), (52, "0:52".into()));
        let other = parse(b"36 35 8:1 / /mnt rw - fuseblk.ntfs-3g /dev/sda1 rw").unwrap();
        assert!(!other.is_ours());
        // No loop device has such a number.
        let named = named(MountPoint { device: (7, 1 << 19), ..mount });
        assert_eq!(named.source, "/dev/loop3");
    }

    #[test]
    fn other_lines_are_no_mounts() {
        for line in [&b""[..], b"1 2", b"36 35 0:52 / /mnt rw shared:1 - ", b"a b c d e - f g"] {
            assert_eq!(parse(line), None);
        }
    }
}
