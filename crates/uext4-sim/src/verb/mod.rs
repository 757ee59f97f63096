//! One verb a file.

pub(crate) mod crash;
pub(crate) mod freeze;
pub(crate) mod fsck_diff;
pub(crate) mod kill9;
pub(crate) mod tree;
