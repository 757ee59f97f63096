//! A device that counts.
//!
//! # What
//! Counts requests, bytes and flushes by kind, each in an atomic of its own, when the wrapped
//! device has returned `Ok`. Failures are counted separately.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::device::{Device, SharedDevice, WriteRun, total_len};

/// Wraps a device and counts its requests.
#[derive(Debug)]
pub struct MeteredDevice {
    inner: SharedDevice,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    submissions: AtomicU64,
    written_bytes: AtomicU64,
    fua_writes: AtomicU64,
    flushes: AtomicU64,
    punches: AtomicU64,
    failures: AtomicU64,
}

/// The counters of a meter. They are read one after the other, not at one instant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeterReading {
    /// Reads. A vectored read counts once.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes, including FUA. A vectored write counts once.
    pub writes: u64,
    /// Calls that wrote. All writes of one [`Device::write_many`] count once.
    pub submissions: u64,
    /// Bytes written, including FUA.
    pub written_bytes: u64,
    /// FUA writes. On a file each may cost as much as a flush.
    pub fua_writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Deallocations.
    pub punches: u64,
    /// Requests of any kind that failed.
    pub failures: u64,
}

impl MeteredDevice {
    /// Wraps a device; all counters are 0.
    #[must_use]
    pub fn new(inner: SharedDevice) -> MeteredDevice {
        MeteredDevice { inner, counters: Counters::default() }
    }

    /// The current counters.
    #[must_use]
    pub fn read_meter(&self) -> MeterReading {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        MeterReading {
            reads: get(&counters.reads),
            read_bytes: get(&counters.read_bytes),
            writes: get(&counters.writes),
            submissions: get(&counters.submissions),
            written_bytes: get(&counters.written_bytes),
            fua_writes: get(&counters.fua_writes),
            flushes: get(&counters.flushes),
            punches: get(&counters.punches),
            failures: get(&counters.failures),
        }
    }

    /// Adds the amounts to their counters if the request succeeded.
    fn count<T>(&self, result: io::Result<T>, amounts: &[(&AtomicU64, usize)]) -> io::Result<T> {
        match &result {
            Ok(_) => {
                for (counter, amount) in amounts {
                    counter.fetch_add(*amount as u64, Ordering::Relaxed);
                }
            }
            Err(_) => {
                self.counters.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }

    /// Counts one call with this many writes.
    fn count_writes(&self, result: io::Result<()>, writes: usize, bytes: usize) -> io::Result<()> {
        let counters = &self.counters;
        let amounts = [
            (&counters.writes, writes),
            (&counters.submissions, 1),
            (&counters.written_bytes, bytes),
        ];
        self.count(result, &amounts)
    }
}

impl MeterReading {
    /// The difference to an earlier reading of the same meter.
    #[must_use]
    pub fn since(&self, earlier: &MeterReading) -> MeterReading {
        MeterReading {
            reads: self.reads.saturating_sub(earlier.reads),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            submissions: self.submissions.saturating_sub(earlier.submissions),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            fua_writes: self.fua_writes.saturating_sub(earlier.fua_writes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
            punches: self.punches.saturating_sub(earlier.punches),
            failures: self.failures.saturating_sub(earlier.failures),
        }
    }
}

impl Device for MeteredDevice {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let count = buf.len();
        let result = self.inner.read_at(offset, buf);
        self.count(result, &[(&self.counters.reads, 1), (&self.counters.read_bytes, count)])
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let result = self.inner.write_at(offset, buf);
        self.count_writes(result, 1, buf.len())
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        let result = self.inner.write_vectored_at(offset, bufs);
        self.count_writes(result, 1, total_len(bufs))
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        let result = self.inner.write_many(writes);
        let bytes = writes.iter().map(|run| total_len(run.bufs)).sum();
        self.count_writes(result, writes.len(), bytes)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        let count = bufs.iter().map(|buf| buf.len()).sum();
        let result = self.inner.read_vectored_at(offset, bufs);
        self.count(result, &[(&self.counters.reads, 1), (&self.counters.read_bytes, count)])
    }

    fn flush(&self) -> io::Result<()> {
        self.count(self.inner.flush(), &[(&self.counters.flushes, 1)])
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let result = self.inner.write_fua(offset, buf);
        let counters = &self.counters;
        let amounts = [
            (&counters.writes, 1),
            (&counters.submissions, 1),
            (&counters.fua_writes, 1),
            (&counters.written_bytes, buf.len()),
        ];
        self.count(result, &amounts)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        let result = self.inner.punch(offset, len);
        self.count(result, &[(&self.counters.punches, 1)])
    }

    /// Counts as a punch.
    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        let result = self.inner.discard(offset, len);
        self.count(result, &[(&self.counters.punches, 1)])
    }

    fn fresh_zeroes(&self) -> bool {
        self.inner.fresh_zeroes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::MemoryDevice;

    #[test]
    fn counts_requests_bytes_and_failures() {
        let device = MeteredDevice::new(Arc::new(MemoryDevice::new(4096)));
        device.write_at(0, &[1; 10]).unwrap();
        device.write_vectored_at(0, &[&[1; 5], &[2; 6]]).unwrap();
        device.write_fua(0, &[1; 100]).unwrap();
        let run = |offset| WriteRun { offset, bufs: &[b"ab", b"c"] };
        device.write_many(&[run(0), run(10)]).unwrap();
        let middle = device.read_meter();
        device.read_at(0, &mut [0; 7]).unwrap();
        device.read_vectored_at(0, &mut [&mut [0; 3], &mut [0; 4]]).unwrap();
        device.flush().unwrap();
        device.punch(0, 4096).unwrap();
        assert!(device.write_at(4096, &[0]).is_err());
        assert!(device.read_at(4096, &mut [0]).is_err());
        let end = device.read_meter();
        let want = MeterReading {
            reads: 2,
            read_bytes: 14,
            writes: 5,
            submissions: 4,
            written_bytes: 127,
            fua_writes: 1,
            flushes: 1,
            punches: 1,
            failures: 2,
        };
        assert_eq!(end, want);
        assert_eq!(end.since(&middle).writes, 0);
        assert_eq!(end.since(&middle).reads, 2);
    }

    #[test]
    fn no_count_is_lost_between_threads() {
        let device = MeteredDevice::new(Arc::new(MemoryDevice::new(4096)));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        device.write_at(0, &[1; 3]).unwrap();
                        device.flush().unwrap();
                    }
                });
            }
        });
        let reading = device.read_meter();
        assert_eq!((reading.writes, reading.written_bytes), (8000, 24000));
        assert_eq!(reading.flushes, 8000);
    }
}
