//! A device that may be written only until a time that its owner moves on.
//!
//! # What
//! A host that shares a device with others writes to it under a lease: it tells the others at
//! intervals that it is there, and each time the lease becomes longer. A host that could not tell
//! them for a while (its process was stopped, its path to the store failed) must not write any
//! more, because another host may take the device over. [`LeasedDevice`] refuses every change once
//! the lease is over. It looks at the clock before each change, so that a process which has been
//! stopped writes nothing when it goes on.
//!
//! # Invariants
//! - Every change that begins after the end of the lease fails with `EIO`, and so does every flush:
//!   nothing is acknowledged under a lease that is over.
//! - A lease that is over never begins again.
//!
//! - The device below is told of the lease, so that what it has to make again after an outage, or
//!   could not make in time, is not made when the lease is over.
//!
//! Not covered: a change that began in time and that the store executes later.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::since_boot;
use crate::device::{Device, ReadRun, SharedDevice, WriteRun};
use crate::room::Room;

/// The end of a lease, in nanoseconds of [`since_boot`]. 0: it is over.
#[derive(Debug)]
pub struct Lease(AtomicU64);

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Lease {
    /// A lease until a time since boot.
    #[must_use]
    pub fn until(end: Duration) -> Lease {
        Lease(AtomicU64::new(nanos(end)))
    }

    /// Moves the end to an earlier time, and never to a later one. Called before others are told
    /// of the earlier end: they may have heard of it while the call that tells them still runs.
    pub fn shorten(&self, end: Duration) {
        self.0.fetch_min(nanos(end), Ordering::SeqCst);
    }

    /// Moves the end, forwards or back: others go by what they were told last. Called after they
    /// were told of a later end. False if the lease is over already, or is over then; it stays so.
    pub fn extend(&self, end: Duration) -> bool {
        let moved = |old: u64| (old > nanos(since_boot())).then(|| nanos(end));
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, moved).is_ok() && !self.is_over()
    }

    /// Ends it now.
    pub fn end(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Whether it is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.load(Ordering::SeqCst) <= nanos(since_boot())
    }

    fn check(&self) -> io::Result<()> {
        if self.is_over() {
            let why = "the claim on the device is over, another host may have it";
            return Err(io::Error::other(why));
        }
        Ok(())
    }
}

/// A device whose changes need a lease.
#[derive(Debug)]
pub struct LeasedDevice {
    lower: SharedDevice,
    lease: Arc<Lease>,
}

impl LeasedDevice {
    /// The device under a lease, which is told of it.
    #[must_use]
    pub fn new(lower: SharedDevice, lease: Arc<Lease>) -> LeasedDevice {
        lower.set_lease(Some(Arc::clone(&lease)));
        LeasedDevice { lower, lease }
    }
}

impl Device for LeasedDevice {
    fn len(&self) -> u64 {
        self.lower.len()
    }

    fn read_only(&self) -> bool {
        self.lower.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.lower.read_at(offset, buf)
    }

    fn read_uncached(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.lower.read_uncached(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [&mut [u8]]) -> io::Result<()> {
        self.lower.read_vectored_at(offset, bufs)
    }

    fn read_many(&self, reads: &mut [ReadRun<'_>]) -> io::Result<()> {
        self.lower.read_many(reads)
    }

    fn is_far(&self) -> bool {
        self.lower.is_far()
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.lease.check()?;
        self.lower.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.lease.check()?;
        self.lower.write_vectored_at(offset, bufs)
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.lease.check()?;
        self.lower.write_many(writes)
    }

    fn flush(&self) -> io::Result<()> {
        self.lower.flush()?;
        self.lease.check()
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.lease.check()?;
        self.lower.write_fua(offset, buf)?;
        self.lease.check()
    }

    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.lease.check()?;
        self.lower.write_many_fua(writes)?;
        self.lease.check()
    }

    fn writes_through(&self) -> bool {
        self.lower.writes_through()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.lease.check()?;
        self.lower.punch(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.lease.check()?;
        self.lower.discard(offset, len)
    }

    fn fresh_zeroes(&self) -> bool {
        self.lower.fresh_zeroes()
    }

    fn name(&self) -> String {
        self.lower.name()
    }

    fn drop_cached(&self) {
        self.lower.drop_cached();
    }

    fn room(&self) -> Option<&Room> {
        self.lower.room()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDevice;

    /// Fault model: a kind of change that does not look at the lease; one that begins again.
    #[test]
    fn nothing_is_changed_or_acknowledged_after_the_end() {
        let lower: SharedDevice = Arc::new(MemoryDevice::new(8192));
        let lease = Arc::new(Lease::until(since_boot() + Duration::from_secs(60)));
        let device = LeasedDevice::new(Arc::clone(&lower), Arc::clone(&lease));
        device.write_at(0, &[1; 512]).unwrap();
        device.flush().unwrap();
        lease.end();
        assert!(lease.is_over() && !lease.extend(since_boot() + Duration::from_secs(60)));
        let two = [2; 512];
        let run = WriteRun { offset: 0, bufs: &[&two] };
        let results = [
            device.write_at(0, &two),
            device.write_vectored_at(0, &[&two]),
            device.write_many(&[run]),
            device.write_fua(0, &two),
            device.punch(0, 512).map(drop),
            device.discard(0, 512).map(drop),
            device.flush(),
        ];
        assert!(results.iter().all(Result::is_err), "{results:?}");
        let mut found = [0; 512];
        device.read_at(0, &mut found).unwrap();
        assert_eq!(found, [1; 512]);
    }

    #[test]
    fn a_lease_may_become_shorter() {
        let lease = Lease::until(since_boot() + Duration::from_secs(60));
        lease.shorten(since_boot() + Duration::from_secs(90));
        assert!(lease.extend(since_boot() + Duration::from_secs(30)) && !lease.is_over());
        lease.shorten(since_boot() + Duration::from_secs(20));
        assert!(!lease.is_over());
        lease.shorten(since_boot());
        assert!(lease.is_over() && !lease.extend(since_boot() + Duration::from_secs(60)));
        let lease = Lease::until(since_boot() + Duration::from_secs(60));
        assert!(!lease.extend(since_boot()) && lease.is_over());
        assert!(!lease.extend(since_boot() + Duration::from_secs(60)) && lease.is_over());
    }

    #[test]
    fn a_lease_that_is_not_extended_ends_by_itself() {
        let lease = Lease::until(since_boot() + Duration::from_millis(80));
        assert!(lease.extend(since_boot() + Duration::from_millis(120)));
        assert!(!lease.is_over());
        std::thread::sleep(Duration::from_millis(130));
        assert!(lease.is_over() && !lease.extend(since_boot() + Duration::from_secs(9)));
    }
}
