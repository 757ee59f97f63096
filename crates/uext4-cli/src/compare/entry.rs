//! What a comparison finds.

use uext4::{Attr, FileKind, Ino, Timestamp};

/// A name that differs.
pub(crate) struct Entry {
    /// Where, below the operands; empty for the operands themselves.
    pub(crate) below: Vec<u8>,
    /// How.
    pub(crate) what: What,
    /// Type: of what is there now, or was.
    pub(crate) kind: FileKind,
    /// Which inode, where only one side has the name.
    pub(crate) id: Option<Id>,
    /// What differs, where both sides have it.
    pub(crate) aspects: Vec<Aspect>,
}

/// How a name differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Only the second side has it.
    Added,
    /// Only the first side has it.
    Removed,
    /// Both have it.
    Changed,
    /// Both have it, and the first by this name.
    Renamed(Vec<u8>),
}

/// What tells inodes apart that had the same number at different times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    pub(crate) ino: Ino,
    generation: u32,
    created: Option<(i64, u32)>,
    links: u32,
}

impl Id {
    pub(crate) fn new(attr: &Attr) -> Self {
        let created = attr.crtime.map(|time| (time.secs, time.nanos));
        let links = if attr.kind == FileKind::Directory { 0 } else { attr.links };
        Self { ino: attr.ino, generation: attr.generation, created, links }
    }

    /// Whether another name may lead to the inode.
    pub(crate) fn is_linked(&self) -> bool {
        self.links > 1
    }

    /// Whether both are one inode, in two images of one origin.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let key = |id: &Self| (id.ino, id.generation, id.created);
        key(self) == key(other)
    }
}

/// One difference of a file that both sides have: as it was, and as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Aspect {
    Kind(FileKind, FileKind),
    Mode(u16, u16),
    Owner((u32, u32), (u32, u32)),
    Project(u32, u32),
    /// Flags of chattr(1).
    Flags(u32, u32),
    /// The policy of encryption, or the file's own part of it.
    Encryption,
    Size(u64, u64),
    Mtime(Timestamp, Timestamp),
    Xattr(Vec<u8>, Presence),
    Target(Vec<u8>, Vec<u8>),
    Device((u32, u32), (u32, u32)),
    /// The first byte that differs; unknown where the key of an encrypted file is missing.
    Content(Option<u64>),
    /// The first of the names that are the same file, on each side; `None` where it is this name.
    Link(Option<Vec<u8>>, Option<Vec<u8>>),
}

/// Which side has an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Added,
    Removed,
    Changed,
}

impl Entry {
    /// What entries are sorted by.
    pub(crate) fn order(&self) -> (&[u8], u8) {
        let second = match self.what {
            What::Removed => 0,
            What::Added | What::Changed | What::Renamed(_) => 1,
        };
        (&self.below, second)
    }
}
