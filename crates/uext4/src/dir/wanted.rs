//! A name that is looked for or added, and the entries that have it.

use super::view::View;
use uext4_ondisk::casefold::FoldedName;
use uext4_ondisk::dir_entry::DirEntry;

/// A name as it is stored, and what it is the same as.
#[derive(Clone, Debug)]
pub(super) struct Wanted<'n> {
    pub(super) stored: &'n [u8],
    folded: Option<FoldedName<'n>>,
}

/// Whether an entry has the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It has another one.
    No,
    /// It has one that is the same, but the very name may be there as well.
    Same,
    /// It is the entry.
    Exact,
}

impl<'n> Wanted<'n> {
    pub(super) fn new(view: &View<'_>, stored: &'n [u8]) -> Self {
        Self { stored, folded: view.folding.map(|_| FoldedName::new(stored)) }
    }

    /// Whether names are compared by their bytes.
    pub(super) fn is_by_bytes(&self) -> bool {
        self.folded.is_none()
    }

    /// Whether an entry has the name. `.` and `..` are by their bytes alone: other names fold to
    /// them as well.
    pub(super) fn fits(&self, entry: &DirEntry<'_>) -> Fit {
        let Some(folded) = &self.folded else {
            return if entry.name == self.stored { Fit::Exact } else { Fit::No };
        };
        match !entry.is_dot() && folded.is(entry.name) {
            true if folded.is_surely(entry.name) => Fit::Exact,
            true => Fit::Same,
            false => Fit::No,
        }
    }
}
