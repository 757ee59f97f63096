//! The record of the name that is added.

use super::in_block;
use crate::alloc::Space;
use crate::cache::Buffer;
use crate::dir::leaf::{self, Form};
use crate::error::Result;
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::dir_entry::{self, RecordForm, StoredName};
use uext4_ondisk::{CorruptKind, FileKind, Incompat, Ino};

/// The record to be added.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewEntry<'n> {
    pub(super) name: StoredName<'n>,
    ino: Ino,
    kind: Option<FileKind>,
    pub(super) has_filetype: bool,
    pub(super) has_csum: bool,
    pub(super) form: Form,
}

impl<'n> NewEntry<'n> {
    pub(super) fn of(space: &Space, name: StoredName<'n>, ino: Ino, kind: FileKind) -> Self {
        let incompat = space.layout().features.incompat;
        let has_filetype = incompat.contains(Incompat::FILETYPE);
        let kind = has_filetype.then_some(kind);
        let has_csum = space.layout().has_metadata_csum();
        // What the names hold is no matter of an insertion.
        let records =
            if name.hashes.is_some() { RecordForm::Hashed } else { RecordForm::Encrypted };
        let form = Form { has_tail: has_csum, records };
        Self { name, ino, kind, has_filetype, has_csum, form }
    }

    /// Into the first gap; false if there is none.
    pub(super) fn put(&self, block: &mut [u8]) -> Result<bool, CorruptKind> {
        dir_entry::insert(block, self.name, self.ino, self.kind, self.has_csum)
    }

    /// Into the gap of the record at `offset`; false if it is too small.
    pub(super) fn put_at(&self, block: &mut [u8], offset: u32) -> Result<bool, CorruptKind> {
        dir_entry::insert_at(block, offset, self.name, self.ino, self.kind, self.has_csum)
    }

    /// Into the first gap, or behind the records moved together; false if there is no room.
    pub(super) fn put_or_pack(&self, block: &mut [u8]) -> Result<bool, CorruptKind> {
        if self.put(block)? {
            return Ok(true);
        }
        if !leaf::has_room(block, self.name, self.form)? {
            return Ok(false);
        }
        let packed = leaf::pack(block, self.form)?;
        block.copy_from_slice(&packed);
        self.put(block)
    }

    /// Into a block of a directory that is read in order of hash, if it has room.
    pub(super) fn put_in_place(
        &self,
        handle: &mut Handle<'_>,
        block: &Arc<Buffer>,
    ) -> Result<bool> {
        let here = in_block(block);
        if !leaf::has_room(&block.read(), self.name, self.form).map_err(here)? {
            return Ok(false);
        }
        let mut bytes = handle.write(block)?;
        self.put_or_pack(&mut bytes).map_err(here)
    }
}
