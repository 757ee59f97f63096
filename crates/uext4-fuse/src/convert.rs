//! Attributes, times, kinds and device numbers between the engine and the FUSE protocol.

use uext4::{Attr, FileKind, Timestamp};
use uext4_fuse_server::abi;

use crate::node::node_of;

/// Attributes of an entry: its node id stands in `ino`, as the protocol wants it.
///
/// The root never is an entry; for it use [`attr_of_inode`].
pub(crate) fn attr_of_entry(attr: &Attr) -> abi::Attr {
    abi::Attr { ino: node_of(attr.ino), ..attr_of_inode(attr) }
}

/// Attributes with the inode number that stat(2) shows.
pub(crate) fn attr_of_inode(attr: &Attr) -> abi::Attr {
    let (atime, atimensec) = time(attr.atime);
    let (mtime, mtimensec) = time(attr.mtime);
    let (ctime, ctimensec) = time(attr.ctime);
    abi::Attr {
        ino: attr.ino.get().into(),
        size: attr.size,
        blocks: attr.blocks_512,
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: u32::from(attr.kind.mode() | attr.mode & 0o7777),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_device(attr.rdev.major, attr.rdev.minor),
        blksize: attr.block_size,
        flags: 0,
    }
}

/// What statx(2) tells: attributes, and the time of birth.
pub(crate) fn statx(attr: &Attr) -> abi::Statx {
    const BASIC: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    let time =
        |time: Timestamp| abi::SxTime { tv_sec: time.secs, tv_nsec: time.nanos, reserved: 0 };
    abi::Statx {
        mask: if attr.crtime.is_some() { BASIC | BTIME } else { BASIC },
        blksize: attr.block_size,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.kind.mode() | attr.mode & 0o7777,
        ino: attr.ino.get().into(),
        size: attr.size,
        blocks: attr.blocks_512,
        atime: time(attr.atime),
        btime: attr.crtime.map(time).unwrap_or_default(),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: attr.rdev.major,
        rdev_minor: attr.rdev.minor,
        ..abi::Statx::default()
    }
}

/// The type of a name in a listing: those bits, as readdir(3) shows them.
pub(crate) fn dirent_type(kind: FileKind) -> u32 {
    u32::from(kind.mode() >> 12)
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

/// The engine's time as the protocol has it: seconds since 1970 in two's complement.
fn time(time: Timestamp) -> (u64, u32) {
    (time.secs.cast_unsigned(), time.nanos)
}

/// A time of the protocol, exact to the nanosecond.
pub(crate) fn timestamp(secs: u64, nanos: u32) -> Timestamp {
    Timestamp { secs: secs.cast_signed(), nanos }
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
    fn times_before_1970_are_kept() {
        let before = Timestamp { secs: -2, nanos: 800_000_000 };
        let (secs, nanos) = time(before);
        let back = timestamp(secs, nanos);
        assert_eq!((back.secs, back.nanos), (before.secs, before.nanos));
    }
}
