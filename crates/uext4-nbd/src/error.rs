//! Errors of opening an export.

use std::io;

use rustix::io::Errno;

use crate::uri::NbdUri;

/// Why an export could not be opened. The message is one line that begins with the URI.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// No connection.
    #[error("{uri}: no connection: {error}")]
    Connect {
        /// The export.
        uri: String,
        /// What the system says.
        error: io::Error,
    },
    /// The server does not serve it, or not so.
    #[error("{uri}: {why}")]
    Refused {
        /// The export.
        uri: String,
        /// What the server says, or lacks.
        why: String,
        /// What kind of refusal that is, see [`NbdError::errno`].
        errno: i32,
    },
    /// No server of this protocol, or one with an error.
    #[error("{uri}: not an NBD server as the protocol has it: {why}")]
    Protocol {
        /// The export.
        uri: String,
        /// What it said.
        why: String,
    },
}

impl NbdError {
    /// The errno of an open that fails so: that of connect(2), `EHOSTUNREACH` for a host that has
    /// no address, `ETIMEDOUT` for a server that does not answer, `EROFS` for an export that can
    /// only be read, `EACCES` where TLS is refused or missing, `ENXIO` for a server that does not
    /// serve the export, `EPROTO` for one that speaks something else. `EIO` where nothing is known.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Connect { error, .. } => match (error.raw_os_error(), error.kind()) {
                (Some(errno), _) => errno,
                (None, io::ErrorKind::TimedOut) => Errno::TIMEDOUT.raw_os_error(),
                (None, io::ErrorKind::UnexpectedEof) => Errno::CONNRESET.raw_os_error(),
                (None, io::ErrorKind::HostUnreachable) => Errno::HOSTUNREACH.raw_os_error(),
                _ => Errno::IO.raw_os_error(),
            },
            Self::Refused { errno, .. } => *errno,
            Self::Protocol { .. } => Errno::PROTO.raw_os_error(),
        }
    }
}

/// The same without the URI, inside this crate.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The connection failed.
    Io(io::Error),
    /// The server refuses, and would do so again.
    Refused(String),
    /// The same, by the rights that it or this host grants.
    Denied(Errno, String),
    /// The server does not keep to the protocol.
    Protocol(String),
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(crate) fn at(self, uri: &NbdUri) -> NbdError {
        let uri = uri.to_string();
        match self {
            Fault::Io(error) => NbdError::Connect { uri, error },
            Fault::Refused(why) => {
                NbdError::Refused { uri, why, errno: Errno::NXIO.raw_os_error() }
            }
            Fault::Denied(errno, why) => {
                NbdError::Refused { uri, why, errno: errno.raw_os_error() }
            }
            Fault::Protocol(why) => NbdError::Protocol { uri, why },
        }
    }

    /// What happened, in words without a full stop.
    pub(crate) fn why(&self) -> String {
        match self {
            Fault::Io(error) => error.to_string(),
            Fault::Refused(why) | Fault::Denied(_, why) | Fault::Protocol(why) => why.clone(),
        }
    }

    /// TLS that one side does not offer or the other does not trust.
    pub(crate) fn no_tls(why: impl Into<String>) -> Fault {
        Fault::Denied(Errno::ACCESS, why.into())
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Fault::Io(io::Error::new(error.kind(), "the server ended the connection"));
        }
        Fault::Io(error)
    }
}

pub(crate) fn garbage<T>(why: impl Into<String>) -> Result<T> {
    Err(Fault::Protocol(why.into()))
}
