//! Adding a name: into a gap, a new block, a new hash tree, or a leaf that is split for it.
//!
//! Invariants: [`Insertion::plan`] reads every block and claims every block that
//! [`Insertion::apply`] will change; what applies cannot meet a device failure. Records move only
//! in directories that are read in order of hash, where cursors do not depend on places.

use super::leaf::{self, Halves};
use super::lookup::find;
use super::path::{Frame, Path, with_node};
use super::view::{Shape, View, check_name};
use crate::alloc::Space;
use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{self, Growth};
use crate::inode::Inode;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::dir_entry::{self, Scan};
use uext4_ondisk::hash::DirHasher;
use uext4_ondisk::htree::{self, DxEntry, DxRoot};
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Incompat, Ino, InodeFlags, Place};

/// Most blocks a hash tree can address.
const INDEXED_BLOCKS_MAX: u32 = 1 << 28;

/// A name that can be added to a directory: it is not there, and the space for it is claimed.
///
/// Dropping it unused gives the space back.
#[derive(Debug)]
pub struct Insertion<'a> {
    space: &'a Space,
    dir: &'a Inode,
    name: Box<[u8]>,
    target: Target,
    growth: Option<Growth>,
    credits: u32,
    /// The inode's claim to have a hash tree ends.
    clears_index: bool,
    /// The directory's inode.
    _table_block: Arc<Buffer>,
}

#[derive(Debug)]
enum Target {
    /// A block with room: a record with a gap, or its records are packed to make one gap of it.
    Room(Arc<Buffer>, Option<Gap>),
    /// A new block at the end of a linear directory.
    Append,
    /// The only block becomes the root of a hash tree with two leaves.
    Tree(Arc<Buffer>, DirHasher, PlannedHalves),
    /// A full leaf is split.
    Split(Split),
}

#[derive(Debug)]
struct Split {
    leaf: Arc<Buffer>,
    hasher: DirHasher,
    halves: PlannedHalves,
    hash: u32,
    frames: Vec<Frame>,
}

/// Offset of a record with a gap, in a block of that version.
#[derive(Clone, Copy, Debug)]
struct Gap {
    at: u32,
    version: u64,
}

/// What a block of that version is split into.
#[derive(Debug)]
struct PlannedHalves {
    halves: Halves,
    version: u64,
}

impl PlannedHalves {
    /// The halves, unless the block has changed since.
    fn of(self, block: &Buffer) -> Option<Halves> {
        (block.read().version() == self.version).then_some(self.halves)
    }
}

impl Target {
    /// Blocks that the directory grows by.
    fn new_blocks(&self) -> u32 {
        match self {
            Self::Room(..) => 0,
            Self::Append => 1,
            Self::Tree(..) => 2,
            Self::Split(split) => {
                let full = split.frames.iter().rev().take_while(|frame| frame.is_full()).count();
                1 + u32::try_from(full).unwrap_or(u32::MAX)
            }
        }
    }

    /// Blocks that are there already and change.
    fn old_blocks(&self) -> u32 {
        match self {
            Self::Room(..) | Self::Tree(..) => 1,
            Self::Append => 0,
            Self::Split(split) => 1 + u32::try_from(split.frames.len()).unwrap_or(u32::MAX),
        }
    }
}

impl<'a> Insertion<'a> {
    /// Checks that `name` can be added to directory `dir`, and claims the space.
    ///
    /// # Errors
    /// `Exists`; those of [`super::lookup`]; `NoSpace` when there are no blocks, or the directory
    /// cannot grow.
    pub fn plan(space: &'a Space, dir: &'a Inode, name: &[u8]) -> Result<Self> {
        check_name(name)?;
        let view = View::of(space, dir)?;
        let target = match view.shape {
            Shape::Linear => plan_linear(&view, name)?,
            Shape::Indexed => plan_indexed(&view, name)?,
        };
        let new_blocks = target.new_blocks();
        check_size(&view, &target, new_blocks)?;
        let mut credits = target.old_blocks() + u32::from(view.has_stale_index);
        let mut growth = None;
        if new_blocks > 0 {
            growth = Some(extent::claim_growth(dir.space(), dir, new_blocks)?);
            credits += extent::grow_credits(dir, new_blocks) + new_blocks;
        }
        let clears_index = view.has_stale_index;
        let _table_block = dir.table_block()?;
        let name = name.into();
        Ok(Self { space, dir, name, target, growth, credits, clears_index, _table_block })
    }

    /// Credits of [`Insertion::apply`]: the blocks of the directory, and the inode when it grows.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Adds the name, for inode `ino` of type `kind`. Entries found before may have moved after
    /// this. The directory's size and flags are set here, its times are the caller's.
    ///
    /// # Errors
    /// The journal is aborted; `Corrupt` in an image where two directories share blocks.
    pub fn apply(mut self, handle: &mut Handle<'_>, ino: Ino, kind: FileKind) -> Result<()> {
        let name = std::mem::take(&mut self.name);
        let new = NewEntry::of(self.space, &name, ino, kind);
        if self.clears_index {
            self.dir.update(handle, |a| a.flags.remove(InodeFlags::INDEX))?;
        }
        match std::mem::replace(&mut self.target, Target::Append) {
            Target::Room(block, gap) => {
                let mut bytes = handle.write(&block)?;
                let here = in_block(&block);
                // Nothing has changed since the plan, but for a removal in this very handle.
                let put = match gap.filter(|gap| gap.version == bytes.version()) {
                    Some(gap) => bytes.edit_checked(|b| new.put_at(b, gap.at)).map_err(here)?,
                    None => false,
                };
                if put { Ok(()) } else { demand(new.put_or_pack(&mut bytes).map_err(here)?) }
            }
            Target::Append => {
                let (_, block) = self.grow(handle, BlockRole::Leaf)?;
                let mut bytes = handle.write(&block)?;
                dir_entry::init_block(&mut bytes, new.has_csum);
                demand(new.put(&mut bytes).map_err(in_block(&block))?)
            }
            Target::Tree(block, hasher, planned) => {
                self.make_tree(handle, &block, &hasher, planned, &new)
            }
            Target::Split(split) => self.split_leaf(handle, split, &new),
        }
    }

    /// Turns the only block into the root of a tree.
    fn make_tree(
        &mut self,
        handle: &mut Handle<'_>,
        block: &Arc<Buffer>,
        hasher: &DirHasher,
        planned: PlannedHalves,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        let planned = planned.of(block);
        // A removal in the same handle may have made room since the plan.
        if planned.is_none() && new.put_in_place(handle, block)? {
            return Ok(());
        }
        let (lower_at, lower) = self.grow(handle, BlockRole::Leaf)?;
        let (upper_at, upper) = self.grow(handle, BlockRole::Leaf)?;
        let index_kind = BlockKind::DirIndex { seed: self.dir.seed() };
        let mut halves = {
            let mut bytes = handle.write(block)?;
            let halves = match planned {
                Some(halves) => halves,
                None => leaf::split(&bytes, hasher, new.has_csum, true).map_err(in_block(block))?,
            };
            let (own, parent) = dot_inodes(&bytes)?;
            let root = DxRoot { hash: hasher.version, levels: 0, own, parent };
            let entries = [
                DxEntry { hash: 0, block: lower_at },
                DxEntry { hash: halves.index_hash(), block: upper_at },
            ];
            demand(htree::write_root(&mut bytes, &root, new.has_filetype, new.has_csum, &entries))?;
            bytes.set_kind(index_kind);
            halves
        };
        let half = halves.half_for(hasher.hash(new.name).0);
        demand(new.put(half).map_err(in_block(block))?)?;
        handle.write(&lower)?.copy_from_slice(&halves.lower);
        handle.write(&upper)?.copy_from_slice(&halves.upper);
        self.dir.update(handle, |a| a.flags.insert(InodeFlags::INDEX))
    }

    /// Splits a leaf by hash and enters the new one in the index.
    fn split_leaf(
        &mut self,
        handle: &mut Handle<'_>,
        split: Split,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        let planned = split.halves.of(&split.leaf);
        if planned.is_none() && new.put_in_place(handle, &split.leaf)? {
            return Ok(());
        }
        let (upper_at, upper) = self.grow(handle, BlockRole::Leaf)?;
        let index_hash = {
            let mut bytes = handle.write(&split.leaf)?;
            let here = in_block(&split.leaf);
            let mut halves = match planned {
                Some(halves) => halves,
                None => leaf::split(&bytes, &split.hasher, new.has_csum, false).map_err(here)?,
            };
            demand(new.put(halves.half_for(split.hash)).map_err(here)?)?;
            bytes.copy_from_slice(&halves.lower);
            drop(bytes);
            handle.write(&upper)?.copy_from_slice(&halves.upper);
            halves.index_hash()
        };
        let entry = DxEntry { hash: index_hash, block: upper_at };
        self.insert_in_index(handle, &split.frames, entry, new)
    }

    /// Enters `entry` behind the entries that were taken on the way down, from the lowest node
    /// up as far as nodes have to be split.
    fn insert_in_index(
        &mut self,
        handle: &mut Handle<'_>,
        frames: &[Frame],
        mut entry: DxEntry,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        let view = View::of(self.space, self.dir)?;
        for (depth, frame) in frames.iter().enumerate().rev() {
            let mut entries: Vec<DxEntry> =
                with_node(&view, &frame.buffer, frame.block, |node| node.entries().collect())?;
            entries.insert((frame.at + 1).min(entries.len()), entry);
            let offset =
                if depth == 0 { htree::ROOT_ENTRIES_OFFSET } else { htree::NODE_ENTRIES_OFFSET };
            if entries.len() <= frame.limit {
                let mut bytes = handle.write(&frame.buffer)?;
                return demand(htree::write_entries(&mut bytes, offset, new.has_csum, &entries));
            }
            let (at, node) = self.grow(handle, BlockRole::Index)?;
            if depth == 0 {
                // The tree gets one more level; a node holds more entries than the root.
                demand(htree::write_node(&mut handle.write(&node)?, new.has_csum, &entries))?;
                return push_root_down(handle, &view, frame, at, new);
            }
            let upper = entries.split_off(entries.len() / 2);
            demand(htree::write_node(&mut handle.write(&node)?, new.has_csum, &upper))?;
            let mut bytes = handle.write(&frame.buffer)?;
            demand(htree::write_entries(&mut bytes, offset, new.has_csum, &entries))?;
            entry = DxEntry { hash: upper[0].hash, block: at };
        }
        unreachable!("the root takes the entry or is pushed down")
    }

    /// One more block at the end of the directory.
    fn grow(
        &mut self,
        handle: &mut Handle<'_>,
        role: BlockRole,
    ) -> Result<(FileBlock, Arc<Buffer>)> {
        let growth = self.growth.as_mut().ok_or_else(out_of_plan)?;
        let block_size = self.space.cache().block_size() as u64;
        let size = self.dir.attributes().size;
        let at = FileBlock(u32::try_from(size / block_size).map_err(|_| out_of_plan())?);
        let block = extent::grow(self.space, handle, self.dir, growth, at)?;
        let seed = self.dir.seed();
        let kind = match role {
            BlockRole::Leaf => BlockKind::DirLeaf { seed },
            BlockRole::Index => BlockKind::DirIndex { seed },
        };
        let buffer = handle.create(block, kind)?;
        self.dir.update(handle, |attributes| {
            attributes.size = size + block_size;
            attributes.disk_size = size + block_size;
        })?;
        Ok((at, buffer))
    }
}

/// What a new block is for.
#[derive(Clone, Copy, Debug)]
enum BlockRole {
    Leaf,
    Index,
}

/// The record to be added.
#[derive(Clone, Copy, Debug)]
struct NewEntry<'n> {
    name: &'n [u8],
    ino: Ino,
    kind: Option<FileKind>,
    has_filetype: bool,
    has_csum: bool,
}

impl<'n> NewEntry<'n> {
    fn of(space: &Space, name: &'n [u8], ino: Ino, kind: FileKind) -> Self {
        let incompat = space.layout().features.incompat;
        let has_filetype = incompat.contains(Incompat::FILETYPE);
        let kind = has_filetype.then_some(kind);
        Self { name, ino, kind, has_filetype, has_csum: space.layout().has_metadata_csum() }
    }

    /// Into the first gap; false if there is none.
    fn put(&self, block: &mut [u8]) -> Result<bool, CorruptKind> {
        dir_entry::insert(block, self.name, self.ino, self.kind, self.has_csum)
    }

    /// Into the gap of the record at `offset`; false if it is too small.
    fn put_at(&self, block: &mut [u8], offset: u32) -> Result<bool, CorruptKind> {
        dir_entry::insert_at(block, offset, self.name, self.ino, self.kind, self.has_csum)
    }

    /// Into the first gap, or behind the records moved together; false if there is no room.
    fn put_or_pack(&self, block: &mut [u8]) -> Result<bool, CorruptKind> {
        if self.put(block)? {
            return Ok(true);
        }
        if !leaf::has_room(block, self.name.len(), self.has_csum)? {
            return Ok(false);
        }
        let packed = leaf::pack(block, self.has_csum)?;
        block.copy_from_slice(&packed);
        self.put(block)
    }

    /// Into a block of a directory that is read in order of hash, if it has room.
    fn put_in_place(&self, handle: &mut Handle<'_>, block: &Arc<Buffer>) -> Result<bool> {
        let here = in_block(block);
        if !leaf::has_room(&block.read(), self.name.len(), self.has_csum).map_err(here)? {
            return Ok(false);
        }
        let mut bytes = handle.write(block)?;
        self.put_or_pack(&mut bytes).map_err(here)
    }
}

/// Looks for a gap in every block, which must be read anyhow to know that the name is new.
fn plan_linear(view: &View<'_>, name: &[u8]) -> Result<Target> {
    let mut room = None;
    for at in (0..view.blocks).map(FileBlock) {
        // Index blocks of a tree that is not used are no place for records while it is claimed,
        // but the claim ends with this change.
        let buffer = view.leaf(at)?;
        let (_, gap) = scan(view, at, &buffer, name)?;
        if gap.is_some() && room.is_none() {
            room = Some(Target::Room(buffer, gap));
        }
    }
    if let Some(room) = room {
        return Ok(room);
    }
    if !view.has_dir_index() || view.blocks > 1 {
        return Ok(Target::Append);
    }
    let first = FileBlock(0);
    let block = view.leaf(first)?;
    super::lookup::dots(view, &block.read())?;
    let hasher = view.hasher(None)?;
    if scan(view, first, &block, name)?.0.has_room {
        return Ok(Target::Room(block, None));
    }
    let halves = plan_split(view, first, &block, &hasher)?;
    Ok(Target::Tree(block, hasher, halves))
}

/// Goes down the tree, looks for the name in all leaves that may hold it, and says what happens to
/// the first of them.
fn plan_indexed(view: &View<'_>, name: &[u8]) -> Result<Target> {
    let (mut path, hash) = Path::to_name(view, name)?;
    let at = path.leaf();
    let leaf = view.leaf(at)?;
    let (seen, gap) = scan(view, at, &leaf, name)?;
    let frames = if seen.has_room { Vec::new() } else { path.frames.clone() };
    while path.advance_within(hash)? {
        if find(view, path.leaf(), name)?.is_some() {
            return Err(exists(name));
        }
    }
    if seen.has_room {
        return Ok(Target::Room(leaf, gap));
    }
    let halves = plan_split(view, at, &leaf, &path.hasher)?;
    let levels = frames.len() - 1;
    if frames.iter().all(Frame::is_full) && levels >= usize::from(view.levels_max()) {
        let context = format!("the index of directory inode {} is full", view.inode.ino());
        return Err(Error::new(ErrorKind::NoSpace, context));
    }
    Ok(Target::Split(Split { leaf, hasher: path.hasher, halves, hash, frames }))
}

/// One pass over a block for a name that must not be there.
fn scan(
    view: &View<'_>,
    at: FileBlock,
    block: &Buffer,
    name: &[u8],
) -> Result<(Scan, Option<Gap>)> {
    let bytes = block.read();
    let seen = if view.is_checked(&bytes) {
        dir_entry::scan_checked(&bytes, name, view.has_csum())
    } else {
        // The name may stand before the damage.
        dir_entry::scan(&bytes, name, view.has_csum()).map_err(|kind| view.corrupt(at, kind))?
    };
    match seen {
        Scan { found: true, .. } => Err(exists(name)),
        seen => {
            let version = bytes.version();
            Ok((seen, seen.gap.map(|at| Gap { at, version })))
        }
    }
}

/// What a full block is split into.
fn plan_split(
    view: &View<'_>,
    at: FileBlock,
    block: &Buffer,
    hasher: &DirHasher,
) -> Result<PlannedHalves> {
    let is_first = view.shape == Shape::Linear;
    let bytes = block.read();
    let split = leaf::split(&bytes, hasher, view.has_csum(), is_first);
    let halves = split.map_err(|kind| view.corrupt(at, kind))?;
    Ok(PlannedHalves { halves, version: bytes.version() })
}

/// A directory cannot grow past what its size field and its index can say.
fn check_size(view: &View<'_>, target: &Target, new_blocks: u32) -> Result<()> {
    let blocks = u64::from(view.blocks) + u64::from(new_blocks);
    let bytes = blocks * view.block_size() as u64;
    let fits_index = matches!(target, Target::Append) || blocks <= u64::from(INDEXED_BLOCKS_MAX);
    let fits_size = view.has_large_dir() || bytes <= u64::from(u32::MAX);
    let fits_file = blocks <= u64::from(u32::MAX);
    if fits_index && fits_size && fits_file {
        return Ok(());
    }
    let context = format!("directory inode {} cannot grow further", view.inode.ino());
    Err(Error::new(ErrorKind::NoSpace, context))
}

/// Makes `child`, which holds the root's entries now, the root's only child.
fn push_root_down(
    handle: &mut Handle<'_>,
    view: &View<'_>,
    frame: &Frame,
    child: FileBlock,
    new: &NewEntry<'_>,
) -> Result<()> {
    let mut bytes = handle.write(&frame.buffer)?;
    let (mut root, _) = htree::parse_root(&bytes, new.has_csum, view.levels_max())
        .map_err(in_block(&frame.buffer))?;
    root.levels += 1;
    let entries = [DxEntry { hash: 0, block: child }];
    demand(htree::write_root(&mut bytes, &root, new.has_filetype, new.has_csum, &entries))
}

/// Inodes that `.` and `..` name, in a block that the plan has checked.
fn dot_inodes(block: &[u8]) -> Result<(Ino, Ino)> {
    let mut records = dir_entry::DirBlock::new(block);
    match (records.next(), records.next()) {
        (Some(Ok(own)), Some(Ok(parent))) => Ok((own.ino, parent.ino)),
        _ => Err(out_of_plan()),
    }
}

/// Says where a damaged structure stands.
fn in_block(buffer: &Buffer) -> impl Fn(CorruptKind) -> Error + Copy + use<> {
    let block = buffer.block();
    move |kind| kind.at(Place::Block(block)).into()
}

fn exists(name: &[u8]) -> Error {
    Error::new(ErrorKind::Exists, String::from_utf8_lossy(name))
}

/// What was planned must fit.
fn demand(fits: bool) -> Result<()> {
    if fits { Ok(()) } else { Err(out_of_plan()) }
}

fn out_of_plan() -> Error {
    Error::new(ErrorKind::Internal, "a directory changed between plan and insertion")
}
