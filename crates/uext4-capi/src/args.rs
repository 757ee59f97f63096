//! Arguments of C: pointers become references, or the failure that says which one is NULL.
//!
//! # Safety
//! What the crate trusts its callers with (`lib.rs`) is what these functions ask for.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;

use crate::failure::{Failure, Result, count, status};
use crate::inode::InodeHandle;
use crate::place::Place;
use crate::volume::{VolumeHandle, given};

fn null(what: &str) -> Failure {
    Failure::invalid(format_args!("{what} is NULL"))
}

/// An object or a structure.
pub(crate) unsafe fn object<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: NULL, or an object that lives as long as the call.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what))
}

/// A string without its zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a [u8]> {
    // SAFETY: as the function's caller says.
    unsafe { optional_text(text) }.ok_or_else(|| null(what))
}

/// A string, or nothing for NULL.
pub(crate) unsafe fn optional_text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: a string that lives as long as the call, unless it is NULL.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

fn check_buffer(buf: *const c_void, len: usize) -> Result<bool> {
    if isize::try_from(len).is_err() {
        return Err(Failure::invalid("a buffer that is longer than memory"));
    }
    match (buf.is_null(), len) {
        (_, 0) => Ok(false),
        (true, _) => Err(null("the buffer")),
        (false, _) => Ok(true),
    }
}

/// Bytes to read from.
pub(crate) unsafe fn bytes<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8]> {
    if !check_buffer(buf, len)? {
        return Ok(&[]);
    }
    // SAFETY: `len` bytes of the caller's, which nobody changes during the call.
    Ok(unsafe { std::slice::from_raw_parts(buf.cast(), len) })
}

/// Bytes to be filled.
pub(crate) unsafe fn bytes_mut<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8]> {
    if !check_buffer(buf, len)? {
        return Ok(&mut []);
    }
    // SAFETY: `len` bytes of the caller's, which nobody else uses during the call. What memory of
    // C holds before it is filled is some bytes to this side, which cannot see where it is from.
    Ok(unsafe { std::slice::from_raw_parts_mut(buf.cast(), len) })
}

/// A place for a result that is a value.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    // SAFETY: a valid place, looked at by `check_place`.
    unsafe { place.write(value) };
}

/// Refuses a call that has no place for its result, before it does anything.
pub(crate) fn check_place<T>(place: *mut T, what: &str) -> Result<()> {
    if place.is_null() { Err(null(what)) } else { Ok(()) }
}

/// A structure that C and this side share.
///
/// # Safety
/// It is `repr(C)`, has no padding, and is valid when all of its bytes are zero.
pub(crate) unsafe trait Shared: Copy {}

/// Takes a structure of which the caller knows `size` bytes. What it does not know is zero; what
/// only the caller knows must be.
pub(crate) unsafe fn structure<T: Shared>(from: *const T, size: usize, what: &str) -> Result<T> {
    if from.is_null() {
        return Err(null(what));
    }
    let common = size.min(size_of::<T>());
    // SAFETY: the structure has `size` bytes, see the crate.
    let rest = unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(common), size - common) };
    if rest.iter().any(|byte| *byte != 0) {
        let text = format!("{what} has fields that this version of uext4 does not know");
        return Err(Failure::new(libc::E2BIG, text));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: both have `common` bytes; zeroes are valid for the rest of `T`, and a structure of C
    // for what it has.
    unsafe {
        let to = value.as_mut_ptr().cast::<u8>();
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, common);
        Ok(value.assume_init())
    }
}

/// Fills in a structure of which the caller knows `size` bytes; what only the caller knows becomes
/// zero.
pub(crate) unsafe fn fill<T: Shared>(place: *mut T, size: usize, value: &T) {
    let common = size.min(size_of::<T>());
    // SAFETY: the place has `size` bytes, see the crate; `T` has no padding.
    unsafe {
        let to = place.cast::<u8>();
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to, common);
        to.add(common).write_bytes(0, size - common);
    }
}

/// Gives bytes of whose length the caller could not know: fills what there is room for, and returns
/// the whole length.
pub(crate) unsafe fn give(value: &[u8], buf: *mut c_void, size: usize) -> Result<usize> {
    // SAFETY: as the function's caller says.
    let room = unsafe { bytes_mut(buf, size) }?;
    let count = value.len().min(room.len());
    room[..count].copy_from_slice(&value[..count]);
    Ok(value.len())
}

/// Does work at a place that arguments of C name.
///
/// # Safety
/// Objects and a string, or NULL, see the crate.
pub(crate) unsafe fn at_place(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    work: impl FnOnce(&VolumeHandle, &Place<'_>) -> Result<()>,
) -> c_int {
    // SAFETY: as this function's caller says.
    let (handle, at, path) = unsafe { (volume.as_ref(), at.as_ref(), optional_text(path)) };
    status(handle, || {
        let volume = given(handle)?;
        work(volume, &Place::new(volume, at, path)?)
    })
}

/// As [`at_place`], for work that gives a length.
///
/// # Safety
/// Objects and a string, or NULL, see the crate.
pub(crate) unsafe fn count_at_place(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    work: impl FnOnce(&VolumeHandle, &Place<'_>) -> Result<usize>,
) -> i64 {
    // SAFETY: as this function's caller says.
    let (handle, at, path) = unsafe { (volume.as_ref(), at.as_ref(), optional_text(path)) };
    count(handle, || {
        let volume = given(handle)?;
        work(volume, &Place::new(volume, at, path)?)
    })
}
