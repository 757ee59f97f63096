//! A value that is made once, with the interface of `std::sync::OnceLock`.

use crate::lock::Mutex;
use std::sync::OnceLock as Value;

/// A value that is made once. A thread that comes meanwhile waits in the scheduler.
#[derive(Debug)]
pub struct OnceLock<T> {
    value: Value<T>,
    making: Mutex<()>,
}

impl<T> OnceLock<T> {
    /// Without a value.
    #[must_use]
    pub const fn new() -> Self {
        Self { value: Value::new(), making: Mutex::new(()) }
    }

    /// The value, if it has been made.
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// The value, if there is one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        self.value.set(value)
    }

    /// The value, which `make` makes if nobody has.
    #[track_caller]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.value.get() {
            return value;
        }
        let _making = self.making.lock();
        match self.value.get() {
            Some(value) => value,
            None => {
                let value = make();
                self.value.get_or_init(|| value)
            }
        }
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self::new()
    }
}
