//! Hostile images: nothing that a device holds may panic, hang or eat the memory of a program that
//! opens it.
//!
//! Three sources: the damaged images of a folder (`UEXT4_IMAGES`), small images of our own with
//! metadata changed at random *and sealed again*, so that checksums do not catch it, and images
//! that were built to be mean in one way. Each is opened for reading and for writing on a copy in
//! memory, walked, read, and rewritten.
//!
//! Fault model: any bytes on the device. The device itself works. A panic in any thread, an error
//! of kind `Internal`, a case that outlives its time bound, or a peak of resident memory above its
//! bound fails. Not covered: bytes that change while the volume is open; that what is read from a
//! damaged image is right in any sense.
//!
//! `UEXT4_HOSTILE_CASES` and `UEXT4_HOSTILE_SEED` make the random run longer or another one.

#[path = "../../../uext4/tests/common/child.rs"]
mod child;
#[path = "../../../uext4/tests/common/mod.rs"]
mod common;
mod crafted;
mod damaged;
mod exercise;
mod fast_commit_cases;
mod fast_commits;
mod fuzz;
mod images;
mod population;
mod random;
