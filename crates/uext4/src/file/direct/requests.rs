//! Direct requests that are on the device.
//!
//! What: reads and overwrites of one queue, from their look-up to their end. They are ended where
//! they are reaped, by the queue's owner; or by a thread that waits for one of their inodes, which
//! leaves what it reaped for the owner to find.
//! Invariants: a request holds its place in the epoch ([`crate::inode::Overwrites`]) from before
//! its look-up until the device has answered. Beginning and ending one allocates nothing.
//! Locking: one lock (rank `Requests`) that nobody but the owner takes as a rule. Its holder waits
//! for the device and for leaves only, and who helps tries it: helping waits for the device at
//! most. A ring whose completions only its own thread can ask for is taken over by who helps.

use super::super::Files;
use super::queue::{DirectDone, DirectOp, DirectRequest};
use super::worker::{Job, Worker};
use crate::error::{Error, Result};
use crate::inode::{Helper, Inode, Ticket};
use crate::sync::{LockRank, Mutex};
use std::sync::Arc;
use uext4_device::{DeviceQueue, QueueDone, QueueOp, QueueRequest};

/// What stands where requests of one queue are.
#[derive(Debug)]
pub(super) struct Requests {
    files: Arc<Files>,
    inner: Mutex<Inner>,
    /// With `dio_completion=deferred`.
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Inner {
    /// `None` once the queue is closed.
    device: Option<Box<dyn DeviceQueue>>,
    /// Those registered, by the number of their file.
    inodes: Vec<Arc<Inode>>,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Filled and emptied by each reap.
    reaped: Vec<QueueDone>,
    /// Ended, and not told to the owner.
    ended: Vec<DirectDone>,
}

#[derive(Debug)]
struct Slot {
    file: usize,
    ticket: Ticket,
    tag: u64,
    writes: bool,
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
                    device: Some(device),
                    inodes: Vec::new(),
                    slots: (0..depth).map(|_| None).collect(),
                    free: (0..depth).rev().collect(),
                    reaped: Vec::with_capacity(depth),
                    ended: Vec::with_capacity(depth),
                },
            ),
        })
    }

    /// Makes an inode known; returns its number.
    pub(super) fn register(self: &Arc<Self>, inode: &Arc<Inode>) -> usize {
        let number = {
            let mut inner = self.inner.lock();
            inner.inodes.push(Arc::clone(inode));
            inner.inodes.len() - 1
        };
        let helper: Arc<dyn Helper> = self.clone();
        inode.overwrites_to_be().add_helper(Arc::downgrade(&helper));
        number
    }

    /// Hands a request to the device, if nothing is to be done but its I/O; else gives it back.
    pub(super) fn push(
        &self,
        inode: &Inode,
        request: DirectRequest,
    ) -> std::result::Result<(), DirectRequest> {
        let (offset, len) = (request.offset, request.buf.len());
        let durable = request.op == DirectOp::WriteDurable;
        let place = match request.op {
            DirectOp::Read => self.files.place_to_read(inode, offset, len),
            DirectOp::Write | DirectOp::WriteDurable => {
                self.files.place_to_write(inode, offset, len, durable)
            }
        };
        let Some(place) = place else { return Err(request) };
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let Some(device) = &mut inner.device else { return Err(request) };
        let alignment = device.alignment();
        let is_aligned = request.buf.as_ptr().addr().is_multiple_of(alignment)
            && len.is_multiple_of(alignment)
            && place.at.is_multiple_of(alignment as u64);
        if !is_aligned {
            return Err(request);
        }
        let Some(slot) = inner.free.pop() else { return Err(request) };
        let op = match request.op {
            DirectOp::Read => QueueOp::Read,
            DirectOp::WriteDurable if self.files.options().barrier => QueueOp::WriteDurable,
            DirectOp::Write | DirectOp::WriteDurable => QueueOp::Write,
        };
        let DirectRequest { file, buf, tag, .. } = request;
        let writes = op != QueueOp::Read;
        let pushed = device.push(QueueRequest { op, offset: place.at, buf, tag: slot as u64 });
        if let Err(back) = pushed {
            inner.free.push(slot);
            return Err(DirectRequest { file, op: request.op, offset, buf: back.buf, tag });
        }
        let ticket = place.access.into_ticket();
        inner.slots[slot] = Some(Slot { file: file.0, ticket, tag, writes });
        Ok(())
    }

    /// Starts what was pushed.
    pub(super) fn submit(&self) -> Result<()> {
        match &mut self.inner.lock().device {
            Some(device) => device.submit().map_err(|e| Error::io("submitting requests", e)),
            None => Ok(()),
        }
    }

    /// Ends at least `at_least` requests, or all there are, and tells of them.
    pub(super) fn reap(&self, at_least: usize, done: &mut Vec<DirectDone>) -> Result<()> {
        let before = done.len();
        let mut result = Ok(());
        {
            let mut inner = self.inner.lock();
            done.append(&mut inner.ended);
            let missing = at_least.saturating_sub(done.len() - before);
            if let Err(error) = self.reap_device(&mut inner, missing, false) {
                result = Err(Error::io("reaping requests", error));
            }
            done.append(&mut inner.ended);
        }
        if let Some(worker) = &self.worker {
            worker.take(at_least.saturating_sub(done.len() - before), done);
        }
        result
    }

    /// Ends all that is on the device. An error is met again by whoever reaps next.
    pub(super) fn settle(&self, done: &mut Vec<DirectDone>) {
        let mut inner = self.inner.lock();
        let on_device = inner.device.as_ref().map_or(0, |device| device.in_flight());
        if on_device > 0 {
            let _ = self.reap_device(&mut inner, on_device, false);
        }
        done.append(&mut inner.ended);
    }

    fn reap_device(&self, inner: &mut Inner, at_least: usize, helps: bool) -> std::io::Result<()> {
        let Some(device) = &mut inner.device else { return Ok(()) };
        let mut reaped = std::mem::take(&mut inner.reaped);
        let result = match device.in_flight() {
            0 => Ok(()),
            _ => device.reap(at_least, &mut reaped),
        };
        reaped.drain(..).for_each(|one| self.end(inner, one, helps));
        inner.reaped = reaped;
        result
    }

    /// The device has answered.
    fn end(&self, inner: &mut Inner, reaped: QueueDone, helps: bool) {
        let QueueDone { tag, buf, result } = reaped;
        let number = usize::try_from(tag).unwrap_or(usize::MAX);
        let slot = inner.slots.get_mut(number).and_then(Option::take);
        let slot = slot.expect("a device answers what it was asked");
        inner.free.push(number);
        let len = buf.len();
        let result = result.map(|()| len).map_err(|e| Error::io("direct request", e));
        let done = DirectDone { tag: slot.tag, buf, result };
        let inode = &inner.inodes[slot.file];
        let stats = &self.files.direct;
        stats.helped.add(u64::from(helps));
        if slot.writes {
            stats.overwrites.add(1);
            if let (Some(worker), false) = (&self.worker, helps) {
                stats.deferred.add(1);
                worker.hand_over(Job { inode: Arc::clone(inode), ticket: slot.ticket, done });
                return;
            }
            stats.inline.add(1);
            end_write(inode, slot.ticket);
        } else {
            stats.reads.add(1);
            let overwrites = inode.overwrites().expect("it was entered");
            if self.files.keeps_access_times() {
                inode.note_direct_read(overwrites);
            }
            overwrites.leave(slot.ticket);
        }
        inner.ended.push(done);
    }

    /// Ends what is under way; what was pushed and not started may not be done.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        while inner.device.as_ref().is_some_and(|device| device.in_flight() > 0) {
            if self.reap_device(&mut inner, 1, false).is_err() {
                break;
            }
        }
        // Waits for what is in flight.
        drop(inner.device.take());
        let inner = &mut *inner;
        for slot in inner.slots.iter_mut().filter_map(Option::take) {
            end_write(&inner.inodes[slot.file], slot.ticket);
        }
    }
}

impl Helper for Requests {
    fn help(&self) {
        if let Some(mut inner) = self.inner.try_lock() {
            // The owner meets the error, too.
            let _ = self.reap_device(&mut inner, 1, true);
        }
    }
}

/// An overwrite is over. It may have failed, and changed something all the same.
pub(super) fn end_write(inode: &Inode, ticket: Ticket) {
    let overwrites = inode.overwrites().expect("it was entered");
    inode.note_direct_write(overwrites);
    overwrites.leave(ticket);
}
