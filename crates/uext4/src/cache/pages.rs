//! Pages of one file in memory.
//!
//! What: a page is one block of file data. Its bytes are in an `Arc`. Writeback and readers clone
//! it and use it without the lock, and a writer that comes meanwhile copies the page first.
//! Invariants: a page that is `dirty` or under `writeback` is never evicted. A `reserved` page has
//! no block on the device yet and holds a reservation of one. A `converting` page covers an
//! unwritten extent, whose conversion may need room in the extent tree.

use super::dirty::{DirtyInodes, DirtyMark};
use super::page_set::PageSet;
use super::spare::SparePages;
use super::throttle::Throttle;
use crate::injected_faults::Fault;
use crate::invariants::Invariants;
use crate::sync::state::{AtomicUsize, Ordering};
use std::sync::Arc;
use uext4_ondisk::FileBlock;

/// A page's block and its bytes.
pub type PageImage = (FileBlock, Arc<[u8]>);

/// One block of file data.
#[derive(Debug)]
pub struct Page {
    /// The bytes of one block.
    pub data: Arc<[u8]>,
    /// Changed since it was last passed to the device.
    pub dirty: bool,
    /// Being written to the device, or waiting for its mapping after that.
    pub writeback: bool,
    /// Holds a reservation of a block.
    pub reserved: bool,
    /// Covers an unwritten extent.
    pub converting: bool,
    /// Used since the clock hand last passed.
    pub referenced: bool,
}

impl Page {
    /// A page as read from the device.
    #[must_use]
    pub fn clean(data: Arc<[u8]>) -> Self {
        Self {
            data,
            dirty: false,
            writeback: false,
            reserved: false,
            converting: false,
            referenced: true,
        }
    }

    fn is_evictable(&self) -> bool {
        !self.dirty && !self.writeback
    }
}

/// Pages of one file, by block.
#[derive(Debug)]
pub struct PageMap {
    pages: PageSet,
    dirty: usize,
    mark: Arc<DirtyMark>,
    clock: FileBlock,
}

impl PageMap {
    /// An empty map for the inode with this mark, which is set whenever a page becomes dirty.
    #[must_use]
    pub fn new(mark: Arc<DirtyMark>) -> Self {
        Self { pages: PageSet::default(), dirty: 0, mark, clock: FileBlock(0) }
    }

    /// Number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether the map is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.len() == 0
    }

    /// Number of dirty pages.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.dirty
    }

    /// The page, marked as used.
    pub fn get(&mut self, at: FileBlock) -> Option<&mut Page> {
        let page = self.pages.get_mut(at)?;
        page.referenced = true;
        Some(page)
    }

    /// The page, without marking it as used.
    #[must_use]
    pub fn peek(&self, at: FileBlock) -> Option<&Page> {
        self.pages.get(at)
    }

    /// Pages from `from` up to `end` (exclusive), ascending.
    pub fn range(
        &self,
        from: FileBlock,
        end: FileBlock,
    ) -> impl DoubleEndedIterator<Item = (FileBlock, &Page)> {
        self.pages.range(from, end)
    }

    /// Pages from `from` up to `end` (exclusive), ascending, for changing flags other than `dirty`.
    pub fn range_mut(
        &mut self,
        from: FileBlock,
        end: FileBlock,
    ) -> impl Iterator<Item = (FileBlock, &mut Page)> {
        self.pages.range_mut(from, end)
    }

    /// Inserts a clean page, unless the block has one already.
    pub fn insert_clean(&mut self, at: FileBlock, data: Arc<[u8]>) {
        if self.pages.get(at).is_none() {
            self.pages.insert(at, Page::clean(data));
            self.mark.budget().pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Inserts data that the journal has taken, replacing a clean page if there is one.
    pub fn put_journaled(&mut self, at: FileBlock, data: Arc<[u8]>) {
        match self.pages.get(at) {
            None => _ = self.mark.budget().pages.fetch_add(1, Ordering::Relaxed),
            Some(there) => {
                let clean = there.is_evictable();
                self.invariants().check(clean, "a page with a journaled image is clean");
            }
        }
        self.pages.insert(at, Page::clean(data));
    }

    /// Inserts a new dirty page. The block must have none.
    pub fn insert_dirty(&mut self, at: FileBlock, data: Arc<[u8]>) -> &mut Page {
        let page = Page { dirty: true, referenced: false, ..Page::clean(data) };
        let page = self.pages.insert(at, page);
        self.mark.budget().pages.fetch_add(1, Ordering::Relaxed);
        note_dirty(&mut self.dirty, &self.mark);
        page
    }

    /// Changes the page's bytes through `change` and marks it dirty. The page must be there.
    pub fn modify(&mut self, at: FileBlock, change: impl FnOnce(&mut [u8])) -> &mut Page {
        let page = self.pages.get_mut(at).expect("a page is inserted before it is modified");
        change(Arc::make_mut(&mut page.data));
        page.referenced = true;
        if !page.dirty {
            page.dirty = true;
            note_dirty(&mut self.dirty, &self.mark);
        }
        page
    }

    /// Takes at most `most` dirty pages from `from` up to `end` (exclusive) for writing, ascending.
    /// True if there were more.
    pub fn begin_writeback(
        &mut self,
        from: FileBlock,
        end: FileBlock,
        most: usize,
    ) -> (Vec<PageImage>, bool) {
        let mut taken = Vec::new();
        let mut more = false;
        for (at, page) in self.pages.range_mut(from, end).filter(|(_, page)| page.dirty) {
            if taken.len() == most {
                more = true;
                break;
            }
            page.dirty = false;
            page.writeback = true;
            taken.push((at, Arc::clone(&page.data)));
        }
        self.dirty -= taken.len();
        self.mark.budget().dirty.fetch_sub(taken.len(), Ordering::Relaxed);
        self.mark.budget().writeback.fetch_add(taken.len(), Ordering::Relaxed);
        (taken, more)
    }

    /// Ends the writeback of a page, which is on the device and mapped (`done`) or becomes dirty
    /// again. Returns whether it no longer holds a reservation of a block, and whether it no longer
    /// covers an unwritten extent.
    pub fn end_writeback(&mut self, at: FileBlock, done: bool) -> (bool, bool) {
        let page = self.pages.get_mut(at).filter(|page| page.writeback);
        let Some(page) = page else {
            self.mark.budget().invariants.broken("writeback ends of a page that is under it");
            return (false, false);
        };
        page.writeback = Fault::EndlessWriteback.is_injected();
        self.mark.budget().writeback.fetch_sub(1, Ordering::Relaxed);
        if done {
            return (std::mem::take(&mut page.reserved), std::mem::take(&mut page.converting));
        }
        if !page.dirty {
            page.dirty = true;
            note_dirty(&mut self.dirty, &self.mark);
        }
        (false, false)
    }

    fn invariants(&self) -> &Invariants {
        &self.mark.budget().invariants
    }

    /// Drops the pages from `from` up to `end` (exclusive), dirty or not. None may be under
    /// writeback. Calls `reserved` with those that held a reservation of a block.
    pub fn discard(
        &mut self,
        from: FileBlock,
        end: FileBlock,
        reserved: &mut dyn FnMut(FileBlock),
    ) {
        let gone: Vec<FileBlock> = self.range(from, end).map(|(at, _)| at).collect();
        for at in gone {
            let Some(page) = self.pages.remove(at) else { continue };
            self.invariants().check(!page.writeback, "a page under writeback is not discarded");
            if page.reserved {
                reserved(at);
            }
            let budget = self.mark.budget();
            budget.pages.fetch_sub(1, Ordering::Relaxed);
            if page.dirty {
                self.dirty -= 1;
                budget.dirty.fetch_sub(1, Ordering::Relaxed);
            }
            budget.keep_memory(page.data);
        }
    }

    /// Evicts up to `count` clean pages that were not used lately. Returns their number.
    pub fn evict(&mut self, count: usize) -> usize {
        if self.pages.len() <= count {
            return self.evict_all_unused();
        }
        let mut looks = self.pages.len().min(count.saturating_mul(4));
        let mut victims = Vec::new();
        let hand = self.clock;
        let (later, earlier) = {
            let numbers = |from, end, count| -> Vec<FileBlock> {
                self.pages.range(from, end).map(|(at, _)| at).take(count).collect()
            };
            let later = numbers(hand, FileBlock::END, looks);
            let earlier = numbers(FileBlock(0), hand, looks - later.len());
            (later, earlier)
        };
        for at in later.into_iter().chain(earlier) {
            if victims.len() == count || looks == 0 {
                break;
            }
            looks -= 1;
            self.clock = at.plus(1);
            let Some(page) = self.pages.get_mut(at) else { continue };
            if page.is_evictable() && !std::mem::take(&mut page.referenced) {
                victims.push(at);
            }
        }
        for &at in &victims {
            if let Some(page) = self.pages.remove(at) {
                self.mark.budget().keep_memory(page.data);
            }
        }
        self.mark.budget().pages.fetch_sub(victims.len(), Ordering::Relaxed);
        victims.len()
    }

    /// Evicts all clean, unused pages of a small file without collecting their numbers.
    fn evict_all_unused(&mut self) -> usize {
        let budget = self.mark.budget();
        let mut evicted = 0;
        self.pages.extract(
            |page| page.is_evictable() && !std::mem::take(&mut page.referenced),
            |page| {
                budget.keep_memory(page.data);
                evicted += 1;
            },
        );
        if evicted > 0 {
            budget.pages.fetch_sub(evicted, Ordering::Relaxed);
        }
        evicted
    }
}

/// Counts one more dirty page.
fn note_dirty(dirty: &mut usize, mark: &DirtyMark) {
    *dirty += 1;
    mark.budget().dirty.fetch_add(1, Ordering::Relaxed);
    mark.set();
}

impl Drop for PageMap {
    fn drop(&mut self) {
        let budget = self.mark.budget();
        budget.pages.fetch_sub(self.pages.len(), Ordering::Relaxed);
        budget.dirty.fetch_sub(self.dirty, Ordering::Relaxed);
        self.pages.extract(|_| true, |page| budget.keep_memory(page.data));
    }
}

/// The pages of all files together, and their limit.
#[derive(Debug)]
pub struct PageBudget {
    pages: AtomicUsize,
    dirty: AtomicUsize,
    writeback: AtomicUsize,
    pages_max: usize,
    dirty_inodes: DirtyInodes,
    throttle: Throttle,
    /// Memory for pages.
    pub(crate) spare: SparePages,
    invariants: Arc<Invariants>,
}

impl PageBudget {
    /// A budget of `bytes` in pages of `block_size` bytes.
    #[must_use]
    pub fn new(bytes: u64, block_size: u32, invariants: &Arc<Invariants>) -> Self {
        let pages = usize::try_from(bytes / u64::from(block_size)).unwrap_or(usize::MAX).max(64);
        Self {
            pages: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            writeback: AtomicUsize::new(0),
            pages_max: pages,
            dirty_inodes: DirtyInodes::default(),
            throttle: Throttle::new(pages / 32),
            spare: SparePages::new(),
            invariants: Arc::clone(invariants),
        }
    }

    /// Inodes with something to write back.
    #[must_use]
    pub fn dirty_inodes(&self) -> &DirtyInodes {
        &self.dirty_inodes
    }

    /// Pages in memory.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Dirty pages in memory.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Keeps the memory of a dropped page for the next one, within the budget.
    fn keep_memory(&self, data: Arc<[u8]>) {
        // During eviction the budget is used up, so a sixteenth of it is kept all the same.
        let most = self.pages_max.saturating_sub(self.pages()).max(self.pages_max / 16);
        self.spare.put(data, most);
    }

    /// Pages above the budget.
    #[must_use]
    pub fn excess(&self) -> usize {
        if Fault::HoardedPages.is_injected() {
            return 0;
        }
        self.pages().saturating_sub(self.pages_max)
    }

    /// Pages above fifteen sixteenths of the budget: the number to evict once the budget is
    /// exceeded.
    #[must_use]
    pub fn surplus(&self) -> usize {
        self.pages().saturating_sub(self.pages_max - self.pages_max / 16)
    }

    /// The throttle of writers.
    #[must_use]
    pub fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Pages above which writeback starts: a quarter of the budget.
    #[must_use]
    pub fn background_limit(&self) -> usize {
        self.pages_max / 4
    }

    /// Pages, dirty or under writeback, at which writers wait: half of the budget.
    #[must_use]
    pub fn hard_limit(&self) -> usize {
        self.pages_max / 2
    }

    /// Most pages that one writeback batch takes, so that waiting threads see progress.
    #[must_use]
    pub fn batch_pages(&self) -> usize {
        (self.pages_max / 8).clamp(64, 2048)
    }

    /// Pages that are dirty or under writeback, so that they cannot be evicted.
    #[must_use]
    pub fn unclean(&self) -> usize {
        self.dirty() + self.writeback.load(Ordering::Relaxed)
    }

    /// Whether background writeback is due.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.dirty() > self.background_limit()
    }

    /// Number of pages that must be cleaned for each page that becomes dirty now: 0 up to the
    /// background limit, 2 at the hard limit.
    #[must_use]
    pub fn weight(&self) -> f64 {
        let over = self.unclean().saturating_sub(self.background_limit());
        let range = self.hard_limit() - self.background_limit();
        2.0 * (over as f64 / range as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> PageMap {
        let budget = Arc::new(PageBudget::new(64 * 4, 4, &Arc::default()));
        PageMap::new(Arc::new(DirtyMark::new(uext4_ondisk::Ino(12), budget)))
    }

    #[test]
    fn a_page_changed_under_writeback_is_copied_and_stays_dirty() {
        let mut pages = map();
        pages.insert_clean(FileBlock(3), vec![0; 4].into());
        pages.modify(FileBlock(3), |bytes| bytes[0] = 1).reserved = true;
        let (taken, more) = pages.begin_writeback(FileBlock(0), FileBlock::END, 1);
        let [(FileBlock(3), image)] = &taken[..] else { panic!("{taken:?}") };
        assert!(!more && pages.begin_writeback(FileBlock(0), FileBlock::END, 1).0.is_empty());
        pages.modify(FileBlock(3), |bytes| bytes[0] = 2);
        assert_eq!((image[0], pages.dirty()), (1, 1));
        pages.end_writeback(FileBlock(3), true);
        let page = pages.peek(FileBlock(3)).unwrap();
        assert!(page.dirty && !page.reserved && page.data[0] == 2);
    }

    #[test]
    fn eviction_spares_dirty_and_used_pages() {
        let mut pages = map();
        for at in 0..8 {
            pages.insert_clean(FileBlock(at), vec![0; 4].into());
        }
        pages.modify(FileBlock(0), |bytes| bytes[0] = 1);
        assert_eq!(pages.evict(8), 0, "every page was used since the last pass");
        pages.get(FileBlock(1));
        assert_eq!(pages.evict(8), 6);
        assert!(pages.peek(FileBlock(0)).is_some() && pages.peek(FileBlock(1)).is_some());
    }
}
