//! Direct requests that are on the device.
//!
//! What: reads and overwrites of one queue, from their look-up (`starting`) to their end. They are
//! ended where they are reaped, by the queue's owner; or by a thread that waits for one of their
//! inodes, which leaves what it reaped for the owner to find.
//! Those in several pieces are as many requests of the device, and end with the last of them.
//! Invariants: a request holds its place in the epoch ([`crate::inode::Overwrites`]) from before
//! its look-up until the device has answered. Beginning and ending one allocates nothing.
//! Locking: one lock (rank `Requests`) that nobody but the owner takes as a rule. Its holder waits
//! for the device and for leaves only, and who helps tries it: helping waits for the device at
//! most. A ring whose completions only its own thread can ask for is taken over by who helps.

use super::super::Files;
use super::known::DirectFile;
use super::pieces::{PIECES_MAX, Split};
use super::queue::{DirectDone, DirectOp, DirectRequest};
use super::starting::Starting;
use super::worker::{Job, Worker};
use crate::error::{Error, Result};
use crate::inode::{Helper, Inode, Ticket, Version};
use crate::sync::{LockRank, Mutex, thread};
use std::sync::Arc;
use uext4_device::{DeviceQueue, IoBuf, QueueDone, QueueOptions};

/// What stands where requests of one queue are.
#[derive(Debug)]
pub(super) struct Requests {
    files: Arc<Files>,
    inner: Mutex<Inner>,
    /// With `dio_completion=deferred`.
    worker: Option<Worker>,
}

#[derive(Debug)]
pub(super) struct Inner {
    /// Slot of the thread that started the last of them.
    owner: usize,
    /// `None` once the queue is closed.
    pub(super) device: Option<Box<dyn DeviceQueue>>,
    /// Those registered, by the number of their file.
    inodes: Vec<Option<Arc<Inode>>>,
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) free: Vec<usize>,
    /// Of those slots whose requests are in pieces.
    pub(super) splits: Vec<Split>,
    /// Filled and emptied by each reap.
    reaped: Vec<QueueDone>,
    /// Ended, and not told to the owner.
    ended: Ended,
}

/// What the device has done of requests.
#[derive(Debug)]
pub(super) struct Ended {
    /// All.
    pub(super) done: Vec<DirectDone>,
    /// All but their conversion.
    pub(super) in_place: Vec<InPlace>,
}

/// A write whose data is in place.
#[derive(Debug)]
pub(super) struct InPlace {
    pub(super) request: DirectRequest,
    pub(super) version: Version,
}

impl Ended {
    pub(super) fn new(depth: usize) -> Self {
        Self { done: Vec::with_capacity(depth), in_place: Vec::new() }
    }

    fn len(&self) -> usize {
        self.done.len() + self.in_place.len()
    }

    fn append(&mut self, more: &mut Self) {
        self.done.append(&mut more.done);
        self.in_place.append(&mut more.in_place);
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) file: DirectFile,
    pub(super) op: DirectOp,
    pub(super) offset: u64,
    pub(super) tag: u64,
    pub(super) ticket: Ticket,
    pub(super) pieces: usize,
    pub(super) converts: Option<Version>,
}

/// Where the number of a piece begins in the tag of a device's request.
pub(super) const PIECE_SHIFT: u32 = 32;

/// Requests of the device that a queue of `depth` can have: room for some that are in pieces. What
/// is no depth stays none.
pub(super) fn device_depth(depth: usize) -> usize {
    match depth {
        1..=QueueOptions::DEPTH_MAX => (depth + depth.max(PIECES_MAX)).min(QueueOptions::DEPTH_MAX),
        _ => depth,
    }
}

impl Requests {
    pub(super) fn new(
        files: Arc<Files>,
        device: Box<dyn DeviceQueue>,
        depth: usize,
    ) -> Result<Self> {
        let worker = files.options().dio_completion.is_deferred().then(Worker::start);
        Ok(Self {
            worker: worker.transpose()?,
            files,
            inner: Mutex::new(
                LockRank::Requests,
                Inner {
                    owner: thread::slot(),
                    device: Some(device),
                    inodes: Vec::new(),
                    slots: (0..depth).map(|_| None).collect(),
                    free: (0..depth).rev().collect(),
                    splits: (0..depth).map(|_| Split::new()).collect(),
                    reaped: Vec::with_capacity(device_depth(depth)),
                    ended: Ended::new(depth),
                },
            ),
        })
    }

    /// Makes an inode known.
    pub(super) fn register(self: &Arc<Self>, file: DirectFile, inode: &Arc<Inode>) {
        {
            let inodes = &mut self.inner.lock().inodes;
            inodes.resize(inodes.len().max(file.number + 1), None);
            inodes[file.number] = Some(Arc::clone(inode));
        }
        inode.overwrites_to_be().add_helper(Arc::downgrade(&self.helper()));
    }

    /// Forgets an inode; false if a request of it is under way.
    pub(super) fn unregister(self: &Arc<Self>, file: DirectFile) -> bool {
        let inode = {
            let inner = &mut *self.inner.lock();
            let is_busy = inner.slots.iter().flatten().any(|slot| slot.file == file)
                || inner.ended.in_place.iter().any(|one| one.request.file == file);
            if is_busy {
                return false;
            }
            // It may be known by another number, too.
            let taken = inner.inodes[file.number].take();
            let stays = |inode: &Arc<Inode>| {
                inner.inodes.iter().flatten().any(|other| Arc::ptr_eq(other, inode))
            };
            taken.filter(|inode| !stays(inode))
        };
        if let Some(overwrites) = inode.as_ref().and_then(|inode| inode.overwrites()) {
            overwrites.remove_helper(&self.helper());
        }
        true
    }

    fn helper(self: &Arc<Self>) -> Arc<dyn Helper> {
        self.clone()
    }

    /// To start requests, many under one lock.
    pub(super) fn starting(&self) -> Starting<'_> {
        let mut inner = self.inner.lock();
        inner.owner = thread::slot();
        Starting::new(&self.files, inner)
    }

    /// Starts what was pushed.
    pub(super) fn submit(&self) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let Some(device) = &mut inner.device else { return Ok(()) };
        device.submit().map_err(|error| {
            inner.lose();
            Error::io("submitting requests", error)
        })
    }

    /// Ends at least `at_least` requests as far as the device can, or all there are, and tells of
    /// them.
    pub(super) fn reap(&self, at_least: usize, told: &mut Ended) -> Result<()> {
        let before = told.len();
        let mut result = Ok(());
        {
            let mut inner = self.inner.lock();
            told.append(&mut inner.ended);
            let missing = at_least.saturating_sub(told.len() - before);
            if let Err(error) = self.reap_device(&mut inner, missing, false) {
                result = Err(Error::io("reaping requests", error));
            }
            told.append(&mut inner.ended);
        }
        if let Some(worker) = &self.worker {
            worker.take(at_least.saturating_sub(told.len() - before), &mut told.done);
        }
        result
    }

    /// Ends all that is on the device; the next reap tells of it, or meets the error.
    pub(super) fn settle(&self) {
        let mut inner = self.inner.lock();
        let on_device = inner.device.as_ref().map_or(0, |device| device.in_flight());
        if on_device > 0 {
            let _ = self.reap_device(&mut inner, on_device, false);
        }
    }

    /// Starts what was pushed and ends what the device has done: `at_least` so many requests, if
    /// there are.
    fn reap_device(&self, inner: &mut Inner, at_least: usize, helps: bool) -> std::io::Result<()> {
        let mut reaped = std::mem::take(&mut inner.reaped);
        let mut ended = 0;
        let result = loop {
            let Some(device) = &mut inner.device else { break Ok(()) };
            if device.in_flight() == 0 {
                break Ok(());
            }
            let result = device.reap(at_least - ended, &mut reaped);
            for one in reaped.drain(..) {
                ended += usize::from(self.end(inner, one, helps));
            }
            // Of those in pieces fewer may have ended than pieces have.
            if result.is_err() || ended >= at_least {
                break result;
            }
        };
        inner.reaped = reaped;
        if result.is_err() {
            inner.lose();
        }
        result
    }

    /// The device has answered. True if that was the last piece of its request.
    fn end(&self, inner: &mut Inner, reaped: QueueDone, helps: bool) -> bool {
        let QueueDone { tag, buf, result } = reaped;
        let number = (tag & ((1 << PIECE_SHIFT) - 1)) as usize;
        let slot = inner.slots.get(number).and_then(Option::as_ref);
        let is_split = slot.expect("a device answers what it was asked").pieces > 1;
        let (buf, result) = if is_split {
            let piece = (tag >> PIECE_SHIFT) as usize;
            let Some(whole) = inner.splits[number].end(piece, buf, result) else { return false };
            whole
        } else {
            (buf, result)
        };
        let slot = inner.slots[number].take().expect("it was there");
        inner.free.push(number);
        self.end_request(inner, slot, buf, result, helps);
        true
    }

    fn end_request(
        &self,
        inner: &mut Inner,
        slot: Slot,
        buf: IoBuf,
        result: std::io::Result<()>,
        helps: bool,
    ) {
        let Slot { file, op, offset, tag, ticket, converts, .. } = slot;
        let inode = inode_of(&inner.inodes, file);
        let stats = &self.files.direct;
        if helps {
            stats.helped.add(1);
        }
        if let (Some(version), Ok(())) = (converts, &result) {
            end_write(inode, ticket);
            let request = DirectRequest { file, op, offset, buf, tag };
            inner.ended.in_place.push(InPlace { request, version });
            return;
        }
        let len = buf.len();
        let result = result.map(|()| len).map_err(|e| Error::io("direct request", e));
        let done = DirectDone { tag, buf, result };
        if op == DirectOp::Read {
            stats.reads.add(1);
            let overwrites = inode.overwrites().expect("it was entered");
            if self.files.keeps_access_times() {
                inode.note_direct_read(overwrites);
            }
            overwrites.leave(ticket);
        } else {
            stats.overwrites.add(1);
            if let (Some(worker), false) = (&self.worker, helps) {
                stats.deferred.add(1);
                worker.hand_over(Job { inode: Arc::clone(inode), ticket, done });
                return;
            }
            stats.inline.add(1);
            end_write(inode, ticket);
        }
        inner.ended.done.push(done);
    }

    /// Ends what is under way; what was pushed and not started may not be done, and what is not
    /// converted stays as it is.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        let mut is_stuck = false;
        while !is_stuck && inner.device.as_ref().is_some_and(|device| device.in_flight() > 0) {
            is_stuck = self.reap_device(&mut inner, 1, false).is_err();
        }
        drop(inner.device.take());
        if is_stuck {
            // The kernel may still write to these blocks: their files are lost to direct I/O.
            return;
        }
        let inner = &mut *inner;
        for slot in inner.slots.iter_mut().filter_map(Option::take) {
            end_write(inode_of(&inner.inodes, slot.file), slot.ticket);
        }
    }
}

impl Inner {
    /// The device has given the queue up. Files with requests in it keep their blocks for good.
    fn lose(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            let overwrites = inode_of(&self.inodes, slot.file).overwrites();
            overwrites.expect("it was entered").lose(&mut slot.ticket);
        }
    }
}

impl Helper for Requests {
    fn is_own(&self) -> bool {
        self.inner.try_lock().is_some_and(|inner| inner.owner == thread::slot())
    }

    fn help(&self) {
        if let Some(mut inner) = self.inner.try_lock() {
            // The owner meets the error, too.
            let _ = self.reap_device(&mut inner, 1, true);
        }
    }
}

/// The inode of a request that is under way.
fn inode_of(inodes: &[Option<Arc<Inode>>], file: DirectFile) -> &Arc<Inode> {
    inodes[file.number].as_ref().expect("a file with requests is known")
}

/// An overwrite is over. It may have failed, and changed something all the same.
pub(super) fn end_write(inode: &Inode, ticket: Ticket) {
    let overwrites = inode.overwrites().expect("it was entered");
    inode.note_direct_write(overwrites);
    overwrites.leave(ticket);
}
