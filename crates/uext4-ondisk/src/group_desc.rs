//! Group descriptors.
//!
//! On disk: an array of 32- or 64-byte slots after the superblock (group_descr.rst,
//! `struct ext4_group_desc`); a 32-byte slot lacks the high halves.
//!
//! Invariants: a descriptor read from a 32-byte slot has zero high halves.

use crate::checksum::{ChecksumKind, Checksums, crc16, crc32c};
use crate::error::CorruptKind;
use crate::num::{hi16, hi32, join16, join32, lo16, lo32};
use crate::units::{BlockNo, GroupNo};
use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};

bitflags! {
    /// `bg_flags`. Trusted only where descriptors carry a checksum.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct GroupFlags: u16 {
        /// Inode table and bitmap are not initialised: all inodes are free.
        const INODE_UNINIT = 1;
        /// The block bitmap is not initialised: only the group's own metadata is in use.
        const BLOCK_UNINIT = 2;
        /// The inode table is zeroed.
        const INODE_ZEROED = 4;
        const _ = !0;
    }
}

raw_struct! {
    /// `struct ext4_group_desc`, 64-byte form.
    pub struct RawGroupDesc [64] {
        bg_block_bitmap_lo: U32,
        bg_inode_bitmap_lo: U32,
        bg_inode_table_lo: U32,
        bg_free_blocks_count_lo: U16,
        bg_free_inodes_count_lo: U16,
        bg_used_dirs_count_lo: U16,
        bg_flags: U16,
        bg_exclude_bitmap_lo: U32,
        bg_block_bitmap_csum_lo: U16,
        bg_inode_bitmap_csum_lo: U16,
        bg_itable_unused_lo: U16,
        bg_checksum: U16,
        bg_block_bitmap_hi: U32,
        bg_inode_bitmap_hi: U32,
        bg_inode_table_hi: U32,
        bg_free_blocks_count_hi: U16,
        bg_free_inodes_count_hi: U16,
        bg_used_dirs_count_hi: U16,
        bg_itable_unused_hi: U16,
        bg_exclude_bitmap_hi: U32,
        bg_block_bitmap_csum_hi: U16,
        bg_inode_bitmap_csum_hi: U16,
        bg_reserved: U32,
    }
}

const WHAT: &str = "group descriptor";
/// Byte of `bg_checksum` in a slot.
const CHECKSUM_OFFSET: usize = std::mem::offset_of!(RawGroupDesc, bg_checksum);
const CHECKSUM_END: usize = CHECKSUM_OFFSET + 2;

impl RawGroupDesc {
    /// Reads a slot of `desc_size` bytes (32 or 64).
    ///
    /// # Errors
    /// [`CorruptKind::Short`] when `bytes` is shorter than `desc_size`.
    pub fn read(bytes: &[u8], desc_size: u16) -> Result<Self, CorruptKind> {
        let size = usize::from(desc_size).min(size_of::<Self>());
        let Some(slot) = bytes.get(..size) else {
            return Err(short(desc_size, bytes.len()));
        };
        let mut full = [0_u8; size_of::<Self>()];
        full.iter_mut().zip(slot).for_each(|(to, from)| *to = *from);
        Ok(zerocopy::transmute!(full))
    }

    /// Writes the descriptor into a slot of `desc_size` bytes; high halves that the slot lacks are
    /// dropped, the layout having no use for them. A slot that is too short is left as it is.
    pub fn write(&self, bytes: &mut [u8], desc_size: u16) {
        let size = usize::from(desc_size).min(size_of::<Self>());
        if let (Some(slot), Some(from)) = (bytes.get_mut(..size), self.bytes().get(..size)) {
            slot.copy_from_slice(from);
        }
    }

    /// Block of the block bitmap.
    #[must_use]
    pub fn block_bitmap(&self) -> BlockNo {
        BlockNo(join32(self.bg_block_bitmap_hi.get(), self.bg_block_bitmap_lo.get()))
    }

    /// Block of the inode bitmap.
    #[must_use]
    pub fn inode_bitmap(&self) -> BlockNo {
        BlockNo(join32(self.bg_inode_bitmap_hi.get(), self.bg_inode_bitmap_lo.get()))
    }

    /// First block of the inode table.
    #[must_use]
    pub fn inode_table(&self) -> BlockNo {
        BlockNo(join32(self.bg_inode_table_hi.get(), self.bg_inode_table_lo.get()))
    }

    /// Sets the block of the block bitmap.
    pub fn set_block_bitmap(&mut self, block: BlockNo) {
        self.bg_block_bitmap_lo.set(lo32(block.get()));
        self.bg_block_bitmap_hi.set(hi32(block.get()));
    }

    /// Sets the block of the inode bitmap.
    pub fn set_inode_bitmap(&mut self, block: BlockNo) {
        self.bg_inode_bitmap_lo.set(lo32(block.get()));
        self.bg_inode_bitmap_hi.set(hi32(block.get()));
    }

    /// Sets the first block of the inode table.
    pub fn set_inode_table(&mut self, block: BlockNo) {
        self.bg_inode_table_lo.set(lo32(block.get()));
        self.bg_inode_table_hi.set(hi32(block.get()));
    }

    /// Free blocks (clusters with bigalloc) of the group.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        join16(self.bg_free_blocks_count_hi.get(), self.bg_free_blocks_count_lo.get())
    }

    /// Free inodes of the group.
    #[must_use]
    pub fn free_inodes(&self) -> u32 {
        join16(self.bg_free_inodes_count_hi.get(), self.bg_free_inodes_count_lo.get())
    }

    /// Directories of the group.
    #[must_use]
    pub fn used_dirs(&self) -> u32 {
        join16(self.bg_used_dirs_count_hi.get(), self.bg_used_dirs_count_lo.get())
    }

    /// Inodes at the end of the table that were never used.
    #[must_use]
    pub fn itable_unused(&self) -> u32 {
        join16(self.bg_itable_unused_hi.get(), self.bg_itable_unused_lo.get())
    }

    /// Sets the number of free blocks.
    pub fn set_free_blocks(&mut self, count: u32) {
        self.bg_free_blocks_count_lo.set(lo16(count));
        self.bg_free_blocks_count_hi.set(hi16(count));
    }

    /// Sets the number of free inodes.
    pub fn set_free_inodes(&mut self, count: u32) {
        self.bg_free_inodes_count_lo.set(lo16(count));
        self.bg_free_inodes_count_hi.set(hi16(count));
    }

    /// Sets the number of directories.
    pub fn set_used_dirs(&mut self, count: u32) {
        self.bg_used_dirs_count_lo.set(lo16(count));
        self.bg_used_dirs_count_hi.set(hi16(count));
    }

    /// Sets the number of never used inodes at the end of the table.
    pub fn set_itable_unused(&mut self, count: u32) {
        self.bg_itable_unused_lo.set(lo16(count));
        self.bg_itable_unused_hi.set(hi16(count));
    }

    /// `bg_flags`.
    #[must_use]
    pub fn flags(&self) -> GroupFlags {
        GroupFlags::from_bits_retain(self.bg_flags.get())
    }

    /// Sets `bg_flags`.
    pub fn set_flags(&mut self, flags: GroupFlags) {
        self.bg_flags.set(flags.bits());
    }

    /// Checksum of the block bitmap; only the low 16 bits are there in a 32-byte slot.
    #[must_use]
    pub fn block_bitmap_csum(&self) -> u32 {
        join16(self.bg_block_bitmap_csum_hi.get(), self.bg_block_bitmap_csum_lo.get())
    }

    /// Checksum of the inode bitmap; only the low 16 bits are there in a 32-byte slot.
    #[must_use]
    pub fn inode_bitmap_csum(&self) -> u32 {
        join16(self.bg_inode_bitmap_csum_hi.get(), self.bg_inode_bitmap_csum_lo.get())
    }

    /// Sets the checksum of the block bitmap.
    pub fn set_block_bitmap_csum(&mut self, csum: u32) {
        self.bg_block_bitmap_csum_lo.set(lo16(csum));
        self.bg_block_bitmap_csum_hi.set(hi16(csum));
    }

    /// Sets the checksum of the inode bitmap.
    pub fn set_inode_bitmap_csum(&mut self, csum: u32) {
        self.bg_inode_bitmap_csum_lo.set(lo16(csum));
        self.bg_inode_bitmap_csum_hi.set(hi16(csum));
    }

    /// Compares a block bitmap (or its clusters) with the checksum kept here.
    ///
    /// # Errors
    /// [`CorruptKind::Checksum`].
    pub fn verify_block_bitmap(
        &self,
        checksums: &Checksums,
        desc_size: u16,
        bitmap: &[u8],
        bits: u32,
    ) -> Result<(), CorruptKind> {
        let computed = crate::bitmap::bitmap_csum(checksums, bitmap, bits);
        compare("block bitmap", computed, self.block_bitmap_csum(), desc_size)
    }

    /// Compares an inode bitmap with the checksum kept here.
    ///
    /// # Errors
    /// [`CorruptKind::Checksum`].
    pub fn verify_inode_bitmap(
        &self,
        checksums: &Checksums,
        desc_size: u16,
        bitmap: &[u8],
        bits: u32,
    ) -> Result<(), CorruptKind> {
        let computed = crate::bitmap::bitmap_csum(checksums, bitmap, bits);
        compare("inode bitmap", computed, self.inode_bitmap_csum(), desc_size)
    }
}

fn compare(
    what: &'static str,
    computed: Option<u32>,
    stored: u32,
    desc_size: u16,
) -> Result<(), CorruptKind> {
    let Some(want) = computed else { return Ok(()) };
    let mask = if desc_size < 64 { 0xffff } else { !0 };
    if want & mask == stored & mask {
        return Ok(());
    }
    Err(CorruptKind::Checksum { what, want: want & mask, found: stored & mask })
}

fn short(want: u16, found: usize) -> CorruptKind {
    CorruptKind::Short { what: WHAT, want: u32::from(want), found: crate::num::len32(found) }
}

/// Checksum of a whole slot, with the checksum field itself left out, or `None` where descriptors
/// have none.
fn slot_checksum(slot: &[u8], checksums: &Checksums, group: GroupNo) -> Option<u16> {
    let number = group.get().to_le_bytes();
    let head = slot.get(..CHECKSUM_OFFSET)?;
    let tail = slot.get(CHECKSUM_END..)?;
    match checksums.kind {
        ChecksumKind::None => None,
        ChecksumKind::Crc16 => {
            let crc = crc16(crc16(!0, &checksums.uuid), &number);
            Some(crc16(crc16(crc, head), tail))
        }
        ChecksumKind::Crc32c => {
            let crc = crc32c(crc32c(checksums.seed, &number), head);
            Some(lo16(crc32c(crc32c(crc, &[0, 0]), tail)))
        }
    }
}

/// Computes the checksum of a descriptor slot (exactly `desc_size` bytes) in place.
pub fn seal_slot(slot: &mut [u8], checksums: &Checksums, group: GroupNo) {
    if let Some(crc) = slot_checksum(slot, checksums, group) {
        crate::num::put(slot, CHECKSUM_OFFSET, &crc.to_le_bytes());
    }
}

/// Compares the checksum of a descriptor slot (exactly `desc_size` bytes) with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`]; [`CorruptKind::Short`].
pub fn verify_slot(slot: &[u8], checksums: &Checksums, group: GroupNo) -> Result<(), CorruptKind> {
    if slot.len() < CHECKSUM_END {
        return Err(short(32, slot.len()));
    }
    let Some(want) = slot_checksum(slot, checksums, group) else { return Ok(()) };
    let found = crate::num::le16_at(slot, CHECKSUM_OFFSET);
    if want == found {
        return Ok(());
    }
    Err(CorruptKind::Checksum { what: WHAT, want: u32::from(want), found: u32::from(found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_slot_drops_the_high_halves() {
        let mut desc = RawGroupDesc::zeroed();
        desc.set_block_bitmap(BlockNo(0x1_0000_0002));
        desc.set_free_blocks(0x1_8000);
        let mut slot = [0_u8; 64];
        desc.write(&mut slot, 64);
        assert_eq!(RawGroupDesc::read(&slot, 64).unwrap(), desc);
        let half = RawGroupDesc::read(&slot, 32).unwrap();
        assert_eq!((half.block_bitmap(), half.free_blocks()), (BlockNo(2), 0x8000));
        assert!(RawGroupDesc::read(&slot[..31], 32).is_err());
    }

    #[test]
    fn slots_seal_and_verify_in_both_forms() {
        for kind in [ChecksumKind::None, ChecksumKind::Crc16, ChecksumKind::Crc32c] {
            let checksums = Checksums { kind, seed: 7, uuid: [3; 16] };
            for size in [32_usize, 64] {
                let mut slot = vec![0x5a; size];
                seal_slot(&mut slot, &checksums, GroupNo(9));
                verify_slot(&slot, &checksums, GroupNo(9)).unwrap();
                slot[0] ^= 1;
                let sound = verify_slot(&slot, &checksums, GroupNo(9)).is_ok();
                assert_eq!(sound, kind == ChecksumKind::None);
            }
        }
    }
}
