//! A pool of page memory.
//!
//! What: pages that are evicted, or whose file is truncated or deleted, leave their memory here for
//! the next pages. If the allocator got it back, it would place smaller objects in it, and the next
//! pages would take new memory, so a process whose pages come and go all day would grow. Memory
//! that no page needs for a while returns to the allocator little by little.
//! Invariants: nothing else refers to pooled memory. A new user overwrites all of a page. Pages in
//! use and pooled pages together exceed the budget by at most a sixteenth.
//! Locking: a leaf. Taking and leaving a page only try it, because the allocator is an alternative.

use crate::sync::{LockRank, Mutex};
use std::sync::Arc;

/// One in so many unneeded pages is released at a time.
const RELEASED_SHARE: usize = 4;

/// The pool.
#[derive(Debug)]
pub(crate) struct SparePages(Mutex<Pool>);

#[derive(Debug, Default)]
struct Pool {
    pages: Vec<Arc<[u8]>>,
    /// The fewest pages in the pool since the last release.
    fewest: usize,
}

impl SparePages {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LockRank::Leaf, Pool::default()))
    }

    /// Adds a page, unless it is still referenced or the pool has `most` pages.
    pub(super) fn put(&self, mut page: Arc<[u8]>, most: usize) {
        if Arc::get_mut(&mut page).is_some()
            && let Some(mut pool) = self.0.try_lock()
            && pool.pages.len() < most
        {
            pool.pages.push(page);
        }
    }

    /// A page of zeroes.
    pub(crate) fn zeroes(&self, len: usize) -> Arc<[u8]> {
        let spare = self.reuse(len, |room| room.fill(0));
        spare.unwrap_or_else(|| std::iter::repeat_n(0, len).collect())
    }

    /// A page with these bytes.
    pub(crate) fn page_of(&self, bytes: &[u8]) -> Arc<[u8]> {
        let spare = self.reuse(bytes.len(), |room| room.copy_from_slice(bytes));
        spare.unwrap_or_else(|| bytes.into())
    }

    /// A page of the pool, which `fill` overwrites. `None` if there is none of `len` bytes.
    fn reuse(&self, len: usize, fill: impl FnOnce(&mut [u8])) -> Option<Arc<[u8]>> {
        let mut page = self.0.try_lock()?.take()?;
        fill(Arc::get_mut(&mut page).filter(|room| room.len() == len)?);
        Some(page)
    }

    /// Returns a part of the pages that were not needed since the last call to the allocator.
    pub(crate) fn release_unused(&self) {
        let unused: Vec<Arc<[u8]>> = {
            let mut pool = self.0.lock();
            let count = pool.fewest.div_ceil(RELEASED_SHARE);
            pool.fewest = pool.pages.len() - count;
            pool.pages.drain(..count).collect()
        };
        drop(unused);
    }
}

impl Pool {
    fn take(&mut self) -> Option<Arc<[u8]>> {
        let page = self.pages.pop();
        self.fewest = self.fewest.min(self.pages.len());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a page that is still read, or of another size, is added.
    #[test]
    fn memory_is_reused_when_nothing_refers_to_it() {
        let spare = SparePages::new();
        let first: Arc<[u8]> = [1; 8].into();
        let (place, reader) = (first.as_ptr(), Arc::clone(&first));
        spare.put(first, 2);
        assert_ne!(spare.page_of(&[2; 8]).as_ptr(), place, "it is still read");
        spare.put(reader, 2);
        let page = spare.page_of(&[3; 8]);
        assert_eq!((&page[..], page.as_ptr()), (&[3; 8][..], place));
        spare.put(page, 2);
        assert_eq!(&spare.page_of(&[4; 4])[..], [4; 4]);
        spare.put([4; 8].into(), 2);
        assert_eq!(spare.zeroes(8)[..], [0; 8]);
        (0..5).for_each(|_| spare.put([5; 8].into(), 2));
        assert_eq!(spare.0.lock().pages.len(), 2);
    }

    /// Fault model: memory that is needed now and then is released, or unneeded memory is pool.
    #[test]
    fn unneeded_memory_is_released_little_by_little() {
        let spare = SparePages::new();
        let len = || spare.0.lock().pages.len();
        (0..40).for_each(|_| spare.put([1; 8].into(), 40));
        spare.release_unused();
        assert_eq!(len(), 40, "they have just been added");
        // Thirty pages were needed, ten were not.
        let needed: Vec<_> = (0..30).map(|_| spare.page_of(&[2; 8])).collect();
        needed.into_iter().for_each(|page| spare.put(page, 40));
        spare.release_unused();
        assert_eq!(len(), 37);
        let mut rounds = 0;
        while len() > 0 {
            spare.release_unused();
            rounds += 1;
        }
        assert!(rounds < 40, "{rounds} rounds");
    }
}
