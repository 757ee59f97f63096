//! Options, named after those of mke2fs, and the defaults of Debian's mke2fs.conf.

use crate::error::{MkfsError, Result};
use crate::journal_device;
use uext4_ondisk::casefold::Encoding;
use uext4_ondisk::features::{Compat, Features, Incompat, RoCompat};
use uext4_ondisk::mmp;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Options of [`crate::format()`]. The default is the file system of `mke2fs -t ext4`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Bytes per block: a power of two from 1024 to 65536 (`-b`).
    pub block_size: Option<u32>,
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
    pub reserved_percent: f64,
    /// Volume label, at most 16 bytes (`-L`). A longer one is cut, with a warning.
    pub label: String,
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
    /// Blocks of a group, a multiple of 8 (`-g`); `None`: as many as a bitmap has bits.
    pub blocks_per_group: Option<u32>,
    /// Groups whose metadata is packed together, a power of two (`-G`).
    pub flex_groups: Option<u32>,
    /// Seconds between two writes of the block by which a host claims the file system, at most 300
    /// (`-E mmp_update_interval=`).
    pub mmp_update_interval: Option<u16>,
    /// Usage type (`-T`); `None`: by the size of the file system.
    pub usage: Option<Usage>,
    /// Owner of the root directory: user and group (`-E root_owner=`).
    pub root_owner: (u32, u32),
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
    pub lazy_itable_init: bool,
    /// Leave the log unwritten where the device is not known to be zero
    /// (`-E lazy_journal_init=1`).
    pub lazy_journal_init: bool,
    /// Ask the device to drop its old content first (`-E discard`).
    pub discard: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            block_size: None,
            cluster_size: None,
            size: None,
            inode_size: None,
            inode_ratio: None,
            inodes: None,
            reserved_percent: 5.0,
            label: String::new(),
            uuid: None,
            fs_type: FsType::Ext4,
            revision_0: false,
            features: String::new(),
            journal_mib: None,
            blocks_per_group: None,
            flex_groups: None,
            mmp_update_interval: None,
            usage: None,
            root_owner: (0, 0),
            hash_seed: None,
            encoding: None,
            time: None,
            quota_types: None,
            lazy_itable_init: false,
            lazy_journal_init: false,
            discard: true,
        }
    }
}

/// File system types of mke2fs.conf: default sets of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsType {
    /// Block maps, no journal.
    Ext2,
    /// Block maps and a journal.
    Ext3,
    /// Extents, checksums and a journal.
    Ext4,
}

impl FsType {
    /// The type by its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "ext2" => Self::Ext2,
            "ext3" => Self::Ext3,
            "ext4" => Self::Ext4,
            _ => return None,
        })
    }

    /// The type with a journal (`-j`).
    #[must_use]
    pub fn with_journal(self) -> Self {
        if self == Self::Ext2 { Self::Ext3 } else { self }
    }

    const fn features(self) -> &'static str {
        match self {
            Self::Ext2 => "",
            Self::Ext3 => "has_journal",
            Self::Ext4 => {
                "has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize"
            }
        }
    }
}

/// Usage types of mke2fs.conf: block size and bytes per inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Below 3 MiB.
    Floppy,
    /// Below 512 MiB.
    Small,
    /// Up to 4 TiB.
    Default,
    /// From 4 TiB.
    Big,
    /// From 16 TiB.
    Huge,
    /// Many small files.
    News,
    /// Files of a megabyte and more.
    LargeFile,
    /// Files of four megabytes and more.
    LargeFile4,
}

impl Usage {
    /// The type by its name in mke2fs.conf.
    ///
    /// # Errors
    /// [`MkfsError::Option`] for an unknown name.
    pub fn parse(name: &str) -> Result<Self> {
        Ok(match name {
            "floppy" => Self::Floppy,
            "small" => Self::Small,
            "default" => Self::Default,
            "big" => Self::Big,
            "huge" => Self::Huge,
            "news" => Self::News,
            "largefile" => Self::LargeFile,
            "largefile4" => Self::LargeFile4,
            _ => return Err(MkfsError::option(format!("unknown usage type {name}"))),
        })
    }

    /// The type by the size in bytes.
    pub(crate) const fn of_size(bytes: u64) -> Self {
        if bytes < 3 * MIB {
            Self::Floppy
        } else if bytes < 512 * MIB {
            Self::Small
        } else if bytes < 4 * TIB {
            Self::Default
        } else if bytes < 16 * TIB {
            Self::Big
        } else {
            Self::Huge
        }
    }

    /// Bytes per block.
    pub(crate) const fn block_size(self) -> u32 {
        match self {
            Self::Floppy | Self::Small => 1024,
            _ => 4096,
        }
    }

    /// Bytes of the device for each inode.
    pub(crate) const fn inode_ratio(self) -> u32 {
        match self {
            Self::Floppy => 8192,
            Self::Small | Self::News => 4096,
            Self::Default => 16384,
            Self::Big => 32768,
            Self::Huge => 65536,
            Self::LargeFile => 1 << 20,
            Self::LargeFile4 => 4 << 20,
        }
    }
}

/// The features of every type.
const BASE_FEATURES: &str = "sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr";

impl Options {
    /// The feature set: the edited default, checked for contradictions.
    pub(crate) fn feature_set(&self) -> Result<Features> {
        let mut set = Features::default();
        if self.revision_0 {
            // The default set is for later ones.
            let has_words = !self.features.is_empty() || self.journal_mib.is_some();
            let message = "revision 0 has no features and no journal";
            return if has_words { Err(MkfsError::option(message)) } else { Ok(set) };
        }
        set.edit(BASE_FEATURES)?;
        set.edit(self.fs_type.features())?;
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
