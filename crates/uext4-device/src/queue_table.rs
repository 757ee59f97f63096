//! The requests of a queue with a ring, from push to answer.
//!
//! # What
//! A place for each request that the queue can hold, and lists of the requests that are ready to
//! start, that wait for a flush or for room on the store, and that were answered. Each place
//! records whether the kernel has its request. [`Table::take_done`] takes the kernel's answers, or
//! [`Table::repeat_taken`] repeats the requests once their ring is closed. No request allocates.
//!
//! # Soundness
//! See `uring_queue`: a place owns its buffer as long as the kernel may have its address.

mod held;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use io_uring::{opcode, squeue, types};

use crate::device::{Device, check_read};
use crate::direct::Alignment;
use crate::file::FileDevice;
use crate::io_memory::IoBuf;
use crate::queue::{QueueDone, QueueOp, QueueRequest};
use crate::ring::{FILE, Ring, is_passing};
use crate::room::is_full;

/// Well below the kernel's limit for one request.
const ENTRY_MAX: usize = 1 << 30;
/// Rejections by the kernel after which a request is executed by an ordinary call.
pub(crate) const TRIES_MAX: u32 = 64;

/// A request in the queue.
pub(crate) struct Place {
    op: QueueOp,
    /// Position on the device, in bytes.
    offset: u64,
    buf: IoBuf,
    tag: u64,
    /// Bytes transferred so far.
    pub(crate) moved: usize,
    pub(crate) tries: u32,
    fixed: Option<u16>,
    /// Whether the kernel has it.
    taken: bool,
    /// Whether it found no room, and is repeated until there is some.
    held: bool,
}

/// The requests of a queue.
pub(crate) struct Table {
    device: Arc<FileDevice>,
    /// Start of the device in the file, in bytes.
    start: u64,
    pub(crate) align: Option<Alignment>,
    /// Whether `WriteDurable` is one request of the kernel.
    dsync: bool,
    /// Most bytes of one entry. A longer request is resumed, as after a short result.
    pub(crate) entry_max: usize,
    pub(crate) depth: usize,
    pub(crate) places: Vec<Place>,
    free: Vec<u32>,
    /// Requests to start; the first `pushed` are in the submission queue.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) pushed: usize,
    /// Requests that the kernel has taken.
    pub(crate) taken: usize,
    /// Requests that wait for a flush that has not started.
    flush_waiting: Vec<u32>,
    /// Requests that the flush in flight serves. It uses the place of the first.
    flush_group: Vec<u32>,
    /// Writes that are held for lack of room, and neither ready nor in the kernel.
    held: Vec<u32>,
    /// Time when these are repeated.
    retry: Option<Instant>,
    /// Answers that are not reaped yet.
    pub(crate) answered: VecDeque<QueueDone>,
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
            held: false,
        }
    }
}

impl Table {
    /// `dsync`: whether a `WriteDurable` is one request of the kernel.
    pub(crate) fn new(device: Arc<FileDevice>, depth: usize, dsync: bool) -> Table {
        Table {
            start: device.start(),
            align: device.alignment(),
            device,
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
            held: Vec::new(),
            retry: None,
            answered: VecDeque::with_capacity(depth),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.depth - self.free.len() + self.answered.len()
    }

    pub(crate) fn has_to_start(&self) -> bool {
        !self.ready.is_empty() || (self.flush_group.is_empty() && !self.flush_waiting.is_empty())
    }

    pub(crate) fn push(
        &mut self,
        request: QueueRequest,
        ring: Option<&Ring>,
    ) -> Result<(), QueueRequest> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        // There are at most as many answers as places without a request, so one is free.
        let Some(index) = self.free.pop() else { return Err(request) };
        let QueueRequest { op, offset, buf, tag } = request;
        let fixed = ring.and_then(|ring| ring.fixed(&buf));
        let checked = self.check(op, offset, &buf);
        let nothing = buf.is_empty() && matches!(op, QueueOp::Read | QueueOp::Write);
        self.places[index as usize] = Place { op, offset, buf, tag, fixed, ..Place::free() };
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

    /// Removes a request from the table.
    fn remove(&mut self, index: u32, result: io::Result<()>) -> QueueDone {
        self.let_go(index, result.is_ok());
        let place = std::mem::replace(&mut self.places[index as usize], Place::free());
        self.free.push(index);
        QueueDone { tag: place.tag, buf: place.buf, result }
    }

    fn answer(&mut self, index: u32, result: io::Result<()>) {
        let done = self.remove(index, result);
        self.answered.push_back(done);
    }

    /// Starts a flush if none is in flight and requests wait for one.
    pub(crate) fn start_flush(&mut self, ring: &Ring) {
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

    /// Flushes by the device's own call, for all waiting requests.
    fn flush_now(&mut self) {
        let result = self.device.flush();
        self.end_flush(result);
    }

    /// Answers the requests of the flush in flight, or otherwise the waiting ones.
    fn end_flush(&mut self, result: io::Result<()>) {
        let served = if self.flush_group.is_empty() {
            &mut self.flush_waiting
        } else {
            &mut self.flush_group
        };
        // The list keeps its memory, so that a flush allocates nothing.
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

    /// Moves ready requests to the submission queue.
    pub(crate) fn fill(&mut self, ring: &mut Ring) {
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

    /// Updates the table for the requests that the kernel has taken.
    pub(crate) fn note_taken(&mut self, ring: &mut Ring) {
        let took = self.pushed - ring.untaken();
        for index in self.ready.drain(..took) {
            self.places[index as usize].taken = true;
        }
        self.pushed -= took;
        self.taken += took;
    }

    /// Moves the available completions to `done` or to `answered`.
    pub(crate) fn take_done(&mut self, ring: &mut Ring, mut done: Option<&mut Vec<QueueDone>>) {
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

    /// Processes the kernel's result of a transfer.
    pub(crate) fn transferred(&mut self, index: u32, result: i32) -> Option<QueueDone> {
        let unit = self.align.map_or(1, |align| align.unit);
        let place = &mut self.places[index as usize];
        if result > 0 {
            let count = result as usize;
            place.moved += count;
            let left = place.buf.len() - place.moved;
            if left == 0 {
                self.let_go(index, true);
                let place = &self.places[index as usize];
                if place.op == QueueOp::WriteDurable && !self.dsync {
                    self.flush_waiting.push(index);
                    return None;
                }
                return Some(self.remove(index, Ok(())));
            }
            // The remainder must start at a unit.
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
        if is_full(&error) {
            if self.hold(index) {
                return None;
            }
        } else if place.op == QueueOp::WriteDurable && self.dsync {
            self.device.flushes().latch(&error);
        }
        Some(self.remove(index, Err(error)))
    }

    /// Processes the end of the flush in flight.
    pub(crate) fn flushed(&mut self, index: u32, result: i32) {
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

    /// Executes a request by the device's own call.
    fn make_now(&mut self, index: u32) -> QueueDone {
        // The call waits for room itself.
        self.let_go(index, false);
        let place = &mut self.places[index as usize];
        let result = match place.op {
            QueueOp::Read => self.device.read_at(place.offset, &mut place.buf),
            QueueOp::Write => self.device.write_at(place.offset, &place.buf),
            QueueOp::WriteDurable => self.device.write_fua(place.offset, &place.buf),
            QueueOp::Flush => self.device.flush(),
        };
        self.remove(index, result)
    }

    /// Executes all requests by the device's own calls. None is in the kernel.
    pub(crate) fn make_all(&mut self) {
        self.make_held_ready();
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

    /// Makes the requests ready again that a closed ring had taken, because their answers are lost.
    pub(crate) fn repeat_taken(&mut self) {
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

    /// Looks up again under which indices the buffers are registered.
    pub(crate) fn name_buffers(&mut self, ring: Option<&Ring>) {
        for place in &mut self.places {
            place.fixed = ring.and_then(|ring| ring.fixed(&place.buf));
        }
    }
}

fn may_repeat(error: &io::Error) -> bool {
    is_passing(error) || error.raw_os_error() == Some(libc::ECANCELED)
}
