//! Which names are one file, on each side.
//!
//! A name is compared by the first name of its file, among the names that both sides have: if that
//! is another one, a link was made or cut. So a file that was split in two is told once, at the
//! name that left.

use std::collections::HashMap;

use uext4::{FileKind, Ino};

use super::entry::{Aspect, Entry, What};
use super::walk::Findings;

/// Adds the links that differ to the entries.
pub(super) fn compare(found: &mut Findings) {
    found.linked.sort_by(|one, other| one.below.cmp(&other.below));
    let first = [leaders(found, 0), leaders(found, 1)];
    let mut differ: HashMap<Vec<u8>, Aspect> = HashMap::new();
    for name in &found.linked {
        let of = |side: usize| {
            let leader = first[side].get(&name.inodes[side]?)?;
            Some(leader.clone()).filter(|leader| *leader != name.below)
        };
        let links = (of(0), of(1));
        if links.0 != links.1 {
            differ.insert(name.below.clone(), Aspect::Link(links.0, links.1));
        }
    }
    for entry in &mut found.entries {
        if let Some(link) = differ.remove(&entry.below) {
            entry.aspects.push(link);
        }
    }
    for (below, link) in differ {
        let (what, kind, aspects) = (What::Changed, FileKind::Regular, vec![link]);
        found.entries.push(Entry { below, what, kind, id: None, aspects });
    }
}

/// The first name of each file, of those that both sides have if there are any.
fn leaders(found: &Findings, side: usize) -> HashMap<Ino, Vec<u8>> {
    let mut first = HashMap::new();
    for is_common in [true, false] {
        for name in &found.linked {
            let is_both = name.inodes.iter().all(Option::is_some);
            if let (true, Some(ino)) = (is_both == is_common, name.inodes[side]) {
                first.entry(ino).or_insert_with(|| name.below.clone());
            }
        }
    }
    first
}
