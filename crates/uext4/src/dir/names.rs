//! Names of encrypted directories: between what callers see and what is stored.
//!
//! What: with the key of the directory a name is the plaintext of what is stored. Without it names
//! are shown in a form that can be looked up and removed, and none can be added.
//! A policy of version 1 does not tell a wrong key from the right one. Whatever name is shown then
//! can be looked up: the plaintext if that is stored so, or else the form without a key.
//! Invariants: hashes, order and room are those of stored names.

use super::hash_path::HashPath;
use super::leaf;
use super::lookup::lookup_stored;
use super::view::{Shape, View};
use crate::crypt::nokey::{self, Shown};
use crate::crypt::{FileCipher, NamesCipher};
use crate::error::{Error, ErrorKind, Result};
use uext4_ondisk::dir_entry::{NAME_MAX, has_slash_or_nul};
use uext4_ondisk::{CorruptKind, FileBlock, Place};

/// The stored form of a name that is looked up. `None`: no entry has it.
pub(super) fn to_find(view: &View<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match view.inode.encryption()?.cipher() {
        Ok(FileCipher::Names(cipher)) => Ok(cipher.encrypt(name, NAME_MAX)),
        Ok(FileCipher::Contents(_)) => Err(Error::new(ErrorKind::Internal, "names as contents")),
        Err(_) => find_shown(view, name),
    }
}

/// The stored form of a name that is looked up and that no entry has by its plaintext. A wrong key
/// makes some names impossible, which are shown as without the key.
pub(super) fn to_find_undeciphered(view: &View<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let encryption = view.inode.encryption()?;
    let Ok(FileCipher::Names(cipher)) = encryption.cipher() else { return Ok(None) };
    if !encryption.context.policy.may_have_wrong_key() {
        return Ok(None);
    }
    let stored = find_shown(view, name)?;
    Ok(stored.filter(|stored| decipher(cipher, stored, true).is_none()))
}

/// The stored form of a name that is added.
///
/// # Errors
/// `NoKey`, `NoCipher`.
pub(super) fn to_add(view: &View<'_>, name: &[u8]) -> Result<Vec<u8>> {
    match view.inode.encryption()?.cipher()? {
        FileCipher::Names(cipher) => {
            cipher.encrypt(name, NAME_MAX).ok_or_else(|| ErrorKind::NameTooLong.into())
        }
        FileCipher::Contents(_) => Err(Error::new(ErrorKind::Internal, "names as contents")),
    }
}

/// Whether an entry that a wrong key does not decipher is shown by this name.
pub(super) fn is_shown_undeciphered(view: &View<'_>, name: &[u8]) -> Result<bool> {
    match to_find_undeciphered(view, name)? {
        Some(stored) => Ok(lookup_stored(view, &stored)?.is_some()),
        None => Ok(false),
    }
}

/// The name that a caller sees. `hashes` order the directory.
pub(super) fn to_show(view: &View<'_>, hashes: (u32, u32), stored: &[u8]) -> Result<Box<[u8]>> {
    let Ok(FileCipher::Names(cipher)) = view.inode.encryption()?.cipher() else {
        return Ok(nokey::show(hashes, stored).into());
    };
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

/// The stored name that is shown so. Only names too long to be shown whole are searched for, in all
/// of the directory.
fn find_shown(view: &View<'_>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match Shown::parse(name) {
        Some(Shown::Whole(stored)) => Ok(Some(stored)),
        Some(shown) => find_long(view, &shown),
        None => Ok(None),
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
    for entry in leaf::records(&bytes, view.has_csum()).live() {
        let entry = entry.map_err(|kind| view.corrupt(at, kind))?;
        if shown.is(entry.name) {
            return Ok(Some(entry.name.to_vec()));
        }
    }
    Ok(None)
}
