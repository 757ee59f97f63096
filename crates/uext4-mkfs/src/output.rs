//! Writing a planned file system to a device.
//!
//! Invariants: the old superblock is erased first and the new one is written last, with a flush
//! before and after, so that a crash leaves nothing that looks like a complete file system.
//! Everything that may be read is written, unless the device is known to be zero there.

use crate::error::{MkfsError, Result};
use crate::geometry::Geometry;
use crate::options::Options;
use crate::space::Space;
use std::collections::BTreeMap;
use uext4_device::Device;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::superblock::{STATE_VALID, SUPERBLOCK_OFFSET};
use uext4_ondisk::{
    BlockNo, GroupFlags, GroupNo, Ino, Layout, RawGroupDesc, RawSuperblock, bitmap, group_desc,
};

/// Bytes at both ends of the device that are zeroed, because other file systems and partition
/// tables have their signatures there.
const WIPE_BYTES: u64 = 128 * 1024;
/// Zeros are written in pieces of this many bytes.
const ZERO_CHUNK: usize = 1 << 20;

/// A planned file system.
pub(crate) struct Image<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) space: &'a Space,
    pub(crate) descs: Vec<RawGroupDesc>,
    pub(crate) blocks: BTreeMap<BlockNo, Vec<u8>>,
    pub(crate) slots: BTreeMap<Ino, Vec<u8>>,
    pub(crate) journal: Vec<Extent>,
}

/// Writes to a device, and counts the bytes.
pub(crate) struct Writer<'a> {
    device: &'a dyn Device,
    /// Whether the device reads as zeros wherever nothing was written.
    pub(crate) is_zero: bool,
    pub(crate) written: u64,
    /// The superblock gets no count of what was written.
    is_uncounted: bool,
}

impl<'a> Writer<'a> {
    /// Discards the device's content if possible.
    pub(crate) fn new(device: &'a dyn Device, options: &Options) -> Result<Self> {
        let io = |source| MkfsError::Io { what: "discard", source };
        let mut is_zero = device.fresh_zeroes();
        if !is_zero
            && options.discard != Some(false)
            && device.punch(0, device.len()).map_err(io)?
        {
            device.flush().map_err(io)?;
            is_zero = true;
        }
        Ok(Self { device, is_zero, written: 0, is_uncounted: options.is_reproducible })
    }

    /// Erases the signatures at both ends, durably.
    pub(crate) fn wipe_ends(&mut self) -> Result<()> {
        let end = self.device.len();
        self.zero("start of the device", 0, WIPE_BYTES.min(end))?;
        let tail = end.saturating_sub(WIPE_BYTES);
        self.zero("end of the device", tail, end - tail)?;
        self.flush("start of the device")
    }

    pub(crate) fn put_at(&mut self, what: &'static str, offset: u64, bytes: &[u8]) -> Result<()> {
        self.written += bytes.len() as u64;
        self.device.write_at(offset, bytes).map_err(|source| MkfsError::Io { what, source })
    }

    pub(crate) fn flush(&self, what: &'static str) -> Result<()> {
        self.device.flush().map_err(|source| MkfsError::Io { what, source })
    }

    pub(crate) fn zero(&mut self, what: &'static str, offset: u64, len: u64) -> Result<()> {
        let chunk = vec![0; ZERO_CHUNK.min(usize::try_from(len).unwrap_or(ZERO_CHUNK))];
        let mut done = 0;
        while done < len {
            let rest = usize::try_from(len - done).unwrap_or(ZERO_CHUNK).min(chunk.len());
            self.put_at(what, offset + done, &chunk[..rest])?;
            done += rest as u64;
        }
        Ok(())
    }

    /// Writes the superblock, with the count of all that was written, between two flushes: it makes
    /// of what stands there already a file system or a journal.
    pub(crate) fn finish(&mut self, sb: &RawSuperblock) -> Result<()> {
        self.flush("metadata")?;
        let mut primary = *sb;
        let written = self.written + primary.bytes().len() as u64;
        if !self.is_uncounted {
            primary.s_kbytes_written.set(written.div_ceil(1024));
        }
        primary.seal();
        self.put_at("superblock", SUPERBLOCK_OFFSET, primary.bytes())?;
        self.flush("superblock")
    }
}

/// Makes `map` the block bitmap of a group: its blocks in use, and what lies past its end.
pub(crate) fn fill_block_bitmap(layout: &Layout, space: &Space, group: GroupNo, map: &mut [u8]) {
    let first = layout.group_first_block(group).get();
    let (blocks, bits) = (layout.blocks_in_group(group), layout.bits_in_group(group));
    map.fill(0);
    for used in space.used_in(first..first + u64::from(blocks)) {
        let ends = [used.start, used.end].map(|b| u32::try_from(b - first));
        if let [Ok(from), Ok(to)] = ends {
            let from = layout.bits_for(from);
            bitmap::set_range(map, from, layout.bits_for(to) - from);
        }
    }
    bitmap::set_range(map, bits, layout.block_size * 8 - bits);
}

/// Writes the structures of a file system.
pub(crate) struct Output<'a> {
    pub(crate) writer: Writer<'a>,
    layout: &'a Layout,
    lazy_tables: bool,
}

impl<'a> Output<'a> {
    /// Discards the device's content if possible.
    pub(crate) fn new(
        device: &'a dyn Device,
        options: &Options,
        layout: &'a Layout,
    ) -> Result<Self> {
        let writer = Writer::new(device, options)?;
        // Without checksums of group descriptors nothing can say that a table is not zeroed yet.
        let is_lazy = options.lazy_itable_init == Some(true) && options.assume_zeroed != Some(true);
        let lazy_tables = is_lazy && layout.checksums.has_group_checksum();
        Ok(Self { writer, layout, lazy_tables })
    }

    /// Whether the inode tables will be zero beyond the inodes in use.
    pub(crate) fn tables_will_be_zero(&self) -> bool {
        self.writer.is_zero || !self.lazy_tables
    }

    /// Erases what the device has in the places of structures, before anything is written.
    pub(crate) fn erase(&mut self, image: &Image<'_>, options: &Options) -> Result<()> {
        if self.writer.is_zero {
            return Ok(());
        }
        self.writer.wipe_ends()?;
        if options.assume_zeroed == Some(true) {
            return Ok(());
        }
        self.zero_tables(image)?;
        self.zero_journal(image, options.lazy_journal_init == Some(true))
    }

    /// Writes all but the superblock: [`Writer::finish`] must follow.
    pub(crate) fn write(&mut self, image: Image<'_>) -> Result<()> {
        self.write_slots(&image)?;
        for (block, bytes) in &image.blocks {
            self.put("file", *block, bytes)?;
        }
        let mut descs = image.descs;
        self.write_bitmaps(image.space, &mut descs)?;
        self.write_backups(&image.geometry.sb, &descs)
    }

    fn put(&mut self, what: &'static str, block: BlockNo, bytes: &[u8]) -> Result<()> {
        self.writer.put_at(what, self.layout.byte_of(block), bytes)
    }

    fn zero_blocks(&mut self, what: &'static str, first: BlockNo, count: u64) -> Result<()> {
        let bytes = count * u64::from(self.layout.block_size);
        self.writer.zero(what, self.layout.byte_of(first), bytes)
    }

    /// Zeroes inode tables: all of them, or with lazy initialisation the blocks in use.
    fn zero_tables(&mut self, image: &Image<'_>) -> Result<()> {
        for desc in &image.descs {
            let mut blocks = self.layout.inode_table_blocks();
            if self.lazy_tables {
                let used = self.layout.inodes_per_group - desc.itable_unused();
                blocks = used.div_ceil(self.layout.inodes_per_block());
            }
            self.zero_blocks("inode table", desc.inode_table(), u64::from(blocks))?;
        }
        Ok(())
    }

    fn zero_journal(&mut self, image: &Image<'_>, is_lazy: bool) -> Result<()> {
        for extent in image.journal.iter().filter(|_| !is_lazy) {
            self.zero_blocks("journal", extent.start, u64::from(extent.len))?;
        }
        Ok(())
    }

    /// Writes the inodes, block by block of their tables.
    fn write_slots(&mut self, image: &Image<'_>) -> Result<()> {
        let layout = self.layout;
        let mut blocks: BTreeMap<BlockNo, Vec<u8>> = BTreeMap::new();
        for (ino, slot) in &image.slots {
            let Some((group, index)) = layout.group_of_ino(*ino) else { continue };
            let per_block = layout.inodes_per_block();
            let table = image.descs[group.get() as usize].inode_table();
            let block = blocks
                .entry(table.plus(u64::from(index / per_block)))
                .or_insert_with(|| vec![0; layout.block_size as usize]);
            let at = (index % per_block * layout.inode_size) as usize;
            block[at..at + slot.len()].copy_from_slice(slot);
        }
        for (block, bytes) in &blocks {
            self.put("inode table", *block, bytes)?;
        }
        Ok(())
    }

    /// Writes the bitmaps that are not left uninitialised, and stores their checksums.
    fn write_bitmaps(&mut self, space: &Space, descs: &mut [RawGroupDesc]) -> Result<()> {
        let layout = self.layout;
        let checksums = &layout.checksums;
        let mut map = vec![0; layout.block_size as usize];
        let all = layout.block_size * 8;
        for (group, desc) in (0..).map(GroupNo).zip(descs) {
            if !desc.flags().contains(GroupFlags::BLOCK_UNINIT) {
                fill_block_bitmap(layout, space, group, &mut map);
                let csum = bitmap::block_bitmap_csum(checksums, &map, layout.clusters_per_group);
                desc.set_block_bitmap_csum(csum.unwrap_or(0));
                self.put("block bitmap", desc.block_bitmap(), &map)?;
            }
            if !desc.flags().contains(GroupFlags::INODE_UNINIT) {
                let inodes = layout.inodes_per_group;
                map.fill(0);
                // The inodes in use are the first of their group.
                bitmap::set_range(&mut map, 0, inodes - desc.free_inodes());
                bitmap::set_range(&mut map, inodes, all - inodes);
                let csum = bitmap::inode_bitmap_csum(checksums, &map, inodes);
                desc.set_inode_bitmap_csum(csum.unwrap_or(0));
                self.put("inode bitmap", desc.inode_bitmap(), &map)?;
            }
        }
        Ok(())
    }

    /// Writes the descriptors and all copies of them and of the superblock.
    fn write_backups(&mut self, sb: &RawSuperblock, descs: &[RawGroupDesc]) -> Result<()> {
        let layout = self.layout;
        let size = usize::from(layout.desc_size);
        let table = layout.desc_block_count() as usize * layout.block_size as usize;
        let mut table = vec![0; table];
        for ((group, desc), slot) in (0..).map(GroupNo).zip(descs).zip(table.chunks_mut(size)) {
            desc.write(slot, layout.desc_size);
            group_desc::seal_slot(slot, &layout.checksums, group);
        }
        let per_block = layout.descs_per_block();
        for group in (0..layout.group_count).map(GroupNo) {
            let (first, count) = layout.desc_copies(group);
            // In a meta group each copy is the block of its own descriptors, elsewhere all that
            // precede the first meta group.
            let from = match layout.is_in_meta_group(group) {
                true => group.get() / per_block,
                false => 0,
            };
            let range = [from, from + count].map(|n| n as usize * layout.block_size as usize);
            if count > 0 {
                self.put("group descriptors", first, &table[range[0]..range[1]])?;
            }
            if let Some(at) = layout.super_copy(group).filter(|_| group.get() > 0) {
                let mut copy = *sb;
                copy.s_block_group_nr.set(u16::try_from(group.get() & 0xffff).unwrap_or(0));
                copy.s_state.set(sb.s_state.get() & !STATE_VALID);
                copy.seal();
                self.put("backup superblock", at, copy.bytes())?;
            }
        }
        Ok(())
    }
}
