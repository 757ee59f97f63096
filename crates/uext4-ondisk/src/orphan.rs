//! Blocks of the orphan file: inodes that must be truncated or freed at the next mount.
//!
//! On disk: each block is an array of inode numbers (0: free slot) and an 8-byte tail
//! (orphan.rst, `struct ext4_orphan_block_tail`).

use crate::checksum::{InodeSeed, crc32c};
use crate::error::CorruptKind;
use crate::num::{len32, put};
use crate::units::{BlockNo, Ino};
use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

/// `ob_magic`.
pub const ORPHAN_BLOCK_MAGIC: u32 = 0x0b10_ca04;
const WHAT: &str = "orphan file block";

raw_struct! {
    /// `struct ext4_orphan_block_tail`.
    pub struct RawOrphanBlockTail [8] {
        ob_magic: U32,
        ob_checksum: U32,
    }
}

/// Slots of a block.
#[must_use]
pub const fn slots_per_block(block_size: u32) -> u32 {
    block_size.saturating_sub(8) / 4
}

/// The slots and the tail of a block.
fn split(block: &[u8]) -> Result<(&[u8], &RawOrphanBlockTail), CorruptKind> {
    let short = CorruptKind::Short { what: WHAT, want: 8, found: len32(block.len()) };
    let at = block.len().checked_sub(size_of::<RawOrphanBlockTail>()).ok_or(short)?;
    let (slots, tail) = block.split_at_checked(at).ok_or(short)?;
    Ok((slots, RawOrphanBlockTail::ref_from_prefix(tail).ok_or(short)?))
}

fn checksum(slots: &[u8], seed: u32, block_no: BlockNo) -> u32 {
    crc32c(crc32c(seed, &block_no.get().to_le_bytes()), slots)
}

/// Makes a block with no orphan in it; [`seal_orphan_block`] completes it.
pub fn init_block(block: &mut [u8]) {
    block.fill(0);
    let at = block.len().saturating_sub(8);
    put(block, at, &ORPHAN_BLOCK_MAGIC.to_le_bytes());
}

/// Computes the checksum of a block of the orphan file at `block_no` on the device.
pub fn seal_orphan_block(block: &mut [u8], seed: InodeSeed, block_no: BlockNo) {
    let Some(seed) = seed.get() else { return };
    if let Ok(crc) = split(block).map(|(slots, _)| checksum(slots, seed, block_no)) {
        put(block, block.len().saturating_sub(4), &crc.to_le_bytes());
    }
}

/// Checks magic and checksum of a block of the orphan file.
///
/// # Errors
/// [`CorruptKind::Magic`], [`CorruptKind::Checksum`], [`CorruptKind::Short`].
pub fn verify_orphan_block(
    block: &[u8],
    seed: InodeSeed,
    block_no: BlockNo,
) -> Result<(), CorruptKind> {
    let (slots, tail) = split(block)?;
    let magic = tail.ob_magic.get();
    if magic != ORPHAN_BLOCK_MAGIC {
        return Err(CorruptKind::Magic { what: WHAT, want: ORPHAN_BLOCK_MAGIC, found: magic });
    }
    let Some(seed) = seed.get() else { return Ok(()) };
    let (want, found) = (checksum(slots, seed, block_no), tail.ob_checksum.get());
    if want == found { Ok(()) } else { Err(CorruptKind::Checksum { what: WHAT, want, found }) }
}

/// The slots in use: index and inode.
pub fn entries(block: &[u8]) -> impl Iterator<Item = (u32, Ino)> + '_ {
    let slots = split(block).map_or(&[][..], |(slots, _)| slots);
    let words = <[U32]>::ref_from_prefix_with_elems(slots, slots.len() / 4);
    let words = words.map_or(&[][..], |(words, _)| words);
    let all = (0_u32..).zip(words).map(|(index, word)| (index, Ino(word.get())));
    all.filter(|(_, ino)| ino.get() != 0)
}

/// Sets slot `index`; `Ino(0)` frees it. A slot that the block does not have is left alone.
pub fn set_entry(block: &mut [u8], index: u32, ino: Ino) {
    if index < slots_per_block(len32(block.len())) {
        put(block, crate::num::idx(index).saturating_mul(4), &ino.get().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_seal() {
        let mut block = vec![0xff_u8; 1024];
        init_block(&mut block);
        set_entry(&mut block, 3, Ino(77));
        set_entry(&mut block, 253, Ino(78));
        set_entry(&mut block, 254, Ino(79));
        let found: Vec<_> = entries(&block).collect();
        assert_eq!(found, [(3, Ino(77)), (253, Ino(78))]);
        let seed = InodeSeed(Some(9));
        seal_orphan_block(&mut block, seed, BlockNo(5));
        verify_orphan_block(&block, seed, BlockNo(5)).unwrap();
        assert!(verify_orphan_block(&block, seed, BlockNo(6)).is_err());
        assert!(verify_orphan_block(&[0; 4], seed, BlockNo(6)).is_err());
    }
}
