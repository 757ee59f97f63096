//! Renames: a name that only the first side has and one that only the second has, of the same
//! inode with the same content.
//!
//! A file in a directory that was renamed is told only if something else of it differs.

use std::collections::{HashMap, HashSet};

use uext4::{FileKind, Ino};

use super::content::{self, Buffers, Plan};
use super::entry::{Aspect, Entry, Id, What};
use super::inode::{self, Found};
use super::walk::Findings;
use super::{Settings, Side};
use crate::failure::Why;

/// Replaces pairs of entries by renames.
pub(super) fn pair(sides: &[Side; 2], settings: Settings, found: &mut Findings) {
    // From the top, so that the directory of a name is known before it.
    found.entries.sort_by(|one, other| one.order().cmp(&other.order()));
    let mut gone: HashMap<Ino, Vec<usize>> = HashMap::new();
    for (index, entry) in found.entries.iter().enumerate().rev() {
        if let (What::Removed, Some(id)) = (&entry.what, entry.id) {
            gone.entry(id.ino).or_default().push(index);
        }
    }
    let mut buffers = Buffers::new();
    let mut renamed: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    let mut drop: HashSet<usize> = HashSet::new();
    for index in 0..found.entries.len() {
        let (What::Added, Some(id)) = (&found.entries[index].what, found.entries[index].id) else {
            continue;
        };
        let Some(candidates) = gone.get_mut(&id.ino) else { continue };
        let is_match = |at: &usize| is_candidate(&found.entries[*at], &found.entries[index], id);
        let Some(place) = candidates.iter().rposition(is_match) else { continue };
        let from = candidates[place];
        let same = match look(sides, settings, id.ino, &mut buffers) {
            Ok(aspects) => aspects,
            Err((side, why)) => {
                let entry = if side == 0 { from } else { index };
                let line = sides[side].trouble(&found.entries[entry].below, why);
                found.troubles.push(line);
                continue;
            }
        };
        let Some(aspects) = same else { continue };
        candidates.remove(place);
        drop.insert(from);
        let from = found.entries[from].below.clone();
        let entry = &mut found.entries[index];
        let is_implied = is_below(&renamed, &from, &entry.below);
        if entry.kind == FileKind::Directory {
            renamed.insert(from.clone(), entry.below.clone());
        }
        if is_implied && aspects.is_empty() {
            drop.insert(index);
        }
        let what = if is_implied { What::Changed } else { What::Renamed(from) };
        (entry.what, entry.aspects) = (what, aspects);
    }
    let entries = std::mem::take(&mut found.entries).into_iter().enumerate();
    found.entries = entries.filter(|(at, _)| !drop.contains(at)).map(|(_, it)| it).collect();
}

fn is_candidate(removed: &Entry, added: &Entry, id: Id) -> bool {
    removed.kind == added.kind && removed.id.is_some_and(|was| was.is_same(&id))
}

/// Whether the directory of `from` was renamed to that of `to`, and the name stayed.
fn is_below(renamed: &HashMap<Vec<u8>, Vec<u8>>, from: &[u8], to: &[u8]) -> bool {
    let cut = |path: &[u8]| {
        path.iter().rposition(|byte| *byte == b'/').map(|at| path.split_at(at).0.len())
    };
    let (Some(at_from), Some(at_to)) = (cut(from), cut(to)) else { return false };
    from[at_from..] == to[at_to..]
        && renamed.get(&from[..at_from]).is_some_and(|is| *is == to[..at_to])
}

/// What differs of an inode between the sides; `None` if its content does.
fn look(
    sides: &[Side; 2],
    settings: Settings,
    ino: Ino,
    buffers: &mut Buffers,
) -> Result<Option<Vec<Aspect>>, (usize, Why)> {
    let get = |side: usize| -> Result<Found, (usize, Why)> {
        let volume = &sides[side].volume;
        let inode = volume.inode(ino).map_err(|error| (side, error.into()))?;
        Ok(Found::new(volume, inode))
    };
    let pair = [&get(0)?, &get(1)?];
    let aspects = inode::aspects(sides, settings, pair)?;
    let is_other = |aspect: &Aspect| {
        matches!(
            aspect,
            Aspect::Kind(..) | Aspect::Size(..) | Aspect::Target(..) | Aspect::Device(..)
        )
    };
    if aspects.iter().any(is_other) {
        return Ok(None);
    }
    if pair[0].attr.kind == FileKind::Regular {
        let is_same = match content::plan(sides, pair, settings.trust_times)? {
            Plan::Same => true,
            Plan::Blocks(_) | Plan::Read => {
                content::first_difference(sides, pair, buffers)?.is_none()
            }
        };
        if !is_same {
            return Ok(None);
        }
    }
    Ok(Some(aspects))
}
