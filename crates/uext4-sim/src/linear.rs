//! Linearizability of names that several threads change.
//!
//! # What
//! Each call has the moments of its begin and its return, and its result. [`is_linearizable`]
//! searches for an order of all calls that respects these moments (a call that returned before
//! another began stands before it), in which a plain map of names gives every call the result that
//! it had, and ends with the names found (the search of Wing and Gong, with a memory of dead ends).

use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, HashSet};
use uext4::{FileKind, InodeRef, NewInode, Owner, RenameMode, Volume};

/// Number of a file, kept as its owner.
pub type File = u32;
/// The names of one directory.
pub type Names = BTreeMap<u8, File>;

/// A call on names of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are names, and files that the caller holds open
pub enum Action {
    /// open(2) with `O_CREAT` and `O_EXCL`.
    Create { name: u8, file: File },
    /// unlink(2).
    Unlink { name: u8 },
    /// rename(2).
    Rename { from: u8, to: u8 },
    /// linkat(2) of an open file.
    Link { file: File, to: u8 },
    /// stat(2).
    Lookup { name: u8 },
}

/// What a call returned: a file for a look-up, an errno.
pub type Outcome = Result<Option<File>, i32>;

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What was asked.
    pub action: Action,
    /// The clock before the call.
    pub begin: u64,
    /// The clock after its return.
    pub end: u64,
    /// What it returned.
    pub outcome: Outcome,
}

const NOT_FOUND: i32 = 2;
const EXISTS: i32 = 17;

/// The names after a call, if it may have had that outcome.
fn after(names: &Names, action: Action, outcome: Outcome) -> Option<Names> {
    let mut next = names.clone();
    let expected: Outcome = match action {
        Action::Create { name, file } => match names.get(&name) {
            Some(_) => Err(EXISTS),
            None => {
                next.insert(name, file);
                Ok(None)
            }
        },
        Action::Unlink { name } => next.remove(&name).map(|_| None).ok_or(NOT_FOUND),
        Action::Rename { from, to } => match names.get(&from) {
            None => Err(NOT_FOUND),
            // Two names of one file: nothing happens.
            Some(file) if names.get(&to) == Some(file) => Ok(None),
            Some(&file) => {
                next.remove(&from);
                next.insert(to, file);
                Ok(None)
            }
        },
        Action::Link { file, to } => {
            let is_gone = !names.values().any(|&other| other == file);
            let is_taken = names.contains_key(&to);
            // Where both stand in the way, either may be told.
            if is_gone && outcome == Err(NOT_FOUND) || is_taken && outcome == Err(EXISTS) {
                return Some(next);
            }
            if is_gone || is_taken {
                return None;
            }
            next.insert(to, file);
            Ok(None)
        }
        Action::Lookup { name } => names.get(&name).map(|&file| Some(file)).ok_or(NOT_FOUND),
    };
    (expected == outcome).then_some(next)
}

/// Whether some order of at most 64 calls explains their outcomes and the names at the end.
///
/// # Panics
/// With more calls.
#[must_use]
pub fn is_linearizable(begin: &Names, calls: &[Call], end: &Names) -> bool {
    assert!(calls.len() <= 64, "one bit for each call");
    let mut dead = HashSet::new();
    search(calls, 0, begin, end, &mut dead)
}

fn search(
    calls: &[Call],
    done: u64,
    names: &Names,
    end: &Names,
    dead: &mut HashSet<(u64, Names)>,
) -> bool {
    let open = |at: usize| done >> at & 1 == 0;
    if (0..calls.len()).all(|at| !open(at)) {
        return names == end;
    }
    if !dead.insert((done, names.clone())) {
        return false;
    }
    // Nobody may come before one who had returned by then.
    let returned =
        (0..calls.len()).filter(|&at| open(at)).map(|at| calls[at].end).min().unwrap_or(u64::MAX);
    (0..calls.len()).filter(|&at| open(at) && calls[at].begin <= returned).any(|at| {
        after(names, calls[at].action, calls[at].outcome)
            .is_some_and(|next| search(calls, done | 1 << at, &next, end, dead))
    })
}

/// Names that the calls of a [`Caller`] are about.
const NAMES: u8 = 4;

fn name(number: u8) -> Vec<u8> {
    format!("name{number}").into_bytes()
}

fn new(file: u32) -> NewInode {
    let owner = Owner { uid: file, gid: 0 };
    NewInode { kind: FileKind::Regular, mode: 0o644, owner, rdev: Default::default() }
}

/// The names that there are.
#[must_use]
pub fn found(volume: &Volume, dir: &InodeRef) -> Names {
    let file = |number| volume.lookup(dir, &name(number)).map(|inode| volume.attr(&inode).uid);
    (0..NAMES).filter_map(|number| Some((number, file(number).ok()?))).collect()
}

/// A thread that calls on names of one directory.
#[derive(Debug)]
pub struct Caller<'a> {
    volume: &'a Volume,
    dir: InodeRef,
    /// Files that this thread has open.
    files: Vec<(u32, InodeRef)>,
}

impl<'a> Caller<'a> {
    /// One with no open files yet.
    #[must_use]
    pub fn new(volume: &'a Volume, dir: InodeRef) -> Caller<'a> {
        Caller { volume, dir, files: Vec::new() }
    }

    /// The next call; `fresh` is a file that nobody has made yet.
    pub fn choose(&self, rng: &mut StdRng, fresh: u32) -> Action {
        let (name, to) = (rng.random_range(0..NAMES), rng.random_range(0..NAMES));
        match rng.random_range(0..10) {
            0..=2 => Action::Create { name, file: fresh },
            3 | 4 => Action::Unlink { name },
            5 | 6 => Action::Rename { from: name, to },
            7 if !self.files.is_empty() => {
                Action::Link { file: self.files[rng.random_range(0..self.files.len())].0, to }
            }
            _ => Action::Lookup { name },
        }
    }

    /// Makes the call.
    pub fn perform(&mut self, action: Action) -> Outcome {
        let (volume, dir) = (self.volume, &self.dir);
        let done: uext4::Result<Option<u32>> = match action {
            Action::Create { name: n, file } => {
                volume.create(dir, &name(n), &new(file)).map(|inode| {
                    self.files.push((file, inode));
                    None
                })
            }
            Action::Unlink { name: n } => volume.unlink(dir, &name(n)).map(|()| None),
            Action::Rename { from, to } => {
                let mode = RenameMode::Replace;
                volume.rename(dir, &name(from), dir, &name(to), mode).map(|()| None)
            }
            Action::Link { file, to } => {
                let held = self.files.iter().find(|(other, _)| *other == file).expect("open");
                volume.link(&held.1, dir, &name(to)).map(|()| None)
            }
            Action::Lookup { name: n } => {
                volume.lookup(dir, &name(n)).map(|inode| Some(volume.attr(&inode).uid))
            }
        };
        done.map_err(|error| error.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(action: Action, begin: u64, end: u64, outcome: Outcome) -> Call {
        Call { action, begin, end, outcome }
    }

    #[test]
    fn overlapping_calls_may_stand_in_either_order() {
        let create = Action::Create { name: 1, file: 7 };
        let calls = [
            call(create, 0, 10, Ok(None)),
            call(Action::Unlink { name: 1 }, 1, 9, Ok(None)),
            call(Action::Lookup { name: 1 }, 2, 8, Ok(Some(7))),
        ];
        assert!(is_linearizable(&Names::new(), &calls, &Names::new()));
        assert!(!is_linearizable(&Names::new(), &calls, &Names::from([(1, 7)])));
    }

    /// Histories that no order explains.
    #[test]
    fn impossible_histories_are_refused() {
        let rename = Action::Rename { from: 1, to: 2 };
        let begin = Names::from([(1, 7)]);
        // Both names are missing at one moment of an atomic rename.
        let torn = [
            call(rename, 0, 10, Ok(None)),
            call(Action::Lookup { name: 2 }, 1, 2, Err(NOT_FOUND)),
            call(Action::Lookup { name: 1 }, 3, 4, Err(NOT_FOUND)),
            call(Action::Lookup { name: 2 }, 5, 6, Err(NOT_FOUND)),
        ];
        assert!(!is_linearizable(&begin, &torn, &Names::from([(2, 7)])));
        // Two creations of one name both succeed.
        let twice = [
            call(Action::Create { name: 3, file: 8 }, 0, 5, Ok(None)),
            call(Action::Create { name: 3, file: 9 }, 1, 6, Ok(None)),
        ];
        assert!(!is_linearizable(&Names::new(), &twice, &Names::from([(3, 9)])));
        // A call that had returned is not seen.
        let late = [
            call(Action::Unlink { name: 1 }, 0, 1, Ok(None)),
            call(Action::Lookup { name: 1 }, 2, 3, Ok(Some(7))),
        ];
        assert!(!is_linearizable(&begin, &late, &Names::new()));
    }
}
