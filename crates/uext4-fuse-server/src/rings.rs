//! The rings of a session: a queue for each processor, set up before INIT is answered.
//!
//! What: each queue starts a thread, which opens a ring; when INIT was answered all of them
//! register their entry, and when all are taken they serve. Each step is told of, and awaited.
//!
//! The first entries of all queues are registered before any request is served. Where the kernel
//! refuses one, it gives all requests out by `/dev/fuse`, and the rings go.
//!
//! Locking: none but the channels'.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use uext4_device::Unregistered;

use crate::affinity::Programs;
use crate::device_queue::DeviceQueue;
use crate::handler::Handler;
use crate::ring_queue::Queue;
use crate::session::Core;

/// Most threads of a queue. Each but a few stands for a thread of a program that waits for us.
const THREADS_MAX: usize = 1024;
/// Descriptors that rings leave to the rest of the process: each ring takes one, for good.
const OTHER_DESCRIPTORS: usize = 128;

/// All queues of a session.
pub(crate) struct Rings<H> {
    queues: Vec<Arc<Queue<H>>>,
}

/// Threads that have a ring each, and wait to be told that INIT was answered. They end where this
/// is dropped.
pub(crate) struct Prepared<H: Handler> {
    rings: Arc<Rings<H>>,
    go: Vec<Sender<()>>,
    told: Receiver<Result<(), Unregistered>>,
}

/// Every processor that the system could have, and why rings cannot serve them all.
fn processors() -> Result<u16, String> {
    let list = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}"))
            .map_err(|error| format!("cannot list processors: {error}"))?;
        parse_list(text.trim()).ok_or_else(|| "cannot list processors".to_owned())
    };
    let (possible, online) = (list("possible")?, list("online")?);
    let allowed = rustix::thread::sched_getaffinity(None)
        .map_err(|error| format!("cannot tell the processors of this process: {error}"))?;
    if online.iter().any(|processor| !allowed.is_set(*processor)) {
        return Err("this process may not use every processor".to_owned());
    }
    let last = possible.last().copied().unwrap_or(0);
    u16::try_from(last + 1).map_err(|_| "too many processors".to_owned())
}

/// `0-3,8` as numbers.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

/// Most threads of each of so many queues.
fn threads_max(queues: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors =
        limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (descriptors.saturating_sub(OTHER_DESCRIPTORS) / queues).clamp(1, THREADS_MAX)
}

impl<H: Handler> Rings<H> {
    /// Starts a thread with a ring for each processor. They do nothing yet.
    ///
    /// # Errors
    /// Why there can be no rings, in words.
    pub(crate) fn prepare(core: &Arc<Core<H>>, payload: usize) -> Result<Prepared<H>, String> {
        Self::prepare_with(core, |_| payload)
    }

    /// As [`Rings::prepare`], with a length of payload for each queue.
    pub(crate) fn prepare_with(
        core: &Arc<Core<H>>,
        payload: impl Fn(u16) -> usize,
    ) -> Result<Prepared<H>, String> {
        let programs = Arc::new(Programs::new());
        let processors = processors()?;
        let threads_max = threads_max(processors.into());
        let queue =
            |processor| Queue::new(core, &programs, processor, payload(processor), threads_max);
        let queues: Vec<_> = (0..processors).map(queue).collect();
        let mut go = Vec::with_capacity(queues.len());
        let (tell, told) = mpsc::channel();
        for queue in &queues {
            let (sender, receiver) = mpsc::channel();
            let first = FirstThread { told: tell.clone(), go: receiver };
            queue.start_thread(Some(first)).map_err(|e| e.to_string())?;
            go.push(sender);
        }
        let prepared = Prepared { rings: Arc::new(Self { queues }), go, told };
        match prepared.all_done() {
            Ok(()) => Ok(prepared),
            Err(Unregistered::Refused(error) | Unregistered::Failed(error)) => {
                Err(error.to_string())
            }
        }
    }

    /// Waits for all threads, whose session has ended.
    pub(crate) fn join(&self) {
        for queue in &self.queues {
            queue.join();
        }
    }

    /// Queues there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.queues.len()
    }

    /// Threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.queues.iter().map(|queue| queue.threads()).sum()
    }
}

impl<H: Handler> Prepared<H> {
    /// INIT was answered: the threads offer their entries.
    ///
    /// # Errors
    /// An entry was not taken. Of several reasons the one that leaves least.
    pub(crate) fn register(&self) -> Result<(), Unregistered> {
        self.go_on();
        self.all_done()
    }

    /// The threads serve. Where they cannot go on, `device` fails.
    pub(crate) fn begin(self, device: &Arc<DeviceQueue<H>>) -> Arc<Rings<H>> {
        for queue in &self.rings.queues {
            queue.begin(device);
        }
        self.go_on();
        self.rings
    }

    fn go_on(&self) {
        for go in &self.go {
            // One that has ended has told why.
            let _ = go.send(());
        }
    }

    /// Waits until every thread has done its step.
    fn all_done(&self) -> Result<(), Unregistered> {
        let mut worst = Ok(());
        for _ in &self.go {
            let ended = || Err(Unregistered::Failed(io::Error::other("a thread ended early")));
            let step = self.told.recv().unwrap_or_else(|_| ended());
            if step.is_err() && !matches!(worst, Err(Unregistered::Failed(_))) {
                worst = step;
            }
        }
        worst
    }
}

/// How the first thread of a queue tells of each step, and is told to go on.
pub(crate) struct FirstThread {
    told: Sender<Result<(), Unregistered>>,
    go: Receiver<()>,
}

impl FirstThread {
    /// Tells how a step went; whether to go on.
    pub(crate) fn goes_on(&self, step: Result<(), Unregistered>) -> bool {
        let is_done = step.is_ok();
        // Nobody awaits it: there are no rings after all.
        self.told.send(step).is_ok() && is_done && self.go.recv().is_ok()
    }
}

impl Drop for FirstThread {
    fn drop(&mut self) {
        if thread::panicking() {
            let why = Unregistered::Failed(io::Error::other("a thread panicked"));
            // As above.
            let _ = self.told.send(Err(why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_numbers_and_ranges() {
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("a-b"), None);
    }
}
