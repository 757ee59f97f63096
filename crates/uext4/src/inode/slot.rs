//! Inodes in the inode table: read, made, and written when their attributes change.
//!
//! On disk: a slot of a block of the group's inode table.
//! Invariants: attributes are written into the table block in the handle that changes them.

use super::{Attributes, ExtentRoot, Inode, InodeContext, has_tree_form, values};
use crate::alloc::Space;
use crate::cache::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::Handle;
use crate::sync::state::Ordering;
use std::sync::Arc;
use uext4_ondisk::extent::write_header;
use uext4_ondisk::inode::verify_inode;
use uext4_ondisk::{
    BlockNo, CorruptKind, FileKind, GroupNo, Incompat, Ino, InodeFlags, Place, RawInode,
};

/// The place of an inode in its table.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotPlace {
    block: BlockNo,
    slot: u32,
    first: Ino,
}

impl SlotPlace {
    fn of(space: &Space, ino: Ino) -> Result<Self> {
        let layout = space.layout();
        let (group, index) = layout
            .group_of_ino(ino)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("inode {ino}")))?;
        let per_block = layout.inodes_per_block();
        let block = space.inode_table(group).plus(u64::from(index / per_block));
        let slot = index % per_block;
        Ok(Self { block, slot, first: Ino(ino.get() - slot) })
    }

    fn read(self, space: &Space) -> Result<Arc<Buffer>> {
        space.read_table_block(self.block, self.first)
    }
}

/// The block of the inode table that an inode lies in.
///
/// # Errors
/// `NotFound` for a number that does not exist; `Corrupt`; a device failure.
pub(crate) fn table_block_of(context: &InodeContext, ino: Ino) -> Result<Arc<Buffer>> {
    let place = SlotPlace::of(&context.space, ino)?;
    place.read(&context.space)
}

/// Writes a slot of the inode table as `compose` makes it from what it holds. The inode is not in
/// memory, and the caller holds its table block.
///
/// # Errors
/// `NotFound` for a number that does not exist; those of [`Handle::write_slot`].
pub(crate) fn put_slot(
    context: &InodeContext,
    handle: &mut Handle<'_>,
    ino: Ino,
    compose: impl FnOnce(&mut [u8]),
) -> Result<()> {
    let place = SlotPlace::of(&context.space, ino)?;
    let buffer = place.read(&context.space)?;
    let size = context.space.layout().inode_size as usize;
    let at = place.slot as usize * size;
    compose(&mut handle.write_slot(&buffer, place.slot)?[at..at + size]);
    Ok(())
}

impl Inode {
    /// Reads an inode that is in use.
    ///
    /// # Errors
    /// `NotFound` for an inode that is free; `Corrupt`; a device failure.
    pub(crate) fn read(context: &Arc<InodeContext>, ino: Ino) -> Result<Self> {
        let space = &context.space;
        let place = SlotPlace::of(space, ino)?;
        let layout = space.layout();
        let buffer = place.read(&context.space)?;
        let size = layout.inode_size as usize;
        let guard = buffer.read();
        let bytes = &guard[place.slot as usize * size..(place.slot as usize + 1) * size];
        let at = |kind: CorruptKind| kind.at(Place::Inode(ino));
        let raw = RawInode::read(bytes).map_err(at)?;
        let seed = layout.checksums.inode_seed(ino, raw.i_generation.get());
        if guard.is_sealed(place.slot) {
            verify_inode(bytes, seed).map_err(at)?;
        }
        let attributes = Attributes::read(layout, bytes).map_err(at)?;
        let Some(kind) = raw.kind() else {
            if attributes.mode == 0 {
                let context = format!("inode {ino}");
                return Err(Error::new(ErrorKind::NotFound, context));
            }
            let why = "mode names no file type";
            return Err(CorruptKind::Rule { what: "inode", why }.at(Place::Inode(ino)).into());
        };
        attributes.check_inline(layout, kind).map_err(at)?;
        values::check_kind(kind, &attributes).map_err(at)?;
        let data_group = layout.group_of_ino(ino).map_or(GroupNo(0), |(group, _)| group);
        let inode = Self::assemble(context, ino, data_group, kind, seed, place, attributes, false);
        drop(guard);
        if inode.is_charged
            && let Some(quota) = space.quota()
        {
            // A damaged quota file is reported by what changes the usage.
            let _ = quota.load(inode.usage().0);
        }
        // The inode may have left memory with changes in a transaction that is not durable yet.
        let running = space.journal().running();
        inode.changed_in.set(running);
        inode.data_changed_in.set(running);
        Ok(inode)
    }

    /// A new inode, whose blocks would best be in `data_group`. Its first [`Inode::update`] writes
    /// its slot.
    pub(crate) fn create(
        context: &Arc<InodeContext>,
        ino: Ino,
        data_group: GroupNo,
        kind: FileKind,
        mut attributes: Attributes,
    ) -> Result<Self> {
        let space = &context.space;
        let place = SlotPlace::of(space, ino)?;
        let seed = space.layout().checksums.inode_seed(ino, attributes.generation);
        let is_slow_symlink =
            kind == FileKind::Symlink && attributes.size >= Self::FAST_SYMLINK_MAX;
        let has_blocks = matches!(kind, FileKind::Regular | FileKind::Directory) || is_slow_symlink;
        let has_tree = space.layout().features.incompat.contains(Incompat::EXTENT);
        if has_blocks && has_tree && !attributes.is_inline() {
            write_header(&mut attributes.block_map, 0, 0);
            attributes.flags |= InodeFlags::EXTENTS;
        }
        Ok(Self::assemble(context, ino, data_group, kind, seed, place, attributes, true))
    }

    /// The block of the inode table that the inode is in. A caller takes it before it starts a
    /// handle and holds it, so that [`Inode::update`] reads nothing inside the handle.
    ///
    /// # Errors
    /// A device failure.
    pub fn table_block(&self) -> Result<Arc<Buffer>> {
        self.place.read(self.space())
    }

    /// Changes attributes and writes the inode into its table block, which the caller holds. Costs
    /// one credit.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn update<T>(
        &self,
        handle: &mut Handle<'_>,
        change: impl FnOnce(&mut Attributes) -> T,
    ) -> Result<T> {
        let buffer = self.table_block()?;
        self.update_in(handle, &buffer, change)
    }

    /// [`Inode::update`] for a caller that has [`Inode::table_block`] at hand.
    pub(crate) fn update_in<T>(
        &self,
        handle: &mut Handle<'_>,
        buffer: &Arc<Buffer>,
        change: impl FnOnce(&mut Attributes) -> T,
    ) -> Result<T> {
        let layout = self.space().layout();
        let size = layout.inode_size as usize;
        let mut attributes = self.attributes.lock();
        if self.fields_held.load(Ordering::SeqCst) == 0 {
            attributes.lengthen_fields(layout);
        }
        let before = self.is_charged.then(|| attributes.usage());
        let result = change(&mut attributes);
        self.tree_form.store(has_tree_form(attributes.flags, self.space()), Ordering::Release);
        let mut bytes = handle.write_slot(buffer, self.place.slot)?;
        let at = self.place.slot as usize * size;
        let fresh = self.fresh.swap(false, Ordering::Relaxed);
        let after = before.map(|_| attributes.usage());
        attributes
            .write(layout, &mut bytes[at..at + size], fresh)
            .map_err(|kind| kind.at(Place::Inode(self.ino)))?;
        attributes.times_dirty = false;
        self.changed_in.set(handle.tid());
        drop(bytes);
        if let (Some(before), Some(after)) = (before, after) {
            self.charge(handle, before, after, fresh)?;
        }
        Ok(result)
    }

    /// Changes the root of the extent tree and writes the inode. The caller holds the tree.
    /// `blocks` is what the file gets, or loses. Data in the inode gives way to the root.
    pub(crate) fn update_root(
        &self,
        handle: &mut Handle<'_>,
        root: &ExtentRoot,
        blocks: i64,
    ) -> Result<()> {
        self.data_changed_in.set(handle.tid());
        self.update(handle, |attributes| {
            if attributes.is_inline() {
                attributes.leave_inline(self.space().layout());
            }
            attributes.block_map = root.bytes;
            attributes.add_blocks(self.space().layout(), blocks);
        })
    }
}
