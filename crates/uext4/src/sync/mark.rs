//! Marks of a thread for the length of a call.

use std::cell::Cell;
use std::thread::LocalKey;

/// Does `work` with a mark of the calling thread set; as before after it, or after its panic.
pub(crate) fn with_mark<T>(mark: &'static LocalKey<Cell<bool>>, work: impl FnOnce() -> T) -> T {
    struct Former(&'static LocalKey<Cell<bool>>, bool);
    impl Drop for Former {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _former = Former(mark, mark.replace(true));
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static MARK: Cell<bool> = const { Cell::new(false) };
    }

    /// Fault model: a mark that outlives its call, by a panic or an inner call.
    #[test]
    fn a_mark_ends_with_its_call() {
        with_mark(&MARK, || {
            with_mark(&MARK, || assert!(MARK.get()));
            assert!(MARK.get());
        });
        assert!(!MARK.get());
        assert!(std::panic::catch_unwind(|| with_mark(&MARK, || panic!("in the call"))).is_err());
        assert!(!MARK.get());
    }
}
