//! One verb a file.

pub(crate) mod crash;
pub(crate) mod features;
pub(crate) mod freeze;
pub(crate) mod fsck_diff;
pub(crate) mod fsx;
pub(crate) mod hostile;
pub(crate) mod kill9;
pub(crate) mod programs;
#[cfg(feature = "simulate")]
pub(crate) mod simulate;
pub(crate) mod soak;
pub(crate) mod tree;
