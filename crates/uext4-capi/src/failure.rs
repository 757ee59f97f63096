//! Failures as C sees them: a negative errno, and one line for people; panics end here.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::volume::VolumeHandle;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// A positive errno.
    errno: i32,
    /// One line: what, where, why.
    text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(errno: i32, text: impl fmt::Display) -> Self {
        Self { errno, text: text.to_string() }
    }

    /// An argument that cannot be taken.
    pub(crate) fn invalid(text: impl fmt::Display) -> Self {
        Self::new(libc::EINVAL, text)
    }

    #[cfg(test)]
    pub(crate) fn errno(&self) -> i32 {
        self.errno
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The same with what it is about before it.
    pub(crate) fn at(self, what: &[u8]) -> Self {
        Self { text: format!("{}: {}", String::from_utf8_lossy(what), self.text), ..self }
    }
}

impl From<uext4::Error> for Failure {
    fn from(error: uext4::Error) -> Self {
        Self::new(error.errno(), error)
    }
}

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
}

/// Why the last call of this thread that failed did so: one line without a newline, for people;
/// empty if none has failed. It is valid until the next call of this thread that fails. Never
/// NULL.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_error_text() -> *const c_char {
    TEXT.with_borrow(|text| text.as_ptr())
}

fn remember(failure: Failure) -> i32 {
    let line = failure.text.replace(['\n', '\0'], " ");
    // It has no zero byte any more.
    TEXT.set(CString::new(line).unwrap_or_default());
    -failure.errno.max(1)
}

/// Does the work of a call that uses `volume`: its count, or a negative errno.
pub(crate) fn count(volume: Option<&VolumeHandle>, work: impl FnOnce() -> Result<usize>) -> i64 {
    match guarded(volume, work) {
        Ok(count) => i64::try_from(count).unwrap_or(i64::MAX),
        Err(failure) => remember(failure).into(),
    }
}

/// The same for a call that succeeds or fails: 0, or a negative errno.
pub(crate) fn status(volume: Option<&VolumeHandle>, work: impl FnOnce() -> Result<()>) -> c_int {
    guarded(volume, work).map_or_else(remember, |()| 0)
}

/// Turns a panic, which is a bug of uext4, into a failure. What it left in memory is unknown: the
/// volume writes nothing of it any more.
fn guarded<T>(volume: Option<&VolumeHandle>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = said(&*panic);
        let then = match volume.map(|volume| volume.volume().clone()) {
            Some(volume) => {
                let abandoned = catch_unwind(AssertUnwindSafe(|| volume.abandon()));
                abandoned.map_or("", |()| "; the volume takes no more changes")
            }
            None => "",
        };
        Err(Failure::new(libc::EIO, format_args!("a bug in uext4: {said}{then}")))
    })
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::sync::Arc;

    use uext4_device::{MemoryDevice, SharedDevice};

    use super::*;
    use crate::device::DeviceHandle;
    use crate::open::{self, Options};

    fn text() -> String {
        // SAFETY: a string of this thread.
        unsafe { CStr::from_ptr(uext4_error_text()) }.to_string_lossy().into_owned()
    }

    /// Fault model: a bug of the engine that panics in a call (here the call's own work). It must
    /// not reach C, and what it left in memory must not reach the device; what was synced must.
    #[test]
    fn a_panic_is_eio_and_the_volume_writes_no_more() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(16 << 20));
        uext4_mkfs::format(&*device, &uext4_mkfs::Options::default()).unwrap();
        let open = |device: &SharedDevice| {
            let options = Options::parse(None).unwrap();
            open::volume(&DeviceHandle::new(Arc::clone(device)), b"memory", options).unwrap()
        };
        let handle = open(&device);
        let make = |name: &[u8]| {
            let volume = handle.volume();
            let owner = handle.owner();
            let made = volume.symlink(&volume.root()?, name, b"target", owner);
            made.map(drop).map_err(Failure::from)
        };
        assert_eq!(status(Some(&handle), || make(b"synced")), 0);
        handle.volume().sync().unwrap();
        assert_eq!(status(Some(&handle), || make(b"unsynced")), 0);
        assert_eq!(status(Some(&handle), || panic!("injected\nbug")), -libc::EIO);
        assert_eq!(text(), "a bug in uext4: injected bug; the volume takes no more changes");
        assert_eq!(status(Some(&handle), || make(b"later")), -libc::EROFS);
        assert!(handle.volume().read_only());
        let handle = open(&device);
        let volume = handle.volume();
        let root = volume.root().unwrap();
        assert!(volume.lookup(&root, b"synced").is_ok());
        assert!(volume.lookup(&root, b"later").is_err());
        volume.clone().close().unwrap();
    }

    #[test]
    fn a_panic_without_a_volume_is_told_too() {
        let what = "formatted";
        assert_eq!(count(None, || panic!("{what}")), -i64::from(libc::EIO));
        assert_eq!(text(), "a bug in uext4: formatted");
    }
}
