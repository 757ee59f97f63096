//! What an operation is done to: nodes and names that a thread owns, drawn by its seed.

use super::{Generator, mix};
use crate::category::Category;
use crate::folded;
use crate::operation::{Id, Kind, Place, SHARED, THREAD_SHIFT, own_directory, shared_prefix};
use rand::Rng;

impl Generator {
    pub(super) fn kind(&self, id: Id) -> Kind {
        self.names.node(id).map_or(Kind::File, |node| node.kind)
    }

    pub(super) fn new_id(&mut self) -> Id {
        let id = self.next_id;
        self.next_id += 1;
        assert!(id >> THREAD_SHIFT == self.names.thread(), "more files than a thread may make");
        id
    }

    pub(super) fn some_node(&mut self, fits: impl Fn(Kind) -> bool) -> Option<Id> {
        let ids: Vec<Id> =
            self.names.nodes().filter(|(_, node)| fits(node.kind)).map(|(id, _)| id).collect();
        self.one_of(&ids)
    }

    pub(super) fn some_entry(&mut self, fits: impl Fn(Kind) -> bool) -> Option<(Place, Id)> {
        let entries: Vec<(Place, Id)> = self
            .names
            .entries()
            .filter(|(_, id)| fits(self.kind(*id)))
            .map(|(place, id)| (place.clone(), id))
            .collect();
        self.one_of(&entries)
    }

    pub(super) fn some_content(&mut self) -> Option<Id> {
        let ids: Vec<Id> = self.contents.keys().copied().collect();
        self.one_of(&ids)
    }

    pub(super) fn some_directory(&mut self) -> Id {
        let mut ids = vec![own_directory(self.names.thread()), SHARED];
        let own = self.names.nodes().filter(|(_, node)| node.kind == Kind::Directory);
        ids.extend(own.map(|(id, _)| id));
        self.one_of(&ids).unwrap_or(SHARED)
    }

    pub(super) fn free_place(&mut self, dir: Id) -> Option<Place> {
        let number = self.rng.random_range(0..self.limits.names);
        let prefix = if dir == SHARED { shared_prefix(self.names.thread()) } else { Vec::new() };
        let name = if self.category == Category::Htree {
            mix::long_name(prefix, number)
        } else {
            name(prefix, number, self.folds)
        };
        let place = Place { dir, name };
        let other = self.other_spelling(&place);
        if self.names.at(&place).is_some() || self.names.at(&other).is_some() {
            return None;
        }
        Some(if self.folds && self.rng.random_bool(0.5) { other } else { place })
    }

    /// The place with the other spelling of its name; where directories do not fold case, the place
    /// itself.
    pub(super) fn other_spelling(&self, place: &Place) -> Place {
        match self.folds {
            true => Place { dir: place.dir, name: folded::other_spelling(&place.name) },
            false => place.clone(),
        }
    }

    /// Whether two places cannot both be taken.
    pub(super) fn is_same(&self, a: &Place, b: &Place) -> bool {
        a == b || self.other_spelling(a) == *b
    }

    pub(super) fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        if all.is_empty() {
            return None;
        }
        Some(all[self.rng.random_range(0..all.len())].clone())
    }
}

/// Name `number` of the pool: a third short, a third long, the rest no UTF-8 or with blanks.
fn name(prefix: Vec<u8>, number: u32, folds: bool) -> Vec<u8> {
    let mut name = prefix;
    name.extend_from_slice(format!("n{number}").as_bytes());
    match number % 6 {
        0 | 1 => {}
        2 if folds => name.extend_from_slice("stra\u{df}e".as_bytes()),
        2 => name.extend_from_slice(b" with blanks "),
        // e2fsck 1.47.0 cannot hash what is not UTF-8 here.
        3 if folds => name.extend_from_slice("\u{1d5}\u{323}\u{200b}\u{ac01}\n".as_bytes()),
        3 => name.extend_from_slice(&[b'\xff', b'\xc0', 0x80 | number as u8, b'\n']),
        _ => name.resize(255 - (number as usize % 5), b'x'),
    }
    name
}
