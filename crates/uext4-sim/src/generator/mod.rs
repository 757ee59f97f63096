//! A seeded source of operations for one thread.
//!
//! # What
//! [`Generator::next`] chooses an operation that will succeed on what the thread owns now;
//! [`Generator::done`] tells it that it did. Names come from a small pool, so that they are used
//! again after they were removed; some are 255 bytes long, some are no UTF-8.

mod choices;
mod kinds;
mod mix;
mod pick;

pub use kinds::Kinds;

use crate::category::Category;
use crate::content::{Content, Effect};
use crate::namespace::Namespace;
use crate::operation::{How, Id, Kind, Operation, SHARED, own_directory};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Limits of what one thread keeps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest file, in bytes; a few sparse ones reach further.
    pub file_bytes: u64,
    /// Nodes with a name.
    pub nodes: usize,
    /// Largest value of an extended attribute, in bytes.
    pub xattr_bytes: usize,
    /// Most names in the pool.
    pub names: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { file_bytes: 300_000, nodes: 30, xattr_bytes: 700, names: 48 }
    }
}

/// Chooses operations.
#[derive(Debug)]
pub struct Generator {
    rng: StdRng,
    limits: Limits,
    category: Category,
    choices: Vec<Choice>,
    /// What is left of a sequence.
    pending: VecDeque<Operation>,
    names: Namespace,
    /// Content of every file with a name or held.
    contents: BTreeMap<Id, Content>,
    held: BTreeSet<Id>,
    next_id: Id,
    next_generation: u32,
    /// A mount makes inodes with the caller's owner: their own comes next.
    unidentified: Option<Id>,
}

/// Weights of the kinds of operation, in this order.
type Choice = (u32, fn(&mut Generator) -> Option<Operation>);

impl Generator {
    /// A source for `thread`. The same numbers give the same operations.
    #[must_use]
    pub fn new(seed: u64, thread: u32, limits: Limits, identifies: bool) -> Generator {
        Generator::of(Category::Mix, seed, thread, limits, identifies)
    }

    /// A source of one category.
    #[must_use]
    pub fn of(
        category: Category,
        seed: u64,
        thread: u32,
        limits: Limits,
        identifies: bool,
    ) -> Generator {
        let own = own_directory(thread);
        Generator {
            rng: StdRng::seed_from_u64(seed.wrapping_mul(1009).wrapping_add(u64::from(thread))),
            limits,
            category,
            choices: Generator::choices_of(category),
            pending: VecDeque::new(),
            names: Namespace::new(thread, identifies),
            contents: BTreeMap::new(),
            held: BTreeSet::new(),
            next_id: own + 1,
            next_generation: 1,
            unidentified: None,
        }
    }

    /// The names as they are now.
    #[must_use]
    pub fn names(&self) -> &Namespace {
        &self.names
    }

    /// What a file holds now.
    #[must_use]
    pub fn content(&self, id: Id) -> Option<&Content> {
        self.contents.get(&id)
    }

    /// Files that are held open.
    pub fn held(&self) -> impl Iterator<Item = Id> + '_ {
        self.held.iter().copied()
    }

    /// The next operation.
    pub fn generate(&mut self) -> Operation {
        if let Some(id) = self.unidentified {
            return Operation::Identify { id };
        }
        if let Some(operation) = self.pending.pop_front() {
            return operation;
        }
        let total: u32 = self.choices.iter().map(|(weight, _)| weight).sum();
        for round in 0.. {
            if round == 200 {
                // Nothing is left that this mix could work on.
                return self.fresh_file();
            }
            let mut ticket = self.rng.random_range(0..total);
            let chosen = self.choices.iter().find(|(weight, _)| {
                let found = ticket < *weight;
                ticket = ticket.saturating_sub(*weight);
                found
            });
            let make = chosen.map(|(_, make)| *make);
            self.pending.clear();
            if let Some(operation) = make.and_then(|make| make(self)) {
                return operation;
            }
        }
        unreachable!("the loop returns")
    }

    /// The operation was refused and has changed nothing.
    pub fn refused(&mut self) {
        self.pending.clear();
    }

    fn fresh_file(&mut self) -> Operation {
        let dir = own_directory(self.names.thread());
        loop {
            if let Some(at) = self.free_place(dir) {
                return Operation::Create { id: self.new_id(), at, kind: Kind::File, mode: 0o644 };
            }
            self.limits.names += 8;
        }
    }

    /// `operation` has been done.
    pub fn done(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { id, kind, .. } => {
                self.unidentified = (!self.names.identifies()).then_some(*id);
                if *kind == Kind::File {
                    self.contents.insert(*id, Content::default());
                }
            }
            Operation::Symlink { id, .. } => {
                self.unidentified = (!self.names.identifies()).then_some(*id);
            }
            Operation::Identify { .. } => self.unidentified = None,
            Operation::Hold { id } => drop(self.held.insert(*id)),
            Operation::Release { id } => drop(self.held.remove(id)),
            _ => {}
        }
        self.names.apply(operation);
        if let Some(content) = operation.content_of().and_then(|id| self.contents.get_mut(&id))
            && let Some(effect) = Effect::of(operation, content.size)
        {
            content.apply(&effect);
        }
        let (names, held) = (&self.names, &self.held);
        self.contents.retain(|id, _| names.node(*id).is_some() || held.contains(id));
    }

    fn create(&mut self) -> Option<Operation> {
        if self.names.nodes().count() >= self.limits.nodes {
            return None;
        }
        let kind = match self.rng.random_range(0..10) {
            0 => Kind::Fifo,
            1..=2 => Kind::Directory,
            _ => Kind::File,
        };
        let mut dir = self.some_directory();
        if kind == Kind::Directory && dir == SHARED {
            // Directories of one thread stay below its own: others could not name them.
            dir = own_directory(self.names.thread());
        }
        let at = self.free_place(dir)?;
        let mode = self.rng.random_range(0..=0o777) | 0o600;
        Some(Operation::Create { id: self.new_id(), at, kind, mode })
    }

    fn symlink(&mut self) -> Option<Operation> {
        if self.names.nodes().count() >= self.limits.nodes {
            return None;
        }
        let dir = self.some_directory();
        let at = self.free_place(dir)?;
        let len = if self.rng.random_bool(0.5) {
            self.rng.random_range(1..=59)
        } else {
            self.rng.random_range(60..=1000)
        };
        let target = (0..len).map(|_| self.rng.random_range(b'a'..=b'z')).collect();
        Some(Operation::Symlink { id: self.new_id(), at, target })
    }

    fn link(&mut self) -> Option<Operation> {
        let id = self.some_node(|node| node != Kind::Directory)?;
        let dir = self.some_directory();
        let at = self.free_place(dir)?;
        Some(Operation::Link { id, at })
    }

    fn unlink(&mut self) -> Option<Operation> {
        let (at, id) = self.some_entry(|node| node != Kind::Directory)?;
        Some(Operation::Unlink { id, at })
    }

    fn rmdir(&mut self) -> Option<Operation> {
        let (at, id) = self.some_entry(|node| node == Kind::Directory)?;
        self.names.is_empty(id).then_some(Operation::Rmdir { id, at })
    }

    fn rename(&mut self) -> Option<Operation> {
        let (from, id) = self.some_entry(|_| true)?;
        let is_directory = self.kind(id) == Kind::Directory;
        let roll = self.rng.random_range(0..10);
        if roll < 4 {
            let dir = self.some_directory();
            if is_directory && (dir == SHARED || self.names.is_below(dir, id)) {
                return None;
            }
            let to = self.free_place(dir)?;
            let how = if roll < 2 { How::Replace } else { How::NoReplace };
            return Some(Operation::Rename { id, from, to, how, other: None });
        }
        let (to, other) = self.some_entry(|_| true)?;
        // rename(2) of two names of one file does nothing.
        if other == id {
            return None;
        }
        let other_is_directory = self.kind(other) == Kind::Directory;
        let tangled = |moved, is_directory: bool, dir| {
            is_directory && (dir == SHARED || self.names.is_below(dir, moved))
        };
        if tangled(id, is_directory, to.dir) {
            return None;
        }
        if roll < 7 {
            if tangled(other, other_is_directory, from.dir) {
                return None;
            }
            let how = How::Exchange;
            return Some(Operation::Rename { id, from, to, how, other: Some(other) });
        }
        if is_directory != other_is_directory || other_is_directory && !self.names.is_empty(other) {
            return None;
        }
        Some(Operation::Rename { id, from, to, how: How::Replace, other: Some(other) })
    }

    fn attribute(&mut self) -> Option<Operation> {
        let id = self.some_node(|kind| kind != Kind::Symlink)?;
        Some(match self.rng.random_range(0..3) {
            0 => Operation::SetMode { id, mode: self.rng.random_range(0..=0o777) | 0o600 },
            1 => Operation::SetGroup { id, gid: self.rng.random_range(1..70_000) },
            _ if self.kind(id) != Kind::File => return None,
            _ => Operation::SetTime {
                id,
                // Before 1970 and past 2038, as the format has them.
                secs: self.rng.random_range(-1_000_000_000..6_000_000_000),
                nanos: self.rng.random_range(0..1_000_000_000),
            },
        })
    }

    fn xattr(&mut self) -> Option<Operation> {
        let id = self.some_node(|kind| matches!(kind, Kind::File | Kind::Directory))?;
        let present = self.names.node(id)?.xattrs.len();
        if present > 0 && self.rng.random_bool(0.35) {
            let which = self.rng.random_range(0..present);
            let name = self.names.node(id)?.xattrs.keys().nth(which)?.clone();
            return Some(Operation::RemoveXattr { id, name });
        }
        let (name, len) = if self.rng.random_bool(0.3) {
            ("user.large".to_owned(), self.rng.random_range(200..=self.limits.xattr_bytes))
        } else {
            (format!("user.small{}", self.rng.random_range(0..3)), self.rng.random_range(0..=12))
        };
        let value = (0..len).map(|_| self.rng.random()).collect();
        Some(Operation::SetXattr { id, name: name.into_bytes(), value })
    }

    fn write(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.contents[&id].size;
        let limit = self.limits.file_bytes;
        let len = match self.rng.random_range(0..10) {
            0..=3 => self.rng.random_range(1..=600),
            4..=7 => self.rng.random_range(600..=(limit / 3).min(20_000)),
            _ => self.rng.random_range((limit / 6).min(20_000)..=limit / 3),
        };
        let generation = self.next_generation;
        self.next_generation += 1;
        if self.rng.random_bool(0.35) && size + len <= limit {
            let (offset, append, direct) = (size, true, false);
            return Some(Operation::Write { id, offset, len, generation, append, direct });
        }
        let mut offset = self.rng.random_range(0..=limit - len);
        if self.rng.random_bool(0.4) {
            // Whole blocks of any size.
            offset &= !4095;
        }
        if self.rng.random_bool(0.02) {
            // Far behind the end: deep trees with few leaves.
            offset += self.rng.random_range(0..64_u64) << 26;
        }
        Some(Operation::Write { id, offset, len, generation, append: false, direct: false })
    }

    fn resize(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let old = self.contents[&id].size;
        let size = match self.rng.random_range(0..4) {
            0 => 0,
            1..=2 => self.rng.random_range(0..=old),
            _ => self.rng.random_range(old..=old.max(self.limits.file_bytes)),
        };
        Some(Operation::Resize { id, size })
    }

    fn range(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let limit = self.limits.file_bytes;
        let offset = self.rng.random_range(0..limit);
        let len = self.rng.random_range(1..=limit / 3);
        let keep_size = self.rng.random_bool(0.4);
        Some(match self.rng.random_range(0..3) {
            0 => Operation::Allocate { id, offset, len, keep_size },
            1 => Operation::Punch { id, offset, len },
            _ => Operation::Zero { id, offset, len, keep_size },
        })
    }

    fn hold(&mut self) -> Option<Operation> {
        if self.held.len() >= 4 || !self.held.is_empty() && self.rng.random_bool(0.5) {
            let which = self.rng.random_range(0..self.held.len());
            return self.held.iter().nth(which).map(|&id| Operation::Release { id });
        }
        let id = self.some_node(|kind| kind == Kind::File)?;
        (!self.held.contains(&id)).then_some(Operation::Hold { id })
    }

    fn check(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        Some(Operation::Check { id })
    }

    fn sync(&mut self) -> Option<Operation> {
        Some(match self.rng.random_range(0..20) {
            0 => Operation::SyncVolume,
            1..=4 => Operation::SyncDirectory { id: self.some_directory() },
            roll => Operation::Sync { id: self.some_content()?, data_only: roll >= 15 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(count: usize, seed: u64, identifies: bool) -> Vec<Operation> {
        let mut generator = Generator::new(seed, 3, Limits::default(), identifies);
        (0..count)
            .map(|_| {
                let operation = generator.generate();
                generator.done(&operation);
                operation
            })
            .collect()
    }

    #[test]
    fn a_seed_gives_the_same_operations_and_another_seed_others() {
        assert_eq!(take(500, 7, true), take(500, 7, true));
        assert_ne!(take(500, 7, true), take(500, 8, true));
    }

    #[test]
    fn every_kind_of_operation_comes() {
        let operations = take(5000, 1, false);
        let mut kinds: Vec<String> = operations
            .iter()
            .map(|o| format!("{o:?}").split([' ', '{']).next().unwrap_or_default().to_owned())
            .collect();
        kinds.sort();
        kinds.dedup();
        assert_eq!(kinds.len(), 23, "{kinds:?}");
    }
}
