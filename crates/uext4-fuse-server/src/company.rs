//! Handlers that wait for other requests of the kernel.
//!
//! What: a notice may have the kernel send requests and wait for their answers
//! ([`crate::Notifier::write_back`]). The thread that gives it can serve none of them meanwhile. If
//! all threads of a queue did so, all would wait for ever, and the kernel holds a lock meanwhile
//! that unmounting needs. So at least one thread of a queue does something else, and comes back.
//! Where no further thread can be had (descriptors, memory, the limit of threads), a handler is
//! refused instead.
//!
//! Locking: a leaf mutex.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The threads of a queue.
#[derive(Default)]
pub(crate) struct Company {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads that are started, and take no requests yet.
    coming: usize,
    /// Threads that take requests or serve them.
    serving: usize,
    /// Of these, those that wait for other requests.
    waiting: usize,
}

thread_local! {
    /// The queue that this thread is of.
    static OWN: RefCell<Option<Arc<Company>>> = const { RefCell::new(None) };
}

impl Company {
    /// A thread is being started. Dropping the guard on it counts it out, whatever it came to.
    pub(crate) fn expect_one(self: &Arc<Self>) -> Member {
        self.state.lock().coming += 1;
        Member { company: Arc::clone(self), is_serving: false }
    }
}

/// A thread of a queue.
pub(crate) struct Member {
    company: Arc<Company>,
    is_serving: bool,
}

impl Member {
    /// The calling thread, which this is, takes requests from now on.
    pub(crate) fn begin(&mut self) {
        let mut state = self.company.state.lock();
        state.coming -= 1;
        state.serving += 1;
        self.is_serving = true;
        self.company.changed.notify_all();
        OWN.set(Some(Arc::clone(&self.company)));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.company.state.lock();
        match self.is_serving {
            true => state.serving -= 1,
            false => state.coming -= 1,
        }
        self.company.changed.notify_all();
    }
}

/// A thread that waits for other requests, until this is dropped.
pub(crate) struct Waiting(Option<Arc<Company>>);

/// Asks to wait for other requests; `None`: nobody would be left to serve them. Threads that are
/// being started are awaited first. A thread of no queue may always wait.
pub(crate) fn wait_for_others() -> Option<Waiting> {
    let Some(company) = OWN.with_borrow(Clone::clone) else { return Some(Waiting(None)) };
    let mut state = company.state.lock();
    while state.waiting + 1 >= state.serving && state.coming > 0 {
        company.changed.wait(&mut state);
    }
    if state.waiting + 1 >= state.serving {
        return None;
    }
    state.waiting += 1;
    drop(state);
    Some(Waiting(Some(company)))
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(company) = &self.0 {
            company.state.lock().waiting -= 1;
            company.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Fault model: all threads of a queue wait for requests that nobody is left to take.
    #[test]
    fn one_thread_of_a_queue_never_waits_for_others() {
        assert!(wait_for_others().is_some(), "of no queue");
        let company = Arc::new(Company::default());
        let mut alone = company.expect_one();
        alone.begin();
        assert!(wait_for_others().is_none());
        let mut second = company.expect_one();
        thread::scope(|scope| {
            // Until the second is there.
            let waits = scope.spawn(|| {
                OWN.set(Some(Arc::clone(&company)));
                wait_for_others()
            });
            let begins = scope.spawn(move || {
                second.begin();
                second
            });
            let _second = begins.join().unwrap();
            let waiting = waits.join().unwrap();
            assert!(waiting.is_some());
            assert!(wait_for_others().is_none(), "one of two waits");
            drop(waiting);
            assert!(wait_for_others().is_some());
        });
        // One that never came to serve is awaited no longer.
        drop(alone);
        let failed = company.expect_one();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                OWN.set(Some(Arc::clone(&company)));
                wait_for_others().is_none()
            });
            drop(failed);
            assert!(waits.join().unwrap());
        });
        OWN.set(None);
    }
}
