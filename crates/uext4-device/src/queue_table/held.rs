//! Writes of a queue for which the store has no room.
//!
//! # What
//! Such a write is held (see `room`), but no thread waits for it alone. It stays in the table and
//! is repeated from time to time, while the queue continues with the others.
//!
//! # Invariants
//! The device's `Room` counts a `held` place from the first failure until the write succeeds or is
//! answered. The place is in the list `held`, or ready, or in the kernel.

use std::time::Instant;

use super::Table;
use crate::device::Device;
use crate::room::PERIOD;

impl Table {
    /// Holds a write that found no room, so that it is repeated later. False if it fails.
    pub(super) fn hold(&mut self, index: u32) -> bool {
        let Some(room) = self.device.room() else { return false };
        let place = &mut self.places[index as usize];
        let goes_on = if place.held { !room.gives_up() } else { room.begin() };
        if goes_on {
            place.held = true;
            self.held.push(index);
            self.retry.get_or_insert_with(|| Instant::now() + PERIOD);
        }
        goes_on
    }

    /// Ends the hold of a write, if it is held.
    pub(super) fn let_go(&mut self, index: u32, succeeded: bool) {
        let was_held = std::mem::take(&mut self.places[index as usize].held);
        if let (true, Some(room)) = (was_held, self.device.room()) {
            room.end(succeeded);
        }
    }

    /// Ends the hold of all writes, which are not needed any more.
    pub(crate) fn let_all_go(&mut self) {
        (0..self.depth as u32).for_each(|index| self.let_go(index, false));
    }

    /// Makes the held writes ready again if it is time to repeat them.
    pub(crate) fn retry_held(&mut self) {
        if self.retry.is_some_and(|at| at <= Instant::now()) {
            self.make_held_ready();
        }
    }

    pub(super) fn make_held_ready(&mut self) {
        self.retry = None;
        self.ready.extend(self.held.drain(..));
    }

    /// Whether there is nothing to wait for except room.
    pub(crate) fn waits_for_room(&self) -> bool {
        !self.held.is_empty() && self.taken == 0 && !self.has_to_start()
    }

    /// Waits until the held writes should be repeated.
    pub(crate) fn wait_for_room(&mut self) {
        if let Some(room) = self.device.room() {
            room.pause();
        }
        self.make_held_ready();
    }
}
