//! Syncs of different inodes that sweep together.
//!
//! What: a few sweeps for syncs run at a time, one for each processor. Who comes while all of them
//! do stands in line; when one ends, the first in line sweeps the inodes of all who stand there as
//! one group: their data goes to the device in one submission, their mappings share handles, and
//! each of them sleeps once. A sync that meets no other goes straight through.
//! Invariants: the group that serves an inode was taken after its caller came, so it finds all
//! that was dirty then. An inode that the group could not take, or a group that failed, serves
//! nobody: each sweeps for itself, and meets its own error. A leader that panics lets the others
//! go.
//! Locking: the caller holds no lock and no handle. The line is a leaf; each who stands in it
//! sleeps on a lock of its own.

use super::Files;
use crate::error::Result;
use crate::inode::InodeRef;
use crate::stats::WaitFor;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most inodes of a group.
const GROUP_MAX: usize = 1024;

/// The line, and how many sweep.
#[derive(Debug)]
pub(super) struct Convoy {
    line: Mutex<Line>,
    /// Most sweeps at a time.
    lanes: usize,
}

#[derive(Debug, Default)]
struct Line {
    running: usize,
    waiting: VecDeque<Arc<Ticket>>,
}

#[derive(Debug)]
struct Ticket {
    inode: InodeRef,
    call: Mutex<Option<Call>>,
    wake: Condvar,
}

/// What one who stands in line is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Sweep all who stand in line.
    Lead,
    /// Your inode has been swept.
    Served,
    /// Sweep for yourself.
    Alone,
}

/// A lane that the caller has. Dropping it passes it on.
struct Lane<'a> {
    convoy: &'a Convoy,
    /// Who is to be told what came of it.
    followers: Vec<Arc<Ticket>>,
}

impl Default for Convoy {
    fn default() -> Self {
        let lanes = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
        Self { line: Mutex::new(LockRank::Leaf, Line::default()), lanes }
    }
}

impl Convoy {
    /// A lane, if one is free; else a place in line.
    fn enter(&self, inode: &InodeRef) -> std::result::Result<Lane<'_>, Arc<Ticket>> {
        let mut line = self.line.lock();
        if line.running < self.lanes {
            line.running += 1;
            return Ok(Lane { convoy: self, followers: Vec::new() });
        }
        let ticket = Arc::new(Ticket {
            inode: inode.clone(),
            call: Mutex::new(LockRank::Leaf, None),
            wake: Condvar::new(),
        });
        line.waiting.push_back(Arc::clone(&ticket));
        Err(ticket)
    }
}

impl Ticket {
    fn wait(&self) -> Call {
        let mut call = self.call.lock();
        loop {
            if let Some(call) = *call {
                return call;
            }
            self.wake.wait(&mut call);
        }
    }

    fn tell(&self, call: Call) {
        *self.call.lock() = Some(call);
        self.wake.notify_one();
    }
}

impl<'a> Lane<'a> {
    /// The lane of one who was called to lead, with those who stand in line behind.
    fn of_leader(convoy: &'a Convoy) -> Self {
        let mut line = convoy.line.lock();
        let count = line.waiting.len().min(GROUP_MAX - 1);
        Self { convoy, followers: line.waiting.drain(..count).collect() }
    }

    /// Tells a follower; others are told when the lane ends.
    fn served(&mut self, alone: &[&InodeRef]) {
        for ticket in self.followers.drain(..) {
            let is_alone = alone.iter().any(|inode| inode.ino() == ticket.inode.ino());
            ticket.tell(if is_alone { Call::Alone } else { Call::Served });
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let next = {
            let mut line = self.convoy.line.lock();
            let next = line.waiting.pop_front();
            line.running -= usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            next.tell(Call::Lead);
        }
        self.followers.drain(..).for_each(|ticket| ticket.tell(Call::Alone));
    }
}

impl Files {
    /// Writes back everything of an inode that is dirty now, with those who sync others meanwhile.
    ///
    /// # Errors
    /// As [`Files::sweep`].
    pub(super) fn sweep_in_convoy(&self, inode: &InodeRef) -> Result<()> {
        let ticket = match self.convoy.enter(inode) {
            Ok(_lane) => return self.sweep(inode),
            Err(ticket) => ticket,
        };
        let call = {
            let _wait = self.space.journal().waits().begin(WaitFor::Sweep);
            ticket.wait()
        };
        match call {
            Call::Served => Ok(()),
            Call::Alone => self.sweep(inode),
            Call::Lead => {
                let mut lane = Lane::of_leader(&self.convoy);
                let group: Vec<InodeRef> = std::iter::once(inode)
                    .chain(lane.followers.iter().map(|ticket| &ticket.inode))
                    .cloned()
                    .collect();
                let alone = self.sweep_those_free(&group);
                lane.served(&alone);
                let is_alone = alone.iter().any(|other| other.ino() == inode.ino());
                drop(lane);
                if is_alone { self.sweep(inode) } else { Ok(()) }
            }
        }
    }
}
