//! A bound on the time of a test whose threads may wait for ever.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the program, or what its threads wait for, if it is not dropped in time: threads that wait
/// for ever cannot be joined.
#[derive(Debug)]
pub struct Watchdog {
    /// Nothing is sent: its end is what the other side waits for.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Watches over what is called `what`.
    #[must_use]
    pub fn start(what: &str, bound: Duration) -> Watchdog {
        Self::start_with(what, bound, || std::process::abort())
    }

    /// The same, and then `end`: a program whose threads wait for an answer of a mount does not end
    /// before it has that.
    #[must_use]
    pub fn start_with(what: &str, bound: Duration, end: impl FnOnce() + Send + 'static) -> Self {
        let (alive, dropped) = channel::<()>();
        let what = what.to_owned();
        std::thread::spawn(move || {
            if dropped.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what}: somebody waits for ever");
                end();
            }
        });
        Watchdog { _alive: alive }
    }
}
