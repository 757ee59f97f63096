//! Requests that bypass the kernel's page cache (`O_DIRECT`).
//!
//! # What
//! The kernel requires that offset, length and memory address of such a request are multiples of
//! its alignments (`statx` reports them since Linux 6.1). Callers of a device need not know them:
//! requests that do not fit go through an aligned buffer, and a write of a part of a unit reads the
//! unit, changes it and writes it back.
//!
//! # Invariants
//! - *Every* request of a direct device bypasses the page cache, through open files with
//!   `O_DIRECT`. So the device never leaves a dirty page there that the kernel could write over a
//!   later direct write. Pages that other programs left (mkfs, a copy) are written back and dropped
//!   by the kernel before a direct request that meets them.
//! - The device starts and ends at multiples of the unit; otherwise it is not opened direct. So the
//!   units around any request are inside the device, and no write changes the file's length.
//!
//! # Locking
//! `units` guards a unit between its read and its write-back. A writer of a part of a unit holds it
//! exclusively, a writer of whole units shares it. Without it: threads A and B write neighbouring
//! bytes of one unit; both read the unit; A writes it back, then B does, and A's bytes are lost.
//! I/O happens under it. Reads do not take it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;

use parking_lot::{RwLock, RwLockReadGuard};
use rustix::fs::{AtFlags, OFlags, StatxFlags, fcntl_getfl, fcntl_setfl, statx};

use crate::bounce::{AlignedBuf, Gather, Pool};
use crate::vectored::write_all_vectored;

/// The kernel's alignments of a direct request, in bytes: powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// Of offsets and lengths.
    pub(crate) unit: usize,
    /// Of memory addresses.
    pub(crate) memory: usize,
}

impl Alignment {
    /// Whether a range of the file can be sent as it is.
    pub(crate) fn fits(&self, at: u64, len: usize) -> bool {
        at.is_multiple_of(self.unit as u64) && len.is_multiple_of(self.unit)
    }

    /// Whether the buffer can be sent as it is, as a part of a range that fits.
    pub(crate) fn fits_memory(&self, buf: &[u8]) -> bool {
        buf.as_ptr().addr().is_multiple_of(self.memory) && buf.len().is_multiple_of(self.unit)
    }

    /// Alignment of bounce buffers: a page, or more if the kernel requires more.
    pub(crate) fn for_memory(&self) -> usize {
        self.memory.max(self.unit).max(4096)
    }
}

/// The requests of a direct device.
pub(crate) struct Direct {
    align: Alignment,
    units: RwLock<()>,
    pool: Pool,
}

/// Bytes of one aligned buffer: a multiple of every accepted unit.
const BOUNCE_LEN: usize = 256 * 1024;
/// Largest unit that is accepted.
const UNIT_MAX: usize = 64 * 1024;

impl Direct {
    /// Makes an open file direct. The device has `len` bytes from `start`. With `try_sizes`,
    /// alignments are probed if the system does not report them.
    ///
    /// # Errors
    /// The reason, in a few words. The file is then unchanged.
    pub(crate) fn start(
        file: &File,
        start: u64,
        len: u64,
        try_sizes: bool,
    ) -> Result<Direct, String> {
        let flags = fcntl_getfl(file).map_err(|errno| errno.to_string())?;
        fcntl_setfl(file, flags | OFlags::DIRECT)
            .map_err(|_| "its file system has no direct I/O".to_owned())?;
        probe(file, start, len, try_sizes).map(Direct::with).inspect_err(|_| {
            // The flag was settable, so it can be cleared.
            let _ = fcntl_setfl(file, flags);
        })
    }

    fn with(align: Alignment) -> Direct {
        let pool = Pool::new(BOUNCE_LEN, align.for_memory());
        Direct { align, units: RwLock::default(), pool }
    }

    pub(crate) fn alignment(&self) -> Alignment {
        self.align
    }

    /// The lock that a writer of whole units holds if it does not use [`Direct::write`].
    pub(crate) fn share_units(&self) -> RwLockReadGuard<'_, ()> {
        self.units.read()
    }

    /// Writes the buffers one after the other at `at` (bytes in the file).
    pub(crate) fn write(&self, file: &File, at: u64, slices: &[IoSlice<'_>]) -> io::Result<()> {
        let len = slices.iter().map(|slice| slice.len()).sum();
        if len == 0 {
            return Ok(());
        }
        if !self.align.fits(at, len) {
            let _units = self.units.write();
            return self.pool.lend(|buf| self.write_parts(file, at, len, slices, buf));
        }
        let _units = self.units.read();
        if slices.iter().all(|slice| self.align.fits_memory(slice)) {
            return write_all_vectored(file, at, &mut slices.to_vec());
        }
        self.pool.lend(|buf| {
            let mut bytes = Gather::new(slices);
            let mut done = 0;
            while done < len {
                let count = (len - done).min(BOUNCE_LEN);
                bytes.fill(&mut buf[..count]);
                file.write_all_at(&buf[..count], at + done as u64)?;
                done += count;
            }
            Ok(())
        })
    }

    /// Writes a range that does not start and end at units. The caller holds `units` exclusively.
    fn write_parts(
        &self,
        file: &File,
        at: u64,
        len: usize,
        slices: &[IoSlice<'_>],
        buf: &mut AlignedBuf,
    ) -> io::Result<()> {
        let unit = self.align.unit;
        let mut bytes = Gather::new(slices);
        let mut done = 0;
        while done < len {
            let from = at + done as u64;
            let skipped = (from % unit as u64) as usize;
            let count = (len - done).min(BOUNCE_LEN - skipped);
            let whole = (skipped + count).next_multiple_of(unit);
            let start = from - skipped as u64;
            if skipped > 0 {
                file.read_exact_at(&mut buf[..unit], start)?;
            }
            // The last unit, unless it is the first and has just been read.
            let last = whole - unit;
            if skipped + count < whole && !(last == 0 && skipped > 0) {
                file.read_exact_at(&mut buf[last..whole], start + last as u64)?;
            }
            bytes.fill(&mut buf[skipped..skipped + count]);
            file.write_all_at(&buf[..whole], start)?;
            done += count;
        }
        Ok(())
    }

    /// Fills the buffers one after the other from `at` (bytes in the file).
    pub(crate) fn read(&self, file: &File, at: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        if let [buf] = bufs
            && self.align.fits(at, buf.len())
            && self.align.fits_memory(buf)
        {
            return file.read_exact_at(buf, at);
        }
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        if len == 0 {
            return Ok(());
        }
        self.pool.lend(|bounce| self.read_parts(file, at, len, bufs, bounce))
    }

    fn read_parts(
        &self,
        file: &File,
        at: u64,
        len: usize,
        bufs: &mut [&mut [u8]],
        bounce: &mut AlignedBuf,
    ) -> io::Result<()> {
        let unit = self.align.unit;
        let (mut index, mut within, mut done) = (0, 0, 0);
        while done < len {
            let from = at + done as u64;
            let skipped = (from % unit as u64) as usize;
            let count = (len - done).min(BOUNCE_LEN - skipped);
            let whole = (skipped + count).next_multiple_of(unit);
            file.read_exact_at(&mut bounce[..whole], from - skipped as u64)?;
            let mut got = &bounce[skipped..skipped + count];
            while !got.is_empty() {
                let out = &mut bufs[index][within..];
                let step = out.len().min(got.len());
                out[..step].copy_from_slice(&got[..step]);
                got = &got[step..];
                within += step;
                if within == bufs[index].len() {
                    (index, within) = (index + 1, 0);
                }
            }
            done += count;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Direct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Direct").field("align", &self.align).finish_non_exhaustive()
    }
}

/// Finds alignments that work, by asking and then by reading the first unit.
fn probe(file: &File, start: u64, len: u64, try_sizes: bool) -> Result<Alignment, String> {
    let asked = asked_alignment(file)?;
    let candidates = match asked {
        Some(align) => vec![align],
        None if !try_sizes => return Err("it does not state its alignment".to_owned()),
        None => [512, 4096].map(|unit| Alignment { unit, memory: unit }).to_vec(),
    };
    let mut reason = String::new();
    for align in candidates {
        let unit = align.unit as u64;
        if !start.is_multiple_of(unit) || !(start + len).is_multiple_of(unit) {
            reason = format!("it does not start and end at multiples of {unit} bytes");
            continue;
        }
        let mut buf = AlignedBuf::new(align.unit, align.for_memory());
        match file.read_exact_at(&mut buf, start) {
            Ok(()) => return Ok(align),
            Err(error) => reason = format!("direct I/O does not work on it: {error}"),
        }
    }
    Err(reason)
}

/// The alignments that the system reports for a file that is open with `O_DIRECT`, if it does.
fn asked_alignment(file: &File) -> Result<Option<Alignment>, String> {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN | StatxFlags::TYPE);
    let align = match found {
        Ok(found) if found.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            let unit = found.stx_dio_offset_align as usize;
            if unit == 0 {
                return Err("its file system has no direct I/O".to_owned());
            }
            Alignment { unit, memory: (found.stx_dio_mem_align as usize).max(1) }
        }
        _ => match rustix::fs::ioctl_blksszget(file) {
            Ok(size) => Alignment { unit: size as usize, memory: size as usize },
            Err(_) => return Ok(None),
        },
    };
    let good = |size: usize| size.is_power_of_two() && size <= UNIT_MAX;
    if good(align.unit) && good(align.memory) {
        Ok(Some(align))
    } else {
        Err(format!("its direct I/O wants units of {} bytes", align.unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The unit that most disks here do not have: 4096, which the kernel takes everywhere.
    #[test]
    fn parts_of_units_are_read_changed_and_written_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("units");
        let mut want: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
        std::fs::write(&path, &want).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let direct = Direct::with(Alignment { unit: 4096, memory: 4096 });
        for (at, len) in [
            (0, 1),
            (4095, 2),
            (1024, 1024),
            (4096, 4096),
            (8191, 4098),
            (100, BOUNCE_LEN),
            (4000, BOUNCE_LEN * 2 + 4097),
            (4096, BOUNCE_LEN + 1),
            ((1 << 20) - 1, 1),
        ] {
            let bytes: Vec<u8> = (0..len).map(|byte| (byte * 31 + at) as u8).collect();
            let (one, two) = bytes.split_at(len / 3);
            let slices = [one, b"", two].map(IoSlice::new);
            direct.write(&file, at as u64, &slices).unwrap();
            want[at..at + len].copy_from_slice(&bytes);
            assert!(std::fs::read(&path).unwrap() == want, "write of {len} at {at}");

            let mut back = vec![0; len];
            let (one, two) = back.split_at_mut(len / 2);
            direct.read(&file, at as u64, &mut [one, &mut [], two]).unwrap();
            assert!(back == bytes, "read of {len} at {at}");
        }
    }

    /// Callers that share a unit do not overlap, so each one's bytes must be there at the end.
    #[test]
    fn neighbours_in_a_unit_do_not_undo_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("units");
        std::fs::write(&path, [0; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let direct = Direct::with(Alignment { unit: 4096, memory: 4096 });
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let (file, direct) = (&file, &direct);
                scope.spawn(move || {
                    for round in 1..=200_u8 {
                        let bytes = [round; 1024];
                        let at = thread * 1024 + 512;
                        direct.write(file, at, &[IoSlice::new(&bytes)]).unwrap();
                        let mut back = [0; 1024];
                        direct.read(file, at, &mut [&mut back]).unwrap();
                        assert_eq!(back, bytes);
                    }
                });
            }
        });
    }
}
