//! A file system that grows (`uext4 resize`).
//!
//! What: new groups lie behind the end of the file system. Their content is written there first
//! ([`Volume::write_behind_end`]), where nobody looks. One transaction then makes them part of the
//! file system: the bitmap of the last old group, the descriptors, the resize inode, the
//! superblock. The backups in the old groups follow. docs/resize.md has the whole argument.
//! Invariants: everything that is changed lies in the old file system, so a replay of the log needs
//! no block behind its end. Without a log the superblock is written last, alone.
//! Kernel counterpart: `fs/ext4/resize.c`.

mod refusal;
mod resize_inode;

use super::Volume;
use crate::cache::{BlockKind, Buffer, Cache};
use crate::error::{Error, ErrorKind, Result};
use crate::file::FileContext;
use crate::journal::Handle;
use resize_inode::ResizeInode;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, Compat, GroupNo, Layout, RawGroupDesc, RawSuperblock, group_desc};

/// Backup blocks that change in one handle.
const BACKUPS_A_HANDLE: usize = 64;

/// What a file system becomes.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The superblock with the new counts. The free counts are not looked at.
    pub superblock: RawSuperblock,
    /// The descriptors of the new groups, without their own checksums.
    pub groups: Vec<RawGroupDesc>,
}

impl Volume {
    /// Writes behind the end of the file system.
    ///
    /// # Errors
    /// `ReadOnly`; `InvalidArgument` for an offset in the file system; a device failure.
    pub fn write_behind_end(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_behind_end(offset)?;
        let device = self.device_behind_end();
        let failed = |e| Error::io("writing behind the end of the file system", e);
        device.write_at(offset, bytes).map_err(failed)
    }

    /// Makes the bytes from the end of the file system to byte `end` read as zeroes, if the device
    /// can do so without writing them. False if it cannot.
    ///
    /// # Errors
    /// Those of [`Volume::write_behind_end`].
    pub fn zero_behind_end(&self, end: u64) -> Result<bool> {
        let start = self.layout().bytes();
        self.check_behind_end(start)?;
        let failed = |e| Error::io("zeroing behind the end of the file system", e);
        self.device_behind_end().punch(start, end.saturating_sub(start)).map_err(failed)
    }

    /// Makes durable what was written behind the end of the file system.
    ///
    /// # Errors
    /// A device failure.
    pub fn flush_behind_end(&self) -> Result<()> {
        let failed = |e| Error::io("writing behind the end of the file system", e);
        self.device_behind_end().flush().map_err(failed)
    }

    fn device_behind_end(&self) -> &uext4_device::SharedDevice {
        self.inner.vfs.files.context.cache().device()
    }

    fn check_behind_end(&self, offset: u64) -> Result<()> {
        self.inner.vfs.files.context.check_writable()?;
        if offset >= self.layout().bytes() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument, "the offset is inside the file system"))
    }

    /// Whether the file system can become what `superblock` says, in one step or more, as far as
    /// that depends on what it holds: the bitmap of its last group and the resize inode. Changes
    /// nothing, also works on a volume that is open to read, and has no consequences of `errors=`.
    ///
    /// # Errors
    /// `InvalidArgument` for a geometry that the resize inode cannot have; `Corrupt`; a device
    /// failure.
    pub fn check_growth(&self, superblock: &RawSuperblock) -> Result<()> {
        let context = &self.inner.vfs.files.context;
        context.space.pin_last_group()?;
        if !context.space.layout().features.compat.contains(Compat::RESIZE_INODE) {
            return Ok(());
        }
        ResizeInode::check(context, &Layout::new(superblock, None)?)
    }

    /// Most blocks that [`Volume::grow`] can change of the old file system in one step. A volume
    /// that is open to read tells what it would be if it were open to write.
    #[must_use]
    pub fn growth_blocks_max(&self) -> u32 {
        self.space().journal().credits_max()
    }

    /// Grows the file system and closes the volume. What lies behind the old end is there and
    /// durable. After a crash the file system has its old size or its new one; without a journal
    /// e2fsck repairs it to one of these.
    ///
    /// # Errors
    /// `InvalidArgument` for a geometry that the file system cannot have, or a step that is too
    /// large for the log; `Corrupt` where the resize inode is; a device failure. The volume is
    /// closed in any case.
    pub fn grow(self, growth: &Growth) -> Result<()> {
        let grown = self.change(|vfs| Step::plan(&vfs.files.context, growth)?.run());
        let closed = self.close();
        grown.and(closed)
    }
}

/// Blocks that a growth changes of the old file system, at most: bitmap and descriptor of the last
/// group, its neighbours' descriptors, superblock, inode table, what a freed block needs, and
/// descriptors and reserved blocks.
#[must_use]
pub fn growth_blocks(old: &Layout, new: &Layout) -> u32 {
    const FIXED: u32 = 10;
    let end = BlockNo(old.blocks_count);
    let descs = (old.desc_block_count()..new.desc_block_count())
        .filter(|&n| new.desc_block_no(n) < end)
        .count();
    let descs = u32::try_from(descs).unwrap_or(u32::MAX);
    let has_new_backup =
        (old.group_count..new.group_count).any(|group| new.has_super(GroupNo(group)));
    let reserved = if has_new_backup { new.reserved_gdt_blocks } else { 0 };
    FIXED.saturating_add(descs).saturating_add(reserved)
}

/// One transaction, with all that was read for it.
struct Step<'a> {
    context: &'a FileContext,
    growth: &'a Growth,
    new: Layout,
    /// The new descriptors with their checksums.
    slots: Vec<Vec<u8>>,
    resize_inode: Option<ResizeInode>,
    /// Descriptor blocks that begin to be used.
    descs: Vec<(BlockNo, Vec<u8>)>,
    _pin: Option<Arc<Buffer>>,
}

impl<'a> Step<'a> {
    /// Reads and checks everything.
    fn plan(context: &'a FileContext, growth: &'a Growth) -> Result<Self> {
        context.check_writable()?;
        let old = context.space.layout();
        let new = Layout::new(&growth.superblock, Some(context.cache().device().len()))?;
        check(old, &new, growth)?;
        let slots: Vec<Vec<u8>> =
            (old.group_count..).zip(&growth.groups).map(|(g, d)| slot(&new, g, d)).collect();
        let has_inode = old.features.compat.contains(Compat::RESIZE_INODE);
        let resize_inode = match has_inode {
            true => Some(ResizeInode::plan(context, &new)?),
            false => None,
        };
        let descs = new_desc_blocks(old, &new, &slots)?;
        let journal = context.space.journal();
        if growth_blocks(old, &new) > journal.credits_max() {
            let why = "the journal is too small for this step";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        let pin = context.space.pin_last_group()?;
        Ok(Self { context, growth, new, slots, resize_inode, descs, _pin: pin })
    }

    fn run(&self) -> Result<()> {
        let journal = self.context.space.journal();
        let credits = growth_blocks(self.context.space.layout(), &self.new);
        if journal.has_log() {
            refusal::keep_kernel_out(self.context)?;
            journal.run(credits, |handle| {
                self.change_all_but_superblock(handle)?;
                self.change_superblock(handle)
            })?;
            journal.commit_all()?;
            // The kernel may mount again from here on.
            journal.checkpoint_all()?;
        } else {
            journal.run(credits, |handle| self.change_all_but_superblock(handle))?;
            journal.commit_all()?;
            journal.run(1, |handle| self.change_superblock(handle))?;
            journal.commit_all()?;
        }
        self.write_backups()
    }

    fn change_all_but_superblock(&self, handle: &mut Handle<'_>) -> Result<()> {
        let space = &self.context.space;
        let last = GroupNo(space.layout().group_count.saturating_sub(1));
        space.extend_last_group(handle, self.new.bits_in_group(last))?;
        space.add_descs(handle, &self.slots)?;
        if let Some(inode) = &self.resize_inode {
            inode.change(self.context, handle)?;
        }
        for (block, bytes) in &self.descs {
            let buffer = handle.create(*block, BlockKind::Plain)?;
            handle.write(&buffer)?.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn change_superblock(&self, handle: &mut Handle<'_>) -> Result<()> {
        self.context.space.count_new_groups(&self.growth.groups);
        let (buffer, at) = self.context.cache().superblock()?;
        if let Some(raw) = RawSuperblock::mut_from_prefix(&mut handle.write(&buffer)?[at..]) {
            let (blocks, inodes) = (raw.free_blocks_count(), raw.s_free_inodes_count);
            *raw = self.growth.superblock;
            // The commit counts.
            raw.set_free_blocks_count(blocks);
            raw.s_free_inodes_count = inodes;
        }
        Ok(())
    }

    /// Writes the backups in the old groups. A crash may leave old ones, which e2fsck does not
    /// mind.
    fn write_backups(&self) -> Result<()> {
        let old = self.context.space.layout();
        let mut sources = Sources { step: self, last: None };
        for group in (1..old.group_count).map(GroupNo) {
            let (first, count) = self.new.desc_copies(group);
            let from = match self.new.is_in_meta_group(group) {
                true => group.get() / self.new.descs_per_block(),
                false => 0,
            };
            let copies: Vec<(BlockNo, u32)> = (0..count)
                .map(|n| (first.plus(u64::from(n)), from + n))
                .filter(|(block, n)| *block != self.new.desc_block_no(*n))
                .collect();
            for part in copies.chunks(BACKUPS_A_HANDLE) {
                self.write_desc_copies(part, &mut sources)?;
            }
            if let Some(block) = self.new.super_copy(group) {
                let copy = self.growth.superblock.for_backup(group);
                self.write_plain(&[(block, copy.bytes().to_vec())])?;
            }
        }
        Ok(())
    }

    fn write_desc_copies(
        &self,
        copies: &[(BlockNo, u32)],
        sources: &mut Sources<'_>,
    ) -> Result<()> {
        let mut blocks = Vec::new();
        for (block, n) in copies {
            if let Some(bytes) = sources.get(*n)? {
                blocks.push((*block, bytes));
            }
        }
        self.write_plain(&blocks)
    }

    /// Writes the first bytes of blocks.
    fn write_plain(&self, blocks: &[(BlockNo, Vec<u8>)]) -> Result<()> {
        let cache: &Cache = self.context.cache();
        let read = |(block, _): &(BlockNo, Vec<u8>)| cache.read(*block, BlockKind::Plain);
        let buffers = blocks.iter().map(read).collect::<Result<Vec<_>>>()?;
        let credits = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        self.context.space.journal().run(credits, |handle| {
            for (buffer, (_, bytes)) in buffers.iter().zip(blocks) {
                handle.write(buffer)?[..bytes.len()].copy_from_slice(bytes);
            }
            Ok(())
        })
    }
}

/// The contents of descriptor blocks, for their copies.
struct Sources<'a> {
    step: &'a Step<'a>,
    last: Option<(u32, Vec<u8>)>,
}

impl Sources<'_> {
    /// Descriptor block `n`; `None` if there is none.
    fn get(&mut self, n: u32) -> Result<Option<Vec<u8>>> {
        if let Some((_, bytes)) = self.last.as_ref().filter(|(last, _)| *last == n) {
            return Ok(Some(bytes.clone()));
        }
        let (old, new) = (self.step.context.space.layout(), &self.step.new);
        let bytes = match n {
            n if n < old.desc_block_count() => self.step.context.space.sealed_descs(n)?,
            n if n < new.desc_block_count() => block_of_slots(old, new, n, &self.step.slots),
            _ => return Ok(None),
        };
        self.last = Some((n, bytes.clone()));
        Ok(Some(bytes))
    }
}

/// Refuses a geometry that does not continue the old one.
fn check(old: &Layout, new: &Layout, growth: &Growth) -> Result<()> {
    let is_same = old.block_size == new.block_size
        && old.blocks_per_group == new.blocks_per_group
        && old.cluster_blocks == new.cluster_blocks
        && old.inodes_per_group == new.inodes_per_group
        && old.desc_size == new.desc_size
        && old.uuid == new.uuid
        && old.checksums == new.checksums;
    let groups = u64::from(old.group_count) + growth.groups.len() as u64;
    if is_same && new.blocks_count > old.blocks_count && u64::from(new.group_count) == groups {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, "the new geometry does not continue the old one"))
}

/// A descriptor with its checksum.
fn slot(layout: &Layout, group: u32, desc: &RawGroupDesc) -> Vec<u8> {
    let mut slot = vec![0; usize::from(layout.desc_size)];
    desc.write(&mut slot, layout.desc_size);
    group_desc::seal_slot(&mut slot, &layout.checksums, GroupNo(group));
    slot
}

/// Descriptor block `n`, which has new groups only.
fn block_of_slots(old: &Layout, new: &Layout, n: u32, slots: &[Vec<u8>]) -> Vec<u8> {
    let first = (n * new.descs_per_block()).saturating_sub(old.group_count) as usize;
    let slots = slots.iter().skip(first).take(new.descs_per_block() as usize);
    let mut bytes: Vec<u8> = slots.flatten().copied().collect();
    bytes.resize(new.block_size as usize, 0);
    bytes
}

/// The descriptor blocks that begin to be used in the old file system: they must be reserved for
/// that.
fn new_desc_blocks(
    old: &Layout,
    new: &Layout,
    slots: &[Vec<u8>],
) -> Result<Vec<(BlockNo, Vec<u8>)>> {
    let reserved = old.desc_block_count() + old.reserved_gdt_blocks;
    let mut blocks = Vec::new();
    for n in old.desc_block_count()..new.desc_block_count() {
        let block = new.desc_block_no(n);
        if block.get() >= old.blocks_count {
            continue;
        }
        if n >= reserved || new.has_meta_bg() {
            let why = "no blocks are reserved for more group descriptors";
            return Err(Error::new(ErrorKind::InvalidArgument, why));
        }
        blocks.push((block, block_of_slots(old, new, n, slots)));
    }
    Ok(blocks)
}
