//! The thread that writes old dirty data back.

use crate::error::{Error, Result};
use crate::file::Files;
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, LockRank, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(5);

/// A running flusher; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Flusher {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Stop {
    stopped: Mutex<bool>,
    wake: Condvar,
}

impl Flusher {
    pub(super) fn start(files: &Arc<Files>) -> Result<Self> {
        let stop =
            Arc::new(Stop { stopped: Mutex::new(LockRank::Leaf, false), wake: Condvar::new() });
        let files = Arc::clone(files);
        let seen = Arc::clone(&stop);
        let thread = crate::sync::thread::Builder::new()
            .name("uext4-flush".to_owned())
            .spawn(move || run(&files, &seen))
            .map_err(|e| Error::io("starting thread uext4-flush", e))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

fn run(files: &Files, stop: &Stop) {
    loop {
        {
            let mut stopped = stop.stopped.lock();
            if !*stopped {
                stop.wake.wait_for(&mut stopped, PERIOD);
            }
            if *stopped {
                return;
            }
        }
        if !files.is_read_only() {
            files.write_back_expired();
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A flusher that panicked has nothing to tell: writeback errors stand with inodes.
            let _ = thread.join();
        }
    }
}
