//! Data in the inode (inline_data).
//!
//! What: the data of a small file or directory is in `block_map` and in the attribute
//! `system.data`, both of which are part of [`Attributes`]. There is no other copy of it: a file
//! whose data is in the inode has no pages. It changes in the handle that writes the inode.
//! Invariants: an inode has data in itself or a mapping, never both; in memory its tree is empty.
//! Data leaves the inode with the first change of the tree ([`super::Inode::update_root`]), and
//! never comes back.
//! Locking: the lock of the content.

use super::{Attributes, ExtentRoot, Inode};
use crate::error::{Error, Result};
use crate::sync::state::Ordering;
use uext4_ondisk::extent::write_header;
use uext4_ondisk::inode::I_BLOCK_SIZE;
use uext4_ondisk::{CorruptKind, FileKind, Incompat, Ino, InodeFlags, Layout, Place, inline_data};

/// Where the data of a regular file is, or may go. Other types have [`InlineState::No`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum InlineState {
    /// In blocks.
    No,
    /// It has none yet: the first write decides.
    Undecided,
    /// In the inode.
    Yes,
}

impl InlineState {
    /// The state of an inode with these attributes that has been read.
    pub(super) fn of(kind: FileKind, attributes: &Attributes) -> Self {
        if kind == FileKind::Regular && attributes.is_inline() { Self::Yes } else { Self::No }
    }

    /// The state of a new file.
    pub(super) fn of_new(layout: &Layout, kind: FileKind, attributes: &Attributes) -> Self {
        let is_small = kind == FileKind::Regular && attributes.size == 0;
        if is_small && attributes.may_be_inline(layout) { Self::Undecided } else { Self::No }
    }
}

impl Attributes {
    /// Whether the data of a file or directory is in the inode.
    pub(crate) fn is_inline(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// Whether a new inode may get data in itself. The format asks for extra fields.
    fn may_be_inline(&self, layout: &Layout) -> bool {
        let incompat = layout.features.incompat;
        incompat.contains(Incompat::INLINE_DATA)
            && !self.flags.contains(InodeFlags::ENCRYPT)
            && matches!(self.inline_room(), Ok(Some(_)))
    }

    /// Most bytes of data that fit the inode beside its attributes. `None`: no data at all.
    pub(crate) fn inline_room(&self) -> Result<Option<usize>, CorruptKind> {
        inline_data::room(&self.xattr_area)
    }

    /// All bytes of data in the inode, those behind the end of the file included.
    pub(crate) fn inline_content(&self) -> Result<Vec<u8>, CorruptKind> {
        inline_data::content(&self.block_map, &self.xattr_area)
    }

    /// Puts data into the inode, in place of a mapping if it has one, which is empty. False, and
    /// nothing is changed, if there is no room.
    pub(crate) fn set_inline_content(&mut self, bytes: &[u8]) -> Result<bool, CorruptKind> {
        if !inline_data::set_content(&mut self.block_map, &mut self.xattr_area, bytes)? {
            return Ok(false);
        }
        self.flags.remove(InodeFlags::EXTENTS);
        self.flags.insert(InodeFlags::INLINE_DATA);
        Ok(true)
    }

    /// Makes a new directory one that has its entries in the inode, if it can be. False: it needs a
    /// block.
    pub(crate) fn become_inline_directory(&mut self, layout: &Layout, parent: Ino) -> bool {
        let content = inline_data::empty_directory(parent);
        if !self.may_be_inline(layout) || !matches!(self.set_inline_content(&content), Ok(true)) {
            return false;
        }
        self.set_size(content.len() as u64);
        true
    }

    /// Takes the data out of the inode, because a mapping takes its place. A directory has one
    /// block then; a file keeps its size.
    pub(super) fn leave_inline(&mut self, layout: &Layout) {
        // The area was well formed when the data was read from it.
        _ = inline_data::set_rest(&mut self.xattr_area, None);
        self.flags.remove(InodeFlags::INLINE_DATA);
        self.flags.set(InodeFlags::EXTENTS, layout.features.incompat.contains(Incompat::EXTENT));
        if FileKind::from_mode(self.mode) == Some(FileKind::Directory) {
            self.set_size(u64::from(layout.block_size));
        }
    }

    /// The root of the tree or block map in memory: an empty one if the data is in the inode.
    pub(super) fn tree_root(&self, layout: &Layout) -> ExtentRoot {
        if !self.is_inline() {
            return ExtentRoot { bytes: self.block_map };
        }
        let mut bytes = [0; 60];
        if layout.features.incompat.contains(Incompat::EXTENT) {
            write_header(&mut bytes, 0, 0);
        }
        ExtentRoot { bytes }
    }

    /// Checks that an inode that has been read and says so has its data in itself.
    pub(super) fn check_inline(&self, layout: &Layout, kind: FileKind) -> Result<(), CorruptKind> {
        if !self.is_inline() {
            return Ok(());
        }
        let bad = |why| CorruptKind::Rule { what: "inode", why };
        if !layout.features.incompat.contains(Incompat::INLINE_DATA) {
            return Err(bad("has inline data without the inline_data feature"));
        }
        if self.flags.contains(InodeFlags::ENCRYPT) {
            return Err(bad("is encrypted and has inline data"));
        }
        if self.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INDEX) {
            return Err(bad("has inline data and blocks at once"));
        }
        let len = self.inline_content()?.len() as u64;
        // Values that overlap in the inode leave less room than they have bytes.
        let is_beside = len > I_BLOCK_SIZE as u64;
        if is_beside && self.inline_room()?.is_none_or(|room| (room as u64) < len) {
            return Err(bad("has inline data that overlaps its attributes"));
        }
        let is_right = match kind {
            FileKind::Regular | FileKind::Symlink => self.size <= len,
            FileKind::Directory => self.size == len,
            _ => return Err(bad("has inline data and is no file, directory or symbolic link")),
        };
        if is_right { Ok(()) } else { Err(bad("has another size than its inline data")) }
    }
}

impl Inode {
    /// Where the data of a regular file is, or may go.
    pub(crate) fn inline_state(&self) -> InlineState {
        match self.inline.load(Ordering::Relaxed) {
            0 => InlineState::No,
            1 => InlineState::Undecided,
            _ => InlineState::Yes,
        }
    }

    /// Whether the data of a regular file is in the inode.
    pub(crate) fn is_inline(&self) -> bool {
        self.inline_state() == InlineState::Yes
    }

    /// Notes where the data of a regular file is. The caller holds the file exclusively.
    pub(crate) fn set_inline_state(&self, state: InlineState) {
        self.inline.store(state as u32, Ordering::Relaxed);
    }

    /// The bytes of a file or symbolic link whose data is in the inode.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn inline_bytes(&self) -> Result<Vec<u8>> {
        let (content, size) = {
            let attributes = self.attributes();
            (attributes.inline_content(), attributes.size)
        };
        let mut content = content.map_err(|kind| self.corrupt(kind))?;
        content.resize(usize::try_from(size).unwrap_or(usize::MAX).min(content.len()), 0);
        Ok(content)
    }

    /// The data of a directory whose entries are in the inode; `None` if they are in blocks. Sees
    /// one moment of a directory that another thread changes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn inline_directory(&self) -> Result<Option<Vec<u8>>> {
        let attributes = self.attributes();
        if !attributes.is_inline() {
            return Ok(None);
        }
        attributes.inline_content().map(Some).map_err(|kind| self.corrupt(kind))
    }

    /// Damage of this inode.
    pub(crate) fn corrupt(&self, kind: CorruptKind) -> Error {
        kind.at(Place::Inode(self.ino())).into()
    }
}
