//! Memory of pages that were evicted, for those that come next.
//!
//! What: pages that are evicted, or whose file is cut or gone, leave their memory here for those
//! that come next, rather than with the allocator. There smaller things would come to lie in it, so
//! that the next pages took new memory: a process whose pages come and go all day would grow. What
//! nobody has needed for a while goes back to the allocator, little by little.
//! Invariants: nobody else refers to what is kept. A taker writes all of a page. Pages in use and
//! pages kept are together no more than the budget and a sixteenth.
//! Locking: a leaf, which those who take and leave pages only try: there is the allocator, too.

use crate::sync::{LockRank, Mutex};
use std::sync::Arc;

/// One in so many pages that nobody needs goes at a time.
const RELEASED_SHARE: usize = 4;

/// Pages without content.
#[derive(Debug)]
pub(super) struct SparePages(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    pages: Vec<Arc<[u8]>>,
    /// How few there were since this was last looked at.
    fewest: usize,
}

impl SparePages {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LockRank::Leaf, Kept::default()))
    }

    /// Keeps a page, unless somebody refers to it or there are `most`.
    pub(super) fn put(&self, mut page: Arc<[u8]>, most: usize) {
        if Arc::get_mut(&mut page).is_some()
            && let Some(mut kept) = self.0.try_lock()
            && kept.pages.len() < most
        {
            kept.pages.push(page);
        }
    }

    /// A page of zeroes.
    pub(super) fn zeroes(&self, len: usize) -> Arc<[u8]> {
        let spare = self.0.try_lock().and_then(|mut kept| kept.take());
        if let Some(mut page) = spare
            && let Some(room) = Arc::get_mut(&mut page)
            && room.len() == len
        {
            room.fill(0);
            return page;
        }
        std::iter::repeat_n(0, len).collect()
    }

    /// A page with these bytes.
    pub(super) fn page_of(&self, bytes: &[u8]) -> Arc<[u8]> {
        let spare = self.0.try_lock().and_then(|mut kept| kept.take());
        if let Some(mut page) = spare
            && let Some(room) = Arc::get_mut(&mut page)
            && room.len() == bytes.len()
        {
            room.copy_from_slice(bytes);
            return page;
        }
        bytes.into()
    }

    /// Gives a part of what nobody has needed since the last call back to the allocator.
    pub(super) fn release_unused(&self) {
        let unused: Vec<Arc<[u8]>> = {
            let mut kept = self.0.lock();
            let count = kept.fewest.div_ceil(RELEASED_SHARE);
            kept.fewest = kept.pages.len() - count;
            kept.pages.drain(..count).collect()
        };
        drop(unused);
    }
}

impl Kept {
    fn take(&mut self) -> Option<Arc<[u8]>> {
        let page = self.pages.pop();
        self.fewest = self.fewest.min(self.pages.len());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a page that somebody still reads is put back, and pages of another size are.
    #[test]
    fn memory_is_used_again_when_nobody_refers_to_it() {
        let spare = SparePages::new();
        let first: Arc<[u8]> = [1; 8].into();
        let (place, reader) = (first.as_ptr(), Arc::clone(&first));
        spare.put(first, 2);
        assert_ne!(spare.page_of(&[2; 8]).as_ptr(), place, "somebody reads it");
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

    /// Fault model: memory that is needed now and then is given back, or what nobody needs is kept.
    #[test]
    fn what_nobody_needs_is_given_back_little_by_little() {
        let spare = SparePages::new();
        let len = || spare.0.lock().pages.len();
        (0..40).for_each(|_| spare.put([1; 8].into(), 40));
        spare.release_unused();
        assert_eq!(len(), 40, "they have just come");
        // Thirty were needed, ten were not.
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
