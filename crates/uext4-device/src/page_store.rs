//! Sparse pages in memory, shared by the memory and overlay devices.
//!
//! # What
//! A map from page number to page. A page that was never stored is absent. A closure of the caller
//! says what an absent page contains: zeroes, or the bytes of a lower device.
//!
//! # Invariants
//! - Shared chunks and pages are immutable. A snapshot clones the chunk pointers, and the next
//!   change on either side copies the chunk's page pointers and the one page it changes.
//!
//! # Locking
//! One reader-writer lock for each shard. A change inside one chunk (256 KiB, aligned) is atomic to
//! readers and to snapshots; a larger one is split at chunk boundaries. Only `snapshot` holds more
//! than one shard, in rising order. The closure of a partial first write to a page runs under the
//! shard's lock, so that two writers cannot both fill the page.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

/// Bytes in a page: the unit of allocation.
pub(crate) const PAGE_BYTES: usize = 4096;
const CHUNK_PAGES: usize = 64;
const CHUNK_BYTES: u64 = (CHUNK_PAGES * PAGE_BYTES) as u64;
const SHARDS: u64 = 128;
static ZEROES: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

type Page = [u8; PAGE_BYTES];

#[derive(Clone)]
struct Chunk {
    pages: [Option<Arc<Page>>; CHUNK_PAGES],
}

impl Chunk {
    fn empty() -> Arc<Chunk> {
        Arc::new(Chunk { pages: [const { None }; CHUNK_PAGES] })
    }
}

type Shard = HashMap<u64, Arc<Chunk>>;

/// The contents of an absent page at its first write.
pub(crate) enum Absent<'a> {
    /// Zeroes. Storing zeroes over an absent page stores nothing.
    Zeroes,
    /// The bytes that this closure puts into the page, given the page's offset in bytes.
    Filled(&'a dyn Fn(u64, &mut [u8]) -> io::Result<()>),
}

/// Sparse, copy-on-write, sharded pages.
pub(crate) struct PageStore {
    shards: Box<[RwLock<Shard>]>,
}

impl PageStore {
    pub(crate) fn new() -> PageStore {
        PageStore { shards: (0..SHARDS).map(|_| RwLock::new(Shard::new())).collect() }
    }

    /// A store that shares all pages until one side changes them. A concurrent change inside one
    /// chunk is in the snapshot as a whole or not at all.
    pub(crate) fn snapshot(&self) -> PageStore {
        let held: Vec<_> = self.shards.iter().map(|shard| shard.read()).collect();
        PageStore { shards: held.iter().map(|shard| RwLock::new((**shard).clone())).collect() }
    }

    /// Bytes of the stored pages, including shared ones.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let pages: usize = self
            .shards
            .iter()
            .map(|shard| {
                shard.read().values().map(|c| c.pages.iter().flatten().count()).sum::<usize>()
            })
            .sum();
        (pages * PAGE_BYTES) as u64
    }

    /// Fills `buf` from `offset`; `absent(offset, part)` serves each run of absent pages.
    pub(crate) fn read(
        &self,
        offset: u64,
        buf: &mut [u8],
        absent: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut rest = buf;
        for piece in chunk_pieces(offset, rest.len() as u64) {
            let (part, tail) = rest.split_at_mut((piece.end - piece.start) as usize);
            rest = tail;
            // The chunk's pointer is cloned, so that the copy and `absent` run without the lock.
            let chunk = self.shard(piece.start).read().get(&(piece.start / CHUNK_BYTES)).cloned();
            match chunk {
                None => absent(piece.start, part)?,
                Some(chunk) => read_chunk(&chunk, piece, part, &absent)?,
            }
        }
        Ok(())
    }

    /// Stores `data` at `offset`.
    pub(crate) fn write(&self, offset: u64, data: &[u8], absent: &Absent<'_>) -> io::Result<()> {
        let mut rest = data;
        for piece in chunk_pieces(offset, rest.len() as u64) {
            let (part, tail) = rest.split_at((piece.end - piece.start) as usize);
            rest = tail;
            let mut shard = self.shard(piece.start).write();
            let number = piece.start / CHUNK_BYTES;
            if matches!(absent, Absent::Zeroes) && !shard.contains_key(&number) && is_zero(part) {
                continue;
            }
            let chunk = Arc::make_mut(shard.entry(number).or_insert_with(Chunk::empty));
            write_chunk(chunk, piece.start, part, absent)?;
        }
        Ok(())
    }

    /// Makes `range` (bytes) absent. Whole pages are dropped, the edges are zeroed.
    pub(crate) fn erase(&self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = range.start / CHUNK_BYTES;
        let last = (range.end - 1) / CHUNK_BYTES;
        // A large range is walked by the stored chunks, a small one by its chunk numbers.
        if last - first > SHARDS {
            for shard in &self.shards {
                shard.write().retain(|number, chunk| erase_in_chunk(*number, chunk, &range));
            }
            return;
        }
        for number in first..=last {
            let mut shard = self.shard(number * CHUNK_BYTES).write();
            if let Some(chunk) = shard.get_mut(&number)
                && !erase_in_chunk(number, chunk, &range)
            {
                shard.remove(&number);
            }
        }
    }

    /// Calls `visit(offset, page)` for each stored page, in rising order of offset.
    pub(crate) fn for_each_page(
        &self,
        mut visit: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut chunks: Vec<(u64, Arc<Chunk>)> = Vec::new();
        for shard in &self.shards {
            chunks.extend(shard.read().iter().map(|(number, chunk)| (*number, Arc::clone(chunk))));
        }
        chunks.sort_unstable_by_key(|(number, _)| *number);
        for (number, chunk) in chunks {
            for (index, page) in chunk.pages.iter().enumerate() {
                if let Some(page) = page {
                    visit(number * CHUNK_BYTES + (index * PAGE_BYTES) as u64, &page[..])?;
                }
            }
        }
        Ok(())
    }

    fn shard(&self, offset: u64) -> &RwLock<Shard> {
        &self.shards[(offset / CHUNK_BYTES % SHARDS) as usize]
    }
}

fn read_chunk(
    chunk: &Chunk,
    piece: Range<u64>,
    buf: &mut [u8],
    absent: &impl Fn(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    // The run of absent pages that ends at the current position, as a range inside `buf`.
    let mut run = 0..0;
    let mut done = 0;
    for (page, within) in page_pieces(piece.start, buf.len()) {
        let count = within.len();
        match &chunk.pages[page] {
            None => run.end = done + count,
            Some(bytes) => {
                if !run.is_empty() {
                    absent(piece.start + run.start as u64, &mut buf[run])?;
                }
                buf[done..done + count].copy_from_slice(&bytes[within]);
                run = done + count..done + count;
            }
        }
        done += count;
    }
    if run.is_empty() { Ok(()) } else { absent(piece.start + run.start as u64, &mut buf[run]) }
}

fn write_chunk(chunk: &mut Chunk, start: u64, data: &[u8], absent: &Absent<'_>) -> io::Result<()> {
    let mut done = 0;
    for (page, within) in page_pieces(start, data.len()) {
        let bytes = &data[done..done + within.len()];
        let page_offset = start + done as u64 - within.start as u64;
        done += within.len();
        let slot = &mut chunk.pages[page];
        if slot.is_none() {
            if matches!(absent, Absent::Zeroes) && is_zero(bytes) {
                continue;
            }
            let mut fresh = [0; PAGE_BYTES];
            if let Absent::Filled(fill) = absent
                && within.len() < PAGE_BYTES
            {
                fill(page_offset, &mut fresh)?;
            }
            *slot = Some(Arc::new(fresh));
        }
        if let Some(stored) = slot {
            Arc::make_mut(stored)[within].copy_from_slice(bytes);
        }
    }
    Ok(())
}

/// Erases the part of `range` inside a chunk. False if the chunk has no page left.
fn erase_in_chunk(number: u64, chunk: &mut Arc<Chunk>, range: &Range<u64>) -> bool {
    let chunk_start = number * CHUNK_BYTES;
    let start = range.start.max(chunk_start);
    let end = range.end.min(chunk_start + CHUNK_BYTES);
    if start >= end {
        return true;
    }
    let chunk = Arc::make_mut(chunk);
    for (page, within) in page_pieces(start, (end - start) as usize) {
        let slot = &mut chunk.pages[page];
        if within.len() == PAGE_BYTES {
            *slot = None;
        } else if let Some(bytes) = slot {
            Arc::make_mut(bytes)[within].fill(0);
        }
    }
    chunk.pages.iter().any(Option::is_some)
}

/// Splits a range at chunk boundaries.
fn chunk_pieces(offset: u64, len: u64) -> impl Iterator<Item = Range<u64>> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let start = at;
        at = end.min((start / CHUNK_BYTES + 1) * CHUNK_BYTES);
        Some(start..at)
    })
}

/// Splits a range inside one chunk at page boundaries: (page in the chunk, bytes in that page).
fn page_pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut at = (offset % CHUNK_BYTES) as usize;
    let end = at + len;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % PAGE_BYTES;
        let count = (PAGE_BYTES - within).min(end - at);
        let piece = (at / PAGE_BYTES, within..within + count);
        at += count;
        Some(piece)
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(PAGE_BYTES).all(|chunk| chunk == &ZEROES[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zero(_: u64, part: &mut [u8]) -> io::Result<()> {
        part.fill(0);
        Ok(())
    }

    #[test]
    fn pieces_meet_and_stay_inside_their_unit() {
        let pieces: Vec<_> = chunk_pieces(CHUNK_BYTES - 1, CHUNK_BYTES + 2).collect();
        assert_eq!(
            pieces,
            [
                CHUNK_BYTES - 1..CHUNK_BYTES,
                CHUNK_BYTES..2 * CHUNK_BYTES,
                2 * CHUNK_BYTES..2 * CHUNK_BYTES + 1
            ]
        );
        let pages: Vec<_> = page_pieces(CHUNK_BYTES + 4095, 4098).collect();
        assert_eq!(pages, [(0, 4095..4096), (1, 0..4096), (2, 0..1)]);
    }

    #[test]
    fn absent_pages_are_served_in_runs() {
        let store = PageStore::new();
        store.write(2 * 4096, &[7; 4096], &Absent::Zeroes).unwrap();
        let calls = parking_lot::Mutex::new(Vec::new());
        let mut buf = vec![1; 5 * 4096];
        store
            .read(0, &mut buf, |offset, part| {
                calls.lock().push((offset, part.len()));
                zero(offset, part)
            })
            .unwrap();
        assert_eq!(*calls.lock(), [(0, 8192), (3 * 4096, 8192)]);
        assert_eq!(buf[8191..8193], [0, 7]);
        assert_eq!(buf[3 * 4096 - 1..3 * 4096 + 1], [7, 0]);
    }

    #[test]
    fn partial_first_write_fills_the_page() {
        let store = PageStore::new();
        let fill = |offset: u64, page: &mut [u8]| {
            page.fill((offset / 4096) as u8);
            Ok(())
        };
        store.write(3 * 4096 + 10, &[9; 5], &Absent::Filled(&fill)).unwrap();
        let mut buf = [0; 16];
        store.read(3 * 4096, &mut buf, zero).unwrap();
        assert_eq!(buf, [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 9, 9, 9, 9, 9, 3]);
    }

    #[test]
    fn erase_drops_pages_and_zeroes_edges() {
        for far in [0, 1000 * CHUNK_BYTES] {
            let store = PageStore::new();
            store.write(0, &[5; 4 * 4096], &Absent::Zeroes).unwrap();
            store.write(far + CHUNK_BYTES, &[6; 8192], &Absent::Zeroes).unwrap();
            store.erase(100..far + CHUNK_BYTES + 4096 + 1);
            assert_eq!(store.stored_bytes(), 2 * 4096, "far={far}");
            let mut buf = [1; 200];
            store.read(0, &mut buf, zero).unwrap();
            assert!(buf[..100].iter().all(|b| *b == 5) && buf[100..].iter().all(|b| *b == 0));
            let mut edge = [1; 2];
            store.read(far + CHUNK_BYTES + 4096, &mut edge, zero).unwrap();
            assert_eq!(edge, [0, 6]);
        }
    }
}
