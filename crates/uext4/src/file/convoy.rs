//! Syncs of different inodes that sweep together.
//!
//! What: a few sweeps for syncs run at a time, one more than processors. Who comes while all of
//! them do stands in line; when one ends, the first in line sweeps the inodes of all who stand
//! there as one group: their data goes to the device in one submission, their mappings share
//! handles. It passes the lane on, waits for the commit and the flush that they all need, and only
//! then wakes them: each of them sleeps once. A sync that meets no other goes straight through.
//! Invariants: the group that serves an inode was taken after its caller came, so it finds all
//! that was dirty then. An inode that the group could not take, or a group that failed, serves
//! nobody: each sweeps for itself, and meets its own error. A leader that panics, or whose wait
//! fails, lets the others go on for themselves.
//! Locking: the caller holds no lock and no handle. The line is a leaf; each who stands in it
//! sleeps on a lock of its own.

use super::Files;
use super::sweep::Swept;
use crate::error::Result;
use crate::inode::{InodeRef, Lead};
use crate::plant::{self, Fault};
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
    data_only: bool,
    /// Number of the sweep of the inode that its caller leads.
    sweep: u64,
    call: Mutex<Option<Call>>,
    wake: Condvar,
}

/// What one who stands in line is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// Sweep all who stand in line.
    Lead,
    /// Your inode has been brought as far as this.
    Served(Swept),
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
        // A sweep waits for the device half of its time.
        let lanes = crate::sync::thread::processors() + 1;
        Self { line: Mutex::new(LockRank::Leaf, Line::default()), lanes }
    }
}

impl Convoy {
    /// A lane, if one is free; else a place in line.
    fn enter(
        &self,
        inode: &InodeRef,
        data_only: bool,
        sweep: u64,
    ) -> std::result::Result<Lane<'_>, Arc<Ticket>> {
        let mut line = self.line.lock();
        if line.running < self.lanes {
            line.running += 1;
            return Ok(Lane { convoy: self, followers: Vec::new() });
        }
        let ticket = Arc::new(Ticket {
            inode: inode.clone(),
            data_only,
            sweep,
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

    /// Passes the lane on. Those who are `alone` are told; the others are the caller's company.
    fn end(mut self, alone: &[&InodeRef]) -> Company {
        let is_alone = |ticket: &Ticket| alone.iter().any(|i| i.ino() == ticket.inode.ino());
        let (left, served) = self.followers.drain(..).partition(|ticket| is_alone(ticket));
        self.followers = left;
        Company(served)
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

/// Followers whose inodes have been swept. Dropped, it lets them go on for themselves.
struct Company(Vec<Arc<Ticket>>);

impl Company {
    fn tell(&mut self, swept: Swept) {
        self.0.drain(..).for_each(|ticket| ticket.tell(Call::Served(swept)));
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        self.tell(Swept::Written);
    }
}

impl Files {
    /// Writes back everything of an inode that is dirty now, with those who sync others meanwhile.
    /// The caller leads the sweep of the inode.
    ///
    /// # Errors
    /// As [`Files::sweep`].
    pub(super) fn sweep_in_convoy(
        &self,
        inode: &InodeRef,
        data_only: bool,
        lead: Lead<'_>,
    ) -> Result<Swept> {
        let call = match self.convoy.enter(inode, data_only, lead.number()) {
            Ok(_lane) => {
                self.sweep(inode)?;
                lead.succeed();
                return Ok(Swept::Written);
            }
            Err(ticket) => {
                let _wait = self.space.journal().waits().begin(WaitFor::Sweep);
                (ticket.wait(), ticket)
            }
        };
        match call {
            (Call::Served(swept), _) => return Ok(swept),
            (Call::Lead, ticket) => {
                if let Some(swept) = self.sweep_convoy(&ticket)? {
                    return Ok(swept);
                }
            }
            (Call::Alone, _) => {}
        }
        self.sweep(inode)?;
        lead.succeed();
        Ok(Swept::Written)
    }

    /// Sweeps the inodes of all who stand in line, and makes them durable; `None` if the leader's
    /// own was not among those that could be swept.
    fn sweep_convoy(&self, own: &Arc<Ticket>) -> Result<Option<Swept>> {
        let lane = Lane::of_leader(&self.convoy);
        let group: Vec<InodeRef> = std::iter::once(own)
            .chain(&lane.followers)
            .map(|ticket| ticket.inode.clone())
            .collect();
        let alone = self.sweep_those_free(&group);
        let is_alone = alone.iter().any(|other| other.ino() == own.inode.ino());
        let mut company = lane.end(&alone);
        for ticket in &company.0 {
            ticket.inode.flight().succeed(ticket.sweep);
        }
        if is_alone {
            return Ok(None);
        }
        own.inode.flight().succeed(own.sweep);
        if plant::is(Fault::HastyCompany) {
            company.tell(Swept::Durable);
        }
        let tickets = std::iter::once(own).chain(&company.0);
        self.make_durable(tickets.map(|ticket| (&ticket.inode, ticket.data_only)))?;
        company.tell(Swept::Durable);
        Ok(Some(Swept::Durable))
    }
}
