//! What a mount that is served tells: events with levels, on standard error and in the system's
//! log.
//!
//! What: code says `tracing::warn!("mount: ...")` and the like; [`start`] decides where lines go,
//! and which. In the foreground that is standard error. A daemon has no terminal, so that its lines
//! go to the system's log, too. An event whose level is switched off costs a load and a branch.
//!
//! The protocol of the log is syslog(3)'s of every Linux, journald's included: one datagram to
//! `/dev/log`, priority and name before the line. It is sent without waiting, because the log may
//! lie on the very mount that tells. (That is why it is not sent by `tracing-journald`, which
//! waits.) The sandbox allows both: local sockets, and sending to one by its name.

use std::fmt::{self, Write};
use std::os::unix::net::UnixDatagram;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use uext4_fuse::LogLevel;

use crate::failure::{one_line, say};

/// The name of the system's log.
const SOCKET: &str = "/dev/log";
/// Facility `daemon`.
const FACILITY: u32 = 3 << 3;

/// Where the lines of this process go.
struct Log {
    level: LevelFilter,
    /// Socket to the system's log, of a daemon.
    system: Option<UnixDatagram>,
}

/// From now on events up to `level` are told; those of a daemon in the system's log as well.
pub(crate) fn start(level: LogLevel, is_daemon: bool) {
    let level = match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    // Without a socket there is standard error.
    let system = is_daemon.then(socket).and_then(Result::ok);
    // Fails where it was called before: once a process.
    let _ = tracing::subscriber::set_global_default(Log { level, system });
}

fn socket() -> std::io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Severity of syslog(3).
fn severity(level: Level) -> u32 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let line = one_line(&line.0);
        say(&line);
        if let Some(socket) = &self.system {
            let priority = FACILITY | severity(*event.metadata().level());
            let datagram = format!("<{priority}>uext4[{}]: {line}", std::process::id());
            // A system without a log, or with one that is full, is no reason to fail or to wait.
            let _ = socket.send_to(datagram.as_bytes(), SOCKET);
        }
    }

    // Spans are not used.
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

/// The message of an event.
#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Memory does not fail to be written to.
            let _ = write!(self.0, "{value:?}");
        }
    }
}
