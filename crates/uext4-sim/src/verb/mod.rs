//! One verb a file.

pub(crate) mod crash;
