//! The queue of a device without a queue of its own.
//!
//! # What
//! Executes each request at `submit` by the device's own call: `read_at`, `write_at`, `write_fua`,
//! `flush`. So a device that records, fails or counts requests sees direct I/O too. It supports any
//! alignment and allocates nothing for a request.

use std::collections::VecDeque;
use std::io;

use crate::device::SharedDevice;
use crate::queue::{DeviceQueue, QueueDone, QueueOp, QueueOptions, QueueRequest};

/// A queue that executes requests by ordinary calls.
#[derive(Debug)]
pub(crate) struct SyncQueue {
    device: SharedDevice,
    depth: usize,
    pushed: VecDeque<QueueRequest>,
    done: VecDeque<QueueDone>,
}

impl SyncQueue {
    pub(crate) fn new(device: SharedDevice, options: &QueueOptions) -> io::Result<SyncQueue> {
        options.check()?;
        let depth = options.depth;
        let (pushed, done) = (VecDeque::with_capacity(depth), VecDeque::with_capacity(depth));
        Ok(SyncQueue { device, depth, pushed, done })
    }
}

/// Executes one request by the device's ordinary call.
pub(crate) fn make_now(device: &dyn crate::Device, request: QueueRequest) -> QueueDone {
    let QueueRequest { op, offset, mut buf, tag } = request;
    let result = match op {
        QueueOp::Read => device.read_at(offset, &mut buf),
        QueueOp::Write => device.write_at(offset, &buf),
        QueueOp::WriteDurable => device.write_fua(offset, &buf),
        QueueOp::Flush => device.flush(),
    };
    QueueDone { tag, buf, result }
}

impl DeviceQueue for SyncQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.pushed.len() + self.done.len()
    }

    fn push(&mut self, request: QueueRequest) -> Result<(), QueueRequest> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        self.pushed.push_back(request);
        Ok(())
    }

    fn submit(&mut self) -> io::Result<()> {
        while let Some(request) = self.pushed.pop_front() {
            self.done.push_back(make_now(&*self.device, request));
        }
        Ok(())
    }

    fn reap(&mut self, _at_least: usize, done: &mut Vec<QueueDone>) -> io::Result<()> {
        self.submit()?;
        done.extend(self.done.drain(..));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fault::{Fault, FaultDevice, FaultPlan, Operation, Times};
    use crate::io_memory::IoBuf;
    use crate::memory::MemoryDevice;
    use crate::meter::MeteredDevice;

    fn request(op: QueueOp, offset: u64, fill: u8, tag: u64) -> QueueRequest {
        let mut buf = IoBuf::new(512).unwrap();
        buf.fill(fill);
        QueueRequest { op, offset, buf, tag }
    }

    /// Requests reach wrappers as ordinary calls, none before `submit`, each answered once.
    #[test]
    fn wrappers_see_each_request_and_a_full_queue_gives_it_back() {
        let faulty = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(8192))));
        let meter = Arc::new(MeteredDevice::new(faulty.clone()));
        let device: SharedDevice = meter.clone();
        let mut queue = device.queue(QueueOptions::new(4)).unwrap();
        faulty.arm(FaultPlan {
            operation: Operation::Write,
            nth: 2,
            times: Times::Once,
            fault: Fault::NoSpace,
        });
        queue.push(request(QueueOp::Write, 0, 7, 1)).unwrap();
        queue.push(request(QueueOp::WriteDurable, 512, 8, 2)).unwrap();
        queue.push(request(QueueOp::Read, 0, 0, 3)).unwrap();
        queue.push(request(QueueOp::Read, 8000, 0, 4)).unwrap();
        let back = queue.push(request(QueueOp::Flush, 0, 0, 5)).unwrap_err();
        assert_eq!((back.tag, queue.in_flight()), (5, 4));
        assert_eq!(meter.read_meter(), Default::default());
        let mut done = Vec::new();
        queue.reap(1, &mut done).unwrap();
        assert_eq!(queue.in_flight(), 0);
        let told: Vec<_> = done
            .iter()
            .map(|done| (done.tag, done.result.as_ref().map_err(|e| e.kind()).err()))
            .collect();
        let (full, eof) = (io::ErrorKind::StorageFull, io::ErrorKind::UnexpectedEof);
        assert_eq!(told, [(1, None), (2, Some(full)), (3, None), (4, Some(eof))]);
        assert!(done[2].buf.iter().all(|byte| *byte == 7));
        queue.push(back).unwrap();
        queue.submit().unwrap();
        queue.reap(9, &mut done).unwrap();
        let seen = meter.read_meter();
        assert_eq!((seen.reads, seen.writes, seen.flushes, seen.failures), (1, 1, 1, 2));
    }

    #[test]
    fn a_queue_has_room_for_something() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(4096));
        for depth in [0, QueueOptions::DEPTH_MAX + 1] {
            let error = device.queue(QueueOptions::new(depth)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert!(device.dax().is_none());
    }
}
