//! Vectored requests of any length by `pwritev` and `preadv`.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

use rustix::io::{Errno, preadv, pwritev};

/// Buffers that a system call takes at once (`IOV_MAX`).
pub(crate) const VECTOR_MAX: usize = 1024;

/// Writes all of the buffers at `at` (bytes in the file). Consumes the list.
pub(crate) fn write_all_vectored(
    file: &File,
    mut at: u64,
    slices: &mut [IoSlice<'_>],
) -> io::Result<()> {
    let mut rest = slices;
    // Advancing by zero bytes skips empty buffers, so the rest always has something to write.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match pwritev(file, &rest[..rest.len().min(VECTOR_MAX)], at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                at += count as u64;
                IoSlice::advance_slices(&mut rest, count);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Fills all of the buffers from `at` (bytes in the file). Consumes the list.
pub(crate) fn read_all_vectored(
    file: &File,
    mut at: u64,
    slices: &mut [IoSliceMut<'_>],
) -> io::Result<()> {
    let mut rest = slices;
    IoSliceMut::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let count = rest.len().min(VECTOR_MAX);
        match preadv(file, &mut rest[..count], at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                at += count as u64;
                IoSliceMut::advance_slices(&mut rest, count);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
