//! Finding, changing and removing entries, and the first block of a new directory.

use super::hash_path::HashPath;
use super::view::{Shape, View, check_name};
use super::wanted::{Fit, FitOf, Wanted};
use super::{inline, leaf, names, strays};
use crate::alloc::Space;
use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{self, Growth};
use crate::inode::Inode;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::casefold::FoldedName;
use uext4_ondisk::dir_entry::{self, DirBlock, DirEntry, RawDirEntry};
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Incompat, Ino, Place};

/// A directory entry that was found. It is valid until the directory is changed by other means than
/// this entry.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    /// Inode that the entry names.
    pub ino: Ino,
    /// Type of the file; `None` in file systems without the filetype feature.
    pub kind: Option<FileKind>,
    at: EntryPlace,
}

/// Where an entry is.
#[derive(Clone, Debug)]
enum EntryPlace {
    /// In a block, at this byte.
    Block(Arc<Buffer>, u32),
    /// In the inode of the directory, at this byte of its data. It may have moved to a block since,
    /// where it is found by its name.
    Inode(u32, Box<[u8]>),
    /// It is the parent of a directory whose entries are in the inode.
    Parent,
}

/// The entry `name` of directory `dir`.
///
/// # Errors
/// `NotADirectory`; `InvalidArgument` for `.`, `..` and invalid names, which are more where case is
/// folded; `NameTooLong`; `Corrupt`,
/// also for an invalid hash tree, because the name is then not searched elsewhere.
pub fn lookup(dir: &Inode, name: &[u8]) -> Result<Option<FoundEntry>> {
    check_name(name)?;
    let view = View::of(dir)?;
    view.check_spelling(name)?;
    if !view.encrypted {
        return lookup_wanted(&view, &Wanted::plain(&view, name));
    }
    if let Some(wanted) = names::to_find(&view, name)?
        && let Some(found) = lookup_wanted(&view, &wanted)?
    {
        return Ok(Some(found));
    }
    match names::to_find_undeciphered(&view, name)? {
        Some(wanted) => lookup_wanted(&view, &wanted),
        None => Ok(None),
    }
}

/// Whether `new_name` is another spelling of `name` in a directory that folds case.
///
/// # Errors
/// `NotADirectory`; `Corrupt`.
pub fn is_respelling(dir: &Inode, name: &[u8], new_name: &[u8]) -> Result<bool> {
    let view = View::of(dir)?;
    Ok(view.folding.is_some() && name != new_name && FoldedName::new(name).is(new_name))
}

/// The entry that has a name.
pub(super) fn lookup_wanted(view: &View<'_>, wanted: &Wanted<'_>) -> Result<Option<FoundEntry>> {
    match view.shape {
        Shape::Linear => {
            let mut search = Search::new(view, wanted, strays::fit(view)?);
            for at in 0..view.blocks {
                if search.ends_in(FileBlock(at))? {
                    break;
                }
            }
            Ok(search.found)
        }
        Shape::Inline => lookup_inline(view, wanted),
        Shape::Indexed => lookup_by_hash(view, wanted),
    }
}

fn lookup_inline(view: &View<'_>, wanted: &Wanted<'_>) -> Result<Option<FoundEntry>> {
    let entries = view.inline_entries()?;
    let mut found = entries.find(|entry| Fit::of(wanted, entry) == Fit::Exact)?;
    if found.is_none() {
        found = entries.find(|entry| Fit::of(wanted, entry) != Fit::No)?;
    }
    Ok(found.map(|inline::Found { offset, ino, kind }| FoundEntry {
        ino,
        kind,
        at: EntryPlace::Inode(offset, wanted.stored().bytes.into()),
    }))
}

fn lookup_by_hash(view: &View<'_>, wanted: &Wanted<'_>) -> Result<Option<FoundEntry>> {
    let (mut path, hash) = HashPath::to_name(view, wanted.stored())?;
    let mut search = Search::new(view, wanted, Fit::by_hash);
    loop {
        if search.ends_in(path.leaf)? {
            return Ok(search.found);
        }
        if !path.advance_within(hash)? {
            break;
        }
    }
    let stray = if strays::may_be_there(view)? { find_stray(view, wanted)? } else { None };
    match stray {
        Some((stray, Fit::Exact)) => Ok(Some(stray)),
        stray => Ok(search.found.or(stray.map(|stray| stray.0))),
    }
}

/// The entry of any leaf that fits best.
pub(super) fn find_stray(
    view: &View<'_>,
    wanted: &Wanted<'_>,
) -> Result<Option<(FoundEntry, Fit)>> {
    let mut path = HashPath::to_hash(view, 0)?;
    let mut search = Search::new(view, wanted, Fit::of);
    loop {
        if search.ends_in(path.leaf)? {
            return Ok(search.found.map(|found| (found, Fit::Exact)));
        }
        if !path.advance()? {
            return Ok(search.found.map(|found| (found, Fit::Same)));
        }
    }
}

/// A search through blocks, which ends at the very entry.
struct Search<'v> {
    view: &'v View<'v>,
    wanted: &'v Wanted<'v>,
    fit: FitOf,
    /// The entry that fits best so far.
    found: Option<FoundEntry>,
}

impl<'v> Search<'v> {
    fn new(view: &'v View<'v>, wanted: &'v Wanted<'v>, fit: FitOf) -> Self {
        Self { view, wanted, fit, found: None }
    }

    /// Searches one block. True: the very entry is found.
    #[inline]
    fn ends_in(&mut self, at: FileBlock) -> Result<bool> {
        let Some((found, fit)) = find(self.view, at, self.wanted, self.fit)? else {
            return Ok(false);
        };
        if fit == Fit::Exact || self.found.is_none() {
            self.found = Some(found);
        }
        Ok(fit == Fit::Exact)
    }
}

/// The entry of one block that fits best.
#[inline]
pub(super) fn find(
    view: &View<'_>,
    at: FileBlock,
    wanted: &Wanted<'_>,
    fit: FitOf,
) -> Result<Option<(FoundEntry, Fit)>> {
    let buffer = view.leaf(at)?;
    let found = {
        let bytes = buffer.read();
        let found = if view.is_checked(&bytes) && wanted.is_by_bytes() {
            let found = dir_entry::find_checked(&bytes, wanted.stored().bytes, view.has_csum());
            found.map(|entry| (entry, Fit::Exact))
        } else if view.encrypted && !bytes.is_checked() {
            return Err(view.unchecked(at, &bytes));
        } else {
            // The name may precede the damage.
            let records = DirBlock::new(&bytes).of(view.records());
            find_slowly(records, wanted, fit).map_err(|kind| view.corrupt(at, kind))?
        };
        match found {
            Some((entry, fit)) => {
                Some((view.check_ino(at, &entry)?, entry.kind(), entry.offset, fit))
            }
            None => None,
        }
    };
    Ok(found.map(|(ino, kind, offset, fit)| {
        (FoundEntry { ino, kind, at: EntryPlace::Block(buffer, offset) }, fit)
    }))
}

fn find_slowly<'b>(
    records: DirBlock<'b>,
    wanted: &Wanted<'_>,
    fit: FitOf,
) -> Result<Option<(DirEntry<'b>, Fit)>, CorruptKind> {
    let mut same = None;
    for entry in records.live() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(_) if same.is_some() => break,
            Err(kind) => return Err(kind),
        };
        match fit(wanted, &entry) {
            Fit::Exact => return Ok(Some((entry, Fit::Exact))),
            Fit::Same if same.is_none() => same = Some((entry, Fit::Same)),
            Fit::Same | Fit::No => {}
        }
    }
    Ok(same)
}

/// The entry `..` of directory `dir`.
///
/// # Errors
/// The errors of [`lookup`]; `Corrupt` when the directory does not begin with `.` and `..`.
pub fn parent_entry(dir: &Inode) -> Result<FoundEntry> {
    if let Some(entries) = inline::Entries::of(dir)? {
        let kind = has_filetype(dir.space()).then_some(FileKind::Directory);
        return Ok(FoundEntry { ino: entries.parent()?, kind, at: EntryPlace::Parent });
    }
    let view = View::of(dir)?;
    let buffer = view.first_block()?;
    let (ino, kind, offset) = {
        let bytes = buffer.read();
        let (_, parent) = dots(&view, &bytes)?;
        (parent.ino, parent.kind(), parent.offset)
    };
    Ok(FoundEntry { ino, kind, at: EntryPlace::Block(buffer, offset) })
}

/// The records `.` and `..` at the start of block 0.
pub(super) fn dots<'b>(view: &View<'_>, block: &'b [u8]) -> Result<(DirEntry<'b>, DirEntry<'b>)> {
    let first = FileBlock(0);
    let mut records = DirBlock::new(block);
    let mut next = |name: &[u8], why| match records.next() {
        Some(Ok(entry)) if entry.is_live() && entry.name == name => {
            view.check_ino(first, &entry)?;
            Ok(entry)
        }
        Some(Err(kind)) => Err(view.corrupt(first, kind)),
        _ => Err(view.corrupt(first, CorruptKind::Rule { what: "directory", why })),
    };
    Ok((next(b".", "does not begin with '.'")?, next(b"..", "does not go on with '..'")?))
}

/// Whether directory `dir` has no entries but `.` and `..`.
///
/// # Errors
/// The errors of [`lookup`].
pub fn is_empty(dir: &Inode) -> Result<bool> {
    let view = View::of(dir)?;
    if view.shape == Shape::Inline {
        let entries = view.inline_entries()?;
        entries.parent()?;
        return entries.is_empty();
    }
    let is_unused = |at: FileBlock, skip: usize| -> Result<bool> {
        let buffer = view.leaf(at)?;
        let bytes = buffer.read();
        let records = leaf::records(&bytes, view.form());
        for entry in records.skip(skip) {
            if entry.map_err(|kind| view.corrupt(at, kind))?.is_live() {
                return Ok(false);
            }
        }
        Ok(true)
    };
    {
        let first = view.first_block()?;
        let bytes = first.read();
        dots(&view, &bytes)?;
    }
    if view.shape == Shape::Linear {
        for at in 0..view.blocks {
            if !is_unused(FileBlock(at), if at == 0 { 2 } else { 0 })? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    let mut path = HashPath::to_hash(&view, 0)?;
    loop {
        if !is_unused(path.leaf, 0)? {
            return Ok(false);
        }
        if !path.advance()? {
            return Ok(true);
        }
    }
}

impl FoundEntry {
    /// Whether both were found in one place of a directory.
    pub fn is_at(&self, other: &Self) -> bool {
        match (&self.at, &other.at) {
            (EntryPlace::Block(buffer, at), EntryPlace::Block(same, also)) => {
                Arc::ptr_eq(buffer, same) && at == also
            }
            (EntryPlace::Inode(at, _), EntryPlace::Inode(also, _)) => at == also,
            (EntryPlace::Parent, EntryPlace::Parent) => true,
            _ => false,
        }
    }

    /// Removes the entry of directory `dir`. Costs one credit. In a handle that also adds a name to
    /// the same directory the removal must come first, because [`super::Insertion::apply`] may move
    /// entries.
    ///
    /// # Errors
    /// The journal is aborted. `Internal` when the entry is no longer where it was found.
    pub fn remove(&self, handle: &mut Handle<'_>, dir: &Inode) -> Result<()> {
        match self.place(dir)? {
            EntryPlace::Block(buffer, offset) => {
                self.check_place(&buffer, offset)?;
                let mut bytes = handle.write(&buffer)?;
                bytes
                    .edit_checked(|bytes| dir_entry::delete(bytes, offset))
                    .map_err(|kind| kind.at(Place::Block(buffer.block())).into())
            }
            EntryPlace::Inode(offset, _) => inline::remove(handle, dir, offset),
            EntryPlace::Parent => Err(Error::new(ErrorKind::Internal, "'..' is removed")),
        }
    }

    /// Points the entry of directory `dir` to another inode of type `kind`. Costs one credit.
    ///
    /// # Errors
    /// The errors of [`FoundEntry::remove`].
    pub fn set_ino(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        let kind = has_filetype(dir.space()).then_some(kind);
        match self.place(dir)? {
            EntryPlace::Block(buffer, offset) => {
                self.check_place(&buffer, offset)?;
                let mut bytes = handle.write(&buffer)?;
                bytes.edit_checked(|bytes| dir_entry::set_entry_ino(bytes, offset, ino, kind));
                Ok(())
            }
            EntryPlace::Inode(offset, _) => inline::set_ino(handle, dir, offset, ino, kind),
            EntryPlace::Parent => inline::set_parent(handle, dir, ino),
        }
    }

    /// Where the entry is now: the plan of an insertion may have moved the entries of the inode to
    /// a block.
    fn place(&self, dir: &Inode) -> Result<EntryPlace> {
        match &self.at {
            EntryPlace::Inode(offset, name) => {
                let found = lookup(dir, name)?.filter(|found| found.ino == self.ino);
                let found = found.map(|found| found.at);
                found.ok_or_else(|| self.is_gone(format!("in directory {}", dir.ino()), *offset))
            }
            place => Ok(place.clone()),
        }
    }

    /// Fails if the directory has changed since the look-up, so that no other entry is damaged.
    fn check_place(&self, buffer: &Buffer, offset: u32) -> Result<()> {
        let bytes = buffer.read();
        let record = bytes.get(offset as usize..).and_then(RawDirEntry::ref_from_prefix);
        if record.is_some_and(|record| record.inode.get() == self.ino.get()) {
            return Ok(());
        }
        Err(self.is_gone(format!("in block {}", buffer.block()), offset))
    }

    fn is_gone(&self, place: String, offset: u32) -> Error {
        let context = format!(
            "directory entry of inode {} is not {place} at byte {offset} any more",
            self.ino
        );
        Error::new(ErrorKind::Internal, context)
    }
}

/// Creates the first block of the new directory `dir`, from a growth of at least one block, and
/// sets the directory's size. The handle has [`init_credits`].
///
/// # Errors
/// The journal is aborted.
pub fn init(handle: &mut Handle<'_>, dir: &Inode, growth: &mut Growth, parent: Ino) -> Result<()> {
    let space = dir.space();
    let block = extent::grow(handle, dir, growth, FileBlock(0))?;
    let buffer = handle.create(block, BlockKind::DirLeaf { seed: dir.seed() })?;
    {
        let mut bytes = handle.write(&buffer)?;
        let has_csum = space.layout().has_metadata_csum();
        dir_entry::init_first_block(&mut bytes, dir.ino(), parent, has_filetype(space), has_csum);
    }
    let size = u64::from(space.layout().block_size);
    dir.update(handle, |attributes| attributes.set_size(size))
}

/// Credits of [`init`], the directory's inode included.
#[must_use]
pub fn init_credits(dir: &Inode) -> u32 {
    extent::grow_credits(dir, 1) + 1
}

pub(super) fn has_filetype(space: &Space) -> bool {
    space.layout().features.incompat.contains(Incompat::FILETYPE)
}
