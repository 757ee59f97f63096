//! A writable view of a device that is never written.
//!
//! # What
//! Writes stay in memory and hide the lower device; reads of other pages come from the lower
//! device. Verbs that only read replay a dirty journal into such an overlay, so that they show the
//! recovered file system without changing the image.
//!
//! # Invariants
//! - No request ever writes to or flushes the lower device.
//! - The lower device does not change while the overlay lives, because a reader has it locked. A
//!   page written here hides the lower one permanently.

use std::fmt;
use std::io;
use std::ops::Range;

use crate::device::{Device, SharedDevice, check_read, check_write};
use crate::page_store::{Absent, PageStore};

/// A device whose writes stay in memory above a lower one. Memory grows by the pages written.
pub struct OverlayDevice {
    lower: SharedDevice,
    pages: PageStore,
}

impl OverlayDevice {
    /// An overlay without changes. `lower` may be read-only.
    #[must_use]
    pub fn new(lower: SharedDevice) -> OverlayDevice {
        OverlayDevice { lower, pages: PageStore::new() }
    }

    /// Bytes of memory in written pages.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.pages.stored_bytes()
    }

    /// Where pages were written, in bytes; ascending.
    #[must_use]
    pub fn written_pages(&self) -> Vec<Range<u64>> {
        let mut pages = Vec::new();
        let note = |offset: u64, page: &[u8]| {
            pages.push(offset..offset + page.len() as u64);
            Ok(())
        };
        // Nothing is read, so nothing can fail.
        let _ = self.pages.for_each_page(note);
        pages
    }

    /// Fills a page from the lower device, which may end inside the page.
    fn fill(&self, offset: u64, page: &mut [u8]) -> io::Result<()> {
        let count = (self.lower.len() - offset).min(page.len() as u64) as usize;
        self.lower.read_at(offset, &mut page[..count])
    }
}

impl Device for OverlayDevice {
    fn len(&self) -> u64 {
        self.lower.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len(), offset, buf.len())?;
        self.pages.read(offset, buf, |at, part| self.lower.read_at(at, part))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_write(self.len(), false, offset, buf.len() as u64)?;
        self.pages.write(offset, buf, &Absent::Filled(&|at, page| self.fill(at, page)))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Always `Ok(false)`, because an absent page would show the lower device.
    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len(), false, offset, len)?;
        Ok(false)
    }
}

impl fmt::Debug for OverlayDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverlayDevice").field("lower", &self.lower).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryDevice;

    #[test]
    fn writes_hide_the_lower_device_and_never_reach_it() {
        let lower = Arc::new(MemoryDevice::new(10_000));
        lower.write_at(0, &[1; 10_000]).unwrap();
        let overlay = OverlayDevice::new(lower.clone());
        overlay.write_at(4090, &[2; 10]).unwrap();
        // The device may end inside the last page.
        overlay.write_at(9_999, &[3]).unwrap();
        overlay.write_at(0, &[0; 5]).unwrap();

        let mut all = vec![9; 10_000];
        overlay.read_at(0, &mut all).unwrap();
        let mut want = vec![1; 10_000];
        want[4090..4100].fill(2);
        want[9_999] = 3;
        want[..5].fill(0);
        assert!(all == want);

        lower.read_at(0, &mut all).unwrap();
        assert!(all.iter().all(|byte| *byte == 1));
    }

    #[test]
    fn punch_says_that_it_cannot() {
        let overlay = OverlayDevice::new(Arc::new(MemoryDevice::new(8192)));
        assert!(!overlay.punch(0, 4096).unwrap());
        assert!(overlay.read_at(8192, &mut [0]).is_err());
        assert!(overlay.write_at(8190, &[0; 3]).is_err());
    }

    #[test]
    fn parallel_partial_writes_to_one_page_all_survive() {
        let lower = Arc::new(MemoryDevice::new(1 << 20));
        lower.write_at(0, &vec![7; 1 << 20]).unwrap();
        let overlay = OverlayDevice::new(lower);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let overlay = &overlay;
                scope.spawn(move || {
                    for at in (thread * 8..1 << 20).step_by(64) {
                        overlay.write_at(at, &[thread as u8; 4]).unwrap();
                    }
                });
            }
        });
        let mut all = vec![0; 1 << 20];
        overlay.read_at(0, &mut all).unwrap();
        for (index, eight) in all.chunks(8).enumerate() {
            let thread = (index % 8) as u8;
            assert_eq!(eight, [thread, thread, thread, thread, 7, 7, 7, 7]);
        }
    }
}
