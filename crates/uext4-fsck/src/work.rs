//! Work shared out among threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Progress;

/// Calls `task` for `0..count` and returns the results in that order. With one thread, or one task,
/// everything runs in the caller's.
pub(crate) fn map<T: Send>(
    threads: usize,
    count: usize,
    progress: &mut dyn Progress,
    task: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    let threads = threads.min(count);
    if threads <= 1 {
        let each = |index| {
            let result = task(index);
            progress.advance(index as u64 + 1);
            result
        };
        return (0..count).map(each).collect();
    }
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(count));
    let progress = Mutex::new(progress);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut own = Vec::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    own.push((index, task(index)));
                    // A thread that finds the lock taken leaves the report to its holder.
                    if let Ok(mut progress) = progress.try_lock() {
                        progress.advance(index as u64 + 1);
                    }
                }
                if let Ok(mut results) = results.lock() {
                    results.append(&mut own);
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_come_in_order() {
        for threads in [0, 1, 3] {
            let results = super::map(threads, 100, &mut (), |index| index * 2);
            assert!(results.iter().copied().eq((0..100).map(|index| index * 2)));
        }
    }
}
