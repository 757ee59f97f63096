//! Where a name can be added: the blocks are read, searched and perhaps split, in memory.

use super::{Gap, LeafSplit, Target};
use crate::cache::Buffer;
use crate::dir::hash_path::{Frame, HashPath};
use crate::dir::inline;
use crate::dir::leaf::{self, LeafHasher};
use crate::dir::lookup::{self, find, find_stray};
use crate::dir::strays;
use crate::dir::view::{Shape, View};
use crate::dir::wanted::{Fit, FitOf, Wanted};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use uext4_ondisk::FileBlock;
use uext4_ondisk::dir_entry::{self, DirEntry, Scan, StoredName};

/// Most blocks a hash tree can address.
const INDEXED_BLOCKS_MAX: u32 = 1 << 28;

/// A name that is added.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewName<'n> {
    /// As it is stored.
    pub(super) wanted: &'n Wanted<'n>,
    /// How it is compared.
    pub(super) fit: FitOf,
    /// It is another spelling of a name that goes in the same handle.
    pub(super) respells: bool,
}

impl NewName<'_> {
    /// Tells the stored names that stand in the way from others.
    fn is_taken_by(self, entry: &DirEntry<'_>) -> bool {
        !self.respells && (self.fit)(self.wanted, entry) != Fit::No
    }

    fn stored(&self) -> StoredName<'_> {
        self.wanted.stored()
    }
}

/// What is to be done for a name that is not there.
///
/// # Errors
/// `Exists`; `Corrupt`; `NoSpace` where the index is full.
pub(super) fn target(view: &View<'_>, name: NewName<'_>) -> Result<Target> {
    match view.shape {
        Shape::Linear => plan_linear(view, name),
        Shape::Indexed => plan_indexed(view, name),
        Shape::Inline => Ok(Target::Inode),
    }
}

/// Whether a name that is not there fits the inode of a directory that has its entries there.
///
/// # Errors
/// `Exists`; `Corrupt`.
pub(super) fn fits_inode(view: &View<'_>, name: NewName<'_>) -> Result<bool> {
    let entries = view.inline_entries()?;
    if entries.find(|entry| name.is_taken_by(entry))?.is_some() {
        return Err(exists(name));
    }
    inline::has_room(entries, name.stored().bytes)
}

/// Looks for a gap in every block. All blocks must be read anyhow to know that the name is new.
fn plan_linear(view: &View<'_>, name: NewName<'_>) -> Result<Target> {
    let mut room = None;
    for at in (0..view.blocks).map(FileBlock) {
        // A stale index flag would make these blocks index blocks, but this change clears it.
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
    lookup::dots(view, &block.read())?;
    let hasher = LeafHasher { hasher: view.hasher(None)?, range: 0..=u32::MAX };
    if scan(view, first, &block, name)?.0.has_room {
        return Ok(Target::Room(block, None));
    }
    plan_split(view, first, block, hasher, Vec::new()).map(Target::Tree)
}

/// Descends the tree, looks for the name in all leaves that may hold it, and plans the change of
/// the first one.
fn plan_indexed(view: &View<'_>, name: NewName<'_>) -> Result<Target> {
    let (mut path, hash) = HashPath::to_name(view, name.stored())?;
    let at = path.leaf;
    let leaf = view.leaf(at)?;
    let (seen, gap) = scan(view, at, &leaf, name)?;
    // What a split needs of the way to this leaf.
    let to_split = match seen.has_room {
        true => None,
        false => {
            let hasher = LeafHasher { hasher: path.hasher, range: path.range()? };
            Some((hasher, path.frames.clone()))
        }
    };
    while path.advance_within(hash)? {
        if !name.respells && find(view, path.leaf, name.wanted, name.fit)?.is_some() {
            return Err(exists(name));
        }
    }
    if !name.respells && strays::may_be_there(view)? && find_stray(view, name.wanted)?.is_some() {
        return Err(exists(name));
    }
    let Some((hasher, frames)) = to_split else { return Ok(Target::Room(leaf, gap)) };
    let split = plan_split(view, at, leaf, hasher, frames)?;
    let levels = split.frames.len() - 1;
    if split.frames.iter().all(Frame::is_full) && levels >= usize::from(view.levels_max()) {
        let context = format!("the index of directory inode {} is full", view.inode.ino());
        return Err(Error::new(ErrorKind::NoSpace, context));
    }
    Ok(Target::Split(split))
}

/// Scans a block for a name that must not be there, and for room.
fn scan(
    view: &View<'_>,
    at: FileBlock,
    block: &Buffer,
    name: NewName<'_>,
) -> Result<(Scan, Option<Gap>)> {
    let bytes = block.read();
    let seen = if view.is_checked(&bytes) && name.wanted.is_by_bytes() {
        dir_entry::scan_checked(&bytes, name.stored().bytes, view.has_csum())
    } else if view.encrypted && !bytes.is_checked() {
        return Err(view.unchecked(at, &bytes));
    } else {
        // The name may precede the damage.
        let is_taken = |entry: &DirEntry<'_>| name.is_taken_by(entry);
        dir_entry::scan_by(&bytes, name.stored(), is_taken, view.has_csum(), view.records())
            .map_err(|kind| view.corrupt(at, kind))?
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
    leaf: Arc<Buffer>,
    hasher: LeafHasher,
    frames: Vec<Frame>,
) -> Result<LeafSplit> {
    let (halves, version) = {
        let bytes = leaf.read();
        let split = leaf::split(&bytes, &hasher, view.form(), frames.is_empty());
        (split.map_err(|kind| view.corrupt(at, kind))?, bytes.version())
    };
    Ok(LeafSplit { leaf, hasher, halves, version, frames })
}

/// Checks that the directory does not outgrow its size field and its index.
pub(super) fn check_size(view: &View<'_>, target: &Target, new_blocks: u32) -> Result<()> {
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

fn exists(name: NewName<'_>) -> Error {
    Error::new(ErrorKind::Exists, String::from_utf8_lossy(name.stored().bytes))
}
