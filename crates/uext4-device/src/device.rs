//! The device trait.
//!
//! # What
//! A fixed number of bytes that any number of threads read and write at any offset. There is no
//! position, no alignment requirement and no exclusive borrow: all callers share one reference.
//!
//! # Durability
//! A write is *complete* when its call has returned `Ok`. A complete write is *durable* when a
//! [`Device::flush`] that **started after the write was complete** has returned `Ok`, or when it
//! was made by [`Device::write_fua`]. After a loss of power, a write that is not durable may be on
//! the medium as a whole, in part (in units of a sector) or not at all, and in any order.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;

use crate::dax_memory::DaxMemory;
use crate::lease::Lease;
use crate::queue::{DeviceQueue, QueueOptions};
use crate::room::Room;
use crate::sync_queue::SyncQueue;

/// Storage of a fixed length, shared by any number of threads.
pub trait Device: Send + Sync + Debug {
    /// Length in bytes. Never changes.
    fn len(&self) -> u64;

    /// Whether the device has no bytes. No device that this crate opens is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every write fails (`EROFS`).
    fn read_only(&self) -> bool;

    /// Fills `buf` from `offset` (bytes).
    ///
    /// # Errors
    /// `UnexpectedEof` if the range reaches past the end of the device; otherwise the error of the
    /// medium.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// As [`Device::read_at`], past every cache of this host: other hosts may have written.
    ///
    /// # Errors
    /// Those of [`Device::read_at`].
    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, buf)
    }

    /// Forgets clean content that a cache of this host holds, as far as it can.
    fn drop_cached(&self) {}

    /// What this host calls the device; empty if it has no name.
    fn name(&self) -> String {
        String::new()
    }

    /// Writes all of `buf` at `offset` (bytes). Never grows the device.
    ///
    /// # Errors
    /// `InvalidInput` if the range reaches past the end of the device, `EROFS` if it is read-only;
    /// otherwise the error of the medium, and then any part of the range may have changed.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Writes the buffers one after the other, contiguous from `offset` (bytes).
    ///
    /// # Errors
    /// Those of [`Device::write_at`].
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.write_at(at, buf)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Makes several writes, in no particular order and perhaps at the same time. They must not
    /// overlap.
    ///
    /// # Errors
    /// Those of [`Device::write_at`]. The first failure is returned, and any part of any range may
    /// have changed.
    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        writes.iter().try_for_each(|run| self.write_vectored_at(run.offset, run.bufs))
    }

    /// Fills the buffers one after the other, contiguous from `offset` (bytes).
    ///
    /// # Errors
    /// Those of [`Device::read_at`].
    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        let mut at = offset;
        for buf in bufs {
            self.read_at(at, buf)?;
            at = at.saturating_add(buf.len() as u64);
        }
        Ok(())
    }

    /// Makes several reads, in no particular order and perhaps at the same time.
    ///
    /// # Errors
    /// Those of [`Device::read_at`]: the first failure. Any buffer may have changed then.
    fn read_many(&self, reads: &mut [ReadRun<'_>]) -> io::Result<()> {
        reads.iter_mut().try_for_each(|run| self.read_at(run.offset, run.buf))
    }

    /// Whether a request takes so long that many should be on their way at a time: the medium is
    /// behind a network. A reader then reads ahead.
    fn is_far(&self) -> bool {
        false
    }

    /// Says that changes are made under a lease ([`crate::LeasedDevice`]), or no more. A device
    /// that makes changes again after an outage, or late, must not when the lease is over: another
    /// host may have the disk.
    fn set_lease(&self, lease: Option<Arc<Lease>>) {
        drop(lease);
    }

    /// Makes every write that was complete before this call durable.
    ///
    /// # Errors
    /// The error of the medium. After a failure the fate of all writes since the last successful
    /// flush is unknown and a later flush cannot bring them back, so devices on a file repeat the
    /// failure.
    fn flush(&self) -> io::Result<()>;

    /// Writes `buf` at `offset` and returns when these bytes are durable. Promises nothing about
    /// other writes.
    ///
    /// # Errors
    /// Those of [`Device::write_at`] and [`Device::flush`].
    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_at(offset, buf)?;
        self.flush()
    }

    /// As [`Device::write_many`]; returns when these bytes are durable.
    ///
    /// # Errors
    /// Those of [`Device::write_many`] and [`Device::flush`].
    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.write_many(writes)?;
        self.flush()
    }

    /// Whether a few durable writes take one round trip, and a flush after them none if nothing
    /// else was written.
    fn writes_through(&self) -> bool {
        false
    }

    /// Deallocates a range (bytes) so that it reads as zeroes. `Ok(false)` if the device cannot;
    /// then nothing has changed, and the caller writes zeroes if it needs them.
    ///
    /// # Errors
    /// Those of [`Device::write_at`].
    fn punch(&self, offset: u64, len: u64) -> io::Result<bool>;

    /// Tells the device that the bytes of a range are no longer needed. The device may forget them,
    /// at once, later or in part, and until the range is written again it reads as anything.
    /// `Ok(false)` if the device cannot; then nothing has changed.
    ///
    /// # Errors
    /// Those of [`Device::write_at`].
    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.punch(offset, len)
    }

    /// Whether the whole device is known to read as zeroes, as a just created sparse file does.
    /// False after the first write.
    fn fresh_zeroes(&self) -> bool {
        false
    }

    /// A queue of the device's own kind, or `None` if it has none. Only `queue` calls this.
    ///
    /// # Errors
    /// `InvalidInput` for options that no queue can have; otherwise the error of the system.
    fn own_queue(
        self: Arc<Self>,
        _options: &QueueOptions,
    ) -> io::Result<Option<Box<dyn DeviceQueue>>> {
        Ok(None)
    }

    /// The state of writes for which the store has no room, if the device can hold them.
    fn room(&self) -> Option<&Room> {
        None
    }

    /// The device's bytes by address, if it is byte-addressable. Wrappers return `None`, because
    /// they would not see stores.
    fn dax(&self) -> Option<&dyn DaxMemory> {
        None
    }
}

impl dyn Device {
    /// Creates a queue of asynchronous requests, which keeps the device open. A device without a
    /// queue of its own kind executes them one by one when they are submitted.
    ///
    /// # Errors
    /// Those of [`Device::own_queue`].
    pub fn queue(self: &Arc<Self>, options: QueueOptions) -> io::Result<Box<dyn DeviceQueue>> {
        options.check()?;
        match Arc::clone(self).own_queue(&options)? {
            Some(queue) => Ok(queue),
            None => Ok(Box::new(SyncQueue::new(Arc::clone(self), &options)?)),
        }
    }
}

/// One of several writes: buffers that are written contiguously from `offset` (bytes).
#[derive(Clone, Copy, Debug)]
pub struct WriteRun<'a> {
    /// Position of the first buffer, in bytes.
    pub offset: u64,
    /// The buffers.
    pub bufs: &'a [&'a [u8]],
}

/// One of several reads.
#[derive(Debug)]
pub struct ReadRun<'a> {
    /// Position of the first byte, in bytes.
    pub offset: u64,
    /// Where the bytes go.
    pub buf: &'a mut [u8],
}

/// A shared reference to a device.
pub type SharedDevice = Arc<dyn Device>;

/// Checks that a read stays inside `device_len` bytes.
///
/// # Errors
/// `UnexpectedEof` if it does not.
pub fn check_read(device_len: u64, offset: u64, count: usize) -> io::Result<()> {
    if fits(device_len, offset, count as u64) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        format!("read of {count} bytes at {offset} reaches past the device's {device_len} bytes"),
    ))
}

/// Checks that a change is allowed and stays inside `device_len` bytes.
///
/// # Errors
/// `EROFS` if the device is read-only, `InvalidInput` if it does not stay inside.
pub fn check_write(device_len: u64, read_only: bool, offset: u64, count: u64) -> io::Result<()> {
    if read_only {
        return Err(io::Error::from_raw_os_error(libc::EROFS));
    }
    if fits(device_len, offset, count) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("write of {count} bytes at {offset} reaches past the device's {device_len} bytes"),
    ))
}

/// Sum of the lengths of write buffers, in bytes.
pub(crate) fn total_len(bufs: &[&[u8]]) -> usize {
    bufs.iter().map(|buf| buf.len()).sum()
}

fn fits(device_len: u64, offset: u64, count: u64) -> bool {
    offset.checked_add(count).is_some_and(|end| end <= device_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
        assert!(check_read(10, 0, 10).is_ok());
        assert!(check_read(10, 10, 0).is_ok());
        assert_eq!(check_read(10, 1, 10).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(check_read(10, u64::MAX, 2).is_err());
        let past = check_write(10, false, 8, 3).unwrap_err();
        assert_eq!(past.kind(), io::ErrorKind::InvalidInput);
        let read_only = check_write(10, true, 0, 1).unwrap_err();
        assert_eq!(read_only.raw_os_error(), Some(libc::EROFS));
    }
}
