//! Everything that can be wrong with a file system, one variant each.
//!
//! What: a [`Problem`] keeps the numbers that a repair would need; code, severity, place and
//! sentence are derived from it. Codes are stable: scripts and tests match on them. A code is
//! `structure.fault`; docs/fsck.md lists all of them.

use std::fmt;

use uext4_ondisk::{BlockNo, GroupNo, Ino};

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing: lawful, but odd or stale. Does not make a file system unclean.
    Warning,
    /// Something is wrong: the file system needs repair.
    Error,
    /// So wrong that the rest cannot be judged; the check stopped here.
    Fatal,
}

impl Severity {
    /// One word, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Fatal => "fatal",
        }
    }
}

/// The place of a finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The superblock.
    Superblock,
    /// A block group, its descriptor and its bitmaps.
    Group(GroupNo),
    /// An inode.
    Inode(Ino),
    /// A block of the device.
    Block(BlockNo),
    /// A block of a directory, counted in the directory.
    DirBlock(Ino, u32),
    /// An entry of a directory.
    Entry(Ino, Vec<u8>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => f.write_str("superblock"),
            Self::Group(group) => write!(f, "group {group}"),
            Self::Inode(ino) => write!(f, "inode {ino}"),
            Self::Block(block) => write!(f, "block {block}"),
            Self::DirBlock(dir, block) => write!(f, "directory {dir} block {block}"),
            Self::Entry(dir, name) => write!(f, "directory {dir} entry '{}'", Name(name)),
        }
    }
}

/// A name of an image, printable whatever it holds.
pub(crate) struct Name<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "{}", c.escape_default())?
                } else {
                    write!(f, "{c}")?
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// A code, for documentation and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The code itself.
    pub code: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The sentence, with the names of its numbers in braces.
    pub sentence: &'static str,
}

macro_rules! problems {
    ($( $name:ident { $($field:ident : $type:ty),* } $code:literal $severity:ident
        $place:expr, $sentence:literal; )*) => {
        /// One thing that is wrong. Numbers named `found` are on the device. Those named `want` are
        /// what the rest of the file system says.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the sentences say what each means
        pub enum Problem { $( $name { $($field : $type),* }, )* }

        /// All codes, in the order of the passes.
        pub const CODES: &[Code] = &[
            $( Code { code: $code, severity: Severity::$severity, sentence: $sentence }, )*
        ];

        impl Problem {
            /// The stable code.
            #[must_use]
            pub fn code(&self) -> &'static str {
                match self { $( Self::$name { .. } => $code, )* }
            }

            /// How much it matters.
            #[must_use]
            pub fn severity(&self) -> Severity {
                match self { $( Self::$name { .. } => Severity::$severity, )* }
            }

            /// Its place.
            #[must_use]
            #[allow(unused_variables)]
            pub fn place(&self) -> Place {
                match self { $( Self::$name { $($field),* } => place_of($place), )* }
            }

            /// What is wrong, in a plain sentence without the place.
            #[must_use]
            #[allow(unused_variables)]
            pub fn sentence(&self) -> String {
                match self { $( Self::$name { $($field),* } => format!($sentence), )* }
            }
        }
    };
}

/// Converts the values in the table below to places.
fn place_of(place: impl Into<Place>) -> Place {
    place.into()
}

struct Sb;

impl From<Sb> for Place {
    fn from(_: Sb) -> Self {
        Self::Superblock
    }
}

impl From<&GroupNo> for Place {
    fn from(group: &GroupNo) -> Self {
        Self::Group(*group)
    }
}

impl From<&Ino> for Place {
    fn from(ino: &Ino) -> Self {
        Self::Inode(*ino)
    }
}

impl From<&BlockNo> for Place {
    fn from(block: &BlockNo) -> Self {
        Self::Block(*block)
    }
}

impl From<(&Ino, &u32)> for Place {
    fn from((dir, block): (&Ino, &u32)) -> Self {
        Self::DirBlock(*dir, *block)
    }
}

impl From<(&Ino, &Vec<u8>)> for Place {
    fn from((dir, name): (&Ino, &Vec<u8>)) -> Self {
        Self::Entry(*dir, name.clone())
    }
}

problems! {
    // Superblock and group descriptors.
    SuperMagic { found: u16 } "superblock.magic" Error
        Sb, "magic is {found:#06x}, want 0xef53; a backup was used";
    SuperChecksum { found: u32, want: u32 } "superblock.checksum" Error
        Sb, "checksum is {found:#010x}, want {want:#010x}";
    SuperGeometry { why: String } "superblock.geometry" Fatal
        Sb, "describes no file system: {why}";
    SuperDeviceSize { blocks: u64, device: u64 } "superblock.device_size" Fatal
        Sb, "has {blocks} blocks, the device only {device}";
    SuperReserved { found: u64, max: u64 } "superblock.reserved_blocks" Fatal
        Sb, "{found} blocks are reserved, at most {max} may be";
    SuperChecksumType { found: u8 } "superblock.checksum_type" Fatal
        Sb, "checksum type is {found}, want 1";
    SuperMmp { block: u64, why: String } "superblock.mmp" Fatal
        Sb, "MMP block {block}: {why}";
    SuperFreeBlocks { found: u64, want: u64 } "superblock.free_blocks" Warning
        Sb, "free blocks are {found}, counted {want}";
    SuperFreeInodes { found: u64, want: u64 } "superblock.free_inodes" Warning
        Sb, "free inodes are {found}, counted {want}";
    SuperExtraIsize { found: u16 } "superblock.extra_isize" Warning
        Sb, "wanted or required extra size of inodes is {found}, which is invalid";
    SuperReservedGdt { found: u16 } "superblock.reserved_gdt" Warning
        Sb, "{found} blocks are reserved for descriptors without resize_inode";
    SuperErrors { } "superblock.errors" Warning
        Sb, "errors were noted by a mount";
    SuperFutureTime { field: &'static str } "superblock.future_time" Warning
        Sb, "{field} lies in the future";
    SuperLargeFile { } "superblock.large_file" Error
        Sb, "there are files of 2 GiB or more without the large_file feature";
    GroupChecksum { group: GroupNo, found: u32, want: u32 } "group.checksum" Error
        group, "checksum of the descriptor is {found:#06x}, want {want:#06x}";
    GroupBlockBitmapPlace { group: GroupNo, block: u64 } "group.block_bitmap_place" Error
        group, "block bitmap is at block {block}, which cannot be";
    GroupInodeBitmapPlace { group: GroupNo, block: u64 } "group.inode_bitmap_place" Error
        group, "inode bitmap is at block {block}, which cannot be";
    GroupInodeTablePlace { group: GroupNo, block: u64 } "group.inode_table_place" Error
        group, "inode table starts at block {block}, which cannot be";
    GroupOverlap { group: GroupNo, what: &'static str, block: u64 } "group.overlap" Error
        group, "{what} at block {block} overlaps other metadata";
    GroupUnusedInodes { group: GroupNo, found: u32 } "group.unused_inodes" Error
        group, "{found} inodes are said to be never used, which contradicts the other counts";
    GroupUninit { group: GroupNo } "group.uninit" Error
        group, "is marked uninitialised, in whole or part, without the feature for it";
    GroupUninitLast { group: GroupNo } "group.uninit_last" Error
        group, "the last group's block bitmap is marked uninitialised";

    // Journal, orphans, hidden inodes.
    JournalInode { ino: Ino, why: &'static str } "journal.inode" Error
        ino, "cannot be a journal: {why}";
    JournalSuperblock { ino: Ino, why: String } "journal.superblock" Error
        ino, "journal superblock: {why}";
    JournalDirty { ino: Ino } "journal.dirty" Warning
        ino, "the journal holds transactions; the file system was checked without them";
    JournalNotMarked { ino: Ino } "journal.not_marked" Error
        ino, "the journal holds transactions, but needs_recovery is not set";
    JournalErrno { ino: Ino, errno: i32 } "journal.errno" Warning
        ino, "the journal was aborted with error {errno}";
    JournalUnexpected { ino: Ino } "journal.unexpected" Warning
        ino, "there is a journal, but not the has_journal feature";
    JournalDevice { why: String } "journal.device" Error
        Sb, "journal device: {why}";
    JournalDeviceUser { why: String } "journal.device_user" Warning
        Sb, "journal device: {why}";
    OrphanInode { ino: Ino } "orphan.inode" Error
        ino, "is on the list of orphans: deleted or to be cut, but not yet dealt with";
    OrphanFile { ino: Ino, why: String } "orphan.file" Error
        ino, "orphan file: {why}";
    OrphanFileDirty { ino: Ino, block: u64 } "orphan.file_dirty" Error
        ino, "orphan file: block {block} lists orphans that are not dealt with";
    OrphanPresent { } "orphan.present" Error
        Sb, "orphan_present is set, but the orphan file is empty";
    ResizeInode { why: &'static str } "resize.inode" Error
        &Ino::RESIZE, "resize inode: {why}";
    ResizeBlocks { found: u64, want: u64 } "resize.blocks" Error
        &Ino::RESIZE, "resize inode names block {found}, want {want}";
    ResizeStale { } "resize.stale" Warning
        &Ino::RESIZE, "resize inode is in use without the resize_inode feature";

    // Inodes.
    InodeChecksum { ino: Ino, found: u32, want: u32 } "inode.checksum" Error
        ino, "checksum is {found:#010x}, want {want:#010x}";
    InodeMode { ino: Ino, mode: u16 } "inode.mode" Error
        ino, "mode {mode:#o} names no file type";
    InodeReservedMode { ino: Ino, mode: u16 } "inode.reserved_mode" Error
        ino, "is reserved and has mode {mode:#o}";
    InodeDeleted { ino: Ino } "inode.dtime" Error
        ino, "is in use, but has a time of deletion";
    InodeZeroDtime { ino: Ino } "inode.zero_dtime" Error
        ino, "has no links and no time of deletion";
    InodeRoot { why: &'static str } "inode.root" Error
        &Ino::ROOT, "the root directory {why}";
    InodeExtraSize { ino: Ino, found: u16 } "inode.extra_size" Error
        ino, "extra size is {found}, which is invalid";
    InodeFlags { ino: Ino, why: &'static str } "inode.flags" Error
        ino, "{why}";
    InodeSize { ino: Ino, found: u64, want: u64 } "inode.size" Error
        ino, "size is {found}, its blocks say {want}";
    InodeBlocks { ino: Ino, found: u64, want: u64 } "inode.blocks" Error
        ino, "space is {found} sectors, counted {want}";
    InodeUnusedField { ino: Ino, field: &'static str } "inode.unused_field" Error
        ino, "{field} must be zero";
    InodeDevice { ino: Ino } "inode.device" Error
        ino, "is no valid device, pipe or socket";
    InodeSpecialSize { ino: Ino, found: u64 } "inode.special_size" Error
        ino, "is a device, pipe or socket with size {found}";
    InodeSymlink { ino: Ino } "inode.symlink" Error
        ino, "symbolic link: target and size do not fit";
    InodeInline { ino: Ino, why: &'static str } "inode.inline_data" Error
        ino, "data in the inode: {why}";
    InodeEncryption { ino: Ino, why: &'static str } "inode.encryption" Error
        ino, "{why}";
    InodeBadBlocks { ino: Ino, block: u64 } "inode.bad_blocks" Error
        ino, "lists bad block {block}, which holds metadata or does not exist";

    // Mappings.
    ExtentHeader { ino: Ino, block: u64, why: &'static str } "extent.header" Error
        ino, "extent node in block {block}: {why}";
    ExtentChecksum { ino: Ino, block: u64 } "extent.checksum" Error
        ino, "extent node in block {block} does not match its checksum";
    ExtentOrder { ino: Ino, logical: u64 } "extent.order" Error
        ino, "extent at file block {logical} is out of order or overlaps the one before";
    ExtentRange { ino: Ino, logical: u64, start: u64, len: u64 } "extent.range" Error
        ino, "extent at file block {logical}: blocks {start}+{len} are outside the file system";
    ExtentLength { ino: Ino, logical: u64 } "extent.length" Error
        ino, "extent at file block {logical} is empty";
    ExtentEnd { ino: Ino, logical: u64 } "extent.end" Error
        ino, "extent at file block {logical} reaches past the range of its node";
    ExtentKey { ino: Ino, logical: u64, found: u64 } "extent.key" Error
        ino, "index says file block {logical}, its node starts with {found}";
    ExtentDepth { ino: Ino, depth: u64 } "extent.depth" Warning
        ino, "extent tree is {depth} levels deep, more than it needs";
    ExtentUnwrittenDir { ino: Ino, logical: u64 } "extent.unwritten_dir" Error
        ino, "directory has an unwritten extent at file block {logical}";
    BlockRange { ino: Ino, logical: u64, block: u64 } "block.range" Error
        ino, "block {block} (file block {logical}) is outside the file system";
    BlockShared { ino: Ino, block: u64, count: u64 } "block.shared" Error
        ino, "{count} blocks from {block} belong to another file or to metadata as well";
    BlockTooBig { ino: Ino, logical: u64 } "block.too_big" Error
        ino, "file block {logical} is past what such a file may have";
    BlockCluster { ino: Ino, logical: u64, block: u64 } "block.cluster" Error
        ino, "block {block} (file block {logical}) breaks the rules of clusters";
    BlockMap { ino: Ino } "block.map" Error
        ino, "is mapped by blocks in a file system with clusters";
    Read { block: BlockNo, why: String } "device.read" Error
        block, "cannot be read: {why}";

    // Extended attributes.
    XattrPlace { ino: Ino, block: u64 } "xattr.place" Error
        ino, "attribute block {block} cannot be";
    XattrBlock { block: BlockNo, ino: Ino, why: String } "xattr.block" Error
        block, "attributes of inode {ino}: {why}";
    XattrChecksum { block: BlockNo, ino: Ino } "xattr.checksum" Error
        block, "attributes of inode {ino} do not match their checksum";
    XattrRefcount { block: BlockNo, found: u32, want: u32 } "xattr.refcount" Error
        block, "attribute block has reference count {found}, counted {want}";
    XattrHash { ino: Ino, found: u32 } "xattr.hash" Error
        ino, "an attribute has the hash {found:#010x}, which is invalid";
    XattrInode { ino: Ino, why: &'static str } "xattr.inode" Error
        ino, "attributes in the inode: {why}";
    XattrValueInode { ino: Ino, value: u64, why: &'static str } "xattr.value_inode" Error
        ino, "attribute value in inode {value}: {why}";
    XattrValueRefcount { ino: Ino, found: u64, want: u64 } "xattr.value_refcount" Error
        ino, "holds an attribute value with reference count {found}, counted {want}";

    // Directories.
    DirHole { dir: Ino, block: u32 } "dir.hole" Error
        (dir, block), "has no block on the device";
    DirEmpty { ino: Ino } "dir.empty" Error
        ino, "is a directory without blocks";
    DirBlock { dir: Ino, block: u32, offset: u32, why: &'static str } "dir.block" Error
        (dir, block), "record at byte {offset}: {why}";
    DirChecksum { dir: Ino, block: u32 } "dir.checksum" Error
        (dir, block), "does not match its checksum";
    DirNoChecksum { dir: Ino, block: u32 } "dir.no_checksum" Error
        (dir, block), "has no checksum";
    DirDot { dir: Ino, why: &'static str } "dir.dot" Error
        dir, "'.' {why}";
    DirDotDot { dir: Ino, why: &'static str } "dir.dotdot" Error
        dir, "'..' {why}";
    DirParent { dir: Ino, found: Ino, want: Ino } "dir.parent" Error
        dir, "'..' is inode {found}, but its entry is in {want}";
    DirUnconnected { dir: Ino } "dir.unconnected" Error
        dir, "cannot be reached from the root";
    EntryInode { dir: Ino, name: Vec<u8>, found: u64 } "entry.inode" Error
        (dir, name), "names inode {found}, which no entry may";
    EntryUnused { dir: Ino, name: Vec<u8>, found: Ino } "entry.unused_inode" Error
        (dir, name), "names inode {found}, which is not in use";
    EntryName { dir: Ino, name: Vec<u8>, why: &'static str } "entry.name" Error
        (dir, name), "{why}";
    EntryType { dir: Ino, name: Vec<u8>, found: u8, want: u8 } "entry.type" Error
        (dir, name), "has file type {found}, the inode says {want}";
    EntryTypeUnset { dir: Ino, name: Vec<u8>, want: u8 } "entry.type_unset" Warning
        (dir, name), "has no file type, the inode says {want}";
    EntryDirLink { dir: Ino, name: Vec<u8>, found: Ino } "entry.directory_link" Error
        (dir, name), "is a second link to directory {found}";
    EntryDuplicate { dir: Ino, name: Vec<u8> } "entry.duplicate" Error
        (dir, name), "the name is there twice";
    HtreeRoot { dir: Ino, why: &'static str } "htree.root" Error
        dir, "hash tree: {why}";
    HtreeNode { dir: Ino, block: u32, why: &'static str } "htree.node" Error
        (dir, block), "hash tree node: {why}";
    HtreeChecksum { dir: Ino, block: u32 } "htree.checksum" Error
        (dir, block), "hash tree node does not match its checksum";
    HtreeHash { dir: Ino, block: u32, found: u32 } "htree.hash" Error
        (dir, block), "holds a name with hash {found:#010x}, outside the range of the block";
    HtreeUnreferenced { dir: Ino, block: u32 } "htree.unreferenced" Error
        (dir, block), "is in no node of the hash tree";
    HtreeReferenced { dir: Ino, block: u32 } "htree.referenced" Error
        (dir, block), "is in the hash tree twice";

    // Links, counts, bitmaps.
    LinkCount { ino: Ino, found: u32, want: u32 } "link.count" Error
        ino, "link count is {found}, counted {want}";
    LinkNone { ino: Ino } "link.unattached" Error
        ino, "is in use, but in no directory";
    BlockBitmap { group: GroupNo, used: u64, unused: u64, first: u64 } "bitmap.blocks" Error
        group, "block bitmap: {used} used blocks are free, {unused} free ones used, from {first}";
    InodeBitmap { group: GroupNo, used: u64, unused: u64, first: u64 } "bitmap.inodes" Error
        group, "inode bitmap: {used} used inodes are free, {unused} free ones used, from {first}";
    BlockBitmapChecksum { group: GroupNo } "bitmap.blocks_checksum" Error
        group, "block bitmap does not match its checksum";
    InodeBitmapChecksum { group: GroupNo } "bitmap.inodes_checksum" Error
        group, "inode bitmap does not match its checksum";
    BlockBitmapPadding { group: GroupNo } "bitmap.blocks_padding" Error
        group, "bits past the end of the block bitmap are not set";
    InodeBitmapPadding { group: GroupNo } "bitmap.inodes_padding" Error
        group, "bits past the end of the inode bitmap are not set";
    GroupFreeBlocks { group: GroupNo, found: u32, want: u32 } "group.free_blocks" Error
        group, "free blocks are {found}, counted {want}";
    GroupFreeInodes { group: GroupNo, found: u32, want: u32 } "group.free_inodes" Error
        group, "free inodes are {found}, counted {want}";
    GroupDirs { group: GroupNo, found: u32, want: u32 } "group.directories" Error
        group, "directories are {found}, counted {want}";

    // Quota.
    QuotaFile { ino: Ino, why: String } "quota.file" Error
        ino, "quota: {why}";
    QuotaUsage { ino: Ino, id: u32, found: String, want: String } "quota.usage" Error
        ino, "usage of {id} is {found}, counted {want}";
}
