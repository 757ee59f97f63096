//! Options that were not given: from the profile, by the types of file system and of use.
//!
//! Counterpart: the search for values in `misc/mke2fs.c`, with the values that it has where
//! mke2fs.conf says nothing.

use crate::error::{MkfsError, Result};
use crate::options::Options;
use uext4_ondisk::features::{Features, Incompat, RoCompat};
use uext4_ondisk::superblock::{ERRORS_CONTINUE, ERRORS_PANIC, ERRORS_RO};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

const BASE_FEATURES: &str = "sparse_super,large_file,filetype,resize_inode,dir_index";
/// Bytes per block where the profile asks for those of a page.
const PAGE_BLOCK_SIZE: u32 = 4096;
const INODE_RATIO: u32 = 8192;
/// Bytes of an inode in revision 0, and where the profile says nothing.
pub(crate) const CLASSIC_INODE_SIZE: u32 = 128;
const RESERVED_PERCENT: f64 = 5.0;
const MOUNT_OPTIONS: &str = "acl,user_xattr";

/// File system types: default sets of features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsType {
    /// Block maps, no journal.
    Ext2,
    /// Block maps and a journal.
    Ext3,
    /// Extents, checksums and a journal.
    #[default]
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

    const fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
        }
    }
}

/// What the kernel does on an error in the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// It goes on.
    Continue,
    /// It writes nothing any more.
    RemountReadOnly,
    /// It stops the machine.
    Panic,
}

impl Errors {
    /// The behaviour by its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "continue" => Self::Continue,
            "remount-ro" => Self::RemountReadOnly,
            "panic" => Self::Panic,
            _ => return None,
        })
    }

    pub(crate) const fn number(self) -> u16 {
        match self {
            Self::Continue => ERRORS_CONTINUE,
            Self::RemountReadOnly => ERRORS_RO,
            Self::Panic => ERRORS_PANIC,
        }
    }
}

/// Hash of names in directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// That of the first hashed directories.
    Legacy,
    /// A half of MD4.
    #[default]
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
}

impl HashAlgorithm {
    /// The algorithm by its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "legacy" => Self::Legacy,
            "half_md4" => Self::HalfMd4,
            "tea" => Self::Tea,
            _ => return None,
        })
    }

    pub(crate) const fn number(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
        }
    }
}

/// A length, or a place, as mke2fs takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Blocks: a bare number.
    Blocks(u64),
    /// Bytes: a number with a suffix.
    Bytes(u64),
}

impl Length {
    /// The whole blocks of it.
    pub(crate) const fn blocks(self, block_size: u32) -> u64 {
        match self {
            Self::Blocks(blocks) => blocks,
            Self::Bytes(bytes) => bytes / block_size as u64,
        }
    }
}

/// The usage type by the size in bytes.
const fn usage_of(bytes: u64) -> &'static str {
    if bytes < 3 * MIB {
        "floppy"
    } else if bytes < 512 * MIB {
        "small"
    } else if bytes < 4 * TIB {
        "default"
    } else if bytes < 16 * TIB {
        "big"
    } else {
        "huge"
    }
}

fn named<T>(tag: &str, value: Option<&str>, parse: fn(&str) -> Option<T>) -> Result<Option<T>> {
    let wrong = |value| MkfsError::option(format!("{tag} = {value}: no such value"));
    value.map(|value| parse(value).ok_or_else(|| wrong(value))).transpose()
}

impl Options {
    /// The types whose values hold for a file system of so many bytes.
    fn types(&self, bytes: u64) -> Result<Vec<String>> {
        let name = self.fs_type.name();
        if self.fs_type != FsType::Ext2 && !self.profile.has_type(name) {
            return Err(MkfsError::option(format!("the profile does not define {name}")));
        }
        let is_known = |usage: &String| usage == "default" || self.profile.has_type(usage);
        if let Some(usage) = self.usage.iter().find(|usage| !is_known(usage)) {
            return Err(MkfsError::option(format!("unknown usage type {usage}")));
        }
        let mut types = vec![name.to_owned()];
        match self.usage.as_slice() {
            [] => types.push(usage_of(bytes).to_owned()),
            usage => types.extend_from_slice(usage),
        }
        Ok(types)
    }

    /// The options with those that were not given filled in, for a device of so many bytes.
    pub(crate) fn settled(&self, device_bytes: u64) -> Result<Self> {
        let bytes = self.size.unwrap_or(device_bytes);
        let types = self.types(bytes)?;
        self.refuse_what_is_not_made(&types)?;
        let mut options = self.clone();
        options.settle_sizes(&types, bytes)?;
        options.settle_words(&types)?;
        options.settle_switches(&types)?;
        Ok(options)
    }

    fn refuse_what_is_not_made(&self, types: &[String]) -> Result<()> {
        let has_huge_files = self.profile.switch(types, "make_hugefiles")? == Some(true);
        let has_options = self.profile.value(types, "options").is_some();
        match () {
            () if has_huge_files => {
                Err(MkfsError::option("make_hugefiles: files are not made in advance"))
            }
            () if has_options => Err(MkfsError::option("options: give extended options by -E")),
            () => Ok(()),
        }
    }

    fn settle_sizes(&mut self, types: &[String], bytes: u64) -> Result<()> {
        let profile = &self.profile;
        if self.block_size.is_none() {
            let size = profile.number::<i64>(types, "blocksize")?.map(u32::try_from);
            // A negative number asks for blocks of a page.
            let size = size.and_then(std::result::Result::ok).filter(|size| *size > 0);
            self.block_size =
                Some(size.unwrap_or(PAGE_BLOCK_SIZE).max(self.block_size_min.unwrap_or(0)));
        }
        if !self.revision_0 {
            self.features = self.all_features(types);
        }
        let mut set = Features::default();
        set.edit(&self.features).map_err(|error| MkfsError::option(error.to_string()))?;
        let is_big = bytes / u64::from(self.block_size.unwrap_or(1).max(1)) > u64::from(u32::MAX);
        if is_big && self.profile.switch(types, "auto_64-bit_support")? == Some(true) {
            self.features.push_str(",64bit,^resize_inode");
        }
        let profile = &self.profile;
        if self.inode_size.is_none() {
            let size = profile.number(types, "inode_size")?.filter(|_| !self.revision_0);
            self.inode_size = Some(size.unwrap_or(CLASSIC_INODE_SIZE));
        }
        if self.cluster_size.is_none() && set.ro_compat.contains(RoCompat::BIGALLOC) {
            self.cluster_size = profile.number(types, "cluster_size")?.filter(|size| *size > 0);
        }
        if self.flex_groups.is_none() && set.incompat.contains(Incompat::FLEX_BG) {
            self.flex_groups = profile.number(types, "flex_bg_size")?;
        }
        if self.reserved_percent.is_none() {
            let percent = profile.number(types, "reserved_ratio")?;
            self.reserved_percent = Some(percent.unwrap_or(RESERVED_PERCENT));
        }
        Ok(())
    }

    /// Bytes of the device for each inode where neither `-i` says how many nor do blocks and
    /// clusters.
    pub(crate) fn default_inode_ratio(&self, bytes: u64) -> Result<u32> {
        let types = self.types(bytes)?;
        Ok(self.profile.number(&types, "inode_ratio")?.unwrap_or(INODE_RATIO))
    }

    /// The words of the types, and behind them those that were given.
    fn all_features(&self, types: &[String]) -> String {
        let profile = &self.profile;
        let mut words = profile.value(types, "base_features").unwrap_or(BASE_FEATURES).to_owned();
        let own = match self.features.as_str() {
            "" => profile.value(types, "default_features").unwrap_or(""),
            own => own,
        };
        for more in profile.values(types, "features").chain([own]) {
            words.push(',');
            words.push_str(more);
        }
        words
    }

    fn settle_words(&mut self, types: &[String]) -> Result<()> {
        let value = |tag| (tag, self.profile.value(types, tag));
        if self.errors.is_none() {
            let (tag, value) = value("errors");
            self.errors = named(tag, value, Errors::parse)?;
        }
        if self.hash_algorithm.is_none() {
            let (tag, value) = value("hash_alg");
            self.hash_algorithm = named(tag, value, HashAlgorithm::parse)?;
        }
        if self.default_mount_options.is_none() && !self.revision_0 {
            let (_, value) = value("default_mntopts");
            self.default_mount_options = Some(value.unwrap_or(MOUNT_OPTIONS).to_owned());
        }
        if self.backups.is_none() {
            self.backups = self.profile.number(types, "num_backup_sb")?;
        }
        if self.desc_size.is_none() {
            self.desc_size = self.profile.number(types, "desc_size")?;
        }
        if self.journal_location.is_none() {
            self.journal_location =
                self.profile.number(types, "journal_location")?.map(Length::Blocks);
        }
        Ok(())
    }

    fn settle_switches(&mut self, types: &[String]) -> Result<()> {
        let profile = &self.profile;
        for (option, tag) in [
            (&mut self.periodic_check, "enable_periodic_fsck"),
            (&mut self.packed_meta_blocks, "packed_meta_blocks"),
            (&mut self.lazy_itable_init, "lazy_itable_init"),
            (&mut self.lazy_journal_init, "lazy_journal_init"),
            (&mut self.discard, "discard"),
            (&mut self.assume_zeroed, "assume_storage_prezeroed"),
        ] {
            if option.is_none() {
                *option = profile.switch(types, tag)?;
            }
        }
        Ok(())
    }
}
