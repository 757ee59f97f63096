//! Adding a name: into a gap, a new block, a new hash tree, or a leaf that is split for it.
//!
//! Invariants: [`Insertion::plan`] reads or allocates every block that [`Insertion::apply`] will
//! change, so that applying cannot fail because of the device. Records move only in directories
//! that are listed by hash, where cursors do not depend on the place of a record.

mod new_entry;
mod plan;

use super::hash_path::{Frame, with_node};
use super::inline;
use super::leaf::{self, Halves, LeafHasher};
use super::lookup::dots;
use super::names;
use super::strays;
use super::view::{Shape, View, check_name};
use super::wanted::Wanted;
use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{self, Growth};
use crate::inode::Inode;
use crate::journal::Handle;
use new_entry::NewEntry;
use plan::NewName;
use std::sync::Arc;
use uext4_ondisk::dir_entry::{self, StoredName};
use uext4_ondisk::htree::{self, DxEntry, DxRoot};
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Ino, InodeFlags, Place};

/// A name that can be added to a directory: it is not there, and the space for it is allocated.
///
/// Dropping it unused releases the space.
#[derive(Debug)]
pub struct Insertion<'a> {
    dir: &'a Inode,
    name: Box<[u8]>,
    hashes: Option<(u32, u32)>,
    target: Target,
    growth: Option<Growth>,
    credits: u32,
    /// The inode has an index flag without a hash tree; it is cleared.
    clears_index: bool,
    /// The directory's inode.
    _table_block: Arc<Buffer>,
}

#[derive(Debug)]
enum Target {
    /// A block with room: in the gap of a record, or in one gap after its records are packed.
    Room(Arc<Buffer>, Option<Gap>),
    /// A new block at the end of a linear directory.
    Append,
    /// The only block becomes the root of a hash tree with two leaves.
    Tree(LeafSplit),
    /// A full leaf is split.
    Split(LeafSplit),
    /// The inode, among the entries there.
    Inode,
}

/// A full block that is split.
#[derive(Debug)]
struct LeafSplit {
    leaf: Arc<Buffer>,
    hasher: LeafHasher,
    /// What the block is split into.
    halves: Halves,
    /// The version of the block that the halves are of.
    version: u64,
    /// The index above the leaf. Empty: the leaf is the only block of a linear directory.
    frames: Vec<Frame>,
}

/// A record with a gap, and the version of the block that the offset is for.
#[derive(Clone, Copy, Debug)]
struct Gap {
    at: u32,
    version: u64,
}

impl LeafSplit {
    /// Puts the new name into its half. If the block has changed since the plan, it is split again.
    /// False: a removal in the same handle has made room, and the name is in the block now.
    fn put(&mut self, handle: &mut Handle<'_>, new: &NewEntry<'_>) -> Result<bool> {
        let here = in_block(&self.leaf);
        if self.leaf.read().version() != self.version {
            if new.put_in_place(handle, &self.leaf)? {
                return Ok(false);
            }
            let is_first = self.frames.is_empty();
            let halves = leaf::split(&self.leaf.read(), &self.hasher, new.form, is_first);
            self.halves = halves.map_err(here)?;
        }
        let half = self.halves.half_for(self.hasher.hasher.hash_of(new.name).0);
        demand(new.put(half).map_err(here)?)?;
        Ok(true)
    }
}

impl Target {
    /// Blocks that the directory grows by.
    fn new_blocks(&self) -> u32 {
        match self {
            Self::Room(..) | Self::Inode => 0,
            Self::Append => 1,
            Self::Tree(..) => 2,
            Self::Split(split) => {
                let full = split.frames.iter().rev().take_while(|frame| frame.is_full()).count();
                1 + u32::try_from(full).unwrap_or(u32::MAX)
            }
        }
    }

    /// Existing blocks that change.
    fn old_blocks(&self) -> u32 {
        match self {
            Self::Room(..) | Self::Tree(..) | Self::Inode => 1,
            Self::Append => 0,
            Self::Split(split) => 1 + u32::try_from(split.frames.len()).unwrap_or(u32::MAX),
        }
    }
}

impl<'a> Insertion<'a> {
    /// Checks that `name` can be added to directory `dir`, and allocates the space. Entries in the
    /// inode that leave no room for it there move to a block now.
    ///
    /// # Errors
    /// `Exists`; those of [`super::lookup`]; `NoSpace` when there are no blocks, or the directory
    /// cannot grow.
    pub fn plan(dir: &'a Inode, name: &[u8]) -> Result<Self> {
        Self::plan_new(dir, name, false)
    }

    /// As [`Insertion::plan`], for another spelling of a name that is removed in the same handle,
    /// before this is applied ([`super::is_respelling`]).
    ///
    /// # Errors
    /// Those of [`Insertion::plan`] but `Exists`.
    pub fn plan_respelling(dir: &'a Inode, name: &[u8]) -> Result<Self> {
        Self::plan_new(dir, name, true)
    }

    fn plan_new(dir: &'a Inode, name: &[u8], respells: bool) -> Result<Self> {
        check_name(name)?;
        let mut view = View::of(dir)?;
        view.check_spelling(name)?;
        if view.encrypted && names::is_shown_undeciphered(&view, name)? {
            return Err(Error::new(ErrorKind::Exists, String::from_utf8_lossy(name)));
        }
        let wanted = match view.encrypted {
            true => names::to_add(&view, name)?,
            false => Wanted::plain(&view, name),
        };
        let new = NewName { wanted: &wanted, fit: strays::fit(&view)?, respells };
        if view.shape == Shape::Inline && !plan::fits_inode(&view, new)? {
            inline::leave(&view.inline_entries()?)?;
            view = View::of(dir)?;
        }
        let target = plan::target(&view, new)?;
        let new_blocks = target.new_blocks();
        plan::check_size(&view, &target, new_blocks)?;
        let mut credits = target.old_blocks() + u32::from(view.has_stale_index);
        let mut growth = None;
        if new_blocks > 0 {
            growth = Some(extent::allocate_growth(dir, new_blocks)?);
            credits += extent::grow_credits(dir, new_blocks) + new_blocks;
        }
        let clears_index = view.has_stale_index;
        let _table_block = dir.table_block()?;
        let StoredName { bytes, hashes } = wanted.stored();
        let name = bytes.into();
        Ok(Self { dir, name, hashes, target, growth, credits, clears_index, _table_block })
    }

    /// Credits of [`Insertion::apply`]: the blocks of the directory, and the inode when it grows.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Adds the name, for inode `ino` of type `kind`. This may move entries that were found before.
    /// It sets the directory's size and flags; the caller sets its times.
    ///
    /// # Errors
    /// The journal is aborted; `Corrupt` in an image where two directories share blocks.
    pub fn apply(mut self, handle: &mut Handle<'_>, ino: Ino, kind: FileKind) -> Result<()> {
        let name = std::mem::take(&mut self.name);
        let stored = StoredName { bytes: &name, hashes: self.hashes };
        let new = NewEntry::of(self.dir.space(), stored, ino, kind);
        if self.clears_index {
            self.dir.update(handle, |a| a.flags.remove(InodeFlags::INDEX))?;
        }
        match std::mem::replace(&mut self.target, Target::Append) {
            Target::Room(block, gap) => {
                let mut bytes = handle.write(&block)?;
                let here = in_block(&block);
                // Nothing has changed since the plan, except by a removal in the same handle.
                let put = match gap.filter(|gap| gap.version == bytes.version()) {
                    Some(gap) => bytes.edit_checked(|b| new.put_at(b, gap.at)).map_err(here)?,
                    None => false,
                };
                if put { Ok(()) } else { demand(new.put_or_pack(&mut bytes).map_err(here)?) }
            }
            Target::Append => {
                let (_, block) = self.grow(handle, self.leaf_kind())?;
                let mut bytes = handle.write(&block)?;
                dir_entry::init_block(&mut bytes, new.has_csum);
                demand(new.put(&mut bytes).map_err(in_block(&block))?)
            }
            Target::Inode => inline::add(handle, self.dir, &name, ino, kind),
            Target::Tree(split) => self.make_tree(handle, split, &new),
            Target::Split(split) => self.split_leaf(handle, split, &new),
        }
    }

    /// Turns the only block into the root of a tree.
    fn make_tree(
        &mut self,
        handle: &mut Handle<'_>,
        mut split: LeafSplit,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        if !split.put(handle, new)? {
            return Ok(());
        }
        let (lower_at, lower) = self.grow(handle, self.leaf_kind())?;
        let (upper_at, upper) = self.grow(handle, self.leaf_kind())?;
        let view = View::of(self.dir)?;
        {
            let mut bytes = handle.write(&split.leaf)?;
            let (own, parent) = dots(&view, &bytes)?;
            let (own, parent) = (own.ino, parent.ino);
            let root = DxRoot { hash: split.hasher.hasher.version, levels: 0, own, parent };
            let entries = [
                DxEntry { hash: 0, block: lower_at },
                DxEntry { hash: split.halves.index_hash(), block: upper_at },
            ];
            demand(htree::write_root(&mut bytes, &root, new.has_filetype, new.has_csum, &entries))?;
            bytes.set_kind(self.index_kind());
        }
        handle.write(&lower)?.copy_from_slice(&split.halves.lower);
        handle.write(&upper)?.copy_from_slice(&split.halves.upper);
        self.dir.update(handle, |a| a.flags.insert(InodeFlags::INDEX))
    }

    /// Splits a leaf by hash and inserts the new one into the index.
    fn split_leaf(
        &mut self,
        handle: &mut Handle<'_>,
        mut split: LeafSplit,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        if !split.put(handle, new)? {
            return Ok(());
        }
        let (upper_at, upper) = self.grow(handle, self.leaf_kind())?;
        handle.write(&split.leaf)?.copy_from_slice(&split.halves.lower);
        handle.write(&upper)?.copy_from_slice(&split.halves.upper);
        let entry = DxEntry { hash: split.halves.index_hash(), block: upper_at };
        self.insert_in_index(handle, &split.frames, entry, new)
    }

    /// Inserts `entry` behind the entry on the path, in the lowest node, and in further nodes
    /// upwards as far as nodes have to be split.
    fn insert_in_index(
        &mut self,
        handle: &mut Handle<'_>,
        frames: &[Frame],
        mut entry: DxEntry,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        let view = View::of(self.dir)?;
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
            let (at, node) = self.grow(handle, self.index_kind())?;
            if depth == 0 {
                // The tree gets one more level. All entries fit, because a node holds more than the
                // root.
                demand(htree::write_node(&mut handle.write(&node)?, new.has_csum, &entries))?;
                return push_root_down(handle, &view, frame, at, new);
            }
            let upper = entries.split_off(entries.len() / 2);
            demand(htree::write_node(&mut handle.write(&node)?, new.has_csum, &upper))?;
            let mut bytes = handle.write(&frame.buffer)?;
            demand(htree::write_entries(&mut bytes, offset, new.has_csum, &entries))?;
            entry = DxEntry { hash: upper[0].hash, block: at };
        }
        // Not reached: the root takes the entry or is pushed down.
        Err(out_of_plan())
    }

    fn leaf_kind(&self) -> BlockKind {
        BlockKind::DirLeaf { seed: self.dir.seed() }
    }

    fn index_kind(&self) -> BlockKind {
        BlockKind::DirIndex { seed: self.dir.seed() }
    }

    /// Adds a block at the end of the directory.
    fn grow(
        &mut self,
        handle: &mut Handle<'_>,
        kind: BlockKind,
    ) -> Result<(FileBlock, Arc<Buffer>)> {
        let growth = self.growth.as_mut().ok_or_else(out_of_plan)?;
        let block_size = u64::from(self.dir.space().layout().block_size);
        let size = self.dir.attributes().size;
        let at = FileBlock(u32::try_from(size / block_size).map_err(|_| out_of_plan())?);
        let block = extent::grow(handle, self.dir, growth, at)?;
        let buffer = handle.create(block, kind)?;
        self.dir.update(handle, |attributes| attributes.set_size(size + block_size))?;
        Ok((at, buffer))
    }
}

/// Makes `child`, which now has the root's entries, the root's only child.
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

/// Gives a directory whose entries are in its inode a block for them. The caller holds it
/// exclusively.
pub(crate) fn leave_inode(dir: &Inode) -> Result<()> {
    let view = View::of(dir)?;
    if view.shape == Shape::Inline { inline::leave(&view.inline_entries()?) } else { Ok(()) }
}

/// Adds the place of a damaged structure.
fn in_block(buffer: &Buffer) -> impl Fn(CorruptKind) -> Error + Copy + use<> {
    let block = buffer.block();
    move |kind| kind.at(Place::Block(block)).into()
}

/// Fails if something that was planned does not fit.
fn demand(fits: bool) -> Result<()> {
    if fits { Ok(()) } else { Err(out_of_plan()) }
}

fn out_of_plan() -> Error {
    Error::new(ErrorKind::Internal, "a directory changed between plan and insertion")
}
