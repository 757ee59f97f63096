//! Values in inodes of their own (feature ea_inode).
//!
//! What: [`read`] gives the value that an entry refers to.
//! On disk: the value is the content of an inode with the flag EA_INODE. Its time of access holds
//! the checksum of the value, and the hash of the entry takes in that checksum in place of the
//! value. Lustre wrote no checksum: such an inode names its owner, by number in its time of
//! modification and by generation.
//! Invariants: nothing is trusted that the entry and the inode do not both say; at most
//! [`VALUE_MAX`] bytes are read.

use super::VALUE_MAX;
use super::stored::ValueInode;
use crate::cache::BlockKind;
use crate::error::{ErrorKind, Result};
use crate::extent::{State, lookup};
use crate::inode::Inode;
use uext4_ondisk::checksum::crc32c;
use uext4_ondisk::xattr::is_hash_of_value_inode;
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, InodeFlags, Place, Timestamp};

/// The value of the attribute `name` (without its prefix) of `owner`. The caller does not hold the
/// attribute lock, because the tree of the other inode ranks below it.
///
/// # Errors
/// `Corrupt` for an inode that holds no value, or another one; a device failure.
pub(super) fn read(owner: &Inode, name: &[u8], at: ValueInode) -> Result<Vec<u8>> {
    let corrupt = |why| {
        let kind = CorruptKind::Rule { what: "extended attribute in an inode", why };
        kind.at(Place::Inode(at.ino))
    };
    let layout = owner.space().layout();
    let is_ordinary = at.ino >= layout.first_ino && at.ino.get() <= layout.inodes_count;
    if !is_ordinary || at.ino == owner.ino() {
        return Err(corrupt("may not be in this one").into());
    }
    let inode = Inode::read(owner.context(), at.ino).map_err(|error| match error.kind() {
        ErrorKind::NotFound => corrupt("is in one that is free").into(),
        _ => error,
    })?;
    let (flags, size, hash, named_owner) = {
        let attributes = inode.attributes();
        // The hash and the number are unsigned words where other inodes have seconds.
        let word = |time: Timestamp| time.secs as u32;
        let named = (word(attributes.mtime), attributes.generation);
        (attributes.flags, attributes.size, word(attributes.atime), named)
    };
    if !flags.contains(InodeFlags::EA_INODE) || inode.kind() != FileKind::Regular {
        return Err(corrupt("is in one that holds no value").into());
    }
    if size != u64::from(at.size) || at.size as usize > VALUE_MAX {
        return Err(corrupt("has another size").into());
    }
    let value = content(&inode, at.size as usize)?;
    let is_hashed = hash == crc32c(layout.checksums.seed, &value)
        && is_hash_of_value_inode(at.hash, name, hash);
    if !is_hashed && named_owner != (owner.ino().get(), owner.generation()) {
        return Err(corrupt("has another hash").into());
    }
    Ok(value)
}

/// The first `size` bytes of an inode that has no holes.
fn content(inode: &Inode, size: usize) -> Result<Vec<u8>> {
    let mut value = Vec::with_capacity(size);
    let mut block = FileBlock(0);
    while value.len() < size {
        let State::Written(start) = lookup(inode, block)?.state else {
            let kind = CorruptKind::Rule { what: "extended attribute in an inode", why: "a hole" };
            return Err(kind.at(Place::FileBlock(inode.ino(), block)).into());
        };
        let buffer = inode.cache().read(start, BlockKind::Data)?;
        let bytes = buffer.read();
        value.extend_from_slice(&bytes[..bytes.len().min(size - value.len())]);
        block = block.plus(1);
    }
    Ok(value)
}
