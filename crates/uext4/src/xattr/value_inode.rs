//! Reading values in inodes of their own (feature ea_inode).
//!
//! What: [`ValueReader`] gives the value that an entry refers to.
//! On disk: the value is the content of an inode with the flag EA_INODE. Its time of access holds
//! the checksum of the value, and the hash of the entry takes in that checksum in place of the
//! value. Lustre wrote no checksum: such an inode names its owner, by number in its time of
//! modification and by generation.
//! Invariants: nothing is trusted that the entry and the inode do not both say; at most
//! [`VALUE_MAX`] bytes are read.

use super::VALUE_MAX;
use super::stored::ValueInode;
use crate::cache::BlockKind;
use crate::error::{Error, Result};
use crate::extent::{State, lookup};
use crate::inode::{Inode, InodeRef};
use uext4_ondisk::checksum::crc32c;
use uext4_ondisk::xattr::is_hash_of_value_inode;
use uext4_ondisk::{CorruptKind, FileBlock, Ino, Place};

/// A value that is to be read. It stays until then, whatever becomes of the attribute.
#[derive(Debug)]
pub(super) struct ValueReader {
    inode: InodeRef,
    at: ValueInode,
}

impl ValueReader {
    /// Finds the value of an attribute of `owner`, whose attribute lock the caller holds.
    ///
    /// # Errors
    /// `Corrupt` for an inode that holds no value; a device failure.
    pub(super) fn new(owner: &Inode, at: ValueInode) -> Result<Self> {
        let inode = owner.context().values.get(owner, at.ino)?;
        Ok(Self { inode, at })
    }

    /// The value of the attribute `name` (without its prefix) of `owner`. The caller does not hold
    /// the attribute lock, because the tree of the other inode ranks below it.
    ///
    /// # Errors
    /// `Corrupt` for an inode that holds another value; a device failure.
    pub(super) fn read(&self, owner: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        let Self { inode, at } = self;
        if inode.size() != u64::from(at.size) || at.size as usize > VALUE_MAX {
            return Err(corrupt(at.ino, "has another size"));
        }
        let (checksum, named) = {
            let attributes = inode.attributes();
            (attributes.value_checksum(), attributes.value_owner())
        };
        let value = content(inode, at.size as usize)?;
        let is_hashed = checksum == checksum_of(inode, &value)
            && is_hash_of_value_inode(at.hash, name, checksum);
        if !is_hashed && named != (owner.ino(), owner.generation()) {
            return Err(corrupt(at.ino, "has another hash"));
        }
        Ok(value)
    }
}

/// The checksum of a value in an inode of its own.
pub(super) fn checksum_of(inode: &Inode, value: &[u8]) -> u32 {
    crc32c(inode.space().layout().checksums.seed, value)
}

/// The first `size` bytes of an inode that has no holes.
pub(super) fn content(inode: &Inode, size: usize) -> Result<Vec<u8>> {
    let mut value = Vec::with_capacity(size);
    let mut block = FileBlock(0);
    while value.len() < size {
        let State::Written(start) = lookup(inode, block)?.state else {
            let kind = CorruptKind::Rule { what: WHAT, why: "a hole" };
            return Err(kind.at(Place::FileBlock(inode.ino(), block)).into());
        };
        let buffer = inode.cache().read(start, BlockKind::Data)?;
        let bytes = buffer.read();
        value.extend_from_slice(&bytes[..bytes.len().min(size - value.len())]);
        block = block.plus(1);
    }
    Ok(value)
}

const WHAT: &str = "extended attribute in an inode";

pub(super) fn corrupt(ino: Ino, why: &'static str) -> Error {
    CorruptKind::Rule { what: WHAT, why }.at(Place::Inode(ino)).into()
}
