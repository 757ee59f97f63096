//! Writes that wait for room on the store.
//!
//! # What
//! An image with holes grows as it is written, and the file system that stores it may be full, or
//! its owner's quota used up. A write that fails for that reason (`ENOSPC`, `EDQUOT`) is held and
//! repeated until it succeeds, as dm-thin queues writes (`queue_if_no_space`). To the engine it is
//! a slow write. If no held write succeeds for the time-out, all of them fail. After that a write
//! without room fails at once, until none has failed for as long again. So closing a volume waits
//! for one time-out, not for one for each write. A caller of [`Room::hold`] waits. A queue keeps
//! its held writes and continues with the others.
//!
//! # Invariants
//! - Only writes are repeated, never flushes, because it is unknown what a failed flush lost.
//! - A held write holds no lock of the device. Reads, flushes and writes that need no room
//!   continue.
//!
//! # Locking
//! `state` is held for a few instructions.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Time after which a held write is repeated.
pub(crate) const PERIOD: Duration = Duration::from_millis(200);

/// The held writes of a device.
pub struct Room {
    timeout: Duration,
    state: Mutex<State>,
    /// A held write has ended.
    ended: Condvar,
    hook: OnceLock<Hook>,
}

type Hook = Box<dyn Fn(RoomEvent) + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    /// Number of held writes.
    held: u64,
    /// Times when the first of them was held, and when one last succeeded.
    since: Option<Instant>,
    progress: Option<Instant>,
    /// The time-out is over, so the held writes fail.
    gave_up: bool,
    /// Time when a write last failed for lack of room.
    failed: Option<Instant>,
    waits: u64,
    failures: u64,
}

/// An event to report to the user in one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomEvent {
    /// There is no room. Writes are held for up to this time.
    Waits(Duration),
    /// No write is held any more, after this time.
    Ended(Duration),
    /// There was no room for the whole time-out. Writes fail.
    GaveUp(Duration),
}

impl fmt::Display for RoomEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RoomEvent::Waits(timeout) => write!(
                f,
                "no space left where the image is stored: writes wait for room, for up to {} s",
                timeout.as_secs_f64()
            ),
            RoomEvent::Ended(after) => write!(
                f,
                "the image has room again: all writes that waited are made, after {:.1} s",
                after.as_secs_f64()
            ),
            RoomEvent::GaveUp(timeout) => write!(
                f,
                "no space left where the image is stored, for {} s: writes fail",
                timeout.as_secs_f64()
            ),
        }
    }
}

/// The figures of held writes at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoomReading {
    /// Writes that wait for room now.
    pub waiting: u64,
    /// Times that there was none, since the device was opened.
    pub waits: u64,
    /// Number of writes that failed for lack of room.
    pub failures: u64,
}

/// A held write, until this is dropped.
struct Held<'a> {
    room: &'a Room,
    succeeded: bool,
}

impl Room {
    /// Holds writes for at most `timeout`; 0: not at all.
    pub(crate) fn new(timeout: Duration) -> Room {
        Room { timeout, state: Mutex::default(), ended: Condvar::new(), hook: OnceLock::new() }
    }

    /// Registers `hook` for events, to be called on the thread that met one. It must not use the
    /// device. Only the first hook is kept.
    pub fn set_hook(&self, hook: impl Fn(RoomEvent) + Send + Sync + 'static) {
        // A hook that comes too late is dropped.
        let _ = self.hook.set(Box::new(hook));
    }

    /// The current figures.
    #[must_use]
    pub fn read(&self) -> RoomReading {
        let state = self.state.lock();
        RoomReading { waiting: state.held, waits: state.waits, failures: state.failures }
    }

    /// Executes a write, and repeats it while it finds no room. The caller holds no lock of the
    /// device.
    #[inline]
    pub(crate) fn hold(&self, mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        match write() {
            Err(refused) if is_full(&refused) => self.wait(refused, &mut write),
            result => result,
        }
    }

    #[cold]
    fn wait(
        &self,
        refused: io::Error,
        write: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.begin() {
            return Err(refused);
        }
        let mut held = Held { room: self, succeeded: false };
        loop {
            self.pause();
            match write() {
                Err(refused) if is_full(&refused) => {
                    if self.gives_up() {
                        return Err(refused);
                    }
                }
                result => {
                    held.succeeded = result.is_ok();
                    return result;
                }
            }
        }
    }

    /// Records that a write found no room. If true, it is held until [`Room::end`]. If false,
    /// writes are not held now and it fails.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        let failed_lately = state.failed.is_some_and(|failed| now - failed < self.timeout);
        if self.timeout.is_zero() || state.gave_up || failed_lately {
            state.failures += 1;
            state.failed = Some(now);
            return false;
        }
        state.held += 1;
        let is_first = state.held == 1;
        if is_first {
            (state.since, state.progress) = (Some(now), Some(now));
            state.waits += 1;
        }
        drop(state);
        if is_first {
            self.tell(RoomEvent::Waits(self.timeout));
        }
        true
    }

    /// Sleeps until a held write should be repeated.
    pub(crate) fn pause(&self) {
        let mut state = self.state.lock();
        if !state.gave_up {
            let left = self.timeout.saturating_sub(elapsed(state.progress));
            // A needless attempt after an early wake-up costs little.
            self.ended.wait_for(&mut state, PERIOD.min(left));
        }
    }

    /// Whether a held write that just found no room again fails.
    pub(crate) fn gives_up(&self) -> bool {
        let mut state = self.state.lock();
        let is_first = !state.gave_up && elapsed(state.progress) >= self.timeout;
        if is_first {
            state.gave_up = true;
            self.ended.notify_all();
        }
        if state.gave_up {
            state.failures += 1;
            state.failed = Some(Instant::now());
        }
        let gave_up = state.gave_up;
        drop(state);
        if is_first {
            self.tell(RoomEvent::GaveUp(self.timeout));
        }
        gave_up
    }

    /// Ends the hold of a write, which was made (`succeeded`), failed, or is not needed any more.
    pub(crate) fn end(&self, succeeded: bool) {
        let mut state = self.state.lock();
        state.held -= 1;
        if succeeded {
            state.progress = Some(Instant::now());
            self.ended.notify_all();
        }
        if state.held > 0 {
            return;
        }
        let (gave_up, after) = (std::mem::take(&mut state.gave_up), elapsed(state.since));
        drop(state);
        if succeeded && !gave_up {
            self.tell(RoomEvent::Ended(after));
        }
    }

    fn tell(&self, event: RoomEvent) {
        if let Some(hook) = self.hook.get() {
            hook(event);
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.room.end(self.succeeded);
    }
}

fn elapsed(since: Option<Instant>) -> Duration {
    since.map_or(Duration::ZERO, |since| since.elapsed())
}

/// Whether a write failed because the store has no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room")
            .field("timeout", &self.timeout)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
