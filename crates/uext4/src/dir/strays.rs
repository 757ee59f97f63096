//! Names of directories that fold case that are not where their hash says.
//!
//! What: some kernels of about Linux 6.12 did not leave ignored code points out when they hashed
//! names. Later ones look such names up one by one, and so does this engine. But it looks for them
//! once while a directory is in memory, and not each time that a name is missing.
//! Invariants: no change makes a name a stray one: new names are added by their hash, and splits
//! move stray names by the hash that they count as (`DirHasher::hash_within`).

use super::hash_path::HashPath;
use super::view::{Shape, View};
use super::wanted::{Fit, FitOf};
use super::{leaf, names};
use crate::error::{ErrorKind, Result};
use uext4_ondisk::dir_entry::DirEntry;
use uext4_ondisk::{FileBlock, casefold};

/// How the entries of any block are compared.
pub(super) fn fit(view: &View<'_>) -> Result<FitOf> {
    let is_by_hash = view.is_hashed() && !may_be_there(view)?;
    Ok(if is_by_hash { Fit::by_hash } else { Fit::of })
}

/// Whether names of the directory may be found by other hashes than their own.
pub(super) fn may_be_there(view: &View<'_>) -> Result<bool> {
    let may_have = view.folding.is_some_and(|encoding| !encoding.no_compat_fallback);
    // Without the key names are looked up by the hashes that are shown.
    let has_hashes = view.shape == Shape::Indexed || view.is_hashed();
    if !may_have || !has_hashes || !names::is_spelled(view) {
        return Ok(false);
    }
    if let Some(known) = view.inode.has_stray_names() {
        return Ok(known);
    }
    let found = are_there(view);
    match &found {
        Ok(found) => view.inode.note_stray_names(*found),
        // The damage is reported once. One bad leaf must not keep every name from being missing,
        // so from now on names are only where their hash says, as in other directories.
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt(_)) => {
            view.inode.note_stray_names(false);
        }
        Err(_) => {}
    }
    found
}

fn are_there(view: &View<'_>) -> Result<bool> {
    if view.shape == Shape::Linear {
        for at in (0..view.blocks).map(FileBlock) {
            if is_any_in(view, at, |entry| has_stray_hashes(view, entry))? {
                return Ok(true);
            }
        }
        return Ok(false);
    }
    let mut path = HashPath::to_hash(view, 0)?;
    loop {
        let found = match view.is_hashed() {
            true => is_any_in(view, path.leaf, |entry| has_stray_hashes(view, entry))?,
            false => is_in_leaf(view, &path)?,
        };
        if found {
            return Ok(true);
        }
        if !path.advance()? {
            return Ok(false);
        }
    }
}

/// Whether the hashes in a record are not those of its name. The record is where they say.
fn has_stray_hashes(view: &View<'_>, entry: &DirEntry<'_>) -> bool {
    let has = |name: Vec<u8>, hashes| {
        casefold::has_ignored(&name) && names::hashes(view, &name) != Some(hashes)
    };
    let name = || names::plaintext(view, entry.name);
    entry.hashes.is_some_and(|hashes| name().is_some_and(|name| has(name, hashes)))
}

fn is_in_leaf(view: &View<'_>, path: &HashPath<'_>) -> Result<bool> {
    let next = path.next_low()?;
    let is_looked_for = |hash: u32| match next {
        // The lowest bit says that names with this hash begin here.
        Some(next) => hash < next & !1 || hash == next & !1 && next & 1 == 1,
        None => true,
    };
    let is_here = |name: &[u8]| {
        let (hash, _) = path.hasher.hash(name);
        hash >= path.low & !1 && is_looked_for(hash)
    };
    is_any_in(view, path.leaf, |entry| casefold::has_ignored(entry.name) && !is_here(entry.name))
}

fn is_any_in(
    view: &View<'_>,
    at: FileBlock,
    is_stray: impl Fn(&DirEntry<'_>) -> bool,
) -> Result<bool> {
    let buffer = view.leaf(at)?;
    let bytes = buffer.read();
    for entry in leaf::records(&bytes, view.form()).live() {
        if is_stray(&entry.map_err(|kind| view.corrupt(at, kind))?) {
            return Ok(true);
        }
    }
    Ok(false)
}
