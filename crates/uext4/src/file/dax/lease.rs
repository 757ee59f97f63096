//! A range of a file in DAX mode that is looked up once.
//!
//! What: [`Lease`] copies bytes into and out of a range of a file. Making it gives the range
//! blocks, zeroed before they are mapped; from then on an access is an entry into the
//! epoch, one look at a number, and the copy.
//! Invariants: what a lease knows is good while nobody has removed mappings of the file since it
//! looked: it keeps the number of exclusions before that, and each access compares it *inside* the
//! epoch. So an unmapper breaks all leases by beginning ([`crate::inode::Excluded`]), and waits for
//! the copies that are under way, for nothing else: a lease between two accesses holds nobody up,
//! and its owner may cut the file. A broken lease maps again at its next access, as a mapping of
//! memory faults again.
//! Locking: none for an access to a lease that holds; else the file's lock, exclusively.
//! Kernel counterpart: `dax_iomap_fault`, `dax_layout_busy_page`.

use super::super::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::inode::{InodeRef, Overwrites, Version};
use crate::sync::Published;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Most bytes that are zeroed at a time.
const ZERO_BYTES: u64 = 1 << 20;

/// A range of a file that is mapped, as far as this process goes: bytes are copied in and out.
///
/// The range was inside the file when the lease was made. Cutting the file, punching and the like
/// break the lease: the next access maps the range again, with new zeroed blocks where there are
/// holes. Behind the end of the file it fails. It stays valid when the file loses its last name.
#[derive(Debug)]
pub struct Lease {
    files: Arc<Files>,
    inode: InodeRef,
    /// Byte of the file.
    offset: u64,
    len: u64,
    known: Published<Known>,
}

/// Where the range lies.
#[derive(Debug, Default)]
struct Known {
    /// `None`: nothing is known.
    version: Option<Version>,
    /// Ascending; what lacks is not written.
    runs: Vec<Run>,
}

/// In bytes of the file and of the device.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    len: u64,
    place: u64,
}

impl Known {
    /// Byte of the device of `offset`, and for how many of `len` bytes the run goes on.
    fn find(&self, offset: u64, len: usize) -> Option<(u64, usize)> {
        let after = self.runs.partition_point(|run| run.first <= offset);
        let run = self.runs[after.checked_sub(1)?];
        let within = offset - run.first;
        let rest = run.len.checked_sub(within).filter(|&rest| rest > 0)?;
        Some((run.place + within, len.min(usize::try_from(rest).unwrap_or(usize::MAX))))
    }
}

impl Files {
    /// Maps `len` bytes of a file in DAX mode from byte `offset`.
    ///
    /// # Errors
    /// `Unsupported` for a file that is not in DAX mode; `InvalidArgument` for a range that is
    /// empty or not inside the file; `NoSpace`; a corrupt tree; a device failure.
    pub fn map(self: &Arc<Self>, inode: &InodeRef, offset: u64, len: u64) -> Result<Lease> {
        if !inode.is_dax() {
            let context = format!("inode {} is not in DAX mode", inode.ino());
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        if len == 0 || offset.checked_add(len).is_none() {
            return Err(Error::new(ErrorKind::InvalidArgument, "a lease must have a length"));
        }
        let lease = Lease {
            files: Arc::clone(self),
            inode: inode.clone(),
            offset,
            len,
            known: Published::new(Known::default()),
        };
        {
            let _exclusive = inode.lock().write();
            lease.check_inside(offset + len)?;
            lease.map_again()?;
        }
        Ok(lease)
    }

    /// Gives blocks of zeroes to what of `offset .. end` has none that are written. The caller
    /// holds the file exclusively; `end` is inside it.
    fn write_zeroes(&self, inode: &InodeRef, offset: u64, end: u64) -> Result<()> {
        let block_size = self.block_size();
        let (mut at, last) = (self.block_at(offset), self.block_from(end));
        let size = inode.size();
        let mut zeroes = Vec::new();
        while at < last {
            let mapping = lookup(&self.space, inode, at)?;
            let next = mapping.end().min(last);
            if matches!(mapping.state, State::Written(_)) {
                at = next;
                continue;
            }
            let from = u64::from(at.get()) * block_size;
            let to = (u64::from(next.get()) * block_size).min(size).min(from + ZERO_BYTES);
            zeroes.resize(zeroes.len().max((to - from) as usize), 0);
            let done = self.write_dax_slowly(inode, from, &zeroes[..(to - from) as usize])?;
            at = self.block_from(from + done as u64);
        }
        Ok(())
    }
}

impl Lease {
    /// Bytes of the range.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Always false: a lease has a length.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies bytes out, from byte `at` of the range.
    ///
    /// # Errors
    /// `InvalidArgument` past the end of the range, or of the file as it is now; a corrupt tree; a
    /// device failure.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<()> {
        let offset = self.check(at, buf.len())?;
        let overwrites = self.inode.overwrites_to_be();
        let note = || {
            if self.files.keeps_access_times() {
                self.inode.note_direct_read(overwrites);
            }
        };
        let read = self.access(
            overwrites,
            offset,
            buf.len(),
            |_| true,
            note,
            |place, range| self.files.load(&self.inode, place, &mut buf[range]),
        );
        if let Some(read) = read {
            return self.tell(read, "reading", buf.len());
        }
        // Nothing is mapped any more when the volume has ended.
        let entered = self.files.enter();
        let _exclusive = self.inode.lock().write();
        self.check_inside(offset + buf.len() as u64)?;
        if entered.is_ok() {
            self.files.watch(self.map_again())?;
        }
        self.files.watch(self.files.read_around(&self.inode, offset, buf))
    }

    /// Copies bytes in, from byte `at` of the range. Durable after a sync of the file.
    ///
    /// # Errors
    /// As [`Lease::read`]; `NoSpace`; `ReadOnly`, `NotPermitted` for immutable files.
    pub fn write(&self, at: u64, buf: &[u8]) -> Result<()> {
        let offset = self.check(at, buf.len())?;
        let overwrites = self.inode.overwrites_to_be();
        if overwrites.is_overwritable() && !self.files.is_read_only() {
            let note = || self.inode.note_direct_write(overwrites);
            let may = |files: &Files| !files.is_closing();
            let written = self.access(overwrites, offset, buf.len(), may, note, |place, range| {
                self.files.store(&self.inode, place, &buf[range])
            });
            if let Some(written) = written {
                return self.tell(written, "writing", buf.len());
            }
        }
        let _inside = self.files.enter()?;
        self.files.watch(self.files.check_changeable(&self.inode))?;
        {
            let _exclusive = self.inode.lock().write();
            self.check_inside(offset + buf.len() as u64)?;
            self.files.watch(self.map_again())?;
            let count = self.files.watch(self.files.write_locked(&self.inode, offset, buf))?;
            if count < buf.len() {
                return Err(Error::new(ErrorKind::NoSpace, "a part of a lease has no block"));
            }
        }
        self.files.honour_sync_flag(&self.inode)
    }

    /// Gives `work` each piece of a range and then notes that, inside the epoch; `None` if the
    /// lease is broken, or does not know all of it, or the access `may` not be.
    fn access(
        &self,
        overwrites: &Overwrites,
        offset: u64,
        len: usize,
        may: impl FnOnce(&Files) -> bool,
        note: impl FnOnce(),
        mut work: impl FnMut(u64, Range<usize>) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let _visit = overwrites.visit()?;
        if !may(&self.files) {
            return None;
        }
        // Inside: whoever has begun to remove mappings since is seen here, or waits for us. What
        // another thread makes known meanwhile is as good.
        let version = Some(overwrites.version());
        let piece = |done: usize| {
            let find = |known: &Known| known.find(offset + done as u64, len - done);
            self.known.with(|known| find(known).filter(|_| known.version == version))
        };
        let mut done = 0;
        while done < len {
            done += piece(done)?.1;
        }
        done = 0;
        let mut result = Ok(());
        while done < len && result.is_ok() {
            let (place, count) = piece(done)?;
            result = work(place, done..done + count);
            done += count;
        }
        note();
        self.files.direct.lease_accesses.add(1);
        Some(result)
    }

    fn tell(&self, result: io::Result<()>, what: &str, len: usize) -> Result<()> {
        let ino = self.inode.ino();
        result.map_err(|e| Error::io(format!("{what} {len} bytes of inode {ino} by a lease"), e))
    }

    /// Looks the range up, as far as it is inside the file, and gives it blocks where it may. The
    /// caller holds the file exclusively.
    fn map_again(&self) -> Result<()> {
        let files = &self.files;
        files.direct.lease_maps.add(1);
        let overwrites = self.inode.overwrites_to_be();
        overwrites.note_uncached();
        let end = (self.offset + self.len).min(self.inode.size());
        if overwrites.is_overwritable() && !files.is_read_only() {
            files.write_zeroes(&self.inode, self.offset, end)?;
        }
        // Nobody removes mappings while the file is held.
        let version = overwrites.version();
        let block_size = files.block_size();
        let mut runs = Vec::<Run>::new();
        let (mut at, last) = (files.block_at(self.offset), files.block_from(end));
        while at < last {
            let mapping = lookup(&files.space, &self.inode, at)?;
            if let State::Written(start) = mapping.state {
                let first = u64::from(at.get()) * block_size;
                // Behind the end of the file the lease knows nothing.
                let len = (u64::from(mapping.end().min(last).get()) * block_size).min(end) - first;
                runs.push(Run { first, len, place: start.get() * block_size });
            }
            at = mapping.end();
        }
        self.known.publish(Known { version: Some(version), runs });
        Ok(())
    }

    /// The byte of the file of byte `at` of the range.
    fn check(&self, at: u64, len: usize) -> Result<u64> {
        if at.checked_add(len as u64).is_some_and(|end| end <= self.len) {
            return Ok(self.offset + at);
        }
        let context = format!("{len} bytes at {at} of a lease of {} bytes", self.len);
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }

    fn check_inside(&self, end: u64) -> Result<()> {
        let size = self.inode.size();
        if end <= size {
            return Ok(());
        }
        let context = format!("byte {end} by a lease, and the file ends at {size}");
        Err(Error::new(ErrorKind::InvalidArgument, context))
    }
}
