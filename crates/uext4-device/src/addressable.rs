//! Any device as a byte-addressable one, for tests.
//!
//! # What
//! Loads, stores and persists are reads, writes and flushes of the device below, so that a
//! [`RecordingDevice`](crate::RecordingDevice), a [`FaultDevice`](crate::FaultDevice) or a slow
//! device sees them like any other request.

use std::io;

use crate::dax_memory::DaxMemory;
use crate::device::{Device, SharedDevice, WriteRun};

/// A device that claims to be byte-addressable. Its loads and stores are requests to the device
/// below.
#[derive(Debug)]
pub struct AddressableDevice(SharedDevice);

impl AddressableDevice {
    /// Wraps `device`.
    #[must_use]
    pub fn new(device: SharedDevice) -> Self {
        Self(device)
    }
}

impl DaxMemory for AddressableDevice {
    fn load(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn store(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, buf)
    }

    fn persist(&self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Device for AddressableDevice {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_only(&self) -> bool {
        self.0.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.0.write_vectored_at(offset, bufs)
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.0.write_many(writes)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_fua(offset, buf)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.0.punch(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.0.discard(offset, len)
    }

    fn fresh_zeroes(&self) -> bool {
        self.0.fresh_zeroes()
    }

    fn dax(&self) -> Option<&dyn DaxMemory> {
        Some(self)
    }
}
