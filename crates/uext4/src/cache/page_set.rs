//! Pages by block, optimised for a single page.
//!
//! What: a map. Most files are small, so a lone page is stored in the set itself. A tree node would
//! be the largest allocation of such a file besides the page.
//! Invariants: `lone` is `None` unless the tree is empty.

use super::Page;
use std::collections::BTreeMap;
use uext4_ondisk::FileBlock;

/// Pages by block.
#[derive(Debug, Default)]
pub(super) struct PageSet {
    lone: Option<(FileBlock, Page)>,
    tree: BTreeMap<FileBlock, Page>,
}

impl PageSet {
    pub(super) fn len(&self) -> usize {
        self.tree.len() + usize::from(self.lone.is_some())
    }

    pub(super) fn get(&self, at: FileBlock) -> Option<&Page> {
        match &self.lone {
            Some((there, page)) => (*there == at).then_some(page),
            None => self.tree.get(&at),
        }
    }

    pub(super) fn get_mut(&mut self, at: FileBlock) -> Option<&mut Page> {
        match &mut self.lone {
            Some((there, page)) => (*there == at).then_some(page),
            None => self.tree.get_mut(&at),
        }
    }

    /// Pages from `from` up to `end` (exclusive), ascending.
    pub(super) fn range(
        &self,
        from: FileBlock,
        end: FileBlock,
    ) -> impl DoubleEndedIterator<Item = (FileBlock, &Page)> {
        // A reversed range would panic.
        let end = end.max(from);
        let lone = self.lone.iter().filter(move |(at, _)| (from..end).contains(at));
        let others = (!self.tree.is_empty()).then(|| self.tree.range(from..end));
        let others = others.into_iter().flatten().map(|(&at, page)| (at, page));
        lone.map(|(at, page)| (*at, page)).chain(others)
    }

    /// Pages from `from` up to `end` (exclusive), ascending, for changing them.
    pub(super) fn range_mut(
        &mut self,
        from: FileBlock,
        end: FileBlock,
    ) -> impl Iterator<Item = (FileBlock, &mut Page)> {
        let end = end.max(from);
        let lone = self.lone.iter_mut().filter(move |(at, _)| (from..end).contains(at));
        let others = self.tree.range_mut(from..end).map(|(&at, page)| (at, page));
        lone.map(|(at, page)| (*at, page)).chain(others)
    }

    /// Inserts a page, replacing the one at `at` if there is one.
    pub(super) fn insert(&mut self, at: FileBlock, page: Page) -> &mut Page {
        match self.lone.take() {
            Some((there, other)) if there != at => _ = self.tree.insert(there, other),
            _ => {}
        }
        if self.tree.is_empty() {
            return &mut self.lone.insert((at, page)).1;
        }
        self.tree.entry(at).insert_entry(page).into_mut()
    }

    pub(super) fn remove(&mut self, at: FileBlock) -> Option<Page> {
        match self.lone.take_if(|(there, _)| *there == at) {
            Some((_, page)) => Some(page),
            None => self.tree.remove(&at),
        }
    }

    /// Removes the pages that `goes` selects and passes them to `take`.
    pub(super) fn extract(
        &mut self,
        mut goes: impl FnMut(&mut Page) -> bool,
        mut take: impl FnMut(Page),
    ) {
        if let Some((_, page)) = self.lone.take_if(|(_, page)| goes(page)) {
            take(page);
        }
        if !self.tree.is_empty() {
            self.tree.extract_if(.., |_, page| goes(page)).for_each(|(_, page)| take(page));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: none. A map of the standard library is the reference.
    #[test]
    fn a_set_is_a_map() {
        let mut set = PageSet::default();
        let mut model = BTreeMap::new();
        let mut x = 1_u64;
        for _ in 0..4_000 {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let (what, at, byte) = (x >> 60, FileBlock((x >> 40) as u32 % 5), (x >> 32) as u8);
            match what {
                0..5 => {
                    set.insert(at, Page::clean([byte].into()));
                    model.insert(at, byte);
                }
                5..14 => {
                    assert_eq!(set.remove(at).map(|page| page.data[0]), model.remove(&at));
                }
                _ => {
                    let mut taken = 0;
                    set.extract(|page| page.data[0] & 1 != byte & 1, |_| taken += 1);
                    let before = model.len();
                    model.retain(|_, there| *there & 1 == byte & 1);
                    assert_eq!(before - model.len(), taken);
                }
            }
            assert_eq!(set.len(), model.len());
            assert_eq!(set.get(at).map(|page| page.data[0]), model.get(&at).copied());
            assert_eq!(set.get_mut(at).map(|page| page.data[0]), model.get(&at).copied());
            for end in [FileBlock(0), FileBlock(3), FileBlock(9)] {
                let there: Vec<_> = set.range(at, end).map(|(at, p)| (at, p.data[0])).collect();
                let want: Vec<_> = model.range(at..end.max(at)).map(|(a, b)| (*a, *b)).collect();
                assert_eq!(there, want);
                let there: Vec<_> = set.range_mut(at, end).map(|(at, p)| (at, p.data[0])).collect();
                assert_eq!(there, want);
            }
        }
    }
}
