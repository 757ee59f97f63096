//! Bytes between a caller's buffer and the pages of a file.

use super::FileContext;
use std::sync::Arc;
use uext4_ondisk::FileBlock;

impl FileContext {
    /// A new page: zeroes around the bytes that are written.
    pub(super) fn new_page(&self, at: FileBlock, offset: u64, buf: &[u8]) -> Arc<[u8]> {
        let page_start = u64::from(at.get()) * self.block_size();
        let whole = page_start.checked_sub(offset).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            buf.get(from..)?.get(..self.block_size() as usize)
        });
        if let Some(bytes) = whole {
            return self.table.budget().page_of(bytes);
        }
        let mut page = self.table.budget().zeroes(self.block_size() as usize);
        self.copy_in(at, Arc::make_mut(&mut page), offset, buf);
        page
    }

    pub(super) fn copy_in(&self, at: FileBlock, page: &mut [u8], offset: u64, buf: &[u8]) {
        let page_start = u64::from(at.get()) * self.block_size();
        let from = page_start.max(offset);
        let to = (page_start + self.block_size()).min(offset + buf.len() as u64);
        let source = &buf[(from - offset) as usize..(to - offset) as usize];
        page[(from - page_start) as usize..(to - page_start) as usize].copy_from_slice(source);
    }

    /// Copies the part of a page that lies in the caller's range.
    pub(super) fn copy_out(&self, at: FileBlock, page: &[u8], offset: u64, buf: &mut [u8]) {
        let page_start = u64::from(at.get()) * self.block_size();
        let from = page_start.max(offset);
        let to = (page_start + self.block_size()).min(offset + buf.len() as u64);
        if from < to {
            let source = &page[(from - page_start) as usize..(to - page_start) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
    }

    pub(super) fn zero_out(&self, first: FileBlock, end: FileBlock, offset: u64, buf: &mut [u8]) {
        let from = (u64::from(first.get()) * self.block_size()).max(offset);
        let to = (u64::from(end.get()) * self.block_size()).min(offset + buf.len() as u64);
        if from < to {
            buf[(from - offset) as usize..(to - offset) as usize].fill(0);
        }
    }
}
