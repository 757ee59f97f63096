//! Syncs that do nothing: a crash test that does not find them finds nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_device::{Device, RecordingDevice};

/// What is wrong with the syncs of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BrokenSyncs {
    /// Nothing: the run must pass.
    #[default]
    None,
    /// The device answers every other flush without doing it, so that a commit block may be on
    /// the medium before the images that it promises.
    DroppedFlushes,
    /// The engine's syncs return without having done anything.
    SkippedSyncs,
}

/// A device that answers every other flush without doing it.
#[derive(Debug)]
pub struct FlushDropper {
    inner: Arc<RecordingDevice>,
    flushes: AtomicU64,
}

impl FlushDropper {
    /// Over a recording device, whose log shows the flushes that are left.
    #[must_use]
    pub fn new(inner: Arc<RecordingDevice>) -> FlushDropper {
        FlushDropper { inner, flushes: AtomicU64::new(0) }
    }
}

impl Device for FlushDropper {
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
        self.inner.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.inner.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> io::Result<()> {
        if self.flushes.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Ok(());
        }
        self.inner.flush()
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buf)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.punch(offset, len)
    }

    fn fresh_zeroes(&self) -> bool {
        self.inner.fresh_zeroes()
    }
}
