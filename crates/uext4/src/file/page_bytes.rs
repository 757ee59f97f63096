//! Bytes between a caller's buffer and the blocks of a file.

use super::FileContext;
use std::ops::Range;
use std::sync::Arc;
use uext4_ondisk::FileBlock;

impl FileContext {
    /// A new page: zeroes around the bytes that are written.
    pub(super) fn new_page(&self, at: FileBlock, offset: u64, buf: &[u8]) -> Arc<[u8]> {
        let (bytes, block_size) = (self.overlap(at, at.plus(1), offset, buf), self.block_size());
        if bytes.end - bytes.start == block_size {
            return self.table.budget().spare.page_of(&buf[within(&bytes, offset)]);
        }
        let mut page = self.table.budget().spare.zeroes(block_size as usize);
        self.copy_in(at, Arc::make_mut(&mut page), offset, buf);
        page
    }

    /// Copies the part of the caller's bytes that lies in a page.
    pub(super) fn copy_in(&self, at: FileBlock, page: &mut [u8], offset: u64, buf: &[u8]) {
        let bytes = self.overlap(at, at.plus(1), offset, buf);
        let into = within(&bytes, self.offset_of(at));
        page[into].copy_from_slice(&buf[within(&bytes, offset)]);
    }

    /// Copies the part of a page that lies in the caller's range.
    pub(super) fn copy_out(&self, at: FileBlock, page: &[u8], offset: u64, buf: &mut [u8]) {
        let bytes = self.overlap(at, at.plus(1), offset, buf);
        let from = within(&bytes, self.offset_of(at));
        buf[within(&bytes, offset)].copy_from_slice(&page[from]);
    }

    /// Zeroes the part of the caller's range that lies in blocks `first .. end`.
    pub(super) fn zero_out(&self, first: FileBlock, end: FileBlock, offset: u64, buf: &mut [u8]) {
        let bytes = self.overlap(first, end, offset, buf);
        buf[within(&bytes, offset)].fill(0);
    }

    /// The bytes of the file that lie in blocks `first .. end` and in `buf`, which begins at byte
    /// `offset`. There are some.
    pub(super) fn overlap(
        &self,
        first: FileBlock,
        end: FileBlock,
        offset: u64,
        buf: &[u8],
    ) -> Range<u64> {
        let from = self.offset_of(first).max(offset);
        from..self.offset_of(end).min(offset + buf.len() as u64)
    }
}

/// Bytes of a file as places in what begins at byte `origin` of it.
pub(super) fn within(bytes: &Range<u64>, origin: u64) -> Range<usize> {
    (bytes.start - origin) as usize..(bytes.end - origin) as usize
}
