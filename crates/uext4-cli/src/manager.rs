//! What the service manager is told of a mount in the foreground: sd_notify(3), one datagram to the
//! socket that `NOTIFY_SOCKET` names.
//!
//! A daemon tells nothing: the socket in its environment is that of the service whose program
//! mounted, and the mount is not that service.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A manager that reads nothing for so long does not hold up a mount.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service manager, if there is one that wants to know.
#[derive(Default)]
pub(crate) struct Manager {
    socket: Option<UnixDatagram>,
    is_stopping: AtomicBool,
}

impl Manager {
    /// The manager of this process. Its socket stays open, so that it is reached from where no
    /// other can be opened.
    pub(crate) fn of_environment() -> Self {
        let name = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        // One that is not there any more is none.
        let socket = name.and_then(|name| connect(&name).ok());
        Self { socket, is_stopping: AtomicBool::new(false) }
    }

    /// The mount answers.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}"));
    }

    /// The mount ends; told once.
    pub(crate) fn stopping(&self) {
        if !self.is_stopping.swap(true, Ordering::Relaxed) {
            self.send("STOPPING=1\nSTATUS=closing the image");
        }
    }

    fn send(&self, state: &str) {
        // A manager that has gone is no reason to fail.
        let _ = self.socket.as_ref().map(|socket| socket.send(state.as_bytes()));
    }
}

/// `@name` is in the abstract name space.
fn connect(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}
