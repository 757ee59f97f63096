//! What requests go to.

use std::sync::Arc;

use uext4::{
    DirectDone, DirectFile, DirectOp, DirectOptions, DirectQueue, DirectRequest, IoBuf, IoMemory,
    Volume,
};
use uext4_device::{DeviceQueue, FileDevice, QueueDone, QueueOp, QueueOptions, QueueRequest};

use crate::bench::FilePlace;
use crate::error::{Doing, Error, Result};
use crate::queued::queued_shape::{DEPTH, NAME};

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
}

/// A queue over the load's file. `offset` is the file's.
pub(crate) trait Ring {
    type Done;

    fn push(&mut self, op: Op, offset: u64, buf: IoBuf, tag: u64) -> Result<()>;

    /// Starts everything, waits for one request at least and takes all that are done.
    fn reap(&mut self, done: &mut Vec<Self::Done>) -> Result<()>;

    /// Tag and buffer of a request that was served whole.
    fn served(done: Self::Done) -> Result<(u64, IoBuf)>;
}

/// A device, or a file of a mount as one, without a file system of this process.
#[derive(Debug)]
pub(crate) struct DeviceRing {
    queue: Box<dyn DeviceQueue>,
    place: FilePlace,
}

impl DeviceRing {
    pub(crate) fn new(device: FileDevice, place: FilePlace, memory: &IoMemory) -> Result<Self> {
        let device: uext4_device::SharedDevice = Arc::new(device);
        let options = QueueOptions { memory: vec![memory.clone()], ..QueueOptions::new(DEPTH) };
        Ok(Self { queue: device.queue(options).doing("making a queue")?, place })
    }
}

impl Ring for DeviceRing {
    type Done = QueueDone;

    fn push(&mut self, op: Op, offset: u64, buf: IoBuf, tag: u64) -> Result<()> {
        let place = self.place.find(offset, buf.len() as u64);
        let offset = place.ok_or_else(|| Error::new("a request that lies in pieces"))?;
        let op = if op == Op::Read { QueueOp::Read } else { QueueOp::Write };
        let pushed = self.queue.push(QueueRequest { op, offset, buf, tag });
        pushed.map_err(|_| Error::new("the queue is full"))
    }

    fn reap(&mut self, done: &mut Vec<QueueDone>) -> Result<()> {
        self.queue.reap(1, done).doing("reaping")
    }

    fn served(done: QueueDone) -> Result<(u64, IoBuf)> {
        done.result.doing("a request")?;
        Ok((done.tag, done.buf))
    }
}

/// The file, by the library.
#[derive(Debug)]
pub(crate) struct LibraryRing {
    queue: DirectQueue,
    file: DirectFile,
}

impl LibraryRing {
    pub(crate) fn new(volume: &Volume, memory: &IoMemory) -> Result<Self> {
        let options = DirectOptions { depth: DEPTH, polled: false, memory: vec![memory.clone()] };
        let mut queue = volume.direct_queue(options)?;
        let inode = volume.lookup(&volume.root()?, NAME.as_bytes())?;
        let file = queue.register(&inode)?;
        Ok(Self { queue, file })
    }
}

impl Ring for LibraryRing {
    type Done = DirectDone;

    fn push(&mut self, op: Op, offset: u64, buf: IoBuf, tag: u64) -> Result<()> {
        let op = if op == Op::Read { DirectOp::Read } else { DirectOp::Write };
        let pushed = self.queue.push(DirectRequest { file: self.file, op, offset, buf, tag });
        pushed.map_err(|_| Error::new("the queue is full"))
    }

    fn reap(&mut self, done: &mut Vec<DirectDone>) -> Result<()> {
        Ok(self.queue.reap(1, done)?)
    }

    fn served(done: DirectDone) -> Result<(u64, IoBuf)> {
        let count = done.result?;
        if count == done.buf.len() {
            return Ok((done.tag, done.buf));
        }
        Err(Error::new(format!("a request of {} bytes ended after {count}", done.buf.len())))
    }
}
