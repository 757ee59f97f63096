//! Asynchronous requests on a device.
//!
//! # What
//! A [`DeviceQueue`] belongs to one thread at a time. It takes many requests, starts them by one
//! call and returns them as they complete, in any order. [`Device::queue`](crate::Device) creates
//! one. Its kind is io_uring on a file or block device, and otherwise `SyncQueue`, which executes
//! each request by the device's ordinary calls. Wrappers (record, fault, meter) always have the
//! latter, so they see every request.
//!
//! # Durability
//! A write is complete when it was reaped with `Ok`. A `Flush` covers the writes that were complete
//! when it was pushed, of this queue or not. It promises nothing about writes in flight.

use std::fmt::Debug;
use std::io;

use crate::io_memory::{IoBuf, IoMemory};

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueOp {
    /// Fills the buffer.
    Read,
    /// Writes the buffer.
    Write,
    /// Writes the buffer; complete when these bytes are durable (see `Device::write_fua`).
    WriteDurable,
    /// Makes complete writes durable. Offset and buffer have no meaning: see [`IoBuf::empty`].
    Flush,
}

/// One request.
#[derive(Debug)]
pub struct QueueRequest {
    /// What it does.
    pub op: QueueOp,
    /// Position on the device, in bytes.
    pub offset: u64,
    /// The bytes. The completion returns them.
    pub buf: IoBuf,
    /// A number of the caller's choice. The completion returns it.
    pub tag: u64,
}

/// One completion. A request is served whole or fails; after a failed write any part of its range
/// may have changed, after a failed read any byte of its buffer.
#[derive(Debug)]
pub struct QueueDone {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer.
    pub buf: IoBuf,
    /// The result of the device's call of that kind; also `InvalidInput` for a request that does
    /// not fit [`DeviceQueue::alignment`].
    pub result: io::Result<()>,
}

/// One thread's asynchronous requests on a device. Dropping it waits for those in flight.
pub trait DeviceQueue: Send + Debug {
    /// Most requests that it holds.
    fn depth(&self) -> usize;

    /// Requests that were pushed and not yet reaped.
    fn in_flight(&self) -> usize;

    /// Required alignment of offset, length and buffer address of each request, in bytes: a power
    /// of two.
    fn alignment(&self) -> usize {
        1
    }

    /// Adds a request. It starts at the next [`DeviceQueue::submit`] or
    /// [`DeviceQueue::reap`].
    ///
    /// # Errors
    /// The request itself if the queue is full. Its completion reports every other problem.
    fn push(&mut self, request: QueueRequest) -> Result<(), QueueRequest>;

    /// Starts everything that was pushed.
    ///
    /// # Errors
    /// An error of the system that concerns the queue itself, not a request. The queue is then
    /// given up: it answers no more, and requests in flight may still be executed at any time. It
    /// keeps their buffers for ever.
    fn submit(&mut self) -> io::Result<()>;

    /// Starts everything that was pushed, waits until at least `at_least` requests (or all, if
    /// fewer are in flight) are complete, and appends the complete ones to `done`.
    ///
    /// # Errors
    /// Those of [`DeviceQueue::submit`]; what was done by then is in `done`.
    fn reap(&mut self, at_least: usize, done: &mut Vec<QueueDone>) -> io::Result<()>;
}

/// Options of a queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Most requests that it holds, at least 1.
    pub depth: usize,
    /// Whether waiting may poll the device instead of sleeping, if the device can.
    pub polled: bool,
    /// Memory to register, so that the kernel does not look up its pages for each request. Buffers
    /// in other memory work too.
    pub memory: Vec<IoMemory>,
}

impl QueueOptions {
    /// Largest depth.
    pub const DEPTH_MAX: usize = 4096;

    /// A queue that sleeps, with no memory registered.
    #[must_use]
    pub fn new(depth: usize) -> QueueOptions {
        QueueOptions { depth, polled: false, memory: Vec::new() }
    }

    /// Checks the depth.
    pub(crate) fn check(&self) -> io::Result<()> {
        if (1..=QueueOptions::DEPTH_MAX).contains(&self.depth) {
            return Ok(());
        }
        let line = format!("a queue of {} requests: from 1 to {}", self.depth, Self::DEPTH_MAX);
        Err(io::Error::new(io::ErrorKind::InvalidInput, line))
    }
}
