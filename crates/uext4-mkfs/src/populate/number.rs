//! Inode numbers and counts of links.
//!
//! Policy: the files of a directory get consecutive numbers, in the order of their names; then
//! come those of its directories, one after the other. So what is listed together stands together.

use super::tree::{Body, NodeId, Tree, source};
use crate::error::{MkfsError, Result};
use uext4_ondisk::Ino;

/// The name of the directory for what fsck finds.
pub(crate) const LOST_AND_FOUND_NAME: &[u8] = b"lost+found";

/// The numbers of a tree's files.
pub(crate) struct Numbering {
    /// Inode of each node; 0: nothing names it.
    inos: Vec<Ino>,
    /// Links of each node, without those of directories below it.
    links: Vec<u32>,
    /// Directory of each directory.
    parents: Vec<NodeId>,
    /// Files in the order of their numbers, the root and the tree's `lost+found` first.
    pub(crate) order: Vec<NodeId>,
    /// The tree's own `lost+found`.
    pub(crate) lost_and_found: Option<NodeId>,
    /// The last number.
    pub(crate) last: Ino,
}

impl Numbering {
    /// Numbers what the root leads to; `last` is the last number that is taken.
    pub(crate) fn new(tree: &Tree, lost_and_found: Ino, last: Ino) -> Result<Self> {
        let count = tree.node_count();
        let mut numbering = Self {
            inos: vec![Ino(0); count],
            links: vec![0; count],
            parents: vec![tree.root(); count],
            order: Vec::with_capacity(count),
            lost_and_found: tree.child(tree.root(), LOST_AND_FOUND_NAME),
            last,
        };
        numbering.set(tree.root(), Ino::ROOT);
        if let Some(id) = numbering.lost_and_found {
            if !matches!(tree.node(id).body, Body::Directory(_)) {
                return Err(source(LOST_AND_FOUND_NAME, "is no directory, as it must be"));
            }
            numbering.set(id, lost_and_found);
        }
        let mut waiting = vec![tree.root()];
        while let Some(directory) = waiting.pop() {
            let at = waiting.len();
            for (_, id) in tree.children(directory) {
                numbering.links[id.index()] += 1;
                if numbering.ino(id) == Ino(0) {
                    let next = numbering.last.get().checked_add(1);
                    let message = "more files than a file system has inodes";
                    numbering.last = Ino(next.ok_or_else(|| MkfsError::option(message))?);
                    numbering.set(id, numbering.last);
                }
                if matches!(tree.node(id).body, Body::Directory(_)) {
                    numbering.parents[id.index()] = directory;
                    waiting.push(id);
                }
            }
            waiting[at..].reverse();
        }
        Ok(numbering)
    }

    fn set(&mut self, id: NodeId, ino: Ino) {
        self.inos[id.index()] = ino;
        self.order.push(id);
    }

    /// The inode number of a file that has a name.
    pub(crate) fn ino(&self, id: NodeId) -> Ino {
        self.inos[id.index()]
    }

    /// The inode number of a directory's parent.
    pub(crate) fn parent(&self, id: NodeId) -> Ino {
        self.ino(self.parents[id.index()])
    }

    /// Links of a file. `extra` directories are in it that the tree does not have.
    pub(crate) fn links(&self, tree: &Tree, id: NodeId, extra: u32) -> u32 {
        match tree.node(id).body {
            Body::Directory(_) => {
                let is_directory = |id: &NodeId| matches!(tree.node(*id).body, Body::Directory(_));
                let below = tree.children(id).filter(|(_, id)| is_directory(id)).count();
                u32::try_from(below).unwrap_or(u32::MAX).saturating_add(2 + extra)
            }
            _ => self.links[id.index()],
        }
    }
}

/// The path of a file below the root, for messages.
pub(crate) fn path_of(tree: &Tree, wanted: NodeId) -> Vec<u8> {
    let mut waiting = vec![(Vec::new(), tree.root())];
    while let Some((path, directory)) = waiting.pop() {
        for (name, id) in tree.children(directory) {
            let path = if path.is_empty() { name.to_vec() } else { [&path, name].join(&b'/') };
            if id == wanted {
                return path;
            }
            if matches!(tree.node(id).body, Body::Directory(_)) {
                waiting.push((path, id));
            }
        }
    }
    b".".to_vec()
}
