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
//! # Threads
//! The ring is of the thread that first submits (see `queue_ring`). On another thread the queue
//! closes it, waits for the kernel to be done with it, and makes a new one. Answers that were in
//! the old one are lost with it, so those requests are made again: their buffers and ranges are
//! still theirs alone. A flush is repeated through the device's file, which has not yet reported
//! the error that the lost answer may have told.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{opcode, squeue, types};

use crate::device::{Device, check_read};
use crate::direct::Alignment;
use crate::file::FileDevice;
use crate::io_memory::IoBuf;
use crate::queue::{DeviceQueue, QueueDone, QueueOp, QueueOptions, QueueRequest};
use crate::queue_ring::{FILE, QueueRing};
use crate::ring::{IDLE_MAX, IDLE_WAIT, is_passing};

/// Well below what the kernel transfers at most by one request.
const ENTRY_MAX: usize = 1 << 30;
/// Times that the kernel may turn a request away before it is made by an ordinary call.
const TRIES_MAX: u32 = 64;
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

/// A request in the queue.
struct Place {
    op: QueueOp,
    /// In the device, in bytes.
    offset: u64,
    buf: IoBuf,
    tag: u64,
    /// Bytes that were transferred.
    moved: usize,
    tries: u32,
    fixed: Option<u16>,
    /// Whether the kernel has it.
    taken: bool,
}

/// The requests of a queue.
struct Table {
    device: Arc<FileDevice>,
    /// Where byte 0 of the device lies in the file, in bytes.
    start: u64,
    align: Option<Alignment>,
    /// Whether `WriteDurable` is one request of the kernel.
    dsync: bool,
    /// Bytes that one entry asks for at most; what is longer is a short result, and resumed.
    entry_max: usize,
    depth: usize,
    places: Vec<Place>,
    free: Vec<u32>,
    /// Requests to start; the first `pushed` are in the submission queue.
    ready: VecDeque<u32>,
    pushed: usize,
    /// Requests that the kernel has taken.
    taken: usize,
    /// Requests that wait for a flush that is yet to start.
    flush_waiting: Vec<u32>,
    /// Requests that the flush in flight serves; the first of them is its place.
    flush_group: Vec<u32>,
    /// Answers that nobody has reaped.
    answered: VecDeque<QueueDone>,
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
        let depth = options.depth;
        let table = Table {
            device,
            start,
            align,
            dsync,
            entry_max: ENTRY_MAX,
            depth,
            places: (0..depth).map(|_| Place::free()).collect(),
            free: (0..depth as u32).rev().collect(),
            ready: VecDeque::with_capacity(depth),
            pushed: 0,
            taken: 0,
            flush_waiting: Vec::with_capacity(depth),
            flush_group: Vec::with_capacity(depth),
            answered: VecDeque::with_capacity(depth),
        };
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
        let entered = ring.enter(want.min(self.table.taken + self.table.pushed));
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
            if let Some(ring) = &mut self.ring {
                self.table.take_done(ring, Some(done));
            }
            done.extend(self.table.answered.drain(..));
            let got = done.len() - before;
            let work = self.ring.as_mut().is_some_and(|ring| got == 0 && ring.has_work());
            if got >= want && !self.table.has_to_start() && !work {
                return Ok(());
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
        if !self.stuck && self.close_ring(true).is_ok() {
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

impl Place {
    fn free() -> Place {
        Place {
            op: QueueOp::Flush,
            offset: 0,
            buf: IoBuf::empty(),
            tag: 0,
            moved: 0,
            tries: 0,
            fixed: None,
            taken: false,
        }
    }
}

impl Table {
    fn in_flight(&self) -> usize {
        self.depth - self.free.len() + self.answered.len()
    }

    fn has_to_start(&self) -> bool {
        !self.ready.is_empty() || (self.flush_group.is_empty() && !self.flush_waiting.is_empty())
    }

    fn push(
        &mut self,
        request: QueueRequest,
        ring: Option<&QueueRing>,
    ) -> Result<(), QueueRequest> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        // Not more answers than places without a request, so there is one.
        let Some(index) = self.free.pop() else { return Err(request) };
        let QueueRequest { op, offset, buf, tag } = request;
        let fixed = ring.and_then(|ring| ring.fixed(&buf));
        let checked = self.check(op, offset, &buf);
        let nothing = buf.is_empty() && matches!(op, QueueOp::Read | QueueOp::Write);
        self.places[index as usize] =
            Place { op, offset, buf, tag, moved: 0, tries: 0, fixed, taken: false };
        match checked {
            Ok(()) if nothing => self.answer(index, Ok(())),
            Ok(()) if op == QueueOp::Flush => self.flush_waiting.push(index),
            Ok(()) => self.ready.push_back(index),
            Err(error) => self.answer(index, Err(error)),
        }
        Ok(())
    }

    fn check(&self, op: QueueOp, offset: u64, buf: &IoBuf) -> io::Result<()> {
        match op {
            QueueOp::Flush => return Ok(()),
            QueueOp::Read => check_read(self.device.len(), offset, buf.len())?,
            QueueOp::Write => self.device.check_change(offset, buf.len() as u64)?,
            QueueOp::WriteDurable => {
                self.device.check_change(offset, buf.len() as u64)?;
                self.device.flushes().check()?;
            }
        }
        match self.align {
            Some(align)
                if !buf.is_empty()
                    && (!align.fits(self.start + offset, buf.len()) || !align.fits_memory(buf)) =>
            {
                let line = format!(
                    "request of {} bytes at {offset}: not in units of {} bytes, in memory of {}",
                    buf.len(),
                    align.unit,
                    align.memory
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, line))
            }
            _ => Ok(()),
        }
    }

    /// Takes a request off the table.
    fn remove(&mut self, index: u32, result: io::Result<()>) -> QueueDone {
        let place = std::mem::replace(&mut self.places[index as usize], Place::free());
        self.free.push(index);
        QueueDone { tag: place.tag, buf: place.buf, result }
    }

    fn answer(&mut self, index: u32, result: io::Result<()>) {
        let done = self.remove(index, result);
        self.answered.push_back(done);
    }

    /// Starts a flush if none is in flight and requests wait for one.
    fn start_flush(&mut self, ring: &QueueRing) {
        if !self.flush_group.is_empty() || self.flush_waiting.is_empty() {
            return;
        }
        if ring.is_polled() || self.device.read_only() {
            // A polled ring takes no flushes; a read-only device needs none.
            return self.flush_now();
        }
        if let Err(error) = self.device.flushes().check() {
            return self.end_flush(Err(error));
        }
        std::mem::swap(&mut self.flush_waiting, &mut self.flush_group);
        self.places[self.flush_group[0] as usize].tries = 0;
        self.ready.push_back(self.flush_group[0]);
    }

    /// Flushes by the device's own call, for all that wait.
    fn flush_now(&mut self) {
        let result = self.device.flush();
        self.end_flush(result);
    }

    /// Answers the requests of the flush in flight, or else those that wait.
    fn end_flush(&mut self, result: io::Result<()>) {
        let served = if self.flush_group.is_empty() {
            &mut self.flush_waiting
        } else {
            &mut self.flush_group
        };
        // Kept for its memory: a flush allocates nothing.
        let mut indices = std::mem::take(served);
        let errno = result.err().map(|error| error.raw_os_error().unwrap_or(libc::EIO));
        for index in indices.drain(..) {
            let result = errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
            self.answer(index, result);
        }
        if self.flush_group.capacity() == 0 {
            self.flush_group = indices;
        } else {
            self.flush_waiting = indices;
        }
    }

    fn is_flushing(&self, index: u32) -> bool {
        self.flush_group.first() == Some(&index)
    }

    /// Puts what is ready into the submission queue.
    fn fill(&mut self, ring: &mut QueueRing) {
        while self.pushed < self.ready.len() {
            let entry = self.entry(self.ready[self.pushed]);
            // SAFETY: the place owns the buffer until the request was answered or the ring is
            // dropped without having taken it; see Soundness above.
            if unsafe { ring.push(&entry) }.is_err() {
                return;
            }
            self.pushed += 1;
        }
    }

    fn entry(&self, index: u32) -> squeue::Entry {
        let place = &self.places[index as usize];
        if self.is_flushing(index) {
            let fsync = opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC);
            return fsync.build().user_data(index.into());
        }
        let at = self.start + place.offset + place.moved as u64;
        let address = place.buf.address().wrapping_add(place.moved);
        let len = (place.buf.len() - place.moved).min(self.entry_max) as u32;
        let durable = place.op == QueueOp::WriteDurable && self.dsync;
        let flags = if durable { libc::RWF_DSYNC } else { 0 };
        let entry = match (place.op, place.fixed) {
            (QueueOp::Read, Some(fixed)) => {
                opcode::ReadFixed::new(FILE, address, len, fixed).offset(at).build()
            }
            (QueueOp::Read, None) => opcode::Read::new(FILE, address, len).offset(at).build(),
            (_, Some(fixed)) => opcode::WriteFixed::new(FILE, address, len, fixed)
                .offset(at)
                .rw_flags(flags)
                .build(),
            (_, None) => opcode::Write::new(FILE, address, len).offset(at).rw_flags(flags).build(),
        };
        entry.user_data(index.into())
    }

    /// Sees how many requests the kernel took.
    fn note_taken(&mut self, ring: &mut QueueRing) {
        let took = self.pushed - ring.untaken();
        for index in self.ready.drain(..took) {
            self.places[index as usize].taken = true;
        }
        self.pushed -= took;
        self.taken += took;
    }

    /// Takes the completions that are there, to `done` or to `answered`.
    fn take_done(&mut self, ring: &mut QueueRing, mut done: Option<&mut Vec<QueueDone>>) {
        for entry in ring.completions() {
            self.taken -= 1;
            let index = entry.user_data() as u32;
            self.places[index as usize].taken = false;
            if self.is_flushing(index) {
                self.flushed(index, entry.result());
            } else if let Some(answer) = self.transferred(index, entry.result()) {
                match &mut done {
                    Some(done) => done.push(answer),
                    None => self.answered.push_back(answer),
                }
            }
        }
    }

    /// The kernel has transferred something, or failed.
    fn transferred(&mut self, index: u32, result: i32) -> Option<QueueDone> {
        let unit = self.align.map_or(1, |align| align.unit);
        let place = &mut self.places[index as usize];
        if result > 0 {
            let count = result as usize;
            place.moved += count;
            let left = place.buf.len() - place.moved;
            if left == 0 {
                if place.op == QueueOp::WriteDurable && !self.dsync {
                    self.flush_waiting.push(index);
                    return None;
                }
                return Some(self.remove(index, Ok(())));
            }
            // The rest must start at a unit.
            place.moved -= place.moved % unit;
            if count >= unit {
                self.ready.push_back(index);
                return None;
            }
        }
        let error = match result {
            0 if place.op == QueueOp::Read => io::ErrorKind::UnexpectedEof.into(),
            0 => io::ErrorKind::WriteZero.into(),
            1.. => io::Error::from_raw_os_error(libc::EAGAIN),
            errno => io::Error::from_raw_os_error(-errno),
        };
        if may_repeat(&error) {
            place.tries += 1;
            if place.tries < TRIES_MAX {
                self.ready.push_back(index);
                return None;
            }
            return Some(self.make_now(index));
        }
        if place.op == QueueOp::WriteDurable && self.dsync {
            self.device.flushes().latch(&error);
        }
        Some(self.remove(index, Err(error)))
    }

    /// The flush in flight has ended.
    fn flushed(&mut self, index: u32, result: i32) {
        let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
        let place = &mut self.places[index as usize];
        match result {
            Err(error) if may_repeat(&error) => {
                place.tries += 1;
                if place.tries < TRIES_MAX { self.ready.push_back(index) } else { self.flush_now() }
            }
            Err(error) => {
                self.device.flushes().latch(&error);
                self.end_flush(Err(error));
            }
            Ok(()) => self.end_flush(Ok(())),
        }
    }

    /// Makes a request by the device's own call.
    fn make_now(&mut self, index: u32) -> QueueDone {
        let place = &mut self.places[index as usize];
        let result = match place.op {
            QueueOp::Read => self.device.read_at(place.offset, &mut place.buf),
            QueueOp::Write => self.device.write_at(place.offset, &place.buf),
            QueueOp::WriteDurable => self.device.write_fua(place.offset, &place.buf),
            QueueOp::Flush => self.device.flush(),
        };
        self.remove(index, result)
    }

    /// Makes everything by the device's own calls. Nothing is in the kernel.
    fn make_all(&mut self) {
        if !self.flush_group.is_empty() {
            self.ready.retain(|index| *index != self.flush_group[0]);
            self.flush_now();
        }
        while let Some(index) = self.ready.pop_front() {
            let done = self.make_now(index);
            self.answered.push_back(done);
        }
        if !self.flush_waiting.is_empty() {
            self.flush_now();
        }
    }

    /// Makes ready again what a ring that is now closed had taken; its answers are unknown.
    fn repeat_taken(&mut self) {
        self.taken = 0;
        for index in 0..self.depth as u32 {
            let flushing = self.is_flushing(index);
            if std::mem::take(&mut self.places[index as usize].taken) && !flushing {
                self.ready.push_back(index);
            }
        }
        if !self.flush_group.is_empty() {
            self.ready.retain(|index| *index != self.flush_group[0]);
            self.flush_now();
        }
    }

    /// Looks up again under which numbers the buffers are registered.
    fn name_buffers(&mut self, ring: Option<&QueueRing>) {
        for place in &mut self.places {
            place.fixed = ring.and_then(|ring| ring.fixed(&place.buf));
        }
    }
}

fn may_repeat(error: &io::Error) -> bool {
    is_passing(error) || error.raw_os_error() == Some(libc::ECANCELED)
}

fn stuck() -> io::Error {
    let line = "the kernel does not end the requests of a queue; it is given up";
    io::Error::new(io::ErrorKind::TimedOut, line)
}

#[cfg(test)]
#[path = "uring_queue_tests.rs"]
mod tests;
