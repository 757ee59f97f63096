//! The names of a file system after each step.

use std::collections::BTreeMap;

use uext4::Ino;

use crate::model::base::Entries;
use crate::trace::{Call, FileId, Name, Step};

/// What a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Named {
    /// An inode of the trace.
    Traced(FileId),
    /// One that the trace does not name.
    Other(u32),
}

/// All names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    directories: BTreeMap<Named, BTreeMap<Vec<u8>, Named>>,
}

impl Names {
    pub(crate) fn of(entries: &Entries, before: &[(FileId, u32)]) -> Self {
        let mut traced: BTreeMap<u32, FileId> =
            before.iter().map(|(file, number)| (*number, *file)).collect();
        traced.insert(Ino::ROOT.get(), FileId::ROOT);
        let named = |number: &u32| match traced.get(number) {
            Some(file) => Named::Traced(*file),
            None => Named::Other(*number),
        };
        let mut directories = BTreeMap::new();
        for (number, names) in entries {
            let names = names.iter().map(|(name, number)| (name.clone(), named(number)));
            directories.insert(named(number), names.collect());
        }
        Self { directories }
    }

    /// Does a step again.
    pub(crate) fn apply(&mut self, step: &Step) {
        match &step.call {
            Call::Create { file, name: Some(name), .. } | Call::Link { file, name } => {
                self.set(name, Named::Traced(*file));
            }
            Call::Remove { name, .. } => {
                self.take(name);
            }
            Call::Rename { from, to, exchange, .. } => {
                let moved = self.take(from);
                let replaced = self.take(to);
                if let Some(replaced) = replaced.filter(|_| *exchange) {
                    self.set(from, replaced);
                }
                if let Some(moved) = moved {
                    self.set(to, moved);
                }
            }
            _ => {}
        }
    }

    fn set(&mut self, name: &Name, named: Named) {
        let directory = self.directories.entry(Named::Traced(name.parent)).or_default();
        directory.insert(name.name.clone(), named);
    }

    fn take(&mut self, name: &Name) -> Option<Named> {
        self.directories.get_mut(&Named::Traced(name.parent))?.remove(&name.name)
    }

    /// All paths, as [`Tree`](crate::model::Tree) has them.
    pub(crate) fn paths(&self) -> BTreeMap<Vec<u8>, Named> {
        let mut paths = BTreeMap::new();
        let mut todo = vec![(Vec::new(), Named::Traced(FileId::ROOT))];
        while let Some((path, directory)) = todo.pop() {
            for (name, named) in self.directories.get(&directory).into_iter().flatten() {
                if path.is_empty() && name == b"lost+found" {
                    continue;
                }
                let path = [&path[..], b"/", name].concat();
                if self.directories.contains_key(named) {
                    todo.push((path.clone(), *named));
                }
                paths.insert(path, *named);
            }
        }
        paths
    }
}

/// A name of each inode, and the directory that it is in.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    places: BTreeMap<Named, (Named, Vec<u8>)>,
}

impl Places {
    pub(crate) fn of(entries: &Entries, before: &[(FileId, u32)]) -> Self {
        let mut places = BTreeMap::new();
        for (directory, names) in Names::of(entries, before).directories {
            for (name, named) in names {
                places.insert(named, (directory, name));
            }
        }
        Self { places }
    }

    /// Does a step again.
    pub(crate) fn apply(&mut self, step: &Step) {
        let place = |name: &Name| (Named::Traced(name.parent), name.name.clone());
        match &step.call {
            Call::Create { file, name: Some(name), .. } | Call::Link { file, name } => {
                self.places.insert(Named::Traced(*file), place(name));
            }
            Call::Remove { file, name } => {
                let file = Named::Traced(*file);
                if self.places.get(&file) == Some(&place(name)) {
                    self.places.remove(&file);
                }
            }
            Call::Rename { file, from, to, replaced, exchange } => {
                match replaced {
                    Some(replaced) if *exchange => {
                        self.places.insert(Named::Traced(*replaced), place(from));
                    }
                    Some(replaced) => {
                        self.places.remove(&Named::Traced(*replaced));
                    }
                    None => {}
                }
                self.places.insert(Named::Traced(*file), place(to));
            }
            _ => {}
        }
    }

    /// A path of an inode; `None` if it has no name that is known.
    pub(crate) fn path(&self, file: FileId) -> Option<String> {
        let mut at = Named::Traced(file);
        let mut path = String::new();
        // No path is longer than this, and a hostile image may have loops.
        for _ in 0..2048 {
            if at == Named::Traced(FileId::ROOT) {
                return Some(if path.is_empty() { "/".to_owned() } else { path });
            }
            let (directory, name) = self.places.get(&at)?;
            path = format!("/{}{path}", String::from_utf8_lossy(name));
            at = *directory;
        }
        None
    }
}
