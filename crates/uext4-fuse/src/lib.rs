//! FUSE adapter of uext4.
