//! The flusher: a thread that writes dirty data back when it is old or when there is too much of
//! it.

use crate::cache::Throttle;
use crate::error::{Error, Result};
use crate::file::{Files, PERIOD_MAX};
use crate::sync::thread::JoinHandle;
use crate::sync::time::Instant;
use std::sync::Arc;

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

/// Releases the writers that wait for the flusher when its thread ends, even by a panic.
struct ReleaseWriters<'a>(&'a Throttle);

impl Drop for ReleaseWriters<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn run(files: &Files) {
    let throttle = files.context.table.budget().throttle();
    let _release = ReleaseWriters(throttle);
    let later = || Instant::now() + files.syncs.expiry.period();
    let mut next_period = later();
    let mut last_long = Instant::now();
    loop {
        let left = next_period.saturating_duration_since(Instant::now());
        if !throttle.wait_for_work(left) {
            return;
        }
        if files.context.is_read_only() {
            // Writers learn the reason before they ask for room.
            throttle.stall(None);
            // Else waits of no length would follow each other from here on.
            next_period = later();
            continue;
        }
        if Instant::now() >= next_period {
            // What does not get more urgent with a shorter period.
            let is_long = last_long.elapsed() + files.syncs.expiry.period() / 2 >= PERIOD_MAX;
            files.syncs.write_back_expired(is_long);
            if is_long {
                files.context.table.budget().spare.release_unused();
                last_long = Instant::now();
            }
            next_period = later();
        }
        files.syncs.write_back_background();
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.files.context.table.budget().throttle().end();
        if let Some(thread) = self.thread.take() {
            // A flusher that panicked has nothing to report, because writeback errors are recorded
            // with inodes.
            let _ = thread.join();
        }
    }
}
