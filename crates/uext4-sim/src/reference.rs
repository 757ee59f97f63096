//! A file system in memory, as simple as can be: what the engine is compared with.
//!
//! # What
//! [`Reference`] does a [`Step`] and says whether it succeeds; [`Reference::tree`] is everything
//! that it holds, by path. [`perform`] does the same step on a volume and [`tree`] reads that.
//!
//! Steps name directories and files by small numbers, taken modulo what there is, so that any
//! sequence of them has a meaning: that is what shrinking needs.

mod step;
mod volume;

pub use step::{At, SHIFT_UNIT, Step};
pub use volume::{perform, tree};

use std::collections::BTreeMap;
use step::{name, rename_mode, shift_range, target, xattr_name};
use uext4::{FileKind, RenameMode};

/// What stands behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Hard links.
    pub links: u32,
    /// Content, or the target of a symbolic link.
    pub data: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The call fails and nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// Everything, by path.
pub type Tree = BTreeMap<Vec<u8>, Node>;

#[derive(Clone, Debug)]
struct Inode {
    node: Node,
    entries: BTreeMap<Vec<u8>, usize>,
    parent: usize,
}

/// The file system in memory.
#[derive(Clone, Debug)]
pub struct Reference {
    inodes: Vec<Inode>,
}

const ROOT: usize = 0;
impl Default for Reference {
    fn default() -> Reference {
        Reference { inodes: vec![Inode::new(FileKind::Directory, 0o755, ROOT)] }
    }
}

impl Inode {
    fn new(kind: FileKind, mode: u16, parent: usize) -> Inode {
        let links = if kind == FileKind::Directory { 2 } else { 1 };
        let node = Node { kind, mode, links, data: Vec::new(), xattrs: BTreeMap::new() };
        Inode { node, entries: BTreeMap::new(), parent }
    }

    fn is_directory(&self) -> bool {
        self.node.kind == FileKind::Directory
    }
}

impl Reference {
    /// The directory that a number stands for, by its path.
    #[must_use]
    pub fn directory(&self, number: u8) -> Vec<Vec<u8>> {
        let mut at = self.dir(number);
        let mut path = Vec::new();
        while at != ROOT {
            let parent = self.inodes[at].parent;
            let entry = self.inodes[parent].entries.iter().find(|(_, inode)| **inode == at);
            path.insert(0, entry.map(|(name, _)| name.clone()).unwrap_or_default());
            at = parent;
        }
        path
    }

    fn dir(&self, number: u8) -> usize {
        let live: Vec<usize> = (0..self.inodes.len())
            .filter(|&at| self.inodes[at].is_directory() && self.inodes[at].node.links > 0)
            .collect();
        live[usize::from(number) % live.len()]
    }

    fn find(&self, at: At) -> Option<usize> {
        self.inodes[self.dir(at.dir)].entries.get(&name(at.name)).copied()
    }

    fn file(&mut self, at: At) -> Option<&mut Node> {
        let inode = self.find(at)?;
        let node = &mut self.inodes[inode].node;
        (node.kind == FileKind::Regular).then_some(node)
    }

    /// Content of a file.
    #[must_use]
    pub fn data(&self, at: At) -> Option<&[u8]> {
        self.find(at).map(|inode| &self.inodes[inode].node.data[..])
    }

    /// Whether the step has something to work on; steps that have not are left out on both sides.
    #[must_use]
    pub fn applies(&mut self, step: &Step) -> bool {
        match step {
            Step::Write { at, .. }
            | Step::Resize { at, .. }
            | Step::Allocate { at, .. }
            | Step::Punch { at, .. }
            | Step::Zero { at, .. }
            | Step::Unshare { at, .. }
            | Step::Collapse { at, .. }
            | Step::Insert { at, .. }
            | Step::Fsync { at, .. } => self.file(*at).is_some(),
            Step::SetXattr { at, .. } | Step::RemoveXattr { at, .. } | Step::Chmod { at, .. } => {
                let inode = self.find(*at);
                inode.is_some_and(|inode| self.inodes[inode].node.kind != FileKind::Symlink)
            }
            Step::Link { from, .. } => self.find(*from).is_some(),
            _ => true,
        }
    }

    /// Does a step that applies.
    ///
    /// # Errors
    /// Nothing changes and the call fails.
    pub fn step(&mut self, step: &Step) -> Result<(), Refused> {
        match *step {
            Step::Create { at } => self.make(at, FileKind::Regular, 0o644, Vec::new()),
            Step::Mkdir { at } => self.make(at, FileKind::Directory, 0o755, Vec::new()),
            Step::Symlink { at, len } => self.make(at, FileKind::Symlink, 0o777, target(len)),
            Step::Link { from, to } => self.link(from, to),
            Step::Unlink { at } => self.unlink(at),
            Step::Rmdir { at } => self.rmdir(at),
            Step::Rename { from, to, how } => self.rename(from, to, rename_mode(how)),
            Step::SetXattr { at, name, len } => {
                let inode = self.find(at).ok_or(Refused)?;
                let kind = self.inodes[inode].node.kind;
                // A whiteout, which a rename leaves, is a device.
                if !matches!(kind, FileKind::Regular | FileKind::Directory) {
                    return Err(Refused);
                }
                let value = vec![b'v'; usize::from(len % 200)];
                self.inodes[inode].node.xattrs.insert(xattr_name(name), value);
                Ok(())
            }
            Step::RemoveXattr { at, name } => {
                let inode = self.find(at).ok_or(Refused)?;
                self.inodes[inode].node.xattrs.remove(&xattr_name(name)).map(drop).ok_or(Refused)
            }
            Step::Chmod { at, mode } => {
                let inode = self.find(at).ok_or(Refused)?;
                self.inodes[inode].node.mode = mode & 0o777;
                Ok(())
            }
            Step::Fsync { .. } | Step::Sync | Step::Remount => Ok(()),
            ref content => self.content(content),
        }
    }

    fn content(&mut self, step: &Step) -> Result<(), Refused> {
        let range = |offset: u32, len: u16| {
            let start = offset as usize;
            (start, start + usize::from(len).max(1))
        };
        match *step {
            Step::Write { at, offset, len, byte } => {
                let (start, end) = range(offset, len);
                let data = &mut self.file(at).ok_or(Refused)?.data;
                data.resize(data.len().max(end), 0);
                data[start..end].fill(byte);
            }
            Step::Resize { at, size } => {
                self.file(at).ok_or(Refused)?.data.resize(size as usize, 0)
            }
            Step::Allocate { at, offset, len, keep_size }
            | Step::Unshare { at, offset, len, keep_size } => {
                let (_, end) = range(offset, len);
                let data = &mut self.file(at).ok_or(Refused)?.data;
                data.resize(if keep_size { data.len() } else { data.len().max(end) }, 0);
            }
            Step::Punch { at, offset, len } => {
                let (start, end) = range(offset, len);
                let data = &mut self.file(at).ok_or(Refused)?.data;
                let end = end.min(data.len());
                data[start.min(end)..end].fill(0);
            }
            Step::Zero { at, offset, len, keep_size } => {
                let (start, end) = range(offset, len);
                let data = &mut self.file(at).ok_or(Refused)?.data;
                data.resize(if keep_size { data.len() } else { data.len().max(end) }, 0);
                let end = end.min(data.len());
                data[start.min(end)..end].fill(0);
            }
            Step::Collapse { at, first, count } => {
                let (start, len) = shift_range(first, count);
                let data = &mut self.file(at).ok_or(Refused)?.data;
                if start + len >= data.len() {
                    return Err(Refused);
                }
                data.drain(start..start + len);
            }
            Step::Insert { at, first, count } => {
                let (start, len) = shift_range(first, count);
                let data = &mut self.file(at).ok_or(Refused)?.data;
                if start >= data.len() {
                    return Err(Refused);
                }
                data.splice(start..start, std::iter::repeat_n(0, len));
            }
            _ => {}
        }
        Ok(())
    }

    fn make(&mut self, at: At, kind: FileKind, mode: u16, data: Vec<u8>) -> Result<(), Refused> {
        if self.find(at).is_some() {
            return Err(Refused);
        }
        let dir = self.dir(at.dir);
        let mut inode = Inode::new(kind, mode, dir);
        inode.node.data = data;
        self.inodes.push(inode);
        let number = self.inodes.len() - 1;
        self.inodes[dir].entries.insert(name(at.name), number);
        self.inodes[dir].node.links += u32::from(kind == FileKind::Directory);
        Ok(())
    }

    fn link(&mut self, from: At, to: At) -> Result<(), Refused> {
        let inode = self.find(from).ok_or(Refused)?;
        if self.inodes[inode].is_directory() || self.find(to).is_some() {
            return Err(Refused);
        }
        let dir = self.dir(to.dir);
        self.inodes[dir].entries.insert(name(to.name), inode);
        self.inodes[inode].node.links += 1;
        Ok(())
    }

    fn unlink(&mut self, at: At) -> Result<(), Refused> {
        let inode =
            self.find(at).filter(|&inode| !self.inodes[inode].is_directory()).ok_or(Refused)?;
        let dir = self.dir(at.dir);
        self.inodes[dir].entries.remove(&name(at.name));
        self.inodes[inode].node.links -= 1;
        Ok(())
    }

    fn rmdir(&mut self, at: At) -> Result<(), Refused> {
        let is_empty = |inode: &usize| {
            self.inodes[*inode].is_directory() && self.inodes[*inode].entries.is_empty()
        };
        let inode = self.find(at).filter(is_empty).ok_or(Refused)?;
        let dir = self.dir(at.dir);
        self.inodes[dir].entries.remove(&name(at.name));
        self.inodes[dir].node.links -= 1;
        self.inodes[inode].node.links = 0;
        Ok(())
    }

    fn rename(&mut self, from: At, to: At, mode: RenameMode) -> Result<(), Refused> {
        let inode = self.find(from).ok_or(Refused)?;
        let (dir, new_dir) = (self.dir(from.dir), self.dir(to.dir));
        let (old_name, new_name) = (name(from.name), name(to.name));
        let other = self.find(to);
        let is_inside = |inside: usize, outside: usize| {
            let mut at = inside;
            while at != outside && at != ROOT {
                at = self.inodes[at].parent;
            }
            at == outside
        };
        if self.inodes[inode].is_directory() && is_inside(new_dir, inode) {
            return Err(Refused);
        }
        match (mode, other) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace(_), Some(_))
            | (RenameMode::Exchange, None) => return Err(Refused),
            (_, Some(other)) if other == inode => return Ok(()),
            (RenameMode::Exchange, Some(other)) => {
                if self.inodes[other].is_directory() && is_inside(dir, other) {
                    return Err(Refused);
                }
                self.place(dir, old_name, other, Some(new_dir));
                self.place(new_dir, new_name, inode, Some(dir));
                return Ok(());
            }
            (_, Some(other)) => {
                let (is_dir, other_is) =
                    (self.inodes[inode].is_directory(), self.inodes[other].is_directory());
                if is_dir != other_is || other_is && !self.inodes[other].entries.is_empty() {
                    return Err(Refused);
                }
                if other_is { self.rmdir(to)? } else { self.unlink(to)? }
            }
            (_, None) => {}
        }
        self.inodes[dir].entries.remove(&old_name);
        self.place(new_dir, new_name, inode, Some(dir));
        if let RenameMode::Whiteout(_) | RenameMode::WhiteoutNoReplace(_) = mode {
            self.inodes.push(Inode::new(FileKind::CharDevice, 0, dir));
            self.place(dir, old_name, self.inodes.len() - 1, None);
        }
        Ok(())
    }

    /// Puts an inode that was in `before` at a name.
    fn place(&mut self, dir: usize, name: Vec<u8>, inode: usize, before: Option<usize>) {
        self.inodes[dir].entries.insert(name, inode);
        if let Some(before) = before
            && self.inodes[inode].is_directory()
        {
            self.inodes[before].node.links -= 1;
            self.inodes[dir].node.links += 1;
            self.inodes[inode].parent = dir;
        }
    }

    /// Everything.
    #[must_use]
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        self.walk(ROOT, &mut Vec::new(), &mut tree);
        tree
    }

    fn walk(&self, dir: usize, path: &mut Vec<u8>, tree: &mut Tree) {
        for (name, &inode) in &self.inodes[dir].entries {
            let len = path.len();
            path.push(b'/');
            path.extend_from_slice(name);
            tree.insert(path.clone(), self.inodes[inode].node.clone());
            self.walk(inode, path, tree);
            path.truncate(len);
        }
    }
}
