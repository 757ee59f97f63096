//! The core of the Python package `uext4`: the module `uext4._uext4`.
//!
//! # What
//! A thin layer over the engine: a volume with operations by path ([`volume`]), open files
//! ([`file`]), mkfs and fsck ([`make`]). What is Python-like about the package (paths, files of
//! `io`, fsspec) is Python: `python/uext4/`. Paths are bytes here, and absolute.
//!
//! # Locking
//! Each call releases the interpreter before it takes a lock or does I/O, and holds none when it
//! takes it again. So a thread that waits for a device stops no other thread of Python.
//!
//! # Safety
//! `unsafe` is in [`buffer`] alone: memory of Python's objects, which is read and written while the
//! interpreter is released.

mod buffer;
mod error;
mod file;
mod image;
mod make;
mod names;
mod volume;

use pyo3::prelude::*;

#[pymodule]
mod _uext4 {
    #[pymodule_export]
    use crate::file::File;
    #[pymodule_export]
    use crate::image::read_device;
    #[pymodule_export]
    use crate::make::{fsck, mkfs};
    #[pymodule_export]
    use crate::volume::Volume;

    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
