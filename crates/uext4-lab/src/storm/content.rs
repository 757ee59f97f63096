//! What blocks of the load hold, and whether an image holds them after it.
//!
//! What: each sector of a block names the thread that wrote it, the place, and the number of the
//! write among those of its thread. The places of a thread follow from its number, so that what an
//! image must hold follows from how many writes each thread made.
//! Invariants: a block holds one write whole. With a file for each thread that is the last one of
//! the thread there; with one file for all it is the last one there of some thread. Places that
//! nobody wrote to hold what they did before.

use std::collections::HashMap;

use crate::bench::stamp;
use crate::error::{Error, Result};
use crate::storm::storm_shape::{BLOCK, StormKind, StormShape};
use crate::tree::Random;

/// Number of the write that laid the shared file out.
pub(crate) const LAID_OUT: u64 = u64::MAX;
/// Files and places of each that are read back; of files there are thousands.
const FILES_SAMPLED: u32 = 64;
const BLOCKS_SAMPLED: u32 = 16;

/// The places that a thread writes to, one after the other: each block once, in random order, then
/// again in another, as fio draws them. Appends come in order, and from the begin again.
pub(crate) struct Places {
    random: Random,
    order: Vec<u32>,
    next: usize,
    in_order: bool,
}

impl Places {
    pub(crate) fn new(shape: &StormShape, thread: u32) -> Self {
        let seed = 0x7565_7874_3400_0000 ^ (u64::from(thread) << 8);
        let order = (0..shape.blocks()).collect();
        let mut places = Self {
            random: Random(seed),
            order,
            next: 0,
            in_order: shape.kind == StormKind::Append,
        };
        places.shuffle();
        places
    }

    fn shuffle(&mut self) {
        if self.in_order {
            return;
        }
        for last in (1..self.order.len()).rev() {
            let other = self.random.below(last as u64 + 1) as usize;
            self.order.swap(last, other);
        }
    }

    /// Number of the next block.
    pub(crate) fn next(&mut self) -> u32 {
        if self.next == self.order.len() {
            self.shuffle();
            self.next = 0;
        }
        self.next += 1;
        self.order[self.next - 1]
    }
}

/// Names a write in every sector of its block; the rest of the block stays as it is.
pub(crate) fn stamp(data: &mut [u8], thread: u32, block: u32, write: u64) {
    stamp::put_all(data, |sector| [thread.into(), u64::from(block) << 16 | sector, write]);
}

/// The thread and number of the write that a block holds whole.
fn read_stamp(data: &[u8], block: u32) -> Option<(u32, u64)> {
    let mut found = None;
    for (sector, [thread, place, write]) in stamp::get_all(data) {
        let here = (u32::try_from(thread).ok()?, write);
        if place != (u64::from(block) << 16) | sector || found.is_some_and(|seen| seen != here) {
            return None;
        }
        found = Some(here);
    }
    found
}

/// Reads a block back: file, number of the block, where to.
pub(crate) type ReadBlock<'a> = dyn FnMut(u32, u32, &mut [u8]) -> Result<()> + 'a;

/// Compares a sample of the files with what `writes` writes of each thread must have left.
///
/// # Errors
/// The first block that is not as it must be.
pub(crate) fn check(shape: &StormShape, writes: &[u64], read: &mut ReadBlock<'_>) -> Result<()> {
    let mut data = vec![0; BLOCK];
    let shared = shape.kind == StormKind::Shared;
    let step = shape.files().div_ceil(FILES_SAMPLED).max(1);
    for file in (0..shape.files()).step_by(step as usize) {
        let last = last_writes(shape, file, writes);
        let step = if shared { 1 } else { shape.blocks().div_ceil(BLOCKS_SAMPLED).max(1) };
        // A sample of all places, and of those that were written if those are few.
        let is_there = |block: &u32| shape.kind != StormKind::Append || last.contains_key(block);
        let sampled = (0..shape.blocks()).step_by(step as usize).filter(is_there);
        let written = last.keys().copied().take(BLOCKS_SAMPLED as usize);
        for block in sampled.chain(written) {
            read(file, block, &mut data)?;
            let wrong = |what: &str| {
                let name = shape.name(file);
                Err(Error::new(format!("content: {name}, block {block}: {what}")))
            };
            let Some(allowed) = last.get(&block) else {
                let expected = if shared { Some((0, LAID_OUT)) } else { None };
                if read_stamp(&data, block) != expected
                    || (expected.is_none() && data.iter().any(|&byte| byte != 0))
                {
                    return wrong("changed though nobody wrote to it");
                }
                continue;
            };
            match read_stamp(&data, block) {
                None => return wrong("is no whole write"),
                Some(found) if !allowed.contains(&found) => {
                    return wrong(&format!("has write {} of thread {}", found.1, found.0));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}

/// For each block of a file that was written: the last write there of each thread.
fn last_writes(shape: &StormShape, file: u32, writes: &[u64]) -> HashMap<u32, Vec<(u32, u64)>> {
    let mut last: HashMap<u32, Vec<(u32, u64)>> = HashMap::new();
    for (thread, &count) in (0..shape.threads).zip(writes) {
        if shape.file_of(thread) != file {
            continue;
        }
        let mut places = Places::new(shape, thread);
        let mut own = HashMap::new();
        for write in 0..count {
            own.insert(places.next(), write);
        }
        for (block, write) in own {
            last.entry(block).or_default().push((thread, write));
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(kind: StormKind) -> StormShape {
        StormShape { kind, threads: 2, journal_mib: 4, file_bytes: 8 * BLOCK as u64 }
    }

    /// What an image holds after `counts` writes of each thread, thread after thread.
    fn image(shape: &StormShape, counts: &[u64]) -> HashMap<(u32, u32), Vec<u8>> {
        let mut blocks = HashMap::new();
        for file in 0..shape.files() {
            for block in 0..shape.blocks() {
                let mut data = vec![0; BLOCK];
                if shape.kind == StormKind::Shared {
                    stamp(&mut data, 0, block, LAID_OUT);
                }
                blocks.insert((file, block), data);
            }
        }
        for (thread, &count) in (0..shape.threads).zip(counts) {
            let mut places = Places::new(shape, thread);
            for write in 0..count {
                let block = places.next();
                if let Some(data) = blocks.get_mut(&(shape.file_of(thread), block)) {
                    stamp(data, thread, block, write);
                }
            }
        }
        blocks
    }

    fn judge(
        shape: &StormShape,
        counts: &[u64],
        blocks: &HashMap<(u32, u32), Vec<u8>>,
    ) -> Result<()> {
        check(shape, counts, &mut |file, block, data| {
            data.copy_from_slice(&blocks[&(file, block)]);
            Ok(())
        })
    }

    #[test]
    fn places_come_once_in_each_pass() {
        let mut places = Places::new(&shape(StormKind::Own), 1);
        for _ in 0..3 {
            let mut pass: Vec<u32> = (0..8).map(|_| places.next()).collect();
            pass.sort_unstable();
            assert_eq!(pass, (0..8).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn what_was_written_is_accepted_and_nothing_else() {
        for kind in [StormKind::Own, StormKind::Shared] {
            let shape = shape(kind);
            let blocks = image(&shape, &[5, 20]);
            judge(&shape, &[5, 20], &blocks).unwrap();
            // A write that is missing, one too many, one that is torn, one in the wrong place.
            assert!(judge(&shape, &[5, 21], &blocks).is_err());
            assert!(judge(&shape, &[5, 19], &blocks).is_err());
            let mut torn = blocks.clone();
            torn.values_mut().for_each(|data| data[BLOCK - stamp::SECTOR + 16] ^= 1);
            assert!(judge(&shape, &[5, 20], &torn).is_err());
            let mut moved = blocks.clone();
            let other = blocks[&(0, 1)].clone();
            moved.insert((0, 0), other);
            assert!(judge(&shape, &[5, 20], &moved).is_err());
        }
    }
}
