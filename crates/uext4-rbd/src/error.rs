//! Errors of opening an image.

use std::io;

/// Why an image could not be opened. The message is one line that begins with its name.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RbdError {
    /// There is no such thing, it is in use, or it cannot be used so.
    #[error("{name}: {why}")]
    Refused {
        /// The image.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A request that failed.
    #[error("{name}: {doing}: {error}")]
    Failed {
        /// The image.
        name: String,
        /// What was tried.
        doing: &'static str,
        /// What the cluster says, or the library.
        error: io::Error,
    },
    /// The library was not linked.
    #[error("{name}: this build has no librbd")]
    NotBuilt {
        /// The image.
        name: String,
    },
}

/// The same without the name, inside this crate.
#[cfg(feature = "librbd")]
#[derive(Debug)]
pub(crate) enum Fault {
    Refused(String),
    Failed(&'static str, io::Error),
}

#[cfg(feature = "librbd")]
impl Fault {
    pub(crate) fn at(self, name: &crate::RbdName) -> RbdError {
        let name = name.to_string();
        match self {
            Self::Refused(why) => RbdError::Refused { name, why },
            Self::Failed(doing, error) => RbdError::Failed { name, doing, error },
        }
    }

    /// For `map_err`.
    pub(crate) fn of(doing: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Failed(doing, error)
    }
}
