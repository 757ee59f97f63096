//! A range of a device as a device of its own.
//!
//! # What
//! A partition of a network block device; and, for tests, two devices whose bytes are in one image:
//! a file system and its journal elsewhere. Over a recording device each part has a write cache of
//! its own: a flush of one part promises nothing of the other, as with two disks.
//!
//! # Invariants
//! No request reaches past the range.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::device::{Device, ReadRun, SharedDevice, WriteRun, check_read, check_write, total_len};
use crate::lease::Lease;
use crate::recording_device::RecordingDevice;
use crate::room::Room;

/// A part of another device.
pub struct PartDevice {
    whole: SharedDevice,
    /// The same, if flushes of the part are to be recorded apart.
    recorder: Option<Arc<RecordingDevice>>,
    range: Range<u64>,
}

impl PartDevice {
    /// The bytes `range` of a device, which must be inside it. A flush is one of the whole.
    #[must_use]
    pub fn new(whole: SharedDevice, range: Range<u64>) -> PartDevice {
        PartDevice { whole, recorder: None, range }
    }

    /// The bytes `range` of a recorded device. A flush covers the part alone.
    #[must_use]
    pub fn recorded(whole: Arc<RecordingDevice>, range: Range<u64>) -> PartDevice {
        PartDevice { whole: whole.clone(), recorder: Some(whole), range }
    }

    fn check(&self, offset: u64, count: u64) -> io::Result<u64> {
        check_write(self.len(), self.read_only(), offset, count)?;
        Ok(self.range.start + offset)
    }

    /// The writes as they are on the whole.
    fn moved<'a>(&self, writes: &[WriteRun<'a>]) -> io::Result<Vec<WriteRun<'a>>> {
        let moved = |run: &WriteRun<'a>| {
            let offset = self.check(run.offset, total_len(run.bufs) as u64)?;
            Ok(WriteRun { offset, bufs: run.bufs })
        };
        writes.iter().map(moved).collect()
    }
}

impl Device for PartDevice {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn read_only(&self) -> bool {
        self.whole.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len(), offset, buf.len())?;
        self.whole.read_at(self.range.start + offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.whole.write_at(self.check(offset, buf.len() as u64)?, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.whole.write_vectored_at(self.check(offset, total_len(bufs) as u64)?, bufs)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        check_read(self.len(), offset, bufs.iter().map(|buf| buf.len()).sum())?;
        self.whole.read_vectored_at(self.range.start + offset, bufs)
    }

    fn read_many(&self, reads: &mut [ReadRun<'_>]) -> io::Result<()> {
        for run in &*reads {
            check_read(self.len(), run.offset, run.buf.len())?;
        }
        reads.iter_mut().for_each(|run| run.offset += self.range.start);
        let read = self.whole.read_many(reads);
        reads.iter_mut().for_each(|run| run.offset -= self.range.start);
        read
    }

    fn is_far(&self) -> bool {
        self.whole.is_far()
    }

    fn set_lease(&self, lease: Option<Arc<Lease>>) {
        self.whole.set_lease(lease);
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.whole.write_many(&self.moved(writes)?)
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len(), offset, buf.len())?;
        self.whole.read_uncached(self.range.start + offset, buf)
    }

    fn drop_cached(&self) {
        self.whole.drop_cached();
    }

    fn name(&self) -> String {
        self.whole.name()
    }

    fn room(&self) -> Option<&Room> {
        self.whole.room()
    }

    fn flush(&self) -> io::Result<()> {
        match &self.recorder {
            Some(recorder) => recorder.flush_within(self.range.clone()),
            None => self.whole.flush(),
        }
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.whole.write_fua(self.check(offset, buf.len() as u64)?, buf)
    }

    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.whole.write_many_fua(&self.moved(writes)?)
    }

    fn writes_through(&self) -> bool {
        self.whole.writes_through()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.whole.punch(self.check(offset, len)?, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.whole.discard(self.check(offset, len)?, len)
    }

    fn fresh_zeroes(&self) -> bool {
        self.whole.fresh_zeroes()
    }
}

impl fmt::Debug for PartDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartDevice").field("range", &self.range).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDevice;
    use crate::recording::Event;

    #[test]
    fn a_part_is_bounded_and_flushed_alone() {
        let whole = Arc::new(RecordingDevice::over(MemoryDevice::new(8192)));
        let parts = [0..4096, 4096..8192].map(|range| PartDevice::recorded(whole.clone(), range));
        parts[1].write_at(4095, &[7]).unwrap();
        assert!(parts[0].write_at(4095, &[7, 7]).is_err());
        assert!(parts[0].read_at(4096, &mut [0]).is_err());
        assert!(parts[0].punch(4096, 1).is_err());
        let mut byte = [0];
        whole.read_at(8191, &mut byte).unwrap();
        assert_eq!(byte, [7]);
        parts[1].flush().unwrap();
        let events = whole.recording().events().to_vec();
        assert_eq!(events[1], Event::Flush { completed_at: Some(2), within: 4096..8192 });
    }
}
