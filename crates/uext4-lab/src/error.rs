//! What goes wrong in a run: one line that says what and why.

use std::fmt;

/// A failure, in words.
#[derive(Debug)]
pub struct Error(String);

/// Result of a step of a run.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure in our own words.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<uext4::Error> for Error {
    fn from(error: uext4::Error) -> Self {
        Self(format!("uext4: {error}"))
    }
}

/// Adds what was tried to an error.
pub(crate) trait Doing<T> {
    /// The value, or the error after `what`.
    fn doing(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|error| Error(format!("{what}: {error}")))
    }
}
