//! The thread that writes dirty data back: what is old, and what is too much.

use crate::cache::{Throttle, Work};
use crate::error::{Error, Result};
use crate::file::Files;
use crate::sync::thread::JoinHandle;
use crate::sync::time::Instant;
use std::sync::Arc;
use std::time::Duration;

/// How often it looks for what is old.
const PERIOD: Duration = Duration::from_secs(5);

/// A running flusher; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Flusher {
    files: Arc<Files>,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    pub(super) fn start(files: &Arc<Files>) -> Result<Self> {
        let files = Arc::clone(files);
        let seen = Arc::clone(&files);
        let thread = crate::sync::thread::Builder::new()
            .name("uext4-flush".to_owned())
            .spawn(move || run(&seen))
            .map_err(|e| Error::io("starting thread uext4-flush", e))?;
        Ok(Self { files, thread: Some(thread) })
    }
}

/// Lets writers go that wait for a flusher, when there is none any more: one that panics ends here.
struct LetGo<'a>(&'a Throttle);

impl Drop for LetGo<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn run(files: &Files) {
    let throttle = files.table().budget().throttle();
    let _let_go = LetGo(throttle);
    let mut next_period = Instant::now() + PERIOD;
    loop {
        let left = next_period.saturating_duration_since(Instant::now());
        if throttle.wait_for_work(left) == Work::End {
            return;
        }
        if files.is_read_only() {
            // Writers are told why, before they ask for room.
            throttle.stall(None);
            // Else waits of no length would follow each other from here on.
            next_period = Instant::now() + PERIOD;
            continue;
        }
        if Instant::now() >= next_period {
            files.write_back_expired();
            files.table().budget().release_unused();
            next_period = Instant::now() + PERIOD;
        }
        files.write_back_background();
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.files.table().budget().throttle().end();
        if let Some(thread) = self.thread.take() {
            // A flusher that panicked has nothing to tell: writeback errors stand with inodes.
            let _ = thread.join();
        }
    }
}
