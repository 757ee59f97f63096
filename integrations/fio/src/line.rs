// SPDX-License-Identifier: GPL-2.0-only
//! Failures as fio wants them: an errno, and one line for the user.

use std::fmt;

/// Why something cannot be done.
#[derive(Debug)]
pub struct Failure {
    /// A positive errno.
    pub errno: i32,
    /// One line without a newline: what, and why.
    pub line: String,
}

impl Failure {
    /// A failure with a line that says all.
    pub fn new(errno: i32, line: impl fmt::Display) -> Self {
        Self { errno, line: line.to_string().replace('\n', " ") }
    }

    /// An argument that cannot be taken.
    pub fn invalid(line: impl fmt::Display) -> Self {
        Self::new(libc::EINVAL, line)
    }
}

impl From<uext4::Error> for Failure {
    fn from(error: uext4::Error) -> Self {
        Self::new(error.errno(), error)
    }
}

/// Result of the functions below the C ABI.
pub type Result<T> = std::result::Result<T, Failure>;
