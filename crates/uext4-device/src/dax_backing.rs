//! The parts of a mapped file that have storage.
//!
//! # What
//! One bit for each chunk of a sparse file. A chunk is *backed* if it has no holes. Touching a hole
//! by address would make the kernel allocate storage or, if it cannot, kill the program.
//!
//! # Invariants
//! - Bits are set and never cleared, because the device never deallocates storage.
//!
//! # Locking
//! `growing` is held while a chunk is allocated. Reading a bit takes no lock.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstatfs, seek};
use rustix::io::Errno;

/// The chunks of a sparse file.
#[derive(Debug)]
pub(crate) struct Backing {
    backed: Box<[AtomicU64]>,
    /// Bytes of a chunk.
    chunk: u64,
    /// Bytes of the file.
    len: u64,
    growing: Mutex<()>,
}

/// Magic number of hugetlbfs (linux/magic.h), which never reports holes.
pub(crate) const HUGETLBFS: u64 = 0x9584_58f6;
/// Smallest chunk in bytes: a huge page, so that growing does not prevent one.
const CHUNK_MIN: u64 = 2 << 20;

impl Backing {
    /// Finds the holes of the file. `None` if it has none. Storage that was never written may count
    /// as a hole. If the store does not report holes, the whole file counts as one.
    pub(crate) fn of(file: &File, len: u64, store_block: u64) -> io::Result<Option<Backing>> {
        let chunk = store_block.max(CHUNK_MIN);
        let words = len.div_ceil(chunk).div_ceil(64) as usize;
        let backed = (0..words).map(|_| AtomicU64::new(u64::MAX)).collect();
        let backing = Backing { backed, chunk, len, growing: Mutex::default() };
        if fstatfs(file)?.f_type as u64 == HUGETLBFS {
            backing.backed.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            return Ok(Some(backing));
        }
        let (mut at, mut holes) = (0, false);
        while at < len {
            let hole = seek(file, SeekFrom::Hole(at))?.min(len);
            if hole == len {
                break;
            }
            holes = true;
            let data = match seek(file, SeekFrom::Data(hole)) {
                Ok(data) => data.min(len),
                Err(Errno::NXIO) => len,
                Err(errno) => return Err(errno.into()),
            };
            for number in hole / chunk..data.div_ceil(chunk) {
                backing.word(number).fetch_and(!mask(number), Ordering::Relaxed);
            }
            at = data;
        }
        Ok(holes.then_some(backing))
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        &self.backed[(number / 64) as usize]
    }

    /// Whether the chunk with byte `at` is backed, and how many of the `len` bytes from there are
    /// in it.
    pub(crate) fn look(&self, at: u64, len: u64) -> (bool, u64) {
        let number = at / self.chunk;
        // Acquire, because the storage was allocated before the bit was set.
        let backed = self.word(number).load(Ordering::Acquire) & mask(number) != 0;
        (backed, len.min((number + 1) * self.chunk - at))
    }

    /// Allocates the chunk with byte `at`. Its holes become zeroes.
    ///
    /// # Errors
    /// `ENOSPC`, or another error of the system.
    pub(crate) fn grow(&self, file: &File, at: u64) -> io::Result<()> {
        let _growing = self.growing.lock();
        if self.look(at, 1).0 {
            return Ok(());
        }
        let number = at / self.chunk;
        let from = number * self.chunk;
        allocate(file, from, self.chunk.min(self.len - from))?;
        self.word(number).fetch_or(mask(number), Ordering::Release);
        Ok(())
    }
}

/// Allocates a range of a file. Its holes become zeroes.
pub(crate) fn allocate(file: &File, from: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::empty();
    Ok(rustix::io::retry_on_intr(|| fallocate(file, mode, from, len))?)
}

fn mask(number: u64) -> u64 {
    1 << (number % 64)
}
