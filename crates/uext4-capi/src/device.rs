//! Devices: an image by its name, or callbacks of the caller's.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use parking_lot::Mutex;
use uext4_device::SharedDevice;

use crate::args;
use crate::callbacks::{Callbacks, DeviceOps};
use crate::failure::{Failure, Result, status};
use crate::open::{self, Options};

/// For uext4_device_new: nothing is written; the callbacks write and flush may be NULL.
pub const UEXT4_DEVICE_READ_ONLY: u32 = 1;
/// For uext4_device_new: callbacks are called one at a time. (Still by any thread.)
pub const UEXT4_DEVICE_ONE_AT_A_TIME: u32 = 2;

/// A device: a fixed number of bytes in which a file system lies. May be used by any number of
/// threads. One volume at a time is open for writing on it, or any number for reading.
#[derive(Debug)]
pub struct DeviceHandle {
    device: SharedDevice,
    users: Arc<Mutex<Users>>,
}

/// What a device is used by now.
#[derive(Debug, Default)]
struct Users {
    readers: usize,
    writer: bool,
}

/// A use of a device, from its begin until it is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    users: Arc<Mutex<Users>>,
    writes: bool,
}

impl DeviceHandle {
    pub(crate) fn new(device: SharedDevice) -> Self {
        Self { device, users: Arc::default() }
    }

    pub(crate) fn shared(&self) -> SharedDevice {
        Arc::clone(&self.device)
    }

    /// Begins a use, which excludes others if it writes.
    pub(crate) fn hold(&self, writes: bool) -> Result<Hold> {
        let mut users = self.users.lock();
        if users.writer || (writes && users.readers > 0) {
            return Err(Failure::new(libc::EBUSY, "the device is in use by an open volume"));
        }
        if writes {
            users.writer = true;
        } else {
            users.readers += 1;
        }
        Ok(Hold { users: Arc::clone(&self.users), writes })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut users = self.users.lock();
        if self.writes {
            users.writer = false;
        } else {
            users.readers -= 1;
        }
    }
}

/// Opens an image file, a block device, or a network block device (nbd://HOST/EXPORT,
/// nbd+unix:///EXPORT?socket=PATH, with TLS nbds://). While it is open for writing, no other
/// process that works by uext4 or by a loop device can have it.
///
/// Of the options, those of devices count: ro, direct, io=, no_space_timeout=, nbd_timeout=,
/// offset=BYTES and sizelimit=BYTES for a part of the file. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_device_open(
    image: *const c_char,
    options: *const c_char,
    device: *mut *mut DeviceHandle,
) -> c_int {
    status(None, || {
        args::check_place(device, "device")?;
        // SAFETY: strings, see the crate.
        let (image, options) =
            unsafe { (args::text(image, "image")?, args::optional_text(options)) };
        let opened = DeviceHandle::new(open::device(image, &Options::parse(options)?.file)?);
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(device, Box::into_raw(Box::new(opened))) };
        Ok(())
    })
}

/// Makes a device of length bytes out of callbacks, each of which is called with user. Flags are
/// UEXT4_DEVICE_READ_ONLY and UEXT4_DEVICE_ONE_AT_A_TIME. If this fails, release is not called.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_device_new(
    ops: *const DeviceOps,
    ops_size: usize,
    user: *mut c_void,
    length: u64,
    flags: u32,
    device: *mut *mut DeviceHandle,
) -> c_int {
    status(None, || {
        args::check_place(device, "device")?;
        // SAFETY: a structure of that size, see the crate.
        let ops = unsafe { args::structure(ops, ops_size, "ops") }?;
        let made = DeviceHandle::new(Arc::new(Callbacks::new(ops, user, length, flags)?));
        // SAFETY: a valid place, see the crate.
        unsafe { args::put(device, Box::into_raw(Box::new(made))) };
        Ok(())
    })
}

/// Length of a device in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_device_length(device: *const DeviceHandle) -> u64 {
    // SAFETY: a device or NULL, see the crate.
    unsafe { device.as_ref() }.map_or(0, |device| device.device.len())
}

/// Gives a device back. A volume that is open on it keeps what it needs of it until it is closed.
/// NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_device_free(device: *mut DeviceHandle) {
    if !device.is_null() {
        // SAFETY: it came from `Box::into_raw` and is given back once, see the crate.
        let device = unsafe { Box::from_raw(device) };
        status(None, || {
            drop(device);
            Ok(())
        });
    }
}
