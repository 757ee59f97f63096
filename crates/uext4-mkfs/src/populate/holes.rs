//! Where a file of a source has data.
//!
//! Policy: the image must not depend on the holes of the host, nor on those that an archive keeps.
//! They differ between file systems and after a copy (`cp --sparse`, `tar --sparse`, a compressing
//! file system). So what is a hole is decided by the content: in a file of more than 64 KiB every
//! 4 KiB of zeros, as with `mke2fs -d`; in a smaller one nothing, because it would have to be
//! opened once more for that. The holes of the source only save the reading of zeros.

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
/// Most ranges of a file: a limit for memory. Behind them nothing is a hole.
const RANGES_MAX: usize = 4 << 20;

type Result<T> = std::result::Result<T, Errno>;

/// Where a content has data, found while its bytes come, from the first to the last. What does not
/// come is zeros.
#[derive(Debug)]
pub struct DataRanges {
    size: u64,
    ranges: Vec<Range<u64>>,
}

impl DataRanges {
    /// Of a content of so many bytes; `None` if it is stored whole whatever it is.
    #[must_use]
    pub fn of(size: u64) -> Option<Self> {
        (size > WHOLE_MAX).then_some(Self { size, ranges: Vec::new() })
    }

    /// Takes the bytes that stand at `at`.
    pub fn add(&mut self, at: u64, bytes: &[u8]) {
        let (mut at, mut rest) = (at, bytes);
        while !rest.is_empty() {
            let start = at / UNIT * UNIT;
            let count = rest.len().min((UNIT - (at - start)) as usize);
            let (part, behind) = rest.split_at(count);
            if *part != ZEROS[..count] {
                self.push(start..start.saturating_add(UNIT).min(self.size));
            }
            at = at.saturating_add(count as u64);
            rest = behind;
        }
    }

    fn push(&mut self, range: Range<u64>) {
        let is_full = self.ranges.len() >= RANGES_MAX;
        match self.ranges.last_mut() {
            Some(last) if is_full || last.end >= range.start => {
                last.end = last.end.max(range.end);
            }
            _ => self.ranges.push(range),
        }
    }

    /// Where it has data; `None` if that is everywhere.
    #[must_use]
    pub fn finish(self) -> Option<Vec<Range<u64>>> {
        let is_everywhere = matches!(&self.ranges[..], [one] if *one == (0..self.size));
        (!is_everywhere).then_some(self.ranges)
    }
}

/// Where a file of this host has data; `None` if that is everywhere. `buffer` has no meaning
/// between calls.
pub(super) fn data_ranges(
    file: &OwnedFd,
    stat: &Stat,
    buffer: &mut Vec<u8>,
) -> Result<Option<Vec<Range<u64>>>> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let stored = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let mut has_holes = stored < size;
    let (mut found, mut at) = (DataRanges { size, ranges: Vec::new() }, 0);
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
        without_zeros(file, part.start / UNIT * UNIT..at.min(size), buffer, &mut found)?;
    }
    Ok(found.finish())
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
    found: &mut DataRanges,
) -> Result<()> {
    let mut at = part.start;
    while at < part.end {
        let want = STEP.min(part.end - at) as usize;
        buffer.resize(want, 0);
        let got = read(file, at, buffer)?;
        found.add(at, &buffer[..got]);
        if got < want {
            // It has become shorter, which is told when it is read for the image.
            found.push(at + got as u64..part.end);
            return Ok(());
        }
        at += got as u64;
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: what is a hole depends on how the bytes come, a unit that is partly zeros is
    /// lost, the end of the file is passed.
    #[test]
    fn ranges_do_not_depend_on_the_pieces() {
        assert!(DataRanges::of(WHOLE_MAX).is_none());
        let size = WHOLE_MAX + 3 * UNIT + 5;
        let mut bytes = vec![0; size as usize];
        bytes[UNIT as usize - 1] = 1;
        bytes[5 * UNIT as usize] = 1;
        bytes[size as usize - 1] = 1;
        let want = [0..UNIT, 5 * UNIT..6 * UNIT, WHOLE_MAX + 3 * UNIT..size];
        for step in [1, 7, UNIT as usize - 1, UNIT as usize, 10_000, bytes.len()] {
            let mut found = DataRanges::of(size).unwrap();
            for (index, piece) in bytes.chunks(step).enumerate() {
                found.add((index * step) as u64, piece);
            }
            assert_eq!(found.finish().unwrap(), want, "{step}");
        }
        bytes.fill(1);
        let mut found = DataRanges::of(size).unwrap();
        found.add(0, &bytes);
        assert_eq!(found.finish(), None);
        assert_eq!(DataRanges::of(size).unwrap().finish(), Some(Vec::new()));
    }
}
