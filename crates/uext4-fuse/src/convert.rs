//! Attributes, times, kinds and device numbers between the engine and the FUSE protocol.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use uext4::{Attr, FileKind, SetTime, Timestamp};

use crate::node::node_of;

/// Attributes of an entry: its node id stands in `ino`, as the protocol wants it.
///
/// The root never is an entry; for it use [`attr_of_inode`].
pub(crate) fn attr_of_entry(attr: &Attr) -> FileAttr {
    FileAttr { ino: INodeNo(node_of(attr.ino)), ..attr_of_inode(attr) }
}

/// Attributes with the inode number that stat(2) shows.
pub(crate) fn attr_of_inode(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(u64::from(attr.ino.get())),
        size: attr.size,
        blocks: attr.blocks_512,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        // Not on the wire but on macOS; statx birth times need FUSE_STATX, which fuser 0.18 lacks.
        crtime: UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.mode & 0o7777,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.rdev.major, attr.rdev.minor),
        blksize: attr.block_size,
        flags: 0,
    }
}

/// The file type of the protocol.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// The kind that the type bits of a mode name; `None` for what mknod(2) cannot make.
pub(crate) fn kind_of_mode(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        // mknod(2): a mode without a type makes a regular file.
        libc::S_IFREG | 0 => Some(FileKind::Regular),
        libc::S_IFCHR => Some(FileKind::CharDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        _ => None,
    }
}

/// Device number as the kernel's `new_encode_dev`: 12 bits of major, 20 bits of minor.
pub(crate) fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// Inverse of [`encode_device`]: major, minor.
pub(crate) fn decode_device(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// The engine's time as the protocol library wants it.
pub(crate) fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let base =
        if time.secs >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    // Out of range only for times that ext4 cannot hold.
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A time of a setattr request, exact to the nanosecond.
///
/// fuser 0.18 hands (seconds, nanoseconds) before 1970 over as `epoch - (|seconds| + nanoseconds)`,
/// which is not the time that was sent, but loses nothing: the two parts are taken back here. A
/// mount test with such a time guards against a change of that.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp {
            secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            nanos: after.subsec_nanos(),
        },
        Err(error) => {
            let before = error.duration();
            Timestamp {
                secs: i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs),
                nanos: before.subsec_nanos(),
            }
        }
    }
}

/// A time to set: the server's clock or the one given.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (1, 3), (8, 255), (259, 256), (4095, 1_048_575)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
    }

    #[test]
    fn replies_keep_times_before_1970() {
        let time = Timestamp { secs: -2, nanos: 800_000_000 };
        assert_eq!(system_time(time), UNIX_EPOCH - Duration::new(1, 200_000_000));
    }

    #[test]
    fn requests_keep_times_before_1970() {
        // What fuser 0.18 makes of (-2 s, 800,000,000 ns).
        let sent = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let time = timestamp(sent);
        assert_eq!((time.secs, time.nanos), (-2, 800_000_000));
    }
}
