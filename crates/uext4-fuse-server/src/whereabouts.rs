//! The processors that programs run on, looked up by a thread of its own.
//!
//! What: the kernel tells of a process (`/proc/PID/stat`) only when it gets locks, and the process
//! may hold these while it waits for an answer of ours. A thread that serves requests must never
//! ask, or both could wait for ever. The thread here can wait as long as it takes; what it has
//! found is read without waiting, and may be old.
//!
//! Locking: none but the channel's.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::thread;

/// The last answer, and the way to ask. The thread ends with this, or later.
pub(crate) struct Whereabouts {
    ask: SyncSender<u32>,
    /// Number of the process (32 bits), processor (32); 0 is none.
    found: Arc<AtomicU64>,
}

impl Whereabouts {
    pub(crate) fn new() -> Self {
        let (ask, asked) = mpsc::sync_channel(1);
        let found = Arc::new(AtomicU64::new(0));
        let answer = Arc::clone(&found);
        let run = move || {
            for pid in asked {
                let processor = processor_of(pid).map_or(0, |n| u64::from(pid) << 32 | n as u64);
                answer.store(processor, Ordering::Relaxed);
            }
        };
        // Without the thread nothing is ever found.
        let _ = thread::Builder::new().name("fuse-where".to_owned()).spawn(run);
        Self { ask, found }
    }

    /// Has the thread look for a process, unless it is busy.
    pub(crate) fn ask(&self, pid: u32) {
        // An error: as above.
        let _ = self.ask.try_send(pid);
    }

    /// What was found last, if it was this process.
    pub(crate) fn found(&self, pid: u32) -> Option<usize> {
        let found = self.found.load(Ordering::Relaxed);
        (found >> 32 == u64::from(pid) && pid != 0).then_some(found as u32 as usize)
    }

    /// What was found before does not count.
    pub(crate) fn forget(&self) {
        self.found.store(0, Ordering::Relaxed);
    }
}

/// The processor that a process ran on last (proc_pid_stat(5), field 39).
fn processor_of(pid: u32) -> Option<usize> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything.
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields = std::str::from_utf8(&stat[end + 1..]).ok()?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_and_forgotten() {
        let (places, own) = (Whereabouts::new(), std::process::id());
        assert_eq!(places.found(own), None);
        while places.found(own).is_none() {
            places.ask(own);
            thread::yield_now();
        }
        assert_eq!((places.found(own + 1), places.found(0)), (None, None));
        // Nobody: asked after the last answer about this process.
        places.ask(0);
        while places.found(own).is_some() {
            places.ask(0);
            thread::yield_now();
        }
        places.forget();
        assert_eq!(places.found(own), None);
    }
}
