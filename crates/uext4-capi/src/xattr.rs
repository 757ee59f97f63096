//! Extended attributes.

use std::ffi::{c_char, c_int, c_void};

use uext4::XattrMode;

use crate::args::{self, at_place, count_at_place};
use crate::failure::Failure;
use crate::inode::{InodeHandle, UEXT4_NOFOLLOW};
use crate::place::Place;
use crate::volume::VolumeHandle;

/// For uext4_setxattr: fail with EEXIST if the attribute is there.
pub const UEXT4_XATTR_CREATE: u32 = 2;
/// For uext4_setxattr: fail with ENODATA if the attribute is not there.
pub const UEXT4_XATTR_REPLACE: u32 = 4;

/// Value of an attribute, by its full name ("user.colour"): fills buf with at most size bytes, and
/// returns the length of the whole. The inode is found by path as with uext4_lookup; path may be
/// NULL, for at itself. Fails with ENODATA if there is no such attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_getxattr(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    name: *const c_char,
    buf: *mut c_void,
    size: usize,
) -> i64 {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        // SAFETY: a string, see the crate.
        let name = unsafe { args::text(name, "name") }?;
        let inode = place.inode(flags)?;
        let value = volume.volume().xattr_get(&inode, name).map_err(|error| place.failed(error))?;
        // SAFETY: a buffer of that size, see the crate.
        unsafe { args::give(&value, buf, size) }
    };
    // SAFETY: as this function's caller says.
    unsafe { count_at_place(volume, at, path, work) }
}

/// Full names of the attributes, each with a zero byte behind it: fills buf with at most size
/// bytes, and returns the length of the whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_listxattr(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    buf: *mut c_void,
    size: usize,
) -> i64 {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        let inode = place.inode(flags)?;
        let names = volume.volume().xattr_list(&inode).map_err(|error| place.failed(error))?;
        let text: Vec<u8> = names
            .into_iter()
            .flat_map(|mut name| {
                name.push(0);
                name
            })
            .collect();
        // SAFETY: a buffer of that size, see the crate.
        unsafe { args::give(&text, buf, size) }
    };
    // SAFETY: as this function's caller says.
    unsafe { count_at_place(volume, at, path, work) }
}

/// Sets an attribute. Flags: UEXT4_NOFOLLOW, UEXT4_XATTR_CREATE or UEXT4_XATTR_REPLACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_setxattr(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    name: *const c_char,
    value: *const c_void,
    size: usize,
) -> c_int {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        // SAFETY: a string and a buffer of that size, see the crate.
        let (name, value) = unsafe { (args::text(name, "name")?, args::bytes(value, size)?) };
        let mode = match flags & !UEXT4_NOFOLLOW {
            0 => XattrMode::Any,
            UEXT4_XATTR_CREATE => XattrMode::Create,
            UEXT4_XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Failure::invalid("flags that this call does not have")),
        };
        let inode = place.inode(flags & UEXT4_NOFOLLOW)?;
        let set = volume.volume().xattr_set(&inode, name, value, mode);
        set.map_err(|error| place.failed(error))
    };
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, work) }
}

/// Removes an attribute. Fails with ENODATA if it is not there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_removexattr(
    volume: *const VolumeHandle,
    at: *const InodeHandle,
    path: *const c_char,
    flags: u32,
    name: *const c_char,
) -> c_int {
    let work = |volume: &VolumeHandle, place: &Place<'_>| {
        // SAFETY: a string, see the crate.
        let name = unsafe { args::text(name, "name") }?;
        let inode = place.inode(flags)?;
        let removed = volume.volume().xattr_remove(&inode, name);
        removed.map_err(|error| place.failed(error))
    };
    // SAFETY: as this function's caller says.
    unsafe { at_place(volume, at, path, work) }
}
