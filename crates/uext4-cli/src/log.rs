//! Lines of a mount that nobody waits for: a daemon has no terminal, so the system's log has them.
//!
//! The protocol is syslog(3)'s of every Linux: one datagram to `/dev/log`, priority and name before
//! the line.

use std::os::unix::net::UnixDatagram;

use crate::failure::say;

/// Facility `daemon`, severity `warning`.
const WARNING: u32 = 3 << 3 | 4;
/// The same facility, severity `debug`.
const DEBUG: u32 = 3 << 3 | 7;

/// Prints one line to standard error and sends it to the system's log.
pub(crate) fn tell(line: &str) {
    say(line);
    send(line);
}

/// Sends one line to the system's log, if there is one.
pub(crate) fn send(line: &str) {
    send_at(WARNING, line);
}

/// Sends one line that only a search for a cause needs.
pub(crate) fn debug(line: &str) {
    send_at(DEBUG, line);
}

fn send_at(priority: u32, line: &str) {
    let datagram = format!("<{priority}>uext4[{}]: {line}", std::process::id());
    // A system without a log, or with one that is full, is no reason to fail or to wait.
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(datagram.as_bytes(), "/dev/log")
    });
}
