//! Feature bits of the superblock, their e2fsprogs names, and the engine's support for them.
//!
//! On disk: `s_feature_compat` (unknown bits: harmless), `s_feature_incompat` (unknown: keep off),
//! `s_feature_ro_compat` (unknown: read only).
//!
//! Invariants: unknown bits are kept and have a name (`FEATURE_I31`), never dropped.

use crate::error::FormatError;
use crate::superblock::RawSuperblock;
use bitflags::bitflags;

bitflags! {
    /// Features that an implementation may ignore.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Compat: u32 {
        /// Directory preallocation (never used).
        const DIR_PREALLOC = 0x0001;
        /// AFS magic inodes.
        const IMAGIC_INODES = 0x0002;
        /// A journal.
        const HAS_JOURNAL = 0x0004;
        /// Extended attributes.
        const EXT_ATTR = 0x0008;
        /// Blocks kept back for growing the group descriptors.
        const RESIZE_INODE = 0x0010;
        /// Hashed directories.
        const DIR_INDEX = 0x0020;
        /// Lazily initialised groups (never used).
        const LAZY_BG = 0x0040;
        /// Snapshot exclude bitmap (never used).
        const SNAPSHOT_BITMAP = 0x0100;
        /// Two backup superblocks at most, in `s_backup_bgs`.
        const SPARSE_SUPER2 = 0x0200;
        /// Fast commits in the journal.
        const FAST_COMMIT = 0x0400;
        /// Inode numbers and UUID must not change (encryption).
        const STABLE_INODES = 0x0800;
        /// A file that lists orphan inodes.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// Features that an implementation must know to read.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Incompat: u32 {
        /// Compressed files (never used).
        const COMPRESSION = 0x0001;
        /// Directory entries carry the file type.
        const FILETYPE = 0x0002;
        /// The journal must be replayed.
        const RECOVER = 0x0004;
        /// The device is a journal.
        const JOURNAL_DEV = 0x0008;
        /// Group descriptors are in their meta group.
        const META_BG = 0x0010;
        /// Files are mapped by extents.
        const EXTENT = 0x0040;
        /// Block numbers may exceed 32 bits; 64-byte group descriptors.
        const BIT64 = 0x0080;
        /// Multiple mount protection.
        const MMP = 0x0100;
        /// A group's metadata may be outside of it.
        const FLEX_BG = 0x0200;
        /// Large attribute values in inodes.
        const EA_INODE = 0x0400;
        /// Data in directory entries (Lustre).
        const DIRDATA = 0x1000;
        /// The checksum seed is in the superblock.
        const CSUM_SEED = 0x2000;
        /// Directories above 2 GiB or three index levels.
        const LARGEDIR = 0x4000;
        /// Small files in the inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted files.
        const ENCRYPT = 0x1_0000;
        /// Case-insensitive directories.
        const CASEFOLD = 0x2_0000;
        /// No feature of the format: a commit of an overlay into the file system has begun, and
        /// has not ended. It has no name of its own, so that it is called as e2fsprogs calls it.
        const HALF_COMMITTED = 0x8000_0000;
        const _ = !0;
    }

    /// Features that an implementation must know to write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct RoCompat: u32 {
        /// Backup superblocks only in groups 0, 1 and powers of 3, 5, 7.
        const SPARSE_SUPER = 0x0001;
        /// Files above 2 GiB.
        const LARGE_FILE = 0x0002;
        /// Directories as B-trees (never used).
        const BTREE_DIR = 0x0004;
        /// `i_blocks` has 48 bits and may count blocks.
        const HUGE_FILE = 0x0008;
        /// CRC-16 in group descriptors and lazy group flags.
        const GDT_CSUM = 0x0010;
        /// Directories may have more than 65,000 subdirectories.
        const DIR_NLINK = 0x0020;
        /// Inodes have room for the fields past 128 bytes.
        const EXTRA_ISIZE = 0x0040;
        /// Snapshots (never used).
        const SNAPSHOT = 0x0080;
        /// Quota in hidden inodes.
        const QUOTA = 0x0100;
        /// Allocation in clusters of blocks.
        const BIGALLOC = 0x0200;
        /// CRC-32C of all metadata.
        const METADATA_CSUM = 0x0400;
        /// Replica (never used).
        const REPLICA = 0x0800;
        /// Never write.
        const READONLY = 0x1000;
        /// Inodes have a project. Its quota has `QUOTA` besides.
        const PROJECT = 0x2000;
        /// Blocks shared between files.
        const SHARED_BLOCKS = 0x4000;
        /// Files with fs-verity.
        const VERITY = 0x8000;
        /// The orphan file may hold entries.
        const ORPHAN_PRESENT = 0x1_0000;
        const _ = !0;
    }
}

/// Feature sets, in the order in which e2fsprogs prints them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    Compat,
    Incompat,
    RoCompat,
}

/// What an implementation here does with a file system that has a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Reads and writes it, or may ignore it.
    ReadWrite,
    /// Reads it. The format says so of every `RoCompat` bit, the unknown ones too.
    ReadOnly,
    /// Keeps off.
    Unsupported,
}

/// Whether mkfs makes file systems that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    Yes,
    No,
}

/// All features with a name: what the engine does with each, whether mkfs makes it, and its
/// e2fsprogs names. The first name is printed, and all are parsed. A feature that the engine learns
/// changes its class here, and its row in docs/features.md.
#[rustfmt::skip]
const TABLE: &[(Set, u32, Class, Made, &[&str])] = &[
    (Set::Compat, 0x0001, Class::ReadWrite, Made::No, &["dir_prealloc"]),
    (Set::Compat, 0x0002, Class::ReadWrite, Made::No, &["imagic_inodes"]),
    (Set::Compat, 0x0004, Class::ReadWrite, Made::Yes, &["has_journal"]),
    (Set::Compat, 0x0008, Class::ReadWrite, Made::Yes, &["ext_attr"]),
    (Set::Compat, 0x0010, Class::ReadWrite, Made::Yes, &["resize_inode"]),
    (Set::Compat, 0x0020, Class::ReadWrite, Made::Yes, &["dir_index"]),
    (Set::Compat, 0x0040, Class::ReadWrite, Made::No, &["lazy_bg"]),
    (Set::Compat, 0x0100, Class::ReadWrite, Made::No, &["snapshot_bitmap"]),
    (Set::Compat, 0x0200, Class::ReadWrite, Made::Yes, &["sparse_super2"]),
    (Set::Compat, 0x0400, Class::ReadWrite, Made::Yes, &["fast_commit"]),
    (Set::Compat, 0x0800, Class::ReadWrite, Made::Yes, &["stable_inodes"]),
    (Set::Compat, 0x1000, Class::ReadWrite, Made::Yes, &["orphan_file"]),
    (Set::Incompat, 0x0001, Class::Unsupported, Made::No, &["compression"]),
    (Set::Incompat, 0x0002, Class::ReadWrite, Made::Yes, &["filetype"]),
    (Set::Incompat, 0x0004, Class::ReadWrite, Made::No, &["needs_recovery"]),
    (Set::Incompat, 0x0008, Class::Unsupported, Made::Yes, &["journal_dev"]),
    (Set::Incompat, 0x0010, Class::ReadWrite, Made::Yes, &["meta_bg"]),
    (Set::Incompat, 0x0040, Class::ReadWrite, Made::Yes, &["extent", "extents"]),
    (Set::Incompat, 0x0080, Class::ReadWrite, Made::Yes, &["64bit"]),
    (Set::Incompat, 0x0100, Class::ReadWrite, Made::Yes, &["mmp"]),
    (Set::Incompat, 0x0200, Class::ReadWrite, Made::Yes, &["flex_bg"]),
    (Set::Incompat, 0x0400, Class::ReadWrite, Made::Yes, &["ea_inode"]),
    (Set::Incompat, 0x1000, Class::Unsupported, Made::No, &["dirdata"]),
    (Set::Incompat, 0x2000, Class::ReadWrite, Made::Yes, &["metadata_csum_seed"]),
    (Set::Incompat, 0x4000, Class::ReadWrite, Made::Yes, &["large_dir"]),
    (Set::Incompat, 0x8000, Class::ReadWrite, Made::Yes, &["inline_data"]),
    (Set::Incompat, 0x1_0000, Class::ReadWrite, Made::Yes, &["encrypt"]),
    (Set::Incompat, 0x2_0000, Class::ReadWrite, Made::Yes, &["casefold", "fname_encoding"]),
    (Set::RoCompat, 0x0001, Class::ReadWrite, Made::Yes, &["sparse_super"]),
    (Set::RoCompat, 0x0002, Class::ReadWrite, Made::Yes, &["large_file"]),
    (Set::RoCompat, 0x0008, Class::ReadWrite, Made::Yes, &["huge_file"]),
    (Set::RoCompat, 0x0010, Class::ReadWrite, Made::Yes, &["uninit_bg", "uninit_groups"]),
    (Set::RoCompat, 0x0020, Class::ReadWrite, Made::Yes, &["dir_nlink"]),
    (Set::RoCompat, 0x0040, Class::ReadWrite, Made::Yes, &["extra_isize"]),
    (Set::RoCompat, 0x0080, Class::ReadOnly, Made::No, &["snapshot"]),
    (Set::RoCompat, 0x0100, Class::ReadWrite, Made::Yes, &["quota"]),
    (Set::RoCompat, 0x0200, Class::ReadWrite, Made::Yes, &["bigalloc"]),
    (Set::RoCompat, 0x0400, Class::ReadWrite, Made::Yes, &["metadata_csum"]),
    (Set::RoCompat, 0x0800, Class::ReadOnly, Made::No, &["replica"]),
    (Set::RoCompat, 0x1000, Class::ReadOnly, Made::No, &["read-only"]),
    (Set::RoCompat, 0x2000, Class::ReadWrite, Made::Yes, &["project"]),
    (Set::RoCompat, 0x4000, Class::ReadOnly, Made::No, &["shared_blocks"]),
    (Set::RoCompat, 0x8000, Class::ReadWrite, Made::Yes, &["verity"]),
    (Set::RoCompat, 0x1_0000, Class::ReadWrite, Made::No, &["orphan_present"]),
];

/// The bits of a set that `TABLE` has in one class.
const fn bits_of(set: Set, class: Class) -> u32 {
    let (mut bits, mut rows) = (0, TABLE);
    while let [(of, mask, is, ..), rest @ ..] = rows {
        if *of as u8 == set as u8 && *is as u8 == class as u8 {
            bits |= *mask;
        }
        rows = rest;
    }
    bits
}

/// Names of the bits set in `bits`, ascending, unknown ones as `PREFIX` and bit number.
pub(crate) fn names_of(
    bits: u32,
    prefix: &str,
    name: impl Fn(u32) -> Option<&'static str>,
) -> Vec<String> {
    let set = (0..u32::BITS).filter(|&bit| bits & (1 << bit) != 0);
    set.map(|bit| match name(1 << bit) {
        Some(known) => known.to_owned(),
        None => format!("{prefix}{bit}"),
    })
    .collect()
}

fn name_in(set: Set, mask: u32) -> Option<&'static str> {
    let (.., names) = TABLE.iter().find(|(s, m, ..)| *s == set && *m == mask)?;
    names.first().copied()
}

impl Compat {
    /// e2fsprogs names of the bits that are set.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), "FEATURE_C", |mask| name_in(Set::Compat, mask))
    }
}

impl Incompat {
    /// e2fsprogs names of the bits that are set.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), "FEATURE_I", |mask| name_in(Set::Incompat, mask))
    }

    /// The names for whoever is refused the file system because of them, with what to do.
    #[must_use]
    pub fn refused_names(self) -> Vec<String> {
        let mut names = self.names();
        if self.contains(Self::HALF_COMMITTED) {
            let what = "(half committed from an overlay: finish that by uext4 overlay commit)";
            names.push(what.to_owned());
        }
        names
    }

    /// The features that the engine reads and writes.
    pub const WRITABLE: Self = Self::from_bits_retain(bits_of(Set::Incompat, Class::ReadWrite));
    /// The features that the engine reads.
    pub const READABLE: Self =
        Self::WRITABLE.union(Self::from_bits_retain(bits_of(Set::Incompat, Class::ReadOnly)));
}

impl RoCompat {
    /// e2fsprogs names of the bits that are set.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        names_of(self.bits(), "FEATURE_R", |mask| name_in(Set::RoCompat, mask))
    }

    /// The features that the engine writes.
    pub const WRITABLE: Self = Self::from_bits_retain(bits_of(Set::RoCompat, Class::ReadWrite));
}

/// The three feature sets of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// May be ignored.
    pub compat: Compat,
    /// Needed to read.
    pub incompat: Incompat,
    /// Needed to write.
    pub ro_compat: RoCompat,
}

impl Features {
    /// The feature sets of a superblock. Revision 0 file systems have none.
    #[must_use]
    pub fn of(sb: &RawSuperblock) -> Self {
        if sb.s_rev_level.get() == 0 {
            return Self::default();
        }
        Self {
            compat: Compat::from_bits_retain(sb.s_feature_compat.get()),
            incompat: Incompat::from_bits_retain(sb.s_feature_incompat.get()),
            ro_compat: RoCompat::from_bits_retain(sb.s_feature_ro_compat.get()),
        }
    }

    /// The features that mkfs makes.
    #[must_use]
    pub fn makeable() -> Self {
        let mut made = Self::default();
        for &(set, mask, _, is, _) in TABLE {
            match set {
                _ if is == Made::No => {}
                Set::Compat => made.compat |= Compat::from_bits_retain(mask),
                Set::Incompat => made.incompat |= Incompat::from_bits_retain(mask),
                Set::RoCompat => made.ro_compat |= RoCompat::from_bits_retain(mask),
            }
        }
        made
    }

    /// Puts the feature sets in a superblock.
    pub fn put(&self, sb: &mut RawSuperblock) {
        sb.s_feature_compat.set(self.compat.bits());
        sb.s_feature_incompat.set(self.incompat.bits());
        sb.s_feature_ro_compat.set(self.ro_compat.bits());
    }

    /// e2fsprogs names in the order of `dumpe2fs -h`.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names = self.compat.names();
        names.extend(self.incompat.names());
        names.extend(self.ro_compat.names());
        names
    }

    /// Changes the sets by a `-O` list: words separated by commas or blanks; `^word` or `-word`
    /// clears, `none` clears all.
    ///
    /// # Errors
    /// [`FormatError::UnknownFeatureName`] at the first word that names no feature; earlier words
    /// have taken effect then.
    pub fn edit(&mut self, list: &str) -> Result<(), FormatError> {
        let words = list.split(|c: char| c == ',' || c.is_ascii_whitespace());
        for word in words.filter(|w| !w.is_empty()) {
            if word.eq_ignore_ascii_case("none") {
                *self = Self::default();
                continue;
            }
            let (name, on) = match word.strip_prefix(['^', '-']) {
                Some(name) => (name, false),
                None => (word.strip_prefix('+').unwrap_or(word), true),
            };
            let Some((set, mask)) = parse_name(name) else {
                return Err(FormatError::UnknownFeatureName { name: name.to_owned() });
            };
            match set {
                Set::Compat => self.compat.set(Compat::from_bits_retain(mask), on),
                Set::Incompat => self.incompat.set(Incompat::from_bits_retain(mask), on),
                Set::RoCompat => self.ro_compat.set(RoCompat::from_bits_retain(mask), on),
            }
        }
        Ok(())
    }
}

/// Set and mask of a feature's name, known or of the form `FEATURE_I31`.
fn parse_name(name: &str) -> Option<(Set, u32)> {
    let has_name = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    if let Some(&(set, mask, ..)) = TABLE.iter().find(|(.., names)| has_name(names)) {
        return Some((set, mask));
    }
    let rest = name.strip_prefix("FEATURE_")?;
    let (set, digits) = match rest.split_at_checked(1)? {
        ("C", digits) => (Set::Compat, digits),
        ("I", digits) => (Set::Incompat, digits),
        ("R", digits) => (Set::RoCompat, digits),
        _ => return None,
    };
    let bit = digits.parse::<u32>().ok()?;
    Some((set, 1_u32.checked_shl(bit)?))
}

/// The engine's support for a file system, by its features alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// Read and write.
    ReadWrite,
    /// Read only, for these reasons.
    ReadOnly(Vec<String>),
    /// Not at all: names of the features that are not understood.
    Refused(Vec<String>),
}

/// The UUID of the device that holds the journal, if that is another one.
#[must_use]
pub fn external_journal(sb: &RawSuperblock) -> Option<String> {
    let has_journal = Features::of(sb).compat.contains(Compat::HAS_JOURNAL);
    if !has_journal || sb.s_journal_inum.get() != 0 {
        return None;
    }
    Some(uuid_text(&sb.s_journal_uuid))
}

/// A UUID as it is written.
#[must_use]
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (at, byte) in uuid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Judges a superblock's features. That a journal is on another device ([`external_journal`]) is no
/// part of it.
#[must_use]
pub fn support(sb: &RawSuperblock) -> Support {
    let features = Features::of(sb);
    let foreign = features.incompat.difference(Incompat::READABLE);
    if !foreign.is_empty() {
        return Support::Refused(foreign.refused_names());
    }
    let mut unwritable = features.incompat.difference(Incompat::WRITABLE).names();
    unwritable.extend(features.ro_compat.difference(RoCompat::WRITABLE).names());
    let mut reasons: Vec<String> =
        unwritable.iter().map(|name| format!("unsupported feature {name}")).collect();
    if !features.incompat.contains(Incompat::EXTENT) && sb.blocks_count() > 1 << 32 {
        reasons.push("block numbers above 32 bits without the extent feature".to_owned());
    }
    let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
    if !has_journal && features.incompat.contains(Incompat::RECOVER) {
        reasons.push("needs_recovery without a journal".to_owned());
    }
    if sb.s_log_block_size.get() > 2 {
        reasons.push("blocks above 4096 bytes".to_owned());
    }
    // Their inodes have the attribute block's number where others have the count of references.
    if sb.s_creator_os.get() == crate::layout::derive::CREATOR_HURD
        && features.incompat.contains(Incompat::EA_INODE)
    {
        reasons.push("ea_inode of the Hurd".to_owned());
    }
    if features.ro_compat.contains(RoCompat::BIGALLOC) {
        if !features.incompat.contains(Incompat::EXTENT) {
            reasons.push("bigalloc without the extent feature".to_owned());
        }
        // Larger ones are refused elsewhere.
        let ratio =
            1_u64 << (sb.s_log_cluster_size.get().saturating_sub(sb.s_log_block_size.get()) & 31);
        if !sb.blocks_count().is_multiple_of(ratio) {
            reasons.push("a last cluster of bigalloc that is cut off".to_owned());
        }
    }
    if reasons.is_empty() { Support::ReadWrite } else { Support::ReadOnly(reasons) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_edit_features_as_mke2fs_does() {
        let mut f = Features::default();
        f.edit("has_journal,extent 64bit,^extents").unwrap();
        assert_eq!(f.names(), ["has_journal", "64bit"]);
        f.edit("none,FEATURE_I31,uninit_groups").unwrap();
        assert_eq!(f.names(), ["FEATURE_I31", "uninit_bg"]);
        assert!(f.edit("no_such").is_err());
        assert!(f.edit("FEATURE_I32").is_err());
    }

    /// docs/features.md has a row for each feature, which says what this table says.
    #[test]
    fn the_document_has_the_table() {
        let text = include_str!("../../../docs/features.md");
        for (_, _, class, made, names) in TABLE {
            let class = match class {
                Class::ReadWrite => "read and write",
                Class::ReadOnly => "read only",
                Class::Unsupported => "refused",
            };
            let made = if *made == Made::Yes { "yes" } else { "no" };
            let row = format!("| `{}` | {class} | {made} |", names[0]);
            assert!(text.contains(&row), "docs/features.md has no row that begins with {row}");
        }
    }

    #[test]
    fn support_names_what_stands_in_the_way() {
        let mut sb = RawSuperblock::zeroed();
        sb.s_rev_level.set(1);
        sb.s_journal_inum.set(8);
        let mut f = Features::default();
        f.edit("has_journal,extent,metadata_csum").unwrap();
        f.put(&mut sb);
        assert_eq!(support(&sb), Support::ReadWrite);
        f.edit("^has_journal").unwrap();
        f.put(&mut sb);
        assert_eq!(support(&sb), Support::ReadWrite);
        f.edit("replica,snapshot,needs_recovery,FEATURE_R30").unwrap();
        f.put(&mut sb);
        assert_eq!(
            support(&sb),
            Support::ReadOnly(vec![
                "unsupported feature snapshot".to_owned(),
                "unsupported feature replica".to_owned(),
                "unsupported feature FEATURE_R30".to_owned(),
                "needs_recovery without a journal".to_owned(),
            ])
        );
        f.edit("dirdata,FEATURE_I30").unwrap();
        f.put(&mut sb);
        assert_eq!(
            support(&sb),
            Support::Refused(vec!["dirdata".to_owned(), "FEATURE_I30".to_owned()])
        );
        f.incompat = Incompat::HALF_COMMITTED;
        f.put(&mut sb);
        let Support::Refused(names) = support(&sb) else { panic!("not refused") };
        assert_eq!(names[0], "FEATURE_I31");
        assert!(names[1].contains("uext4 overlay commit"), "{names:?}");
    }
}
