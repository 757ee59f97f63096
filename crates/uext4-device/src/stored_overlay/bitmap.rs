//! Which blocks the store holds.
//!
//! # On disk
//! One bit for each block of the base, the lowest bit of a byte first. A bit that is set means that
//! reads of the block come from the store. Bits behind the last block have no meaning.
//!
//! # Invariants
//! - A bit is set in memory after the write of its block is complete, and on the store after that
//!   write is durable.
//! - A bit that is set stays set.
//!
//! # Locking
//! `state` is held for look-ups and copies, never over I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

use super::layout::{BLOCK_BYTES, Layout, PAGE_BLOCKS};
use crate::device::{Device, WriteRun};
use parking_lot::RwLock;

/// The bytes of a page as they are on the store.
type Bytes = [u8; BLOCK_BYTES as usize];

/// The bitmap of a store. Pages are read when they are needed.
pub(super) struct Bitmap {
    layout: Layout,
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    /// Pages that were read; `None` for one without a bit.
    pages: BTreeMap<u64, Option<Box<Page>>>,
    /// Pages with bits that are not on the store.
    unwritten: BTreeSet<u64>,
}

struct Page {
    /// Blocks that the store holds.
    held: Bytes,
    /// Of these, those whose bit is durable on the store.
    durable: Bytes,
}

/// Blocks in a row that the store all has, or all has not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) blocks: Range<u64>,
    pub(super) held: bool,
}

/// A page as it is to be written.
pub(super) struct PageImage {
    page: u64,
    bytes: Box<Bytes>,
}

impl Bitmap {
    pub(super) fn new(layout: Layout) -> Bitmap {
        Bitmap { layout, state: RwLock::default() }
    }

    /// Reads the pages of `blocks` that are not in memory.
    pub(super) fn load(&self, store: &dyn Device, blocks: &Range<u64>) -> io::Result<()> {
        for page in blocks.start / PAGE_BLOCKS..blocks.end.div_ceil(PAGE_BLOCKS) {
            if self.state.read().pages.contains_key(&page) {
                continue;
            }
            let read = read_page(store, self.layout, page)?;
            let has_bits = read.iter().any(|byte| *byte != 0);
            let read = has_bits.then(|| Box::new(Page { held: read, durable: read }));
            // Another thread may have read it meanwhile, and set bits since.
            self.state.write().pages.entry(page).or_insert(read);
        }
        Ok(())
    }

    /// The longest run of blocks of one kind from the start of `blocks`, which are in memory and
    /// not empty.
    pub(super) fn run(&self, blocks: &Range<u64>) -> Run {
        let state = self.state.read();
        let first = state.page(blocks.start / PAGE_BLOCKS);
        let held = first.is_some_and(|page| bit(&page.held, blocks.start % PAGE_BLOCKS));
        let end = state.same_until(blocks, held, |page| &page.held);
        Run { blocks: blocks.start..end, held }
    }

    /// Whether the store holds all of `blocks`, which are in memory.
    pub(super) fn holds(&self, blocks: &Range<u64>) -> bool {
        self.state.read().same_until(blocks, true, |page| &page.held) >= blocks.end
    }

    /// Whether the store would hold all of `blocks`, which are in memory, after a crash.
    pub(super) fn holds_durably(&self, blocks: &Range<u64>) -> bool {
        self.state.read().same_until(blocks, true, |page| &page.durable) >= blocks.end
    }

    /// Notes that the store holds `blocks`, which are in memory: their writes are complete.
    pub(super) fn set(&self, blocks: &Range<u64>) {
        let mut state = self.state.write();
        let State { pages, unwritten } = &mut *state;
        let mut at = blocks.start;
        while at < blocks.end {
            let (number, end) = (at / PAGE_BLOCKS, page_end(at).min(blocks.end));
            let page = pages.entry(number).or_default();
            let page = page.get_or_insert_with(|| Box::new(Page::empty()));
            for block in at..end {
                let at = block % PAGE_BLOCKS;
                page.held[(at / 8) as usize] |= 1 << (at % 8);
            }
            unwritten.insert(number);
            at = end;
        }
    }

    /// The pages with bits that are not on the store, as they are now.
    pub(super) fn take_unwritten(&self) -> Vec<PageImage> {
        let mut state = self.state.write();
        let State { pages, unwritten } = &mut *state;
        let taken = std::mem::take(unwritten).into_iter();
        let image = |page: u64| {
            let held = pages.get(&page)?.as_ref()?.held;
            Some(PageImage { page, bytes: Box::new(held) })
        };
        taken.filter_map(image).collect()
    }

    /// Writes pages.
    pub(super) fn write(&self, store: &dyn Device, pages: &[PageImage]) -> io::Result<()> {
        let bytes: Vec<[&[u8]; 1]> = pages.iter().map(|page| [&page.bytes[..]]).collect();
        let offsets = pages.iter().map(|page| self.layout.page_offset(page.page));
        let runs: Vec<WriteRun<'_>> =
            offsets.zip(&bytes).map(|(offset, bufs)| WriteRun { offset, bufs }).collect();
        store.write_many(&runs)
    }

    /// Notes that pages are durable on the store, or that they are still to be written.
    pub(super) fn finish(&self, pages: &[PageImage], is_durable: bool) {
        let mut state = self.state.write();
        for PageImage { page, bytes } in pages {
            if !is_durable {
                state.unwritten.insert(*page);
            } else if let Some(Some(page)) = state.pages.get_mut(page) {
                page.durable = **bytes;
            }
        }
    }
}

impl State {
    fn page(&self, page: u64) -> Option<&Page> {
        self.pages.get(&page)?.as_deref()
    }

    /// Where bits of one kind end in `blocks`.
    fn same_until(&self, blocks: &Range<u64>, held: bool, bits: fn(&Page) -> &Bytes) -> u64 {
        let mut at = blocks.start;
        while at < blocks.end {
            let end = page_end(at).min(blocks.end);
            let same = match self.page(at / PAGE_BLOCKS).map(bits) {
                Some(bits) => run_end(bits, at, end, held),
                None if held => at,
                None => end,
            };
            if same < end {
                return same;
            }
            at = end;
        }
        at
    }
}

impl Page {
    fn empty() -> Page {
        Page { held: [0; BLOCK_BYTES as usize], durable: [0; BLOCK_BYTES as usize] }
    }
}

fn bit(bytes: &Bytes, at: u64) -> bool {
    bytes[(at / 8) as usize] & 1 << (at % 8) != 0
}

/// The first block of the next page.
fn page_end(block: u64) -> u64 {
    (block / PAGE_BLOCKS + 1) * PAGE_BLOCKS
}

/// Where bits of one kind end between two blocks of a page.
fn run_end(bits: &Bytes, mut at: u64, end: u64, held: bool) -> u64 {
    let all = if held { 0xff } else { 0 };
    while at < end {
        let place = at % PAGE_BLOCKS;
        if place.is_multiple_of(8) && end - at >= 8 && bits[(place / 8) as usize] == all {
            at += 8;
        } else if bit(bits, place) == held {
            at += 1;
        } else {
            break;
        }
    }
    at
}

/// A page of the bitmap of a store, without the bits that have no meaning.
fn read_page(store: &dyn Device, layout: Layout, page: u64) -> io::Result<Bytes> {
    let mut bytes = [0; BLOCK_BYTES as usize];
    store.read_at(layout.page_offset(page), &mut bytes)?;
    let blocks = layout.page_blocks(page);
    for at in blocks.end - blocks.start..PAGE_BLOCKS {
        bytes[(at / 8) as usize] &= !(1 << (at % 8));
    }
    Ok(bytes)
}

/// The runs of blocks among `blocks` that a store holds, in ascending order; none crosses a page.
pub(super) fn held_runs(
    store: &dyn Device,
    layout: Layout,
    blocks: Range<u64>,
    visit: &mut dyn FnMut(Range<u64>) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = blocks.start;
    while at < blocks.end {
        let (bytes, end) = (read_page(store, layout, at / PAGE_BLOCKS)?, page_end(at));
        let end = end.min(blocks.end);
        while at < end {
            let held = bit(&bytes, at % PAGE_BLOCKS);
            let run = at..run_end(&bytes, at, end, held);
            at = run.end;
            if held {
                visit(run)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDevice;

    #[test]
    fn bits_are_written_read_and_kept() {
        // Two pages, the second of 3 blocks.
        let layout = Layout::new((PAGE_BLOCKS + 3) * BLOCK_BYTES).unwrap();
        let store = MemoryDevice::new(layout.store_len());
        let bitmap = Bitmap::new(layout);
        let all = 0..layout.blocks();
        bitmap.load(&store, &all).unwrap();
        assert_eq!(bitmap.run(&all), Run { blocks: all.clone(), held: false });
        bitmap.set(&(PAGE_BLOCKS - 2..PAGE_BLOCKS + 1));
        assert!(bitmap.holds(&(PAGE_BLOCKS - 2..PAGE_BLOCKS + 1)));
        assert!(!bitmap.holds_durably(&(PAGE_BLOCKS..PAGE_BLOCKS + 1)));

        let pages = bitmap.take_unwritten();
        assert_eq!(pages.len(), 2);
        bitmap.finish(&pages, false);
        let pages = bitmap.take_unwritten();
        bitmap.write(&store, &pages).unwrap();
        // A bit that is set between is not taken for durable.
        bitmap.set(&(0..1));
        bitmap.finish(&pages, true);
        assert!(bitmap.holds_durably(&(PAGE_BLOCKS..PAGE_BLOCKS + 1)));
        assert!(bitmap.holds(&(0..1)) && !bitmap.holds_durably(&(0..1)));
        assert_eq!(bitmap.take_unwritten().len(), 1);

        let again = Bitmap::new(layout);
        again.load(&store, &all).unwrap();
        let run = again.run(&all);
        assert_eq!(run, Run { blocks: 0..PAGE_BLOCKS - 2, held: false });
        let run = again.run(&(run.blocks.end..all.end));
        assert_eq!(run, Run { blocks: PAGE_BLOCKS - 2..PAGE_BLOCKS + 1, held: true });
    }

    #[test]
    fn bits_behind_the_last_block_have_no_meaning() {
        let layout = Layout::new(10 * BLOCK_BYTES).unwrap();
        let store = MemoryDevice::new(layout.store_len());
        store.write_at(layout.page_offset(0), &[0xff; BLOCK_BYTES as usize]).unwrap();
        let mut runs = Vec::new();
        held_runs(&store, layout, 0..10, &mut |run| {
            runs.push(run);
            Ok(())
        })
        .unwrap();
        assert!(runs.len() == 1 && runs[0] == (0..10), "{runs:?}");
    }
}
