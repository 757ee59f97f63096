//! Direct requests that are on the device.
//!
//! What: reads and overwrites of one queue, from their look-up (`starting`) to their end. The owner
//! of the queue ends them when it reaps them. A thread that waits for one of their inodes may do so
//! too; it leaves the completions for the owner. A request in several pieces is as many requests of
//! the device, and ends with the last of them.
//! Invariants: the read-side critical section of a request ([`crate::inode::DirectIoState`]) lasts
//! from before its look-up until the device has completed it. Starting and ending a request
//! allocates nothing.
//! Locking: one lock (rank `Requests`), which as a rule only the owner takes. Its holder waits for
//! the device and for leaf locks only. A helper tries it, so helping waits for nothing but the
//! device. If only the ring's own thread can ask for completions, the helper takes the ring over.

use super::DirectIo;
use super::pieces::{PIECES_MAX, Split};
use super::queue::{DirectDone, DirectOp, DirectRequest};
use super::registered_files::DirectFile;
use super::starting::Starting;
use crate::error::{Error, Result};
use crate::file::ablation::{Completion, CompletionWorker};
use crate::inode::{Helper, Inode, ReadToken, Version};
use crate::sync::{LockRank, Mutex, thread};
use std::sync::Arc;
use uext4_device::{DeviceQueue, IoBuf, QueueDone, QueueOptions};

/// The requests of one queue that are on the device.
#[derive(Debug)]
pub(super) struct Requests {
    direct: Arc<DirectIo>,
    inner: Mutex<Inner>,
    /// The worker of `dio_completion=deferred`.
    worker: Option<CompletionWorker>,
}

#[derive(Debug)]
pub(super) struct Inner {
    /// Slot of the thread that started the last request.
    owner: usize,
    /// `None` once the queue is closed.
    pub(super) device: Option<Box<dyn DeviceQueue>>,
    /// Registered inodes, by the number of their file.
    inodes: Vec<Option<Arc<Inode>>>,
    pub(super) slots: Vec<Option<Slot>>,
    pub(super) free: Vec<usize>,
    /// State of the slots whose requests are in pieces.
    pub(super) splits: Vec<Split>,
    /// Filled and emptied by each reap.
    reaped: Vec<QueueDone>,
    /// Requests that have ended and that the owner has not seen.
    ended: Ended,
}

/// Requests that the device has completed.
#[derive(Debug)]
pub(super) struct Ended {
    /// Requests that are complete.
    pub(super) done: Vec<DirectDone>,
    /// Writes whose blocks are still to be converted.
    pub(super) in_place: Vec<InPlace>,
}

/// A write whose data is in place, and whose blocks are to be converted.
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
    pub(super) token: ReadToken,
    pub(super) pieces: usize,
    pub(super) converts: Option<Version>,
}

/// The bit where the number of a piece begins in the tag of a request of the device.
pub(super) const PIECE_SHIFT: u32 = 32;

/// The depth of the device's queue for a queue of `depth`, with room for requests in pieces. An
/// invalid depth stays invalid.
pub(super) fn device_depth(depth: usize) -> usize {
    match depth {
        1..=QueueOptions::DEPTH_MAX => (depth + depth.max(PIECES_MAX)).min(QueueOptions::DEPTH_MAX),
        _ => depth,
    }
}

impl Requests {
    pub(super) fn new(
        direct: Arc<DirectIo>,
        device: Box<dyn DeviceQueue>,
        depth: usize,
    ) -> Result<Self> {
        Ok(Self {
            worker: direct.context.ablations.completion_worker()?,
            direct,
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

    /// Registers an inode.
    pub(super) fn register(self: &Arc<Self>, file: DirectFile, inode: &Arc<Inode>) {
        {
            let inodes = &mut self.inner.lock().inodes;
            inodes.resize(inodes.len().max(file.number + 1), None);
            inodes[file.number] = Some(Arc::clone(inode));
        }
        inode.direct_io_or_init().add_helper(Arc::downgrade(&self.helper()));
    }

    /// Unregisters an inode; false if a request of it is under way.
    pub(super) fn unregister(self: &Arc<Self>, file: DirectFile) -> bool {
        let inode = {
            let inner = &mut *self.inner.lock();
            let is_busy = inner.slots.iter().flatten().any(|slot| slot.file == file)
                || inner.ended.in_place.iter().any(|one| one.request.file == file);
            if is_busy {
                return false;
            }
            // The inode may be registered under another number as well.
            let taken = inner.inodes[file.number].take();
            let stays = |inode: &Arc<Inode>| {
                inner.inodes.iter().flatten().any(|other| Arc::ptr_eq(other, inode))
            };
            taken.filter(|inode| !stays(inode))
        };
        if let Some(direct_io) = inode.as_ref().and_then(|inode| inode.direct_io()) {
            direct_io.remove_helper(&self.helper());
        }
        true
    }

    fn helper(self: &Arc<Self>) -> Arc<dyn Helper> {
        self.clone()
    }

    /// The right to start requests, several under one hold of the lock.
    pub(super) fn starting(&self) -> Starting<'_> {
        let mut inner = self.inner.lock();
        inner.owner = thread::slot();
        Starting::new(&self.direct, inner)
    }

    /// Starts the requests that were handed to the device.
    pub(super) fn submit(&self) -> Result<()> {
        let inner = &mut *self.inner.lock();
        let Some(device) = &mut inner.device else { return Ok(()) };
        device.submit().map_err(|error| {
            inner.lose();
            Error::io("submitting requests", error)
        })
    }

    /// Ends at least `at_least` requests, or all if there are fewer, and appends them to `told`.
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

    /// Ends all requests on the device. The next reap returns them, or meets the error.
    pub(super) fn settle(&self) {
        let mut inner = self.inner.lock();
        let on_device = inner.device.as_ref().map_or(0, |device| device.in_flight());
        if on_device > 0 {
            let _ = self.reap_device(&mut inner, on_device, false);
        }
    }

    /// Ends requests that the device has completed: at least `at_least`, if there are so many.
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
            // Fewer requests may have ended than pieces.
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

    /// Ends a piece that the device has completed. True if it was the last piece of its request.
    fn end(&self, inner: &mut Inner, reaped: QueueDone, helps: bool) -> bool {
        let QueueDone { tag, buf, result } = reaped;
        let number = (tag & ((1 << PIECE_SHIFT) - 1)) as usize;
        let slot = inner.slots.get(number).and_then(Option::as_ref);
        let is_split = slot.expect("a device completes what it was given").pieces > 1;
        let (buf, result) = if is_split {
            let piece = (tag >> PIECE_SHIFT) as usize;
            let Some(whole) = inner.splits[number].end(piece, buf, result) else { return false };
            whole
        } else {
            (buf, result)
        };
        let slot = inner.slots[number].take().expect("the slot is in use");
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
        let Slot { file, op, offset, tag, token, converts, .. } = slot;
        let inode = inode_of(&inner.inodes, file);
        let stats = &self.direct.stats;
        if helps {
            stats.helped.add(1);
        }
        if let (Some(version), Ok(())) = (converts, &result) {
            end_write(inode, token);
            let request = DirectRequest { file, op, offset, buf, tag };
            inner.ended.in_place.push(InPlace { request, version });
            return;
        }
        let len = buf.len();
        let result = result.map(|()| len).map_err(|e| Error::io("direct request", e));
        let done = DirectDone { tag, buf, result };
        if op == DirectOp::Read {
            stats.reads.add(1);
            let direct_io = inode.direct_io().expect("the section of a request has begun");
            if self.direct.keeps_access_times() {
                inode.note_direct_read(direct_io);
            }
            direct_io.read_unlock(token);
        } else {
            stats.overwrites.add(1);
            if let (Some(worker), false) = (&self.worker, helps) {
                stats.deferred.add(1);
                worker.hand_over(Completion { inode: Arc::clone(inode), token, done });
                return;
            }
            stats.inline.add(1);
            end_write(inode, token);
        }
        inner.ended.done.push(done);
    }

    /// Ends the requests under way. Requests that were not started may not be done, and blocks that
    /// are not converted stay unwritten.
    pub(super) fn close(&self) {
        let mut inner = self.inner.lock();
        let mut is_stuck = false;
        while !is_stuck && inner.device.as_ref().is_some_and(|device| device.in_flight() > 0) {
            is_stuck = self.reap_device(&mut inner, 1, false).is_err();
        }
        drop(inner.device.take());
        if is_stuck {
            // The kernel may still write to these blocks. Their files are lost to direct I/O.
            return;
        }
        let inner = &mut *inner;
        for slot in inner.slots.iter_mut().filter_map(Option::take) {
            end_write(inode_of(&inner.inodes, slot.file), slot.token);
        }
    }
}

impl Inner {
    /// Notes that the device has given the queue up. Files with requests in it keep their blocks
    /// for good.
    fn lose(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            let direct_io = inode_of(&self.inodes, slot.file).direct_io();
            direct_io.expect("the section of a request has begun").lose(&mut slot.token);
        }
    }
}

impl Helper for Requests {
    fn is_own(&self) -> bool {
        self.inner.try_lock().is_some_and(|inner| inner.owner == thread::slot())
    }

    fn help(&self) {
        if let Some(mut inner) = self.inner.try_lock() {
            // The owner meets the error as well.
            let _ = self.reap_device(&mut inner, 1, true);
        }
    }
}

/// The inode of a request that is under way.
fn inode_of(inodes: &[Option<Arc<Inode>>], file: DirectFile) -> &Arc<Inode> {
    inodes[file.number].as_ref().expect("a file with requests is registered")
}

/// Ends an overwrite. Even if it has failed it may have changed bytes.
pub(in crate::file) fn end_write(inode: &Inode, token: ReadToken) {
    let direct_io = inode.direct_io().expect("the section of a request has begun");
    inode.note_direct_write(direct_io);
    direct_io.read_unlock(token);
}
