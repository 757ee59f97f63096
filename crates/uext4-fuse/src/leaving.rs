//! Files that have lost their last name, and that the kernel has not let go of yet.
//!
//! What: unlink(2) of the kernel's own ext4 frees the blocks before it returns. Through FUSE the
//! kernel lets go by a release and a forget that nobody waits for, so a program that removes a
//! file to make room, and writes at once, would find none. A request that finds no room therefore
//! waits while files are leaving ([`Patience::again`]), and is tried again.
//!
//! Invariants: a request waits for [`PATIENCE`] at most. Where nothing left in all that time,
//! others wait for [`LITTLE`] only until a file comes or goes: those that are open without a name
//! stay as long as their users like, and a close is not seen before its release comes.
//!
//! The engine knows how many there are, and a request that finds no room is rare, so it looks
//! every [`LOOK`] instead of being told.

use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uext4::{Unlinked, Volume};
use uext4_device::about_to_sleep;

/// How long a request waits for room at most.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same, after a wait that was in vain.
const LITTLE: Duration = Duration::from_millis(100);
/// How long statfs(2) waits for what was just removed.
const SETTLING: Duration = Duration::from_millis(50);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// Waits that were in vain.
#[derive(Default)]
pub(crate) struct Leaving {
    /// What there was when a request had waited for all of its time and nothing left.
    in_vain: Mutex<Option<Unlinked>>,
    /// The same of statfs(2).
    settled: Mutex<Option<Unlinked>>,
}

/// A request that may be tried again.
pub(crate) struct Patience<'a> {
    leaving: &'a Leaving,
    volume: &'a Volume,
    /// How many had been deleted before the last try. Each write asks for it: it takes no lock.
    seen: u64,
    /// Something has left since the first one.
    has_moved: bool,
    until: Option<Instant>,
}

impl Leaving {
    /// For a request that begins.
    pub(crate) fn patience<'a>(&'a self, volume: &'a Volume) -> Patience<'a> {
        let seen = volume.deletions();
        Patience { leaving: self, volume, seen, has_moved: false, until: None }
    }

    /// Waits a moment for what is leaving, so that free space is what a program expects that has
    /// just removed something.
    pub(crate) fn settle(&self, volume: &Volume) {
        let until = Instant::now() + SETTLING;
        loop {
            let now = volume.unlinked();
            if now.held == 0 || *self.settled.lock() == Some(now) {
                return;
            }
            if Instant::now() >= until {
                *self.settled.lock() = Some(now);
                return;
            }
            about_to_sleep();
            thread::sleep(LOOK);
        }
    }
}

impl Patience<'_> {
    /// Whether a request has waited for what there is now, and nothing left.
    fn is_in_vain(&self) -> bool {
        *self.leaving.in_vain.lock() == Some(self.volume.unlinked())
    }

    /// Whether something has left since the last try, or leaves within the time that is left to the
    /// request.
    pub(crate) fn again(&mut self) -> bool {
        let time = || if self.is_in_vain() { LITTLE } else { PATIENCE };
        let until = self.until.unwrap_or_else(|| Instant::now() + time());
        self.until = Some(until);
        loop {
            let (now, is_late) = (self.volume.unlinked(), Instant::now() >= until);
            if now.deleted != self.seen {
                (self.seen, self.has_moved) = (now.deleted, true);
                return !is_late;
            }
            if now.held == 0 {
                return false;
            }
            if is_late {
                if !self.has_moved {
                    *self.leaving.in_vain.lock() = Some(now);
                }
                return false;
            }
            about_to_sleep();
            thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uext4::{Device, FileKind, MountOptions, NewInode, Owner};
    use uext4_device::MemoryDevice;

    use super::*;

    /// Fault model: a file that left before the wait is waited for, or one that stays is waited for
    /// by every request.
    #[test]
    fn a_file_that_left_is_worth_a_try_and_one_that_stays_is_waited_for_once() {
        let device = MemoryDevice::new(16 << 20);
        uext4_mkfs::format(&device, &uext4_mkfs::Options::default()).unwrap();
        let volume = Volume::open(Arc::new(device), MountOptions::default()).unwrap();
        let root = volume.root().unwrap();
        let (kind, owner, rdev) = (FileKind::Regular, Owner::default(), Device::default());
        let new = NewInode { kind, mode: 0o600, owner, rdev };
        let [first, second] =
            [b"first", b"other"].map(|name| volume.create(&root, name, &new).unwrap());
        volume.unlink(&root, b"first").unwrap();
        let leaving = Leaving::default();
        let mut patience = leaving.patience(&volume);
        drop(first);
        volume.delete_unlinked().unwrap();
        assert!(patience.again());
        assert!(!patience.again(), "nobody is leaving");
        volume.unlink(&root, b"other").unwrap();
        assert!(!leaving.patience(&volume).again(), "it stays");
        assert_eq!(*leaving.in_vain.lock(), Some(volume.unlinked()));
        let mut patience = leaving.patience(&volume);
        drop(second);
        volume.delete_unlinked().unwrap();
        assert!(patience.again(), "what is known to have left counts, whatever was in vain");
    }
}
