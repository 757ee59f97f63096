//! Whether an image can still be used.
//!
//! Invariant: after an error that says that the lock is lost, or that the cluster does not answer,
//! every request fails. A client that goes on after another one has had the image would write over
//! what that one has made of it.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::SyncSender;

/// The state of a device.
pub(crate) struct Health {
    /// errno of what ended it; 0: nothing.
    ended: AtomicI32,
    /// Is sent why, once. The thread of the request does not tell it itself: it has locks of the
    /// file system, and a log may lie on that.
    tell: Option<SyncSender<String>>,
}

/// Whether an error of a request ends the device. Of several errors such a one is to be told.
pub(crate) fn ends(error: &io::Error) -> bool {
    why(error).is_some()
}

fn why(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        // What librbd calls EBLOCKLISTED.
        libc::ESHUTDOWN => Some("its exclusive lock was taken, and this client is fenced"),
        libc::EROFS => Some("its exclusive lock was lost, or the image was demoted"),
        libc::ETIMEDOUT => Some("the cluster does not answer"),
        _ => None,
    }
}

impl Health {
    pub(crate) fn new(tell: Option<SyncSender<String>>) -> Self {
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
        request().inspect_err(|error| self.judge(error))
    }

    /// Gives the device up, if the error is of that kind.
    pub(crate) fn judge(&self, error: &io::Error) {
        if let Some((errno, why)) = error.raw_os_error().zip(why(error)) {
            self.end(errno, why);
        }
    }

    /// Gives the device up.
    pub(crate) fn end(&self, errno: i32, why: &str) {
        let ended = self.ended.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire);
        if let (Ok(_), Some(tell)) = (ended, &self.tell) {
            // There is room for one, and this comes once.
            let _ = tell.try_send(why.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    /// Fault model: a lock that is lost and comes back, with another client in between.
    #[test]
    fn nothing_is_asked_after_the_lock_was_lost() {
        let (tell, told) = sync_channel(1);
        let health = Health::new(Some(tell));
        let fails = |errno| health.of(|| Err::<(), _>(io::Error::from_raw_os_error(errno)));
        fails(libc::EIO).unwrap_err();
        health.of(|| Ok(())).unwrap();
        fails(libc::ESHUTDOWN).unwrap_err();
        let later = health.of(|| -> io::Result<()> { panic!("is asked") }).unwrap_err();
        assert_eq!(later.raw_os_error(), Some(libc::ESHUTDOWN));
        health.end(libc::EROFS, "again");
        drop(health);
        assert_eq!(told.iter().count(), 1);
    }
}
