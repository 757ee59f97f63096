//! A device that records its requests.
//!
//! # Fault model
//! The recording answers one question: *after a loss of power, what may the medium hold?* It
//! assumes a device with a volatile write cache that keeps the contract of [`Device`]:
//!
//! - A write enters the log **when it has completed**, as one event with its bytes. A vectored
//!   write is one event; so is a punch, and a discard, which is recorded as a punch.
//! - A flush enters the log **at the position where it started**, and is marked complete when it
//!   has returned `Ok`. It guarantees exactly the events before it. A write that was in flight when
//!   the flush started, and completed before the flush ended, comes after the flush, because
//!   nothing guarantees that it is durable. So does a write that completed but whose thread had not
//!   yet reached the log: that is too pessimistic by a moment, never too optimistic.
//! - A flush that failed stays in the log without its mark and guarantees nothing.
//! - A FUA write enters the log when it has completed and is durable from then on. It guarantees
//!   nothing about the events before it.
//! - [`RecordingDevice::mark`] adds a number of the caller's choice to the log. A caller that marks
//!   after an fsync has returned may demand the fsynced bytes from every state past the mark,
//!   because the flush that the fsync waited for started before the mark.
//!
//! The *prefix* at a cut is every event before it, applied in the order of the log. Prefixes are
//! legal outcomes, but not the only ones: any subset of the writes after the last complete flush
//! may be on the medium, in any order and torn. The log has the data to enumerate these outcomes
//! (`issued_at`, `completed_at`,
//! [`Recording::unflushed_after`](crate::Recording::unflushed_after)).
//!
//! # Not covered
//! - Two writes to the same bytes that overlap in time are in the order in which they reached the
//!   log. That is a legal order, but perhaps not the one of the wrapped device.
//! - A failed write is not recorded. To record its partial effect, put the failing device above the
//!   recording one: `FaultDevice(RecordingDevice(MemoryDevice))`.
//! - A device that lies about flushes, or that loses bytes it had made durable.
//!
//! # Locking
//! The log's lock is held only for a push, never during I/O of the wrapped device.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::device::{Device, SharedDevice, WriteRun, total_len};
use crate::memory::MemoryDevice;
use crate::recording::{Event, Recording};

/// Wraps a device and logs each completed write, flush and FUA write.
pub struct RecordingDevice {
    inner: SharedDevice,
    /// The bytes before the first event.
    base: Arc<MemoryDevice>,
    log: Mutex<Vec<Event>>,
    /// Whether it says of itself that it is far, and writes through.
    is_far: bool,
}

impl RecordingDevice {
    /// Records the requests to a memory device from now on.
    #[must_use]
    pub fn over(memory: MemoryDevice) -> RecordingDevice {
        let base = Arc::new(memory.snapshot());
        RecordingDevice { inner: Arc::new(memory), base, log: Mutex::default(), is_far: false }
    }

    /// The same as a device behind a network, which has FUA: see [`Device::is_far`] and
    /// [`Device::writes_through`].
    #[must_use]
    pub fn far(self, is_far: bool) -> RecordingDevice {
        RecordingDevice { is_far, ..self }
    }

    /// Records the requests to any device from now on. Copies its bytes to memory first.
    ///
    /// # Errors
    /// Those of reading the device.
    pub fn new(inner: SharedDevice) -> io::Result<RecordingDevice> {
        let base = Arc::new(MemoryDevice::copy_of(&*inner)?);
        Ok(RecordingDevice { inner, base, log: Mutex::default(), is_far: false })
    }

    /// Adds a number of the caller's choice to the log: see the fault model above.
    pub fn mark(&self, number: u64) {
        self.log.lock().push(Event::Mark(number));
    }

    /// The log so far, without requests in flight. It is cheap, because bytes are shared.
    #[must_use]
    pub fn recording(&self) -> Recording {
        Recording::new(Arc::clone(&self.base), self.log.lock().clone())
    }

    /// Flushes the inner device, and records that only the bytes of a range are promised.
    pub(crate) fn flush_within(&self, within: Range<u64>) -> io::Result<()> {
        let place = {
            let mut log = self.log.lock();
            log.push(Event::Flush { completed_at: None, within: within.clone() });
            log.len() - 1
        };
        self.inner.flush()?;
        let mut log = self.log.lock();
        let now = log.len();
        log[place] = Event::Flush { completed_at: Some(now), within };
        Ok(())
    }

    fn position(&self) -> usize {
        self.log.lock().len()
    }

    fn log_write(&self, offset: u64, bytes: Arc<[u8]>, fua: bool, issued_at: usize) {
        self.log.lock().push(Event::Write { offset, bytes, fua, issued_at });
    }
}

impl Device for RecordingDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let issued_at = self.position();
        self.inner.write_at(offset, buf)?;
        self.log_write(offset, buf.into(), false, issued_at);
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        let issued_at = self.position();
        self.inner.write_vectored_at(offset, bufs)?;
        let mut bytes = Vec::with_capacity(total_len(bufs));
        for buf in bufs {
            bytes.extend_from_slice(buf);
        }
        self.log_write(offset, bytes.into(), false, issued_at);
        Ok(())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        self.inner.read_vectored_at(offset, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        self.flush_within(0..u64::MAX)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let issued_at = self.position();
        self.inner.write_fua(offset, buf)?;
        self.log_write(offset, buf.into(), true, issued_at);
        Ok(())
    }

    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        for run in writes {
            self.write_fua(run.offset, &run.bufs.concat())?;
        }
        Ok(())
    }

    fn is_far(&self) -> bool {
        self.is_far
    }

    fn writes_through(&self) -> bool {
        self.is_far
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        let issued_at = self.position();
        let punched = self.inner.punch(offset, len)?;
        if punched {
            self.log.lock().push(Event::Punch { offset, len, issued_at });
        }
        Ok(punched)
    }

    fn fresh_zeroes(&self) -> bool {
        self.inner.fresh_zeroes()
    }
}

impl fmt::Debug for RecordingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingDevice")
            .field("inner", &self.inner)
            .field("events", &self.position())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::fault::{Fault, FaultDevice, FaultPlan, Operation, Times};

    fn byte(device: &dyn Device, at: u64) -> u8 {
        let mut byte = [0];
        device.read_at(at, &mut byte).unwrap();
        byte[0]
    }

    /// Waits at two barriers inside `flush`, so that a test can act while it is in flight.
    #[derive(Debug)]
    struct SlowFlush {
        memory: MemoryDevice,
        slow: AtomicBool,
        entered: Barrier,
        leave: Barrier,
    }

    impl Device for SlowFlush {
        fn len(&self) -> u64 {
            self.memory.len()
        }
        fn read_only(&self) -> bool {
            false
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.memory.read_at(offset, buf)
        }
        fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
            self.memory.write_at(offset, buf)
        }
        fn flush(&self) -> io::Result<()> {
            if self.slow.swap(false, Ordering::SeqCst) {
                self.entered.wait();
                self.leave.wait();
            }
            Ok(())
        }
        fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
            self.memory.punch(offset, len)
        }
    }

    #[test]
    fn a_write_during_a_flush_counts_as_after_it() {
        let inner = Arc::new(SlowFlush {
            memory: MemoryDevice::new(4096),
            slow: AtomicBool::new(true),
            entered: Barrier::new(2),
            leave: Barrier::new(2),
        });
        let device = RecordingDevice::new(inner.clone()).unwrap();
        device.write_at(0, &[1]).unwrap();
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| device.flush().unwrap());
            inner.entered.wait();
            device.write_at(1, &[2]).unwrap();
            inner.leave.wait();
            flush.join().unwrap();
        });
        let recording = device.recording();
        assert_eq!(recording.flush_count(), 1);
        let state = recording.state_at_flush(0).unwrap();
        assert_eq!([byte(&state, 0), byte(&state, 1)], [1, 0]);
        let flush = Event::Flush { completed_at: Some(3), within: 0..u64::MAX };
        assert_eq!(recording.events()[1], flush);
    }

    #[test]
    fn a_failed_flush_guarantees_nothing_and_a_failed_write_is_not_there() {
        let faulty = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(4096))));
        let device = RecordingDevice::new(faulty.clone()).unwrap();
        faulty.arm(FaultPlan {
            operation: Operation::Flush,
            nth: 1,
            times: Times::Once,
            fault: Fault::Io,
        });
        faulty.arm(FaultPlan {
            operation: Operation::Write,
            nth: 2,
            times: Times::Once,
            fault: Fault::NoSpace,
        });
        device.write_at(0, &[1]).unwrap();
        assert!(device.flush().is_err());
        assert!(device.write_at(1, &[2]).is_err());
        device.flush().unwrap();
        let recording = device.recording();
        assert_eq!(recording.flush_count(), 1);
        assert_eq!(recording.events().len(), 3);
        assert_eq!(byte(&recording.state_at_flush(0).unwrap(), 1), 0);
    }

    /// Fault model: threads that write, flush and then demand their own byte from every later
    /// state. Each mark must be honoured by each state past it.
    #[test]
    fn every_state_past_a_mark_has_what_was_flushed_before_it() {
        const THREADS: u64 = 6;
        const ROUNDS: u64 = 60;
        let device = RecordingDevice::over(MemoryDevice::new(THREADS * ROUNDS));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let at = thread * ROUNDS + round;
                        if round % 3 == 0 {
                            device.write_fua(at, &[9]).unwrap();
                        } else {
                            device.write_at(at, &[9]).unwrap();
                            device.flush().unwrap();
                        }
                        device.mark(at);
                    }
                });
            }
        });
        let recording = device.recording();
        let mut states = 0;
        for state in recording.states() {
            for at in recording.marks_before(state.position) {
                assert_eq!(byte(&state.device, at), 9, "byte {at} at {}", state.position);
            }
            states += 1;
        }
        assert_eq!(states as u64, THREADS * ROUNDS + 2);
    }
}
