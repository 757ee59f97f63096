//! Small files that are read before a reader of the tree asks for them.
//!
//! Locking: the file's lock, shared, as of any read (`read.rs`).

use super::read::PageReader;
use crate::error::Result;
use crate::extent::{State, lookup};
use crate::inode::Inode;
use uext4_ondisk::FileBlock;

/// Largest file that is read ahead as a whole, in bytes.
const SMALL_BYTES: u64 = 64 << 10;

impl PageReader {
    /// Puts the pages of a small file in. A file that is larger, whose pages are no plain copies of
    /// blocks, or that has direct I/O, which pages would slow down, is left to its reader.
    ///
    /// # Errors
    /// A corrupt tree; a device failure.
    pub(crate) fn read_small_ahead(&self, inode: &Inode) -> Result<()> {
        let _shared = inode.lock().read();
        let size = inode.size();
        let is_plain = !inode.is_inline() && !inode.is_verity() && !inode.is_dax();
        if size > SMALL_BYTES || !is_plain || inode.direct_io().is_some() {
            return Ok(());
        }
        let end = self.context.block_from(size);
        let mut at = FileBlock(0);
        while at < end {
            let present = inode.pages().map.range(at, end).next().map(|(block, _)| block);
            if present == Some(at) {
                at = at.plus(1);
                continue;
            }
            let mapping = lookup(inode, at)?;
            let run_end = mapping.end().min(present.unwrap_or(end));
            if let State::Written(block) = mapping.state {
                inode.disable_direct_fast_path();
                let images = self.read_blocks(inode, at, block, run_end.get() - at.get())?;
                let mut pages = inode.pages();
                for (page, image) in (at.get()..).map(FileBlock).zip(images) {
                    pages.map.insert_clean(page, image);
                }
            }
            at = run_end;
        }
        self.reclaim.evict();
        Ok(())
    }
}
