//! Writes of a queue for which the store has no room.
//!
//! # What
//! Such a write is held, as `room` has it, but nobody waits for it alone: it stays in the table and
//! is made again from time to time, while the queue goes on with the others.
//!
//! # Invariants
//! A place that is `held` is counted by the device's `Room`, from the first refusal until the write
//! is made or answered. It is in the list `held`, or ready, or in the kernel.

use std::time::Instant;

use super::Table;
use crate::device::Device;
use crate::room::PERIOD;

impl Table {
    /// Has a write that was refused for lack of room made again later. False: it fails.
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

    /// A write is held no more, if it was.
    pub(super) fn let_go(&mut self, index: u32, succeeded: bool) {
        let was_held = std::mem::take(&mut self.places[index as usize].held);
        if let (true, Some(room)) = (was_held, self.device.room()) {
            room.end(succeeded);
        }
    }

    /// Nobody wants the writes that are held.
    pub(crate) fn let_all_go(&mut self) {
        (0..self.depth as u32).for_each(|index| self.let_go(index, false));
    }

    /// Makes the writes ready again that are held, when it is time for that.
    pub(crate) fn retry_held(&mut self) {
        if self.retry.is_some_and(|at| at <= Instant::now()) {
            self.make_held_ready();
        }
    }

    pub(super) fn make_held_ready(&mut self) {
        self.retry = None;
        self.ready.extend(self.held.drain(..));
    }

    /// Whether nothing but room is to be waited for.
    pub(crate) fn waits_for_room(&self) -> bool {
        !self.held.is_empty() && self.taken == 0 && !self.has_to_start()
    }

    /// Waits until the writes that are held should be made again.
    pub(crate) fn wait_for_room(&mut self) {
        if let Some(room) = self.device.room() {
            room.pause();
        }
        self.make_held_ready();
    }
}
