//! The names of one thread at one moment, with what stands behind them.
//!
//! # What
//! A small file system without content: [`Namespace::apply`] takes one operation after the other.
//! The generator asks it what may be done next, the targets ask it for paths, and the checker
//! compares what it shows with what a recovered image holds.

use crate::operation::{
    How, Id, Kind, Operation, Place, ROOT, SHARED, SHARED_NAME, own_directory, own_name,
};
use std::collections::BTreeMap;

/// What stands behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedNode {
    /// Type.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u16,
    /// Group.
    pub gid: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Inode flags, of [`FLAGS`](crate::operation::FLAGS).
    pub flags: u32,
    /// Modification time, where it was set and nothing has changed it since.
    pub mtime: Option<(i64, u32)>,
    /// Whether the inode's owner is its number yet.
    pub identified: bool,
    /// Every name.
    pub places: Vec<Place>,
}

/// Names and nodes of one thread.
#[derive(Clone, Debug)]
pub struct Namespace {
    thread: u32,
    /// Whether new inodes get their owner at once.
    identifies: bool,
    nodes: BTreeMap<Id, NamedNode>,
    /// Modes of files that were made without a name, are open, and have had none since.
    nameless: BTreeMap<Id, u16>,
    entries: BTreeMap<Place, Id>,
}

impl Namespace {
    /// The names of `thread` before its first operation: none. `identifies`: a new inode gets its
    /// number as owner in the operation that makes it.
    #[must_use]
    pub fn new(thread: u32, identifies: bool) -> Namespace {
        Namespace {
            thread,
            identifies,
            nodes: BTreeMap::new(),
            nameless: BTreeMap::new(),
            entries: BTreeMap::new(),
        }
    }

    /// The thread.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Whether new inodes get their owner at once.
    #[must_use]
    pub fn identifies(&self) -> bool {
        self.identifies
    }

    /// What stands behind `id`; `None` when its last name has gone.
    #[must_use]
    pub fn node(&self, id: Id) -> Option<&NamedNode> {
        self.nodes.get(&id)
    }

    /// Every node with a name.
    pub fn nodes(&self) -> impl Iterator<Item = (Id, &NamedNode)> {
        self.nodes.iter().map(|(&id, node)| (id, node))
    }

    /// Every name.
    pub fn entries(&self) -> impl Iterator<Item = (&Place, Id)> {
        self.entries.iter().map(|(place, &id)| (place, id))
    }

    /// Number of names.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The node at a name.
    #[must_use]
    pub fn at(&self, place: &Place) -> Option<Id> {
        self.entries.get(place).copied()
    }

    /// Whether a directory has no names.
    #[must_use]
    pub fn is_empty(&self, dir: Id) -> bool {
        !self.entries.keys().any(|place| place.dir == dir)
    }

    /// Names from the root to a directory.
    #[must_use]
    pub fn directory_path(&self, dir: Id) -> Vec<Vec<u8>> {
        match dir {
            ROOT => Vec::new(),
            SHARED => vec![SHARED_NAME.to_vec()],
            dir if dir == own_directory(self.thread) => vec![own_name(self.thread)],
            dir => match self.nodes.get(&dir).and_then(|node| node.places.first()) {
                Some(place) => self.path(place),
                // A directory that is gone: no path leads to it.
                None => vec![format!("gone-{dir}").into_bytes()],
            },
        }
    }

    /// Names from the root to a place.
    #[must_use]
    pub fn path(&self, place: &Place) -> Vec<Vec<u8>> {
        let mut path = self.directory_path(place.dir);
        path.push(place.name.clone());
        path
    }

    /// Names from the root to a node, by its first name.
    #[must_use]
    pub fn path_of(&self, id: Id) -> Option<Vec<Vec<u8>>> {
        if id == SHARED || id == own_directory(self.thread) {
            return Some(self.directory_path(id));
        }
        self.nodes.get(&id).and_then(|node| node.places.first()).map(|place| self.path(place))
    }

    /// Whether `dir` is `ancestor` or stands below it.
    #[must_use]
    pub fn is_below(&self, dir: Id, ancestor: Id) -> bool {
        let mut at = dir;
        loop {
            if at == ancestor {
                return true;
            }
            match self.nodes.get(&at).and_then(|node| node.places.first()) {
                Some(place) => at = place.dir,
                None => return false,
            }
        }
    }

    /// Applies an operation.
    ///
    /// # Panics
    /// If the operation does not fit the names: a fault of the generator.
    pub fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { id, at, kind, mode } => self.make(*id, at, *kind, *mode, &[]),
            Operation::Symlink { id, at, target } => {
                self.make(*id, at, Kind::Symlink, 0o777, target);
            }
            Operation::CreateUnlinked { id, mode, .. } => {
                self.nameless.insert(*id, *mode);
            }
            Operation::Release { id } => {
                self.nameless.remove(id);
            }
            Operation::Identify { id } => self.change(*id, |node| node.identified = true),
            Operation::Link { id, at } => match self.nameless.remove(id) {
                Some(mode) => self.make(*id, at, Kind::File, mode, &[]),
                None => self.add(*id, at),
            },
            Operation::Unlink { at, .. } | Operation::Rmdir { at, .. } => self.remove(at),
            Operation::Rename { from, to, how, .. } => self.rename(from, to, *how),
            Operation::SetMode { id, mode } => self.change(*id, |node| node.mode = *mode),
            Operation::SetGroup { id, gid } => self.change(*id, |node| node.gid = *gid),
            Operation::SetTime { id, secs, nanos } => {
                self.change(*id, |node| node.mtime = Some((*secs, *nanos)));
            }
            Operation::SetFlags { id, flags } => self.change(*id, |node| node.flags = *flags),
            Operation::SetXattr { id, name, value } => self.change(*id, |node| {
                node.xattrs.insert(name.clone(), value.clone());
            }),
            Operation::RemoveXattr { id, name } => self.change(*id, |node| {
                node.xattrs.remove(name);
            }),
            _ => {
                // An unlinked file that is still open has no node.
                if let Some(node) = operation.content_of().and_then(|id| self.nodes.get_mut(&id)) {
                    node.mtime = None;
                }
            }
        }
    }

    fn change(&mut self, id: Id, change: impl FnOnce(&mut NamedNode)) {
        change(self.nodes.get_mut(&id).expect("a node with a name"));
    }

    fn make(&mut self, id: Id, at: &Place, kind: Kind, mode: u16, target: &[u8]) {
        let node = NamedNode {
            kind,
            mode,
            gid: 0,
            target: target.to_vec(),
            xattrs: BTreeMap::new(),
            flags: 0,
            mtime: None,
            identified: self.identifies,
            places: Vec::new(),
        };
        assert!(self.nodes.insert(id, node).is_none(), "{id:#x} is made twice");
        self.add(id, at);
    }

    fn add(&mut self, id: Id, at: &Place) {
        self.change(id, |node| node.places.push(at.clone()));
        let before = self.entries.insert(at.clone(), id);
        assert!(before.is_none(), "{at:?} is taken");
    }

    fn remove(&mut self, at: &Place) {
        let id = self.entries.remove(at).expect("a name that exists");
        self.change(id, |node| node.places.retain(|place| place != at));
        if self.nodes[&id].places.is_empty() {
            self.nodes.remove(&id);
        }
    }

    fn rename(&mut self, from: &Place, to: &Place, how: How) {
        let id = self.entries[from];
        let other = self.entries.get(to).copied();
        if how == How::Exchange {
            let other = other.expect("something to change places with");
            self.replace_place(id, from, to);
            self.replace_place(other, to, from);
            self.entries.insert(to.clone(), id);
            self.entries.insert(from.clone(), other);
            return;
        }
        if other.is_some() {
            self.remove(to);
        }
        self.entries.remove(from);
        self.entries.insert(to.clone(), id);
        self.replace_place(id, from, to);
        if let How::Whiteout(whiteout) = how {
            self.make(whiteout, from, Kind::Whiteout, 0, &[]);
        }
    }

    fn replace_place(&mut self, id: Id, old: &Place, new: &Place) {
        self.change(id, |node| {
            let at = node.places.iter().position(|place| place == old).expect("its own name");
            node.places[at] = new.clone();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: Id, name: &str) -> Place {
        Place { dir, name: name.into() }
    }

    #[test]
    fn renames_move_replace_and_exchange() {
        let own = own_directory(1);
        let mut names = Namespace::new(1, true);
        let (a, b, d) = (own + 1, own + 2, own + 3);
        let make = |id, at: &Place, kind| Operation::Create { id, at: at.clone(), kind, mode: 0 };
        let (at_a, at_b, at_d) = (place(own, "a"), place(own, "b"), place(own, "d"));
        names.apply(&make(a, &at_a, Kind::File));
        names.apply(&make(b, &at_b, Kind::File));
        names.apply(&make(d, &at_d, Kind::Directory));
        let inside = place(d, "x");
        let rename = |id, from: &Place, to: &Place, how, other| Operation::Rename {
            id,
            from: from.clone(),
            to: to.clone(),
            how,
            other,
        };
        names.apply(&rename(a, &at_a, &inside, How::NoReplace, None));
        assert_eq!(names.path_of(a).unwrap(), [own_name(1), b"d".to_vec(), b"x".to_vec()]);
        names.apply(&rename(a, &inside, &at_b, How::Exchange, Some(b)));
        assert_eq!((names.at(&inside), names.at(&at_b)), (Some(b), Some(a)));
        names.apply(&Operation::Link { id: a, at: at_a.clone() });
        names.apply(&rename(b, &inside, &at_b, How::Replace, Some(a)));
        assert_eq!(names.node(a).unwrap().places, [at_a]);
        assert!(names.is_empty(d) && names.is_below(d, own) && !names.is_below(own, d));
    }
}
