//! Group writeback: syncs share writeback passes and commits.
//!
//! What: the number of passes that syncs run at a time is limited to one more than there are
//! processors, and to one over each inode; each pass holds a [`WritebackSlot`]. A sync that finds
//! no free slot, or whose inode is in a pass, joins the wait queue. When a pass ends, the first
//! waiter that may run becomes a leader: it takes over the slot and writes back the inodes of all
//! waiters that may run as one group. Their data goes to the device in one submission and their
//! mappings share handles. The leader then hands the slot on, waits for the commit and the flush
//! that the whole group needs, and wakes its followers only after that, so each of them sleeps
//! once. Where commits take round trips (`Journal::commits_beside_data`), there is one group at a
//! time for small passes: it is gathered, its commit begins beside its data, and its slot is kept
//! until all is durable.
//! Invariants: a leader takes the group after every member of it has arrived, so the pass covers
//! everything that was dirty at the call of each. A waiter that may not run has its inode in a
//! pass, and the end of that pass looks for waiters, so none is left behind. An inode that the
//! group could not take, and every inode of a group that failed, is written back by its own caller,
//! which meets its own error. If a leader panics, or its wait fails, its followers carry on by
//! themselves.
//! Locking: the caller holds no lock and no handle. The queue is a leaf lock; each waiter sleeps on
//! a lock of its own. `Inode::in_sync_pass` changes under the lock of the queue.

use super::sync::Syncs;
use crate::error::Result;
use crate::injected_faults::Fault;
use crate::inode::InodeRef;
use crate::stats::WaitFor;
use crate::sync::atomic::Ordering;
use crate::sync::time::Instant;
use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Most syncs of a group.
const GROUP_MAX: usize = 1024;
/// The part of a commit's time for which a group is gathered where commits take round trips.
const GATHER_PART: u32 = 8;
/// And the longest.
const GATHER_MAX: Duration = Duration::from_millis(2);
/// Most dirty pages of a file whose sync is in a group that is kept until it is durable.
const KEPT_PAGES_MAX: usize = 1024;

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
    /// Wakes the thread that gathers a group.
    joined: Condvar,
    slots_max: usize,
    /// Commits take round trips: small groups are kept until they are durable.
    keeps: bool,
}

#[derive(Debug, Default)]
struct WaitQueue {
    slots_taken: usize,
    /// Where groups are kept until they are durable: one is at work.
    has_group: bool,
    waiters: VecDeque<Arc<Waiter>>,
    /// Number of syncs that the last group served, or left waiting: so many may come again.
    expected: usize,
}

/// A sync that could not run a pass at once.
#[derive(Debug)]
struct Waiter {
    inode: InodeRef,
    data_only: bool,
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

/// The right to run a pass. Dropping it hands it to the first waiter that may run.
struct WritebackSlot<'a> {
    group_writeback: &'a GroupWriteback,
    /// It is kept until the group is durable.
    is_kept: bool,
    /// The inodes of the pass, each once.
    inodes: Vec<InodeRef>,
    /// Waiters that this pass serves, if it succeeds.
    followers: Vec<Arc<Waiter>>,
}

impl GroupWriteback {
    pub(super) fn new(keeps: bool) -> Self {
        // One more than processors, because a pass spends half of its time waiting for the device.
        let slots_max = crate::sync::thread::processors() + 1;
        let queue = Mutex::new(LockRank::Leaf, WaitQueue::default());
        Self { queue, joined: Condvar::new(), slots_max, keeps }
    }

    /// A slot if one is free and no pass over the inode runs, else a place in the wait queue. Of
    /// slots that are `kept` until their group is durable there is one, beside the others.
    fn join(
        &self,
        inode: &InodeRef,
        data_only: bool,
        kept: bool,
    ) -> std::result::Result<WritebackSlot<'_>, Arc<Waiter>> {
        let mut queue = self.queue.lock();
        let is_free = if kept { !queue.has_group } else { queue.slots_taken < self.slots_max };
        if is_free && !is_in_pass(inode) {
            if kept {
                queue.has_group = true;
            } else {
                queue.slots_taken += 1;
            }
            note_pass(inode, true);
            return Ok(WritebackSlot::of(self, inode, kept));
        }
        let waiter = Waiter::new(inode, data_only);
        queue.waiters.push_back(Arc::clone(&waiter));
        drop(queue);
        self.joined.notify_all();
        Err(waiter)
    }

    /// Waits until as many syncs have come as the last group served, but no longer than `most`.
    fn gather(&self, most: Duration) {
        let mut queue = self.queue.lock();
        let end = Instant::now() + most;
        while queue.waiters.len() + 1 < queue.expected {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.joined.wait_for(&mut queue, left);
        }
    }
}

impl WaitQueue {
    /// Gives the slot of a pass that has ended to the next leader. All of them keep theirs where
    /// groups are kept (`keeps`), and wait for the one that is at work.
    fn hand_on(&mut self, is_kept: bool, keeps: bool) -> Option<Arc<Waiter>> {
        if is_kept {
            self.has_group = false;
        } else {
            self.slots_taken -= 1;
        }
        if keeps && self.has_group {
            return None;
        }
        let next = self.pop_leader();
        if keeps {
            self.has_group = next.is_some();
        } else {
            self.slots_taken += usize::from(next.is_some());
        }
        next
    }

    /// Takes the first waiter whose inode is in no pass, as the leader of the next.
    fn pop_leader(&mut self) -> Option<Arc<Waiter>> {
        let first = self.waiters.iter().position(|waiter| !is_in_pass(&waiter.inode))?;
        let leader = self.waiters.remove(first)?;
        note_pass(&leader.inode, true);
        Some(leader)
    }

    /// Takes the waiters that can follow a leader whose inode is `own`.
    fn take_followers(&mut self, own: &InodeRef) -> Vec<Arc<Waiter>> {
        let may_follow =
            |waiter: &Waiter| !is_in_pass(&waiter.inode) || waiter.inode.ino() == own.ino();
        let (mut followers, mut others) = (Vec::new(), VecDeque::new());
        for waiter in self.waiters.drain(..) {
            if followers.len() + 1 < GROUP_MAX && may_follow(&waiter) {
                followers.push(waiter);
            } else {
                others.push_back(waiter);
            }
        }
        self.waiters = others;
        followers.iter().for_each(|follower| note_pass(&follower.inode, true));
        followers
    }
}

/// Whether a pass of a sync over the inode runs. The caller holds the lock of the queue.
fn is_in_pass(inode: &InodeRef) -> bool {
    inode.in_sync_pass.load(Ordering::Relaxed)
}

fn note_pass(inode: &InodeRef, runs: bool) {
    inode.in_sync_pass.store(runs, Ordering::Relaxed);
}

impl Waiter {
    fn new(inode: &InodeRef, data_only: bool) -> Arc<Self> {
        Arc::new(Self {
            inode: inode.clone(),
            data_only,
            order: Mutex::new(LockRank::Leaf, None),
            wake: Condvar::new(),
        })
    }

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
    /// The slot that the caller was given, for a pass over its inode.
    fn of(group_writeback: &'a GroupWriteback, own: &InodeRef, is_kept: bool) -> Self {
        Self { group_writeback, is_kept, inodes: vec![own.clone()], followers: Vec::new() }
    }

    /// Takes the waiters that the pass serves as followers.
    fn take_followers(&mut self) {
        {
            let mut queue = self.group_writeback.queue.lock();
            self.followers = queue.take_followers(&self.inodes[0]);
            queue.expected = self.followers.len() + 1;
        }
        let others = self.followers.iter().map(|follower| follower.inode.clone());
        self.inodes.extend(others);
        self.inodes.sort_unstable_by_key(|inode| inode.ino());
        self.inodes.dedup_by_key(|inode| inode.ino());
    }

    /// Takes the followers that the pass has served. Those that are to go `alone` stay, and are
    /// woken when the slot is dropped.
    fn take_served(&mut self, alone: &[InodeRef]) -> Followers {
        let goes_alone = |waiter: &Waiter| contains(alone, &waiter.inode);
        let (left, served) = self.followers.drain(..).partition(|waiter| goes_alone(waiter));
        self.followers = left;
        Followers(served)
    }
}

fn contains(inodes: &[InodeRef], inode: &InodeRef) -> bool {
    inodes.iter().any(|other| other.ino() == inode.ino())
}

impl Drop for WritebackSlot<'_> {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.group_writeback.queue.lock();
            self.inodes.iter().for_each(|inode| note_pass(inode, false));
            queue.expected += queue.waiters.len();
            queue.hand_on(self.is_kept, self.group_writeback.keeps)
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

impl Syncs {
    /// Writes back everything of an inode that is dirty now, for a sync, together with other syncs.
    ///
    /// # Errors
    /// As [`Syncs::write_back`].
    pub(super) fn write_back_shared(
        &self,
        inode: &InodeRef,
        data_only: bool,
    ) -> Result<Persistence> {
        let written = || self.write_back(inode).map(|()| Persistence::Written);
        if self.context.ablations.syncs_alone() {
            return written();
        }
        // A large pass would hold up the others.
        let keeps = self.group_writeback.keeps && inode.pages().map.dirty() <= KEPT_PAGES_MAX;
        let waiter = match self.group_writeback.join(inode, data_only, keeps) {
            Ok(slot) if keeps => {
                return self.lead_group(&Waiter::new(inode, data_only), slot);
            }
            Ok(_slot) => return written(),
            Err(waiter) => waiter,
        };
        let order = {
            let _wait = self.context.journal().waits().begin(WaitFor::Writeback);
            waiter.wait()
        };
        match order {
            Order::Lead => {
                let keeps = self.group_writeback.keeps;
                let slot = WritebackSlot::of(&self.group_writeback, inode, keeps);
                self.lead_group(&waiter, slot)
            }
            Order::Return(persistence) => Ok(persistence),
            Order::GoAlone => written(),
        }
    }

    /// Writes back the inodes of all waiters and makes them durable. Where a commit takes round
    /// trips, the group is gathered first, and the slot is kept until it is durable: groups that
    /// overlap would share neither data nor commit.
    fn lead_group(&self, own: &Arc<Waiter>, mut slot: WritebackSlot<'_>) -> Result<Persistence> {
        if slot.is_kept {
            let most = (self.context.journal().average_commit() / GATHER_PART).min(GATHER_MAX);
            self.group_writeback.gather(most);
        }
        slot.take_followers();
        let members = std::iter::once(own).chain(&slot.followers);
        self.begin_commit(members.map(|waiter| (&waiter.inode, waiter.data_only)));
        let alone = match &slot.inodes[..] {
            // Nothing is gained by trying its lock.
            [inode] => {
                self.write_back(inode)?;
                Vec::new()
            }
            inodes => self.try_write_back_group(inodes).into_iter().cloned().collect(),
        };
        let mut followers = slot.take_served(&alone);
        let _kept = slot.is_kept.then_some(slot);
        if contains(&alone, &own.inode) {
            drop(followers);
            self.write_back(&own.inode)?;
            return Ok(Persistence::Written);
        }
        if Fault::EarlyGroupWakeUp.is_injected() {
            followers.wake(Persistence::Durable);
        }
        let group = std::iter::once(own).chain(&followers.0);
        let durable = self.make_durable(group.map(|waiter| (&waiter.inode, waiter.data_only)));
        if durable.is_err() {
            // The failure may concern another inode of the group.
            return Ok(Persistence::Written);
        }
        followers.wake(Persistence::Durable);
        Ok(Persistence::Durable)
    }
}
