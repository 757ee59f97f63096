//! Statistics of the engine: counters, latencies, blocked threads.
//!
//! What: the layers above update them, and `uext4 stats` and the lab read them.
//! Invariants: an update waits for nothing but a leaf lock, and the engine does not depend on any
//! of these values.

mod calls;
mod histogram;
mod waits;

pub use calls::{Calls, Counter, SAMPLE, Sampled, SampledReading};
pub use histogram::{Histogram, Reading};
pub use waits::{Blocked, Wait, WaitFor, Waits};
