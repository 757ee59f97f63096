//! Threads that are kept when what they ran has ended, for the next volume.
//!
//! What: [`Builder`] and [`JoinHandle`] as the standard library has them. A program that opens
//! thousands of volumes, as a fuzz target does, spends its time otherwise on threads that begin
//! and end. Kept threads never end; nothing but their stacks is kept.

use super::{LockRank, Mutex};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

/// What a thread does; it calls its argument when it can do something else next.
type Job = Box<dyn FnOnce(&dyn Fn()) + Send>;

/// Threads that wait for something to do.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(LockRank::Leaf, Vec::new());

/// As [`std::thread::Builder`].
#[derive(Debug, Default)]
pub(crate) struct Builder {
    name: Option<String>,
}

/// As [`std::thread::JoinHandle`].
#[derive(Debug)]
pub(crate) struct JoinHandle<T>(Mutex<Receiver<std::thread::Result<T>>>);

impl Builder {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A name for a thread that has to be made; a kept one keeps its own.
    pub(crate) fn name(self, name: String) -> Self {
        Self { name: Some(name) }
    }

    /// Runs `body` on a thread that waits, or on a new one.
    pub(crate) fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let (done, result) = channel();
        let job: Job = Box::new(move |rest| {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            // Whoever joins finds the thread waiting again.
            rest();
            let _ = done.send(outcome);
        });
        let idle = IDLE.lock().pop();
        let thread = match idle {
            Some(thread) => thread,
            None => self.start()?,
        };
        thread.send(job).map_err(|_| io::Error::other("a kept thread has ended"))?;
        Ok(JoinHandle(Mutex::new(LockRank::Leaf, result)))
    }

    fn start(self) -> io::Result<Sender<Job>> {
        let (jobs, waiting) = channel::<Job>();
        let own = jobs.clone();
        let mut builder = std::thread::Builder::new();
        if let Some(name) = self.name {
            builder = builder.name(name);
        }
        builder.spawn(move || {
            for job in waiting {
                job(&|| IDLE.lock().push(own.clone()));
            }
        })?;
        Ok(jobs)
    }
}

impl<T> JoinHandle<T> {
    /// Waits until the body has returned or panicked.
    pub(crate) fn join(self) -> std::thread::Result<T> {
        let outcome = self.0.into_inner().recv();
        outcome.unwrap_or_else(|gone| Err(Box::new(gone) as Box<dyn Any + Send>))
    }
}

// With the feature other tests use the same threads.
#[cfg(all(test, not(feature = "kept-threads")))]
mod tests {
    use super::*;

    /// One test, since the threads that are kept are the program's.
    #[test]
    fn a_thread_serves_again_also_after_a_panic() {
        let run = |fails: bool| {
            let body = move || {
                assert!(!fails, "planted");
                std::thread::current().id()
            };
            Builder::new().name("kept".to_owned()).spawn(body).unwrap().join()
        };
        let first = run(false).unwrap();
        assert!(run(true).is_err());
        assert_eq!(run(false).unwrap(), first);
        // Two at a time are two threads.
        let (go, wait) = channel::<()>();
        let busy = Builder::new().spawn(move || wait.recv().is_err()).unwrap();
        assert_ne!(run(false).unwrap(), first);
        drop(go);
        assert!(busy.join().unwrap());
    }
}
