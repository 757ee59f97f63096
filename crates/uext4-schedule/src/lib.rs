//! A seeded scheduler of real threads, with a clock of its own: one seed, one run.
//!
//! # What
//! [`run`] calls a closure as the first thread of a *simulation*. Threads that it starts through
//! [`thread`] are threads of the system, of which exactly one runs at any time: it holds the baton.
//! Locks, conditions and atomics of this crate are *points* at which a number drawn from the seed
//! may hand the baton to another thread; a seed may have threads stopped at some places of the
//! source again and again ([`Stops`]). Time ([`time`]) is simulated: it grows a little with each
//! point, and jumps to the next deadline when every thread waits.
//!
//! A program that reaches everything that differs between two runs through this crate (threads,
//! locks, clock, random numbers) does the same in both, which [`Outcome::trace`] proves: it is a
//! hash of every decision of the scheduler and of everything that was given to [`witness`].
//!
//! # Invariants
//! - A point that does not switch costs a few nanoseconds: it counts down a number that was drawn.
//! - A simulation that fails (deadlock, panic, no progress) is told of at once. Its threads sleep
//!   for ever then: there is no way to end a thread that waits in the middle of something.
//! - Outside a simulation locks work as spin locks, points do nothing, and waits panic.
//!
//! # Not covered
//! Weak memory orderings: threads run one after the other. Switches inside code that uses none of
//! this crate's types.

#![forbid(unsafe_code)]

pub mod atomic;
mod condvar;
mod lock;
mod once;
mod policy;
mod scheduler;
mod state;
pub mod thread;
pub mod time;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use lock::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use once::OnceLock;
pub use policy::{Order, Places, Policy, Stops};
pub use scheduler::{
    Outcome, Settings, about, chance, is_simulated, iteration, point, processors, progress, random,
    reached, run, stage, stages, witness,
};
pub use state::{Failure, Waited};

#[cfg(test)]
mod tests;
