//! What the inode of a directory and the volume's features say about its blocks.

use super::inline::Entries;
use super::leaf::Form;
use super::names;
use crate::cache::{BlockKind, Buffer, BufferRead};
use crate::error::{Error, ErrorKind, Result};
use crate::extent;
use crate::inode::Inode;
use std::sync::Arc;
use uext4_ondisk::casefold::{Encoding, FoldedName};
use uext4_ondisk::dir_entry::RecordForm;
use uext4_ondisk::hash::{DirHasher, HashVersion};
use uext4_ondisk::{
    Compat, CorruptKind, FileBlock, FileKind, Incompat, Ino, InodeFlags, Place, dir_entry, htree,
};

/// How the blocks of a directory are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Blocks of records in no order.
    Linear,
    /// Block 0 is the root of a hash tree.
    Indexed,
    /// There are no blocks: the entries are in the inode.
    Inline,
}

/// A directory, with what is needed to read its blocks. Valid while its lock is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) inode: &'a Inode,
    pub(super) shape: Shape,
    /// Blocks of the directory, at least 1; 1 also if the entries are in the inode.
    pub(super) blocks: u32,
    /// The inode has the index flag, but the volume has no hash trees. A change clears the flag.
    pub(super) has_stale_index: bool,
    /// Names are stored as ciphertext.
    pub(super) encrypted: bool,
    /// Names that differ by case are the same.
    pub(super) folding: Option<Encoding>,
}

const WHAT: &str = "directory";

impl<'a> View<'a> {
    pub(super) fn of(inode: &'a Inode) -> Result<Self> {
        if inode.kind() != FileKind::Directory {
            let context = format!("inode {}", inode.ino());
            return Err(Error::new(ErrorKind::NotADirectory, context));
        }
        let (size, flags) = {
            let attributes = inode.attributes();
            (attributes.size, attributes.flags)
        };
        let corrupt = |why| CorruptKind::Rule { what: WHAT, why }.at(Place::Inode(inode.ino()));
        let folding =
            inode.space().layout().encoding.filter(|_| flags.contains(InodeFlags::CASEFOLD));
        if flags.contains(InodeFlags::CASEFOLD) && folding.is_none() {
            return Err(corrupt("folds case without the casefold feature").into());
        }
        if flags.contains(InodeFlags::INLINE_DATA) {
            let (shape, has_stale_index, encrypted) = (Shape::Inline, false, false);
            return Ok(Self { inode, shape, blocks: 1, has_stale_index, encrypted, folding });
        }
        let block_size = u64::from(inode.space().layout().block_size);
        if size == 0 || !size.is_multiple_of(block_size) {
            return Err(corrupt("size is not a number of blocks").into());
        }
        let blocks = u32::try_from(size / block_size)
            .map_err(|_| corrupt("has more blocks than a file can have"))?;
        let encrypted = inode.is_encrypted();
        let (shape, has_stale_index) = (Shape::Linear, false);
        let mut view = Self { inode, shape, blocks, has_stale_index, encrypted, folding };
        if flags.contains(InodeFlags::INDEX) {
            if view.has_dir_index() {
                view.shape = Shape::Indexed;
            } else if view.has_csum() {
                // Index blocks and leaves keep their checksums in different places.
                return Err(corrupt("is indexed without the dir_index feature").into());
            } else {
                view.has_stale_index = true;
            }
        }
        Ok(view)
    }

    pub(super) fn block_size(&self) -> usize {
        self.inode.space().layout().block_size as usize
    }

    /// Whether blocks have checksums, and leaves the record for them.
    pub(super) fn has_csum(&self) -> bool {
        self.inode.space().layout().has_metadata_csum()
    }

    pub(super) fn has_dir_index(&self) -> bool {
        self.inode.space().layout().features.compat.contains(Compat::DIR_INDEX)
    }

    pub(super) fn has_large_dir(&self) -> bool {
        self.inode.space().layout().features.incompat.contains(Incompat::LARGEDIR)
    }

    /// Whether entries are listed by hash, because the directory has a tree or gets one when it
    /// grows.
    pub(super) fn is_hash_ordered(&self) -> bool {
        self.shape == Shape::Indexed || (self.has_dir_index() && self.blocks == 1)
    }

    /// Most levels of nodes between the root of a hash tree and its leaves.
    pub(super) fn levels_max(&self) -> u8 {
        if self.has_large_dir() { htree::MAX_LEVELS_LARGEDIR } else { htree::MAX_LEVELS }
    }

    /// Checks that a name can be one of the directory.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(super) fn check_spelling(&self, name: &[u8]) -> Result<()> {
        if self.folding.is_none() || !names::is_spelled(self) {
            return Ok(());
        }
        match self.folding {
            Some(Encoding { strict: true, .. }) if std::str::from_utf8(name).is_err() => {
                Err(Error::new(ErrorKind::InvalidArgument, "a name that is not UTF-8"))
            }
            Some(_) => {
                let folded = FoldedName::new(name);
                match folded.is(b".") || folded.is(b"..") {
                    true => {
                        Err(Error::new(ErrorKind::InvalidArgument, "a name that folds to dots"))
                    }
                    false => Ok(()),
                }
            }
            None => Ok(()),
        }
    }

    /// The hasher for `version`, or for new hash trees of the volume.
    pub(super) fn hasher(&self, version: Option<HashVersion>) -> Result<DirHasher> {
        let version = match version {
            Some(version) if (version == HashVersion::SipHash) != self.is_hashed() => {
                let why = "has the hash function of other directories";
                let kind = CorruptKind::Rule { what: WHAT, why };
                return Err(kind.at(Place::Inode(self.inode.ino())).into());
            }
            Some(version) => version,
            None if self.is_hashed() => HashVersion::SipHash,
            None => self.ordinary_hash()?,
        };
        let hash = self.inode.space().layout().name_hash;
        let folds = self.folding.is_some();
        Ok(DirHasher { version, unsigned: hash.unsigned, seed: hash.seed, folds })
    }

    /// The function of new hash trees whose records have no hashes.
    pub(super) fn ordinary_hash(&self) -> Result<HashVersion> {
        let version = self.inode.space().layout().name_hash.default_version;
        HashVersion::from_raw(version).filter(|v| *v != HashVersion::SipHash).ok_or_else(|| {
            let kind = CorruptKind::Range {
                what: "superblock",
                field: "s_def_hash_version",
                min: 0,
                max: 2,
                found: u64::from(version),
            };
            kind.at(Place::Superblock).into()
        })
    }

    /// Whether records have the hashes of their names.
    pub(super) fn is_hashed(&self) -> bool {
        self.encrypted && self.folding.is_some()
    }

    /// What records hold.
    pub(super) fn records(&self) -> RecordForm {
        match (self.encrypted, self.folding) {
            (true, Some(_)) => RecordForm::Hashed,
            (true, None) => RecordForm::Encrypted,
            (false, _) => RecordForm::Plain,
        }
    }

    /// How blocks are made.
    pub(super) fn form(&self) -> Form {
        Form { has_tail: self.has_csum(), records: self.records() }
    }

    /// A block of records.
    pub(super) fn leaf(&self, at: FileBlock) -> Result<Arc<Buffer>> {
        self.buffer(at, BlockKind::DirLeaf { seed: self.inode.seed() })
    }

    /// A block of the hash tree above the leaves.
    pub(super) fn index(&self, at: FileBlock) -> Result<Arc<Buffer>> {
        self.buffer(at, BlockKind::DirIndex { seed: self.inode.seed() })
    }

    /// Block 0, which begins with `.` and `..` whatever the shape.
    pub(super) fn first_block(&self) -> Result<Arc<Buffer>> {
        match self.shape {
            Shape::Linear | Shape::Inline => self.leaf(FileBlock(0)),
            Shape::Indexed => self.index(FileBlock(0)),
        }
    }

    /// The entries of a directory that has them in the inode.
    pub(super) fn inline_entries(&self) -> Result<Entries<'a>> {
        // The caller holds the directory's lock.
        Entries::of(self.inode)?.ok_or_else(|| {
            let why = "a directory without blocks has its entries in the inode";
            self.inode.space().journal().broken(why)
        })
    }

    /// The entries of such a directory as the block that they would be in.
    pub(super) fn inline_block(&self) -> Result<Vec<u8>> {
        self.inline_entries()?.as_block()
    }

    fn buffer(&self, at: FileBlock, kind: BlockKind) -> Result<Arc<Buffer>> {
        if at.get() >= self.blocks {
            let kind = CorruptKind::Rule { what: WHAT, why: "index points past the end" };
            return Err(self.corrupt(at, kind));
        }
        let block = extent::block_of(self.inode, at)?;
        self.inode.cache().read(block, kind)
    }

    /// Whether all records of a leaf are well formed. A leaf is checked once; its mark stays until
    /// the bytes change by other means.
    pub(super) fn is_checked(&self, bytes: &BufferRead<'_>) -> bool {
        if !bytes.is_checked() && self.check(bytes).is_ok() {
            bytes.note_checked();
        }
        bytes.is_checked()
    }

    /// Checks that all records of a leaf are well formed.
    pub(super) fn check(&self, bytes: &[u8]) -> Result<(), CorruptKind> {
        dir_entry::check(bytes, self.has_csum(), self.records())
    }

    /// What is wrong with a leaf whose records are not well formed.
    pub(super) fn unchecked(&self, at: FileBlock, bytes: &[u8]) -> Error {
        let changed = CorruptKind::Rule { what: WHAT, why: "block belongs to two directories" };
        self.corrupt(at, self.check(bytes).err().unwrap_or(changed))
    }

    /// A damaged block of this directory.
    pub(super) fn corrupt(&self, at: FileBlock, kind: CorruptKind) -> Error {
        kind.at(Place::FileBlock(self.inode.ino(), at)).into()
    }

    /// A damaged record in block `at`.
    pub(super) fn bad_record(&self, at: FileBlock, offset: u32, why: &'static str) -> Error {
        self.corrupt(at, CorruptKind::DirEntry { offset, why })
    }

    /// The inode that a record names.
    pub(super) fn check_ino(&self, at: FileBlock, entry: &dir_entry::DirEntry<'_>) -> Result<Ino> {
        if entry.ino.get() == 0 || entry.ino.get() > self.inode.space().layout().inodes_count {
            return Err(self.bad_record(at, entry.offset, "inode does not exist"));
        }
        Ok(entry.ino)
    }
}

/// Whether `name` can be the name of a directory entry other than `.` and `..`.
pub(super) fn check_name(name: &[u8]) -> Result<()> {
    let bad = |why: &str| Err(Error::new(ErrorKind::InvalidArgument, why));
    if name.len() > dir_entry::NAME_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, String::new()));
    }
    match name {
        b"" => bad("a name cannot be empty"),
        b"." | b".." => bad("'.' and '..' cannot be looked up or changed by name"),
        _ if name.iter().any(|&byte| byte == b'/' || byte == 0) => {
            bad("a name cannot hold a slash or NUL")
        }
        _ => Ok(()),
    }
}
