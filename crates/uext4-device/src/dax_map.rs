//! A file in the address space.
//!
//! # What
//! [`Mapping`]: a whole file, mapped shared once and unmapped on drop. If the file system maps the
//! storage itself and guarantees that mapped blocks do not move (`MAP_SYNC`), a store is durable as
//! soon as it has left the processor's caches, and each store then writes them back.
//!
//! # Soundness
//! Only the mapping's methods reach it. They check ranges and copy by `dax_copy`, and return no
//! address and no reference. `dax` ensures that a touched page has storage; otherwise the kernel
//! would kill the program by SIGBUS.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::dax_copy;

/// A mapped file.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    /// Whether stores are durable when they leave the caches.
    sync: bool,
}

// SAFETY: an address and a length; the bytes behind it are accessed by copies that tolerate any
// other access (see `dax_copy`).
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes from the file's start.
    ///
    /// # Errors
    /// The error of the system: no address space, or a file system without mappings.
    pub(crate) fn new(file: &File, len: u64, writing: bool) -> io::Result<Mapping> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let protection = if writing { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // `dax` allocates storage before it is touched. A reservation by the mapping would take
        // huge pages for holes that are never written.
        let map = |flags: libc::c_int| {
            let flags = flags | libc::MAP_NORESERVE;
            // SAFETY: a new mapping, at an address of the kernel's choice.
            let start = unsafe {
                libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0)
            };
            if start == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
        };
        let durable = writing && dax_copy::can_write_back();
        let synced = durable.then(|| map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC));
        if let Some(Ok(start)) = synced {
            return Ok(Mapping { start, len, sync: true });
        }
        let start = map(libc::MAP_SHARED)?;
        // SAFETY: advice on our own mapping. It asks for larger pages.
        unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        Ok(Mapping { start, len, sync: false })
    }

    /// Whether stores are durable when they return.
    pub(crate) fn is_sync(&self) -> bool {
        self.sync
    }

    /// Copies bytes out, from `at` in the file.
    ///
    /// # Panics
    /// Past the end.
    pub(crate) fn load(&self, at: u64, buf: &mut [u8]) {
        let at = self.check(at, buf.len());
        // SAFETY: inside the mapping, which lives as long as `self`.
        unsafe { dax_copy::load(self.start.as_ptr().add(at), buf) }
    }

    /// Copies bytes in, at `at` in the file.
    ///
    /// # Panics
    /// Past the end.
    pub(crate) fn store(&self, at: u64, buf: &[u8]) {
        let at = self.check(at, buf.len());
        // SAFETY: inside the mapping, which lives as long as `self` and is open for writing: the
        // device refuses stores where it is not.
        unsafe {
            let to = self.start.as_ptr().add(at);
            dax_copy::store(buf, to);
            if self.sync {
                dax_copy::write_back(to, buf.len());
            }
        }
    }

    fn check(&self, at: u64, len: usize) -> usize {
        let end = at.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.len as u64), "a range lies in its mapping");
        at as usize
    }

    /// As if the file system promised `MAP_SYNC`.
    #[cfg(test)]
    pub(crate) fn pretend_sync(&mut self) {
        self.sync = true;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more. An error leaves it mapped.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mapping")
            .field("len", &self.len)
            .field("sync", &self.sync)
            .finish_non_exhaustive()
    }
}
