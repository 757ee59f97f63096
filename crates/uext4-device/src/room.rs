//! Writes that wait for room on the store.
//!
//! # What
//! An image with holes grows as it is written, and the file system that holds it may be full, or
//! its owner's quota used up. A write that is refused for that (`ENOSPC`, `EDQUOT`) is held and
//! made again until it succeeds, as dm-thin queues writes (`queue_if_no_space`). To those above it
//! is a slow write. When none of the writes that are held has succeeded for a time-out, all of them
//! fail; a write that is refused after that fails at once, until nothing has been refused for as
//! long again: so whoever closes a volume waits once, not once for each write. A caller of
//! [`Room::hold`] waits; a queue keeps its writes that are held, and goes on with the others.
//!
//! # Invariants
//! - Only writes are repeated, never flushes: after a failed flush nobody knows what it lost.
//! - A write that is held holds no lock of the device. Reads, flushes and writes that need no room
//!   go on beside it.
//!
//! # Locking
//! `state` is held for a few instructions.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How often a write that is held is made again.
pub(crate) const PERIOD: Duration = Duration::from_millis(200);

/// What becomes of writes for which the store has no room.
pub struct Room {
    timeout: Duration,
    state: Mutex<State>,
    /// A write that was held has ended.
    ended: Condvar,
    hook: OnceLock<Hook>,
}

type Hook = Box<dyn Fn(RoomEvent) + Send + Sync>;

#[derive(Debug, Default)]
struct State {
    /// Writes that are held.
    held: u64,
    /// When the first of them was, and when one last succeeded.
    since: Option<Instant>,
    progress: Option<Instant>,
    /// The time-out is over; those that are held fail.
    gave_up: bool,
    /// When a write last failed for lack of room.
    failed: Option<Instant>,
    waits: u64,
    failures: u64,
}

/// Something that a user should learn, as one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomEvent {
    /// There is no room; writes are held for so long.
    Waits(Duration),
    /// No write is held any more, after so long.
    Ended(Duration),
    /// There was none for the whole time-out; writes fail.
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

/// What a device tells of its room at a moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoomReading {
    /// Writes that wait for room now.
    pub waiting: u64,
    /// How often there was none, since the device was opened.
    pub waits: u64,
    /// Writes that failed for lack of room.
    pub failures: u64,
}

/// A write that is held, until it is dropped.
struct Held<'a> {
    room: &'a Room,
    succeeded: bool,
}

impl Room {
    /// Writes are held for `timeout` at most; 0: not at all.
    pub(crate) fn new(timeout: Duration) -> Room {
        Room { timeout, state: Mutex::default(), ended: Condvar::new(), hook: OnceLock::new() }
    }

    /// Has `hook` called with what a user should learn, on whatever thread met it; it must not use
    /// the device. The first hook stays.
    pub fn set_hook(&self, hook: impl Fn(RoomEvent) + Send + Sync + 'static) {
        // A hook that comes too late is dropped.
        let _ = self.hook.set(Box::new(hook));
    }

    /// What there is to tell now.
    #[must_use]
    pub fn read(&self) -> RoomReading {
        let state = self.state.lock();
        RoomReading { waiting: state.held, waits: state.waits, failures: state.failures }
    }

    /// Makes a write, and again while it finds no room. The caller holds no lock of the device.
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

    /// A write was refused for lack of room. True: it is held until [`Room::end`]. False: writes
    /// are not held now, and it fails.
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

    /// Sleeps until a write that is held should be made again.
    pub(crate) fn pause(&self) {
        let mut state = self.state.lock();
        if !state.gave_up {
            let left = self.timeout.saturating_sub(elapsed(state.progress));
            // Woken or not: another try costs little.
            self.ended.wait_for(&mut state, PERIOD.min(left));
        }
    }

    /// Whether a write that is held, and was refused just now, fails.
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

    /// A write is held no more: it was made (`succeeded`), it failed, or nobody wants it.
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

/// Whether a write failed because the store has no room for it.
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
#[path = "room_tests.rs"]
mod tests;
