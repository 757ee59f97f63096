//! The inode that owns the blocks reserved for more group descriptors.
//!
//! On disk: its double indirect block names the reserved blocks behind the primary descriptors.
//! Each of these is an indirect block, which names its counterparts in the groups with backups, in
//! the order of the groups.
//! Invariants: what it says is compared with the geometry before anything changes, so that a
//! damaged one is refused. What changes with it is held in memory from then on, so that a change
//! reads nothing.

use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileContext;
use crate::inode::{put_slot, table_block_of};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::block_map::{SLOTS, direct, entry, set_entry};
use uext4_ondisk::inode::verify_inode;
use uext4_ondisk::{BlockNo, Compat, CorruptKind, GroupNo, Ino, Layout, Place, RawInode, RoCompat};

/// Slot of the double indirect block.
const DOUBLE_INDIRECT: u32 = 13;

/// How the inode changes.
pub(super) struct ResizeInode {
    raw: RawInode,
    blocks: Vec<(BlockNo, Vec<u8>)>,
    /// Its double indirect block, if it does not need that any more.
    freed: Option<BlockNo>,
    _pins: Vec<Arc<Buffer>>,
}

/// The inode as it is on the device, and as the geometry wants it.
struct Found {
    raw: RawInode,
    /// Its double indirect block, and what that holds.
    top: BlockNo,
    map: Vec<u8>,
    /// What changes with it: its block of the inode table, and the bitmap that says that the double
    /// indirect block is in use.
    pins: Vec<Arc<Buffer>>,
}

fn damaged(why: &'static str) -> Error {
    CorruptKind::Rule { what: "resize inode", why }.at(Place::Inode(Ino::RESIZE)).into()
}

impl ResizeInode {
    /// Whether the inode can become what it is in a geometry that is reached in one step or more.
    /// Changes nothing.
    pub(super) fn check(context: &FileContext, new: &Layout) -> Result<()> {
        find(context)?;
        if new.features.compat.contains(Compat::RESIZE_INODE) {
            backup_offsets(new)?;
        }
        Ok(())
    }

    /// Reads and checks the inode, and makes of it what it is in the new geometry.
    pub(super) fn plan(context: &FileContext, new: &Layout) -> Result<Self> {
        let old = context.space.layout();
        let Found { mut raw, top, map: reserved, pins } = find(context)?;
        if !new.features.compat.contains(Compat::RESIZE_INODE) {
            if old.reserved_gdt_blocks != 0 {
                let why = "reserved descriptor blocks are left";
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            raw.i_block = [0; 60];
            set_blocks(&mut raw, new, 0);
            return Ok(Self { raw, blocks: Vec::new(), freed: Some(top), _pins: pins });
        }
        let mut blocks = Vec::new();
        let (offsets, had) = (backup_offsets(new)?, backup_offsets(old)?);
        let mut map = vec![0; new.block_size as usize];
        for n in 0..new.reserved_gdt_blocks {
            let (number, primary) = reserved_block(new, n);
            set_entry(&mut map, number, primary);
            if offsets != had {
                blocks.push((primary, list(new, primary, &offsets)));
            }
        }
        if reserved != map {
            blocks.push((top, map));
        }
        let copies = u64::from(new.reserved_gdt_blocks) * (1 + offsets.len() as u64);
        set_blocks(&mut raw, new, 1 + copies);
        Ok(Self { raw, blocks, freed: None, _pins: pins })
    }

    /// Changes it.
    pub(super) fn change(&self, context: &FileContext, handle: &mut Handle<'_>) -> Result<()> {
        for (block, bytes) in &self.blocks {
            let buffer = handle.create(*block, BlockKind::Plain)?;
            handle.write(&buffer)?.copy_from_slice(bytes);
        }
        if let Some(block) = self.freed {
            handle.forget(block)?;
            context.space.free(handle, block, 1)?;
        }
        put_slot(context.table.context(), handle, Ino::RESIZE, |slot| {
            // As long as the slot, which was read.
            let _ = self.raw.write(slot);
        })
    }
}

/// Reads the inode and all to which it leads, and compares it with the geometry.
fn find(context: &FileContext) -> Result<Found> {
    let table = table_block_of(context.table.context(), Ino::RESIZE)?;
    let raw = read(context, &table)?;
    let top = direct(&raw.i_block, DOUBLE_INDIRECT);
    let is_alone = (0..SLOTS).all(|n| n == DOUBLE_INDIRECT || direct(&raw.i_block, n).get() == 0);
    if !is_alone || context.space.check_run(top, 1).is_err() {
        return Err(damaged("it is not mapped by double indirect blocks alone"));
    }
    let mut pins = context.space.pin_run(top, 1)?;
    pins.push(table);
    Ok(Found { raw, top, map: read_reserved(context, top)?, pins })
}

fn read(context: &FileContext, table: &Buffer) -> Result<RawInode> {
    let layout = context.space.layout();
    let bytes = table.read();
    let size = layout.inode_size as usize;
    let at = (Ino::RESIZE.get() - 1) as usize % layout.inodes_per_block() as usize * size;
    let slot = bytes.get(at..at + size).ok_or_else(|| damaged("it is outside its table"))?;
    let at = |kind: CorruptKind| kind.at(Place::Inode(Ino::RESIZE));
    let raw = RawInode::read(slot).map_err(at)?;
    let seed = layout.checksums.inode_seed(Ino::RESIZE, raw.i_generation.get());
    verify_inode(slot, seed).map_err(at)?;
    Ok(raw)
}

/// The double indirect block, which is compared with the geometry, like all to which it leads.
fn read_reserved(context: &FileContext, top: BlockNo) -> Result<Vec<u8>> {
    let (old, cache) = (context.space.layout(), context.cache());
    let map = cache.read(top, BlockKind::Plain)?.read()[..].to_vec();
    let offsets = backup_offsets(old)?;
    for n in 0..old.reserved_gdt_blocks {
        let (number, primary) = reserved_block(old, n);
        if entry(&map, number) != primary {
            return Err(damaged("it does not name the reserved descriptor blocks"));
        }
        let found = cache.read(primary, BlockKind::Plain)?;
        if found.read()[..] != list(old, primary, &offsets)[..] {
            return Err(damaged("it does not name the copies of reserved descriptor blocks"));
        }
    }
    Ok(map)
}

/// Reserved block `n`: its entry in the double indirect block, and its number.
fn reserved_block(layout: &Layout, n: u32) -> (u32, BlockNo) {
    let number = layout.desc_block_count() + n;
    let block = layout.super_block_no().plus(u64::from(number) + 1);
    (number % (layout.block_size / 4), block)
}

/// How far behind the primary ones the copies of the groups with backups are.
fn backup_offsets(layout: &Layout) -> Result<Vec<u64>> {
    let offsets: Vec<u64> = (1..layout.group_count)
        .filter(|&group| layout.has_super(GroupNo(group)))
        .map(|group| u64::from(group) * u64::from(layout.blocks_per_group))
        .collect();
    let fits = offsets.len() <= layout.block_size as usize / 4
        && offsets.last().is_none_or(|last| last + u64::from(layout.blocks_per_group) <= 1 << 32);
    if fits {
        return Ok(offsets);
    }
    let why = "the resize inode cannot name the reserved blocks of so large a file system";
    Err(Error::new(ErrorKind::InvalidArgument, why))
}

/// The content of a reserved block.
fn list(layout: &Layout, primary: BlockNo, offsets: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; layout.block_size as usize];
    for (index, offset) in (0..).zip(offsets) {
        set_entry(&mut bytes, index, primary.plus(*offset));
    }
    bytes
}

/// Sets the count of blocks. With clusters each counts as one.
fn set_blocks(raw: &mut RawInode, layout: &Layout, blocks: u64) {
    let sectors = u64::from(layout.block_size / 512) * u64::from(layout.cluster_blocks);
    let is_huge = layout.features.ro_compat.contains(RoCompat::HUGE_FILE);
    // At most 1024 blocks in fewer than 1024 groups: the number fits.
    let _ = raw.set_sectors(blocks * sectors, is_huge, layout.block_size);
}
