//! Directories whose entries are in the inode (inline_data).
//!
//! What: the number of the parent, and records in `i_block` and in `system.data`
//! ([`inline_data::regions`]); no `.` and `..`. A directory that outgrows the inode becomes one of
//! a single block, in a handle of its own, and then grows as any other.
//! Invariants: the entries have one place at any moment, and a thread that asks for the parent
//! without the directory's lock sees it in one of the two. Every change writes the inode. Records
//! do not move within a region, and the block has them in the same order at a constant distance.

use super::listing::DirEntry;
use super::lookup::has_filetype;
use super::view::{Shape, View};
use crate::cache::BlockKind;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Edit, NodeAllocations, NodeSource, edit_credits};
use crate::inode::Inode;
use crate::journal::Handle;
use uext4_ondisk::dir_entry::{self, DirBlock};
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Ino, Place, inline_data};

/// The entries of a directory, as they were at one moment.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    dir: &'a Inode,
    content: Vec<u8>,
}

/// An entry: its offset in the data, and what it names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) offset: u32,
    pub(super) ino: Ino,
    pub(super) kind: Option<FileKind>,
}

impl<'a> Entries<'a> {
    /// `None`: the directory has its entries in blocks.
    pub(super) fn of(dir: &'a Inode) -> Result<Option<Self>> {
        Ok(dir.inline_directory()?.map(|content| Self { dir, content }))
    }

    fn corrupt(&self, kind: CorruptKind) -> Error {
        kind.at(Place::Inode(self.dir.ino())).into()
    }

    fn check_ino(&self, ino: Ino) -> Result<Ino> {
        if ino.get() == 0 || ino.get() > self.dir.space().layout().inodes_count {
            let why = "names an inode that does not exist";
            return Err(self.corrupt(CorruptKind::Rule { what: "directory", why }));
        }
        Ok(ino)
    }

    /// The parent.
    pub(super) fn parent(&self) -> Result<Ino> {
        self.check_ino(inline_data::parent(&self.content))
    }

    /// Calls `visit` with the offset of each live record in the data, and the record, until it
    /// returns false.
    fn each(&self, visit: &mut dyn FnMut(u32, dir_entry::DirEntry<'_>) -> bool) -> Result<()> {
        for region in inline_data::regions(&self.content) {
            let start = u32::try_from(region.start).unwrap_or(u32::MAX);
            for entry in DirBlock::new(&self.content[region]).live() {
                let entry = entry.map_err(|kind| self.corrupt(kind))?;
                if entry.is_dot() {
                    let why = "'.' or '..' out of place";
                    let kind = CorruptKind::DirEntry { offset: start + entry.offset, why };
                    return Err(self.corrupt(kind));
                }
                self.check_ino(entry.ino)?;
                if !visit(start + entry.offset, entry) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The first entry that `is_it`.
    pub(super) fn find(
        &self,
        is_it: impl Fn(&dir_entry::DirEntry<'_>) -> bool,
    ) -> Result<Option<Found>> {
        let mut found = None;
        self.each(&mut |offset, entry| {
            if is_it(&entry) {
                found = Some(Found { offset, ino: entry.ino, kind: entry.kind() });
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Whether there are no entries.
    pub(super) fn is_empty(&self) -> Result<bool> {
        let mut is_empty = true;
        self.each(&mut |_, _| {
            is_empty = false;
            false
        })?;
        Ok(is_empty)
    }

    /// The first block that the directory would have. It stands in for the entries where they are
    /// listed, so that a cursor means the same before and after they move there.
    pub(super) fn as_block(&self) -> Result<Vec<u8>> {
        // Whatever is wrong is told about the inode, not about a block that does not exist.
        self.each(&mut |_, _| true)?;
        self.parent()?;
        let space = self.dir.space();
        let has_csum = space.layout().has_metadata_csum();
        let block_size = space.layout().block_size as usize;
        inline_data::directory_block(
            &self.content,
            self.dir.ino(),
            block_size,
            has_filetype(space),
            has_csum,
        )
        .map_err(|kind| self.corrupt(kind))
    }

    /// Adds a record where there is room, and makes room in the inode if there may be some. False,
    /// if there is none. That the name is not there is for the caller to know.
    fn insert(&mut self, name: &[u8], ino: Ino, kind: Option<FileKind>) -> Result<bool> {
        let most = {
            let room = self.dir.attributes().inline_room();
            room.map_err(|kind| self.corrupt(kind))?.unwrap_or(0) & !3
        };
        if self.insert_in_regions(name, ino, kind)? {
            return Ok(true);
        }
        // Not for a gap that no name could use.
        if most < self.content.len() + dir_entry::rec_len_for(1) as usize {
            return Ok(false);
        }
        let before = self.content.clone();
        inline_data::lengthen_directory(&mut self.content, most).map_err(|k| self.corrupt(k))?;
        let put = self.insert_in_regions(name, ino, kind)?;
        if !put {
            self.content = before;
        }
        Ok(put)
    }

    fn insert_in_regions(&mut self, name: &[u8], ino: Ino, kind: Option<FileKind>) -> Result<bool> {
        for region in inline_data::regions(&self.content) {
            let put = dir_entry::insert(&mut self.content[region], name, ino, kind, false);
            if put.map_err(|kind| self.corrupt(kind))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the entries into the inode.
    fn write(self, handle: &mut Handle<'_>) -> Result<()> {
        let Self { dir, content } = self;
        dir.update(handle, |attributes| {
            match attributes.set_inline_content(&content) {
                Ok(true) => attributes.set_size(content.len() as u64),
                Ok(false) => {
                    let context = format!("entries of directory {} no longer fit it", dir.ino());
                    return Err(Error::new(ErrorKind::Internal, context));
                }
                Err(kind) => return Err(dir.corrupt(kind)),
            }
            Ok(())
        })?
    }
}

/// Removes the entry at `offset`.
pub(super) fn remove(handle: &mut Handle<'_>, dir: &Inode, offset: u32) -> Result<()> {
    change(handle, dir, offset, dir_entry::delete)
}

/// Points the entry at `offset` to another inode.
pub(super) fn set_ino(
    handle: &mut Handle<'_>,
    dir: &Inode,
    offset: u32,
    ino: Ino,
    kind: Option<FileKind>,
) -> Result<()> {
    change(handle, dir, offset, |region, at| {
        dir_entry::set_entry_ino(region, at, ino, kind);
        Ok(())
    })
}

/// Changes the region that has the entry at `offset`.
fn change(
    handle: &mut Handle<'_>,
    dir: &Inode,
    offset: u32,
    change: impl FnOnce(&mut [u8], u32) -> std::result::Result<(), CorruptKind>,
) -> Result<()> {
    let Some(mut entries) = Entries::of(dir)? else { return Err(out_of_plan()) };
    let mut regions = inline_data::regions(&entries.content).into_iter();
    let region = regions.find(|region| region.contains(&(offset as usize)));
    let region = region.ok_or_else(out_of_plan)?;
    let at = offset - u32::try_from(region.start).unwrap_or(0);
    let changed = change(&mut entries.content[region], at);
    changed.map_err(|kind| entries.corrupt(kind))?;
    entries.write(handle)
}

/// Gives a directory another parent.
pub(super) fn set_parent(handle: &mut Handle<'_>, dir: &Inode, parent: Ino) -> Result<()> {
    let Some(mut entries) = Entries::of(dir)? else { return Err(out_of_plan()) };
    inline_data::set_parent(&mut entries.content, parent);
    entries.write(handle)
}

/// Whether a name that is not there fits the inode. The caller holds the directory exclusively.
///
/// # Errors
/// `Corrupt`.
pub(super) fn has_room(mut entries: Entries<'_>, name: &[u8]) -> Result<bool> {
    entries.insert(name, Ino::ROOT, None)
}

/// Adds an entry that fits the inode.
pub(super) fn add(
    handle: &mut Handle<'_>,
    dir: &Inode,
    name: &[u8],
    ino: Ino,
    kind: FileKind,
) -> Result<()> {
    let kind = has_filetype(dir.space()).then_some(kind);
    let Some(mut entries) = Entries::of(dir)? else { return Err(out_of_plan()) };
    if !entries.insert(name, ino, kind)? {
        return Err(out_of_plan());
    }
    entries.write(handle)
}

/// Moves the entries to a block. The caller holds the directory exclusively, and no handle.
///
/// # Errors
/// `NoSpace`, and nothing has changed; `Corrupt`; a device failure.
pub(super) fn leave(entries: &Entries<'_>) -> Result<()> {
    let dir = entries.dir;
    let (space, at) = (dir.space(), FileBlock(0));
    let image = entries.as_block()?;
    let hold = dir.hold_blocks(1)?;
    let mut allocation = space.allocate(dir.goal(), 1)?;
    let _lent = dir.lend(hold.into_iter().collect());
    let mut nodes = NodeAllocations::for_edits(dir, &[at], NodeSource::Free)?;
    let credits = 2 + space.credits().blocks + edit_credits(dir);
    space.journal().run(credits, |handle| {
        let start = space.mark_used(handle, &mut allocation, 1)?;
        // Before the mapping, because a thread that follows it has no lock of this directory.
        let buffer = handle.create(start, BlockKind::DirLeaf { seed: dir.seed() })?;
        handle.write(&buffer)?.copy_from_slice(&image);
        let new = Extent { first: at, len: 1, start, unwritten: false };
        Edit::insert(new).apply_with(handle, dir, &mut nodes, 1)?;
        dir.note_data_change(handle);
        Ok(())
    })
}

fn out_of_plan() -> Error {
    Error::new(ErrorKind::Internal, "a directory changed between plan and change")
}

/// Lists entries from a cursor in the order of a directory without hashes: a cursor is the byte of
/// a record in the block that the entries would be in.
pub(super) fn read_linear(
    view: &View<'_>,
    cursor: u64,
    visit: &mut dyn FnMut(DirEntry<'_>) -> bool,
) -> Result<()> {
    debug_assert_eq!(view.shape, Shape::Inline);
    let bytes = view.inline_block()?;
    for entry in DirBlock::new(&bytes).live() {
        let entry = entry.map_err(|kind| view.corrupt(FileBlock(0), kind))?;
        let (offset, next) = (u64::from(entry.offset), u64::from(entry.offset + entry.rec_len));
        if offset < cursor {
            continue;
        }
        if !visit(DirEntry { ino: entry.ino, kind: entry.kind(), name: entry.name, next }) {
            return Ok(());
        }
    }
    Ok(())
}
