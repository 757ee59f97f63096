//! The fixed structures of a file system, read from its device without the engine: works on images
//! that the engine refuses, and on ones whose journal is dirty (shown as they stand, as dumpe2fs
//! does).

use uext4_device::SharedDevice;
use uext4_ondisk::block_map;
use uext4_ondisk::extent::ExtentNode;
use uext4_ondisk::inode::InodeFlags;
use uext4_ondisk::journal::RawJournalSuperblock;
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{
    BlockNo, Compat, FileBlock, GroupNo, Ino, Layout, RawGroupDesc, RawInode, RawSuperblock,
};

use crate::failure::Why;

/// Levels that an extent tree can have.
const EXTENT_DEPTH_MAX: usize = 5;

/// A file system's superblock and geometry, with the device they came from.
pub(crate) struct Inspected {
    device: SharedDevice,
    /// The superblock.
    pub(crate) superblock: RawSuperblock,
    /// Its geometry.
    pub(crate) layout: Layout,
}

impl Inspected {
    /// Reads the superblock and checks it against the device.
    pub(crate) fn read(device: SharedDevice) -> Result<Self, Why> {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        if device.len() < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
            return Err(Why::new(format!("too small for ext4 ({} bytes)", device.len())));
        }
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        let superblock = RawSuperblock::read(&bytes).map_err(why)?;
        let layout = Layout::new(&superblock, Some(device.len())).map_err(why)?;
        Ok(Self { device, superblock, layout })
    }

    /// The device.
    pub(crate) fn device(&self) -> &SharedDevice {
        &self.device
    }

    fn block(&self, block: BlockNo) -> Result<Vec<u8>, Why> {
        if !self.layout.is_valid_block(block) {
            return Err(Why::new(format!("block {block} is outside the file system")));
        }
        let mut bytes = vec![0; self.layout.block_size as usize];
        self.device.read_at(self.layout.byte_of(block), &mut bytes)?;
        Ok(bytes)
    }

    /// A group's descriptor.
    pub(crate) fn group(&self, group: GroupNo) -> Result<RawGroupDesc, Why> {
        let (block, at) =
            self.layout.desc_place(group).ok_or_else(|| Why::new(format!("no group {group}")))?;
        let bytes = self.block(block)?;
        let slot = bytes.get(at as usize..).unwrap_or_default();
        RawGroupDesc::read(slot, self.layout.desc_size).map_err(why)
    }

    fn inode(&self, ino: Ino) -> Result<RawInode, Why> {
        let (group, index) =
            self.layout.group_of_ino(ino).ok_or_else(|| Why::new(format!("no inode {ino}")))?;
        let table = self.group(group)?.inode_table();
        let (size, per_block) = (self.layout.inode_size, self.layout.inodes_per_block());
        let bytes = self.block(table.plus(u64::from(index / per_block)))?;
        let at = (index % per_block * size) as usize;
        RawInode::read(bytes.get(at..at + size as usize).unwrap_or_default()).map_err(why)
    }

    /// The superblock of the internal journal, and its inode; `None` where there is none.
    pub(crate) fn journal(&self) -> Result<Option<Journal>, Why> {
        let ino = self.superblock.s_journal_inum.get();
        if ino == 0 || !self.layout.features.compat.contains(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        let inode = self.inode(Ino(ino))?;
        let first = self.first_block(&inode)?;
        let superblock = RawJournalSuperblock::read(&self.block(first)?).map_err(why)?;
        Ok(Some(Journal { superblock, bytes: inode.size() }))
    }

    /// Block 0 of a file, by extents or by a block map.
    fn first_block(&self, inode: &RawInode) -> Result<BlockNo, Why> {
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            return Ok(block_map::direct(&inode.i_block, 0));
        }
        let blocks = self.layout.first_data_block.get()..self.layout.blocks_count;
        let mut bytes = inode.i_block.to_vec();
        let mut depth = None;
        for _ in 0..=EXTENT_DEPTH_MAX {
            let node = ExtentNode::parse(&bytes, depth, blocks.clone()).map_err(why)?;
            if let Some(extent) = node.extents().next() {
                if extent.first == FileBlock(0) {
                    return Ok(extent.start);
                }
                break;
            }
            let Some(child) = node.children().next() else { break };
            depth = node.depth.checked_sub(1);
            bytes = self.block(child.child)?;
        }
        Err(Why::new("the journal has no first block"))
    }
}

/// What there is to say of a journal.
pub(crate) struct Journal {
    /// Its superblock.
    pub(crate) superblock: RawJournalSuperblock,
    /// Size of its inode.
    pub(crate) bytes: u64,
}

fn why(error: impl std::fmt::Display) -> Why {
    Why::new(error.to_string())
}
