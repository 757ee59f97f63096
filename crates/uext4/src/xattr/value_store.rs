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
use crate::quota::{Amount, QuotaHold};
use std::sync::Arc;
use uext4_ondisk::xattr::value_inode_hash;
use uext4_ondisk::{FileBlock, FileKind, InodeFlags};

/// Most blocks of a value that one handle writes.
const BLOCKS_PER_HANDLE: u32 = 8;

/// A value that has an inode.
pub(super) struct StoredValue {
    /// What the entry says.
    pub(super) at: ValueInode,
    /// The inode.
    pub(super) inode: InodeRef,
    /// Room for it below the limits of the owners, if it is not charged to them yet.
    pub(super) held: Option<QuotaHold>,
}

/// Gives the value of the attribute `name` (without its prefix) of `owner` an inode. It gets its
/// reference in the handle that sets the attribute.
///
/// # Errors
/// `NoSpace`; `QuotaExceeded`; `Corrupt`; a device failure.
pub(super) fn store(
    values: &ValueInodes,
    known: &KnownValues,
    owner: &Inode,
    name: &[u8],
    value: &[u8],
) -> Result<StoredValue> {
    let checksum = checksum_of(owner, value);
    let held = owner.hold_value(value.len() as u64)?;
    let (inode, held) = match find_equal(values, known, owner, checksum, value) {
        Some(inode) => (inode, held),
        None => (make(values, owner, checksum, value, held)?, None),
    };
    let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let hash = value_inode_hash(name, checksum);
    Ok(StoredValue { at: ValueInode { ino: inode.ino(), size, hash }, inode, held })
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

/// A new inode with `value`, an orphan that belongs to the owners of `owner`. The room that was
/// held for it becomes usage.
fn make(
    values: &ValueInodes,
    owner: &Inode,
    checksum: u32,
    value: &[u8],
    mut held: Option<QuotaHold>,
) -> Result<InodeRef> {
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
    if let Some(held) = &mut held {
        held.shrink(Amount { space: 0, inodes: 1 });
    }
    // Nobody else maps blocks of an inode that only this change knows.
    let lent = inode.lend(held.into_iter().collect());
    write(&inode, value)?;
    drop(lent);
    Ok(inode)
}

fn new_attributes(owner: &Inode, checksum: u32, len: usize) -> Attributes {
    let generation = crate::sync::random();
    let layout = owner.space().layout();
    let mut attributes = Attributes::new(layout, FileKind::Regular, 0o600, generation);
    attributes.set_owners(owner.attributes().owners(), layout);
    attributes.flags = InodeFlags::EA_INODE;
    attributes.set_value_checksum(checksum);
    attributes.set_size(len as u64);
    attributes
}

/// Writes the content of a new inode, some blocks to a handle.
fn write(inode: &InodeRef, mut value: &[u8]) -> Result<()> {
    let block_size = inode.space().layout().block_size as usize;
    let mut at = FileBlock(0);
    while !value.is_empty() {
        let most = blocks_per_handle(inode);
        let (part, rest) = value.split_at(value.len().min(block_size * most as usize));
        let blocks = u32::try_from(part.len().div_ceil(block_size)).unwrap_or(u32::MAX);
        let mut growth = Growth::allocate(inode, at, blocks)?;
        inode.space().journal().run(write_credits(inode, blocks), |handle| {
            for (index, bytes) in (0..).zip(part.chunks(block_size)) {
                let block = grow(handle, inode, &mut growth, at.plus(index))?;
                let buffer = handle.create(block, BlockKind::Data)?;
                handle.write(&buffer)?[..bytes.len()].copy_from_slice(bytes);
            }
            Ok(())
        })?;
        (value, at) = (rest, at.plus(blocks));
    }
    Ok(())
}

fn write_credits(inode: &Inode, blocks: u32) -> u32 {
    blocks + grow_credits(inode, blocks)
}

/// So many blocks that a small journal has room for the handle.
fn blocks_per_handle(inode: &Inode) -> u32 {
    let most = inode.space().journal().credits_max() / 2;
    let fits = |blocks: &u32| write_credits(inode, *blocks) <= most;
    (2..=BLOCKS_PER_HANDLE).rev().find(fits).unwrap_or(1)
}
