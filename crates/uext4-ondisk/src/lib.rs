//! ext4 and jbd2 on-disk format: raw types, checksums, features, journal replay planning.

#![forbid(unsafe_code)]

pub mod units;

pub use units::{BlockNo, FileBlock, GroupNo, Ino, Tid};
