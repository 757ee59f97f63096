//! A device that calls a hook before each request, and a gate for hooks.
//!
//! # What
//! For tests of slow and stuck devices. The hook sleeps, waits at a [`Gate`] or counts, and then
//! the wrapped device serves the request. The kinds of writes are distinguished, because they have
//! different meanings for the engine. Discards, queues and mapped memory have the default
//! implementations.
//!
//! # Invariants
//! The hook runs once for each request, on the thread of the request, before the wrapped device
//! sees it.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::device::{Device, SharedDevice, WriteRun, total_len};

/// A request that is about to be served.
#[derive(Clone, Copy, Debug)]
pub enum HookedRequest<'a> {
    /// A read of this many bytes.
    Read(usize),
    /// `write_at`.
    Write(&'a [u8]),
    /// `write_vectored_at`.
    WriteVectored(&'a [&'a [u8]]),
    /// `write_many`.
    WriteMany(&'a [WriteRun<'a>]),
    /// `write_fua`, which a device may implement by a write and a flush.
    WriteFua(&'a [u8]),
    /// `flush`.
    Flush,
}

impl HookedRequest<'_> {
    /// Whether the request makes something durable.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        matches!(self, HookedRequest::Flush | HookedRequest::WriteFua(_))
    }

    /// Number of bytes written.
    #[must_use]
    pub fn bytes_written(&self) -> usize {
        match self {
            HookedRequest::Read(_) | HookedRequest::Flush => 0,
            HookedRequest::Write(bytes) | HookedRequest::WriteFua(bytes) => bytes.len(),
            HookedRequest::WriteVectored(pieces) => total_len(pieces),
            HookedRequest::WriteMany(runs) => runs.iter().map(|run| total_len(run.bufs)).sum(),
        }
    }

    /// Whether `matches` holds for one of the written buffers.
    #[must_use]
    pub fn writes_any(&self, matches: impl Fn(&[u8]) -> bool) -> bool {
        match self {
            HookedRequest::Read(_) | HookedRequest::Flush => false,
            HookedRequest::Write(bytes) | HookedRequest::WriteFua(bytes) => matches(bytes),
            HookedRequest::WriteVectored(pieces) => pieces.iter().any(|piece| matches(piece)),
            HookedRequest::WriteMany(runs) => {
                runs.iter().flat_map(|run| run.bufs).any(|piece| matches(piece))
            }
        }
    }
}

/// A device that calls a hook before each request.
pub struct HookedDevice {
    inner: SharedDevice,
    hook: Box<dyn Fn(HookedRequest<'_>) + Send + Sync>,
}

impl HookedDevice {
    /// Calls `hook` before each request to `inner`.
    pub fn new(
        inner: SharedDevice,
        hook: impl Fn(HookedRequest<'_>) + Send + Sync + 'static,
    ) -> HookedDevice {
        HookedDevice { inner, hook: Box::new(hook) }
    }
}

impl fmt::Debug for HookedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookedDevice").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Device for HookedDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (self.hook)(HookedRequest::Read(buf.len()));
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        (self.hook)(HookedRequest::Write(buf));
        self.inner.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        (self.hook)(HookedRequest::WriteVectored(bufs));
        self.inner.write_vectored_at(offset, bufs)
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        (self.hook)(HookedRequest::WriteMany(writes));
        self.inner.write_many(writes)
    }

    fn flush(&self) -> io::Result<()> {
        (self.hook)(HookedRequest::Flush);
        self.inner.flush()
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        (self.hook)(HookedRequest::WriteFua(buf));
        self.inner.write_fua(offset, buf)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.punch(offset, len)
    }
}

/// A gate at which threads wait while it is closed. It is open at first.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    is_met: AtomicBool,
}

/// Opens a gate when it is dropped, also when a test fails, because its threads would wait for
/// ever.
#[derive(Debug)]
pub struct OpensGate<'a>(&'a Gate);

impl Gate {
    /// Closes the gate until it is opened or the result is dropped.
    #[must_use]
    pub fn close(&self) -> OpensGate<'_> {
        *self.lock() = true;
        OpensGate(self)
    }

    /// Opens the gate.
    pub fn open(&self) {
        *self.lock() = false;
        self.opened.notify_all();
    }

    /// Returns when the gate is open. A thread that waits here counts as one that sleeps in a
    /// request to the device.
    pub fn pass(&self) {
        crate::about_to_sleep();
        let mut is_closed = self.lock();
        while *is_closed {
            self.is_met.store(true, Ordering::SeqCst);
            is_closed = self.opened.wait(is_closed).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a thread ever waited here.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.is_met.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpensGate<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use std::sync::Arc;

    #[test]
    fn each_request_is_seen_before_it_is_made() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let inner = Arc::new(MemoryDevice::new(1 << 16));
        let (log, behind) = (Arc::clone(&seen), Arc::clone(&inner));
        let device = HookedDevice::new(inner, move |request| {
            let mut first = [0];
            behind.read_at(0, &mut first).unwrap();
            let is_marked = request.writes_any(|bytes| bytes.starts_with(b"m"));
            let bytes = request.bytes_written();
            log.lock().unwrap().push((first[0], bytes, request.is_durable(), is_marked));
        });
        device.write_at(0, b"1").unwrap();
        device.write_vectored_at(0, &[b"2", b"m"]).unwrap();
        device.write_many(&[WriteRun { offset: 0, bufs: &[b"3"] }]).unwrap();
        device.write_fua(0, b"m").unwrap();
        device.flush().unwrap();
        device.read_at(0, &mut [0]).unwrap();
        let want = [
            (0, 1, false, false),
            (b'1', 2, false, true),
            (b'2', 1, false, false),
            (b'3', 1, true, true),
            (b'm', 0, true, false),
            (b'm', 0, false, false),
        ];
        assert_eq!(*seen.lock().unwrap(), want);
    }

    #[test]
    fn a_gate_holds_threads_until_it_is_opened() {
        let gate = Gate::default();
        gate.pass();
        assert!(!gate.is_met());
        let opens = gate.close();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.pass());
            while !gate.is_met() {
                std::thread::yield_now();
            }
            assert!(!waiting.is_finished());
            drop(opens);
        });
    }
}
