//! Inodes: the 128 classic bytes and the extra fields after them.
//!
//! On disk: slots of `s_inode_size` bytes in the inode tables (inodes.rst, `struct ext4_inode`).
//! `i_extra_isize` says how far the extra fields reach; in-inode attributes follow them.
//!
//! Invariants: fields past `i_extra_isize` read as zero and are never written, because the bytes
//! there belong to the attributes.

use crate::checksum::{InodeSeed, crc32c};
use crate::error::CorruptKind;
pub use crate::file_kind::{FileKind, InodeFlags, S_IFMT};
use crate::num::{hi16, hi32, join16, join32, le16_at, len32, lo16, lo32, mid16, put};
pub use crate::timestamp::Timestamp;
use zerocopy::little_endian::{U16, U32};

/// Bytes of the classic inode.
pub const CLASSIC_SIZE: usize = 128;
/// Bytes of [`RawInode`]: all fields known today.
pub const FULL_SIZE: usize = 160;
/// `i_extra_isize` of an inode with every field known today.
pub const FULL_EXTRA_SIZE: u16 = 32;
/// `i_extra_isize` that includes `i_projid`.
pub const PROJECT_EXTRA_SIZE: u16 = 32;
/// Bytes of `i_block`.
pub const I_BLOCK_SIZE: usize = 60;
/// Longest target of a symlink kept in `i_block`, in bytes.
pub const FAST_SYMLINK_MAX: usize = I_BLOCK_SIZE - 1;
/// Most links of an inode; directories beyond it have 1 (dir_nlink).
pub const LINK_MAX: u16 = 65_000;

raw_struct! {
    /// `struct ext4_inode`, up to `i_projid`.
    pub struct RawInode [160] {
        i_mode: U16,
        i_uid: U16,
        i_size_lo: U32,
        i_atime: U32,
        i_ctime: U32,
        i_mtime: U32,
        i_dtime: U32,
        i_gid: U16,
        i_links_count: U16,
        i_blocks_lo: U32,
        i_flags: U32,
        l_i_version: U32,
        i_block: [u8; 60],
        i_generation: U32,
        i_file_acl_lo: U32,
        i_size_high: U32,
        i_obso_faddr: U32,
        l_i_blocks_high: U16,
        l_i_file_acl_high: U16,
        l_i_uid_high: U16,
        l_i_gid_high: U16,
        l_i_checksum_lo: U16,
        l_i_reserved: U16,
        i_extra_isize: U16,
        i_checksum_hi: U16,
        i_ctime_extra: U32,
        i_mtime_extra: U32,
        i_atime_extra: U32,
        i_crtime: U32,
        i_crtime_extra: U32,
        i_version_hi: U32,
        i_projid: U32,
    }
}

const WHAT: &str = "inode";
const EXTRA_ISIZE_OFFSET: usize = std::mem::offset_of!(RawInode, i_extra_isize);
const CHECKSUM_LO_OFFSET: usize = std::mem::offset_of!(RawInode, l_i_checksum_lo);
const CHECKSUM_HI_OFFSET: usize = std::mem::offset_of!(RawInode, i_checksum_hi);

impl RawInode {
    /// Reads a slot of the inode table (`slot.len()` is the inode size).
    ///
    /// # Errors
    /// [`CorruptKind::Short`]; [`CorruptKind::Range`] when `i_extra_isize` does not fit the slot.
    pub fn read(slot: &[u8]) -> Result<Self, CorruptKind> {
        let covered = covered_bytes(slot)?;
        let mut full = [0_u8; FULL_SIZE];
        let known = slot.get(..covered.min(FULL_SIZE)).unwrap_or_default();
        full.iter_mut().zip(known).for_each(|(to, from)| *to = *from);
        Ok(zerocopy::transmute!(full))
    }

    /// Writes the fields that `i_extra_isize` covers; the rest of the slot stays as it is.
    ///
    /// # Errors
    /// Those of [`RawInode::read`], for the `i_extra_isize` of `self`.
    pub fn write(&self, slot: &mut [u8]) -> Result<(), CorruptKind> {
        let covered = check_covered(slot.len(), self.i_extra_isize.get())?;
        if let Some(bytes) = self.bytes().get(..covered.min(FULL_SIZE)) {
            put(slot, 0, bytes);
        }
        Ok(())
    }

    /// Whether the extra fields up to byte `end` of the inode are there.
    fn has_until(&self, end: usize) -> bool {
        CLASSIC_SIZE.saturating_add(usize::from(self.i_extra_isize.get())) >= end
    }

    /// Type of the file; `None` when `i_mode` holds none.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.i_mode.get())
    }

    /// `i_flags`.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.i_flags.get())
    }

    /// Sets `i_flags`.
    pub fn set_flags(&mut self, flags: InodeFlags) {
        self.i_flags.set(flags.bits());
    }

    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        join32(self.i_size_high.get(), self.i_size_lo.get())
    }

    /// Sets the bytes of the file.
    pub fn set_size(&mut self, bytes: u64) {
        self.i_size_lo.set(lo32(bytes));
        self.i_size_high.set(hi32(bytes));
    }

    /// Space of the file in 512-byte sectors. `huge_file` says whether the file system has that
    /// feature: without it the high half is not defined.
    #[must_use]
    pub fn sectors(&self, huge_file: bool, block_size: u32) -> u64 {
        let lo = self.i_blocks_lo.get();
        if !huge_file {
            return u64::from(lo);
        }
        let units = join32(u32::from(self.l_i_blocks_high.get()), lo);
        if self.flags().contains(InodeFlags::HUGE_FILE) {
            units.saturating_mul(u64::from(block_size / 512))
        } else {
            units
        }
    }

    /// Sets the space of the file from 512-byte sectors, choosing the unit (`HUGE_FILE` flag) as
    /// the kernel does. Returns false, changing nothing, when the number does not fit.
    pub fn set_sectors(&mut self, sectors: u64, huge_file: bool, block_size: u32) -> bool {
        let (units, in_blocks) = if sectors < 1 << 32 {
            (sectors, false)
        } else if !huge_file {
            return false;
        } else if sectors < 1 << 48 {
            (sectors, false)
        } else {
            (sectors.checked_div(u64::from(block_size / 512)).unwrap_or(u64::MAX), true)
        };
        if units >= 1 << 48 {
            return false;
        }
        self.i_blocks_lo.set(lo32(units));
        self.l_i_blocks_high.set(mid16(units));
        let mut flags = self.flags();
        flags.set(InodeFlags::HUGE_FILE, in_blocks);
        self.set_flags(flags);
        true
    }

    /// Block of external attributes, 0 for none.
    #[must_use]
    pub fn file_acl(&self) -> u64 {
        join32(u32::from(self.l_i_file_acl_high.get()), self.i_file_acl_lo.get())
    }

    /// Sets the block of external attributes (48 bits).
    pub fn set_file_acl(&mut self, block: u64) {
        self.i_file_acl_lo.set(lo32(block));
        self.l_i_file_acl_high.set(mid16(block));
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        join16(self.l_i_uid_high.get(), self.i_uid.get())
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        join16(self.l_i_gid_high.get(), self.i_gid.get())
    }

    /// Sets the owner.
    pub fn set_uid(&mut self, uid: u32) {
        self.i_uid.set(lo16(uid));
        self.l_i_uid_high.set(hi16(uid));
    }

    /// Sets the group.
    pub fn set_gid(&mut self, gid: u32) {
        self.i_gid.set(lo16(gid));
        self.l_i_gid_high.set(hi16(gid));
    }

    /// Change counter: 64 bits where the inode has room, else 32.
    #[must_use]
    pub fn version(&self) -> u64 {
        let hi = if self.has_until(0x9c) { self.i_version_hi.get() } else { 0 };
        join32(hi, self.l_i_version.get())
    }

    /// Sets the change counter.
    pub fn set_version(&mut self, version: u64) {
        self.l_i_version.set(lo32(version));
        if self.has_until(0x9c) {
            self.i_version_hi.set(hi32(version));
        }
    }

    /// Last access.
    #[must_use]
    pub fn atime(&self) -> Timestamp {
        let extra = self.has_until(0x90).then(|| self.i_atime_extra.get());
        Timestamp::decode(self.i_atime.get(), extra)
    }

    /// Last change of the inode.
    #[must_use]
    pub fn ctime(&self) -> Timestamp {
        let extra = self.has_until(0x88).then(|| self.i_ctime_extra.get());
        Timestamp::decode(self.i_ctime.get(), extra)
    }

    /// Last change of the content.
    #[must_use]
    pub fn mtime(&self) -> Timestamp {
        let extra = self.has_until(0x8c).then(|| self.i_mtime_extra.get());
        Timestamp::decode(self.i_mtime.get(), extra)
    }

    /// Creation; `None` where the inode has no room for it.
    #[must_use]
    pub fn crtime(&self) -> Option<Timestamp> {
        if !self.has_until(0x94) {
            return None;
        }
        let extra = self.has_until(0x98).then(|| self.i_crtime_extra.get());
        Some(Timestamp::decode(self.i_crtime.get(), extra))
    }

    /// Sets the time of the last access.
    pub fn set_atime(&mut self, time: Timestamp) {
        let has_extra = self.has_until(0x90);
        let (classic, extra) = time.encode(has_extra);
        self.i_atime.set(classic);
        if has_extra {
            self.i_atime_extra.set(extra);
        }
    }

    /// Sets the time of the last change of the inode.
    pub fn set_ctime(&mut self, time: Timestamp) {
        let has_extra = self.has_until(0x88);
        let (classic, extra) = time.encode(has_extra);
        self.i_ctime.set(classic);
        if has_extra {
            self.i_ctime_extra.set(extra);
        }
    }

    /// Sets the time of the last change of the content.
    pub fn set_mtime(&mut self, time: Timestamp) {
        let has_extra = self.has_until(0x8c);
        let (classic, extra) = time.encode(has_extra);
        self.i_mtime.set(classic);
        if has_extra {
            self.i_mtime_extra.set(extra);
        }
    }

    /// Sets the time of creation; does nothing where the inode has no room for it.
    pub fn set_crtime(&mut self, time: Timestamp) {
        let has_extra = self.has_until(0x98);
        let (classic, extra) = time.encode(has_extra);
        if self.has_until(0x94) {
            self.i_crtime.set(classic);
        }
        if has_extra {
            self.i_crtime_extra.set(extra);
        }
    }

    /// Major and minor number of a device inode.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        let old = crate::num::le32_at(&self.i_block, 0);
        if old != 0 {
            return ((old >> 8) & 0xff, old & 0xff);
        }
        let new = crate::num::le32_at(&self.i_block, 4);
        ((new >> 8) & 0xfff, (new & 0xff) | ((new >> 12) & 0xfff00))
    }

    /// Sets major and minor number: the old form where both fit 8 bits, as the kernel does, else
    /// the new one (12-bit major, 20-bit minor).
    pub fn set_device(&mut self, major: u32, minor: u32) {
        self.i_block = [0; I_BLOCK_SIZE];
        if major < 256 && minor < 256 {
            put(&mut self.i_block, 0, &((major << 8) | minor).to_le_bytes());
        } else {
            let new = (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12);
            put(&mut self.i_block, 4, &new.to_le_bytes());
        }
    }
}

/// Bytes from the slot's start that hold fields, checked.
fn covered_bytes(slot: &[u8]) -> Result<usize, CorruptKind> {
    let extra = if slot.len() > CLASSIC_SIZE { le16_at(slot, EXTRA_ISIZE_OFFSET) } else { 0 };
    check_covered(slot.len(), extra)
}

fn check_covered(slot: usize, extra: u16) -> Result<usize, CorruptKind> {
    if slot < CLASSIC_SIZE {
        let want = len32(CLASSIC_SIZE);
        return Err(CorruptKind::Short { what: WHAT, want, found: len32(slot) });
    }
    let room = slot.saturating_sub(CLASSIC_SIZE);
    let extra = if room == 0 { 0 } else { usize::from(extra) };
    if extra > room || !extra.is_multiple_of(4) {
        return Err(CorruptKind::Range {
            what: WHAT,
            field: "i_extra_isize",
            min: 0,
            max: u64::from(len32(room)),
            found: u64::from(len32(extra)),
        });
    }
    // Slots of 256 bytes whose extra size is 0 still have the two bytes that say so.
    let least = if room == 0 { CLASSIC_SIZE } else { EXTRA_ISIZE_OFFSET.saturating_add(4) };
    Ok(CLASSIC_SIZE.saturating_add(extra).max(least))
}

/// Where an inode's attributes start: byte after the extra fields; `None` when the slot has no
/// room there.
#[must_use]
pub fn xattr_offset(slot: &[u8]) -> Option<usize> {
    if slot.len() <= CLASSIC_SIZE {
        return None;
    }
    let extra = usize::from(le16_at(slot, EXTRA_ISIZE_OFFSET));
    let at = CLASSIC_SIZE.saturating_add(extra);
    (extra != 0 && at.saturating_add(4) <= slot.len()).then_some(at)
}

/// Whether the slot has the high half of the checksum.
fn has_checksum_hi(slot: &[u8]) -> bool {
    slot.len() > CLASSIC_SIZE && le16_at(slot, EXTRA_ISIZE_OFFSET) >= 4
}

/// Checksum of a slot with its own fields taken as zero.
fn checksum(slot: &[u8], seed: u32) -> u32 {
    let part = |from: usize, to: usize| slot.get(from..to.min(slot.len())).unwrap_or_default();
    let crc = crc32c(seed, part(0, CHECKSUM_LO_OFFSET));
    let crc = crc32c(crc, &[0, 0]);
    if !has_checksum_hi(slot) {
        let crc = crc32c(crc, part(CHECKSUM_LO_OFFSET + 2, slot.len()));
        return crc & 0xffff;
    }
    let crc = crc32c(crc, part(CHECKSUM_LO_OFFSET + 2, CHECKSUM_HI_OFFSET));
    crc32c(crc32c(crc, &[0, 0]), part(CHECKSUM_HI_OFFSET + 2, slot.len()))
}

/// Computes the checksum of a slot of the inode table in place.
pub fn seal_inode(slot: &mut [u8], seed: InodeSeed) {
    let Some(seed) = seed.get() else { return };
    let crc = checksum(slot, seed);
    put(slot, CHECKSUM_LO_OFFSET, &lo16(crc).to_le_bytes());
    if has_checksum_hi(slot) {
        put(slot, CHECKSUM_HI_OFFSET, &hi16(crc).to_le_bytes());
    }
}

/// Compares the checksum of a slot of the inode table with its content.
///
/// # Errors
/// [`CorruptKind::Checksum`]. A slot that was never used (all zero) fails, too.
pub fn verify_inode(slot: &[u8], seed: InodeSeed) -> Result<(), CorruptKind> {
    let Some(seed) = seed.get() else { return Ok(()) };
    let want = checksum(slot, seed);
    let hi = if has_checksum_hi(slot) { le16_at(slot, CHECKSUM_HI_OFFSET) } else { 0 };
    let found = join16(hi, le16_at(slot, CHECKSUM_LO_OFFSET));
    if want == found { Ok(()) } else { Err(CorruptKind::Checksum { what: WHAT, want, found }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_spares_the_attributes_behind_the_extra_fields() {
        let mut slot = [0xaa_u8; 256];
        let mut inode = RawInode::zeroed();
        inode.i_extra_isize.set(4);
        inode.i_projid.set(5);
        inode.write(&mut slot).unwrap();
        assert_eq!(slot[132..], [0xaa; 124]);
        assert_eq!(RawInode::read(&slot).unwrap().i_projid.get(), 0);
        let mut small = [0_u8; 128];
        inode.write(&mut small).unwrap();
        assert!(RawInode::read(&small[..127]).is_err());
        slot[EXTRA_ISIZE_OFFSET] = 200;
        assert!(matches!(RawInode::read(&slot), Err(CorruptKind::Range { .. })));
    }

    #[test]
    fn checksums_of_every_slot_shape() {
        for (size, extra) in [(128, 0), (256, 0), (256, 2), (256, 4), (256, 32), (1024, 32)] {
            let mut slot = vec![0x11_u8; size];
            if size > 128 {
                put(&mut slot, EXTRA_ISIZE_OFFSET, &u16::to_le_bytes(extra));
            }
            let seed = InodeSeed(Some(77));
            seal_inode(&mut slot, seed);
            verify_inode(&slot, seed).unwrap();
            *slot.last_mut().unwrap() ^= 1;
            assert!(verify_inode(&slot, seed).is_err());
            assert!(verify_inode(&slot, InodeSeed::NONE).is_ok());
        }
    }

    #[test]
    fn devices_and_space() {
        let mut inode = RawInode::zeroed();
        for (major, minor) in [(8, 1), (259, 0), (8, 300), (4095, 0xf_ffff)] {
            inode.set_device(major, minor);
            assert_eq!(inode.device(), (major, minor));
        }
        assert!(inode.set_sectors(1 << 40, true, 4096) && inode.sectors(true, 4096) == 1 << 40);
        assert!(inode.set_sectors(1 << 50, true, 4096) && inode.sectors(true, 4096) == 1 << 50);
        assert!(inode.flags().contains(InodeFlags::HUGE_FILE));
        assert!(!inode.set_sectors(1 << 32, false, 4096));
    }
}
