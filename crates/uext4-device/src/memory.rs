//! A device in memory.
//!
//! # What
//! The device is sparse: a page takes memory once something other than zeroes is written to it. A
//! snapshot shares all pages until one side changes them, so a crash test can have a device for
//! each of thousands of states.
//!
//! # Locking
//! See `page_store`: writes to different 256 KiB chunks run in parallel; a request that crosses
//! chunks is not atomic to concurrent readers and snapshots, as on real storage.

use std::fmt;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::{Device, check_read, check_write};
use crate::page_store::{Absent, PageStore};

/// A sparse device in memory. Its bytes live as long as it does; `flush` does nothing.
pub struct MemoryDevice {
    len: u64,
    pages: PageStore,
    fresh: AtomicBool,
}

impl MemoryDevice {
    /// A device of `len` bytes, all zero.
    #[must_use]
    pub fn new(len: u64) -> MemoryDevice {
        MemoryDevice { len, pages: PageStore::new(), fresh: AtomicBool::new(true) }
    }

    /// A device with the bytes of another one. Zeroes take no memory.
    ///
    /// # Errors
    /// Those of reading `source`.
    pub fn copy_of(source: &dyn Device) -> io::Result<MemoryDevice> {
        let device = MemoryDevice::new(source.len());
        let mut buf = vec![0; 1 << 20];
        let mut at = 0;
        while at < device.len {
            let count = (device.len - at).min(buf.len() as u64) as usize;
            source.read_at(at, &mut buf[..count])?;
            device.write_at(at, &buf[..count])?;
            at += count as u64;
        }
        Ok(device)
    }

    /// A device with the bytes of a file.
    ///
    /// # Errors
    /// Those of opening and reading the file.
    pub fn load(path: &Path) -> io::Result<MemoryDevice> {
        let file = OpenOptions::new().read(true).open(path)?;
        let device = MemoryDevice::new(file.metadata()?.len());
        let mut buf = vec![0; 1 << 20];
        let mut at = 0;
        while at < device.len {
            let count = (device.len - at).min(buf.len() as u64) as usize;
            file.read_exact_at(&mut buf[..count], at)?;
            device.write_at(at, &buf[..count])?;
            at += count as u64;
        }
        Ok(device)
    }

    /// Writes the bytes to a sparse file, replacing its contents.
    ///
    /// # Errors
    /// Those of creating and writing the file.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        file.set_len(self.len)?;
        self.pages.for_each_page(|offset, page| {
            let count = (self.len - offset).min(page.len() as u64) as usize;
            file.write_all_at(&page[..count], offset)
        })
    }

    /// A device with the same bytes, which shares memory with this one until either changes.
    #[must_use]
    pub fn snapshot(&self) -> MemoryDevice {
        let fresh = AtomicBool::new(self.fresh_zeroes());
        MemoryDevice { len: self.len, pages: self.pages.snapshot(), fresh }
    }

    /// Bytes of memory in pages, including those shared with snapshots.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.pages.stored_bytes()
    }

    fn changed(&self) {
        // Read first, because writers on many cores would bounce the cache line.
        if self.fresh.load(Ordering::Relaxed) {
            self.fresh.store(false, Ordering::Relaxed);
        }
    }
}

impl Device for MemoryDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len, offset, buf.len())?;
        self.pages.read(offset, buf, |_, part| {
            part.fill(0);
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_write(self.len, false, offset, buf.len() as u64)?;
        self.changed();
        self.pages.write(offset, buf, &Absent::Zeroes)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len, false, offset, len)?;
        self.pages.erase(offset..offset + len);
        Ok(true)
    }

    fn fresh_zeroes(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDevice").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_what_was_written_across_pages_and_chunks() {
        let device = MemoryDevice::new(1 << 30);
        assert!(device.fresh_zeroes());
        let data: Vec<u8> = (0..700_000_u32).map(|i| (i % 251) as u8 + 1).collect();
        device.write_at(262_000, &data).unwrap();
        assert!(!device.fresh_zeroes());
        let mut back = vec![0; data.len() + 2];
        device.read_at(261_999, &mut back).unwrap();
        assert_eq!(back[0], 0);
        assert_eq!(back[1..=data.len()], data[..]);
        assert_eq!(back[data.len() + 1], 0);
    }

    #[test]
    fn untouched_and_zero_pages_take_no_memory() {
        let device = MemoryDevice::new(200 << 30);
        device.write_at(100 << 30, &vec![0; 1 << 20]).unwrap();
        assert_eq!(device.stored_bytes(), 0);
        device.write_at(100 << 30, &[1]).unwrap();
        assert_eq!(device.stored_bytes(), 4096);
        // Zeroes over a stored page must be stored.
        device.write_at(100 << 30, &[0]).unwrap();
        let mut byte = [9];
        device.read_at(100 << 30, &mut byte).unwrap();
        assert_eq!(byte, [0]);
    }

    #[test]
    fn past_the_end_is_an_error_and_changes_nothing() {
        let device = MemoryDevice::new(5000);
        assert!(device.read_at(4999, &mut [0; 2]).is_err());
        assert!(device.write_at(4000, &[1; 1001]).is_err());
        assert!(device.write_at(u64::MAX, &[1]).is_err());
        assert!(device.punch(4999, 2).is_err());
        assert_eq!(device.stored_bytes(), 0);
        device.write_at(4999, &[1]).unwrap();
    }

    #[test]
    fn snapshot_keeps_its_bytes_and_its_own_changes() {
        let device = MemoryDevice::new(1 << 20);
        device.write_at(0, &[1; 8192]).unwrap();
        let copy = device.snapshot();
        device.write_at(4096, &[2; 10]).unwrap();
        copy.write_at(0, &[3; 10]).unwrap();
        device.punch(0, 4096).unwrap();
        let byte = |d: &MemoryDevice, at| {
            let mut b = [0];
            d.read_at(at, &mut b).unwrap();
            b[0]
        };
        assert_eq!([byte(&device, 0), byte(&device, 4096), byte(&device, 8191)], [0, 2, 1]);
        assert_eq!([byte(&copy, 0), byte(&copy, 20), byte(&copy, 4096)], [3, 1, 1]);
    }

    #[test]
    fn save_and_load_keep_every_byte() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        let device = MemoryDevice::new(1_000_001);
        device.write_at(999_990, &[4; 11]).unwrap();
        device.write_at(5, &[8; 5000]).unwrap();
        device.save(&path).unwrap();
        let back = MemoryDevice::load(&path).unwrap();
        assert_eq!(back.len(), 1_000_001);
        let (mut a, mut b) = (vec![0; 1_000_001], vec![1; 1_000_001]);
        device.read_at(0, &mut a).unwrap();
        back.read_at(0, &mut b).unwrap();
        assert!(a == b);
    }

    /// Fault model: writers of disjoint ranges that share pages and chunks, while another thread
    /// takes snapshots. Not covered: overlapping writers, whose result is unspecified.
    #[test]
    fn parallel_writers_do_not_lose_bytes() {
        const THREADS: u64 = 8;
        const RECORD: u64 = 100;
        const ROUNDS: u64 = 2000;
        let device = MemoryDevice::new(THREADS * RECORD * ROUNDS);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        let at = (round * THREADS + thread) * RECORD;
                        device.write_at(at, &[thread as u8 + 1; RECORD as usize]).unwrap();
                    }
                });
            }
            for _ in 0..50 {
                let copy = device.snapshot();
                let mut record = [0; RECORD as usize];
                for at in (0..copy.len()).step_by(64 * RECORD as usize) {
                    copy.read_at(at, &mut record).unwrap();
                }
            }
        });
        let mut all = vec![0; device.len() as usize];
        device.read_at(0, &mut all).unwrap();
        for (index, record) in all.chunks(RECORD as usize).enumerate() {
            let want = (index as u64 % THREADS) as u8 + 1;
            assert!(record.iter().all(|byte| *byte == want), "record {index}");
        }
    }
}
