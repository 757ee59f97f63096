//! Asynchronous requests on a file or block device, by io_uring.
//!
//! # What
//! Each queue has one ring, on an open file of its own. A request needs a place in a table, an
//! entry in each of the ring's queues, and no allocation. It shares nothing with other threads.
//! Short results are resumed and interrupted requests repeated. If the ring breaks, or rejects a
//! request again and again, the device's ordinary calls execute the requests. An error of the
//! medium, including a vanished device, is the answer of its request.
//!
//! # Durability
//! - `Flush` is an `fdatasync` on the ring, one at a time, because the kernel reports a writeback
//!   error once per open file, and one of two flushes in flight could get the other's error. Later
//!   requests share the next flush. A failure is latched for the whole device (see `flush_latch`).
//! - `WriteDurable` is a write with `RWF_DSYNC` on a file that bypasses the page cache, where that
//!   is cheapest and hides no error. On a block device the kernel adds a flush to each such write,
//!   and through the page cache it reports errors as above. In both cases the write joins the next
//!   flush.
//!
//! # Units
//! The queue does not use `Direct::share_units`. Its requests are whole units, so a concurrent
//! writer of a part of such a unit would write the same bytes, which callers of a device may not
//! do. The lock is for two writers of *different* parts of one unit.
//!
//! # Soundness
//! The kernel reads and writes buffers by address from the moment it takes a request until its
//! completion is reaped. **The table owns the `IoBuf` of each request for all of that time**: a
//! place is emptied only by the completion of its request, or while the kernel does not have it
//! (`ready`). Dropping the queue waits for the requests that the kernel has taken. If that wait
//! fails, the table is never freed and the queue serves no more requests.
//!
//! # Waiting
//! A wait for one of many answers is prolonged by some microseconds to gather several
//! ([`Ring::enter_gathering`]), because a wake-up costs more than a request.
//!
//! # Room
//! The queue itself holds a write for which the store has no room (see `room`). It repeats the
//! write from time to time, and answers it when it succeeds or the time is over. Reaping continues
//! with the others, and waits for room when nothing else is left to wait for.
//!
//! # Threads
//! The ring belongs to the thread that first submits (see `ring`). On another thread the
//! queue closes it, waits until the kernel has finished with it, and creates a new one. Answers in
//! the old ring are lost, so these requests are repeated; their buffers and ranges are still
//! exclusive. A flush is repeated through the device's file, which has not yet reported the error
//! that the lost answer may have had.

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use crate::file::FileDevice;
use crate::queue::{DeviceQueue, QueueDone, QueueOptions, QueueRequest};
use crate::queue_table::Table;
use crate::ring::{IDLE_MAX, IDLE_WAIT, Ring, Users, is_passing};

/// A wait for one of many answers ends with several at once: at most this share of those in flight,
/// so that the device does not run out of work, and at most `GATHER_MAX`.
const GATHER_SHARE: usize = 8;
const GATHER_MAX: usize = 8;
/// Longest time for the kernel to close a ring, including requests to the slowest medium.
const STUCK_WAIT: Duration = Duration::from_secs(60);
/// Longest time that the end of a queue waits for the kernel to release the file.
const END_WAIT: Duration = Duration::from_secs(1);

/// A queue with a ring.
pub(crate) struct UringQueue {
    /// `None` once the ring broke. Requests are then executed when they are submitted.
    ring: Option<Ring>,
    table: ManuallyDrop<Table>,
    /// Whether the kernel may use buffers of the table for ever.
    stuck: bool,
    /// The options for this ring and for a new one.
    file: File,
    options: QueueOptions,
}

impl UringQueue {
    /// Creates a queue for a device.
    ///
    /// # Errors
    /// The error with which the system refuses io_uring.
    pub(crate) fn open(device: Arc<FileDevice>, options: &QueueOptions) -> io::Result<UringQueue> {
        let file = device.reopened().ok_or_else(|| io::Error::other("/proc is not there"))?;
        let (start, align) = (device.start(), device.alignment());
        let mut options = options.clone();
        options.polled &= align.is_some_and(|align| Ring::can_poll(&file, start, align));
        let ring = Ring::open(
            &file,
            options.depth,
            Users::One { polled: options.polled },
            &options.memory,
        )?;
        let dsync = align.is_some() && !device.is_block_device() && !options.polled;
        let table = Table::new(device, options.depth, dsync);
        let (ring, table) = (Some(ring), ManuallyDrop::new(table));
        Ok(UringQueue { ring, table, stuck: false, file, options })
    }

    /// Starts the ready requests and takes the available answers. Waits at most once, for `want`
    /// more answers.
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

    /// Continues after a failed `step`. `idle` counts consecutive steps without progress.
    fn recover(&mut self, error: io::Error, idle: &mut u32, moved: bool) -> io::Result<()> {
        if self.stuck {
            return Err(error);
        }
        *idle = if moved { 0 } else { *idle + 1 };
        if Ring::is_of_another_thread(&error) {
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

    /// Waits for the requests that the kernel has taken and gives up the ring. The other requests
    /// are executed without a ring. `ends`: no new ring follows.
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
        // Entries that the kernel never took are dropped with the ring, which is not entered again.
        self.table.pushed = 0;
        let Some(ring) = self.ring.take() else { return Ok(()) };
        if self.table.taken > 0 {
            if !ring.close_and_wait(STUCK_WAIT) {
                self.stuck = true;
                return Err(stuck());
            }
            self.table.repeat_taken();
        } else if ends {
            // The kernel releases the file only then. Until then a block device is in use.
            ring.close_and_wait(END_WAIT);
        }
        Ok(())
    }

    /// Takes over the queue from the thread that owned its ring.
    fn move_here(&mut self) -> io::Result<()> {
        self.close_ring(false)?;
        let QueueOptions { depth, polled, memory } = &self.options;
        // Without a ring, requests are executed one by one.
        self.ring = Ring::open(&self.file, *depth, Users::One { polled: *polled }, memory).ok();
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
        // Requests in the kernel are waited for. The others never start.
        let is_drained = !self.stuck && self.close_ring(true).is_ok();
        self.table.let_all_go();
        if is_drained {
            // SAFETY: dropped once, here, and not used afterwards.
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
mod tests;
