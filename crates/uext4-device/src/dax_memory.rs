//! Byte-addressable storage.

use std::io;

/// Byte-addressable storage: a device whose bytes are loads and stores.
///
/// A store is *complete* when the call returns and *durable* after a [`DaxMemory::persist`] that
/// started later, like a device's write and its flush. Calls on ranges that do not overlap do not
/// affect each other, even if they share cache lines. Concurrent calls on the same bytes leave or
/// return any mixture of them, as requests to a disk do.
pub trait DaxMemory: Send + Sync {
    /// Copies bytes out, from `offset` (bytes of the device).
    ///
    /// # Errors
    /// `UnexpectedEof` past the end.
    fn load(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Copies bytes in, bypassing the processor's caches if that is faster.
    ///
    /// # Errors
    /// `InvalidInput` past the end, `EROFS` if the device is read-only, `ENOSPC` if the range has
    /// no storage.
    fn store(&self, offset: u64, buf: &[u8]) -> io::Result<()>;

    /// Makes every complete store durable. This is the device's flush.
    ///
    /// # Errors
    /// Those of [`Device::flush`](crate::Device::flush).
    fn persist(&self) -> io::Result<()>;
}
