//! A tree of files in memory, wherever it comes from.

use crate::error::{MkfsError, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_ondisk::dir_entry::NAME_MAX;
use uext4_ondisk::{FileKind, Timestamp};

/// A file of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

impl NodeId {
    /// Index among the tree's nodes, removed ones included.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// By what a source knows the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContentId(pub u64);

/// Part of a file's content that is wanted.
#[derive(Debug)]
pub struct Piece<'a> {
    /// First byte of the file.
    pub offset: u64,
    /// Where the bytes go.
    pub buf: &'a mut [u8],
}

/// The bytes of the files of a tree, read by any number of threads.
pub trait Contents: Sync {
    /// Fills all pieces.
    ///
    /// # Errors
    /// [`MkfsError::Source`]: the content cannot be read, or is not what it was when the tree was
    /// made.
    fn read(&self, content: ContentId, pieces: &mut [Piece<'_>]) -> Result<()>;
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// Whole name, as `user.x`.
    pub name: Vec<u8>,
    /// Value; that of an access control list as programs have it.
    pub value: Vec<u8>,
}

/// What every file has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The lower 12 bits of the mode.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Extended attributes, by name, each once.
    pub xattrs: Vec<Xattr>,
}

/// A regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBody {
    /// Bytes.
    pub size: u64,
    /// Where it has data, ascending; the rest is zeros. `None`: everywhere.
    pub data: Option<Vec<Range<u64>>>,
    /// By what its bytes are read.
    pub content: ContentId,
}

impl FileBody {
    /// Bytes that are stored.
    pub(crate) fn stored_bytes(&self) -> u64 {
        match &self.data {
            Some(data) => data.iter().map(|range| range.end - range.start).sum(),
            None => self.size,
        }
    }
}

/// What a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A directory: names and files.
    Directory(BTreeMap<Box<[u8]>, NodeId>),
    /// A regular file.
    File(FileBody),
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A character device: major and minor number.
    CharDevice(u32, u32),
    /// A block device: major and minor number.
    BlockDevice(u32, u32),
    /// A fifo.
    Fifo,
    /// A socket.
    Socket,
}

impl Body {
    /// An empty directory.
    #[must_use]
    pub const fn directory() -> Self {
        Self::Directory(BTreeMap::new())
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> FileKind {
        match self {
            Self::Directory(_) => FileKind::Directory,
            Self::File(_) => FileKind::Regular,
            Self::Symlink(_) => FileKind::Symlink,
            Self::CharDevice(..) => FileKind::CharDevice,
            Self::BlockDevice(..) => FileKind::BlockDevice,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
        }
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// What every file has.
    pub attributes: Attributes,
    /// What it is.
    pub body: Body,
}

/// Why a tree was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// No name of a file: empty, a dot or two, too long, or with a slash or a zero byte.
    #[error("not a name of a file")]
    Name,
    /// The name is there.
    #[error("the name is there already")]
    Exists,
    /// The parent is no directory.
    #[error("the parent is no directory")]
    NotADirectory,
    /// Directories have one name.
    #[error("a second name of a directory")]
    DirectoryLink,
}

/// A tree of files: nodes, which directories give names to. A file with several names is one node.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    /// Whether the attributes of the top are for the file system's root, too, unless the options
    /// give others. Else only its extended attributes and its times are, and the rest is as in an
    /// empty file system.
    pub has_root_attributes: bool,
}

impl Tree {
    /// An empty directory.
    #[must_use]
    pub fn new(root: Attributes) -> Self {
        let root = Node { attributes: root, body: Body::directory() };
        Self { nodes: vec![root], has_root_attributes: true }
    }

    /// The top directory.
    #[must_use]
    pub const fn root(&self) -> NodeId {
        NodeId(0)
    }

    /// Number of nodes, removed ones included.
    pub(crate) const fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// A file.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A file, to change it.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// The names of a directory; none of anything else.
    pub fn children(&self, id: NodeId) -> impl Iterator<Item = (&[u8], NodeId)> {
        let names = match &self.node(id).body {
            Body::Directory(names) => Some(names),
            _ => None,
        };
        names.into_iter().flatten().map(|(name, id)| (&**name, *id))
    }

    /// The file that a directory names.
    #[must_use]
    pub fn child(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        match &self.node(parent).body {
            Body::Directory(names) => names.get(name).copied(),
            _ => None,
        }
    }

    /// Every file that has a name, and the top; one with several names comes as often.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = NodeId> {
        let mut waiting = vec![self.root()];
        std::iter::from_fn(move || {
            let id = waiting.pop()?;
            waiting.extend(self.children(id).map(|(_, id)| id));
            Some(id)
        })
    }

    /// Adds a file to a directory.
    ///
    /// # Errors
    /// [`TreeError`]; nothing has changed then.
    pub fn add(
        &mut self,
        parent: NodeId,
        name: &[u8],
        node: Node,
    ) -> std::result::Result<NodeId, TreeError> {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.enter(parent, name, id)?;
        self.nodes.push(node);
        Ok(id)
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    /// [`TreeError`]; nothing has changed then.
    pub fn link(
        &mut self,
        parent: NodeId,
        name: &[u8],
        id: NodeId,
    ) -> std::result::Result<(), TreeError> {
        if matches!(self.node(id).body, Body::Directory(_)) {
            return Err(TreeError::DirectoryLink);
        }
        self.enter(parent, name, id)
    }

    /// Takes a name out of a directory, and all below it. Returns whether it was there.
    pub fn remove(&mut self, parent: NodeId, name: &[u8]) -> bool {
        match &mut self.node_mut(parent).body {
            Body::Directory(names) => names.remove(name).is_some(),
            _ => false,
        }
    }

    fn enter(
        &mut self,
        parent: NodeId,
        name: &[u8],
        id: NodeId,
    ) -> std::result::Result<(), TreeError> {
        let is_name = (1..=NAME_MAX).contains(&name.len())
            && !matches!(name, b"." | b"..")
            && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        if !is_name {
            return Err(TreeError::Name);
        }
        let Body::Directory(names) = &mut self.node_mut(parent).body else {
            return Err(TreeError::NotADirectory);
        };
        if names.contains_key(name) {
            return Err(TreeError::Exists);
        }
        names.insert(name.into(), id);
        Ok(())
    }
}

/// An error of a source.
pub(crate) fn source(path: &[u8], why: impl std::fmt::Display) -> MkfsError {
    let path = String::from_utf8_lossy(path).escape_debug().to_string();
    MkfsError::Source { path, why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_files_keep_their_other_names() {
        let mut tree = Tree::new(Attributes::default());
        let root = tree.root();
        let node = |body| Node { attributes: Attributes::default(), body };
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert_eq!(tree.add(root, name, node(Body::Fifo)), Err(TreeError::Name));
        }
        let dir = tree.add(root, b"dir", node(Body::directory())).unwrap();
        let fifo = tree.add(dir, b"fifo", node(Body::Fifo)).unwrap();
        assert_eq!(tree.add(dir, b"fifo", node(Body::Fifo)), Err(TreeError::Exists));
        assert_eq!(tree.add(fifo, b"x", node(Body::Fifo)), Err(TreeError::NotADirectory));
        assert_eq!(tree.link(root, b"again", dir), Err(TreeError::DirectoryLink));
        tree.link(root, b"again", fifo).unwrap();
        assert!(tree.remove(root, b"dir") && !tree.remove(root, b"dir"));
        assert_eq!(tree.child(root, b"again"), Some(fifo));
        assert_eq!(tree.children(root).count(), 1);
    }
}
