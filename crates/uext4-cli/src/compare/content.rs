//! Content of two files, compared by reading both through their mappings.

use uext4::{OpenFile, Volume};
use uext4_ondisk::InodeFlags;

use super::Side;
use super::blocks::{Blocks, Pending};
use super::inode::{Found, contexts_differ};
use crate::failure::Why;
use crate::runs;

/// Bytes of a file that are compared at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// What a comparison of content needs again and again.
pub(super) struct Buffers {
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self { a: vec![0; CHUNK_BYTES], b: vec![0; CHUNK_BYTES] }
    }
}

/// Whether the content of two files is known to be the same, or has to be read.
pub(super) enum Plan {
    Same,
    /// Both map the same blocks: to be compared there.
    Blocks(Vec<runs::Run>),
    Read,
}

/// How to compare two regular files of the same size.
pub(super) fn plan(
    sides: &[Side; 2],
    pair: [&Found; 2],
    trust_times: bool,
) -> Result<Plan, (usize, Why)> {
    let [a, b] = pair.map(|found| &found.attr);
    if a.size == 0 {
        return Ok(Plan::Same);
    }
    // Data in the inode has no blocks.
    if (a.flags | b.flags).contains(InodeFlags::INLINE_DATA) {
        return Ok(Plan::Read);
    }
    let runs =
        |side: usize| runs::all(&sides[side].volume, &pair[side].inode).map_err(|why| (side, why));
    let (was, is) = (runs(0)?, runs(1)?);
    let is_encrypted = |found: &Found| found.attr.flags.contains(InodeFlags::ENCRYPT);
    let is_stored_alike = a.block_size == b.block_size
        && was == is
        && is_encrypted(pair[0]) == is_encrypted(pair[1])
        && !contexts_differ(sides, pair)?;
    if !is_stored_alike {
        return Ok(Plan::Read);
    }
    let is_same_inode =
        (a.ino, a.generation, a.mtime, a.ctime) == (b.ino, b.generation, b.mtime, b.ctime);
    if trust_times && is_same_inode {
        return Ok(Plan::Same);
    }
    Ok(Plan::Blocks(was))
}

/// Leaves the blocks of a file for later, which adds what it finds to `pending`.
pub(super) fn defer(blocks: &mut Blocks, pending: Pending, size: u64, runs: &[runs::Run]) {
    blocks.begin(pending);
    for run in runs.iter().filter(|run| !run.unwritten) {
        blocks.add(run, size);
    }
}

/// The first byte in which two files differ.
pub(super) fn first_difference(
    sides: &[Side; 2],
    pair: [&Found; 2],
    buffers: &mut Buffers,
) -> Result<Option<u64>, (usize, Why)> {
    let open = |side: usize| {
        let volume: &Volume = &sides[side].volume;
        volume.open_file(&pair[side].inode).map_err(|error| (side, error.into()))
    };
    let files = [open(0)?, open(1)?];
    let sizes = pair.map(|found| found.attr.size);
    let common = sizes[0].min(sizes[1]);
    let mut at = 0;
    while at < common {
        // What is a hole in both is the same.
        let next = |side: usize| next_data(&files[side], at, common).map_err(|why| (side, why));
        at = next(0)?.min(next(1)?);
        // Direct reads are aligned.
        at -= at % uext4::DIRECT_ALIGNMENT;
        if at >= common {
            break;
        }
        let want = usize::try_from(common - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        read(&files[0], at, want, &mut buffers.a).map_err(|why| (0, why))?;
        read(&files[1], at, want, &mut buffers.b).map_err(|why| (1, why))?;
        if let Some(first) = first_unequal(&buffers.a[..want], &buffers.b[..want]) {
            return Ok(Some(at + first as u64));
        }
        at += want as u64;
    }
    Ok((sizes[0] != sizes[1]).then_some(common))
}

/// Where data begins at or behind a byte, or `end`.
fn next_data(file: &OpenFile, from: u64, end: u64) -> Result<u64, Why> {
    match file.seek_data(from) {
        Err(error) if error.errno() == libc::ENXIO => Ok(end),
        other => Ok(other?.min(end)),
    }
}

/// Fills `buffer` with at least `want` bytes.
fn read(file: &OpenFile, at: u64, want: usize, buffer: &mut [u8]) -> Result<(), Why> {
    let whole = want.next_multiple_of(uext4::DIRECT_ALIGNMENT as usize).min(buffer.len());
    let got = file.read_direct_at(at, &mut buffer[..whole])?;
    if got < want {
        return Err(Why::new("is shorter than its size"));
    }
    Ok(())
}

/// The first place in which two buffers of the same length differ.
pub(super) fn first_unequal(a: &[u8], b: &[u8]) -> Option<usize> {
    const PART: usize = 4096;
    if a == b {
        return None;
    }
    let parts = a.chunks(PART).zip(b.chunks(PART)).enumerate();
    let (index, (a, b)) = parts.into_iter().find(|(_, (a, b))| a != b)?;
    let inside = a.iter().zip(b).position(|(a, b)| a != b)?;
    Some(index * PART + inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_unequal_byte_is_found() {
        let a = vec![7; 10_000];
        assert_eq!(first_unequal(&a, &a), None);
        for at in [0, 1, 4095, 4096, 8191, 9999] {
            let mut b = a.clone();
            b[at] = 8;
            b[9999] = 9;
            assert_eq!(first_unequal(&a, &b), Some(at));
        }
    }
}
