//! Memory of pages that were evicted, for those that come next.
//!
//! What: eviction takes some thousand pages at a time, and as many come after it. Their memory goes
//! from the one to the other here rather than through the allocator, which would return it to the
//! kernel and have it zeroed again, page by page.
//! Invariants: nobody else refers to what is kept. Who takes a page writes all of it.
//! Locking: a leaf, which who takes a page only tries: it can be had from the allocator, too.

use crate::sync::{LockRank, Mutex};
use std::sync::Arc;

/// Pages without content.
#[derive(Debug)]
pub(super) struct SparePages {
    pages: Mutex<Vec<Arc<[u8]>>>,
    /// Most pages that are kept.
    most: usize,
}

impl SparePages {
    pub(super) fn new(most: usize) -> Self {
        Self { pages: Mutex::new(LockRank::Leaf, Vec::new()), most }
    }

    /// Keeps a page, unless somebody refers to it or there are enough.
    pub(super) fn put(&self, mut page: Arc<[u8]>) {
        if Arc::get_mut(&mut page).is_some() {
            let mut pages = self.pages.lock();
            if pages.len() < self.most {
                pages.push(page);
            }
        }
    }

    /// A page with these bytes.
    pub(super) fn page_of(&self, bytes: &[u8]) -> Arc<[u8]> {
        let spare = self.pages.try_lock().and_then(|mut pages| pages.pop());
        if let Some(mut page) = spare
            && let Some(room) = Arc::get_mut(&mut page)
            && room.len() == bytes.len()
        {
            room.copy_from_slice(bytes);
            return page;
        }
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a page that somebody still reads is put back, and pages of another size are.
    #[test]
    fn memory_is_used_again_when_nobody_refers_to_it() {
        let spare = SparePages::new(2);
        let first: Arc<[u8]> = [1; 8].into();
        let (place, reader) = (first.as_ptr(), Arc::clone(&first));
        spare.put(first);
        assert_ne!(spare.page_of(&[2; 8]).as_ptr(), place, "somebody reads it");
        spare.put(reader);
        let page = spare.page_of(&[3; 8]);
        assert_eq!((&page[..], page.as_ptr()), (&[3; 8][..], place));
        spare.put(page);
        assert_eq!(&spare.page_of(&[4; 4])[..], [4; 4]);
        (0..5).for_each(|_| spare.put([5; 8].into()));
        assert_eq!(spare.pages.lock().len(), 2);
    }
}
