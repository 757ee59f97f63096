//! Leases: ranges of a file in DAX mode that are looked up once.
//!
//! What: a [`Lease`] copies bytes into and out of a range of a file. Making one gives the range
//! blocks, which are zeroed before they are mapped. From then on an access is a read-side critical
//! section with one comparison of a number and the copy in it.
//! Invariants: a lease is valid as long as no mapping of the file has been removed since its
//! look-up. It keeps the number of exclusions from before the look-up, and each access compares
//! that number *inside* the critical section. So a remover of mappings breaks all leases when it
//! begins ([`crate::inode::ExclusiveGuard`]), and waits only for copies that are under way. A lease
//! between two accesses delays no other thread, and its owner may truncate the file. A broken lease
//! looks its range up again at its next access, as a memory mapping faults again.
//! Locking: none for an access to a valid lease; else the file's lock, exclusively.
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

/// A range of a file that is mapped for copying bytes in and out.
///
/// The range was inside the file when the lease was made. Operations that remove blocks (truncate,
/// punch and others) break the lease: the next access maps the range again, with new zeroed blocks
/// for holes. An access behind the end of the file fails. The lease stays valid when the file loses
/// its last name.
#[derive(Debug)]
pub struct Lease {
    files: Arc<Files>,
    inode: InodeRef,
    /// Byte of the file.
    offset: u64,
    len: u64,
    map: Published<LeaseMap>,
}

/// The places of a range on the device.
#[derive(Debug, Default)]
struct LeaseMap {
    /// `None`: nothing is map.
    version: Option<Version>,
    /// In ascending order. Parts of the range that are in no run are not written.
    runs: Vec<ByteRun>,
}

/// In bytes of the file and of the device.
#[derive(Clone, Copy, Debug)]
struct ByteRun {
    first: u64,
    len: u64,
    place: u64,
}

impl LeaseMap {
    /// The byte of the device at which `offset` lies, and how many of `len` bytes the run covers.
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
            map: Published::new(LeaseMap::default()),
        };
        {
            let _exclusive = inode.lock().write();
            lease.check_inside(offset + len)?;
            lease.map_again()?;
        }
        Ok(lease)
    }

    /// Gives zeroed blocks to the parts of `offset .. end` that are not written. The caller holds
    /// the file exclusively; `end` is inside it.
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

    /// Always false, because a lease has a length.
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
        let overwrites = self.inode.overwrites_or_init();
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
        // Nothing is mapped any more once the volume is closed.
        let call = self.files.begin_call();
        let _exclusive = self.inode.lock().write();
        self.check_inside(offset + buf.len() as u64)?;
        if call.is_ok() {
            self.files.watch(self.map_again())?;
        }
        self.files.watch(self.files.read_around(&self.inode, offset, buf))
    }

    /// Copies bytes in, from byte `at` of the range. Durable after a sync of the file.
    ///
    /// # Errors
    /// Those of [`Lease::read`]; `NoSpace`; `ReadOnly`, `NotPermitted` for immutable files.
    pub fn write(&self, at: u64, buf: &[u8]) -> Result<()> {
        let offset = self.check(at, buf.len())?;
        let overwrites = self.inode.overwrites_or_init();
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
        let _call = self.files.begin_call()?;
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

    /// Calls `work` for each piece of a range, and then `note`, in a read-side critical section.
    /// `None` if the lease is broken or does not cover the range, or if `may` refuses the access.
    fn access(
        &self,
        overwrites: &Overwrites,
        offset: u64,
        len: usize,
        may: impl FnOnce(&Files) -> bool,
        note: impl FnOnce(),
        mut work: impl FnMut(u64, Range<usize>) -> io::Result<()>,
    ) -> Option<io::Result<()>> {
        let _reading = overwrites.read_lock()?;
        if !may(&self.files) {
            return None;
        }
        // In the critical section: a remover that has begun is seen here, and one that begins later
        // waits for this access. A map that another thread publishes meanwhile is as good.
        let version = Some(overwrites.version());
        let piece = |done: usize| {
            let find = |map: &LeaseMap| map.find(offset + done as u64, len - done);
            self.map.with(|map| find(map).filter(|_| map.version == version))
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

    /// Looks the range up, as far as it is inside the file, and gives it blocks if the file is
    /// writable. The caller holds the file exclusively.
    fn map_again(&self) -> Result<()> {
        let files = &self.files;
        files.direct.lease_maps.add(1);
        let overwrites = self.inode.overwrites_or_init();
        overwrites.note_uncached();
        let end = (self.offset + self.len).min(self.inode.size());
        if overwrites.is_overwritable() && !files.is_read_only() {
            files.write_zeroes(&self.inode, self.offset, end)?;
        }
        // No mapping is removed while the file is held.
        let version = overwrites.version();
        let block_size = files.block_size();
        let mut runs = Vec::<ByteRun>::new();
        let (mut at, last) = (files.block_at(self.offset), files.block_from(end));
        while at < last {
            let mapping = lookup(&files.space, &self.inode, at)?;
            if let State::Written(start) = mapping.state {
                let first = u64::from(at.get()) * block_size;
                // Behind the end of the file the lease knows nothing.
                let len = (u64::from(mapping.end().min(last).get()) * block_size).min(end) - first;
                runs.push(ByteRun { first, len, place: start.get() * block_size });
            }
            at = mapping.end();
        }
        self.map.publish(LeaseMap { version: Some(version), runs });
        Ok(())
    }

    /// The byte of the file that is byte `at` of the range.
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
