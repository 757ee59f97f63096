//! Asynchronous requests on a device.
//!
//! # What
//! A [`DeviceQueue`] belongs to one thread at a time: it takes many requests, starts them by one
//! call, and gives them back as they complete, in any order. [`Device::queue`](crate::Device)
//! makes one. Kinds: io_uring on a file or block device, and `SyncQueue`, which makes each request
//! by the device's ordinary calls. Wrappers (record, fault, meter) always have the latter, so
//! they see every request.
//!
//! # Durability
//! As for ordinary requests: a write is complete when it was reaped with `Ok`. A `Flush` covers
//! the writes that had been reaped when it was pushed, of this queue and by any other way; it
//! promises nothing about writes that are in flight beside it.

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
    /// Writes the buffer; done when these bytes are durable (see `Device::write_fua`).
    WriteDurable,
    /// Makes complete writes durable. Offset and buffer have no meaning: see [`IoBuf::empty`].
    Flush,
}

/// One request.
#[derive(Debug)]
pub struct QueueRequest {
    /// What it does.
    pub op: QueueOp,
    /// Where, in bytes of the device.
    pub offset: u64,
    /// The bytes; come back with the completion.
    pub buf: IoBuf,
    /// The caller's number for it; comes back with the completion.
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
    /// As the device's call of that kind would have answered; `InvalidInput` as well for a request
    /// that does not fit [`DeviceQueue::alignment`].
    pub result: io::Result<()>,
}

/// One thread's asynchronous requests on a device. Dropping it waits for those in flight.
pub trait DeviceQueue: Send + Debug {
    /// Requests that it holds at most.
    fn depth(&self) -> usize;

    /// Requests that were pushed and not yet reaped.
    fn in_flight(&self) -> usize;

    /// What divides offset, length and address of each request's buffer, in bytes: 1 if anything
    /// goes. A power of two.
    fn alignment(&self) -> usize {
        1
    }

    /// Hands a request over. It starts at the next [`DeviceQueue::submit`] or
    /// [`DeviceQueue::reap`].
    ///
    /// # Errors
    /// The request itself if the queue is full. Whatever else is wrong with it is told by its
    /// completion.
    fn push(&mut self, request: QueueRequest) -> Result<(), QueueRequest>;

    /// Starts everything that was pushed.
    ///
    /// # Errors
    /// What the system says of the queue itself, not of a request. The queue is given up: it
    /// answers nothing any more, and what was in flight may still be done, at any time. It keeps
    /// the buffers of these requests for ever.
    fn submit(&mut self) -> io::Result<()>;

    /// Starts everything that was pushed, waits until at least `at_least` requests are done (or
    /// all, if fewer are in flight), and appends those that are done to `done`.
    ///
    /// # Errors
    /// As [`DeviceQueue::submit`]; what was done by then is in `done`.
    fn reap(&mut self, at_least: usize, done: &mut Vec<QueueDone>) -> io::Result<()>;
}

/// What a queue should be like.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Requests that it can hold, at least 1.
    pub depth: usize,
    /// Whether waiting may spin on the device instead of sleeping, where the device can.
    pub polled: bool,
    /// Memory to register, so that the kernel need not look its pages up for each request. Buffers
    /// of other memory serve as well.
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
