//! Opening what a volume lies on: a file, a block device or a network block device, or bytes of it.

use crate::error::Failure;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use uext4_device::Access;
use uext4_device::{Device, FileDevice, FileOptions, OpenError, PartDevice, SharedDevice};
use uext4_nbd::{NbdDevice, NbdOptions, NbdUri};

/// Opens bytes of an image as the options say: a file, or what a URI names.
pub(crate) fn open(image: &[u8], options: &FileOptions) -> Result<SharedDevice, Failure> {
    match str::from_utf8(image).ok().filter(|text| NbdUri::is_meant(text)) {
        Some(uri) => open_uri(uri, options),
        None => {
            let device = FileDevice::open_with(path(image), options);
            Ok(Arc::new(device.map_err(|error| opening(image, &error))?))
        }
    }
}

/// Why a file is not opened. The exception names it, so the text does not.
pub(crate) fn opening(image: &[u8], error: &OpenError) -> Failure {
    let text = error.to_string();
    let name = format!("{}: ", path(image).display());
    match error {
        OpenError::OffsetPastEnd { .. } | OpenError::EndPastEnd { .. } => Failure::Value(text),
        _ => Failure::Os(error.errno(), text.strip_prefix(&name).unwrap_or(&text).to_owned()),
    }
}

/// A path of the host.
pub(crate) fn path(image: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(image))
}

fn open_uri(uri: &str, options: &FileOptions) -> Result<SharedDevice, Failure> {
    let parsed: NbdUri = uri.parse().map_err(|error| Failure::Value(format!("{error}")))?;
    let nbd = NbdOptions {
        read_only: options.access == Access::ReadOnly,
        timeout: options.nbd_timeout,
        ..NbdOptions::new()
    };
    let device = NbdDevice::open(&parsed, nbd)
        .map_err(|error| Failure::Os(error.errno(), error.to_string()))?;
    let there = device.len();
    let device: SharedDevice = Arc::new(device);
    if options.offset == 0 && options.len.is_none() {
        return Ok(device);
    }
    let past = || {
        let why = format!("{uri}: offset {} is not inside its {there} bytes", options.offset);
        Failure::Value(why)
    };
    let left = there.checked_sub(options.offset).filter(|left| *left > 0).ok_or_else(past)?;
    let len = options.len.unwrap_or(left).min(left);
    Ok(Arc::new(PartDevice::new(device, options.offset..options.offset + len)))
}

/// Bytes of an image from `offset`, for partition tables: fewer where it ends before, and its
/// length.
#[pyfunction]
pub(crate) fn read_device<'py>(
    py: Python<'py>,
    image: &[u8],
    offset: u64,
    len: usize,
) -> PyResult<(Bound<'py, PyBytes>, u64)> {
    let read = py.detach(|| -> Result<_, Failure> {
        let device = open(image, &FileOptions::new(Access::ReadOnly))?;
        // A table may name a place behind the end, where nothing is.
        let offset = offset.min(device.len());
        let left = device.len() - offset;
        let mut bytes = vec![0; len.min(usize::try_from(left).unwrap_or(usize::MAX))];
        device.read_at(offset, &mut bytes)?;
        Ok((bytes, device.len()))
    });
    let (bytes, len) = read.map_err(|failure| failure.raise(py, None))?;
    Ok((PyBytes::new(py, &bytes), len))
}
