//! An open file, as Python's layer calls it.
//!
//! # Locking
//! A file's position is locked while a call moves it, so that two threads that read one file one
//! after the other get its bytes once, as from a descriptor of the system. Calls with an offset of
//! their own take no lock for longer than it takes to look.

use crate::buffer;
use crate::error::Failure;
use crate::names;
use crate::volume::{Shared, keep_for_ever};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::Arc;
use uext4::{OpenFile, removing_privs};

/// What an open file and its volume know of it.
#[derive(Debug)]
pub(crate) struct OpenState {
    /// `None` once it is closed.
    open: Mutex<Option<Arc<OpenFile>>>,
    /// Where the next call without an offset begins, in bytes.
    position: Mutex<u64>,
}

impl OpenState {
    pub(crate) fn new(open: OpenFile) -> Self {
        Self { open: Mutex::new(Some(Arc::new(open))), position: Mutex::new(0) }
    }

    /// Closes it, and tells what was not written back.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        match self.open.lock().take() {
            Some(open) => Ok(open.flush()?),
            None => Ok(()),
        }
    }
}

/// An open file. `uext4.File` has the documentation.
#[pyclass(frozen, module = "uext4._uext4")]
pub(crate) struct File {
    shared: Arc<Shared>,
    state: Arc<OpenState>,
    append: bool,
}

impl Drop for File {
    fn drop(&mut self) {
        if !self.shared.is_own() {
            // Never to be closed here: see `volume`.
            keep_for_ever((Arc::clone(&self.shared), Arc::clone(&self.state)));
        }
    }
}

impl File {
    pub(crate) fn new(shared: Arc<Shared>, state: Arc<OpenState>, append: bool) -> Self {
        Self { shared, state, append }
    }

    /// The engine's file, for one call.
    fn open(&self) -> Result<Arc<OpenFile>, Failure> {
        if !self.shared.is_own() {
            return self.shared.volume().map(|_| unreachable!("it is not ours"));
        }
        self.state.open.lock().clone().ok_or_else(|| Failure::closed("file"))
    }

    /// Changes the content, by a caller without `CAP_FSETID`.
    fn change<T>(
        &self,
        open: &OpenFile,
        work: impl FnOnce() -> uext4::Result<T>,
    ) -> Result<T, Failure> {
        let privs = self.shared.volume()?.privs_for(open.inode(), self.shared.group);
        Ok(removing_privs(privs, work).0?)
    }

    /// Does something with the engine's file, without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&OpenFile) -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| self.shared.guarded(|| work(&*self.open()?)));
        done.map_err(|failure| failure.raise(py, None))
    }

    fn len(&self, open: &OpenFile) -> Result<u64, Failure> {
        Ok(self.shared.volume()?.attr(open.inode()).size)
    }

    /// Bytes that are there from `offset` on, and at most `len`.
    fn there(&self, open: &OpenFile, offset: u64, len: u64) -> Result<usize, Failure> {
        let left = self.len(open)?.saturating_sub(offset);
        Ok(usize::try_from(left.min(len)).unwrap_or(usize::MAX))
    }

    fn write_at_end(&self, open: &OpenFile, bytes: &[u8]) -> Result<usize, Failure> {
        let mut position = self.state.position.lock();
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.append {
            let (start, written) = self.change(open, || open.append(bytes))?;
            *position = start + written as u64;
            return Ok(written);
        }
        let written = self.change(open, || open.write_at(*position, bytes))?;
        *position += written as u64;
        Ok(written)
    }
}

#[pymethods]
impl File {
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if !self.shared.is_own() {
            return Ok(());
        }
        let closed = py.detach(|| self.shared.guarded(|| self.state.close()));
        closed.map_err(|failure| failure.raise(py, None))
    }

    /// Reads into a buffer from the file's position on; 0 at the end.
    fn readinto(&self, py: Python<'_>, into: &Bound<'_, PyAny>) -> PyResult<usize> {
        let read = buffer::fill(py, &self.shared, into, |bytes| {
            let open = self.open()?;
            let mut position = self.state.position.lock();
            let read = open.read_at(*position, bytes)?;
            *position += read as u64;
            Ok(read)
        })?;
        read.map_err(|failure| failure.raise(py, None))
    }

    /// Reads into a buffer from `offset` on; 0 at the end.
    fn preadinto(&self, py: Python<'_>, into: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let read = buffer::fill(py, &self.shared, into, |bytes| {
            Ok(self.open()?.read_at(offset, bytes)?)
        })?;
        read.map_err(|failure| failure.raise(py, None))
    }

    /// At most `len` bytes from `offset` on.
    fn pread<'py>(&self, py: Python<'py>, len: u64, offset: u64) -> PyResult<Bound<'py, PyBytes>> {
        let there = self.with(py, |open| self.there(open, offset, len))?;
        let read = buffer::bytes(py, &self.shared, there, |bytes| {
            Ok(self.open()?.read_at(offset, bytes)?)
        })?;
        read.map_err(|failure| failure.raise(py, None))
    }

    /// Writes at the file's position, or appends.
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<usize> {
        let written =
            buffer::take(py, &self.shared, data, |bytes| self.write_at_end(&*self.open()?, bytes))?;
        written.map_err(|failure| failure.raise(py, None))
    }

    /// Writes at `offset`.
    fn pwrite(&self, py: Python<'_>, data: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let written = buffer::take(py, &self.shared, data, |bytes| {
            let open = self.open()?;
            self.change(&open, || open.write_at(offset, bytes))
        })?;
        written.map_err(|failure| failure.raise(py, None))
    }

    /// Moves the position; `whence` as of lseek(2), `SEEK_DATA` and `SEEK_HOLE` too.
    fn seek(&self, py: Python<'_>, offset: i64, whence: i32) -> PyResult<u64> {
        self.with(py, |open| {
            let invalid = || Failure::errno(libc::EINVAL);
            let mut position = self.state.position.lock();
            let offset_from = |base: u64| base.checked_add_signed(offset).ok_or_else(invalid);
            let to = match whence {
                libc::SEEK_SET => offset_from(0)?,
                libc::SEEK_CUR => offset_from(*position)?,
                libc::SEEK_END => offset_from(self.len(open)?)?,
                libc::SEEK_DATA => open.seek_data(offset_from(0)?)?,
                libc::SEEK_HOLE => open.seek_hole(offset_from(0)?)?,
                _ => return Err(invalid()),
            };
            *position = to;
            Ok(to)
        })
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |_| Ok(*self.state.position.lock()))
    }

    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |open| self.len(open))
    }

    /// Sets the length in bytes.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |open| {
            let (volume, inode) = (self.shared.volume()?, open.inode());
            volume.set_attr(inode, &names::cut(&volume, inode, size, self.shared.group))?;
            Ok(())
        })
    }

    /// Makes the file durable.
    fn fsync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        self.with(py, |open| Ok(open.sync(data_only)?))
    }
}
