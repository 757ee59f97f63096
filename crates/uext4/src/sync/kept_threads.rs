//! Threads that outlive their volume and serve the next one.
//!
//! What: [`Builder`] and [`JoinHandle`] with the interface of the standard library. A program that
//! opens thousands of volumes, such as a fuzz target, would otherwise spend its time on starting
//! and ending threads. Kept threads never end; only their stacks are kept.

use super::{LockRank, Mutex};
use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The work of a thread. It calls its argument when the thread is free for the next job.
type Job = Box<dyn FnOnce(&dyn Fn()) + Send>;

/// Idle threads.
static IDLE: Mutex<Vec<Sender<Job>>> = Mutex::new(LockRank::Leaf, Vec::new());

/// See [`std::thread::Builder`].
#[derive(Debug)]
pub(crate) struct Builder(std::thread::Builder);

/// See [`std::thread::JoinHandle`].
#[derive(Debug)]
pub(crate) struct JoinHandle<T>(Mutex<Receiver<std::thread::Result<T>>>);

impl Builder {
    pub(crate) fn new() -> Self {
        Self(std::thread::Builder::new())
    }

    /// The name of the thread if a new one starts. A kept thread keeps its name.
    pub(crate) fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// Runs `body` on an idle thread, or on a new one.
    pub(crate) fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let (done, result) = channel();
        let job: Job = Box::new(move |become_idle| {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            // The thread is idle again before `join` returns.
            become_idle();
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
        self.0.spawn(move || {
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

// With the feature, other tests use the same threads.
#[cfg(all(test, not(feature = "kept-threads")))]
mod tests {
    use super::*;

    /// One test only, because all tests of the program share the kept threads.
    #[test]
    fn a_thread_is_reused_even_after_a_panic() {
        let run = |fails: bool| {
            let body = move || {
                assert!(!fails, "injected");
                std::thread::current().id()
            };
            Builder::new().name("kept".to_owned()).spawn(body).unwrap().join()
        };
        let first = run(false).unwrap();
        assert!(run(true).is_err());
        assert_eq!(run(false).unwrap(), first);
        // Two jobs at the same time need two threads.
        let (go, wait) = channel::<()>();
        let busy = Builder::new().spawn(move || wait.recv().is_err()).unwrap();
        assert_ne!(run(false).unwrap(), first);
        drop(go);
        assert!(busy.join().unwrap());
    }
}
