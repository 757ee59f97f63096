//! A device whose Nth request fails.
//!
//! # What
//! Requests are counted by operation. A plan names an operation, a number and a fault. A test that
//! tries N = 1.. until an operation succeeds reaches every error path above the device.
//!
//! # Not covered
//! Wrong bytes and lost flushes, which a recording enumerates.
//!
//! # Locking
//! `plans` is held for the look-up only, never during I/O.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::device::{Device, SharedDevice, total_len};

/// The operations that are counted. A vectored request counts once; a FUA write and a punch are
/// writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// `read_at`, `read_vectored_at`.
    Read,
    /// `write_at`, `write_vectored_at`, `write_fua`, `punch`.
    Write,
    /// `flush`.
    Flush,
}

/// How a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `EIO`; the wrapped device does not see the request.
    Io,
    /// `ENOSPC`; the wrapped device does not see the request.
    NoSpace,
    /// The first half of the bytes is transferred, then `EIO`. A flush fails as with `Io`.
    Short,
}

/// The requests that a plan makes fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// At request `nth` only.
    Once,
    /// At request `nth` and all that follow.
    Onwards,
}

/// One planned fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultPlan {
    /// The operation.
    pub operation: Operation,
    /// The request that fails, from 1, counted since the device was created or last reset.
    pub nth: u64,
    /// This request only, or all from there on.
    pub times: Times,
    /// How it fails.
    pub fault: Fault,
}

/// Wraps a device and fails requests as planned.
#[derive(Debug)]
pub struct FaultDevice {
    inner: SharedDevice,
    plans: Mutex<Vec<FaultPlan>>,
    /// Requests so far, by operation.
    counts: [AtomicU64; 3],
    struck: AtomicU64,
}

impl FaultDevice {
    /// Wraps a device; nothing fails until a plan is armed.
    #[must_use]
    pub fn new(inner: SharedDevice) -> FaultDevice {
        FaultDevice {
            inner,
            plans: Mutex::default(),
            counts: [const { AtomicU64::new(0) }; 3],
            struck: AtomicU64::new(0),
        }
    }

    /// Adds a plan. The first armed plan that fits a request decides.
    pub fn arm(&self, plan: FaultPlan) {
        self.plans.lock().push(plan);
    }

    /// Drops all plans and starts counting again.
    pub fn reset(&self) {
        self.plans.lock().clear();
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
        self.struck.store(0, Ordering::Relaxed);
    }

    /// Number of requests of an operation so far, including failed ones.
    #[must_use]
    pub fn count(&self, operation: Operation) -> u64 {
        self.counts[operation as usize].load(Ordering::Relaxed)
    }

    /// Number of requests that a plan made fail.
    #[must_use]
    pub fn struck(&self) -> u64 {
        self.struck.load(Ordering::Relaxed)
    }

    /// Counts a request. Returns its fault, if a plan has one.
    fn next(&self, operation: Operation) -> Option<Fault> {
        let number = self.counts[operation as usize].fetch_add(1, Ordering::Relaxed) + 1;
        let fault = self
            .plans
            .lock()
            .iter()
            .find(|plan| {
                plan.operation == operation
                    && match plan.times {
                        Times::Once => number == plan.nth,
                        Times::Onwards => number >= plan.nth,
                    }
            })
            .map(|plan| plan.fault)?;
        self.struck.fetch_add(1, Ordering::Relaxed);
        Some(fault)
    }

    fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        whole: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(fault) = self.next(Operation::Write) else { return whole() };
        if fault == Fault::Short {
            self.inner.write_at(offset, &bytes[..bytes.len() / 2])?;
        }
        Err(fault.error())
    }
}

impl Fault {
    fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Fault::Io | Fault::Short => libc::EIO,
            Fault::NoSpace => libc::ENOSPC,
        })
    }
}

impl Device for FaultDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let Some(fault) = self.next(Operation::Read) else {
            return self.inner.read_at(offset, buf);
        };
        if fault == Fault::Short {
            let half = buf.len() / 2;
            self.inner.read_at(offset, &mut buf[..half])?;
        }
        Err(fault.error())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(offset, buf, || self.inner.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        let Some(fault) = self.next(Operation::Write) else {
            return self.inner.write_vectored_at(offset, bufs);
        };
        if fault == Fault::Short {
            let mut left = total_len(bufs) / 2;
            let mut at = offset;
            for buf in bufs {
                let count = left.min(buf.len());
                self.inner.write_at(at, &buf[..count])?;
                left -= count;
                at += count as u64;
            }
        }
        Err(fault.error())
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        match self.next(Operation::Read) {
            None => self.inner.read_vectored_at(offset, bufs),
            Some(fault) => Err(fault.error()),
        }
    }

    fn flush(&self) -> io::Result<()> {
        match self.next(Operation::Flush) {
            None => self.inner.flush(),
            Some(fault) => Err(fault.error()),
        }
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(offset, buf, || self.inner.write_fua(offset, buf))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        match self.next(Operation::Write) {
            None => self.inner.punch(offset, len),
            Some(fault) => Err(fault.error()),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        match self.next(Operation::Write) {
            None => self.inner.discard(offset, len),
            Some(fault) => Err(fault.error()),
        }
    }

    fn fresh_zeroes(&self) -> bool {
        self.inner.fresh_zeroes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryDevice;

    fn device() -> FaultDevice {
        FaultDevice::new(Arc::new(MemoryDevice::new(1 << 16)))
    }

    fn plan(operation: Operation, nth: u64, times: Times, fault: Fault) -> FaultPlan {
        FaultPlan { operation, nth, times, fault }
    }

    #[test]
    fn the_nth_request_fails_once() {
        let device = device();
        device.arm(plan(Operation::Write, 2, Times::Once, Fault::NoSpace));
        device.write_at(0, &[1]).unwrap();
        let error = device.write_vectored_at(1, &[&[2]]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        device.write_fua(2, &[3]).unwrap();
        device.flush().unwrap();
        let mut all = [0; 3];
        device.read_at(0, &mut all).unwrap();
        assert_eq!(all, [1, 0, 3]);
        assert_eq!(device.count(Operation::Write), 3);
        assert_eq!(device.count(Operation::Read), 1);
        assert_eq!(device.struck(), 1);
    }

    #[test]
    fn everything_after_n_fails_until_reset() {
        let device = device();
        device.arm(plan(Operation::Flush, 2, Times::Onwards, Fault::Io));
        device.arm(plan(Operation::Read, 1, Times::Onwards, Fault::Io));
        device.flush().unwrap();
        for _ in 0..3 {
            assert_eq!(device.flush().unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        assert!(device.read_vectored_at(0, &mut [&mut [0]]).is_err());
        device.reset();
        device.flush().unwrap();
        device.read_at(0, &mut [0]).unwrap();
        assert_eq!((device.struck(), device.count(Operation::Flush)), (0, 1));
    }

    #[test]
    fn a_short_request_transfers_half() {
        let device = device();
        device.arm(plan(Operation::Write, 1, Times::Onwards, Fault::Short));
        assert!(device.write_at(0, &[1; 4]).is_err());
        assert!(device.write_vectored_at(10, &[&[2], &[3, 3, 3], &[4, 4]]).is_err());
        let mut all = [0; 16];
        device.read_at(0, &mut all).unwrap();
        assert_eq!(all, [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, 3, 0, 0, 0]);
    }

    /// The writes of one call are requests of their own: any of them can be the one that fails.
    #[test]
    fn each_of_several_writes_is_counted_and_can_fail() {
        let device = device();
        device.arm(plan(Operation::Write, 2, Times::Once, Fault::Io));
        let run = |offset| crate::WriteRun { offset, bufs: &[&[5]] };
        assert!(device.write_many(&[run(0), run(1), run(2)]).is_err());
        assert_eq!(device.count(Operation::Write), 2);
        let mut all = [0; 3];
        device.read_at(0, &mut all).unwrap();
        assert_eq!(all, [5, 0, 0]);
    }

    #[test]
    fn exactly_one_of_many_threads_is_struck() {
        let device = device();
        device.arm(plan(Operation::Write, 500, Times::Once, Fault::Io));
        let failures: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8_u64)
                .map(|thread| {
                    let device = &device;
                    scope.spawn(move || {
                        (0..100).filter(|_| device.write_at(thread, &[1]).is_err()).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((failures, device.struck()), (1, 1));
    }
}
