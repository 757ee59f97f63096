//! The superblock.
//!
//! On disk: 1024 bytes at byte 1024 of the device, whatever the block size; backups at the start of
//! the groups that `Layout::has_super` names (Documentation: super.rst, `struct ext4_super_block`).

use crate::checksum::{ChecksumKind, Checksums, crc32c};
use crate::error::FormatError;
use crate::features::{Features, Incompat, RoCompat};
use crate::num::{hi32, join32, lo16, lo32};
use crate::units::GroupNo;
use zerocopy::little_endian::{U16, U32, U64};

/// Byte offset of the primary superblock.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Bytes of a superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xef53;
/// `s_state`: cleanly unmounted.
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were found.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: orphans are being recovered.
pub const STATE_ORPHAN: u16 = 4;
/// `s_flags`: directory hashes take bytes as signed.
pub const FLAG_SIGNED_HASH: u32 = 1;
/// `s_flags`: directory hashes take bytes as unsigned.
pub const FLAG_UNSIGNED_HASH: u32 = 2;
/// `s_flags`: developers test with it.
pub const FLAG_TEST: u32 = 4;
/// `s_default_mount_opts`: user extended attributes.
pub const DEFAULT_MOUNT_XATTR_USER: u32 = 0x0004;
/// `s_default_mount_opts`: POSIX access control lists.
pub const DEFAULT_MOUNT_ACL: u32 = 0x0008;
/// `s_default_mount_opts`: words of e2fsprogs and their bits.
pub const DEFAULT_MOUNT_WORDS: [(&str, u32); 12] = [
    ("debug", 0x0001),
    ("bsdgroups", 0x0002),
    ("user_xattr", DEFAULT_MOUNT_XATTR_USER),
    ("acl", DEFAULT_MOUNT_ACL),
    ("uid16", 0x0010),
    ("journal_data", 0x0020),
    ("journal_data_ordered", 0x0040),
    ("journal_data_writeback", 0x0060),
    ("nobarrier", 0x0100),
    ("block_validity", 0x0200),
    ("discard", 0x0400),
    ("nodelalloc", 0x0800),
];
/// `s_checksum_type`: CRC-32C.
pub const CHECKSUM_TYPE_CRC32C: u8 = 1;
/// `s_jnl_backup_type`: `s_jnl_blocks` holds the journal inode's `i_block` and size.
pub const JOURNAL_BACKUP_BLOCKS: u8 = 1;
/// `s_errors`: what to do when an error is found.
pub const ERRORS_CONTINUE: u16 = 1;
/// `s_errors`: remount read only.
pub const ERRORS_RO: u16 = 2;
/// `s_errors`: panic.
pub const ERRORS_PANIC: u16 = 3;

raw_struct! {
    /// `struct ext4_super_block`.
    pub struct RawSuperblock [1024] {
        s_inodes_count: U32,
        s_blocks_count_lo: U32,
        s_r_blocks_count_lo: U32,
        s_free_blocks_count_lo: U32,
        s_free_inodes_count: U32,
        s_first_data_block: U32,
        s_log_block_size: U32,
        s_log_cluster_size: U32,
        s_blocks_per_group: U32,
        s_clusters_per_group: U32,
        s_inodes_per_group: U32,
        s_mtime: U32,
        s_wtime: U32,
        s_mnt_count: U16,
        s_max_mnt_count: U16,
        s_magic: U16,
        s_state: U16,
        s_errors: U16,
        s_minor_rev_level: U16,
        s_lastcheck: U32,
        s_checkinterval: U32,
        s_creator_os: U32,
        s_rev_level: U32,
        s_def_resuid: U16,
        s_def_resgid: U16,
        s_first_ino: U32,
        s_inode_size: U16,
        s_block_group_nr: U16,
        s_feature_compat: U32,
        s_feature_incompat: U32,
        s_feature_ro_compat: U32,
        s_uuid: [u8; 16],
        s_volume_name: [u8; 16],
        s_last_mounted: [u8; 64],
        s_algorithm_usage_bitmap: U32,
        s_prealloc_blocks: u8,
        s_prealloc_dir_blocks: u8,
        s_reserved_gdt_blocks: U16,
        s_journal_uuid: [u8; 16],
        s_journal_inum: U32,
        s_journal_dev: U32,
        s_last_orphan: U32,
        s_hash_seed: [U32; 4],
        s_def_hash_version: u8,
        s_jnl_backup_type: u8,
        s_desc_size: U16,
        s_default_mount_opts: U32,
        s_first_meta_bg: U32,
        s_mkfs_time: U32,
        s_jnl_blocks: [U32; 17],
        s_blocks_count_hi: U32,
        s_r_blocks_count_hi: U32,
        s_free_blocks_count_hi: U32,
        s_min_extra_isize: U16,
        s_want_extra_isize: U16,
        s_flags: U32,
        s_raid_stride: U16,
        s_mmp_interval: U16,
        s_mmp_block: U64,
        s_raid_stripe_width: U32,
        s_log_groups_per_flex: u8,
        s_checksum_type: u8,
        s_encryption_level: u8,
        s_reserved_pad: u8,
        s_kbytes_written: U64,
        s_snapshot_inum: U32,
        s_snapshot_id: U32,
        s_snapshot_r_blocks_count: U64,
        s_snapshot_list: U32,
        s_error_count: U32,
        s_first_error_time: U32,
        s_first_error_ino: U32,
        s_first_error_block: U64,
        s_first_error_func: [u8; 32],
        s_first_error_line: U32,
        s_last_error_time: U32,
        s_last_error_ino: U32,
        s_last_error_line: U32,
        s_last_error_block: U64,
        s_last_error_func: [u8; 32],
        s_mount_opts: [u8; 64],
        s_usr_quota_inum: U32,
        s_grp_quota_inum: U32,
        s_overhead_clusters: U32,
        s_backup_bgs: [U32; 2],
        s_encrypt_algos: [u8; 4],
        s_encrypt_pw_salt: [u8; 16],
        s_lpf_ino: U32,
        s_prj_quota_inum: U32,
        s_checksum_seed: U32,
        s_wtime_hi: u8,
        s_mtime_hi: u8,
        s_mkfs_time_hi: u8,
        s_lastcheck_hi: u8,
        s_first_error_time_hi: u8,
        s_last_error_time_hi: u8,
        s_first_error_errcode: u8,
        s_last_error_errcode: u8,
        s_encoding: U16,
        s_encoding_flags: U16,
        s_orphan_file_inum: U32,
        s_reserved: [U32; 94],
        s_checksum: U32,
    }
}

/// Byte of `s_checksum`; the checksum covers all before it.
const CHECKSUM_OFFSET: usize = std::mem::offset_of!(RawSuperblock, s_checksum);

impl RawSuperblock {
    /// Copies a superblock from 1024 bytes, checking its magic number, and its checksum where it
    /// has one.
    ///
    /// # Errors
    /// [`FormatError::NoSuperblock`], [`FormatError::SuperblockChecksum`].
    pub fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        let sb = Self::from_prefix(bytes).ok_or(FormatError::NoSuperblock { found: 0 })?;
        if sb.s_magic.get() != MAGIC {
            return Err(FormatError::NoSuperblock { found: sb.s_magic.get() });
        }
        sb.verify_checksum()?;
        Ok(sb)
    }

    fn has_checksum(&self) -> bool {
        Features::of(self).ro_compat.contains(RoCompat::METADATA_CSUM)
    }

    fn computed_checksum(&self) -> u32 {
        crc32c(!0, self.bytes().get(..CHECKSUM_OFFSET).unwrap_or_default())
    }

    /// Compares the checksum with the content; passes where metadata has no CRC-32C.
    ///
    /// # Errors
    /// [`FormatError::SuperblockChecksum`].
    pub fn verify_checksum(&self) -> Result<(), FormatError> {
        if !self.has_checksum() {
            return Ok(());
        }
        let (want, found) = (self.computed_checksum(), self.s_checksum.get());
        if want == found { Ok(()) } else { Err(FormatError::SuperblockChecksum { want, found }) }
    }

    /// Computes the checksum over the content; does nothing where metadata has no CRC-32C.
    pub fn seal(&mut self) {
        if self.has_checksum() {
            self.s_checksum.set(self.computed_checksum());
        }
    }

    /// Kind and seed of the file system's checksums.
    #[must_use]
    pub fn checksums(&self) -> Checksums {
        let features = Features::of(self);
        let kind = if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            ChecksumKind::Crc32c
        } else if features.ro_compat.contains(RoCompat::GDT_CSUM) {
            ChecksumKind::Crc16
        } else {
            ChecksumKind::None
        };
        let seed = if features.incompat.contains(Incompat::CSUM_SEED) {
            self.s_checksum_seed.get()
        } else {
            crc32c(!0, &self.s_uuid)
        };
        Checksums { kind, seed, uuid: self.s_uuid }
    }

    fn is_64bit(&self) -> bool {
        Features::of(self).incompat.contains(Incompat::BIT64)
    }

    fn count(&self, hi: U32, lo: U32) -> u64 {
        // The high halves are undefined without the 64bit feature.
        if self.is_64bit() { join32(hi.get(), lo.get()) } else { u64::from(lo.get()) }
    }

    /// Makes a superblock of revision 0 one of revision 1, which can have features, with the values
    /// that revision 0 has by itself.
    pub fn make_dynamic(&mut self) {
        if self.s_rev_level.get() != 0 {
            return;
        }
        self.s_rev_level.set(1);
        self.s_first_ino.set(11);
        self.s_inode_size.set(128);
        crate::Features::default().put(self);
    }

    /// Blocks of the file system.
    #[must_use]
    pub fn blocks_count(&self) -> u64 {
        self.count(self.s_blocks_count_hi, self.s_blocks_count_lo)
    }

    /// Blocks that only the reserved user may take.
    #[must_use]
    pub fn reserved_blocks_count(&self) -> u64 {
        self.count(self.s_r_blocks_count_hi, self.s_r_blocks_count_lo)
    }

    /// Free blocks (clusters with bigalloc).
    #[must_use]
    pub fn free_blocks_count(&self) -> u64 {
        self.count(self.s_free_blocks_count_hi, self.s_free_blocks_count_lo)
    }

    /// Sets the number of blocks.
    pub fn set_blocks_count(&mut self, blocks: u64) {
        self.s_blocks_count_lo.set(lo32(blocks));
        self.s_blocks_count_hi.set(hi32(blocks));
    }

    /// Sets the number of reserved blocks.
    pub fn set_reserved_blocks_count(&mut self, blocks: u64) {
        self.s_r_blocks_count_lo.set(lo32(blocks));
        self.s_r_blocks_count_hi.set(hi32(blocks));
    }

    /// Sets the number of free blocks.
    pub fn set_free_blocks_count(&mut self, blocks: u64) {
        self.s_free_blocks_count_lo.set(lo32(blocks));
        self.s_free_blocks_count_hi.set(hi32(blocks));
    }

    /// The backup of the superblock in a group: its state is not clean, so that a file system that
    /// is recovered from it gets checked.
    #[must_use]
    pub fn for_backup(&self, group: GroupNo) -> Self {
        let mut copy = *self;
        copy.s_block_group_nr.set(lo16(group.get()));
        copy.s_state.set(self.s_state.get() & !STATE_VALID);
        copy.s_feature_incompat.set(self.s_feature_incompat.get() & !Incompat::RECOVER.bits());
        let present = RoCompat::ORPHAN_PRESENT.bits();
        copy.s_feature_ro_compat.set(self.s_feature_ro_compat.get() & !present);
        copy.seal();
        copy
    }

    /// The four words that directory hashes start from; all zero means the built-in ones.
    #[must_use]
    pub fn hash_seed(&self) -> [u32; 4] {
        self.s_hash_seed.map(U32::get)
    }

    /// The hash seed as bytes, in the form of a UUID.
    #[must_use]
    pub fn hash_seed_bytes(&self) -> [u8; 16] {
        zerocopy::transmute!(self.s_hash_seed)
    }

    /// Whether directory hashes take bytes as unsigned.
    #[must_use]
    pub fn hash_is_unsigned(&self) -> bool {
        self.s_flags.get() & FLAG_UNSIGNED_HASH != 0
    }

    /// A time in seconds since 1970 from a 32-bit field and its `_hi` byte.
    #[must_use]
    pub fn time(lo: U32, hi: u8) -> u64 {
        join32(u32::from(hi), lo.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seal_then_verify_and_one_flipped_bit_is_seen() {
        let mut sb = RawSuperblock::zeroed();
        sb.s_magic.set(MAGIC);
        sb.s_rev_level.set(1);
        sb.s_feature_ro_compat.set(RoCompat::METADATA_CSUM.bits());
        sb.set_blocks_count(1 << 40);
        sb.seal();
        assert_eq!(RawSuperblock::read(sb.bytes()).unwrap(), sb);
        sb.s_mtime.set(1);
        assert!(matches!(sb.verify_checksum(), Err(FormatError::SuperblockChecksum { .. })));
    }

    #[test]
    fn high_halves_count_only_with_64bit() {
        let mut sb = RawSuperblock::zeroed();
        sb.s_rev_level.set(1);
        sb.set_blocks_count((7 << 32) | 5);
        assert_eq!(sb.blocks_count(), 5);
        sb.s_feature_incompat.set(Incompat::BIT64.bits());
        assert_eq!(sb.blocks_count(), (7 << 32) | 5);
    }
}
