//! What fast commits come to: the last state of everything that their records name.
//!
//! What: [`Outcome::of`] reads the records in their order, once, and changes nothing. Inodes that
//! were deleted again, names that are gone, and an earlier file with the number of a later one
//! leave nothing behind.
//! Memory: bounded by the records.

use super::ranges::LastRanges;
use std::collections::{BTreeMap, BTreeSet};
use uext4_ondisk::extent::Extent;
use uext4_ondisk::journal::fast_commit::{NameChange, Record};
use uext4_ondisk::{FileBlock, FileKind, Ino, RawInode};

/// An inode as it is before the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) generation: u32,
    pub(super) links: u32,
    pub(super) kind: FileKind,
}

/// A change of a file's mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RangeChange {
    pub(super) ino: Ino,
    pub(super) first: FileBlock,
    pub(super) end: FileBlock,
    pub(super) new: Option<Extent>,
}

/// What becomes of an inode.
#[derive(Debug, Default)]
pub(super) struct InodeOutcome<'r> {
    /// It was in use before the records.
    pub(super) before: Option<Before>,
    /// Its last record.
    pub(super) bytes: Option<&'r [u8]>,
    /// Its kind, from the record or from before.
    pub(super) kind: Option<FileKind>,
    generation: Option<u32>,
    /// Of the file that has the number at this record. `None`: its record is still to come, as
    /// after the deletion of an earlier file. Ranges come before the record of their inode.
    present: Option<u32>,
    /// Ranges of a file whose record is still to come, as places among all ranges.
    waiting: Vec<usize>,
    /// Links at the end. Of a directory: 0 if it is removed.
    pub(super) links: u32,
    /// Records name it.
    pub(super) is_named: bool,
}

impl InodeOutcome<'_> {
    /// It exists at the end.
    pub(super) fn lives(&self) -> bool {
        self.links > 0
    }

    /// It is another file than the one that had the number before.
    pub(super) fn is_new(&self) -> bool {
        self.before.is_none_or(|before| Some(before.generation) != self.generation)
    }
}

/// The last states.
#[derive(Debug, Default)]
pub(super) struct Outcome<'r> {
    pub(super) inodes: BTreeMap<Ino, InodeOutcome<'r>>,
    /// The last changes of the mappings of files that live: no two are of one block of a file.
    pub(super) ranges: Vec<RangeChange>,
    /// By directory and name: what it names at the end.
    pub(super) names: BTreeMap<(Ino, &'r [u8]), Option<Ino>>,
}

impl<'r> Outcome<'r> {
    /// Reads the records. `before` looks an inode up as it is now.
    ///
    /// # Errors
    /// Those of `before`.
    pub(super) fn of<E>(
        records: &'r [Record],
        mut before: impl FnMut(Ino) -> Result<Option<Before>, E>,
    ) -> Result<Self, E> {
        let mut outcome = Self::default();
        let mut ranges: Vec<(RangeChange, Option<u32>)> = Vec::new();
        for record in records {
            let ino = match record {
                Record::AddRange { ino, .. }
                | Record::DelRange { ino, .. }
                | Record::Name { ino, .. }
                | Record::Inode { ino, .. } => *ino,
            };
            let inode = match outcome.inodes.entry(ino) {
                std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                std::collections::btree_map::Entry::Vacant(new) => {
                    let before = before(ino)?;
                    new.insert(InodeOutcome {
                        before,
                        kind: before.map(|before| before.kind),
                        generation: before.map(|before| before.generation),
                        present: before.map(|before| before.generation),
                        links: before.map_or(0, |before| before.links),
                        ..InodeOutcome::default()
                    })
                }
            };
            match record {
                Record::AddRange { extent, .. } => {
                    let (first, end) = (extent.first, extent.end());
                    let change = RangeChange { ino, first, end, new: Some(*extent) };
                    inode.take_range(change, &mut ranges);
                }
                Record::DelRange { first, len, .. } => {
                    let end = FileBlock(first.get().saturating_add(*len));
                    let change = RangeChange { ino, first: *first, end, new: None };
                    inode.take_range(change, &mut ranges);
                }
                Record::Inode { bytes, .. } => {
                    inode.take_record(bytes);
                    for n in inode.waiting.drain(..) {
                        ranges[n].1 = inode.generation;
                    }
                }
                Record::Name { change, parent, name, .. } => {
                    let last = outcome.names.get(&(*parent, &name[..])).copied().flatten();
                    let named = inode.take_name(*change, ino, last);
                    if let Some(named) = named {
                        outcome.names.insert((*parent, name), named);
                    }
                }
            }
        }
        let mut last = LastRanges::default();
        for (change, generation) in ranges {
            let Some(inode) = outcome.inodes.get(&change.ino) else { continue };
            // One that waits for a record that never came is of the last file.
            if inode.lives() && generation.is_none_or(|of| inode.generation == Some(of)) {
                last.take(change);
            }
        }
        outcome.ranges = last.finish();
        Ok(outcome)
    }

    /// The inodes that a directory which lives names at the end.
    pub(super) fn named(&self) -> BTreeSet<Ino> {
        let has_directory = |parent| self.inodes.get(parent).is_none_or(InodeOutcome::lives);
        let names = self.names.iter().filter(|((parent, _), _)| has_directory(parent));
        names.filter_map(|(_, &named)| named).collect()
    }
}

impl<'r> InodeOutcome<'r> {
    fn take_range(&mut self, change: RangeChange, ranges: &mut Vec<(RangeChange, Option<u32>)>) {
        if self.present.is_none() {
            self.waiting.push(ranges.len());
        }
        ranges.push((change, self.present));
    }

    fn take_record(&mut self, bytes: &'r [u8]) {
        let Ok(raw) = RawInode::read(bytes) else { return };
        let is_other = self.generation != Some(raw.i_generation.get());
        self.generation = Some(raw.i_generation.get());
        // A file that was deleted while it was open may have been synced; another has its number
        // then.
        self.present = self.generation.filter(|_| raw.i_links_count.get() > 0);
        self.bytes = Some(bytes);
        self.kind = raw.kind();
        let links = u32::from(raw.i_links_count.get());
        // The links of a directory are counted here: its subdirectories write no record of it.
        self.links = match self.kind {
            Some(FileKind::Directory) if !is_other => self.links.max(1),
            _ => links,
        };
    }

    /// Counts a change of a name that stands for `last` by the records so far. Returns what the
    /// name stands for from then on, if that changes.
    fn take_name(
        &mut self,
        change: NameChange,
        ino: Ino,
        last: Option<Ino>,
    ) -> Option<Option<Ino>> {
        self.is_named = true;
        let is_directory = self.kind == Some(FileKind::Directory);
        match change {
            NameChange::Create => {
                self.links = if is_directory { 2 } else { 1 };
                Some(Some(ino))
            }
            NameChange::Link => {
                self.links = self.links.saturating_add(1);
                Some(Some(ino))
            }
            NameChange::Unlink => {
                self.links = if is_directory { 0 } else { self.links.saturating_sub(1) };
                if self.links == 0 {
                    self.present = None;
                }
                // Another file may have got the name before this one lost it.
                last.is_none_or(|last| last == ino).then_some(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn name(change: NameChange, ino: u32, name: &str) -> Record {
        Record::Name { change, parent: Ino(2), ino: Ino(ino), name: name.into() }
    }

    fn inode(ino: u32, generation: u32, links: u16) -> Record {
        let mut raw = RawInode::zeroed();
        raw.i_mode.set(0o100_644);
        raw.i_generation.set(generation);
        raw.i_links_count.set(links);
        let mut bytes = vec![0; 160];
        raw.write(&mut bytes).unwrap();
        Record::Inode { ino: Ino(ino), bytes }
    }

    fn range(ino: u32, start: u64) -> Record {
        let extent = Extent {
            first: FileBlock(0),
            len: 1,
            start: uext4_ondisk::BlockNo(start),
            unwritten: false,
        };
        Record::AddRange { ino: Ino(ino), extent }
    }

    fn outcome(records: &[Record]) -> Outcome<'_> {
        let before = |ino: Ino| {
            let kind = FileKind::Regular;
            let is_used = ino == Ino(12);
            Ok::<_, Infallible>(is_used.then_some(Before { generation: 1, links: 1, kind }))
        };
        Outcome::of(records, before).unwrap()
    }

    #[test]
    fn a_rename_leaves_one_link_and_one_name() {
        use NameChange::{Link, Unlink};
        let records = [name(Link, 12, "new"), name(Unlink, 12, "old"), inode(12, 1, 1)];
        let outcome = outcome(&records);
        assert_eq!(outcome.inodes[&Ino(12)].links, 1);
        assert_eq!(outcome.names[&(Ino(2), &b"new"[..])], Some(Ino(12)));
        assert_eq!(outcome.names[&(Ino(2), &b"old"[..])], None);
    }

    #[test]
    fn a_number_that_is_used_again_is_another_file() {
        use NameChange::{Create, Unlink};
        let records = [
            range(12, 100),
            name(Unlink, 12, "a"),
            inode(12, 2, 1),
            range(12, 200),
            name(Create, 12, "b"),
        ];
        let outcome = outcome(&records);
        let inode = &outcome.inodes[&Ino(12)];
        assert!(inode.is_new() && inode.lives());
        assert_eq!(outcome.ranges.len(), 1, "the range of the file before is gone with it");
        assert_eq!(outcome.ranges[0].new.unwrap().start.get(), 200);
    }

    #[test]
    fn ranges_in_front_of_the_first_record_are_of_the_first_file() {
        use NameChange::{Create, Link, Unlink};
        // A file that was made without a name: its link and its ranges come before its record.
        let nameless = [name(Link, 20, "a"), range(20, 100), inode(20, 9, 1)];
        assert_eq!(outcome(&nameless).ranges.len(), 1);
        let again = [name(Unlink, 20, "a"), inode(20, 10, 1), name(Create, 20, "a")];
        let records = [&nameless[..], &again[..]].concat();
        assert!(outcome(&records).ranges.is_empty(), "a later file has the number");
    }

    #[test]
    fn ranges_after_a_deletion_are_of_the_next_file() {
        use NameChange::{Link, Unlink};
        let records = [name(Unlink, 12, "a"), name(Link, 12, "b"), range(12, 300), inode(12, 2, 1)];
        assert_eq!(outcome(&records).ranges.len(), 1);
        let synced = [name(Unlink, 12, "a"), inode(12, 1, 0), name(Link, 12, "b"), range(12, 300)];
        let synced = [&synced[..], &[inode(12, 2, 1)]].concat();
        assert_eq!(outcome(&synced).ranges.len(), 1);
        // A file that loses its only name and gets another is the same.
        let records = [name(Unlink, 12, "a"), name(Link, 12, "b"), range(12, 300), inode(12, 1, 1)];
        assert_eq!(outcome(&records).ranges.len(), 1);
    }

    #[test]
    fn what_was_deleted_again_leaves_nothing() {
        use NameChange::{Create, Unlink};
        let records =
            [inode(20, 9, 1), range(20, 100), name(Create, 20, "a"), name(Unlink, 20, "a")];
        let outcome = outcome(&records);
        assert!(!outcome.inodes[&Ino(20)].lives());
        assert!(outcome.ranges.is_empty());
        assert_eq!(outcome.names[&(Ino(2), &b"a"[..])], None);
    }

    #[test]
    fn a_name_that_another_file_took_stays() {
        use NameChange::{Link, Unlink};
        let records = [inode(13, 1, 1), name(Link, 13, "a"), name(Unlink, 12, "a")];
        assert_eq!(outcome(&records).names[&(Ino(2), &b"a"[..])], Some(Ino(13)));
    }
}
