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
