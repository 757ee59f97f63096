//! Writeback passes of 15 pages that look again for dirty pages: `fsync_batch=rescan`.
//!
//! What: each sync runs a pass of its own, takes few pages at a time, and ends when a look finds
//! none dirty. So it also writes what became dirty after it began, as kernels before 5.8 did.

use super::Writeback;
use crate::error::Result;
use crate::inode::Inode;
use uext4_ondisk::FileBlock;

/// Pages that a pass takes at a time, as many as the kernel's page vectors held.
const RESCAN_PAGES: usize = 15;

pub(super) fn write_back(writeback: &Writeback, inode: &Inode) -> Result<()> {
    let mut from = FileBlock(0);
    loop {
        let part = writeback.take(inode, from, RESCAN_PAGES);
        let Some(&(last, _)) = part.pages.last() else {
            return writeback.catch_up_size(inode, part.size);
        };
        writeback.write_part(part)?;
        from = last.plus(1);
    }
}
