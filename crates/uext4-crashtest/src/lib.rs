//! Whether a program survives a loss of power on ext4.
//!
//! What: a program runs on a mount that records its system calls ([`record`], [`trace`]); a model
//! of what ext4 guarantees derives the file systems that a loss of power could have left
//! ([`model`]).
//!
//! Invariant: nothing here knows how the engine orders its own writes. The engine is stronger than
//! the kernel's ext4 in places, and a program that relies on that would be told that it is safe.

#![forbid(unsafe_code)]

pub mod error;
pub mod model;
pub mod record;
pub mod report;
pub mod run;
pub mod trace;

pub use error::{Error, Result};
