//! Threads of a simulation, with the interface of `std::thread`.

use crate::scheduler::{self, NOBODY, index, wait_for};
use parking_lot::Mutex;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Makes a thread with a name.
#[derive(Debug, Default)]
pub struct Builder {
    name: Option<String>,
}

/// Waits for a thread's end.
#[derive(Debug)]
pub struct JoinHandle<T> {
    index: usize,
    system: std::thread::JoinHandle<()>,
    result: Arc<Mutex<Option<T>>>,
}

impl Builder {
    /// A thread without a name.
    #[must_use]
    pub fn new() -> Builder {
        Builder::default()
    }

    /// Its name.
    #[must_use]
    pub fn name(self, name: String) -> Builder {
        Builder { name: Some(name) }
    }

    /// Starts it.
    ///
    /// # Errors
    /// Those of the system.
    ///
    /// # Panics
    /// Outside a simulation.
    pub fn spawn<T: Send + 'static>(
        self,
        body: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let result = Arc::new(Mutex::new(None));
        let put = Arc::clone(&result);
        let name = self.name.unwrap_or_else(|| "a thread".to_owned());
        let (index, system) = scheduler::spawn(name, move || *put.lock() = Some(body()))?;
        scheduler::point();
        Ok(JoinHandle { index, system, result })
    }
}

/// Starts a thread called `name`.
///
/// # Panics
/// If the system has no thread for it, and outside a simulation.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    Builder::new().name(name.to_owned()).spawn(body).expect("a thread of the system")
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end.
    ///
    /// # Errors
    /// Never: the panic of a thread ends the simulation.
    ///
    /// # Panics
    /// Outside a simulation.
    #[track_caller]
    pub fn join(self) -> std::thread::Result<T> {
        scheduler::join(self.index, Location::caller());
        self.system.join()?;
        Ok(self.result.lock().take().expect("what it returned"))
    }
}

/// Lets others run first.
pub fn yield_now() {
    scheduler::yield_now();
}

/// Waits for some simulated time.
#[track_caller]
pub fn sleep(time: Duration) {
    wait_for("some time", NOBODY, Some(time), Location::caller());
}

/// Waits until others have ended so many iterations ([`crate::iteration`]), or for some simulated
/// time.
#[track_caller]
pub fn linger(iterations: u32, limit: Duration) {
    scheduler::linger(iterations, limit);
}

/// The number of the calling thread in its simulation; 0 outside.
#[must_use]
pub fn number() -> usize {
    index().unwrap_or(0)
}
