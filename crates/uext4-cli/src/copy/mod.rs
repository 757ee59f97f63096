//! Copying trees between the host and images, in any direction that has an image at one end.
//!
//! What: [`Source`] and [`Target`] are what a side must offer; [`tree`] walks. Kept: contents with
//! their holes, modes, owners, times to the nanosecond, extended attributes, hard links among the
//! files copied, symbolic links, devices, fifos and sockets; names as bytes. [`leaf`] has what is
//! left of a regular file once it is made, which other threads may do.
//!
//! Invariants:
//! - A name from a source is one path component; anything else is refused ([`check_name`]).
//! - On the host every step below the target directory is taken from an open directory with
//!   `RESOLVE_BENEATH` or `O_NOFOLLOW`: an image cannot make a copy leave the target.

pub(crate) mod guarded;
pub(crate) mod host_source;
pub(crate) mod host_target;
pub(crate) mod image_source;
pub(crate) mod image_target;
pub(crate) mod leaf;
pub(crate) mod tree;

use std::ops::Range;

use uext4::{FileKind, Timestamp};
use uext4_archive::Acl;

use crate::failure::Why;

/// Result of a step; the walker says where it failed.
pub(crate) type Try<T> = Result<T, Why>;

/// What makes two names the same file: the file system and the inode number.
pub(crate) type Id = (u64, u64);

/// Attributes of a file to copy.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    /// Kind.
    pub(crate) kind: FileKind,
    /// Permission bits with set-id and sticky bits.
    pub(crate) mode: u16,
    /// Owner.
    pub(crate) uid: u32,
    /// Group.
    pub(crate) gid: u32,
    /// Length in bytes.
    pub(crate) size: u64,
    /// Names of the inode.
    pub(crate) links: u64,
    /// Access time.
    pub(crate) atime: Timestamp,
    /// Modification time.
    pub(crate) mtime: Timestamp,
    /// Device number (major, minor) of a device node.
    pub(crate) device: (u32, u32),
    /// Which file this is.
    pub(crate) id: Id,
}

/// What stands at a name already.
#[derive(Clone, Copy, Debug)]
pub(crate) struct There {
    /// Which file it is.
    pub(crate) id: Id,
    /// Its modification time: seconds, nanoseconds.
    pub(crate) mtime: (i64, u32),
}

/// One extended attribute.
pub(crate) struct Xattr {
    /// Full name, such as `user.comment`.
    pub(crate) name: Vec<u8>,
    /// Value.
    pub(crate) value: Vec<u8>,
}

/// The side that is read.
pub(crate) trait Source {
    /// A file of any kind, found.
    type Node;

    /// Its attributes.
    fn meta(&self, node: &Self::Node) -> Meta;
    /// Names of a directory without `.` and `..`.
    fn names(&self, dir: &Self::Node) -> Try<Vec<Vec<u8>>>;
    /// Whether each directory has one name, as in an image. A host's has several where it is
    /// mounted twice.
    fn is_tree(&self) -> bool {
        false
    }
    /// The file of a name; symbolic links are not followed.
    fn child(&self, dir: &Self::Node, name: &[u8]) -> Try<Self::Node>;
    /// Where a symbolic link points.
    fn link_target(&self, node: &Self::Node) -> Try<Vec<u8>>;
    /// Extended attributes.
    fn xattrs(&self, node: &Self::Node) -> Try<Vec<Xattr>>;
    /// Whether a file, whose path messages have, is no part of the copy.
    fn is_left_out(&self, node: &Self::Node, path: &[u8]) -> Try<bool> {
        let _ = (node, path);
        Ok(false)
    }
    /// Whether a file can be read at all, before anything is made of it.
    fn check_readable(&self, node: &Self::Node) -> Try<()> {
        let _ = node;
        Ok(())
    }
    /// The next bytes at or after `from` that are no hole.
    fn next_data(&self, node: &Self::Node, from: u64) -> Try<Option<Range<u64>>>;
    /// Reads at an offset; 0 is the end.
    fn read(&self, node: &Self::Node, offset: u64, buffer: &mut [u8]) -> Try<usize>;
}

/// The side that is written.
pub(crate) trait Target {
    /// A file of any kind, made or found.
    type Node;
    /// What a further hard link to a file needs.
    type Saved;

    /// What the copy of one file under a name of the command line is written into, as it is: the
    /// end of a symbolic link, a device, a fifo. `None`: a new file takes the name.
    fn in_place(&self, dir: &Self::Node, name: &[u8], kind: FileKind) -> Try<Option<Self::Node>> {
        let _ = (dir, name, kind);
        Ok(None)
    }
    /// What stands at a name, if anything.
    fn there(&self, dir: &Self::Node, name: &[u8]) -> Try<Option<There>>;
    /// A directory, new or there already.
    fn directory(&self, dir: &Self::Node, name: &[u8]) -> Try<Self::Node>;
    /// A new empty file, where nothing is there. `None`: something is, or the side looks first.
    fn new_file(&self, dir: &Self::Node, name: &[u8]) -> Try<Option<Self::Node>> {
        let _ = (dir, name);
        Ok(None)
    }
    /// A new empty file, in place of what is there.
    fn file(&self, dir: &Self::Node, name: &[u8]) -> Try<Self::Node>;
    /// Removes a file that was just made, of which only a part could be written.
    fn discard(&self, dir: &Self::Node, name: &[u8]) -> Try<()>;
    /// Writes all of `data`.
    fn write(&self, node: &Self::Node, offset: u64, data: &[u8]) -> Try<()>;
    /// Sets the length, so that a hole at the end is there; not asked for where data ends with it.
    fn set_len(&self, node: &Self::Node, len: u64) -> Try<()>;
    /// A new symbolic link, in place of what is there.
    fn symlink(&self, dir: &Self::Node, name: &[u8], target: &[u8]) -> Try<Self::Node>;
    /// A new device, fifo or socket, in place of what is there.
    fn special(&self, dir: &Self::Node, name: &[u8], meta: &Meta) -> Try<Self::Node>;
    /// What [`Target::link`] needs to make another name of `node`.
    fn save(&self, node: &Self::Node) -> Self::Saved;
    /// Another name, in place of what is there.
    fn link(&self, dir: &Self::Node, name: &[u8], saved: &Self::Saved) -> Try<()>;
    /// Gives a file its owner; before attributes, as a change of owner clears capabilities.
    fn set_owner(&self, node: &Self::Node, meta: &Meta) -> Try<()>;
    /// Sets an extended attribute; one that the side cannot hold for this user is left out.
    fn set_xattr(&self, node: &Self::Node, xattr: &Xattr) -> Try<()>;
    /// Removes an extended attribute, if there is one of that name.
    fn remove_xattr(&self, node: &Self::Node, name: &[u8]) -> Try<()>;
    /// Mode and times, when all else is done; errors of earlier writes come out here.
    fn finish(&self, node: &Self::Node, meta: &Meta) -> Try<()>;
}

/// A target whose files know where they are, so that any thread can take one away.
pub(crate) trait Undo: Target {
    /// Removes a file that was just made.
    fn undo(&self, made: &Self::Node) -> Try<()>;
}

/// The mode of a file whose access list cannot be kept. Its group bits are the list's mask; those
/// that the list gives to the owning group take their place.
pub(crate) fn mode_without_list(mode: u16, list: &Acl) -> u16 {
    let group = list.owning_group().unwrap_or(0) << 3;
    mode & !0o070 | mode & 0o070 & group
}

/// Refuses a name that is not one path component.
pub(crate) fn check_name(name: &[u8]) -> Try<()> {
    let bad = name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|byte| matches!(byte, b'/' | 0));
    if bad {
        return Err(Why::new("name that would leave its directory; refused"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_right_is_won_by_a_list_that_is_lost() {
        for (mode, list, without) in [
            (0o660, "user::rw-,user:5:rw-,group::---,mask::rw-,other::---", 0o600),
            (0o4750, "user::rwx,group::rwx,group:7:rwx,mask::r-x,other::---", 0o4750),
            (0o640, "user::rw-,other::---", 0o600),
        ] {
            let list = Acl::parse(list.as_bytes()).unwrap();
            assert_eq!(mode_without_list(mode, &list), without, "{list:?}");
        }
    }

    #[test]
    fn names_that_lead_out_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        for name in [&b"a"[..], b"...", b"\xff\n", b" "] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
    }
}
