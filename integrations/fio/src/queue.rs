// SPDX-License-Identifier: GPL-2.0-only
//! One job's queued direct requests.
//!
//! # What
//! [`Queue`] is a `DirectQueue` over the buffers that fio cuts from one piece of memory. A request
//! names its bytes by their place in it. What was reaped and did not fit into the caller's array
//! comes first the next time.

use uext4::{DirectDone, DirectFile, DirectOp, DirectOptions, DirectQueue, DirectRequest};
use uext4::{Ino, IoBuf, IoMemory};

use crate::file::File;
use crate::line::Result;
use crate::session::Session;

/// A queue and the files that it knows.
#[derive(Debug)]
pub struct Queue {
    requests: DirectQueue,
    memory: IoMemory,
    files: Vec<(Ino, DirectFile)>,
    done: Vec<DirectDone>,
}

impl Queue {
    /// A queue of `depth` requests whose buffers are of `memory`.
    ///
    /// # Errors
    /// A depth that no queue has; what the system says.
    pub fn new(session: &Session, depth: usize, memory: IoMemory) -> Result<Self> {
        let options = DirectOptions { depth, polled: false, memory: vec![memory.clone()] };
        let requests = session.volume().direct_queue(options)?;
        Ok(Self { requests, memory, files: Vec::new(), done: Vec::with_capacity(depth) })
    }

    /// The memory, to name buffers of.
    #[must_use]
    pub fn memory(&self) -> &IoMemory {
        &self.memory
    }

    /// Hands a request over; false if the queue is full.
    ///
    /// # Errors
    /// The file cannot be known to the queue.
    pub fn push(
        &mut self,
        file: &File,
        op: DirectOp,
        offset: u64,
        buf: IoBuf,
        tag: u64,
    ) -> Result<bool> {
        let file = self.number_of(file)?;
        Ok(self.requests.push(DirectRequest { file, op, offset, buf, tag }).is_ok())
    }

    /// A job has few files, and mostly one.
    fn number_of(&mut self, file: &File) -> Result<DirectFile> {
        let ino = file.inode().ino();
        if let Some((_, number)) = self.files.iter().find(|(known, _)| *known == ino) {
            return Ok(*number);
        }
        let number = self.requests.register(file.inode())?;
        self.files.push((ino, number));
        Ok(number)
    }

    /// Starts what was pushed.
    ///
    /// # Errors
    /// What the system says of the queue.
    pub fn submit(&mut self) -> Result<()> {
        Ok(self.requests.submit()?)
    }

    /// Waits for at least `at_least` requests and hands up to `most` to `take`: tag, and bytes or
    /// a negative errno. Returns how many.
    ///
    /// # Errors
    /// What the system says of the queue.
    pub fn reap(
        &mut self,
        at_least: usize,
        most: usize,
        mut take: impl FnMut(usize, u64, i64),
    ) -> Result<usize> {
        let missing = at_least.saturating_sub(self.done.len());
        let reaped = self.requests.reap(missing, &mut self.done);
        let count = self.done.len().min(most);
        for (place, done) in self.done.drain(..count).enumerate() {
            let result = match done.result {
                Ok(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
                Err(error) => -i64::from(error.errno().max(1)),
            };
            take(place, done.tag, result);
        }
        // What was handed out must not be lost with the failure, which comes again.
        if count > 0 { Ok(count) } else { Ok(reaped.map(|()| 0)?) }
    }
}
