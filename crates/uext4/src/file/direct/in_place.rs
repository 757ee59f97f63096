//! Direct writes to unwritten blocks: the data in place without a lock, then the mapping.
//!
//! What: [`Files::write_in_place`] for one write, [`Files::convert`] for those of a queue: writes
//! of whole blocks, inside the file, whose blocks are allocated and at least in part unwritten.
//! Their bytes go to these blocks as those of an overwrite do, and nobody sees them there. Then,
//! before they are acknowledged, one handle makes up to 64 such runs written.
//! Invariants: data is on the device before the handle that converts starts. **What is converted is
//! what was written to**: between the two nobody has removed a mapping of the file, put a page in,
//! or zeroed an unwritten block; else nothing is converted, and the write is made again, the slow
//! way. [`Conversion::version`] tells, and is compared inside the epoch, which is left after the
//! handle. So a conversion and whoever changes one of these take turns. docs/direct-io.md has the
//! argument.
//! Locking: the sweep lock, then the epoch, then handles. Nobody waits for an epoch who holds what
//! a conversion in it waits for.
//! Kernel counterpart: `ext4_dio_write_end_io`, `ext4_convert_unwritten_extents`, `dioread_nolock`.

use super::super::Files;
use super::super::batch::{Part, Pending, PendingBlocks};
use super::pieces::Places;
use crate::error::{Error, Result};
use crate::extent::{State, lookup, written_leaf};
use crate::inode::{Inode, InodeRef, Overwrites, Version};
use crate::plant::{self, Fault};
use std::io;
use uext4_ondisk::FileBlock;

/// A write whose data is in place.
#[derive(Debug)]
pub(super) struct Conversion {
    offset: u64,
    len: usize,
    /// From before its look-up.
    version: Version,
    /// It is mapped. Else it is to be made again.
    pub(super) is_done: bool,
    /// It was before.
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

impl Files {
    /// Writes, if the range has blocks, of which some are unwritten. `None`: nothing that anybody
    /// sees has changed, and another way is to be tried.
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
        inode.note_direct_write(inode.overwrites()?);
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
        let synced = if durable { self.sync(inode, true) } else { Ok(()) };
        Some(synced.map(|()| buf.len()))
    }

    fn write_places(&self, inode: &Inode, places: &Places<'_>, buf: &[u8]) -> io::Result<()> {
        let mut done = 0;
        for piece in places.pieces() {
            self.store(inode, piece.at, &buf[done..done + piece.len])?;
            done += piece.len;
        }
        Ok(())
    }

    /// Makes written what writes of one inode, in ascending order, have put data in. The caller
    /// holds no lock.
    pub(super) fn convert(&self, inode: &Inode, list: &mut [Conversion]) {
        let Some(overwrites) = inode.overwrites() else { return };
        let _sweep = inode.sweep();
        // Whoever would make it untrue waits from here on.
        let Some(_access) = overwrites.enter() else { return };
        let version = overwrites.version();
        // Nothing is written behind what a crash would leave as the end of the file.
        let size = inode.attributes().disk_size;
        for one in &mut *list {
            let is_same = one.version == version || plant::is(Fault::BlindConversion);
            one.is_done = is_same && one.end() <= size;
        }
        match self.convert_those(inode, list) {
            Ok(()) => {
                let count = list.iter().filter(|one| one.is_done).count();
                self.direct.in_place.add(count as u64);
                self.learn_again(inode, overwrites, version, list);
            }
            // Whose failure it is shows when each goes alone.
            Err(error) => {
                self.watch_dropped::<()>(Err(error));
                list.iter_mut().for_each(|one| one.is_done = false);
            }
        }
    }

    /// The caller holds the sweep lock, inside the epoch.
    fn convert_those(&self, inode: &Inode, list: &mut [Conversion]) -> Result<()> {
        let mut part = Part::of_attributes(inode);
        let mut at = FileBlock(0);
        for one in list.iter_mut().filter(|one| one.is_done) {
            at = at.max(self.block_at(one.offset));
            let last = self.block_from(one.end());
            let before = part.pending.len();
            while at < last {
                let mapping = lookup(&self.space, inode, at)?;
                let end = mapping.end().min(last);
                match mapping.state {
                    State::Unwritten(start) => part.pending.push(Pending {
                        first: at,
                        len: end.get() - at.get(),
                        blocks: PendingBlocks::Unwritten(start),
                        data: Vec::new(),
                    }),
                    // By another write to the same blocks, which is under way or was.
                    State::Written(_) => {}
                    State::Hole => {
                        debug_assert!(plant::is(Fault::BlindConversion), "a mapping has gone");
                        one.is_done = false;
                    }
                }
                at = end;
            }
            one.was_written = part.pending.len() == before;
            self.direct.unwritten.add(u64::from(!one.was_written));
            self.direct.overwrites.add(u64::from(one.was_written));
        }
        if part.pending.is_empty() {
            return Ok(());
        }
        let blocks = part.pending.iter().map(|pending| pending.len).sum();
        self.reserve_conversion(inode, blocks, true)?;
        let mapped = self.map_parts(std::slice::from_mut(&mut part), false);
        // A smaller reservation cannot fail.
        let smaller = self.reserve_conversion(inode, blocks, false);
        debug_assert!(smaller.is_ok(), "a reservation grew by a conversion");
        mapped
    }

    /// Reserves nodes of the tree for conversions of so many blocks, beside what is reserved to
    /// pages.
    fn reserve_conversion(&self, inode: &Inode, blocks: u32, more: bool) -> Result<()> {
        let mut pages = inode.pages();
        let (reserved, converting) = (pages.reserved, pages.converting);
        let converting = match more {
            true => converting + blocks,
            false => converting.saturating_sub(blocks),
        };
        self.set_reservation(&mut pages, reserved, converting)
    }

    /// What was taken for unwritten and was not is learnt anew: the next write there is a pure
    /// overwrite. The caller holds the sweep lock, inside the epoch.
    fn learn_again(
        &self,
        inode: &Inode,
        overwrites: &Overwrites,
        version: Version,
        list: &[Conversion],
    ) {
        for one in list.iter().filter(|one| one.is_done && one.was_written) {
            let at = self.block_at(one.offset);
            if overwrites.find(at).is_some() {
                continue;
            }
            // Nothing is lost by not knowing.
            if let Ok(leaf) = written_leaf(&self.space, inode, at) {
                overwrites.learn(version, leaf, inode.size());
            }
        }
    }
}
