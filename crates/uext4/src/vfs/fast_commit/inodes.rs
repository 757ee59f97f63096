//! The inodes of fast commits: numbers are taken, slots written, files that end lose their blocks.

use super::outcome::{InodeOutcome, Outcome};
use super::{Repetition, corrupt, not_repeatable};
use crate::error::Result;
use crate::inode::{put_slot, table_block_of};
use uext4_ondisk::extent::{EXTENT_MAGIC, RawExtentHeader, write_header};
use uext4_ondisk::xattr::area_entries;
use uext4_ondisk::{FileBlock, FileKind, Ino, InodeFlags, RawInode};

/// Places of fields in an inode: the two parts of a record that are taken as they are.
const I_BLOCK: usize = std::mem::offset_of!(RawInode, i_block);
const I_GENERATION: usize = std::mem::offset_of!(RawInode, i_generation);

impl Repetition<'_> {
    /// Repeats the records of inodes. Files that end, or end so that another one gets their number,
    /// lose their blocks.
    pub(super) fn repeat_inodes(&mut self, outcome: &Outcome<'_>) -> Result<()> {
        let named = outcome.named();
        for (&ino, inode) in &outcome.inodes {
            if inode.lives() && inode.is_new() && !named.contains(&ino) {
                return Err(corrupt(ino, "makes an inode that has no name"));
            }
            // The kernel writes no record of a directory but to make and to remove it.
            let was_directory =
                inode.before.is_some_and(|before| before.kind == FileKind::Directory);
            if was_directory && inode.lives() && !inode.is_new() {
                return Err(corrupt(ino, "changes a directory that stays"));
            }
            if let Some(before) = inode.before
                && (!inode.lives() || inode.is_new())
            {
                self.take_blocks(ino)?;
                if inode.lives() {
                    self.free_number(ino, before.kind)?;
                }
            }
            if let (true, Some(bytes)) = (inode.lives(), inode.bytes) {
                self.put_inode(ino, inode, bytes)?;
            }
        }
        Ok(())
    }

    /// Takes all blocks of a file, and those of its extent tree.
    fn take_blocks(&mut self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        if !inode.has_blocks() {
            return Ok(());
        }
        if !inode.has_extent_tree() {
            return Err(not_repeatable(ino, "which has no extent tree"));
        }
        self.unmap(&inode, FileBlock(0), FileBlock::END)
    }

    /// Frees the number of a file that has no blocks any more, for another file.
    fn free_number(&self, ino: Ino, kind: FileKind) -> Result<()> {
        let inode = self.inode(ino)?;
        let (links, dtime, file_acl, has_values) = {
            let attributes = inode.attributes();
            let mut entries = area_entries(&attributes.xattr_area);
            let has_values =
                entries.any(|entry| entry.map_or(true, |entry| entry.value_inode != Ino(0)));
            (attributes.links, attributes.dtime, attributes.file_acl, has_values)
        };
        // The list of orphans, which goes through its slot, would name the file after it.
        if links == 0 || dtime != 0 {
            return Err(not_repeatable(ino, "whose number an orphan had"));
        }
        if file_acl != 0 {
            return Err(not_repeatable(ino, "a deleted file with attributes in a block"));
        }
        if has_values {
            return Err(not_repeatable(ino, "a deleted file with attributes in other inodes"));
        }
        let _pins = (inode.table_block()?, self.space.pin_inode(ino)?);
        let is_directory = kind == FileKind::Directory;
        self.space.journal().run(self.space.credits().inode_number + 1, |handle| {
            inode.update(handle, |attributes| attributes.links = 0)?;
            self.space.free_inode(handle, ino, is_directory)
        })?;
        drop(inode);
        // It leaves memory, and nothing of it is left to delete.
        drop(self.vfs.files.context.table.take_unlinked());
        Ok(())
    }

    /// Takes the number, if it is free, and writes the slot.
    fn put_inode(&mut self, ino: Ino, inode: &InodeOutcome<'_>, bytes: &[u8]) -> Result<()> {
        let table = &self.vfs.files.context.table;
        let record = RawInode::read(bytes).map_err(|_| corrupt(ino, "has a short inode"))?;
        let kind = record.kind().ok_or_else(|| corrupt(ino, "has an inode of no file type"))?;
        if inode.before.is_some_and(|before| !inode.is_new() && before.kind != kind) {
            return Err(corrupt(ino, "changes the type of a file"));
        }
        let flags = record.flags();
        let is_mapped = matches!(kind, FileKind::Regular | FileKind::Directory);
        if is_mapped && !flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
            return Err(not_repeatable(ino, "which has no extent tree"));
        }
        if flags.contains(InodeFlags::INLINE_DATA) && kind == FileKind::Directory {
            return Err(not_repeatable(ino, "a directory in its inode"));
        }
        let is_directory = kind == FileKind::Directory;
        // A hostile log may name an inode at the end of every table that was never written.
        let zeroed = self.space.unwritten_blocks_before(ino)?;
        self.table_room = self.table_room.checked_sub(zeroed).ok_or_else(|| {
            not_repeatable(ino, "behind more of the inode tables than the log has room for")
        })?;
        let mut number = self.space.allocate_inode_number(ino)?;
        let is_new = number.is_some();
        let links = if is_directory && !is_new { 0 } else { inode.links };
        let _pin = table_block_of(table.context(), ino)?;
        let credits = number.as_ref().map_or(0, |number| number.credits()) + 1;
        self.space.journal().run(credits, |handle| {
            if let Some(number) = &mut number {
                self.space.mark_inode_used(handle, number, is_directory)?;
            }
            put_slot(table.context(), handle, ino, |slot| {
                compose(slot, bytes, &record, is_new, is_directory, links);
            })
        })
    }
}

/// Makes a slot what a record says. The mapping, the blocks that are counted and the place among
/// the orphans stay: they follow from other records. `links` 0: as they are.
fn compose(
    slot: &mut [u8],
    bytes: &[u8],
    record: &RawInode,
    is_new: bool,
    is_directory: bool,
    links: u32,
) {
    if is_new {
        slot.fill(0);
    }
    let Ok(before) = RawInode::read(slot) else { return };
    let len = bytes.len().min(slot.len());
    slot[..I_BLOCK].copy_from_slice(&bytes[..I_BLOCK]);
    slot[I_GENERATION..len].copy_from_slice(&bytes[I_GENERATION..len]);
    let Ok(mut raw) = RawInode::read(slot) else { return };
    raw.i_dtime = before.i_dtime;
    raw.i_blocks_lo = before.i_blocks_lo;
    raw.l_i_blocks_high = before.l_i_blocks_high;
    raw.i_links_count = match u16::try_from(links) {
        Ok(0) => before.i_links_count,
        links => links.unwrap_or(u16::MAX).into(),
    };
    let mut flags = record.flags();
    if is_directory {
        // It is as long as its blocks, which it has already or gets with its names.
        raw.set_size(before.size());
        flags.set(InodeFlags::INDEX, before.flags().contains(InodeFlags::INDEX));
    }
    raw.set_flags(flags);
    let header = RawExtentHeader::ref_from_prefix(&before.i_block);
    let has_tree = header.is_some_and(|header| header.eh_magic.get() == EXTENT_MAGIC);
    if !flags.contains(InodeFlags::EXTENTS) {
        raw.i_block = record.i_block;
    } else if !before.flags().contains(InodeFlags::EXTENTS) || !has_tree {
        raw.i_block = [0; 60];
        write_header(&mut raw.i_block, 0, 0);
    }
    // The slot is as long as it was.
    let _ = raw.write(slot);
}
