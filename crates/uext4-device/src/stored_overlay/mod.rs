//! Overlays: what is written to a device is in a store beside it, and the device stays as it is.
//!
//! # What
//! An overlay has a *base*, which is never written, and a *store*, which holds the blocks that were
//! written since. [`StoredOverlay`] shows both as one device; [`commit`] writes the blocks of the
//! store into the base. A block that the store holds is read and overwritten there. The first write
//! to a block copies the rest of it from the base. What is punched is held as a hole of the store.
//! docs/overlay.md has the format.
//!
//! # Durability
//! A flush makes the blocks durable, then writes the bits of new blocks, then makes these durable.
//! In the other order a crash could leave a bit whose block was never stored, and old bytes of the
//! store, or zeroes, would be shown in place of the base. A crash before the bits are written shows
//! the base: the block was not flushed, so that is one of the states that it may be in.
//!
//! # Invariants
//! - No request to an overlay writes to or flushes the base. Only [`commit`] does.
//! - The bytes of a store are hostile input: they name no file that is opened, and memory is
//!   bounded by what is read and written.
//! - The base is the one that the store was made over.
//! - A write to a block that the store does not hold has the lock of its region, so that two of
//!   them cannot both copy the block. Blocks that the store holds are written without a lock.
//!
//! # Locking
//! `regions`, in ascending order, over the I/O of a write; `bits_turn` over that of a flush; below
//! both the lock of the bitmap, over none.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;

use self::bitmap::{Bitmap, Run};
use crate::device::{Device, SharedDevice, WriteRun, check_read, check_write};
use crate::room::Room;
use crate::sleep::about_to_sleep;
use parking_lot::{Mutex, MutexGuard};

mod bitmap;
mod commit;
mod error;
mod header;
mod layout;
mod superblock;

pub use commit::{Committed, commit};
pub use error::OverlayError;
pub use header::{Header, MAGIC, State};
pub use layout::{BLOCK_BYTES, Layout};

/// Bytes of a region.
const REGION_BYTES: u64 = 1 << 20;
/// Locks; a region has the one of its number modulo this.
const REGION_LOCKS: u64 = 64;

/// A base, and a store that holds what was written since.
pub struct StoredOverlay {
    base: SharedDevice,
    store: SharedDevice,
    layout: Layout,
    bitmap: Bitmap,
    /// For writes to blocks that the store does not hold.
    regions: Vec<Mutex<()>>,
    /// One flush writes bits at a time, so that an older page never lands on a newer one.
    bits_turn: Mutex<()>,
}

/// Makes an overlay over `base` of a store that reads as zeroes and has the length that
/// [`Layout::store_len`] says. `name` is that of the base, for people.
///
/// # Errors
/// A base that is too long; those of the devices.
pub fn create(store: &dyn Device, base: &dyn Device, name: &[u8]) -> Result<(), OverlayError> {
    let header = Header::over(base, name)?;
    let (wanted, len) = (header.layout.store_len(), store.len());
    if wanted != len {
        return Err(OverlayError::Length { wanted, len });
    }
    header.write_new(store)
}

impl StoredOverlay {
    /// Opens an overlay over the base that it was made over. It can be written if `store` can.
    ///
    /// # Errors
    /// See [`OverlayError`]; each leaves both as they are.
    pub fn open(store: SharedDevice, base: SharedDevice) -> Result<StoredOverlay, OverlayError> {
        let header = Header::read(&*store)?;
        header.check_length(&*base)?;
        if header.state == State::Committing {
            return Err(OverlayError::Committing);
        }
        header.check_base(&*base)?;
        let layout = header.layout;
        Ok(StoredOverlay {
            base,
            store,
            layout,
            bitmap: Bitmap::new(layout),
            regions: (0..REGION_LOCKS).map(|_| Mutex::default()).collect(),
            bits_turn: Mutex::default(),
        })
    }

    /// Splits a range of bytes where reads go from one device to the other.
    fn split(
        &self,
        bytes: Range<u64>,
        visit: &mut dyn FnMut(Range<u64>, bool) -> io::Result<()>,
    ) -> io::Result<()> {
        let blocks = self.layout.blocks_of(&bytes);
        self.bitmap.load(&*self.store, &blocks)?;
        let mut at = blocks.start;
        while at < blocks.end {
            let Run { blocks: run, held } = self.bitmap.run(&(at..blocks.end));
            at = run.end;
            let run = self.layout.bytes_of(&run);
            visit(run.start.max(bytes.start)..run.end.min(bytes.end), held)?;
        }
        Ok(())
    }

    /// The device that has bytes from `offset` on, and where.
    fn source(&self, offset: u64, held: bool) -> (&SharedDevice, u64) {
        match held {
            true => (&self.store, self.layout.data_offset() + offset),
            false => (&self.base, offset),
        }
    }

    fn read_by(
        &self,
        offset: u64,
        buf: &mut [u8],
        read: impl Fn(&SharedDevice, u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        check_read(self.len(), offset, buf.len())?;
        let mut rest = buf;
        self.split(offset..offset + rest.len() as u64, &mut |bytes, held| {
            let (part, tail) =
                std::mem::take(&mut rest).split_at_mut((bytes.end - bytes.start) as usize);
            rest = tail;
            let (device, at) = self.source(bytes.start, held);
            read(device, at, part)
        })
    }

    /// Checks runs of writes, and reads the bitmap of their blocks, which it returns.
    fn prepare(&self, runs: &[WriteRun<'_>]) -> io::Result<Vec<Range<u64>>> {
        let mut all = Vec::with_capacity(runs.len());
        for run in runs {
            let bytes = bytes_of(run);
            check_write(self.len(), self.read_only(), run.offset, bytes.end - bytes.start)?;
            let blocks = self.layout.blocks_of(&bytes);
            self.bitmap.load(&*self.store, &blocks)?;
            all.push(blocks);
        }
        Ok(all)
    }

    /// Locks the regions of blocks.
    fn lock(&self, all: &[Range<u64>]) -> Vec<MutexGuard<'_, ()>> {
        const REGION_BLOCKS: u64 = REGION_BYTES / BLOCK_BYTES;
        let mut locks = BTreeSet::new();
        for blocks in all {
            let regions = blocks.start / REGION_BLOCKS..blocks.end.div_ceil(REGION_BLOCKS);
            // Beyond that many regions the locks come again.
            locks.extend(regions.take(REGION_LOCKS as usize).map(|region| region % REGION_LOCKS));
        }
        about_to_sleep();
        locks.into_iter().map(|lock| self.regions[lock as usize].lock()).collect()
    }

    fn write(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        let all = self.prepare(runs)?;
        if all.iter().all(|blocks| self.bitmap.holds(blocks)) {
            return self.store_runs(runs);
        }
        let _locked = self.lock(&all);
        let is_covered = |run: &WriteRun<'_>| {
            let bytes = bytes_of(run);
            let (touched, whole) =
                (self.layout.blocks_of(&bytes), self.layout.whole_blocks(&bytes));
            let edges = [touched.start..whole.start.min(touched.end), whole.end..touched.end];
            edges.iter().all(|edge| self.bitmap.holds(edge))
        };
        if runs.iter().all(is_covered) {
            self.store_runs(runs)?;
            all.iter().for_each(|blocks| self.bitmap.set(blocks));
            return Ok(());
        }
        // Two runs may have parts of one block: the second must find what the first has copied.
        runs.iter().zip(&all).try_for_each(|(run, blocks)| {
            self.store_filled(run, blocks)?;
            self.bitmap.set(blocks);
            Ok(())
        })
    }

    /// Writes to the store, at the places of the bytes there.
    fn store_runs(&self, runs: &[WriteRun<'_>]) -> io::Result<()> {
        let data = self.layout.data_offset();
        match runs {
            [run] => self.store.write_vectored_at(data + run.offset, run.bufs),
            _ => {
                let mut moved = runs.to_vec();
                moved.iter_mut().for_each(|run| run.offset += data);
                self.store.write_many(&moved)
            }
        }
    }

    /// Writes one run, and around it what the base has in blocks that the store does not hold. The
    /// regions are locked.
    fn store_filled(&self, run: &WriteRun<'_>, blocks: &Range<u64>) -> io::Result<()> {
        let bytes = bytes_of(run);
        if bytes.is_empty() {
            return Ok(());
        }
        let around = self.layout.bytes_of(blocks);
        let is_absent = |block: u64| !self.bitmap.holds(&(block..block + 1));
        let (mut before, mut behind) = (Vec::new(), Vec::new());
        if is_absent(blocks.start) {
            before.resize((bytes.start - around.start) as usize, 0);
            self.base.read_at(around.start, &mut before)?;
        }
        if is_absent(blocks.end - 1) {
            behind.resize((around.end - bytes.end) as usize, 0);
            self.base.read_at(bytes.end, &mut behind)?;
        }
        let mut bufs: Vec<&[u8]> = Vec::with_capacity(run.bufs.len() + 2);
        bufs.push(&before);
        bufs.extend(run.bufs);
        bufs.push(&behind);
        bufs.retain(|buf| !buf.is_empty());
        let offset = bytes.start - before.len() as u64;
        self.store_runs(&[WriteRun { offset, bufs: &bufs }])
    }
}

fn bytes_of(run: &WriteRun<'_>) -> Range<u64> {
    let len: usize = run.bufs.iter().map(|buf| buf.len()).sum();
    run.offset..run.offset.saturating_add(len as u64)
}

impl Device for StoredOverlay {
    fn len(&self) -> u64 {
        self.layout.base_len()
    }

    fn read_only(&self) -> bool {
        self.store.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_by(offset, buf, |device, at, part| device.read_at(at, part))
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.read_by(offset, buf, |device, at, part| device.read_uncached(at, part))
    }

    fn drop_cached(&self) {
        self.base.drop_cached();
        self.store.drop_cached();
    }

    fn name(&self) -> String {
        self.store.name()
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write(&[WriteRun { offset, bufs: &[buf] }])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.write(&[WriteRun { offset, bufs }])
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.write(writes)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        check_read(self.len(), offset, total)?;
        let blocks = self.layout.blocks_of(&(offset..offset + total as u64));
        self.bitmap.load(&*self.store, &blocks)?;
        if blocks.is_empty() {
            return Ok(());
        }
        let run = self.bitmap.run(&blocks);
        if run.blocks == blocks {
            let (device, at) = self.source(offset, run.held);
            return device.read_vectored_at(at, bufs);
        }
        let mut at = offset;
        for buf in bufs {
            self.read_at(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        about_to_sleep();
        let turn = self.bits_turn.lock();
        let pages = self.bitmap.take_unwritten();
        if pages.is_empty() {
            drop(turn);
            return self.store.flush();
        }
        let done = self.store.flush();
        let done = done.and_then(|()| self.bitmap.write(&*self.store, &pages));
        let done = done.and_then(|()| self.store.flush());
        self.bitmap.finish(&pages, done.is_ok());
        done
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let blocks = self.prepare(&[WriteRun { offset, bufs: &[buf] }])?;
        if blocks.iter().all(|blocks| self.bitmap.holds_durably(blocks)) {
            return self.store.write_fua(self.layout.data_offset() + offset, buf);
        }
        self.write_at(offset, buf)?;
        self.flush()
    }

    /// Blocks that lie whole in the range become holes of the store.
    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len(), self.read_only(), offset, len)?;
        let bytes = offset..offset + len;
        let whole = self.layout.whole_blocks(&bytes);
        if whole.is_empty() {
            return Ok(len == 0);
        }
        self.bitmap.load(&*self.store, &whole)?;
        let middle = self.layout.bytes_of(&whole);
        {
            let _locked = self.lock(std::slice::from_ref(&whole));
            let at = self.layout.data_offset() + middle.start;
            if !self.store.punch(at, middle.end - middle.start)? {
                return Ok(false);
            }
            self.bitmap.set(&whole);
        }
        for edge in [bytes.start..middle.start, middle.end..bytes.end] {
            self.write_at(edge.start, &vec![0; (edge.end - edge.start) as usize])?;
        }
        Ok(true)
    }

    /// Blocks that the store holds become holes; the base keeps its own, which the range may read
    /// as. So a discard of a whole image needs no room.
    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len(), self.read_only(), offset, len)?;
        let whole = self.layout.bytes_of(&self.layout.whole_blocks(&(offset..offset + len)));
        let mut is_done = true;
        self.split(whole, &mut |bytes, held| {
            if held {
                let at = self.layout.data_offset() + bytes.start;
                is_done &= self.store.discard(at, bytes.end - bytes.start)?;
            }
            Ok(())
        })?;
        Ok(is_done)
    }

    fn room(&self) -> Option<&Room> {
        self.store.room()
    }
}

impl fmt::Debug for StoredOverlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (base, store) = (&self.base, &self.store);
        f.debug_struct("StoredOverlay").field("base", base).field("store", store).finish()
    }
}

#[cfg(test)]
mod tests;
