//! Memory that file data is read into on its way to the kernel.
//!
//! What: a few buffers for all threads. One for each would be many: a load that waits has hundreds
//! of threads, and a read is up to a mebibyte.
//! Locking: a leaf mutex, held to take a buffer and to give it back.

use parking_lot::Mutex;

/// Buffers that are kept. More are made where more threads read at the same time, and freed.
const KEPT: usize = 8;

/// Buffers, the last used first.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Does `work` with `len` bytes, which hold anything.
    pub(crate) fn with<T>(&self, len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut buffer = self.0.lock().pop().unwrap_or_default();
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let result = work(&mut buffer[..len]);
        let mut kept = self.0.lock();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a buffer for each thread that ever read.
    #[test]
    fn many_readers_leave_few_buffers() {
        let buffers = Buffers::default();
        let barrier = std::sync::Barrier::new(3 * KEPT);
        std::thread::scope(|scope| {
            for _ in 0..3 * KEPT {
                scope.spawn(|| buffers.with(1 << 20, |buffer| (buffer.len(), barrier.wait())));
            }
        });
        assert_eq!(buffers.0.lock().len(), KEPT);
        assert_eq!(buffers.with(10, |buffer| buffer.len()), 10);
    }
}
