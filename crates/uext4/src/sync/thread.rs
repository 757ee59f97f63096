//! Threads of the engine.

#[cfg(feature = "shuttle")]
use shuttle::thread as imp;
#[cfg(not(any(feature = "shuttle", feature = "simulate")))]
use std::thread as imp;
#[cfg(feature = "simulate")]
use uext4_schedule::thread as imp;

#[cfg(all(feature = "kept-threads", not(any(feature = "shuttle", feature = "simulate"))))]
pub(crate) use super::kept_threads::{Builder, JoinHandle};
pub(crate) use imp::yield_now;
#[cfg(any(feature = "shuttle", feature = "simulate", not(feature = "kept-threads")))]
pub(crate) use imp::{Builder, JoinHandle};

/// Number of processors that this process may use. Cached, because asking the system takes as long
/// as reading some files.
pub(crate) fn processors() -> usize {
    #[cfg(feature = "simulate")]
    return uext4_schedule::processors();
    #[cfg(not(feature = "simulate"))]
    {
        use std::sync::OnceLock;
        static PROCESSORS: OnceLock<usize> = OnceLock::new();
        *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
    }
}

/// Number of cells of a counter that many threads change: a power of two, one for each processor up
/// to 64.
pub(crate) fn slots() -> usize {
    #[cfg(feature = "shuttle")]
    return 2;
    #[cfg(not(feature = "shuttle"))]
    processors().min(64).next_power_of_two()
}

/// A number of the calling thread, to be taken modulo a number of cells. Threads that start one
/// after the other have different numbers.
pub(crate) fn slot() -> usize {
    #[cfg(feature = "shuttle")]
    {
        use std::hash::{Hash, Hasher};
        let mut hasher = rustc_hash::FxHasher::default();
        shuttle::thread::current().id().hash(&mut hasher);
        usize::try_from(hasher.finish() >> 60).unwrap_or(0)
    }
    #[cfg(feature = "simulate")]
    return uext4_schedule::thread::number();
    #[cfg(not(any(feature = "shuttle", feature = "simulate")))]
    {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        MINE.try_with(|mine| *mine).unwrap_or(0)
    }
}

/// Sleeps for about a millisecond, so that other threads can run.
pub(crate) fn pause() {
    uext4_device::about_to_sleep();
    // No time passes there, and a sleep does not tell the explorer that the thread waits for
    // others.
    #[cfg(feature = "shuttle")]
    yield_now();
    #[cfg(not(feature = "shuttle"))]
    imp::sleep(std::time::Duration::from_millis(1));
}
