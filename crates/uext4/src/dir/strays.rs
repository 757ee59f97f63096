//! Names of directories that fold case that are not where their hash says.
//!
//! What: some kernels of about Linux 6.12 did not leave ignored code points out when they hashed
//! names. Later ones look such names up one by one, and so does this engine. But it looks for them
//! once while a directory is in memory, and not each time that a name is missing.
//! Invariants: no change makes a name a stray one: new names are added by their hash, and splits
//! move stray names by the hash that they count as ([`DirHasher::hash_within`]).

use super::hash_path::HashPath;
use super::leaf;
use super::view::{Shape, View};
use crate::error::Result;
use uext4_ondisk::casefold;
use uext4_ondisk::hash::DirHasher;

/// Whether names of the directory may be found in other leaves than their hash says.
pub(super) fn may_be_there(view: &View<'_>) -> Result<bool> {
    let may_have = view.folding.is_some_and(|encoding| !encoding.no_compat_fallback);
    if !may_have || view.shape != Shape::Indexed {
        return Ok(false);
    }
    if let Some(known) = view.inode.has_stray_names() {
        return Ok(known);
    }
    let found = are_there(view)?;
    view.inode.note_stray_names(found);
    Ok(found)
}

fn are_there(view: &View<'_>) -> Result<bool> {
    let mut path = HashPath::to_hash(view, 0)?;
    loop {
        if is_in_leaf(view, &path)? {
            return Ok(true);
        }
        if !path.advance()? {
            return Ok(false);
        }
    }
}

fn is_in_leaf(view: &View<'_>, path: &HashPath<'_>) -> Result<bool> {
    let next = path.next_low()?;
    let is_looked_for = |hash: u32| match next {
        // The lowest bit says that names with this hash begin here.
        Some(next) => hash < next & !1 || hash == next & !1 && next & 1 == 1,
        None => true,
    };
    let is_here = |hasher: &DirHasher, name: &[u8]| {
        let (hash, _) = hasher.hash(name);
        hash >= path.low & !1 && is_looked_for(hash)
    };
    let buffer = view.leaf(path.leaf)?;
    let bytes = buffer.read();
    for entry in leaf::records(&bytes, view.has_csum()).live() {
        let entry = entry.map_err(|kind| view.corrupt(path.leaf, kind))?;
        if casefold::has_ignored(entry.name) && !is_here(&path.hasher, entry.name) {
            return Ok(true);
        }
    }
    Ok(false)
}
