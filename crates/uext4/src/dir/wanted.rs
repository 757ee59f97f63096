//! A name that is looked for or added, and the entries that have it.

use super::view::View;
use crate::crypt::NamesCipher;
use crate::crypt::nokey::Shown;
use std::borrow::Cow;
use uext4_ondisk::casefold::FoldedName;
use uext4_ondisk::dir_entry::{DirEntry, StoredName};

/// A name as it is stored, and what it is the same as.
#[derive(Clone, Debug)]
pub(super) struct Wanted<'n> {
    bytes: Cow<'n, [u8]>,
    hashes: Option<(u32, u32)>,
    matching: Matching<'n>,
}

/// What makes an entry have the name.
#[derive(Clone, Debug)]
enum Matching<'n> {
    /// The bytes that are stored.
    Bytes,
    /// The same but for case.
    Folded(FoldedName<'n>),
    /// The same when it is decrypted.
    Ciphered(&'n NamesCipher, FoldedName<'n>),
    /// It is shown so without the key.
    Shown(Shown),
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
    /// A name of a directory that is not encrypted.
    pub(super) fn plain(view: &View<'_>, name: &'n [u8]) -> Self {
        let matching = match view.folding {
            Some(_) => Matching::Folded(FoldedName::new(name)),
            None => Matching::Bytes,
        };
        Self { bytes: name.into(), hashes: None, matching }
    }

    /// A name of an encrypted directory: its ciphertext, and the hashes that follow it if case is
    /// folded.
    pub(super) fn ciphertext(bytes: Vec<u8>, hashes: Option<(u32, u32)>) -> Self {
        Self { bytes: bytes.into(), hashes, matching: Matching::Bytes }
    }

    /// A name of an encrypted directory that folds case.
    pub(super) fn ciphered(
        cipher: &'n NamesCipher,
        name: &'n [u8],
        bytes: Vec<u8>,
        hashes: (u32, u32),
    ) -> Self {
        let matching = Matching::Ciphered(cipher, FoldedName::new(name));
        Self { bytes: bytes.into(), hashes: Some(hashes), matching }
    }

    /// A name that is too long to be shown whole without the key.
    pub(super) fn shown(shown: Shown, hashes: (u32, u32)) -> Self {
        Self { bytes: Cow::default(), hashes: Some(hashes), matching: Matching::Shown(shown) }
    }

    /// As it is stored, or would be.
    pub(super) fn stored(&self) -> StoredName<'_> {
        StoredName { bytes: &self.bytes, hashes: self.hashes }
    }

    /// Whether names are compared by their bytes.
    pub(super) fn is_by_bytes(&self) -> bool {
        matches!(self.matching, Matching::Bytes)
    }
}

/// How an entry is compared with a name.
pub(super) type FitOf = fn(&Wanted<'_>, &DirEntry<'_>) -> Fit;

impl Fit {
    /// Whether an entry has a name. `.` and `..` are by their bytes alone: other names fold to them
    /// as well.
    pub(super) fn of(wanted: &Wanted<'_>, entry: &DirEntry<'_>) -> Self {
        let exact = |is_it| if is_it { Self::Exact } else { Self::No };
        match &wanted.matching {
            Matching::Bytes => exact(*entry.name == *wanted.bytes),
            _ if entry.is_dot() => Self::No,
            Matching::Shown(shown) => exact(shown.is(entry.name)),
            Matching::Folded(name) => Self::of_folded(name, entry.name),
            Matching::Ciphered(cipher, name) => match cipher.decrypt(entry.name) {
                Some(text) => Self::of_folded(name, &text),
                None => Self::No,
            },
        }
    }

    /// As [`Fit::of`], where entries that have the name also have its hashes, if they have any.
    pub(super) fn by_hash(wanted: &Wanted<'_>, entry: &DirEntry<'_>) -> Self {
        if entry.hashes.is_some() && entry.hashes != wanted.hashes {
            return Self::No;
        }
        Self::of(wanted, entry)
    }

    fn of_folded(name: &FoldedName<'_>, stored: &[u8]) -> Self {
        match name.is(stored) {
            true if name.is_surely(stored) => Self::Exact,
            true => Self::Same,
            false => Self::No,
        }
    }
}
