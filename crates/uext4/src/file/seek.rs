//! SEEK_DATA and SEEK_HOLE.

use super::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::inode::Inode;
use uext4_ondisk::FileBlock;

/// What a caller looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may hold data.
    Data,
    /// The next byte that certainly holds none; the end of the file is a hole.
    Hole,
}

impl Files {
    /// The first byte at or after `offset` of the kind that is looked for.
    ///
    /// # Errors
    /// `NoData` (as ENXIO) past the end or when no data follows; a corrupt tree; a device
    /// failure.
    pub fn seek(&self, inode: &Inode, offset: u64, what: Seek) -> Result<u64> {
        let _shared = inode.lock().read();
        let size = inode.size();
        let none = || Error::new(ErrorKind::NoData, String::new());
        if offset >= size {
            return Err(none());
        }
        let end = self.block_from(size);
        let mut at = self.block_at(offset);
        while at < end {
            let (is_data, next) = self.data_run(inode, at, end)?;
            if is_data == (what == Seek::Data) {
                return Ok((u64::from(at.get()) * self.block_size()).max(offset));
            }
            at = next;
        }
        if what == Seek::Hole { Ok(size) } else { Err(none()) }
    }

    /// Whether there is data at `at`, and where that may change. Unwritten blocks and holes are
    /// data where a page over them is not on the device yet.
    fn data_run(&self, inode: &Inode, at: FileBlock, end: FileBlock) -> Result<(bool, FileBlock)> {
        let mapping = lookup(&self.space, inode, at)?;
        let run_end = mapping.end().min(end);
        if matches!(mapping.state, State::Written(_)) {
            return Ok((true, run_end));
        }
        let pages = inode.pages();
        let mut live = pages
            .map
            .range(at, run_end)
            .filter(|(_, page)| page.dirty || page.writeback)
            .map(|(block, _)| block);
        Ok(match live.next() {
            None => (false, run_end),
            Some(first) if first > at => (false, first),
            Some(first) => {
                let mut next = first.plus(1);
                for block in live {
                    if block != next {
                        break;
                    }
                    next = next.plus(1);
                }
                (true, next)
            }
        })
    }
}
