//! A load of several threads on a mounted file system, until it is told to stop.

use crate::generator::{Generator, Limits};
use crate::host_target::HostTarget;
use crate::model::{History, Rules, ThreadHistory};
use crate::target::{Clock, act};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What the threads of a load share with the thread that ends it.
#[derive(Debug, Default)]
pub struct Control {
    /// Counts the beginnings and ends of operations.
    pub clock: Clock,
    /// Set before the file system is taken away: errors are expected from then on.
    pub gone: Arc<AtomicBool>,
    /// Ask the threads to end after the operation that they are in.
    pub stop: AtomicBool,
    /// Syncs that have returned.
    pub syncs: AtomicU64,
    /// Threads that have ended.
    pub ended: AtomicU32,
}

/// Counts a thread when it ends, in whatever way.
struct Ending<'a>(&'a Control);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Runs `threads` threads below `root` while `meanwhile` runs here; what they did.
///
/// `meanwhile` must bound its own time, and that of the threads by taking away what they may hang
/// in: they are waited for.
///
/// # Errors
/// An operation that should have succeeded; the error of `meanwhile`.
pub fn run<T>(
    root: &Path,
    seed: u64,
    threads: u32,
    limits: Limits,
    control: &Control,
    meanwhile: impl FnOnce() -> Result<T, String>,
) -> Result<(History, T), String> {
    // Modes are the load's, not the caller's.
    rustix::process::umask(rustix::fs::Mode::empty());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (1..=threads)
            .map(|thread| {
                scope.spawn(move || {
                    let _ending = Ending(control);
                    let mut generator = Generator::new(seed, thread, limits, false);
                    let mut target = HostTarget::new(root, control.gone.clone());
                    let entries = Vec::new();
                    let mut history = ThreadHistory { thread, identifies: false, entries };
                    let more = |_| !control.stop.load(Ordering::Relaxed);
                    let clock = &control.clock;
                    let synced = |_| {
                        control.syncs.fetch_add(1, Ordering::SeqCst);
                    };
                    act(&mut generator, &mut target, clock, &mut history, &more, &synced)?;
                    Ok(history)
                })
            })
            .collect();
        let result = meanwhile();
        control.stop.store(true, Ordering::Relaxed);
        let threads: Result<Vec<ThreadHistory>, String> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err("a thread panicked".into())))
            .collect();
        Ok((History { threads: threads?, rules: Rules::default() }, result?))
    })
}
