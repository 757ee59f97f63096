//! Errors as exceptions: `OSError`, which Python makes the subclass that its number asks for.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::{IntoPyObject, PyErr, Python};
use std::any::Any;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use uext4::{Error, ErrorKind, Volume};

/// Why a call failed. Made while the interpreter is released, and raised with it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An `OSError`: number and text.
    Os(i32, String),
    /// A `ValueError`.
    Value(String),
}

impl Failure {
    /// What every use of something closed raises, as the files of Python do.
    pub(crate) fn closed(what: &str) -> Self {
        Self::Value(format!("I/O operation on closed {what}"))
    }

    /// An error of the system by its number.
    pub(crate) fn errno(errno: i32) -> Self {
        Self::Os(errno, text(errno))
    }

    /// The exception. A path becomes its `filename`, as a name of the file system.
    pub(crate) fn raise(self, py: Python<'_>, path: Option<&[u8]>) -> PyErr {
        match (self, path) {
            (Self::Value(what), _) => PyValueError::new_err(what),
            (Self::Os(errno, text), None) => PyOSError::new_err((errno, text)),
            (Self::Os(errno, text), Some(path)) => {
                // As `os.fsdecode` does, also if it is no UTF-8.
                let name = OsStr::from_bytes(path).into_pyobject(py).map(|name| name.unbind());
                match name {
                    Ok(name) => PyOSError::new_err((errno, text, name)),
                    Err(error) => error.into(),
                }
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let errno = error.errno();
        // What a number says in full is said as any program does.
        let is_plain = matches!(
            error.kind(),
            ErrorKind::NotFound
                | ErrorKind::Exists
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::NotEmpty
                | ErrorKind::NoSpace
                | ErrorKind::NameTooLong
                | ErrorKind::TooManySymlinks
                | ErrorKind::NoXattr
        );
        Self::Os(errno, if is_plain { text(errno) } else { error.to_string() })
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        Self::Os(errno, error.to_string())
    }
}

/// Does the work of a call that uses a volume. A panic, which is a bug of uext4, becomes `EIO`.
/// What it left in memory is unknown: the volume writes nothing of it any more.
pub(crate) fn guarded<T>(
    volume: impl FnOnce() -> Option<Volume>,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let abandoned = catch_unwind(AssertUnwindSafe(|| volume().map(Volume::abandon)));
        let then = match abandoned {
            Ok(Some(())) => "; the volume takes no more changes",
            _ => "",
        };
        let said = said(&*panic);
        Err(Failure::Os(libc::EIO, format!("a bug in uext4: {said}{then}")))
    })
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// What the system says of an error number.
fn text(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    match text.rfind(" (os error") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
