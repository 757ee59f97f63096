//! Where a file of this host has data.
//!
//! Policy: the image must not depend on the holes of the host. They differ between its file systems
//! and after a copy (`cp --sparse`, a compressing file system). So what is a hole is decided by the
//! content: in a file of more than 64 KiB every 4 KiB of zeros, as with `mke2fs -d`; in a smaller
//! one nothing, because it would have to be opened once more for that. The host's holes only save
//! the reading of zeros.

use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// Files of at most so many bytes have no holes.
pub(super) const WHOLE_MAX: u64 = 64 << 10;
/// What is a hole if it is zeros, aligned in the file.
const UNIT: u64 = 4096;
const ZEROS: [u8; UNIT as usize] = [0; UNIT as usize];
/// Bytes that are read at once: whole units.
const STEP: u64 = 256 << 10;

type Result<T> = std::result::Result<T, Errno>;

/// Where a file has data; `None` if that is everywhere. `buffer` has no meaning between calls.
pub(super) fn data_ranges(
    file: &OwnedFd,
    stat: &Stat,
    buffer: &mut Vec<u8>,
) -> Result<Option<Vec<Range<u64>>>> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let stored = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let mut has_holes = stored < size;
    let (mut ranges, mut at) = (Vec::new(), 0);
    while at < size {
        let mut part = at..size;
        if has_holes {
            match stored_range(file, at, size)? {
                Seek::Range(found) => part = found.start.max(at)..found.end.max(at + 1),
                Seek::Nothing => break,
                Seek::Unknown => has_holes = false,
            }
        }
        at = part.end.next_multiple_of(UNIT);
        without_zeros(file, part.start / UNIT * UNIT..at.min(size), buffer, &mut ranges)?;
    }
    let is_everywhere = matches!(&ranges[..], [one] if *one == (0..size));
    Ok((!is_everywhere).then_some(ranges))
}

enum Seek {
    Range(Range<u64>),
    Nothing,
    /// A file system that does not know its holes.
    Unknown,
}

/// What the host stores next.
fn stored_range(file: &OwnedFd, at: u64, size: u64) -> Result<Seek> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) if start >= size => Ok(Seek::Nothing),
        Ok(start) => {
            let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
            Ok(Seek::Range(start..end.min(size)))
        }
        Err(Errno::NXIO) => Ok(Seek::Nothing),
        Err(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS) => Ok(Seek::Unknown),
        Err(error) => Err(error),
    }
}

/// Adds the units of a part of the file that are not all zeros.
fn without_zeros(
    file: &OwnedFd,
    part: Range<u64>,
    buffer: &mut Vec<u8>,
    ranges: &mut Vec<Range<u64>>,
) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let want = STEP.min(part.end - at) as usize;
        buffer.resize(want, 0);
        let got = read(file, at, buffer)?;
        for (index, unit) in (0..).zip(buffer[..got].chunks(UNIT as usize)) {
            let start = at + index * UNIT;
            if *unit != ZEROS[..unit.len()] {
                push(ranges, start..start + unit.len() as u64);
            }
        }
        if got < want {
            // It has become shorter, which is told when it is read for the image.
            push(ranges, at + got as u64..part.end);
            return Ok(());
        }
        at += got as u64;
    }
    Ok(())
}

fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}

/// Fills the buffer, but at the end of the file. Returns the bytes that came.
fn read(file: &OwnedFd, at: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *rest, at + done as u64))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}
