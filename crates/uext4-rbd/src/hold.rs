//! An image that is held: the lock as it was taken, and the length.
//!
//! # What
//! librbd takes a lock again, without a word, that it has lost while the host was suspended or cut
//! off. Another client may have had the image in between, and what this one has in memory is then
//! of an older file system. So a lock is had once: its entry on the store names the watch with
//! which it was taken, a client that was missed has another watch, and the device ends.
//!
//! Invariant: no request is sent when the last look at the entry began longer ago than
//! [`Hold::lease`], on a clock that counts time suspended. That is shorter than the time after
//! which a cluster misses a client (30 s, unless it is set otherwise).
//!
//! Not covered: a request that librados has when the host is suspended. The fence refuses it; see
//! `lock`, and docs/rbd.md for other programs' fences. A virtual machine that is paused, whose
//! clocks may stand still.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::since_boot;
use crate::error::Fault;
use crate::header::Locker;
use crate::health::Health;
use crate::image::Image;

/// Most of the time between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// What is to stay as it is.
pub(crate) struct Hold {
    /// The header object and the entry of its lock; `None`: an image without.
    lock: Option<(String, Locker)>,
    /// Length of the device, in bytes.
    len: u64,
    /// Time between two looks.
    pause: Duration,
    /// When the last good look began, in milliseconds since the start of the host.
    looked: AtomicU64,
    looking: Mutex<()>,
}

impl Hold {
    /// Of an image whose lock was just taken, if it has one.
    pub(crate) fn new(
        image: &Image,
        has_lock: bool,
        len: u64,
        timeout: Duration,
    ) -> Result<Self, Fault> {
        let (looked, looking) = (AtomicU64::new(millis()), Mutex::default());
        let lock = match has_lock {
            true => Some(entry(image)?),
            false => None,
        };
        Ok(Self { lock, len, pause: LOOK.min(timeout / 4), looked, looking })
    }

    fn lease(&self) -> Duration {
        self.pause * 3 / 2
    }

    fn is_fresh(&self) -> bool {
        let age = millis().saturating_sub(self.looked.load(Ordering::Acquire));
        Duration::from_millis(age) < self.lease()
    }

    /// Looks at the lock, unless that was done a short while ago.
    ///
    /// # Errors
    /// `EROFS`: the lock is not what it was. What a request may fail with.
    pub(crate) fn check(&self, image: &Image, health: &Health) -> io::Result<()> {
        if self.is_fresh() {
            return Ok(());
        }
        let _looking = self.looking.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread has looked meanwhile, or has heard nothing for the whole timeout.
        health.check()?;
        if self.is_fresh() { Ok(()) } else { self.look(image).inspect_err(|e| health.judge(e)) }
    }

    fn look(&self, image: &Image) -> io::Result<()> {
        let begin = millis();
        if let Some((header, locker)) = &self.lock
            && image.pool().locker(header)?.as_ref() != Some(locker)
        {
            return Err(io::Error::from_raw_os_error(libc::EROFS));
        }
        self.looked.fetch_max(begin, Ordering::AcqRel);
        Ok(())
    }

    /// Gives the device up if the image is shorter than it was. librbd cuts a write off at the end
    /// of the image, and calls it done.
    ///
    /// # Errors
    /// `EIO`: it is shorter. What librbd says.
    pub(crate) fn check_len(&self, image: &Image, health: &Health) -> io::Result<()> {
        if image.len()? >= self.len {
            return Ok(());
        }
        health.end(libc::EIO, "the image has become shorter");
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    /// Looks again and again until told to stop, and gives the device up.
    pub(crate) fn keep(&self, image: &Image, health: &Health, stop: &Receiver<()>) {
        while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(self.pause) {
            let looked = self.look(image).and_then(|()| self.check_len(image, health));
            match looked {
                // Requests tell when the cluster is gone for too long.
                Err(error) if error.raw_os_error() != Some(libc::ETIMEDOUT) => health.judge(&error),
                _ => {}
            }
        }
    }
}

/// The header of an image and the entry of its lock, which is this client's.
fn entry(image: &Image) -> Result<(String, Locker), Fault> {
    let lost = || Fault::Refused("its exclusive lock was lost at once".to_owned());
    let header = image.header().ok_or_else(lost)?;
    let found = image.pool().locker(&header).map_err(Fault::of("its exclusive lock"))?;
    let own = format!("client.{}", image.pool().number());
    let found = found.filter(|found| found.client == own).ok_or_else(lost)?;
    Ok((header, found))
}

fn millis() -> u64 {
    u64::try_from(since_boot().as_millis()).unwrap_or(u64::MAX)
}
