//! Asynchronous requests on a file or block device, by io_uring.
//!
//! # What
//! One ring a queue, on an open file of its own. A request costs a place in a table, an entry in
//! each of the ring's queues, and no allocation; nothing of it is shared with another thread.
//! Short results are resumed, interrupted ones repeated, and what the ring cannot do (it breaks, or
//! a request is turned away again and again) is made by the device's ordinary calls. An error of
//! the medium, a vanished device included, is the request's answer.
//!
//! # Durability
//! - `Flush` is an `fdatasync` on the ring, one at a time: the kernel reports a writeback error
//!   once per open file, and of two flushes in flight one could take the other's. Those that come
//!   meanwhile share the next. A failure is latched for the whole device (see `group_flush`).
//! - `WriteDurable` is a write with `RWF_DSYNC` where that costs least and hides nothing: past the
//!   page cache of a file. On a block device the kernel adds a flush to each such write, and
//!   through the page cache it reports errors as above; there the write joins the next flush.
//!
//! # Units
//! The queue takes no part in `Direct::share_units`. Its requests are whole units; whoever changes
//! a part of one of these units at the same time writes bytes that the request writes too, which no
//! caller of a device may do. The lock guards two writers of *different* parts of one unit.
//!
//! # Soundness
//! The kernel reads and writes buffers by address from the moment it takes a request until its
//! completion is reaped. **The table owns the `IoBuf` of each request for all of that time**: a
//! place is emptied only by the completion of its request, or while the kernel does not have it
//! (`ready`). Dropping the queue waits for what the kernel has taken; should that ever be in vain,
//! the table is never freed and the queue serves nobody any more.
//!
//! # Waiting
//! A wait for one of many answers is prolonged by some microseconds to gather several
//! ([`QueueRing::enter_gathering`]): each time that a thread is woken costs more than a request.
//!
//! # Room
//! A write for which the store has no room is held, as of any other way (see `room`), but by the
//! queue: it is made again from time to time, and answered when it succeeds or time has run out.
//! Reaping goes on with the others, and waits for room when nothing else is left to wait for.
//!
//! # Threads
//! The ring is of the thread that first submits (see `queue_ring`). On another thread the queue
//! closes it, waits for the kernel to be done with it, and makes a new one. Answers that were in
//! the old one are lost with it, so those requests are made again: their buffers and ranges are
//! still theirs alone. A flush is repeated through the device's file, which has not yet reported
//! the error that the lost answer may have told.

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use crate::file::FileDevice;
use crate::queue::{DeviceQueue, QueueDone, QueueOptions, QueueRequest};
use crate::queue_ring::QueueRing;
use crate::queue_table::Table;
use crate::ring::{IDLE_MAX, IDLE_WAIT, is_passing};

/// Who waits for one of many is woken for several at once: at most this share of those in flight,
/// so that the device is never short of work for it, and not more than `GATHER_MAX`.
const GATHER_SHARE: usize = 8;
const GATHER_MAX: usize = 8;
/// How long the kernel may take to close a ring, the slowest medium's requests included.
const STUCK_WAIT: Duration = Duration::from_secs(60);
/// How long the end of a queue waits for the kernel to let go of the file.
const END_WAIT: Duration = Duration::from_secs(1);

/// A queue with a ring.
pub(crate) struct UringQueue {
    /// None once the ring broke: requests are then made when they are submitted.
    ring: Option<QueueRing>,
    table: ManuallyDrop<Table>,
    /// Whether the kernel may have buffers of the table for ever.
    stuck: bool,
    /// What the ring is registered with, and what a new one would be.
    file: File,
    options: QueueOptions,
}

impl UringQueue {
    /// Makes a queue for a device.
    ///
    /// # Errors
    /// What the system says: it has no io_uring for us.
    pub(crate) fn open(device: Arc<FileDevice>, options: &QueueOptions) -> io::Result<UringQueue> {
        let file = device.reopened().ok_or_else(|| io::Error::other("/proc is not there"))?;
        let (start, align) = (device.start(), device.alignment());
        let mut options = options.clone();
        options.polled &= align.is_some_and(|align| QueueRing::can_poll(&file, start, align));
        let ring = QueueRing::open(&file, options.depth, options.polled, &options.memory)?;
        let dsync = align.is_some() && !device.is_block_device() && !options.polled;
        let table = Table::new(device, options.depth, dsync);
        let (ring, table) = (Some(ring), ManuallyDrop::new(table));
        Ok(UringQueue { ring, table, stuck: false, file, options })
    }

    /// Starts what is ready and takes what is done; waits for `want` more answers at most once.
    fn step(&mut self, want: usize, done: Option<&mut Vec<QueueDone>>) -> io::Result<()> {
        if self.stuck {
            return Err(stuck());
        }
        let Some(ring) = &mut self.ring else {
            self.table.make_all();
            return Ok(());
        };
        self.table.start_flush(ring);
        self.table.fill(ring);
        let in_kernel = self.table.taken + self.table.pushed;
        let gather = (in_kernel / GATHER_SHARE).min(GATHER_MAX);
        let entered = ring.enter_gathering(want.min(in_kernel), gather);
        self.table.note_taken(ring);
        self.table.take_done(ring, done);
        entered
    }

    /// Goes on after a failed `step`. `idle` counts those in a row without progress.
    fn recover(&mut self, error: io::Error, idle: &mut u32, moved: bool) -> io::Result<()> {
        if self.stuck {
            return Err(error);
        }
        *idle = if moved { 0 } else { *idle + 1 };
        if QueueRing::is_of_another_thread(&error) {
            return self.move_here();
        }
        if is_passing(&error) && *idle < IDLE_MAX {
            if *idle > 1 {
                std::thread::sleep(IDLE_WAIT);
            }
            return Ok(());
        }
        self.close_ring(false)
    }

    /// Waits for what the kernel has taken and gives the ring up; the rest is made without one.
    /// `ends`: there will be no other.
    fn close_ring(&mut self, ends: bool) -> io::Result<()> {
        let mut idle = 0;
        while self.table.taken > 0
            && let Some(ring) = &mut self.ring
        {
            let taken = self.table.taken;
            let waited = ring.wait();
            self.table.take_done(ring, None);
            match waited {
                Ok(()) => idle = 0,
                Err(_) if self.table.taken < taken => idle = 0,
                Err(error) if is_passing(&error) && idle < IDLE_MAX => {
                    idle += 1;
                    std::thread::sleep(IDLE_WAIT);
                }
                Err(_) => break,
            }
        }
        // Entries that the kernel never took go with the ring: it is not entered again.
        self.table.pushed = 0;
        let Some(ring) = self.ring.take() else { return Ok(()) };
        if self.table.taken > 0 {
            if !ring.close_and_wait(STUCK_WAIT) {
                self.stuck = true;
                return Err(stuck());
            }
            self.table.repeat_taken();
        } else if ends {
            // The kernel lets go of the file only then, and until then a block device is in use.
            ring.close_and_wait(END_WAIT);
        }
        Ok(())
    }

    /// Takes the queue over from the thread whose ring it was.
    fn move_here(&mut self) -> io::Result<()> {
        self.close_ring(false)?;
        let QueueOptions { depth, polled, memory } = &self.options;
        // Without a ring requests are made one by one.
        self.ring = QueueRing::open(&self.file, *depth, *polled, memory).ok();
        self.table.name_buffers(self.ring.as_ref());
        Ok(())
    }
}

impl DeviceQueue for UringQueue {
    fn depth(&self) -> usize {
        self.table.depth
    }

    fn in_flight(&self) -> usize {
        self.table.in_flight()
    }

    fn alignment(&self) -> usize {
        self.table.align.map_or(1, |align| align.unit.max(align.memory))
    }

    fn push(&mut self, request: QueueRequest) -> Result<(), QueueRequest> {
        self.table.push(request, self.ring.as_ref())
    }

    fn submit(&mut self) -> io::Result<()> {
        let mut idle = 0;
        self.table.retry_held();
        while self.table.has_to_start() {
            let (taken, answered) = (self.table.taken, self.table.answered.len());
            let stepped = self.step(0, None);
            let moved = self.table.taken != taken || self.table.answered.len() != answered;
            match stepped {
                // A flush that must wait for the one in flight starts when that is reaped.
                Ok(()) if !moved => return Ok(()),
                Ok(()) => {}
                Err(error) => self.recover(error, &mut idle, moved)?,
            }
        }
        Ok(())
    }

    fn reap(&mut self, at_least: usize, done: &mut Vec<QueueDone>) -> io::Result<()> {
        let before = done.len();
        let want = at_least.min(self.in_flight());
        let mut idle = 0;
        loop {
            self.table.retry_held();
            if let Some(ring) = &mut self.ring {
                self.table.take_done(ring, Some(done));
            }
            done.extend(self.table.answered.drain(..));
            let got = done.len() - before;
            let work = self.ring.as_mut().is_some_and(|ring| got == 0 && ring.has_work());
            if got >= want && !self.table.has_to_start() && !work {
                return Ok(());
            }
            if got < want && self.table.waits_for_room() {
                self.table.wait_for_room();
            }
            let taken = self.table.taken;
            let stepped = self.step(want.saturating_sub(got), Some(done));
            done.extend(self.table.answered.drain(..));
            let moved = self.table.taken != taken || done.len() - before > got;
            match stepped {
                Ok(()) if done.len() - before >= want => return Ok(()),
                Ok(()) => idle = 0,
                Err(error) => self.recover(error, &mut idle, moved)?,
            }
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // Those in the kernel are waited for; the others never start.
        let is_drained = !self.stuck && self.close_ring(true).is_ok();
        self.table.let_all_go();
        if is_drained {
            // SAFETY: dropped once, here, and used by nobody afterwards.
            unsafe { ManuallyDrop::drop(&mut self.table) }
        }
    }
}

impl fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringQueue")
            .field("depth", &self.table.depth)
            .field("in_flight", &self.table.in_flight())
            .field("fixed", &self.ring.as_ref().is_some_and(|ring| ring.has_fixed()))
            .field("polled", &self.ring.as_ref().is_some_and(|ring| ring.is_polled()))
            .finish_non_exhaustive()
    }
}

fn stuck() -> io::Error {
    let line = "the kernel does not end the requests of a queue; it is given up";
    io::Error::new(io::ErrorKind::TimedOut, line)
}

#[cfg(test)]
#[path = "uring_queue_tests.rs"]
mod tests;
