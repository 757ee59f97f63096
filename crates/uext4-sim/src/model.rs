//! What must be found after a crash.
//!
//! # What
//! A [`History`] is what each thread did, in its order, with a clock that all threads share. A sync
//! that had returned before the crash moves *floors*: everything of the thread before a floor is
//! durable. [`History::check`] compares a recovered volume with them.
//!
//! - **Names and attributes** (everything but content and size): each operation is one transaction
//!   handle, and handles of one thread follow each other. So a recovered volume shows, for each
//!   thread, exactly the state after its first *n* operations, for one *n* not below the floor.
//! - **Content**: each byte is what it was at the file's floor or what any later operation made of
//!   it (see [`crate::content`]). Where data is journaled, it is the content of one moment.
//!
//! # Floors
//! | sync | durable |
//! |---|---|
//! | fsync of a file | its content; names and attributes up to the last operation on that inode |
//! | fdatasync of a file | its content; names up to its creation; not the owner set after it |
//! | fsync of a directory | names up to the last operation on it or in it |
//! | sync of the volume | everything of every thread that had returned before the sync began |
//!
//! # Not covered
//! Access and change times; modification times other than those set; the order of content changes
//! of different files or ranges without a sync between them (ext4 promises none).

mod thread;

use crate::operation::{Id, Operation, ROOT, thread_of};
use crate::view::View;
use std::collections::{BTreeMap, BTreeSet};

/// One operation of a thread.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What was done.
    pub operation: Operation,
    /// The clock before it began.
    pub started: u64,
    /// The clock after it returned; `None`: it never did, and may or may not have happened.
    pub ended: Option<u64>,
}

/// What one thread did.
#[derive(Clone, Debug)]
pub struct ThreadHistory {
    /// The thread, from 1.
    pub thread: u32,
    /// Whether new inodes got their owner at once.
    pub identifies: bool,
    /// Operations in order.
    pub entries: Vec<Entry>,
}

/// What all threads did.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// One each.
    pub threads: Vec<ThreadHistory>,
    /// What the file system promises beyond the least.
    pub rules: Rules,
}

/// What one file system promises after a crash and another does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// A rename over a file writes the data of the moved one first (`auto_da_alloc`).
    pub renames_carry_data: bool,
    /// A size is one that the file had, or a multiple of a block. Images of the kernel show others.
    pub sizes_were_had: bool,
    /// Mappings may be durable before their data (`journal_async_commit`): what was written since
    /// the last sync may show anything. Only uext4's own recovery is judged then, for others take
    /// a torn transaction for a damaged log.
    pub data_may_be_late: bool,
    /// Data is journaled (`data=journal`): content is that of one moment of the file, no earlier
    /// than the names found beside it; a write of at most so many bytes is one handle, whatever
    /// the free space looks like.
    pub whole_writes: Option<u64>,
}

impl Rules {
    /// Of a volume that has not crashed.
    pub const EXACT: Self = Self {
        renames_carry_data: true,
        sizes_were_had: true,
        data_may_be_late: false,
        whole_writes: None,
    };
}

/// A sync that had returned: thread and place in its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The thread.
    pub thread: u32,
    /// Index of the sync among its entries.
    pub index: usize,
}

impl Mark {
    /// As a number for a recording.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.thread) << 40 | self.index as u64
    }

    /// From a number of a recording.
    #[must_use]
    pub fn from_number(number: u64) -> Mark {
        let index = number & ((1 << 40) - 1);
        Mark { thread: (number >> 40) as u32, index: index as usize }
    }
}

/// How much of one thread is durable.
#[derive(Clone, Debug, Default)]
struct Floor {
    /// Entries whose effect on names and attributes is durable.
    names: usize,
    /// Entries all of whose effects are durable.
    all: usize,
    /// The same for the content of one file.
    files: BTreeMap<Id, usize>,
}

impl History {
    /// Syncs that had returned before the clock reached `time`.
    #[must_use]
    pub fn syncs_before(&self, time: u64) -> Vec<Mark> {
        let mut marks = Vec::new();
        for history in &self.threads {
            for (index, entry) in history.entries.iter().enumerate() {
                let returned = entry.ended.is_some_and(|ended| ended < time);
                if entry.operation.is_sync() && returned {
                    marks.push(Mark { thread: history.thread, index });
                }
            }
        }
        marks
    }

    /// As far as it had come when the clock reached `time`.
    #[must_use]
    pub fn until(&self, time: u64) -> History {
        let threads = self.threads.iter().map(|history| {
            let begun = history.entries.iter().take_while(|entry| entry.started < time);
            let at_time = |entry: &Entry| Entry {
                ended: entry.ended.filter(|ended| *ended < time),
                ..entry.clone()
            };
            ThreadHistory { entries: begun.map(at_time).collect(), ..*history }
        });
        History { threads: threads.collect(), rules: self.rules }
    }

    /// Number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.threads.iter().map(|history| history.entries.len()).sum()
    }

    /// Whether nothing was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Compares a recovered volume with what must and may be there.
    #[must_use]
    pub fn check(&self, marks: &[Mark], view: &View) -> Vec<String> {
        let floors = self.floors(marks);
        let mut faults = self.check_strangers(view);
        for (history, floor) in self.threads.iter().zip(&floors) {
            faults.extend(history.check(floor, view, self.rules));
        }
        faults
    }

    fn floors(&self, marks: &[Mark]) -> Vec<Floor> {
        let mut floors = vec![Floor::default(); self.threads.len()];
        for mark in marks {
            let Some(at) = self.threads.iter().position(|h| h.thread == mark.thread) else {
                continue;
            };
            let history = &self.threads[at];
            let entry = &history.entries[mark.index];
            match &entry.operation {
                Operation::SyncVolume => {
                    for (floor, history) in floors.iter_mut().zip(&self.threads) {
                        floor.all = floor.all.max(history.returned_before(entry.started));
                    }
                }
                Operation::Sync { id, data_only } => {
                    let names = history.floor_of(mark.index, |operation| {
                        let made = matches!(
                            operation,
                            Operation::Create { .. } | Operation::CreateUnlinked { .. }
                        );
                        let counts = !data_only || made;
                        counts && operation.touches(*id)
                    });
                    floors[at].names = floors[at].names.max(names);
                    let file = floors[at].files.entry(*id).or_default();
                    *file = mark.index.max(*file);
                }
                Operation::SyncDirectory { id } => {
                    let names = history.floor_of(mark.index, |o| o.touches(*id) || o.is_in(*id));
                    floors[at].names = floors[at].names.max(names);
                }
                _ => {}
            }
        }
        for floor in &mut floors {
            floor.names = floor.names.max(floor.all);
        }
        floors
    }

    /// Names that belong to no thread, directories that nobody made.
    fn check_strangers(&self, view: &View) -> Vec<String> {
        let known: BTreeSet<u32> = self.threads.iter().map(|history| history.thread).collect();
        view.entries
            .keys()
            .filter(|place| place.dir != ROOT)
            .filter(|place| thread_of(place).is_none_or(|thread| !known.contains(&thread)))
            .map(|place| format!("{place:?} is a name that nobody made"))
            .collect()
    }
}
