//! A bound on the time of a test whose threads may wait for ever.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the program if it is not dropped in time: threads that wait for ever cannot be joined.
#[derive(Debug)]
pub struct Watchdog {
    /// Nothing is sent: its end is what the other side waits for.
    _alive: Sender<()>,
}

impl Watchdog {
    /// Watches over what is called `what`.
    #[must_use]
    pub fn start(what: &str, bound: Duration) -> Watchdog {
        let (alive, end) = channel::<()>();
        let what = what.to_owned();
        std::thread::spawn(move || {
            if end.recv_timeout(bound) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{what}: somebody waits for ever");
                std::process::abort();
            }
        });
        Watchdog { _alive: alive }
    }
}
