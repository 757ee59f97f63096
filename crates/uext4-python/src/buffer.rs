//! Memory of Python's objects, filled and read while the interpreter is released.
//!
//! # Invariants
//! A panic of what uses the memory stops the volume, as everywhere.
//!
//! An exporter of a buffer neither moves nor frees it as long as the view of it lives, which is
//! longer than the slice here. Another thread of Python may change its bytes meanwhile: as with the
//! files of Python itself, the bytes that are read or written are then any of both, and nothing
//! else depends on them.

use crate::error::Failure;
use crate::volume::Shared;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Calls `fill` with the memory of a writable object, without the interpreter.
pub(crate) fn fill<T: Send>(
    py: Python<'_>,
    shared: &Shared,
    object: &Bound<'_, PyAny>,
    fill: impl FnOnce(&mut [u8]) -> Result<T, Failure> + Send,
) -> PyResult<Result<T, Failure>> {
    let view = view(object)?;
    if view.readonly() {
        return Err(PyTypeError::new_err("a writable bytes-like object is required"));
    }
    let len = view.len_bytes();
    let bytes = if len == 0 {
        &mut []
    } else {
        // SAFETY: the view lives until `fill` has returned, is contiguous and has `len` bytes,
        // which its exporter has initialised. Others that write to them do so as the module's head
        // says.
        unsafe { std::slice::from_raw_parts_mut(view.buf_ptr().cast::<u8>(), len) }
    };
    Ok(py.detach(|| shared.guarded(|| fill(bytes))))
}

/// Calls `take` with the memory of an object, without the interpreter.
pub(crate) fn take<T: Send>(
    py: Python<'_>,
    shared: &Shared,
    object: &Bound<'_, PyAny>,
    take: impl FnOnce(&[u8]) -> Result<T, Failure> + Send,
) -> PyResult<Result<T, Failure>> {
    let view = view(object)?;
    let len = view.len_bytes();
    let bytes = if len == 0 {
        &[]
    } else {
        // SAFETY: as above; the bytes are only read.
        unsafe { std::slice::from_raw_parts(view.buf_ptr().cast::<u8>(), len) }
    };
    Ok(py.detach(|| shared.guarded(|| take(bytes))))
}

fn view(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let view = PyUntypedBuffer::get(object)?;
    if !view.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer is not contiguous"));
    }
    Ok(view)
}

/// New bytes of `len`, which `fill` fills without the interpreter; it returns how many there are.
pub(crate) fn bytes<'py>(
    py: Python<'py>,
    shared: &Shared,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Result<usize, Failure> + Send,
) -> PyResult<Result<Bound<'py, PyBytes>, Failure>> {
    if len == 0 {
        return Ok(Ok(PyBytes::new(py, b"")));
    }
    let size = isize::try_from(len)?;
    // SAFETY: null asks for memory that is not initialised, and the result is checked.
    let object = unsafe {
        let object = pyo3::ffi::PyBytes_FromStringAndSize(std::ptr::null(), size);
        Bound::from_owned_ptr_or_err(py, object)?.cast_into_unchecked::<PyBytes>()
    };
    // SAFETY: it is bytes. Nobody else has the object yet, so this is the only access to its
    // memory of `len` bytes.
    let start = unsafe { pyo3::ffi::PyBytes_AsString(object.as_ptr()).cast::<u8>() } as usize;
    let filled = py.detach(|| {
        let start = start as *mut u8;
        // SAFETY: as above; all of it is initialised before the slice is made.
        let bytes = unsafe {
            start.write_bytes(0, len);
            std::slice::from_raw_parts_mut(start, len)
        };
        shared.guarded(|| fill(bytes))
    });
    Ok(match filled {
        Ok(filled) if filled == len => Ok(object),
        Ok(filled) => Ok(PyBytes::new(py, &object.as_bytes()[..filled.min(len)])),
        Err(failure) => Err(failure),
    })
}
