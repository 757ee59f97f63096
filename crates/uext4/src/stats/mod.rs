//! What the engine tells of itself: counters, latencies, who waits.
//!
//! What: one [`Stats`] for each volume, written by the layers above and read by `uext4 stats` and
//! the lab.
//! Invariants: nothing here waits for anything but a leaf lock, and nothing depends on what it
//! holds.

mod calls;
mod histogram;
mod waits;

pub use calls::{Calls, Counter, SAMPLE, Sampled, SampledReading};
pub use histogram::{Histogram, Reading};
pub use waits::{Blocked, Wait, WaitFor, Waits};
