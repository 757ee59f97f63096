//! Writing what an overlay holds into its base.
//!
//! # Crashes
//! The header says that a commit has begun before the first byte of the base changes. From then on
//! the overlay is good for nothing but committing it again, which writes the same blocks to the
//! same places: whatever a cut off commit has written, the next one gives the same base. Its caller
//! empties the store when the base is durable.
//!
//! The base is barred (`superblock.rs`) durably before anything else in it changes, and until all
//! else is durable. So nothing uses it half written, and it has not been used if it is barred.
//!
//! How is the base of a cut off commit recognised? Its first bytes may be old, new or a mixture.
//! But the overlay hides those that the commit may have changed, so that the head of both together
//! is what it was when the commit began, and its hash is in the header. That does not see a base
//! that was used since, so the sector that bars it must be the one that it had, or is to have; and
//! a base that is not barred must have the head that it had, or is to have.

use std::io;
use std::ops::Range;

use super::bitmap::held_runs;
use super::error::OverlayError;
use super::header::{Header, State};
use super::layout::{BLOCK_BYTES, Layout};
use super::superblock::{
    SECTOR, SUPERBLOCK_RANGE, barred, can_be_barred, hash, head, is_barred, unbarred, uuid,
};
use crate::device::Device;

/// Bytes that are copied at a time.
const CHUNK_BLOCKS: u64 = (1 << 20) / BLOCK_BYTES;

/// What a commit did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Bytes of the blocks that were written.
    pub bytes: u64,
    /// Whether an earlier commit had been cut off.
    pub resumed: bool,
}

/// Writes what `store` holds into `base` and makes that durable. Afterwards the store is to be
/// emptied; until then the same call does the same again. `copied` is called with the bytes of each
/// step.
///
/// # Errors
/// See [`OverlayError`]. Those but `Io` leave both as they are.
pub fn commit(
    store: &dyn Device,
    base: &dyn Device,
    copied: &mut dyn FnMut(u64),
) -> Result<Committed, OverlayError> {
    let mut header = Header::read(store)?;
    let layout = header.layout;
    header.check_length(base)?;
    let found = head(base)?;
    let merged = merged_head(store, layout, unbarred(&found))?;
    let resumed = header.state == State::Committing;
    if resumed {
        check_half_committed(&header, &found, &merged)?;
    } else {
        header.check_head(&found)?;
        if !can_be_barred(&found) {
            return Err(OverlayError::NoSuperblock);
        }
    }
    if is_barred(&merged) {
        return Err(OverlayError::Damaged("what it shows is half committed"));
    }
    if !resumed {
        // What the store holds must not be lost once the base begins to have parts of it.
        store.flush()?;
        header.state = State::Committing;
        header.sector_hash = hash(&found[SECTOR]);
        header.merged_hash = hash(&merged);
        header.write(store)?;
    }
    write_superblock(base, &barred(&found))?;
    let bytes = copy_all(store, layout, base, copied)?;
    base.flush()?;
    // The first sector is the one that bars: before it is the last one, the second must be there.
    write_superblock(base, &barred(&merged))?;
    write_superblock(base, &merged)?;
    Ok(Committed { bytes, resumed })
}

/// Writes the superblock of a head, durably.
fn write_superblock(base: &dyn Device, head: &[u8]) -> io::Result<()> {
    if let Some(superblock) = head.get(SUPERBLOCK_RANGE) {
        base.write_at(SUPERBLOCK_RANGE.start as u64, superblock)?;
    }
    base.flush()
}

/// Copies what the store holds but for the superblock, and returns how many bytes it holds.
fn copy_all(
    store: &dyn Device,
    layout: Layout,
    base: &dyn Device,
    copied: &mut dyn FnMut(u64),
) -> io::Result<u64> {
    let superblock = SUPERBLOCK_RANGE.start as u64..SUPERBLOCK_RANGE.end as u64;
    let mut bytes = 0;
    let mut buf = Vec::new();
    held_runs(store, layout, 0..layout.blocks(), &mut |run| {
        for start in run.clone().step_by(CHUNK_BLOCKS as usize) {
            let part = layout.bytes_of(&(start..run.end.min(start + CHUNK_BLOCKS)));
            let before = part.start..part.end.min(superblock.start);
            let after = part.start.max(superblock.end)..part.end;
            for piece in [before, after].iter().filter(|piece| !piece.is_empty()) {
                copy(store, layout, base, piece, &mut buf)?;
            }
            bytes += part.end - part.start;
            copied(part.end - part.start);
        }
        Ok(())
    })?;
    Ok(bytes)
}

/// Copies bytes to where they are in the base; zeroes as a hole where it can have one.
fn copy(
    store: &dyn Device,
    layout: Layout,
    base: &dyn Device,
    bytes: &Range<u64>,
    buf: &mut Vec<u8>,
) -> io::Result<()> {
    let len = bytes.end - bytes.start;
    buf.resize(len as usize, 0);
    store.read_at(layout.data_offset() + bytes.start, buf)?;
    if buf.iter().all(|byte| *byte == 0) && base.punch(bytes.start, len)? {
        return Ok(());
    }
    base.write_at(bytes.start, buf)
}

/// The first bytes as the overlay shows them.
fn merged_head(store: &dyn Device, layout: Layout, head: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut merged = head;
    let blocks = layout.blocks_of(&(0..merged.len() as u64));
    held_runs(store, layout, blocks, &mut |run| {
        let bytes = layout.bytes_of(&run);
        let part = &mut merged[bytes.start as usize..bytes.end as usize];
        store.read_at(layout.data_offset() + bytes.start, part)
    })?;
    Ok(merged)
}

/// Refuses a head that is not the one of the base of a commit that was cut off.
fn check_half_committed(header: &Header, head: &[u8], merged: &[u8]) -> Result<(), OverlayError> {
    let (wanted, found) = (header.base_uuid, uuid(head));
    // The overlay may have another UUID, which the base has by now or has not.
    if found != wanted && found != uuid(merged) {
        return Err(OverlayError::OtherBase { wanted, found });
    }
    let unbarred = unbarred(head);
    let is_same = match is_barred(head) {
        // Some of it is old and some new.
        true => {
            let sector = &unbarred[SECTOR];
            let is_its = hash(sector) == header.sector_hash || merged.get(SECTOR) == Some(sector);
            is_its && hash(merged) == header.merged_hash
        }
        // Nothing was written yet, or all.
        false => [header.base_hash, header.merged_hash].contains(&hash(&unbarred)),
    };
    if is_same { Ok(()) } else { Err(OverlayError::UsedHalfCommitted) }
}

#[cfg(test)]
mod tests;
