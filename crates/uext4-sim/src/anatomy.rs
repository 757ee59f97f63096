//! Where the metadata of an image stands, and how each structure is sealed.
//!
//! Works on a sound image, by the format alone: engine and checker are what is being tested.

use std::ops::Range;
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::checksum::{InodeSeed, crc32c};
use uext4_ondisk::extent::ExtentNode;
use uext4_ondisk::journal::superblock::{JournalChecksum, JournalFormat, RawJournalSuperblock};
use uext4_ondisk::journal::{block, block::BlockType};
use uext4_ondisk::mmp::RawMmp;
use uext4_ondisk::{
    BlockNo, FileKind, GroupFlags, GroupNo, Ino, InodeFlags, Layout, RawGroupDesc, RawInode,
    RawSuperblock, bitmap, block_map, dir_entry, extent, group_desc, htree, inode, orphan, xattr,
};
use zerocopy::big_endian;

/// How a structure's checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seal {
    /// The superblock.
    Superblock,
    /// A group descriptor.
    Desc(GroupNo),
    /// A block bitmap; its checksum and free count stand in the descriptor.
    BlockBitmap(GroupNo),
    /// An inode bitmap; its checksum and free count stand in the descriptor.
    InodeBitmap(GroupNo),
    /// A slot of an inode table.
    Inode(Ino),
    /// A node of an extent tree.
    Extent(InodeSeed),
    /// A block of directory entries.
    DirLeaf(InodeSeed),
    /// An index block of a hashed directory.
    DirIndex(InodeSeed),
    /// An attribute block.
    Xattr(BlockNo),
    /// A block of the orphan file.
    Orphan(InodeSeed, BlockNo),
    /// The journal's superblock.
    JournalSuperblock,
    /// A descriptor or revoke block of the log.
    LogBlock,
    /// An image in the log; its tag stands at this byte of the device.
    LogImage(u64),
    /// The block of multiple mount protection.
    Mmp,
    /// A block of a quota file; it has no checksum.
    Quota,
    /// A block of a value in an inode; its hash stands in the inode, and is left as it is.
    Value,
    /// A block of block numbers, or of a symbolic link.
    None,
}

/// A structure on the device.
#[derive(Clone, Debug)]
pub struct Structure {
    /// Byte on the device.
    pub at: u64,
    /// Bytes.
    pub len: usize,
    /// Bytes in use: damage beyond them says little.
    pub used: usize,
    /// Its checksum.
    pub seal: Seal,
    /// The inode that it is a part of.
    pub owner: Option<Ino>,
}

/// An image taken apart.
#[derive(Debug)]
pub struct Anatomy {
    /// Geometry.
    pub layout: Layout,
    /// Every structure.
    pub targets: Vec<Structure>,
    /// Inodes in use.
    pub inodes: Vec<Ino>,
    journal: JournalFormat,
}

impl Anatomy {
    /// Takes a sound image apart.
    ///
    /// # Panics
    /// The image is not sound.
    #[must_use]
    pub fn of(device: &MemoryDevice) -> Self {
        let raw = RawSuperblock::read(&bytes(device, 1024, 1024)).expect("superblock");
        let layout = Layout::new(&raw, None).expect("layout");
        let journal = RawJournalSuperblock::zeroed().format();
        let mut anatomy = Self { layout, targets: Vec::new(), inodes: Vec::new(), journal };
        anatomy.add(1024, 1024, 0x290, Seal::Superblock);
        if raw.s_mmp_block.get() != 0 {
            let at = anatomy.layout.byte_of(BlockNo(raw.s_mmp_block.get()));
            anatomy.add(at, 1024, 124, Seal::Mmp);
        }
        for group in 0..anatomy.layout.group_count {
            anatomy.group(device, GroupNo(group));
        }
        for ino in anatomy.inodes.clone() {
            let first = anatomy.targets.len();
            anatomy.inode(device, &raw, ino);
            anatomy.targets[first..].iter_mut().for_each(|target| target.owner = Some(ino));
        }
        anatomy
    }

    fn add(&mut self, at: u64, len: usize, used: usize, seal: Seal) {
        self.targets.push(Structure { at, len, used: used.min(len), seal, owner: None });
    }

    fn add_block(&mut self, block: BlockNo, seal: Seal) {
        let len = self.layout.block_size as usize;
        self.add(self.layout.byte_of(block), len, len, seal);
    }

    fn desc_at(&self, group: GroupNo) -> u64 {
        let (block, at) = self.layout.desc_place(group).expect("group");
        self.layout.byte_of(block) + u64::from(at)
    }

    fn desc(&self, device: &MemoryDevice, group: GroupNo) -> RawGroupDesc {
        let size = self.layout.desc_size;
        RawGroupDesc::read(&bytes(device, self.desc_at(group), size.into()), size).expect("desc")
    }

    fn group(&mut self, device: &MemoryDevice, group: GroupNo) {
        let size = usize::from(self.layout.desc_size);
        self.add(self.desc_at(group), size, size, Seal::Desc(group));
        let desc = self.desc(device, group);
        self.add_block(desc.block_bitmap(), Seal::BlockBitmap(group));
        self.add_block(desc.inode_bitmap(), Seal::InodeBitmap(group));
        if desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return;
        }
        let map = bytes(device, self.layout.byte_of(desc.inode_bitmap()), 4096);
        let used = (0..self.layout.inodes_per_group).filter(|&bit| bitmap::test(&map, bit));
        self.inodes.extend(used.map(|bit| self.layout.ino_of(group, bit)));
    }

    fn slot_at(&self, device: &MemoryDevice, ino: Ino) -> u64 {
        let (group, index) = self.layout.group_of_ino(ino).expect("inode");
        let table = self.layout.byte_of(self.desc(device, group).inode_table());
        table + u64::from(index) * u64::from(self.layout.inode_size)
    }

    fn inode(&mut self, device: &MemoryDevice, sb: &RawSuperblock, ino: Ino) {
        let size = self.layout.inode_size as usize;
        let at = self.slot_at(device, ino);
        let slot = bytes(device, at, size);
        let raw = RawInode::read(&slot).expect("inode");
        let Some(kind) = raw.kind() else { return };
        self.add(at, size, size, Seal::Inode(ino));
        let seed = self.layout.checksums.inode_seed(ino, raw.i_generation.get());
        if raw.file_acl() != 0 {
            let block = BlockNo(raw.file_acl());
            self.add_block(block, Seal::Xattr(block));
        }
        let is_file = matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        let is_fast = kind == FileKind::Symlink && raw.size() < 60;
        if !is_file || is_fast || raw.flags().contains(InodeFlags::INLINE_DATA) {
            return;
        }
        let blocks = if raw.flags().contains(InodeFlags::EXTENTS) {
            self.extents(device, &raw.i_block, None, seed)
        } else {
            self.block_map(device, &raw.i_block)
        };
        let quotas = [sb.s_usr_quota_inum, sb.s_grp_quota_inum, sb.s_prj_quota_inum];
        let is_quota = quotas.iter().any(|number| number.get() == ino.get());
        for (index, block) in blocks.into_iter().enumerate() {
            let image = bytes(device, self.layout.byte_of(block), self.layout.block_size as usize);
            if ino.get() == sb.s_journal_inum.get() {
                self.log_block(device, index, block, &image);
            } else if ino.get() == sb.s_orphan_file_inum.get() {
                self.add_block(block, Seal::Orphan(seed, block));
            } else if is_quota {
                self.add_block(block, Seal::Quota);
            } else if raw.flags().contains(InodeFlags::EA_INODE) {
                self.add_block(block, Seal::Value);
            } else if kind == FileKind::Directory {
                let is_root = raw.flags().contains(InodeFlags::INDEX) && index == 0;
                let is_index = is_root || htree::is_node(&image);
                let seal = if is_index { Seal::DirIndex(seed) } else { Seal::DirLeaf(seed) };
                self.add_block(block, seal);
            } else if kind == FileKind::Symlink {
                self.add_block(block, Seal::None);
            }
        }
    }

    /// Adds the nodes of a tree; returns its data blocks.
    fn extents(
        &mut self,
        device: &MemoryDevice,
        node: &[u8],
        depth: Option<u16>,
        seed: InodeSeed,
    ) -> Vec<BlockNo> {
        let range: Range<u64> = 0..self.layout.blocks_count;
        let node = ExtentNode::parse(node, depth, range).expect("node");
        let runs = node.extents().filter(|extent| !extent.unwritten);
        let mut blocks: Vec<BlockNo> =
            runs.flat_map(|e| (0..u64::from(e.len)).map(move |n| e.start.plus(n))).collect();
        for child in node.children().collect::<Vec<_>>() {
            self.add_block(child.child, Seal::Extent(seed));
            let len = self.layout.block_size as usize;
            let image = bytes(device, self.layout.byte_of(child.child), len);
            blocks.extend(self.extents(device, &image, Some(node.depth - 1), seed));
        }
        blocks
    }

    /// Adds the indirect blocks of a block map; returns its data blocks.
    fn block_map(&mut self, device: &MemoryDevice, i_block: &[u8; 60]) -> Vec<BlockNo> {
        let mut blocks: Vec<BlockNo> =
            (0..12).map(|slot| block_map::direct(i_block, slot)).filter(|b| b.get() != 0).collect();
        for level in 1..=3 {
            let block = block_map::direct(i_block, 11 + level);
            self.indirect(device, block, level, &mut blocks);
        }
        blocks
    }

    fn indirect(
        &mut self,
        device: &MemoryDevice,
        block: BlockNo,
        level: u32,
        blocks: &mut Vec<BlockNo>,
    ) {
        if block.get() == 0 {
            return;
        }
        if level == 0 {
            blocks.push(block);
            return;
        }
        self.add_block(block, Seal::None);
        let len = self.layout.block_size;
        let image = bytes(device, self.layout.byte_of(block), len as usize);
        for index in 0..len / 4 {
            self.indirect(device, block_map::entry(&image, index), level - 1, blocks);
        }
    }

    fn log_block(&mut self, device: &MemoryDevice, index: usize, block: BlockNo, image: &[u8]) {
        let at = self.layout.byte_of(block);
        if index == 0 {
            let raw = RawJournalSuperblock::read(image).expect("journal superblock");
            self.journal = raw.format();
            self.add(at, 1024, 0x60, Seal::JournalSuperblock);
            return;
        }
        match block::header(image) {
            Some((BlockType::Descriptor, _)) => {
                self.add(at, image.len(), 200, Seal::LogBlock);
                self.log_images(device, block, image);
            }
            Some((BlockType::Revoke, _)) => self.add(at, image.len(), 64, Seal::LogBlock),
            Some((BlockType::Commit, _)) => self.add(at, image.len(), 64, Seal::None),
            _ => {}
        }
    }

    /// The images behind a descriptor. The journals here are contiguous; one that wraps round in
    /// the middle of a transaction loses a few targets.
    fn log_images(&mut self, device: &MemoryDevice, descriptor: BlockNo, image: &[u8]) {
        let tags = block::tags(image, &self.journal).count() as u64;
        let size = block::tag_size(&self.journal) as u64;
        let start = self.layout.byte_of(descriptor);
        for n in 0..tags {
            let block = descriptor.plus(n + 1);
            let tag = start + 12 + n * size + if n > 0 { 16 } else { 0 };
            if self.layout.byte_of(block) < device.len() {
                self.add_block(block, Seal::LogImage(tag));
            }
        }
    }

    /// Computes a structure's checksum again.
    ///
    /// # Panics
    /// The device cannot be read or written.
    pub fn seal(&self, device: &MemoryDevice, target: &Structure) {
        let checksums = &self.layout.checksums;
        let mut image = bytes(device, target.at, target.len);
        match target.seal {
            Seal::Superblock => {
                if let Some(raw) = RawSuperblock::mut_from_prefix(&mut image) {
                    raw.seal();
                }
            }
            Seal::Desc(group) => group_desc::seal_slot(&mut image, checksums, group),
            Seal::BlockBitmap(group) | Seal::InodeBitmap(group) => {
                return self.seal_bitmap(device, group, &image, target.seal);
            }
            Seal::Inode(ino) => {
                if let Ok(raw) = RawInode::read(&image) {
                    let seed = checksums.inode_seed(ino, raw.i_generation.get());
                    inode::seal_inode(&mut image, seed);
                }
            }
            Seal::Extent(seed) => extent::seal_extent_block(&mut image, seed),
            Seal::DirLeaf(seed) => dir_entry::seal_dir_leaf(&mut image, seed),
            Seal::DirIndex(seed) => htree::seal_dx(&mut image, seed),
            Seal::Xattr(block) => xattr::seal_xattr_block(&mut image, checksums, block),
            Seal::Orphan(seed, block) => orphan::seal_orphan_block(&mut image, seed, block),
            Seal::JournalSuperblock => {
                if let Some(raw) = RawJournalSuperblock::mut_from_prefix(&mut image) {
                    raw.seal();
                }
            }
            Seal::LogBlock => self.seal_log_block(&mut image),
            Seal::Mmp => {
                if let Some(raw) = RawMmp::mut_from_prefix(&mut image) {
                    raw.seal(checksums);
                }
            }
            Seal::LogImage(tag) => return self.seal_log_image(device, target, &image, tag),
            Seal::Quota | Seal::Value | Seal::None => {}
        }
        device.write_at(target.at, &image).expect("memory");
    }

    /// A bitmap's checksum and free count stand in the descriptor.
    fn seal_bitmap(&self, device: &MemoryDevice, group: GroupNo, image: &[u8], seal: Seal) {
        let checksums = &self.layout.checksums;
        let mut desc = self.desc(device, group);
        let is_blocks = seal == Seal::BlockBitmap(group);
        let (bits, counted) = if is_blocks {
            (self.layout.clusters_per_group, self.layout.blocks_in_group(group))
        } else {
            (self.layout.inodes_per_group, self.layout.inodes_per_group)
        };
        let free = bitmap::count_zeros(image, counted);
        if let Some(csum) = bitmap::bitmap_csum(checksums, image, bits) {
            if is_blocks {
                desc.set_block_bitmap_csum(csum);
            } else {
                desc.set_inode_bitmap_csum(csum);
            }
        }
        if is_blocks {
            desc.set_free_blocks(free)
        } else {
            desc.set_free_inodes(free)
        }
        let mut slot = bytes(device, self.desc_at(group), self.layout.desc_size.into());
        desc.write(&mut slot, self.layout.desc_size);
        group_desc::seal_slot(&mut slot, checksums, group);
        device.write_at(self.desc_at(group), &slot).expect("memory");
    }

    fn seal_log_block(&self, image: &mut [u8]) {
        if self.journal.has_crc32c() {
            let body = image.len() - 4;
            let crc = crc32c(crc32c(self.journal.seed, &image[..body]), &[0; 4]);
            image[body..].copy_from_slice(&big_endian::U32::new(crc).to_bytes());
        }
    }

    fn seal_log_image(&self, device: &MemoryDevice, target: &Structure, image: &[u8], tag: u64) {
        if self.journal.checksum != JournalChecksum::V3 {
            return;
        }
        let block_size = u64::from(self.layout.block_size);
        let descriptor_at = tag / block_size * block_size;
        let mut descriptor = bytes(device, descriptor_at, target.len);
        if let Some((_, tid)) = block::header(&descriptor) {
            let crc = block::image_checksum(&self.journal, tid, image);
            let at = (tag - descriptor_at) as usize + 12;
            descriptor[at..at + 4].copy_from_slice(&big_endian::U32::new(crc).to_bytes());
            self.seal_log_block(&mut descriptor);
            device.write_at(descriptor_at, &descriptor).expect("memory");
        }
    }
}

/// Bytes of a device, fewer at its end.
///
/// # Panics
/// The device cannot be read.
#[must_use]
pub fn bytes(device: &MemoryDevice, at: u64, len: usize) -> Vec<u8> {
    let len = len.min(usize::try_from(device.len().saturating_sub(at)).expect("length"));
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).expect("memory");
    bytes
}
