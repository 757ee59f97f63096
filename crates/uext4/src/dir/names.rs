//! Names of encrypted directories: between what callers see and what is stored.
//!
//! What: with the key of the directory a name is the plaintext of what is stored. Without it names
//! are shown in a form that can be looked up and removed, and none can be added.
//! A policy of version 1 does not tell a wrong key from the right one. Whatever name is shown then
//! can be looked up: the plaintext if that is stored so, or else the form without a key.
//! Invariants: hashes, order and room are those of stored names. Where the directory also folds
//! case the hashes are of folded plaintexts; records have them, so that the order is known without
//! the key.

use super::hash_path::HashPath;
use super::leaf;
use super::lookup::lookup_wanted;
use super::view::{Shape, View};
use super::wanted::Wanted;
use crate::crypt::nokey::{self, Shown};
use crate::crypt::{FileCipher, NamesCipher};
use crate::error::{Error, ErrorKind, Result};
use uext4_ondisk::dir_entry::{NAME_MAX, has_slash_or_nul};
use uext4_ondisk::{CorruptKind, FileBlock, Place, casefold};

/// A name that is looked up. `None`: no entry has it.
pub(super) fn to_find<'n>(view: &View<'n>, name: &'n [u8]) -> Result<Option<Wanted<'n>>> {
    view.inode.encryption()?;
    match cipher(view) {
        Ok(cipher) => wanted(view, cipher, name),
        Err(_) => find_shown(view, name),
    }
}

/// A name that is looked up and that no entry has by its plaintext. A wrong key makes some names
/// impossible, which are shown as without the key.
pub(super) fn to_find_undeciphered<'n>(
    view: &View<'n>,
    name: &'n [u8],
) -> Result<Option<Wanted<'n>>> {
    let Ok(cipher) = cipher(view) else { return Ok(None) };
    if !view.inode.encryption()?.context.policy.may_have_wrong_key() {
        return Ok(None);
    }
    let wanted = find_shown(view, name)?;
    Ok(wanted.filter(|wanted| decipher(cipher, wanted.stored().bytes, true).is_none()))
}

/// A name that is added.
///
/// # Errors
/// `NoKey`, `NoCipher`.
pub(super) fn to_add<'n>(view: &View<'n>, name: &'n [u8]) -> Result<Wanted<'n>> {
    wanted(view, cipher(view)?, name)?.ok_or_else(|| ErrorKind::NameTooLong.into())
}

/// Whether the directory folds case by plaintexts, and not by what is shown without a key.
pub(super) fn is_spelled(view: &View<'_>) -> bool {
    !view.encrypted || cipher(view).is_ok()
}

/// The name that a record of a directory which folds case stores. `None`: it cannot be decrypted.
pub(super) fn plaintext(view: &View<'_>, stored: &[u8]) -> Option<Vec<u8>> {
    decipher(cipher(view).ok()?, stored, false)
}

/// Hash and minor hash of a name of a directory whose records have them. `None`: there is no key.
pub(super) fn hashes(view: &View<'_>, name: &[u8]) -> Option<(u32, u32)> {
    cipher(view).ok()?.hashes(&casefold::fold(name))
}

/// The cipher of the directory's names, and of their hashes if they have any.
fn cipher<'v>(view: &View<'v>) -> Result<&'v NamesCipher> {
    match view.inode.encryption()?.cipher()? {
        FileCipher::Names(cipher) if view.is_hashed() && !cipher.has_hashes() => {
            let context = format!("inode {}: this policy has no hashes of names", view.inode.ino());
            Err(Error::new(ErrorKind::NoCipher, context))
        }
        FileCipher::Names(cipher) => Ok(cipher),
        FileCipher::Contents(_) => Err(Error::new(ErrorKind::Internal, "names as contents")),
    }
}

/// `None`: it is too long to be stored.
fn wanted<'n>(
    view: &View<'_>,
    cipher: &'n NamesCipher,
    name: &'n [u8],
) -> Result<Option<Wanted<'n>>> {
    let Some(bytes) = cipher.encrypt(name, NAME_MAX) else { return Ok(None) };
    if !view.is_hashed() {
        return Ok(Some(Wanted::ciphertext(bytes, None)));
    }
    let hashes = cipher.hashes(&casefold::fold(name));
    let hashes = hashes.ok_or_else(|| Error::new(ErrorKind::Internal, "no hashes of names"))?;
    Ok(Some(Wanted::ciphered(cipher, name, bytes, hashes)))
}

/// Whether an entry that a wrong key does not decipher is shown by this name.
pub(super) fn is_shown_undeciphered(view: &View<'_>, name: &[u8]) -> Result<bool> {
    match to_find_undeciphered(view, name)? {
        Some(wanted) => Ok(lookup_wanted(view, &wanted)?.is_some()),
        None => Ok(false),
    }
}

/// The name that a caller sees. `hashes` order the directory.
pub(super) fn to_show(view: &View<'_>, hashes: (u32, u32), stored: &[u8]) -> Result<Box<[u8]>> {
    view.inode.encryption()?;
    let Ok(cipher) = cipher(view) else { return Ok(nokey::show(hashes, stored).into()) };
    let may_be_wrong = view.inode.encryption()?.context.policy.may_have_wrong_key();
    let name = decipher(cipher, stored, may_be_wrong);
    if name.is_none() && may_be_wrong {
        return Ok(nokey::show(hashes, stored).into());
    }
    name.map(Into::into).ok_or_else(|| {
        let why = "has an entry whose name cannot be decrypted";
        let kind = CorruptKind::Rule { what: "encrypted directory", why };
        kind.at(Place::Inode(view.inode.ino())).into()
    })
}

/// The plaintext of a stored name. `None`: it is no name, or, with a key that `may_be_wrong`, one
/// that is stored otherwise, so that it could not be looked up.
fn decipher(cipher: &NamesCipher, stored: &[u8], may_be_wrong: bool) -> Option<Vec<u8>> {
    let name = cipher.decrypt(stored)?;
    let is_dot = matches!(&name[..], b"" | b"." | b"..");
    if is_dot || has_slash_or_nul(&name) {
        return None;
    }
    let is_same = || cipher.encrypt(&name, NAME_MAX).is_some_and(|again| again == stored);
    (!may_be_wrong || is_same()).then_some(name)
}

/// The stored name that is shown so. Where records have hashes, these are part of what is shown;
/// elsewhere names that are too long to be shown whole are searched for, in all of the directory.
fn find_shown<'n>(view: &View<'_>, name: &[u8]) -> Result<Option<Wanted<'n>>> {
    let Some((hashes, shown)) = Shown::parse(name) else { return Ok(None) };
    let hashes_of_record = view.is_hashed().then_some(hashes);
    match shown {
        Shown::Whole(stored) => Ok(Some(Wanted::ciphertext(stored, hashes_of_record))),
        shown if view.is_hashed() => Ok(Some(Wanted::shown(shown, hashes))),
        shown => {
            let stored = find_long(view, &shown)?;
            Ok(stored.map(|stored| Wanted::ciphertext(stored, None)))
        }
    }
}

/// The stored name that begins and ends so.
fn find_long(view: &View<'_>, shown: &Shown) -> Result<Option<Vec<u8>>> {
    if view.shape == Shape::Linear {
        for at in (0..view.blocks).map(FileBlock) {
            if let Some(stored) = find_in_leaf(view, at, shown)? {
                return Ok(Some(stored));
            }
        }
        return Ok(None);
    }
    let mut path = HashPath::to_hash(view, 0)?;
    loop {
        if let Some(stored) = find_in_leaf(view, path.leaf, shown)? {
            return Ok(Some(stored));
        }
        if !path.advance()? {
            return Ok(None);
        }
    }
}

fn find_in_leaf(view: &View<'_>, at: FileBlock, shown: &Shown) -> Result<Option<Vec<u8>>> {
    let buffer = view.leaf(at)?;
    let bytes = buffer.read();
    for entry in leaf::records(&bytes, view.form()).live() {
        let entry = entry.map_err(|kind| view.corrupt(at, kind))?;
        if shown.is(entry.name) {
            return Ok(Some(entry.name.to_vec()));
        }
    }
    Ok(None)
}
