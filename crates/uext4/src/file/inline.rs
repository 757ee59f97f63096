//! Files whose data is in the inode (inline_data).
//!
//! What: such a file has no page and no block. Reads copy from the inode's attributes, and each
//! write is a handle that writes the inode. A new file goes there with its first write, if that
//! fits; [`InlineData::leave`] moves the data to a block when it no longer fits, or when an
//! operation needs blocks.
//! Invariants: the data has one place at any moment: the inode, or blocks and their pages. It moves
//! in one handle, after the block has been written (or with it, if the data goes through the
//! journal). What shortens or clears a file in the inode needs no block.
//! Locking: the file's lock, shared to read and exclusive to write; the writeback lock besides to
//! move the data.
//! Kernel counterpart: `fs/ext4/inline.c`.

use super::FileContext;
use super::journaled::{JournaledData, show};
use super::placement::HoleNeed;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Edit, NodeAllocations, NodeSource, edit_credits, find};
use crate::inode::{Attributes, InlineState, Inode, WritebackState};
use crate::journal::Handle;
use std::sync::Arc;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::{CorruptKind, FileBlock};

/// Reads and writes data in inodes, and moves it to blocks.
#[derive(Debug)]
pub(super) struct InlineData {
    context: Arc<FileContext>,
    journaled: Arc<JournaledData>,
}

impl InlineData {
    pub(super) fn new(context: &Arc<FileContext>, journaled: &Arc<JournaledData>) -> Self {
        Self { context: Arc::clone(context), journaled: Arc::clone(journaled) }
    }

    /// Writes `buf` at byte `offset`, if the file has its data in the inode, or may get it there,
    /// and it fits. False if it does not; nothing has changed then. The caller holds the file
    /// exclusively.
    pub(super) fn write(&self, inode: &Inode, offset: u64, buf: &[u8]) -> Result<bool> {
        let mut content = match inode.inline_state() {
            InlineState::Yes => inode.inline_bytes()?,
            InlineState::Undecided if inode.size() == 0 => Vec::new(),
            InlineState::Undecided | InlineState::No => return Ok(false),
        };
        let Some(end) = usize::try_from(offset).ok().and_then(|at| at.checked_add(buf.len()))
        else {
            return Ok(false);
        };
        let _fields = inode.hold_fields();
        if !fits(inode, end)? {
            return Ok(false);
        }
        content.resize(content.len().max(end), 0);
        content[end - buf.len()..end].copy_from_slice(buf);
        self.put(inode, &content)?;
        inode.set_inline_state(InlineState::Yes);
        Ok(true)
    }

    /// Sets the size of a file with its data in the inode, if that fits. False if it does not;
    /// nothing has changed then. The caller holds the file exclusively.
    pub(super) fn set_size(&self, inode: &Inode, size: u64) -> Result<bool> {
        let mut content = inode.inline_bytes()?;
        let _fields = inode.hold_fields();
        let len = match usize::try_from(size) {
            Ok(len) if len <= content.len() || fits(inode, len)? => len,
            _ => return Ok(false),
        };
        content.resize(len, 0);
        self.put(inode, &content)?;
        Ok(true)
    }

    /// Clears bytes `offset .. end`, as far as the file has them. The caller holds the file
    /// exclusively.
    pub(super) fn punch(&self, inode: &Inode, offset: u64, end: u64) -> Result<()> {
        let mut content = inode.inline_bytes()?;
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
        let range = within(offset)..within(end);
        content[range].fill(0);
        let _fields = inode.hold_fields();
        self.put(inode, &content)
    }

    fn put(&self, inode: &Inode, content: &[u8]) -> Result<()> {
        let _pin = inode.table_block()?;
        self.context.journal().run(1, |handle| set_content(handle, inode, content))
    }

    /// Moves the data to a block. Afterwards the file is one like any other, whose content and size
    /// have not changed. The caller holds the file exclusively, and the writeback lock.
    ///
    /// # Errors
    /// `NoSpace`, and nothing has changed; `Corrupt`; a device failure.
    pub(super) fn leave(&self, inode: &Inode, _state: &mut WritebackState) -> Result<()> {
        if inode.inline_state() != InlineState::Yes {
            inode.set_inline_state(InlineState::No);
            return Ok(());
        }
        let content = inode.inline_bytes()?;
        if content.is_empty() {
            self.leave_empty(inode)?;
        } else {
            self.move_to_block(inode, &content)?;
        }
        inode.set_inline_state(InlineState::No);
        Ok(())
    }

    fn leave_empty(&self, inode: &Inode) -> Result<()> {
        let _pin = inode.table_block()?;
        self.context.journal().run(1, |handle| {
            let root = inode.tree().write();
            inode.update_root(handle, &root, 0)
        })
    }

    fn move_to_block(&self, inode: &Inode, content: &[u8]) -> Result<()> {
        let at = FileBlock(0);
        let spot = find(inode, at)?;
        let origin = inode.goal();
        let need = HoleNeed { want: 1, reserved: false, placed: None, origin };
        let hold = inode.hold_blocks(1)?;
        let mut allocation = self.context.placement.allocate_hole(inode, &spot, &need)?;
        let _lent = inode.lend(hold.into_iter().collect());
        let block = allocation.start();
        let page = self.context.new_page(at, 0, content);
        let patch = match self.context.is_journaled(inode) {
            true => Some(self.journaled.new_block(at, block, page)?),
            false => {
                let place = block.get() * self.context.block_size();
                self.context
                    .store(inode, place, &page)
                    .map_err(|e| Error::io(format!("writing block {block}"), e))?;
                None
            }
        };
        let mut nodes = NodeAllocations::for_edits(inode, &[at], NodeSource::Free)?;
        let credits = 2 + self.context.space.credits().blocks + edit_credits(inode);
        self.context.journal().run(credits, |handle| {
            let start = self.context.space.mark_used(handle, &mut allocation, 1)?;
            inode.preallocation.note_used(handle, start, 1);
            patch.iter().try_for_each(|patch| patch.apply(handle))?;
            let new = Extent { first: at, len: 1, start, unwritten: false };
            Edit::insert(new).apply_with(handle, inode, &mut nodes, 1)?;
            inode.note_data_change(handle);
            Ok(())
        })?;
        inode.note_written(self.context.journal().flush_gate().epoch());
        show(inode, patch);
        Ok(())
    }
}

/// Copies what `buf` wants from byte `offset` of a file with its data in the inode; the file has
/// all of it. The caller holds the file.
pub(super) fn read(inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
    let content = inode.inline_bytes()?;
    let from = usize::try_from(offset).unwrap_or(usize::MAX);
    let bytes = content.get(from..).and_then(|rest| rest.get(..buf.len()));
    let bytes = bytes.ok_or_else(|| {
        inode.corrupt(CorruptKind::Rule { what: "inline data", why: "ends before the file" })
    })?;
    buf.copy_from_slice(bytes);
    Ok(())
}

/// Shortens a file with its data in the inode, in the handle of a truncate. The caller sets size
/// and times.
pub(super) fn shorten(inode: &Inode, attributes: &mut Attributes, size: u64) -> Result<()> {
    let content = attributes.inline_content().map_err(|kind| inode.corrupt(kind))?;
    let len = usize::try_from(size).unwrap_or(usize::MAX).min(content.len());
    put_into(inode, attributes, &content[..len])
}

/// Whether `len` bytes fit the inode. Stays so while its fields are held.
fn fits(inode: &Inode, len: usize) -> Result<bool> {
    let room = inode.attributes().inline_room().map_err(|kind| inode.corrupt(kind))?;
    Ok(room.is_some_and(|room| len <= room))
}

fn set_content(handle: &mut Handle<'_>, inode: &Inode, content: &[u8]) -> Result<()> {
    inode.note_data_change(handle);
    inode.update(handle, |attributes| {
        put_into(inode, attributes, content)?;
        attributes.set_size(content.len() as u64);
        attributes.touch_content();
        Ok(())
    })?
}

fn put_into(inode: &Inode, attributes: &mut Attributes, content: &[u8]) -> Result<()> {
    match attributes.set_inline_content(content) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let context = format!("data of inode {} no longer fits it", inode.ino());
            Err(Error::new(ErrorKind::Internal, context))
        }
        Err(kind) => Err(inode.corrupt(kind)),
    }
}
