//! Finding, changing and removing entries, and the first block of a new directory.

use super::hash_path::HashPath;
use super::leaf;
use super::view::{Shape, View, check_name};
use crate::alloc::Space;
use crate::cache::{BlockKind, Buffer};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{self, Growth};
use crate::inode::Inode;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::dir_entry::{self, DirEntry, RawDirEntry};
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Incompat, Ino, Place};

/// A directory entry that was found. It is valid until the directory is changed by other means than
/// this entry.
#[derive(Clone, Debug)]
pub struct FoundEntry {
    /// Inode that the entry names.
    pub ino: Ino,
    /// Type of the file; `None` in file systems without the filetype feature.
    pub kind: Option<FileKind>,
    buffer: Arc<Buffer>,
    offset: u32,
}

/// The entry `name` of directory `dir`.
///
/// # Errors
/// `NotADirectory`; `InvalidArgument` for `.`, `..` and invalid names; `NameTooLong`; `Corrupt`,
/// also for an invalid hash tree, because the name is then not searched elsewhere.
pub fn lookup(dir: &Inode, name: &[u8]) -> Result<Option<FoundEntry>> {
    check_name(name)?;
    let view = View::of(dir)?;
    if view.shape == Shape::Linear {
        for at in 0..view.blocks {
            if let Some(entry) = find(&view, FileBlock(at), name)? {
                return Ok(Some(entry));
            }
        }
        return Ok(None);
    }
    let (mut path, hash) = HashPath::to_name(&view, name)?;
    loop {
        if let Some(entry) = find(&view, path.leaf, name)? {
            return Ok(Some(entry));
        }
        if !path.advance_within(hash)? {
            return Ok(None);
        }
    }
}

/// The entry `name` of one block.
pub(super) fn find(view: &View<'_>, at: FileBlock, name: &[u8]) -> Result<Option<FoundEntry>> {
    let buffer = view.leaf(at)?;
    let found = {
        let bytes = buffer.read();
        let found = if view.is_checked(&bytes) {
            dir_entry::find_checked(&bytes, name, view.has_csum())
        } else {
            // The name may precede the damage.
            dir_entry::find(&bytes, name).map_err(|kind| view.corrupt(at, kind))?
        };
        match found {
            Some(entry) => Some((view.check_ino(at, &entry)?, entry.kind(), entry.offset)),
            None => None,
        }
    };
    Ok(found.map(|(ino, kind, offset)| FoundEntry { ino, kind, buffer, offset }))
}

/// The entry `..` of directory `dir`.
///
/// # Errors
/// The errors of [`lookup`]; `Corrupt` when the directory does not begin with `.` and `..`.
pub fn parent_entry(dir: &Inode) -> Result<FoundEntry> {
    let view = View::of(dir)?;
    let buffer = view.first_block()?;
    let (ino, kind, offset) = {
        let bytes = buffer.read();
        let (_, parent) = dots(&view, &bytes)?;
        (parent.ino, parent.kind(), parent.offset)
    };
    Ok(FoundEntry { ino, kind, buffer, offset })
}

/// The records `.` and `..` at the start of block 0.
pub(super) fn dots<'b>(view: &View<'_>, block: &'b [u8]) -> Result<(DirEntry<'b>, DirEntry<'b>)> {
    let first = FileBlock(0);
    let mut records = dir_entry::DirBlock::new(block);
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
    let is_unused = |at: FileBlock, skip: usize| -> Result<bool> {
        let buffer = view.leaf(at)?;
        let bytes = buffer.read();
        for entry in leaf::records(&bytes, view.has_csum()).skip(skip) {
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
    /// Removes the entry. Costs one credit. In a handle that also adds a name to the same directory
    /// the removal must come first, because [`super::Insertion::apply`] may move entries.
    ///
    /// # Errors
    /// The journal is aborted. `Internal` when the entry is no longer where it was found.
    pub fn remove(&self, handle: &mut Handle<'_>) -> Result<()> {
        self.check_place()?;
        let mut bytes = handle.write(&self.buffer)?;
        bytes
            .edit_checked(|bytes| dir_entry::delete(bytes, self.offset))
            .map_err(|kind| kind.at(Place::Block(self.buffer.block())).into())
    }

    /// Points the entry to another inode of type `kind`. Costs one credit.
    ///
    /// # Errors
    /// The errors of [`FoundEntry::remove`].
    pub fn set_ino(
        &self,
        space: &Space,
        handle: &mut Handle<'_>,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        self.check_place()?;
        let kind = has_filetype(space).then_some(kind);
        let mut bytes = handle.write(&self.buffer)?;
        bytes.edit_checked(|bytes| dir_entry::set_entry_ino(bytes, self.offset, ino, kind));
        Ok(())
    }

    /// Fails if the directory has changed since the look-up, so that no other entry is damaged.
    fn check_place(&self) -> Result<()> {
        let bytes = self.buffer.read();
        let record = bytes.get(self.offset as usize..).and_then(RawDirEntry::ref_from_prefix);
        if record.is_some_and(|record| record.inode.get() == self.ino.get()) {
            return Ok(());
        }
        let context = format!(
            "directory entry of inode {} is not in block {} at byte {} any more",
            self.ino,
            self.buffer.block(),
            self.offset
        );
        Err(Error::new(ErrorKind::Internal, context))
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

fn has_filetype(space: &Space) -> bool {
    space.layout().features.incompat.contains(Incompat::FILETYPE)
}
