//! The files of a new file system: root, lost+found, the bad-block list, the resize inode,
//! the MMP block and the orphan file (the journal: `journal.rs`).

use crate::error::{MkfsError, Result};
use crate::geometry::Geometry;
use crate::journal::BLOCKS_WITH_JOURNAL;
use crate::journal_device::JournalDevice;
use crate::options::Options;
use crate::populate::{Fill, Job, Sweep};
use crate::space::Space;
use crate::tables::touch;
use std::collections::BTreeMap;
use uext4_device::host_name;
use uext4_ondisk::block_map::set_entry;
use uext4_ondisk::extent::{self, Extent, ExtentIndex, MAX_WRITTEN_LEN};
use uext4_ondisk::features::{Compat, Incompat, RoCompat};
use uext4_ondisk::inode::{self, CLASSIC_SIZE, FULL_EXTRA_SIZE};
use uext4_ondisk::xattr::{IBODY_HEADER_SIZE, RawXattrIbodyHeader, XATTR_MAGIC};
use uext4_ondisk::{
    BlockNo, CorruptKind, FileBlock, FileKind, GroupNo, Ino, InodeFlags, RawGroupDesc, RawInode,
    RawMmp, Timestamp, dir_entry, inline_data, mmp, orphan,
};

/// The inode that lists bad blocks.
const BAD_BLOCKS: Ino = Ino(1);
pub(crate) const LOST_AND_FOUND: Ino = Ino(11);
/// Bytes of lost+found, so that fsck need not allocate; at most 12 blocks.
pub(crate) const LOST_AND_FOUND_BYTES: u32 = 16 * 1024;
/// Mode of the root.
pub(crate) const ROOT_MODE: u16 = 0o755;
/// The kernel reads no larger orphan files than of one block less.
const ORPHAN_BLOCKS_END: u64 = 513;
/// Index of the double-indirect block in `i_block`.
const DOUBLE_INDIRECT: usize = 13;

/// The files that are being created.
pub(crate) struct Files<'a> {
    pub(crate) geometry: &'a mut Geometry,
    pub(crate) space: &'a mut Space,
    pub(crate) touched: &'a mut [bool],
    /// Content of blocks.
    pub(crate) blocks: BTreeMap<BlockNo, Vec<u8>>,
    /// Slots of the inode table.
    pub(crate) slots: BTreeMap<Ino, Vec<u8>>,
    /// Directories, which their groups count.
    pub(crate) directories: Vec<Ino>,
    /// Owner, group and bytes of the inodes that count in quota.
    pub(crate) counted: Vec<([u32; 3], u64)>,
    /// Last inode in use.
    pub(crate) last_ino: Ino,
    /// What this host calls the device.
    pub(crate) device_name: String,
    /// The device that has the journal, if that is another one.
    pub(crate) external: Option<&'a JournalDevice<'a>>,
    /// What it is to hold, beside what every file system does.
    pub(crate) fill: Option<&'a Fill<'a>>,
    /// What is to be done with the content of the files.
    pub(crate) jobs: Vec<Job>,
    /// Where blocks of a tree's files are found, while they are planned.
    pub(crate) sweep: Option<Sweep>,
    /// Blocks of the root, of `lost+found` and of what it was filled with.
    pub(crate) tree_blocks: u64,
    /// Blocks in use before there is a file.
    table_blocks: u64,
    /// First block and blocks of each piece of the journal, its superblock first.
    pub(crate) journal: Vec<Extent>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(
        geometry: &'a mut Geometry,
        space: &'a mut Space,
        touched: &'a mut [bool],
    ) -> Self {
        let table_blocks = space.used_count();
        Self {
            geometry,
            space,
            table_blocks,
            touched,
            blocks: BTreeMap::new(),
            slots: BTreeMap::new(),
            directories: Vec::new(),
            counted: Vec::new(),
            last_ino: LOST_AND_FOUND,
            device_name: String::new(),
            external: None,
            fill: None,
            jobs: Vec::new(),
            tree_blocks: 0,
            sweep: None,
            journal: Vec::new(),
        }
    }

    /// Creates all files. Returns warnings.
    pub(crate) fn make(
        &mut self,
        options: &Options,
        descs: &[RawGroupDesc],
    ) -> Result<Vec<String>> {
        let mut warnings = Vec::new();
        self.bad_blocks();
        if self.fill.is_none() {
            let before = self.space.used_count();
            self.root_directory(options)?;
            self.lost_and_found()?;
            self.tree_blocks = self.space.used_count() - before;
        }
        if self.has(Compat::RESIZE_INODE) {
            self.resize_inode()?;
        }
        let overhead = self.overhead(descs);
        let mut journal_blocks = 0;
        if let Some(external) = self.external {
            external.enter(&mut self.geometry.sb);
        } else if self.has(Compat::HAS_JOURNAL) {
            match self.journal_size(options)? {
                Some(blocks) => {
                    self.journal(options, blocks)?;
                    journal_blocks = blocks;
                }
                None => {
                    warnings.push(format!(
                        "file system too small for a journal: it has none; \
                         {BLOCKS_WITH_JOURNAL} blocks are enough for one"
                    ));
                    self.drop_journal();
                }
            }
        }
        if self.geometry.layout.has_mmp() {
            self.mmp_block(options)?;
        }
        if let Some(fill) = self.fill {
            let before = self.space.used_count();
            self.jobs = self.populate(options, fill)?;
            self.tree_blocks = self.space.used_count() - before;
        }
        if self.geometry.layout.features.ro_compat.contains(RoCompat::QUOTA) {
            self.quota_files(options)?;
        }
        if self.has(Compat::ORPHAN_FILE) {
            self.orphan_file(options)?;
        }
        self.reserved_inodes();
        let journal_clusters = journal_blocks.div_ceil(self.ratio());
        let overhead = u32::try_from(overhead + journal_clusters).unwrap_or(0);
        self.geometry.sb.s_overhead_clusters.set(overhead);
        Ok(warnings)
    }

    fn has(&self, feature: Compat) -> bool {
        self.geometry.layout.features.compat.contains(feature)
    }

    fn drop_journal(&mut self) {
        let features = &mut self.geometry.layout.features;
        features.compat.remove(Compat::HAS_JOURNAL | Compat::ORPHAN_FILE);
        features.put(&mut self.geometry.sb);
    }

    /// Blocks of a cluster.
    pub(crate) fn ratio(&self) -> u64 {
        self.geometry.layout.cluster_blocks.into()
    }

    /// Blocks (or clusters) that never hold data, which `statfs` does not count.
    fn overhead(&self, descs: &[RawGroupDesc]) -> u64 {
        let layout = &self.geometry.layout;
        if layout.has_clusters() {
            return self.table_blocks / self.ratio();
        }
        let tables = u64::from(layout.inode_table_blocks()) + 2;
        let copies =
            (0..layout.group_count).map(|g| u64::from(layout.base_meta_blocks(GroupNo(g))));
        let all = copies.sum::<u64>() + descs.len() as u64 * tables;
        all + layout.first_data_block.get()
    }

    /// Allocates one block, the first free one of the inode's (flex) group or after it.
    fn take_block(&mut self, ino: Ino) -> Result<u64> {
        let layout = &self.geometry.layout;
        let group = layout.group_of_ino(ino).map_or(0, |(group, _)| group.get());
        let group = group / layout.groups_per_flex * layout.groups_per_flex;
        let goal = layout.group_first_block(GroupNo(group)).get();
        let block = self.space.find_one(goal).ok_or_else(no_space)?;
        self.take(block, 1);
        Ok(block)
    }

    /// Marks blocks used, and the rest of their clusters.
    pub(crate) fn take(&mut self, first: u64, count: u64) {
        let before = first % self.ratio();
        let (first, count) = (first - before, (count + before).next_multiple_of(self.ratio()));
        self.space.mark(first, count);
        touch(&self.geometry.layout, self.touched, first, count);
    }

    /// An inode with the times and the extra fields that all new inodes have.
    pub(crate) fn new_inode(&self, kind: FileKind, permissions: u16, links: u16) -> RawInode {
        let mut raw = RawInode::zeroed();
        if self.geometry.layout.inode_size > 128 {
            raw.i_extra_isize.set(FULL_EXTRA_SIZE);
        }
        let now = Timestamp { secs: i64::from(self.geometry.time), nanos: 0 };
        raw.i_mode.set(kind.mode() | permissions);
        raw.i_links_count.set(links);
        raw.set_atime(now);
        raw.set_ctime(now);
        raw.set_mtime(now);
        raw.set_crtime(now);
        raw
    }

    /// Sets the size and the block count of the file, whose blocks are those of `nodes` (each has a
    /// cluster) and `data`.
    pub(crate) fn set_space(&self, raw: &mut RawInode, bytes: u64, data: u64, nodes: u64) {
        let blocks = data.div_ceil(self.ratio()) + nodes;
        let block_size = self.geometry.layout.block_size;
        raw.set_size(bytes);
        let blocks = blocks * self.ratio();
        // At most a journal of ten million blocks: always fits.
        _ = raw.set_sectors(blocks * u64::from(block_size / 512), true, block_size);
    }

    pub(crate) fn put_inode(&mut self, ino: Ino, raw: &RawInode) -> Result<()> {
        let began_inline = self.began_inline(ino);
        self.put_inode_with(ino, raw, |area| {
            if began_inline && let Some(start) = area.get_mut(..IBODY_HEADER_SIZE) {
                let mut header = RawXattrIbodyHeader::zeroed();
                header.h_magic.set(XATTR_MAGIC);
                start.copy_from_slice(header.bytes());
            }
        })
    }

    /// The same, with what `write` puts into the area of attributes, if there is one.
    pub(crate) fn put_inode_with(
        &mut self,
        ino: Ino,
        raw: &RawInode,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let layout = &self.geometry.layout;
        let mut slot = vec![0; layout.inode_size as usize];
        raw.write(&mut slot).map_err(|kind| corrupt(ino, kind))?;
        if let Some(at) = inode::xattr_offset(&slot) {
            write(&mut slot[at..]);
        }
        inode::seal_inode(&mut slot, layout.checksums.inode_seed(ino, 0));
        self.slots.insert(ino, slot);
        Ok(())
    }

    /// Seals the unused reserved inodes.
    fn reserved_inodes(&mut self) {
        let layout = &self.geometry.layout;
        for ino in (1..layout.first_ino.get()).map(Ino) {
            self.slots.entry(ino).or_insert_with(|| {
                let mut slot = vec![0; layout.inode_size as usize];
                inode::seal_inode(&mut slot, layout.checksums.inode_seed(ino, 0));
                slot
            });
        }
    }

    fn bad_blocks(&mut self) {
        let layout = &self.geometry.layout;
        let mut slot = vec![0; layout.inode_size as usize];
        let mut raw = RawInode::zeroed();
        for time in [&mut raw.i_atime, &mut raw.i_ctime, &mut raw.i_mtime] {
            time.set(self.geometry.time);
        }
        slot[..CLASSIC_SIZE].copy_from_slice(&raw.bytes()[..CLASSIC_SIZE]);
        inode::seal_inode(&mut slot, layout.checksums.inode_seed(BAD_BLOCKS, 0));
        self.slots.insert(BAD_BLOCKS, slot);
    }

    fn root_directory(&mut self, options: &Options) -> Result<()> {
        let mode = options.root_mode.unwrap_or(ROOT_MODE);
        let mut raw = self.new_inode(FileKind::Directory, mode, 3);
        let (uid, gid) = options.root_owner.unwrap_or_default();
        raw.set_uid(uid);
        raw.set_gid(gid);
        self.directory(Ino::ROOT, raw, 1, Some((b"lost+found", LOST_AND_FOUND)))
    }

    pub(crate) fn lost_and_found(&mut self) -> Result<()> {
        let layout = &self.geometry.layout;
        let mut blocks = (LOST_AND_FOUND_BYTES / layout.block_size).clamp(2, 12);
        if self.began_inline(LOST_AND_FOUND) {
            // The first block that is added to it only moves it out of the inode.
            blocks -= 1;
        }
        let raw = self.new_inode(FileKind::Directory, 0o700, 2);
        self.directory(LOST_AND_FOUND, raw, blocks, None)
    }

    /// Whether mke2fs makes a directory in its inode and lengthens it then: it leaves traces in the
    /// first block and in the inode.
    fn began_inline(&self, ino: Ino) -> bool {
        let incompat = self.geometry.layout.features.incompat;
        ino == LOST_AND_FOUND && incompat.contains(Incompat::INLINE_DATA)
    }

    /// Creates a directory in the root, or the root itself, with at most one entry.
    fn directory(
        &mut self,
        ino: Ino,
        mut raw: RawInode,
        count: u32,
        entry: Option<(&[u8], Ino)>,
    ) -> Result<()> {
        let layout = &self.geometry.layout;
        let has_filetype = layout.features.incompat.contains(Incompat::FILETYPE);
        let has_tail = layout.has_metadata_csum();
        let seed = layout.checksums.inode_seed(ino, 0);
        let block_size = layout.block_size as usize;
        let mut extents: Vec<Extent> = Vec::new();
        for n in 0..count {
            let at = match extents.last() {
                Some(last) if !u64::from(n).is_multiple_of(self.ratio()) => {
                    last.start.get() + u64::from(last.len)
                }
                _ => self.take_block(ino)?,
            };
            append(&mut extents, FileBlock(n), at);
            if !self.has_extents() {
                Self::map_direct(&mut raw, n, at);
            }
            let mut block = vec![0; block_size];
            if n == 0 && self.began_inline(ino) {
                let empty = inline_data::empty_directory(Ino::ROOT);
                let made =
                    inline_data::directory_block(&empty, ino, block_size, has_filetype, has_tail);
                block = made.map_err(|kind| corrupt(ino, kind))?;
            } else if n == 0 {
                dir_entry::init_first_block(&mut block, ino, Ino::ROOT, has_filetype, has_tail);
                if let Some((name, target)) = entry {
                    let kind = has_filetype.then_some(FileKind::Directory);
                    // An empty block has room for one short name.
                    _ = dir_entry::insert(&mut block, name, target, kind, has_tail);
                }
            } else {
                dir_entry::init_block(&mut block, has_tail);
            }
            dir_entry::seal_dir_leaf(&mut block, seed);
            self.blocks.insert(BlockNo(at), block);
        }
        let nodes = self.map(ino, &mut raw, &extents, None)?;
        let bytes = u64::from(count) * block_size as u64;
        self.set_space(&mut raw, bytes, count.into(), nodes);
        self.directories.push(ino);
        let owners = [raw.uid(), raw.gid(), raw.i_projid.get()];
        let units = u64::from(count).div_ceil(self.ratio()) + nodes;
        self.counted.push((owners, units * self.ratio() * block_size as u64));
        self.put_inode(ino, &raw)
    }

    /// Writes the extent tree of a file, if it is to have one. Returns the number of blocks of its
    /// nodes. `reserved` is a block that was allocated for the first node before.
    pub(crate) fn map(
        &mut self,
        ino: Ino,
        raw: &mut RawInode,
        extents: &[Extent],
        mut reserved: Option<u64>,
    ) -> Result<u64> {
        if !self.has_extents() {
            return Ok(0);
        }
        raw.set_flags(raw.flags() | InodeFlags::EXTENTS);
        if extent::write_leaf(&mut raw.i_block, extents) {
            return Ok(0);
        }
        let block_size = self.geometry.layout.block_size as usize;
        let seed = self.geometry.layout.checksums.inode_seed(ino, 0);
        let per_node = usize::from(extent::max_entries(block_size));
        let mut count = 0;
        let mut put = |files: &mut Self, first: FileBlock, write: &dyn Fn(&mut [u8]) -> bool| {
            let at = match reserved.take() {
                Some(at) => at,
                None => files.take_node(extents)?,
            };
            count += 1;
            let mut block = vec![0; block_size];
            // Chunks have the size that fits.
            _ = write(&mut block);
            extent::seal_extent_block(&mut block, seed);
            files.blocks.insert(BlockNo(at), block);
            Ok::<ExtentIndex, MkfsError>(ExtentIndex { first, child: BlockNo(at) })
        };
        let mut level = Vec::new();
        for chunk in extents.chunks(per_node) {
            level.push(put(self, chunk[0].first, &|b: &mut [u8]| extent::write_leaf(b, chunk))?);
        }
        let mut depth = 1;
        while !extent::write_index(&mut raw.i_block, depth, &level) {
            let mut above = Vec::new();
            for chunk in level.chunks(per_node) {
                let write = |b: &mut [u8]| extent::write_index(b, depth, chunk);
                above.push(put(self, chunk[0].first, &write)?);
            }
            (level, depth) = (above, depth + 1);
        }
        Ok(count)
    }

    /// Allocates a block for a node of an extent tree: right before the data if that block is free,
    /// as in mke2fs.
    pub(crate) fn take_node(&mut self, extents: &[Extent]) -> Result<u64> {
        if self.sweep.is_some() {
            return self.take_swept_block();
        }
        let goal = extents.first().map_or(0, |e| e.start.get() - 1);
        let at = self.space.find_one(goal).ok_or_else(no_space)?;
        self.take(at, 1);
        Ok(at)
    }

    /// Allocates as many blocks as the sweep finds in one piece, at most `count`. Returns the first
    /// and their number.
    pub(crate) fn take_swept(&mut self, count: u64) -> Result<(u64, u64)> {
        let sweep = self.sweep.as_mut();
        let found = sweep.and_then(|sweep| sweep.find(self.space, count));
        let (at, count) = found.ok_or_else(no_room_for_tree)?;
        self.take(at, count);
        Ok((at, count))
    }

    /// Allocates one block, or cluster, of the sweep.
    pub(crate) fn take_swept_block(&mut self) -> Result<u64> {
        self.take_swept(self.ratio()).map(|(at, _)| at)
    }

    /// Creates the resize inode. Its double-indirect block lists the primary reserved descriptor
    /// blocks, and each of these lists its copies.
    fn resize_inode(&mut self) -> Result<()> {
        let layout = &self.geometry.layout;
        let tables = layout.reserved_gdt_blocks + layout.desc_block_count();
        // As in mke2fs, behind the place where group 0's own table would end.
        let goal = u64::from(3 + tables + layout.inode_table_blocks());
        let at = self.space.find_one(goal).ok_or_else(no_space)?;
        self.take(at, 1);
        let layout = &self.geometry.layout;
        let block_size = layout.block_size as usize;
        let per_block = layout.block_size / 4;
        let groups: Vec<u64> = (1..layout.group_count)
            .filter(|&g| layout.has_super(GroupNo(g)))
            .map(|g| u64::from(g) * u64::from(layout.blocks_per_group))
            .collect();
        let mut top = vec![0; block_size];
        let descs = layout.desc_block_count();
        let first = layout.super_block_no().get() + 1 + u64::from(descs);
        for n in 0..layout.reserved_gdt_blocks {
            let primary = first + u64::from(n);
            set_entry(&mut top, (descs + n) % per_block, BlockNo(primary));
            let mut block = vec![0; block_size];
            for (index, offset) in (0..).zip(&groups) {
                set_entry(&mut block, index, BlockNo(primary + offset));
            }
            self.blocks.insert(BlockNo(primary), block);
        }
        self.blocks.insert(BlockNo(at), top);
        let copies = u64::from(layout.reserved_gdt_blocks) * (1 + groups.len() as u64);
        let mut raw = self.new_inode(FileKind::Regular, 0o600, 1);
        set_entry(&mut raw.i_block, DOUBLE_INDIRECT as u32, BlockNo(at));
        let words = u64::from(per_block);
        let bytes = (words * words + words + 12) * block_size as u64;
        self.set_space(&mut raw, bytes, 0, 1 + copies);
        self.put_inode(Ino::RESIZE, &raw)
    }

    /// Allocates `count` blocks from `goal` on.
    fn take_blocks(&mut self, count: u32, goal: u64) -> Result<Vec<Extent>> {
        let (mut extents, mut goal) = (Vec::new(), goal);
        for n in 0..count {
            let is_new = u64::from(n).is_multiple_of(self.ratio());
            let at =
                if is_new { self.space.find_one(goal).ok_or_else(no_space)? } else { goal + 1 };
            if is_new {
                self.take(at, 1);
            }
            goal = at;
            append(&mut extents, FileBlock(n), at);
        }
        Ok(extents)
    }

    /// The block by which hosts claim the file system: nobody has it.
    fn mmp_block(&mut self, options: &Options) -> Result<()> {
        let layout = &self.geometry.layout;
        let first = layout.first_data_block.get();
        let at = self.space.find_one(first).ok_or_else(no_space)?;
        self.take(at, 1);
        let layout = &self.geometry.layout;
        let interval = match options.mmp_update_interval {
            None | Some(0) => mmp::UPDATE_INTERVAL,
            Some(seconds) => seconds,
        };
        let mut raw = RawMmp::clean(interval.max(mmp::CHECK_INTERVAL_MIN));
        raw.mmp_time.set(self.geometry.time.into());
        if !options.is_reproducible {
            raw.set_names(&host_name(), &self.device_name);
        }
        raw.seal(&layout.checksums);
        let mut block = vec![0; layout.block_size as usize];
        block[..size_of::<RawMmp>()].copy_from_slice(raw.bytes());
        self.blocks.insert(BlockNo(at), block);
        self.geometry.sb.s_mmp_block.set(at);
        self.geometry.sb.s_mmp_interval.set(interval);
        Ok(())
    }

    fn orphan_file(&mut self, options: &Options) -> Result<()> {
        // The first free inode.
        let ino = Ino(self.last_ino.get() + 1);
        let layout = &self.geometry.layout;
        let block_size = layout.block_size as usize;
        let seed = layout.checksums.inode_seed(ino, 0);
        let count = match options.orphan_file_size.map(|size| size.blocks(layout.block_size)) {
            None => orphan_file_blocks(layout.blocks_count),
            Some(blocks @ 1..ORPHAN_BLOCKS_END) => blocks as u32,
            Some(_) => return Err(MkfsError::option("orphan_file_size: want 1 to 512 blocks")),
        };
        let goal = layout.first_data_block.get();
        let mut raw = self.new_inode(FileKind::Regular, 0o600, 1);
        let (extents, nodes) = match self.has_extents() {
            true => {
                let extents = self.take_blocks(count, goal)?;
                let nodes = self.map(ino, &mut raw, &extents, None)?;
                (extents, nodes)
            }
            false => {
                let mut at = goal;
                self.map_blocks(&mut raw, 0..u64::from(count), &mut at)?
            }
        };
        let blocks = |run: &Extent| run.start.get()..run.start.get() + u64::from(run.len);
        for at in extents.iter().flat_map(blocks) {
            let mut block = vec![0; block_size];
            orphan::init_block(&mut block);
            orphan::seal_orphan_block(&mut block, seed, BlockNo(at));
            self.blocks.insert(BlockNo(at), block);
        }
        let bytes = u64::from(count) * block_size as u64;
        self.set_space(&mut raw, bytes, count.into(), nodes);
        self.put_inode(ino, &raw)?;
        self.geometry.sb.s_orphan_file_inum.set(ino.get());
        self.last_ino = ino;
        Ok(())
    }
}

fn no_room_for_tree() -> MkfsError {
    MkfsError::option("not enough space for the files: give a larger size")
}

pub(crate) fn no_space() -> MkfsError {
    MkfsError::option("not enough space for the files that every file system has")
}

/// Adds block `at` of the device as block `n` of a file.
pub(crate) fn append(extents: &mut Vec<Extent>, n: FileBlock, at: u64) {
    if let Some(last) = extents.last_mut()
        && last.start.get() + u64::from(last.len) == at
        && last.len < MAX_WRITTEN_LEN
    {
        last.len += 1;
        return;
    }
    extents.push(Extent { first: n, len: 1, start: BlockNo(at), unwritten: false });
}

/// Blocks of the orphan file by the size of the file system (mke2fs's table).
fn orphan_file_blocks(fs_blocks: u64) -> u32 {
    match fs_blocks {
        0..131_072 => 32,
        131_072..2_097_152 => u32::try_from(fs_blocks / 4096).unwrap_or(512),
        _ => 512,
    }
}

fn corrupt(ino: Ino, kind: CorruptKind) -> MkfsError {
    MkfsError::Layout(kind.at(uext4_ondisk::Place::Inode(ino)).into())
}
