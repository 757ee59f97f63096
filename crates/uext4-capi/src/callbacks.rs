//! A device that C serves by callbacks.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::io;

use parking_lot::{Mutex, MutexGuard};
use uext4_device::{Device, FlushLatch, check_read, check_write};

use crate::args::Shared;
use crate::device::{UEXT4_DEVICE_ONE_AT_A_TIME, UEXT4_DEVICE_READ_ONLY};
use crate::failure::{Failure, Result};

/// Callbacks of a device. Each returns 0 or a negative errno, and serves a request whole or fails.
/// No request reaches past the length of the device.
///
/// Threads: callbacks are called by any thread that uses the volume and by threads of the library,
/// several at a time unless UEXT4_DEVICE_ONE_AT_A_TIME was given. Where two of them overlap in time
/// and place, any mix of their bytes will do. A callback must not call the library with a volume,
/// file or directory of its own device, nor leave by longjmp or an exception.
///
/// Durability: what write has taken may be lost with a loss of power until a flush that began
/// afterwards has returned 0. A device that answers flush without having done so loses files.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceOps {
    /// Fills len bytes at buf from byte offset of the device.
    pub read: Option<
        unsafe extern "C" fn(user: *mut c_void, buf: *mut c_void, len: usize, offset: u64) -> c_int,
    >,
    /// Writes len bytes from buf at byte offset of the device.
    pub write: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            buf: *const c_void,
            len: usize,
            offset: u64,
        ) -> c_int,
    >,
    /// Makes every write that has returned durable.
    pub flush: Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>,
    /// Optional: writes, and returns when these bytes are durable. Without it write and flush are
    /// called.
    pub write_durable: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            buf: *const c_void,
            len: usize,
            offset: u64,
        ) -> c_int,
    >,
    /// Optional: the bytes of a range are no longer needed, and may read as anything. -EOPNOTSUPP:
    /// the device cannot, and nothing has changed.
    pub trim: Option<unsafe extern "C" fn(user: *mut c_void, offset: u64, len: u64) -> c_int>,
    /// Optional: the bytes of a range become zero. -EOPNOTSUPP: the device cannot, and nothing has
    /// changed; zeroes are written then.
    pub zero: Option<unsafe extern "C" fn(user: *mut c_void, offset: u64, len: u64) -> c_int>,
    /// Optional: called once, when nothing calls the others any more.
    pub release: Option<unsafe extern "C" fn(user: *mut c_void)>,
}

// SAFETY: pointers to functions only, of which none is valid as `None`.
unsafe impl Shared for DeviceOps {}

type Read = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64) -> c_int;
type Write = unsafe extern "C" fn(*mut c_void, *const c_void, usize, u64) -> c_int;
type Range = unsafe extern "C" fn(*mut c_void, u64, u64) -> c_int;

pub(crate) struct Callbacks {
    read: Read,
    write: Option<Write>,
    flush: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    ops: DeviceOps,
    user: *mut c_void,
    len: u64,
    read_only: bool,
    flushes: FlushLatch,
    turn: Option<Mutex<()>>,
}

// SAFETY: `user` is handed to callbacks alone, and those are for any thread, as the header says.
unsafe impl Send for Callbacks {}
// SAFETY: as above; several at a time, or else `turn` is there.
unsafe impl Sync for Callbacks {}

impl Callbacks {
    pub(crate) fn new(ops: DeviceOps, user: *mut c_void, len: u64, flags: u32) -> Result<Self> {
        if flags & !(UEXT4_DEVICE_READ_ONLY | UEXT4_DEVICE_ONE_AT_A_TIME) != 0 {
            return Err(Failure::invalid("flags that no device has"));
        }
        let read_only = flags & UEXT4_DEVICE_READ_ONLY != 0;
        let read = ops.read.ok_or_else(|| Failure::invalid("a device without read"))?;
        if !read_only && (ops.write.is_none() || ops.flush.is_none()) {
            return Err(Failure::invalid("a device without write or flush is read-only"));
        }
        if len == 0 || i64::try_from(len).is_err() {
            return Err(Failure::invalid("a length that no device has"));
        }
        Ok(Self {
            read,
            write: ops.write,
            flush: ops.flush,
            ops,
            user,
            len,
            read_only,
            flushes: FlushLatch::default(),
            turn: (flags & UEXT4_DEVICE_ONE_AT_A_TIME != 0).then(Mutex::default),
        })
    }

    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.as_ref().map(Mutex::lock)
    }

    /// Calls a callback for a range; whether the device can do it.
    fn range(&self, callback: Option<Range>, offset: u64, len: u64) -> io::Result<bool> {
        check_write(self.len, self.read_only, offset, len)?;
        let Some(callback) = callback else { return Ok(false) };
        let _turn = self.turn();
        // SAFETY: a callback of this device with its user pointer.
        match answer(unsafe { callback(self.user, offset, len) }) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
            done => done.map(|()| true),
        }
    }

    fn write_by(&self, callback: Option<Write>, offset: u64, buf: &[u8]) -> io::Result<()> {
        check_write(self.len, self.read_only, offset, buf.len() as u64)?;
        let read_only = || io::Error::from_raw_os_error(libc::EROFS);
        let callback = callback.ok_or_else(read_only)?;
        let _turn = self.turn();
        // SAFETY: a callback of this device with its user pointer, and bytes that are there during
        // the call.
        answer(unsafe { callback(self.user, buf.as_ptr().cast(), buf.len(), offset) })
    }
}

/// What a callback returned. Only errnos are failures that can be told apart.
fn answer(returned: c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -4095..=-1 => Err(io::Error::from_raw_os_error(-returned)),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

impl Device for Callbacks {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        check_read(self.len, offset, buf.len())?;
        let _turn = self.turn();
        // SAFETY: a callback of this device with its user pointer, and bytes that are there during
        // the call and that nobody else uses.
        answer(unsafe { (self.read)(self.user, buf.as_mut_ptr().cast(), buf.len(), offset) })
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_by(self.write, offset, buf)
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        if self.ops.write_durable.is_none() {
            self.write_at(offset, buf)?;
            return self.flush();
        }
        self.flushes.check()?;
        let written = self.write_by(self.ops.write_durable, offset, buf);
        written.inspect_err(|error| {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            // As of a flush that has failed: what is durable is not known from now on.
            let _ = self.flushes.flush(|| Err(io::Error::from_raw_os_error(errno)));
        })
    }

    fn flush(&self) -> io::Result<()> {
        let Some(flush) = self.flush else { return Ok(()) };
        self.flushes.flush(|| {
            let _turn = self.turn();
            // SAFETY: a callback of this device with its user pointer.
            answer(unsafe { flush(self.user) })
        })
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.range(self.ops.zero, offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.range(self.ops.trim.or(self.ops.zero), offset, len)
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        if let Some(release) = self.ops.release {
            // SAFETY: a callback of this device, which nothing uses any more.
            unsafe { release(self.user) };
        }
    }
}
