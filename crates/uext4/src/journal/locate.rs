//! The blocks of the journal, found without the engine, because the journal must be replayed before
//! anything else of the volume can be trusted.

use crate::error::{Error, ErrorKind, Result};
use uext4_device::{Device, SharedDevice};
use uext4_ondisk::block_map::{self, BlockPath};
use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::extent::{ExtentNode, verify_extent_block};
use uext4_ondisk::features::external_journal;
use uext4_ondisk::journal::superblock::MAX_JOURNAL_BLOCKS;
use uext4_ondisk::{
    BlockNo, CorruptKind, FileBlock, Ino, InodeFlags, Layout, Place, RawGroupDesc, RawInode,
    RawSuperblock, inode::verify_inode,
};

/// Most runs of a journal. A journal made by mke2fs has a handful.
const RUNS_MAX: usize = 1 << 16;

/// Blocks of the journal on the device.
#[derive(Clone, Debug, Default)]
pub struct LogLocation {
    /// Runs, ascending: journal block, block on the device, number of blocks.
    pub runs: Vec<(u32, BlockNo, u32)>,
    /// The device of the journal, if that is not the file system's.
    pub device: Option<SharedDevice>,
    /// The journal block of the journal superblock.
    pub superblock: u32,
}

impl LogLocation {
    /// Number of blocks of the journal.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.runs.last().map_or(0, |&(first, _, len)| first + len)
    }

    /// The runs on the file system's own device.
    #[must_use]
    pub fn own_runs(&self) -> &[(u32, BlockNo, u32)] {
        if self.device.is_some() { &[] } else { &self.runs }
    }

    /// Finds the blocks of the internal journal.
    ///
    /// # Errors
    /// An external journal; a corrupt journal inode; a journal with holes; a device failure.
    pub fn find(device: &dyn Device, layout: &Layout, superblock: &RawSuperblock) -> Result<Self> {
        let ino = Ino(superblock.s_journal_inum.get());
        if ino.get() == 0 {
            let uuid = external_journal(superblock).unwrap_or_default();
            let context = format!(
                "the journal {uuid} is on another device and needs recovery: name it \
                 (--journal-device, journal_path=; -o ro,noload reads what is there)"
            );
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        let (raw, seed) = read_inode(device, layout, ino)?;
        let corrupt = |kind: CorruptKind| Error::from(kind.at(Place::Inode(ino)));
        let why = |why| corrupt(CorruptKind::Rule { what: "journal inode", why });
        if raw.kind() != Some(uext4_ondisk::FileKind::Regular) || raw.i_links_count.get() == 0 {
            return Err(why("is no file in use"));
        }
        let blocks = raw.size() / u64::from(layout.block_size);
        let most = layout.blocks_count.min(u64::from(MAX_JOURNAL_BLOCKS));
        let blocks = u32::try_from(blocks)
            .ok()
            .filter(|&blocks| u64::from(blocks) <= most)
            .ok_or_else(|| why("is larger than a journal can be"))?;
        let mut location = Self::default();
        if raw.flags().contains(InodeFlags::EXTENTS) {
            let node =
                ExtentNode::parse(&raw.i_block, None, 0..layout.blocks_count).map_err(corrupt)?;
            location.walk(device, layout, seed, &node, FileBlock::END)?;
        } else {
            location.walk_block_map(device, layout, &raw.i_block, blocks)?;
        }
        let mut next = 0;
        for &(first, start, len) in &location.runs {
            if first != next || !layout.is_valid_run(start, u64::from(len)) {
                return Err(why("has a hole"));
            }
            next += len;
        }
        if next < blocks || next == 0 {
            return Err(why("has a hole"));
        }
        Ok(location)
    }

    fn walk(
        &mut self,
        device: &dyn Device,
        layout: &Layout,
        seed: InodeSeed,
        node: &ExtentNode<'_>,
        end: FileBlock,
    ) -> Result<()> {
        for extent in node.extents() {
            self.push(extent.first.get(), extent.start, extent.len)?;
        }
        let mut children = node.children().peekable();
        while let Some(child) = children.next() {
            let end = children.peek().map_or(end, |next| next.first);
            let at = |kind: CorruptKind| Error::from(kind.at(Place::Block(child.child)));
            let bytes = read_block(device, layout, child.child)?;
            verify_extent_block(&bytes, seed).map_err(at)?;
            let depth = node.depth.checked_sub(1);
            let node = ExtentNode::parse(&bytes, depth, 0..layout.blocks_count).map_err(at)?;
            node.check_place(child.first, end).map_err(at)?;
            self.walk(device, layout, seed, &node, end)?;
        }
        Ok(())
    }

    fn walk_block_map(
        &mut self,
        device: &dyn Device,
        layout: &Layout,
        map: &[u8; 60],
        blocks: u32,
    ) -> Result<()> {
        // Neighbours share their indirect blocks, so the last one of each level is kept.
        let mut kept: [Option<(BlockNo, Vec<u8>)>; 3] = [None, None, None];
        for at in 0..blocks {
            let Some(BlockPath { root, steps }) = block_map::path(FileBlock(at), layout.block_size)
            else {
                break;
            };
            let mut block = block_map::direct(map, root);
            for (kept, index) in kept.iter_mut().zip(steps) {
                if kept.as_ref().is_none_or(|(number, _)| *number != block) {
                    *kept = Some((block, read_block(device, layout, block)?));
                }
                block = kept.as_ref().map_or(BlockNo(0), |(_, b)| block_map::entry(b, index));
            }
            if block.get() == 0 {
                break;
            }
            self.push(at, block, 1)?;
        }
        Ok(())
    }

    fn push(&mut self, first: u32, start: BlockNo, len: u32) -> Result<()> {
        if let Some(last) = self.runs.last_mut()
            && last.0.saturating_add(last.2) == first
            && last.1.plus(u64::from(last.2)) == start
        {
            last.2 = last.2.saturating_add(len);
        } else if self.runs.len() < RUNS_MAX {
            self.runs.push((first, start, len));
        } else {
            let context = format!("a journal in more than {RUNS_MAX} pieces");
            return Err(Error::new(ErrorKind::Unsupported, context));
        }
        Ok(())
    }
}

fn read_inode(device: &dyn Device, layout: &Layout, ino: Ino) -> Result<(RawInode, InodeSeed)> {
    let at = |kind: CorruptKind| Error::from(kind.at(Place::Inode(ino)));
    let outside = CorruptKind::Rule { what: "journal inode", why: "number out of range" };
    let (group, index) = layout.group_of_ino(ino).ok_or_else(|| at(outside))?;
    let (desc_block, desc_offset) = layout.desc_place(group).ok_or_else(|| at(outside))?;
    let bytes = read_block(device, layout, desc_block)?;
    let desc = bytes.get(desc_offset as usize..).unwrap_or_default();
    let desc = RawGroupDesc::read(desc, layout.desc_size).map_err(at)?;
    let byte = u64::from(index) * u64::from(layout.inode_size);
    let block = desc.inode_table().plus(byte / u64::from(layout.block_size));
    let bytes = read_block(device, layout, block)?;
    let offset = (byte % u64::from(layout.block_size)) as usize;
    let slot = &bytes[offset..offset + layout.inode_size as usize];
    let raw = RawInode::read(slot).map_err(at)?;
    let seed = layout.checksums.inode_seed(ino, raw.i_generation.get());
    verify_inode(slot, seed).map_err(at)?;
    Ok((raw, seed))
}

fn read_block(device: &dyn Device, layout: &Layout, block: BlockNo) -> Result<Vec<u8>> {
    if !layout.is_valid_run(block, 1) {
        let kind = CorruptKind::Rule { what: "journal", why: "lies outside the file system" };
        return Err(kind.at(Place::Block(block)).into());
    }
    let mut bytes = vec![0; layout.block_size as usize];
    device
        .read_at(layout.byte_of(block), &mut bytes)
        .map_err(|e| Error::io(format!("reading block {block}"), e))?;
    Ok(bytes)
}
