//! What one thread did, and whether a volume shows it.

use super::{Floor, Rules, ThreadHistory};
use crate::content::{self, Content, Effect};
use crate::namespace::{NamedNode, Namespace};
use crate::operation::{How, Id, Kind, Operation, Place, THREAD_SHIFT, thread_of};
use crate::view::{Seen, View};
use std::collections::BTreeMap;

impl ThreadHistory {
    /// Number of leading entries that had returned when the clock was at `time`.
    pub(super) fn returned_before(&self, time: u64) -> usize {
        self.entries.partition_point(|entry| entry.ended.is_some_and(|ended| ended < time))
    }

    /// The entry after the last one before `end` that fits.
    pub(super) fn floor_of(&self, end: usize, fits: impl Fn(&Operation) -> bool) -> usize {
        self.entries[..end].iter().rposition(|entry| fits(&entry.operation)).map_or(0, |at| at + 1)
    }

    pub(super) fn check(&self, floor: &Floor, view: &View, rules: Rules) -> Vec<String> {
        let found: BTreeMap<&Place, &Seen> = view
            .entries
            .iter()
            .filter(|(place, _)| thread_of(place) == Some(self.thread))
            .filter_map(|(place, ino)| Some((place, view.nodes.get(ino)?)))
            .collect();
        let mut faults = Vec::new();
        let mut floor = floor.clone();
        match self.check_names(floor.names, &found) {
            // Names and data go through one journal, in the order of the operations.
            Ok(count) if rules.whole_writes.is_some() => floor.all = floor.all.max(count),
            Ok(count) if rules.renames_carry_data => self.raise_renamed(count, &mut floor),
            Ok(_) => {}
            Err(differences) => faults = differences,
        }
        let files: BTreeMap<Id, &Seen> = found
            .values()
            .filter(|seen| seen.kind == Some(Kind::File))
            .map(|seen| (seen.uid, *seen))
            .collect();
        let pasts = self.pasts(&floor);
        for (id, seen) in files {
            let result = match pasts.get(&id) {
                Some((synced, later)) => match rules.whole_writes {
                    Some(whole_max) => {
                        content::check_moment(id, synced, later, &seen.content, whole_max)
                    }
                    None => content::check(id, synced, later, &seen.content, rules),
                },
                // Not identified yet: the load writes only afterwards.
                None if id >> THREAD_SHIFT == 0 && seen.content.size == 0 => Ok(()),
                None => Err("nobody made this file".into()),
            };
            if let Err(error) = result {
                faults.push(format!("thread {} file {id:#x}: {error}", self.thread));
            }
        }
        faults
    }

    /// A rename over a file that is there has brought the data written before it.
    fn raise_renamed(&self, count: usize, floor: &mut Floor) {
        for (index, entry) in self.entries[..count].iter().enumerate() {
            if let Operation::Rename { id, how, other: Some(_), .. } = entry.operation
                && how != How::Exchange
            {
                let file = floor.files.entry(id).or_default();
                *file = index.max(*file);
            }
        }
    }

    /// Finds the least number of operations, from `floor`, after which the names are those found.
    fn check_names(
        &self,
        floor: usize,
        found: &BTreeMap<&Place, &Seen>,
    ) -> Result<usize, Vec<String>> {
        let mut names = Namespace::new(self.thread, self.identifies);
        for count in 0..=self.entries.len() {
            if count > 0 {
                names.apply(&self.entries[count - 1].operation);
            }
            if self.may_differ(floor, count)
                && names.count() == found.len()
                && compare(&names, found, 1).is_empty()
            {
                return Ok(count);
            }
        }
        Err(self.nearest(floor, found))
    }

    /// Whether the names after `count` operations are worth a look.
    fn may_differ(&self, floor: usize, count: usize) -> bool {
        count == floor || count > floor && !self.entries[count - 1].operation.is_sync()
    }

    /// The moment whose names differ least, and how.
    fn nearest(&self, floor: usize, found: &BTreeMap<&Place, &Seen>) -> Vec<String> {
        let mut names = Namespace::new(self.thread, self.identifies);
        let mut best: Option<(usize, Vec<String>)> = None;
        for count in 0..=self.entries.len() {
            if count > 0 {
                names.apply(&self.entries[count - 1].operation);
            }
            if !self.may_differ(floor, count) {
                continue;
            }
            let differences = compare(&names, found, usize::MAX);
            if best.as_ref().is_none_or(|(_, least)| differences.len() < least.len()) {
                best = Some((count, differences));
            }
        }
        let (count, mut differences) = best.unwrap_or_default();
        let all = differences.len();
        differences.truncate(5);
        let (thread, end) = (self.thread, self.entries.len());
        let line = format!(
            "thread {thread}: names are those of no moment from operation {floor} to {end}; \
             nearest is {count} with {all} differences"
        );
        differences.insert(0, line);
        differences
    }

    /// Of each file: its content at its floor, and the effects since.
    fn pasts(&self, floor: &Floor) -> BTreeMap<Id, (Content, Vec<Effect>)> {
        let mut pasts: BTreeMap<Id, (Content, Vec<Effect>)> = BTreeMap::new();
        let mut sizes: BTreeMap<Id, u64> = BTreeMap::new();
        for (index, entry) in self.entries.iter().enumerate() {
            if let Operation::Create { id, kind: Kind::File, .. }
            | Operation::CreateUnlinked { id, .. } = entry.operation
            {
                pasts.insert(id, Default::default());
            }
            let Some(id) = entry.operation.content_of() else { continue };
            let size = sizes.entry(id).or_default();
            let Some(effect) = Effect::of(&entry.operation, *size) else { continue };
            *size = effect.size;
            let durable = floor.all.max(floor.files.get(&id).copied().unwrap_or(0));
            let (synced, later) = pasts.entry(id).or_default();
            if index < durable {
                synced.apply(&effect);
            } else {
                later.push(effect);
            }
        }
        pasts
    }
}

/// Differences between the names at one moment and those found, at least `most` of them.
fn compare(names: &Namespace, found: &BTreeMap<&Place, &Seen>, most: usize) -> Vec<String> {
    let mut differences = Vec::new();
    for (place, id) in names.entries() {
        if differences.len() >= most {
            return differences;
        }
        match (found.get(place), names.node(id)) {
            (None, _) => differences.push(format!("{place:?} ({id:#x}) is missing")),
            (Some(seen), Some(node)) => {
                if let Some(what) = compare_node(id, node, seen) {
                    differences.push(format!("{place:?} ({id:#x}) {what}"));
                }
            }
            (Some(_), None) => {}
        }
    }
    for (place, seen) in found {
        if names.at(place).is_none() {
            differences.push(format!("{place:?} ({:#x}) is there", seen.uid));
        }
    }
    differences
}

fn compare_node(id: Id, node: &NamedNode, seen: &Seen) -> Option<String> {
    // Until it is identified a node has the owner and the group of its maker.
    let is_own = if node.identified { seen.uid == id } else { seen.uid >> THREAD_SHIFT == 0 };
    if !is_own {
        return Some(format!("is {:#x}", seen.uid));
    }
    if seen.kind != Some(node.kind) {
        return Some(format!("is a {:?}, not a {:?}", seen.kind, node.kind));
    }
    // The mode of a symbolic link is not the load's.
    if seen.mode != node.mode && node.kind != Kind::Symlink {
        return Some(format!("has mode {:o}, not {:o}", seen.mode, node.mode));
    }
    if node.identified && seen.gid != node.gid {
        return Some(format!("has group {}, not {}", seen.gid, node.gid));
    }
    if seen.flags != node.flags {
        return Some(format!("has flags {:#x}, not {:#x}", seen.flags, node.flags));
    }
    if seen.target != node.target {
        return Some("has another target".into());
    }
    if seen.xattrs != node.xattrs {
        let shown =
            |(name, value): (&Vec<u8>, &Vec<u8>)| (name.escape_ascii().to_string(), value.len());
        let found: Vec<_> = seen.xattrs.iter().map(shown).collect();
        let wanted: Vec<_> = node.xattrs.iter().map(shown).collect();
        return Some(format!("has attributes {found:?}, not {wanted:?}"));
    }
    if let Some(mtime) = node.mtime
        && seen.mtime != mtime
    {
        return Some(format!("has mtime {:?}, not {mtime:?}", seen.mtime));
    }
    if node.kind != Kind::Directory && seen.links as usize != node.places.len() {
        return Some(format!("has {} links, not {}", seen.links, node.places.len()));
    }
    None
}
