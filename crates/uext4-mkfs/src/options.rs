//! Options, named after those of mke2fs, and the feature set that they ask for.

use crate::defaults::{Errors, FsType, HashAlgorithm, Length};
use crate::error::{MkfsError, Result};
use crate::journal_device;
use crate::profile::Profile;
use uext4_ondisk::casefold::Encoding;
use uext4_ondisk::features::{Compat, Features, Incompat, RoCompat};
use uext4_ondisk::mmp;

/// Options of [`crate::format()`]. What is `None` is by the types of file system and of use
/// ([`Profile`]). The default is the file system of `mke2fs -t ext4`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Defaults by type; those of e2fsprogs if nothing else is given.
    pub profile: Profile,
    /// Bytes per block: a power of two from 1024 to 65536 (`-b`).
    pub block_size: Option<u32>,
    /// Least bytes per block where the default is taken (`-b` with a minus sign).
    pub block_size_min: Option<u32>,
    /// Cluster size in bytes, with bigalloc (`-C`). `None`: 16 blocks.
    pub cluster_size: Option<u32>,
    /// Size of the file system in bytes, rounded down to whole blocks. `None`: the whole device.
    pub size: Option<u64>,
    /// Bytes per inode in the inode table, a power of two (`-I`).
    pub inode_size: Option<u32>,
    /// Bytes of the device for each inode (`-i`).
    pub inode_ratio: Option<u32>,
    /// Number of inodes (`-N`); rounded up to whole blocks of each group's table.
    pub inodes: Option<u32>,
    /// Blocks that only the superuser may use, in percent: 0 to 50 (`-m`).
    pub reserved_percent: Option<f64>,
    /// Volume label, at most 16 bytes (`-L`). A longer one is cut, with a warning.
    pub label: String,
    /// Directory where it was mounted last, at most 64 bytes (`-M`). A longer one is cut.
    pub last_mounted: String,
    /// What the kernel does on an error in the file system (`-e`).
    pub errors: Option<Errors>,
    /// UUID (`-U`); random if not given.
    pub uuid: Option<[u8; 16]>,
    /// Which default set of features (`-t`).
    pub fs_type: FsType,
    /// Revision 0 (`-r 0`), which has no features and inodes of 128 bytes, for systems of before
    /// 1996.
    pub revision_0: bool,
    /// Feature list that edits the default set (`-O`).
    pub features: String,
    /// Size of the journal in MiB (`-J size=`); `None` or 0: by the size of the file system.
    pub journal_mib: Option<u32>,
    /// KiB of the journal for fast commits (`-J fast_commit_size=`); `None` or 0: by the size of
    /// the file system.
    pub fast_commit_kib: Option<u32>,
    /// Where the journal begins, or the first free block behind (`-J location=`); `None`: near the
    /// middle.
    pub journal_location: Option<Length>,
    /// The journal may take more than half of what is free, and a file system of fewer blocks than
    /// those with a journal by default has a least one: for the least size.
    pub has_tight_journal: bool,
    /// Size of the orphan file (`-E orphan_file_size=`); `None`: by that of the file system.
    pub orphan_file_size: Option<Length>,
    /// Blocks of a group, a multiple of 8 (`-g`); `None`: as many as a bitmap has bits.
    pub blocks_per_group: Option<u32>,
    /// Groups whose metadata is packed together, a power of two (`-G`).
    pub flex_groups: Option<u32>,
    /// Blocks of a RAID on one disk before the next one (`-E stride=`).
    pub stride: Option<u32>,
    /// Blocks of a stripe of a RAID, without parity (`-E stripe_width=`).
    pub stripe_width: Option<u32>,
    /// Bitmaps, inode tables and journal at the start, with flex_bg (`-E packed_meta_blocks=1`).
    pub packed_meta_blocks: Option<bool>,
    /// Size up to which the file system can grow while it is mounted (`-E resize=`).
    pub resize: Option<Length>,
    /// Backups of the superblock with sparse_super2, 0 to 2 (`-E num_backup_sb=`).
    pub backups: Option<u32>,
    /// Bytes of a group descriptor: 64 with the feature 64bit, else 32 (`-E desc_size=`).
    pub desc_size: Option<u32>,
    /// Flags it as one that developers test with (`-E test_fs`).
    pub is_test: bool,
    /// Hash of names in directories.
    pub hash_algorithm: Option<HashAlgorithm>,
    /// Words for default mount options, separated by commas, as of `tune2fs -o`.
    pub default_mount_options: Option<String>,
    /// Whether it is to be checked each 180 days and after some mounts.
    pub periodic_check: Option<bool>,
    /// Seconds between two writes of the block by which a host claims the file system, at most 300
    /// (`-E mmp_update_interval=`).
    pub mmp_update_interval: Option<u16>,
    /// Usage types (`-T`), of which a later one overrides an earlier one; empty: by the size of the
    /// file system.
    pub usage: Vec<String>,
    /// Owner of the root directory: user and group (`-E root_owner=`); root if not given, and if
    /// nothing that fills it says otherwise.
    pub root_owner: Option<(u32, u32)>,
    /// Mode of the root directory (`-E root_perms=`); 755 in the same way.
    pub root_mode: Option<u16>,
    /// Start of directory hashes (`-E hash_seed=`); random if not given.
    pub hash_seed: Option<[u8; 16]>,
    /// How names fold in directories that fold case (`-E encoding=utf8`, `encoding_flags=strict`).
    /// It adds the feature `casefold`; with the feature alone names need not be UTF-8.
    pub encoding: Option<Encoding>,
    /// Time of making, in seconds since 1970; now if not given.
    pub time: Option<u32>,
    /// Whose quota is kept with the feature `quota`: users', groups', projects' (`-E quotatype=`).
    /// `None`: of users and groups. With the feature `project` that of projects is kept in any
    /// case, and a word for them adds the feature.
    pub quota_types: Option<[bool; 3]>,
    /// Leave inode tables unwritten where the device is not known to be zero (`-E
    /// lazy_itable_init=1`), so that the kernel zeroes them after mounting. This is not the
    /// default, because only the kernel does so. Where the device is known to be zero it makes no
    /// difference: those tables are flagged as zeroed.
    pub lazy_itable_init: Option<bool>,
    /// Leave the log unwritten where the device is not known to be zero
    /// (`-E lazy_journal_init=1`).
    pub lazy_journal_init: Option<bool>,
    /// Ask the device to drop its old content first (`-E discard`); `None`: it is asked.
    pub discard: Option<bool>,
    /// Nothing of the host is in the file system: no names in the block of mmp, no count of what
    /// was written, which depends on what was there.
    pub is_reproducible: bool,
    /// Plan, and write nothing (`-n`).
    pub only_plans: bool,
    /// The device reads as zeros but for its ends, which is not looked at (`-E
    /// assume_storage_prezeroed=1`).
    pub assume_zeroed: Option<bool>,
}

impl Options {
    /// The feature set of options that are settled, checked for contradictions.
    pub(crate) fn feature_set(&self) -> Result<Features> {
        let mut set = Features::default();
        if self.revision_0 {
            // The default set is for later ones.
            let has_words = !self.features.is_empty() || self.journal_mib.is_some();
            let message = "revision 0 has no features and no journal";
            return if has_words { Err(MkfsError::option(message)) } else { Ok(set) };
        }
        set.edit(&self.features).map_err(|e| MkfsError::option(e.to_string()))?;
        let known = Features::makeable();
        let foreign = Features {
            compat: set.compat.difference(known.compat),
            incompat: set.incompat.difference(known.incompat),
            ro_compat: set.ro_compat.difference(known.ro_compat),
        };
        if foreign != Features::default() {
            let names = foreign.names().join(",");
            return Err(MkfsError::option(format!("cannot make feature {names}")));
        }
        let has_quota = set.ro_compat.contains(RoCompat::QUOTA);
        if has_quota && self.quota_types.is_some_and(|[.., projects]| projects) {
            set.ro_compat.insert(RoCompat::PROJECT);
        }
        if set.ro_compat.contains(RoCompat::METADATA_CSUM) {
            set.ro_compat.remove(RoCompat::GDT_CSUM);
        }
        if set.incompat.contains(Incompat::JOURNAL_DEV) {
            return Ok(journal_device::features_of(set));
        }
        if self.encoding.is_some() {
            set.incompat.insert(Incompat::CASEFOLD);
        }
        self.check_features(&set)?;
        Ok(set)
    }

    /// Whether bitmaps, tables and journal lie at the start.
    pub(crate) fn packs_tables(&self, features: &Features) -> bool {
        self.packed_meta_blocks == Some(true) && features.incompat.contains(Incompat::FLEX_BG)
    }

    fn check_features(&self, set: &Features) -> Result<()> {
        let (compat, incompat, ro) = (set.compat, set.incompat, set.ro_compat);
        let sparse = ro.contains(RoCompat::SPARSE_SUPER);
        let rules = [
            (
                ro.contains(RoCompat::BIGALLOC) && !incompat.contains(Incompat::EXTENT),
                "bigalloc needs extent",
            ),
            (
                self.encoding.is_some() && self.features.split(',').any(|word| word == "^casefold"),
                "an encoding needs casefold",
            ),
            (
                incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENT),
                "64bit needs extent: use -O ^64bit",
            ),
            (
                compat.contains(Compat::RESIZE_INODE) && !sparse,
                "resize_inode needs sparse_super: use -O ^resize_inode",
            ),
            (
                compat.contains(Compat::RESIZE_INODE) && incompat.contains(Incompat::META_BG),
                "resize_inode and meta_bg exclude each other: use -O ^resize_inode",
            ),
            (
                self.mmp_update_interval.is_some_and(|seconds| seconds > mmp::INTERVAL_MAX),
                "mmp_update_interval is at most 300 seconds",
            ),
            (
                self.mmp_update_interval.is_some() && !incompat.contains(Incompat::MMP),
                "mmp_update_interval needs the feature mmp",
            ),
            (
                compat.contains(Compat::ORPHAN_FILE) && !compat.contains(Compat::HAS_JOURNAL),
                "orphan_file needs has_journal",
            ),
            (
                incompat.contains(Incompat::CSUM_SEED) && !ro.contains(RoCompat::METADATA_CSUM),
                "metadata_csum_seed needs metadata_csum",
            ),
            (
                ro.contains(RoCompat::PROJECT) && self.inode_size == Some(128),
                "inodes of 128 bytes are too small for projects",
            ),
            (
                self.flex_groups.is_some() && !incompat.contains(Incompat::FLEX_BG),
                "-G needs flex_bg",
            ),
            (
                self.journal_mib.is_some() && !compat.contains(Compat::HAS_JOURNAL),
                "a journal size needs has_journal",
            ),
        ];
        match rules.iter().find(|(broken, _)| *broken) {
            Some((_, message)) => Err(MkfsError::option(*message)),
            None => Ok(()),
        }
    }
}
