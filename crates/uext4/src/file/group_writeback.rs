//! Group writeback: syncs of different inodes share one writeback pass and one commit.
//!
//! What: the number of passes that syncs run at a time is limited to one more than there are
//! processors; each holds a [`WritebackSlot`]. A sync that finds every slot taken joins the wait
//! queue. When a pass ends, the first waiter becomes a leader: it takes over the slot and writes
//! back the inodes of all waiters as one group. Their data goes to the device in one submission and
//! their mappings share handles. The leader then hands the slot on, waits for the commit and the
//! flush that the whole group needs, and wakes its followers only after that, so each of them
//! sleeps once. A sync that finds a free slot never touches the queue.
//! Invariants: a leader takes the group after every member of it has arrived, so the pass covers
//! everything that was dirty at the call of each. An inode that the group could not take, and every
//! inode of a group that failed, is written back by its own caller, which meets its own error. If a
//! leader panics, or its wait fails, its followers carry on by themselves.
//! Locking: the caller holds no lock and no handle. The queue is a leaf lock; each waiter sleeps on
//! a lock of its own.

use super::Files;
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::inode::{InodeRef, Lead};
use crate::stats::WaitFor;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most inodes of a group.
const GROUP_MAX: usize = 1024;

/// How far a shared pass has brought an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// What was dirty is on the device and mapped.
    Written,
    /// It is also durable, as are the attributes that the caller asked for.
    Durable,
}

/// The slots for passes of syncs, and the queue of syncs that wait for one.
#[derive(Debug)]
pub(super) struct GroupWriteback {
    queue: Mutex<WaitQueue>,
    slots_max: usize,
}

#[derive(Debug, Default)]
struct WaitQueue {
    slots_taken: usize,
    waiters: VecDeque<Arc<Waiter>>,
}

/// A sync that found no free slot.
#[derive(Debug)]
struct Waiter {
    inode: InodeRef,
    data_only: bool,
    /// Number of the pass over the inode that the caller leads.
    pass: u64,
    order: Mutex<Option<Order>>,
    wake: Condvar,
}

/// What a waiter is to do when it wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Write back the inodes of all waiters.
    Lead,
    /// Return: the inode has been brought as far as this.
    Return(Persistence),
    /// Write back the own inode.
    GoAlone,
}

/// The right to run a pass. Dropping it hands it to the first waiter.
struct WritebackSlot<'a> {
    group_writeback: &'a GroupWriteback,
    /// Waiters that this pass serves, if it succeeds.
    followers: Vec<Arc<Waiter>>,
}

impl Default for GroupWriteback {
    fn default() -> Self {
        // One more than processors, because a pass spends half of its time waiting for the device.
        let slots_max = crate::sync::thread::processors() + 1;
        Self { queue: Mutex::new(LockRank::Leaf, WaitQueue::default()), slots_max }
    }
}

impl GroupWriteback {
    /// A slot if one is free, else a place in the wait queue.
    fn join(
        &self,
        inode: &InodeRef,
        data_only: bool,
        pass: u64,
    ) -> std::result::Result<WritebackSlot<'_>, Arc<Waiter>> {
        let mut queue = self.queue.lock();
        if queue.slots_taken < self.slots_max {
            queue.slots_taken += 1;
            return Ok(WritebackSlot { group_writeback: self, followers: Vec::new() });
        }
        let waiter = Arc::new(Waiter {
            inode: inode.clone(),
            data_only,
            pass,
            order: Mutex::new(LockRank::Leaf, None),
            wake: Condvar::new(),
        });
        queue.waiters.push_back(Arc::clone(&waiter));
        Err(waiter)
    }
}

impl Waiter {
    fn wait(&self) -> Order {
        let mut order = self.order.lock();
        loop {
            if let Some(order) = *order {
                return order;
            }
            self.wake.wait(&mut order);
        }
    }

    fn wake(&self, order: Order) {
        *self.order.lock() = Some(order);
        self.wake.notify_one();
    }
}

impl<'a> WritebackSlot<'a> {
    /// The slot that a leader was handed, with the waiters behind it as followers.
    fn of_leader(group_writeback: &'a GroupWriteback) -> Self {
        let mut queue = group_writeback.queue.lock();
        let count = queue.waiters.len().min(GROUP_MAX - 1);
        Self { group_writeback, followers: queue.waiters.drain(..count).collect() }
    }

    /// Hands the slot on, and returns the followers that the pass has served. Those that are to go
    /// `alone` are woken.
    fn end(mut self, alone: &[&InodeRef]) -> Followers {
        let goes_alone = |waiter: &Waiter| alone.iter().any(|i| i.ino() == waiter.inode.ino());
        let (left, served) = self.followers.drain(..).partition(|waiter| goes_alone(waiter));
        self.followers = left;
        Followers(served)
    }
}

impl Drop for WritebackSlot<'_> {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.group_writeback.queue.lock();
            let next = queue.waiters.pop_front();
            queue.slots_taken -= usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            next.wake(Order::Lead);
        }
        self.followers.drain(..).for_each(|waiter| waiter.wake(Order::GoAlone));
    }
}

/// Followers whose inodes have been written back. If it is dropped before their commit is durable,
/// each of them waits for its own.
struct Followers(Vec<Arc<Waiter>>);

impl Followers {
    fn wake(&mut self, persistence: Persistence) {
        self.0.drain(..).for_each(|waiter| waiter.wake(Order::Return(persistence)));
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        self.wake(Persistence::Written);
    }
}

impl Files {
    /// Writes back everything of an inode that is dirty now, together with inodes that other
    /// threads sync meanwhile. The caller leads the pass over the inode.
    ///
    /// # Errors
    /// As [`Files::write_back`].
    pub(super) fn write_back_grouped(
        &self,
        inode: &InodeRef,
        data_only: bool,
        lead: Lead<'_>,
    ) -> Result<Persistence> {
        match self.group_writeback.join(inode, data_only, lead.number()) {
            Ok(_slot) => {
                self.write_back(inode)?;
                lead.succeed();
                return Ok(Persistence::Written);
            }
            Err(waiter) => {
                let order = {
                    let _wait = self.space.journal().waits().begin(WaitFor::Writeback);
                    waiter.wait()
                };
                match order {
                    Order::Return(persistence) => return Ok(persistence),
                    Order::Lead => {
                        if let Some(persistence) = self.lead_group(&waiter)? {
                            return Ok(persistence);
                        }
                    }
                    Order::GoAlone => {}
                }
            }
        }
        self.write_back(inode)?;
        lead.succeed();
        Ok(Persistence::Written)
    }

    /// Writes back the inodes of all waiters and makes them durable. `None`: the leader's own inode
    /// was busy, or the pass failed.
    fn lead_group(&self, own: &Arc<Waiter>) -> Result<Option<Persistence>> {
        let slot = WritebackSlot::of_leader(&self.group_writeback);
        let group: Vec<InodeRef> = std::iter::once(own)
            .chain(&slot.followers)
            .map(|waiter| waiter.inode.clone())
            .collect();
        let alone = self.try_write_back_group(&group);
        let own_goes_alone = alone.iter().any(|other| other.ino() == own.inode.ino());
        let mut followers = slot.end(&alone);
        for waiter in &followers.0 {
            waiter.inode.flight().succeed(waiter.pass);
        }
        if own_goes_alone {
            return Ok(None);
        }
        own.inode.flight().succeed(own.pass);
        if Fault::EarlyGroupWakeUp.is_injected() {
            followers.wake(Persistence::Durable);
        }
        let group = std::iter::once(own).chain(&followers.0);
        self.make_durable(group.map(|waiter| (&waiter.inode, waiter.data_only)))?;
        followers.wake(Persistence::Durable);
        Ok(Some(Persistence::Durable))
    }
}
