//! What an archive holds.

use std::ops::Range;

use crate::acl::Acl;
use crate::path::TarPath;

/// One member of an archive.
#[derive(Debug)]
pub enum Member {
    /// An entry to unpack; of a file the content follows.
    Entry(Box<Entry>),
    /// An entry that must not or cannot be unpacked. The stream goes on after it.
    Refused(Refused),
}

/// An entry that is left out.
#[derive(Debug)]
pub struct Refused {
    /// Its name as the archive has it.
    pub name: Vec<u8>,
    /// Why, as the end of a sentence that begins with the name.
    pub why: String,
}

/// An entry with all its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it goes.
    pub path: TarPath,
    /// Whether its name, or the name that a hard link leads to, begins with a slash in the archive.
    pub is_absolute: bool,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Name of the owner; empty if the archive has none.
    pub uname: Vec<u8>,
    /// Name of the group; empty if the archive has none.
    pub gname: Vec<u8>,
    /// Modification time.
    pub mtime: Time,
    /// Access time, if the archive has one.
    pub atime: Option<Time>,
    /// Extended attributes but ACLs.
    pub xattrs: Vec<Xattr>,
    /// ACL of access.
    pub acl_access: Option<Acl>,
    /// ACL for new files of a directory.
    pub acl_default: Option<Acl>,
}

impl Entry {
    /// An entry of root's, with neither permissions nor attributes, of the start of 1970.
    pub fn new(path: TarPath, kind: Kind) -> Self {
        Self {
            path,
            is_absolute: false,
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            uname: Vec::new(),
            gname: Vec::new(),
            mtime: Time::default(),
            atime: None,
            xattrs: Vec::new(),
            acl_access: None,
            acl_default: None,
        }
    }
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File(Content),
    /// A directory.
    Directory,
    /// A symbolic link with its target as it stands.
    Symlink(Vec<u8>),
    /// Another name of an earlier entry.
    HardLink(TarPath),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A fifo.
    Fifo,
}

/// Length and data ranges of a file; what is in no range is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    len: u64,
    ranges: Vec<Range<u64>>,
}

impl Content {
    /// A file without holes.
    pub fn whole(len: u64) -> Self {
        let range = 0..len;
        Self { len, ranges: if range.is_empty() { Vec::new() } else { vec![range] } }
    }

    /// A file with those ranges of data. Empty ones are left out; `None` if they overlap, are not
    /// in order, or one exceeds the length.
    pub fn sparse(len: u64, ranges: impl IntoIterator<Item = Range<u64>>) -> Option<Self> {
        let mut content = Self { len, ranges: Vec::new() };
        let mut end = 0;
        for range in ranges {
            if range.start < end || range.end < range.start || range.end > len {
                return None;
            }
            end = range.end;
            match content.ranges.last_mut() {
                _ if range.is_empty() => {}
                Some(last) if last.end == range.start => last.end = range.end,
                _ => content.ranges.push(range),
            }
        }
        Some(content)
    }

    /// Length of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its data, in order.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Bytes of data.
    pub fn stored(&self) -> u64 {
        // Ranges do not overlap and end within a length of 64 bits.
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether it has holes.
    pub fn is_sparse(&self) -> bool {
        self.stored() != self.len
    }
}

/// A moment: seconds since 1970 and nanoseconds after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds, rounded down.
    pub secs: i64,
    /// Nanoseconds, below a second.
    pub nanos: u32,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Full name, such as `user.comment`.
    pub name: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_order_and_within_the_length() {
        let content = Content::sparse(20, [0..0, 2..4, 4..6, 10..20, 20..20]).unwrap();
        assert_eq!(content.ranges(), [2..6, 10..20]);
        assert_eq!((content.stored(), content.is_sparse()), (14, true));
        assert!(!Content::whole(5).is_sparse());
        for bad in [[0..4, 3..5], [4..6, 0..2], [0..1, 2..21], [0..1, 20..21], [0..1, 21..21]] {
            assert_eq!(Content::sparse(20, bad.clone()), None, "{bad:?}");
        }
    }
}
