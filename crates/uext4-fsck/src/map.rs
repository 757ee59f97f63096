//! The blocks of a file: a walk over its extent tree or its block map.
//!
//! Invariants: a walk ends on any image. Keys of extent nodes must ascend in the whole tree, and a
//! node that does not start with its key is not entered. An indirect block that has an owner
//! already is not entered either. Therefore no walk visits a node twice.

use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::extent::{self, Extent, ExtentIndex, RawExtent, RawExtentHeader, RawExtentIndex};
use uext4_ondisk::{Ino, RawInode, block_map};

use crate::log::Log;
use crate::problem::Problem;
use crate::volume::Volume;

/// Deepest extent tree that is read. More than 5 levels are odd, but lawful.
const DEPTH_MAX: u16 = 16;
const DEPTH_USUAL: u16 = 5;
/// Size of an extent header, and of each entry.
const ENTRY: usize = 12;
const DIRECT: u64 = 12;
/// One past the last block of a file.
const END: u64 = 1 << 32;

/// A contiguous run of blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) logical: u64,
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) unwritten: bool,
}

/// Receives the blocks of a file.
pub(crate) trait Visitor {
    /// A run of data, inside the file system. Runs come in ascending order.
    fn data(&mut self, run: Run, log: &mut Log);
    /// A block of the mapping, inside the file system. Returns whether to enter it.
    fn node(&mut self, block: u64, log: &mut Log) -> bool;
}

/// The inode whose blocks are visited.
pub(crate) struct Mapped<'a> {
    pub(crate) ino: Ino,
    pub(crate) raw: &'a RawInode,
    pub(crate) seed: InodeSeed,
    /// Blocks by size. Unwritten extents may be behind them.
    pub(crate) size_blocks: u64,
}

struct Walk<'a, 'd, V> {
    volume: &'a Volume<'d>,
    file: &'a Mapped<'a>,
    visitor: &'a mut V,
    log: &'a mut Log,
    /// First block that the next extent may have.
    next: u64,
    /// Run of a block map that may still grow.
    pending: Option<Run>,
}

/// Walks over the extent tree of an inode.
pub(crate) fn extents<V: Visitor>(
    volume: &Volume<'_>,
    file: &Mapped<'_>,
    visitor: &mut V,
    log: &mut Log,
) {
    let mut walk = Walk { volume, file, visitor, log, next: 0, pending: None };
    let root = &file.raw.i_block;
    let Some(header) = RawExtentHeader::ref_from_prefix(root) else { return };
    let depth = header.eh_depth.get();
    if depth > DEPTH_MAX {
        walk.bad_node(0, "it is too deep");
        return;
    }
    if depth > DEPTH_USUAL {
        let depth = u64::from(depth);
        walk.log.add(Problem::ExtentDepth { ino: file.ino, depth });
    }
    walk.node(root, 0, depth, END);
}

/// Walks over the block map of an inode.
pub(crate) fn blocks<V: Visitor>(
    volume: &Volume<'_>,
    file: &Mapped<'_>,
    visitor: &mut V,
    log: &mut Log,
) {
    let mut walk = Walk { volume, file, visitor, log, next: 0, pending: None };
    for slot in 0..DIRECT {
        let block = block_map::direct(&file.raw.i_block, slot as u32).get();
        walk.mapped(slot, block);
    }
    let per_block = u64::from(volume.layout.block_size / 4);
    let mut logical = DIRECT;
    for level in 1..=3_u32 {
        let block = block_map::direct(&file.raw.i_block, 11 + level).get();
        walk.indirect(logical, block, level);
        logical += per_block.pow(level);
    }
    walk.flush();
}

impl<V: Visitor> Walk<'_, '_, V> {
    fn bad_node(&mut self, block: u64, why: &'static str) {
        self.log.add(Problem::ExtentHeader { ino: self.file.ino, block, why });
    }

    /// Entries of a node with a valid header.
    fn header(&mut self, bytes: &[u8], block: u64, depth: u16) -> Option<usize> {
        let header = RawExtentHeader::ref_from_prefix(bytes)?;
        let fits = bytes.len() / ENTRY - 1;
        let (max, count) = (header.eh_max.get().into(), usize::from(header.eh_entries.get()));
        let why = if header.eh_magic.get() != extent::EXTENT_MAGIC {
            "magic number is wrong"
        } else if header.eh_depth.get() != depth {
            "depth contradicts its parent"
        } else if max > fits || max + 2 < fits {
            "room for entries is wrong"
        } else if count > max {
            "has more entries than fit"
        } else if count == 0 && (block != 0 || depth > 0) {
            "is empty"
        } else {
            return Some(count);
        };
        self.bad_node(block, why);
        None
    }

    /// Visits a node, whose entries end at file block `end`.
    fn node(&mut self, bytes: &[u8], block: u64, depth: u16, end: u64) {
        let Some(count) = self.header(bytes, block, depth) else { return };
        let entries = bytes.chunks_exact(ENTRY).skip(1).take(count);
        if depth == 0 {
            let raw = entries.filter_map(RawExtent::ref_from_prefix);
            raw.for_each(|raw| self.extent(&Extent::from(raw), end));
            return;
        }
        let children: Vec<ExtentIndex> =
            entries.filter_map(RawExtentIndex::ref_from_prefix).map(ExtentIndex::from).collect();
        for (index, child) in children.iter().enumerate() {
            let after = children.get(index + 1).map_or(end, |next| u64::from(next.first.get()));
            self.child(child, depth - 1, after);
        }
    }

    fn child(&mut self, child: &ExtentIndex, depth: u16, end: u64) {
        let (ino, key, block) = (self.file.ino, u64::from(child.first.get()), child.child.get());
        if key < self.next || end <= key {
            self.log.add(Problem::ExtentOrder { ino, logical: key });
            return;
        }
        if !self.volume.is_valid(block) {
            self.log.add(Problem::ExtentRange { ino, logical: key, start: block, len: 1 });
            return;
        }
        if !self.visitor.node(block, self.log) {
            return;
        }
        let Some(bytes) = self.volume.block(block, self.log) else { return };
        let first = RawExtentIndex::ref_from_prefix(bytes.get(ENTRY..).unwrap_or_default());
        let first = first.map_or(0, |entry| u64::from(entry.ei_block.get()));
        let is_node = RawExtentHeader::ref_from_prefix(&bytes)
            .is_some_and(|h| h.eh_magic.get() == extent::EXTENT_MAGIC && h.eh_entries.get() > 0);
        if is_node && first != key {
            self.log.add(Problem::ExtentKey { ino, logical: key, found: first });
            return;
        }
        if is_node && extent::verify_extent_block(&bytes, self.file.seed).is_err() {
            self.log.add(Problem::ExtentChecksum { ino, block });
        }
        self.node(&bytes, block, depth, end);
        // Even if the child failed, its range must not be used again.
        self.next = self.next.max(key + 1);
    }

    fn extent(&mut self, extent: &Extent, end: u64) {
        let ino = self.file.ino;
        let (logical, start) = (u64::from(extent.first.get()), extent.start.get());
        let len = u64::from(extent.len);
        let past_size = extent.unwritten && logical + len > self.file.size_blocks;
        let problem = if start == 0 || !self.volume.is_valid(start) {
            Problem::ExtentRange { ino, logical, start, len }
        } else if logical < self.next {
            Problem::ExtentOrder { ino, logical }
        } else if len == 0 {
            Problem::ExtentLength { ino, logical }
        } else if logical + len > END || (logical + len > end && !past_size) {
            Problem::ExtentEnd { ino, logical }
        } else if !self.volume.is_valid_run(start, len) {
            Problem::ExtentRange { ino, logical, start, len }
        } else {
            self.next = logical + len;
            let run = Run { logical, start, len, unwritten: extent.unwritten };
            self.visitor.data(run, self.log);
            return;
        };
        self.log.add(problem);
    }

    /// A data block of a block map; 0 is a hole.
    fn mapped(&mut self, logical: u64, block: u64) {
        if block == 0 {
            return;
        }
        if !self.volume.is_valid(block) {
            self.log.add(Problem::BlockRange { ino: self.file.ino, logical, block });
            return;
        }
        if let Some(run) = &mut self.pending
            && run.logical + run.len == logical
            && run.start + run.len == block
        {
            run.len += 1;
            return;
        }
        self.flush();
        self.pending = Some(Run { logical, start: block, len: 1, unwritten: false });
    }

    fn flush(&mut self) {
        if let Some(run) = self.pending.take() {
            self.visitor.data(run, self.log);
        }
    }

    fn indirect(&mut self, logical: u64, block: u64, level: u32) {
        if block == 0 {
            return;
        }
        if !self.volume.is_valid(block) {
            self.log.add(Problem::BlockRange { ino: self.file.ino, logical, block });
            return;
        }
        self.flush();
        if !self.visitor.node(block, self.log) {
            return;
        }
        let Some(bytes) = self.volume.block(block, self.log) else { return };
        let per_block = bytes.len() as u64 / 4;
        let span = per_block.pow(level - 1);
        for index in 0..per_block {
            let number = block_map::entry(&bytes, index as u32).get();
            let at = logical + index * span;
            if level == 1 {
                self.mapped(at, number);
            } else {
                self.indirect(at, number, level - 1);
            }
        }
    }
}

/// Finds a block of a file without checking anything.
pub(crate) struct Find {
    wanted: u64,
    pub(crate) found: Option<u64>,
    /// Blocks visited, and the end of the last one.
    pub(crate) count: u64,
    pub(crate) end: u64,
    /// All blocks: runs in the file, on the device, count.
    pub(crate) runs: Vec<Run>,
    nodes: u64,
}

/// Most runs that are kept of one file.
const RUNS_MAX: usize = 1 << 20;
const NODES_MAX: u64 = 1 << 16;

impl Find {
    /// Looks for file block `wanted` of an inode.
    pub(crate) fn of(volume: &Volume<'_>, ino: Ino, raw: &RawInode, wanted: u64) -> Self {
        use uext4_ondisk::InodeFlags;
        let seed = volume.layout.checksums.inode_seed(ino, raw.i_generation.get());
        let file = Mapped { ino, raw, seed, size_blocks: END };
        let mut find = Self { wanted, found: None, count: 0, end: 0, runs: Vec::new(), nodes: 0 };
        let mut log = Log::new(0);
        if raw.flags().contains(InodeFlags::EXTENTS) {
            extents(volume, &file, &mut find, &mut log);
        } else {
            blocks(volume, &file, &mut find, &mut log);
        }
        find
    }
}

impl Visitor for Find {
    fn data(&mut self, run: Run, _: &mut Log) {
        if (run.logical..run.logical + run.len).contains(&self.wanted) {
            self.found = Some(run.start + (self.wanted - run.logical));
        }
        self.count += run.len;
        self.end = self.end.max(run.logical + run.len);
        if self.runs.len() < RUNS_MAX {
            self.runs.push(run);
        }
    }

    fn node(&mut self, _: u64, _: &mut Log) -> bool {
        self.nodes += 1;
        self.nodes < NODES_MAX
    }
}
