//! Storing values in inodes of their own (feature ea_inode).
//!
//! What: [`store`] gives a value an inode: one that holds an equal value already, or a new one.
//! Invariants: a new inode is an orphan without references, written in handles before the one that
//! sets the attribute. So a crash, or a change that is not applied, leaves an orphan to be deleted.
//! Its blocks go through the journal.

use super::stored::ValueInode;
use super::value_inode::{checksum_of, content};
use crate::alloc::Child;
use crate::cache::BlockKind;
use crate::error::Result;
use crate::extent::{Growth, grow, grow_credits};
use crate::inode::{Attributes, Inode, InodeRef, KnownValues, ValueInodes, table_block_of};
use std::sync::Arc;
use uext4_ondisk::xattr::value_inode_hash;
use uext4_ondisk::{FileBlock, FileKind, InodeFlags};

/// Blocks of a value that one handle writes.
const BLOCKS_PER_HANDLE: u32 = 8;

/// Gives the value of the attribute `name` (without its prefix) of `owner` an inode. It gets its
/// reference in the handle that sets the attribute.
///
/// # Errors
/// `NoSpace`; `Corrupt`; a device failure.
pub(super) fn store(
    values: &ValueInodes,
    known: &KnownValues,
    owner: &Inode,
    name: &[u8],
    value: &[u8],
) -> Result<(ValueInode, InodeRef)> {
    let checksum = checksum_of(owner, value);
    let inode = match find_equal(values, known, owner, checksum, value) {
        Some(inode) => inode,
        None => make(values, owner, checksum, value)?,
    };
    let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let hash = value_inode_hash(name, checksum);
    Ok((ValueInode { ino: inode.ino(), size, hash }, inode))
}

/// An inode with an equal value that attributes refer to. One that cannot be read is not shared.
fn find_equal(
    values: &ValueInodes,
    known: &KnownValues,
    owner: &Inode,
    checksum: u32,
    value: &[u8],
) -> Option<InodeRef> {
    let inode = values.get(owner, known.find(checksum)?).ok()?;
    let is_used = {
        let attributes = inode.attributes();
        let has_room = (1..u64::MAX - 1).contains(&attributes.references());
        has_room && attributes.links > 0 && attributes.value_checksum() == checksum
    };
    let is_equal = || content(&inode, value.len()).is_ok_and(|found| found == value);
    (is_used && inode.size() == value.len() as u64 && is_equal()).then_some(inode)
}

/// A new inode with `value`, which is an orphan.
fn make(values: &ValueInodes, owner: &Inode, checksum: u32, value: &[u8]) -> Result<InodeRef> {
    let (space, table) = (owner.space(), values.table()?);
    let mut allocation = space.allocate_inode(owner.ino(), Child::File)?;
    let creation = table.begin_creation(allocation.ino());
    let _pin = table_block_of(owner.context(), allocation.ino())?;
    let attributes = new_attributes(owner, checksum, value.len());
    let inode = Inode::create(
        owner.context(),
        allocation.ino(),
        allocation.data_group(),
        FileKind::Regular,
        attributes,
    )?;
    let inode = Arc::new(inode);
    let orphans = values.orphans()?;
    let credits = 1 + allocation.credits() + space.credits().orphan;
    space.journal().run(credits, |handle| {
        space.mark_inode_used(handle, &mut allocation, false)?;
        inode.update(handle, |attributes| attributes.set_references(0))?;
        orphans.add(handle, &inode)
    })?;
    let inode = creation.finish(inode);
    write(&inode, value)?;
    Ok(inode)
}

fn new_attributes(owner: &Inode, checksum: u32, len: usize) -> Attributes {
    let generation = crate::sync::random();
    let layout = owner.space().layout();
    let mut attributes = Attributes::new(layout, FileKind::Regular, 0o600, generation);
    {
        let owner = owner.attributes();
        (attributes.uid, attributes.gid) = (owner.uid, owner.gid);
    }
    attributes.flags = InodeFlags::EA_INODE;
    attributes.set_value_checksum(checksum);
    attributes.set_size(len as u64);
    attributes
}

/// Writes the content of a new inode, some blocks to a handle.
fn write(inode: &InodeRef, value: &[u8]) -> Result<()> {
    let block_size = inode.space().layout().block_size as usize;
    let mut at = FileBlock(0);
    for part in value.chunks(block_size * BLOCKS_PER_HANDLE as usize) {
        let blocks = u32::try_from(part.len().div_ceil(block_size)).unwrap_or(u32::MAX);
        let mut growth = Growth::allocate(inode, at, blocks)?;
        let credits = blocks + grow_credits(inode, blocks);
        inode.space().journal().run(credits, |handle| {
            for (index, bytes) in (0..).zip(part.chunks(block_size)) {
                let block = grow(handle, inode, &mut growth, at.plus(index))?;
                let buffer = handle.create(block, BlockKind::Data)?;
                handle.write(&buffer)?[..bytes.len()].copy_from_slice(bytes);
            }
            Ok(())
        })?;
        at = at.plus(blocks);
    }
    Ok(())
}
