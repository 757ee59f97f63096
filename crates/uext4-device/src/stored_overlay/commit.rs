//! Writing what an overlay holds into its base.
//!
//! # Crashes
//! The header says that a commit has begun before the first byte of the base changes. From then on
//! the overlay is good for nothing but committing it again, which writes the same blocks to the
//! same places: whatever a cut off commit has written, the next one gives the same base. Its caller
//! empties the store when the base is durable.
//!
//! How is the base of a cut off commit recognised? Its first bytes may be old, new or a mixture.
//! But the overlay hides those that it may have changed, so that the head of both together is what
//! it was when the commit began, and its hash is in the header.

use std::io;
use std::ops::Range;

use super::bitmap::held_runs;
use super::error::OverlayError;
use super::header::{Header, State};
use super::layout::{BLOCK_BYTES, Layout};
use super::superblock::{hash, head, uuid};
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
    let merged = merged_head(store, layout, head(base)?)?;
    let resumed = header.state == State::Committing;
    if resumed {
        check_half_committed(&header, base, &merged)?;
    } else {
        header.check_base(base)?;
        // What the store holds must not be lost once the base begins to have parts of it.
        store.flush()?;
        header.state = State::Committing;
        header.merged_hash = hash(&merged);
        header.write(store)?;
    }
    let mut bytes = 0;
    let mut buf = Vec::new();
    held_runs(store, layout, 0..layout.blocks(), &mut |run| {
        for start in run.clone().step_by(CHUNK_BLOCKS as usize) {
            let part = layout.bytes_of(&(start..run.end.min(start + CHUNK_BLOCKS)));
            copy(store, layout, base, &part, &mut buf)?;
            bytes += part.end - part.start;
            copied(part.end - part.start);
        }
        Ok(())
    })?;
    base.flush()?;
    Ok(Committed { bytes, resumed })
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

/// Refuses a base that is not the one of a commit that was cut off.
fn check_half_committed(
    header: &Header,
    base: &dyn Device,
    merged: &[u8],
) -> Result<(), OverlayError> {
    let (wanted, found) = (header.base_uuid, uuid(&head(base)?));
    // The overlay may have another UUID, which the base has by now or has not.
    if found != wanted && found != uuid(merged) {
        return Err(OverlayError::OtherBase { wanted, found });
    }
    if hash(merged) != header.merged_hash {
        return Err(OverlayError::Changed);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
