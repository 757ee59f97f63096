//! Values that are read often and replaced seldom.

#[cfg(feature = "shuttle")]
use super::{LockRank, Mutex};

/// A value that is replaced as a whole. Readers write to nothing that they share.
#[derive(Debug)]
pub(crate) struct Published<T> {
    #[cfg(not(feature = "shuttle"))]
    value: arc_swap::ArcSwap<T>,
    #[cfg(feature = "shuttle")]
    value: Mutex<std::sync::Arc<T>>,
}

impl<T> Published<T> {
    pub(crate) fn new(value: T) -> Self {
        let value = std::sync::Arc::new(value);
        Self {
            #[cfg(not(feature = "shuttle"))]
            value: arc_swap::ArcSwap::new(value),
            #[cfg(feature = "shuttle")]
            value: Mutex::new(LockRank::Leaf, value),
        }
    }

    /// The value as it is now. It may be replaced at once.
    #[cfg(not(feature = "shuttle"))]
    pub(crate) fn read(&self) -> arc_swap::Guard<std::sync::Arc<T>> {
        self.value.load()
    }

    /// The value as it is now. It may be replaced at once.
    #[cfg(feature = "shuttle")]
    pub(crate) fn read(&self) -> std::sync::Arc<T> {
        std::sync::Arc::clone(&self.value.lock())
    }

    /// Whoever reads from now on reads this.
    pub(crate) fn publish(&self, value: T) {
        let value = std::sync::Arc::new(value);
        #[cfg(not(feature = "shuttle"))]
        self.value.store(value);
        #[cfg(feature = "shuttle")]
        {
            *self.value.lock() = value;
        }
    }
}
