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
mod single;

pub use kinds::Kinds;

use crate::category::Category;
use crate::content::{Content, Effect};
use crate::namespace::Namespace;
use crate::operation::{Id, Kind, Operation, SHIFT_BYTES, own_directory};
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
    /// Ranges are collapsed and inserted in multiples of so many bytes.
    pub shift_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            file_bytes: 300_000,
            nodes: 30,
            xattr_bytes: 700,
            names: 48,
            shift_bytes: SHIFT_BYTES,
        }
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
    /// Files have block maps, which have no unwritten blocks and cannot be shifted.
    has_block_maps: bool,
    /// Files are encrypted, and cannot be shifted.
    is_encrypted: bool,
    /// Values of attributes may be in inodes of their own.
    has_value_inodes: bool,
    /// Directories fold case.
    folds: bool,
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
            has_block_maps: false,
            is_encrypted: false,
            has_value_inodes: false,
            folds: false,
        }
    }

    /// The same source for files with block maps: what needs extents becomes a write or a punch.
    #[must_use]
    pub fn with_block_maps(self, has_block_maps: bool) -> Generator {
        Generator { has_block_maps, ..self }
    }

    /// The same source for encrypted files: a shift becomes a punch.
    #[must_use]
    pub fn with_encryption(self, is_encrypted: bool) -> Generator {
        Generator { is_encrypted, ..self }
    }

    /// The same source with attributes whose values need an inode, some of them equal.
    #[must_use]
    pub fn with_value_inodes(self, has_value_inodes: bool) -> Generator {
        Generator { has_value_inodes, ..self }
    }

    /// The same source for directories that fold case: names have two spellings.
    #[must_use]
    pub fn with_folding(self, folds: bool) -> Generator {
        Generator { folds, ..self }
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
        let operation = self.generate_any();
        match operation {
            operation if self.has_block_maps => self.without_extents(operation),
            Operation::Collapse { id, offset, len } | Operation::Insert { id, offset, len }
                if self.is_encrypted =>
            {
                Operation::Punch { id, offset, len }
            }
            operation => operation,
        }
    }

    fn without_extents(&mut self, operation: Operation) -> Operation {
        match operation {
            Operation::Allocate { id, offset, len, .. }
            | Operation::Zero { id, offset, len, .. } => {
                let generation = self.next_generation;
                self.next_generation += 1;
                let (append, direct) = (false, false);
                Operation::Write { id, offset, len, generation, append, direct }
            }
            Operation::Collapse { id, offset, len } | Operation::Insert { id, offset, len } => {
                Operation::Punch { id, offset, len }
            }
            other => other,
        }
    }

    fn generate_any(&mut self) -> Operation {
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
            Operation::CreateUnlinked { id, .. } => {
                self.contents.insert(*id, Content::default());
                self.held.insert(*id);
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
