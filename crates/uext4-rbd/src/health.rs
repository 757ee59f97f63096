//! Whether an image can still be used.
//!
//! Invariant: after an error that says that the lock is lost, or that the cluster does not answer,
//! every request fails. A client that goes on after another one has had the image would write over
//! what that one has made of it.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::options::Tell;

/// The state of a device.
pub(crate) struct Health {
    /// errno of what ended it; 0: nothing.
    ended: AtomicI32,
    tell: Option<Tell>,
}

impl Health {
    pub(crate) fn new(tell: Option<Tell>) -> Self {
        Self { ended: AtomicI32::new(0), tell }
    }

    /// Fails if the device is given up.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self.ended.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    /// Makes a request, unless the device is given up, and gives it up after an error of that kind.
    pub(crate) fn of<T>(&self, request: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.check()?;
        request().inspect_err(|error| match error.raw_os_error() {
            // What librbd calls EBLOCKLISTED.
            Some(libc::ESHUTDOWN) => self.end(libc::ESHUTDOWN, FENCED),
            Some(libc::EROFS) => self.end(libc::EROFS, "its exclusive lock was lost"),
            Some(libc::ETIMEDOUT) => self.end(libc::ETIMEDOUT, "the cluster does not answer"),
            _ => {}
        })
    }

    /// Gives the device up.
    pub(crate) fn end(&self, errno: i32, why: &str) {
        let ended = self.ended.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire);
        if let (Ok(_), Some(tell)) = (ended, &self.tell) {
            tell(&format!("given up: {why}"));
        }
    }
}

/// What a client hears whose lock was taken.
pub(crate) const FENCED: &str = "its exclusive lock was taken, and this client is fenced";

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    /// Fault model: a lock that is lost and comes back, with another client in between.
    #[test]
    fn nothing_is_asked_after_the_lock_was_lost() {
        let told = Arc::new(AtomicUsize::new(0));
        let of = Arc::clone(&told);
        let health = Health::new(Some(Arc::new(move |_: &str| {
            of.fetch_add(1, Ordering::Relaxed);
        })));
        let fails = |errno| health.of(|| Err::<(), _>(io::Error::from_raw_os_error(errno)));
        fails(libc::EIO).unwrap_err();
        health.of(|| Ok(())).unwrap();
        fails(libc::ESHUTDOWN).unwrap_err();
        let later = health.of(|| -> io::Result<()> { panic!("is asked") }).unwrap_err();
        assert_eq!(later.raw_os_error(), Some(libc::ESHUTDOWN));
        health.end(libc::EROFS, "again");
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }
}
