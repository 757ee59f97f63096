//! SEEK_DATA and SEEK_HOLE.

use super::read::PageReader;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::inode::Inode;
use uext4_ondisk::FileBlock;

/// The kind of byte to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may hold data.
    Data,
    /// The next byte that certainly holds none; the end of the file is a hole.
    Hole,
}

impl PageReader {
    /// The first byte at or after `offset` of the requested kind.
    ///
    /// # Errors
    /// `NoData` (as ENXIO) past the end or when no data follows; a corrupt tree; a device failure.
    pub(crate) fn seek(&self, inode: &Inode, offset: u64, what: Seek) -> Result<u64> {
        let _shared = inode.lock().read();
        let size = inode.size();
        let none = || Error::new(ErrorKind::NoData, String::new());
        if offset >= size {
            return Err(none());
        }
        if inode.is_inline() {
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let end = self.context.block_from(size);
        let mut at = self.context.block_at(offset);
        while at < end {
            let (is_data, next) = self.data_run(inode, at, end)?;
            if is_data == (what == Seek::Data) {
                return Ok((self.context.offset_of(at)).max(offset));
            }
            at = next;
        }
        if what == Seek::Hole { Ok(size) } else { Err(none()) }
    }

    /// Whether there is data at `at`, and the block where that may change. Unwritten blocks and
    /// holes are data if a page over them is not on the device yet. Pages are looked up before the
    /// tree, so that a page that is written back meanwhile is found in one of the two.
    fn data_run(&self, inode: &Inode, at: FileBlock, end: FileBlock) -> Result<(bool, FileBlock)> {
        let next_live = {
            let pages = inode.pages();
            let mut live = pages
                .map
                .range(at, end)
                .filter(|(_, page)| page.dirty || page.writeback)
                .map(|(block, _)| block);
            match live.next() {
                Some(first) if first == at => {
                    let mut next = at.plus(1);
                    while live.next() == Some(next) {
                        next = next.plus(1);
                    }
                    return Ok((true, next));
                }
                Some(first) => first,
                None => end,
            }
        };
        let mapping = lookup(inode, at)?;
        let run_end = mapping.end().min(end);
        match mapping.state {
            State::Written(_) => Ok((true, run_end)),
            State::Hole | State::Unwritten(_) => Ok((false, run_end.min(next_live))),
        }
    }
}
