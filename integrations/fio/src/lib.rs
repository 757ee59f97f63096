// SPDX-License-Identifier: GPL-2.0-only
//! uext4 as an external ioengine of fio: the part in Rust.
//!
//! # What
//! `engine.c` speaks fio's interface; it calls the functions of [`abi`] (declared in
//! `uext4_fio.h`). [`session`] opens an image once for all jobs of the process, [`file`] finds and
//! makes files in it, [`queue`] has the queued direct requests of a job, [`line`] carries messages
//! of one line back.
//!
//! # Invariants
//! `unsafe` stands in `abi` alone. No panic crosses into C: functions of the C ABI abort instead.

pub mod abi;
pub mod file;
pub mod line;
pub mod queue;
pub mod session;
