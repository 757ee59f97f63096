//! A few kinds of operation with weights: a load that repeats these reaches deeper into each than
//! one with all of them.

use super::{Choice, Generator, choices};
use crate::operation::Operation;
use rand::Rng;
use std::fmt;

type Make = fn(&mut Generator) -> Option<Operation>;

/// Every kind, with its word.
const EVERY: &[(&str, Make)] = &[
    ("create", Generator::create),
    ("create-file", Generator::create_file),
    ("create-held", Generator::create_held),
    ("make-directory", Generator::make_directory),
    ("symlink", Generator::symlink),
    ("link", Generator::link),
    ("unlink", Generator::unlink),
    ("unlink-open", Generator::unlink_open),
    ("rmdir", Generator::rmdir),
    ("rename", Generator::rename),
    ("replace-synced", Generator::replace_synced),
    ("replace-unsynced", Generator::replace_unsynced),
    ("attribute", Generator::attribute),
    ("xattr", Generator::xattr),
    ("write", Generator::write),
    ("append", Generator::append),
    ("append-synced", Generator::append_synced),
    ("write-directly", Generator::write_directly),
    ("write-directly-synced", Generator::write_directly_synced),
    ("overwrite-unwritten", Generator::overwrite_unwritten),
    ("overwrite-hole", Generator::overwrite_hole),
    ("resize", Generator::resize),
    ("range", Generator::range),
    ("allocate", Generator::allocate),
    ("punch-and-fill", Generator::punch_and_fill),
    ("punch-end", Generator::punch_end),
    ("shift", Generator::shift),
    ("recycle", Generator::recycle),
    ("hold", Generator::hold),
    ("release", Generator::release),
    ("check", Generator::check),
    ("sync", Generator::sync),
];

/// The smallest block: whole blocks of it are no whole ones of others always.
const BLOCK: u64 = 1024;

/// Kinds of operation, each with its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds(Vec<(u32, usize)>);

impl Kinds {
    /// Three to six of all; besides files are made and looked at, and perhaps synced.
    pub fn draw(rng: &mut impl Rng) -> Kinds {
        let mut kinds = Vec::new();
        for _ in 0..rng.random_range(3..=6) {
            kinds.push((rng.random_range(1..=12), rng.random_range(0..EVERY.len())));
        }
        let creates = ["create-file", "create-held"][rng.random_range(0..2)];
        let (created, checked) = (rng.random_range(1..=4), rng.random_range(1..=6));
        let synced: u32 = rng.random_range(0..=8);
        let kinds = Kinds(kinds).with(created, creates).with(checked, "check");
        if synced > 0 { kinds.with(synced, "sync") } else { kinds }
    }

    /// These and one more kind.
    #[must_use]
    pub fn with(mut self, weight: u32, word: &str) -> Kinds {
        let index = EVERY.iter().position(|(other, _)| *other == word);
        self.0.extend(index.map(|index| (weight, index)));
        self
    }

    pub(super) fn choices(&self) -> Vec<Choice> {
        self.0.iter().map(|&(weight, index)| (weight, EVERY[index].1)).collect()
    }
}

impl fmt::Display for Kinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> =
            self.0.iter().map(|&(weight, index)| format!("{}:{weight}", EVERY[index].0)).collect();
        f.write_str(&words.join("+"))
    }
}

impl Generator {
    /// Chooses among these kinds from now on.
    #[must_use]
    pub fn of_kinds(mut self, kinds: &Kinds) -> Generator {
        self.choices = kinds.choices();
        self
    }

    /// Whole blocks up to the end are punched out, perhaps those that were written just now.
    fn punch_end(&mut self) -> Option<Operation> {
        let id = self.some_content()?;
        let size = self.contents[&id].size;
        let blocks = size.div_ceil(BLOCK);
        let offset = self.rng.random_range(0..blocks.max(1)) * BLOCK;
        let len = size.saturating_sub(offset).next_multiple_of(BLOCK).max(BLOCK);
        Some(Operation::Punch { id, offset, len })
    }

    pub(super) fn choices_of(category: crate::category::Category) -> Vec<Choice> {
        choices::choices(category).to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Limits;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn a_load_has_the_kinds_that_were_drawn() {
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..200 {
            let kinds = Kinds::draw(&mut rng);
            let limits = Limits { nodes: 2, ..Limits::default() };
            let mut generator = Generator::new(7, 3, limits, true).of_kinds(&kinds);
            for _ in 0..100 {
                let operation = generator.generate();
                generator.done(&operation);
            }
            assert!((4..=9).contains(&kinds.0.len()), "{kinds}");
        }
    }
}
