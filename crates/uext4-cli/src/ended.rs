//! Verbs that clean up when a signal wants their end, and then end as if it had ended them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{At, Failure, Result, say};

/// The last signal that wanted the end of this process, once they are listened to.
pub(crate) struct Ended(Arc<AtomicUsize>);

impl Ended {
    /// Listens: a signal sets `stop` instead of ending the process.
    pub(crate) fn listen(verb: &str, stop: &Arc<AtomicBool>) -> Result<Self> {
        let heard = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let number = signal.unsigned_abs() as usize;
            // The number first: a thread that sees that it is to stop finds by what.
            signal_hook::flag::register_usize(signal, Arc::clone(&heard), number)
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
                .at(verb, "signals")?;
        }
        Ok(Self(heard))
    }

    /// What the verb ends with: the signal, if there was one. The line of what it ended with
    /// otherwise is told then.
    pub(crate) fn or<T>(&self, done: Result<T>) -> Result<T> {
        // Signals are small numbers.
        match self.0.load(Ordering::Relaxed) as u8 {
            0 => done,
            signal => {
                if let Err(Failure::Line(line)) = &done {
                    say(line);
                }
                Err(Failure::Signal(signal))
            }
        }
    }
}
