//! Aligned memory for requests that bypass the page cache.
//!
//! # What
//! [`AlignedBuf`]: bytes at an aligned address, without unsafe code, because more is allocated than
//! used. [`Pool`]: a few of them, so that a request does not fault fresh pages in. [`Gather`]:
//! copies from a list of buffers as if they were one.
//!
//! # Locking
//! The pool's lock is held to take or return a buffer, never during I/O.

use std::io::IoSlice;
use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;

/// Bytes at an aligned address.
pub(crate) struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// `len` zero bytes at a multiple of `align`, a power of two.
    pub(crate) fn new(len: usize, align: usize) -> AlignedBuf {
        assert!(align.is_power_of_two(), "an alignment is a power of two");
        let memory = vec![0; len + align];
        // `align_offset` is not used, because it may return no result.
        let start = memory.as_ptr().addr().wrapping_neg() & (align - 1);
        AlignedBuf { memory, start, len }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// A pool of buffers of one size.
pub(crate) struct Pool {
    len: usize,
    align: usize,
    kept: Mutex<Vec<AlignedBuf>>,
}

impl Pool {
    /// Most buffers in the pool. Further concurrent requests allocate.
    const KEPT_MAX: usize = 8;

    pub(crate) fn new(len: usize, align: usize) -> Pool {
        Pool { len, align, kept: Mutex::default() }
    }

    /// Lends a buffer with unspecified contents.
    pub(crate) fn lend<R>(&self, work: impl FnOnce(&mut AlignedBuf) -> R) -> R {
        let kept = self.kept.lock().pop();
        let mut buf = kept.unwrap_or_else(|| AlignedBuf::new(self.len, self.align));
        let result = work(&mut buf);
        let mut kept = self.kept.lock();
        if kept.len() < Pool::KEPT_MAX {
            kept.push(buf);
        }
        result
    }
}

/// Reads a list of buffers as one stream of bytes.
pub(crate) struct Gather<'s, 'b> {
    slices: &'s [IoSlice<'b>],
    within: usize,
}

impl<'s, 'b> Gather<'s, 'b> {
    pub(crate) fn new(slices: &'s [IoSlice<'b>]) -> Gather<'s, 'b> {
        Gather { slices, within: 0 }
    }

    /// Fills `out` with the next bytes.
    ///
    /// # Panics
    /// If fewer are left.
    pub(crate) fn fill(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let rest = &self.slices[0][self.within..];
            let count = rest.len().min(out.len());
            let (now, later) = out.split_at_mut(count);
            now.copy_from_slice(&rest[..count]);
            out = later;
            self.within += count;
            if self.within == self.slices[0].len() {
                self.slices = &self.slices[1..];
                self.within = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_aligned_and_buffers_come_back() {
        for align in [1, 512, 4096, 65536] {
            let mut buf = AlignedBuf::new(100, align);
            assert_eq!(buf.as_ptr().addr() % align, 0);
            buf.fill(7);
            assert_eq!(&*buf, &[7; 100]);
        }
        let pool = Pool::new(4096, 512);
        let first = pool.lend(|buf| buf.as_ptr().addr());
        assert_eq!(first, pool.lend(|buf| buf.as_ptr().addr()));
    }

    #[test]
    fn gather_crosses_buffers_and_passes_empty_ones() {
        let slices = [&b"ab"[..], b"", b"cdefg", b"h"].map(IoSlice::new);
        let mut gather = Gather::new(&slices);
        let mut out = [0; 3];
        gather.fill(&mut out);
        assert_eq!(&out, b"abc");
        gather.fill(&mut []);
        let mut out = [0; 5];
        gather.fill(&mut out);
        assert_eq!(&out, b"defgh");
    }
}
