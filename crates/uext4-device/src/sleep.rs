//! A word to the embedder before a call sleeps.
//!
//! What: a server that answers requests in place, one after the other in one thread, has to pass
//! its queue on to another thread before a call sleeps. It calls [`on_sleep`] before a call and
//! drops the [`SleepHook`] after it. [`about_to_sleep`] calls the hook of the calling thread, once,
//! before the first of these: a request to a file or block device (read, write, flush, discard),
//! a lock that another thread holds, a condition (a commit, writeback, room in a transaction, the
//! pacing of writers), a pause. Answers from memory call no hook, and neither do devices in memory.
//! A [`crate::Device`] of another crate calls [`about_to_sleep`] itself.
//!
//! Locking: the hook runs while its thread holds locks of the engine. It must be short, and must
//! not call the engine: it passes a queue on, wakes a thread.

use std::cell::Cell;
use std::marker::PhantomData;

type Hook = Box<dyn FnOnce()>;

thread_local! {
    /// Whether `HOOK` has one. Apart, because it needs no destructor: asking costs a load.
    static IS_SET: Cell<bool> = const { Cell::new(false) };
    static HOOK: Cell<Option<Hook>> = const { Cell::new(None) };
}

/// The hook of a thread, which is there until this is dropped or the hook has been called.
#[derive(Debug)]
#[must_use = "the hook is removed when this is dropped"]
pub struct SleepHook {
    // Of this thread.
    _not_send: PhantomData<*const ()>,
}

/// Has `hook` called before the calling thread first sleeps, at most once. It takes the place of
/// an earlier hook.
///
/// # Examples
/// ```
/// use uext4_device::{about_to_sleep, on_sleep};
///
/// let hook = on_sleep(|| println!("somebody else takes my queue"));
/// about_to_sleep(); // prints
/// about_to_sleep(); // does nothing
/// drop(hook);
/// ```
pub fn on_sleep(hook: impl FnOnce() + 'static) -> SleepHook {
    HOOK.set(Some(Box::new(hook)));
    IS_SET.set(true);
    SleepHook { _not_send: PhantomData }
}

impl Drop for SleepHook {
    fn drop(&mut self) {
        IS_SET.set(false);
        HOOK.set(None);
    }
}

/// Calls the hook of the calling thread, if it has one that was not called yet.
#[inline]
pub fn about_to_sleep() {
    if IS_SET.get() {
        call();
    }
}

#[cold]
fn call() {
    IS_SET.set(false);
    if let Some(hook) = HOOK.take() {
        hook();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_hook_is_called_once_and_not_after_its_time() {
        let calls = Rc::new(Cell::new(0));
        let count = || {
            let calls = Rc::clone(&calls);
            move || calls.set(calls.get() + 1)
        };
        let hook = on_sleep(count());
        about_to_sleep();
        about_to_sleep();
        drop(hook);
        assert_eq!(calls.get(), 1);
        drop(on_sleep(count()));
        about_to_sleep();
        assert_eq!(calls.get(), 1);
    }
}
