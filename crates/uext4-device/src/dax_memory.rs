//! Storage that the processor reaches by address.

use std::io;

/// Byte-addressable storage: a device whose bytes are loads and stores.
///
/// What is stored is *complete* when the call returns and *durable* after a
/// [`DaxMemory::persist`] that started later, as with a device's writes and its flush. Calls on
/// ranges that do not overlap do not disturb each other, whatever cache lines they share.
/// Concurrent calls on the same bytes leave or return any mixture of them, in no set order, as
/// requests to a disk would.
pub trait DaxMemory: Send + Sync {
    /// Copies bytes out, from `offset` (bytes of the device).
    ///
    /// # Errors
    /// `UnexpectedEof` past the end.
    fn load(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Copies bytes in, past the processor's caches where that is faster.
    ///
    /// # Errors
    /// `InvalidInput` past the end, `EROFS` if the device is read-only, `ENOSPC` where there is no
    /// storage behind the range.
    fn store(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Makes every complete store durable: the device's flush.
    ///
    /// # Errors
    /// As [`Device::flush`](crate::Device::flush).
    fn persist(&self) -> io::Result<()>;
}
