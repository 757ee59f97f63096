//! Direct writes to unwritten blocks: first the data, in place and without a lock, then the
//! mapping.
//!
//! What: [`DirectIo::write_in_place`] for one write, [`DirectIo::convert`] for those of a queue:
//! writes of whole blocks, inside the file, whose blocks are allocated and at least in part
//! unwritten. Their bytes go to these blocks as those of an overwrite do, and no reader sees them
//! there. Then, before the writes are acknowledged, one handle converts up to 64 such runs to
//! written ones.
//! Invariants: data is on the device before the handle that converts starts. **The blocks that are
//! converted are the blocks that were written to**: if in between a mapping of the file was
//! removed, a page was put in, or an unwritten block was zeroed, nothing is converted and the write
//! is done again on the slow path. [`Conversion::version`] detects that. It is compared in a
//! read-side critical section, which ends after the handle, so each of these changes comes before
//! the comparison or after the handle. docs/direct-io.md has the argument.
//! Locking: the writeback lock, then the read-side critical section, then handles. A thread that
//! waits for a grace period never holds anything that a conversion in its section waits for.
//! Kernel counterpart: `ext4_dio_write_end_io`, `ext4_convert_unwritten_extents`, `dioread_nolock`.

use super::DirectIo;
use super::pieces::Places;
use crate::error::{Error, Result};
use crate::extent::{State, lookup, written_leaf};
use crate::file::reserve::Need;
use crate::file::writeback::{Part, Pending, PendingBlocks};
use crate::injected_faults::Fault;
use crate::inode::{DirectIoState, Inode, InodeRef, Version};
use std::io;
use uext4_ondisk::FileBlock;

/// A write whose data is in place, and whose blocks are to be converted.
#[derive(Debug)]
pub(super) struct Conversion {
    offset: u64,
    len: usize,
    /// Taken before its look-up.
    version: Version,
    /// The blocks are converted. If not, the write has to be done again.
    pub(super) is_done: bool,
    /// The blocks were written already.
    was_written: bool,
}

impl Conversion {
    pub(super) fn new(offset: u64, len: usize, version: Version) -> Self {
        Self { offset, len, version, is_done: false, was_written: false }
    }

    fn end(&self) -> u64 {
        self.offset + self.len as u64
    }
}

impl DirectIo {
    /// Writes a range in place, if all of it has blocks and some of them are unwritten. `None`:
    /// nothing visible has changed, and the caller takes another path.
    pub(super) fn write_in_place(
        &self,
        inode: &InodeRef,
        offset: u64,
        buf: &[u8],
        durable: bool,
    ) -> Option<Result<usize>> {
        let places = self.places_to_write(inode, offset, buf.len(), durable)?;
        let version = places.converts?;
        let written = self.write_places(inode, &places, buf);
        inode.note_direct_write(inode.direct_io()?);
        drop(places);
        if let Err(error) = written {
            let context = format!("writing {} bytes of {}", buf.len(), inode.ino());
            return Some(Err(Error::io(context, error)));
        }
        let mut one = [Conversion::new(offset, buf.len(), version)];
        self.convert(inode, &mut one);
        let [one] = one;
        if !one.is_done {
            return None;
        }
        let synced = if durable { self.syncs.sync(inode, true) } else { Ok(()) };
        Some(synced.map(|()| buf.len()))
    }

    fn write_places(&self, inode: &Inode, places: &Places<'_>, buf: &[u8]) -> io::Result<()> {
        let mut done = 0;
        for piece in &places.pieces {
            self.context.store(inode, piece.at, &buf[done..done + piece.len])?;
            done += piece.len;
        }
        Ok(())
    }

    /// Converts the blocks that writes of one inode, in ascending order, have put data in. The
    /// caller holds no lock.
    pub(super) fn convert(&self, inode: &Inode, list: &mut [Conversion]) {
        let Some(direct_io) = inode.direct_io() else { return };
        let _writeback = inode.writeback();
        // From here on a thread that would make the comparison untrue waits.
        let Some(_reading) = direct_io.read_lock_counted() else { return };
        let version = direct_io.version();
        // Nothing is converted behind the size that a crash would leave.
        let size = inode.attributes().disk_size;
        for one in &mut *list {
            let is_same = one.version == version || Fault::BlindConversion.is_injected();
            one.is_done = is_same && one.end() <= size;
        }
        match self.convert_those(inode, list) {
            Ok(()) => {
                let count = list.iter().filter(|one| one.is_done).count();
                self.stats.in_place.add(count as u64);
                self.learn_again(inode, direct_io, version, list);
            }
            // Writing each alone shows which one fails.
            Err(error) => {
                self.context.watch_dropped::<()>(Err(error));
                list.iter_mut().for_each(|one| one.is_done = false);
            }
        }
    }

    /// Converts those that are marked as done. The caller holds the writeback lock, and is in a
    /// read-side critical section.
    fn convert_those(&self, inode: &Inode, list: &mut [Conversion]) -> Result<()> {
        let mut part = Part::of_attributes(inode);
        let mut at = FileBlock(0);
        for one in list.iter_mut().filter(|one| one.is_done) {
            at = at.max(self.context.block_at(one.offset));
            let last = self.context.block_from(one.end());
            let before = part.pending.len();
            while at < last {
                let mapping = lookup(inode, at)?;
                let end = mapping.end().min(last);
                match mapping.state {
                    State::Unwritten(start) => part.pending.push(Pending::of(
                        at,
                        end.get() - at.get(),
                        PendingBlocks::Unwritten(start),
                    )),
                    // Converted by another write to the same blocks.
                    State::Written(_) => {}
                    State::Hole => {
                        debug_assert!(Fault::BlindConversion.is_injected(), "a mapping has gone");
                        one.is_done = false;
                    }
                }
                at = end;
            }
            one.was_written = part.pending.len() == before;
            self.stats.unwritten.add(u64::from(!one.was_written));
            self.stats.overwrites.add(u64::from(one.was_written));
        }
        if part.pending.is_empty() {
            return Ok(());
        }
        let blocks = part.pending.iter().map(|pending| pending.len).sum();
        let need = Need { conversions: blocks, ..Need::default() };
        inode.pages().reserve(need, at)?;
        let mapped = self.context.writeback.map(std::slice::from_mut(&mut part), false);
        inode.pages().unreserve(need);
        mapped
    }

    /// Learns the leaves again in which blocks were taken for unwritten and were not: the next
    /// write there is a pure overwrite. Converts those that are marked as done. The caller holds
    /// the writeback lock, and is in a read-side critical section.
    fn learn_again(
        &self,
        inode: &Inode,
        direct_io: &DirectIoState,
        version: Version,
        list: &[Conversion],
    ) {
        for one in list.iter().filter(|one| one.is_done && one.was_written) {
            let at = self.context.block_at(one.offset);
            if direct_io.find(at).is_some() {
                continue;
            }
            // A failure is ignored, because knowledge may be incomplete.
            if let Ok(leaf) = written_leaf(inode, at) {
                direct_io.learn(version, leaf, inode.size());
            }
        }
    }
}
