//! A handle: the right to change metadata within one transaction.
//!
//! Invariants: only `&mut Handle` gives a writable block, so an unjournaled change does not
//! compile. A handle pays one credit for each block that it brings into the transaction; a block
//! that the transaction already has is free. All reads and checks of an operation come before its
//! first change. A failure after that aborts the journal, because the transaction holds half an
//! operation.
//! Locking: an open handle has rank `Handle`. While it is open, its thread takes no file, directory
//! or writeback lock, and waits for no other handle.
//! Kernel counterpart: `fs/jbd2/transaction.c`.

use super::Journal;
use crate::cache::{BlockKind, Buffer, BufferWrite};
use crate::error::{Error, ErrorKind, Result};
use crate::injected_faults::Fault;
use crate::sync::RankGuard;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, Tid};

/// Blocks that an operation frees. They can be reused when the freeing transaction is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Freed {
    /// First block.
    pub start: BlockNo,
    /// Number of blocks.
    pub len: u32,
}

/// An open handle. Dropping it ends it.
#[derive(Debug)]
pub struct Handle<'j> {
    journal: &'j Journal,
    tid: Tid,
    credits: u32,
    pub(super) changed: bool,
    _rank: RankGuard,
}

impl<'j> Handle<'j> {
    pub(super) fn joined(journal: &'j Journal, tid: Tid, credits: u32, rank: RankGuard) -> Self {
        Self { journal, tid, credits, changed: false, _rank: rank }
    }

    /// The transaction that the changes of this handle belong to.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Takes more credits, so that `credits` are left. False if the transaction has no room for
    /// them; the caller then ends this handle and starts another.
    pub fn extend_to(&mut self, credits: u32) -> bool {
        let more = credits.saturating_sub(self.credits);
        let fits = more == 0 || self.journal.extend(more);
        if fits {
            self.credits += more;
        }
        fits
    }

    /// Write access to the block's bytes. Its checksum is computed at commit.
    ///
    /// # Errors
    /// The journal is aborted, or the handle has too few credits (a bug in uext4).
    pub fn write<'b>(&mut self, buffer: &'b Arc<Buffer>) -> Result<BufferWrite<'b>> {
        self.write_slot(buffer, 0)
    }

    /// Write access to one slot of a shared block: to inode or group descriptor number `slot` of
    /// the block.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn write_slot<'b>(
        &mut self,
        buffer: &'b Arc<Buffer>,
        slot: u32,
    ) -> Result<BufferWrite<'b>> {
        let mut guard = buffer.write();
        self.bring_in(buffer, &mut guard)?;
        guard.unseal(slot);
        Ok(guard)
    }

    /// Adds the block to the transaction. True if the transaction did not have it.
    fn bring_in(&mut self, buffer: &Arc<Buffer>, guard: &mut BufferWrite<'_>) -> Result<bool> {
        let is_new = guard.transaction != Some(self.tid);
        if is_new {
            let alone = guard.transaction.is_none();
            self.journal.check(alone, "a block is in one transaction at a time")?;
            if !Fault::FreeRide.is_injected() {
                self.take_credit()?;
            }
            guard.transaction = Some(self.tid);
            self.journal.transaction(self.tid).lock().buffers.push(Arc::clone(buffer));
        }
        self.changed = true;
        Ok(is_new)
    }

    /// Replaces the content of a block of file data, which reaches its final location through the
    /// log from now on. No bytes are copied.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn replace_data(&mut self, buffer: &Arc<Buffer>, image: Arc<[u8]>) -> Result<()> {
        let mut guard = buffer.write();
        if self.bring_in(buffer, &mut guard)? {
            self.journal.data.note(buffer.block(), self.tid);
        }
        guard.replace(image);
        buffer.set_ready();
        Ok(())
    }

    /// A zeroed buffer for a metadata block that this operation has allocated.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn create(&mut self, block: BlockNo, kind: BlockKind) -> Result<Arc<Buffer>> {
        let buffer = self.journal.cache().create(block, kind);
        self.write(&buffer)?;
        Ok(buffer)
    }

    /// Revokes a freed block of metadata or journaled data: no image of it may be replayed or
    /// checkpointed any more. Costs one credit, which bounds the revoke records of a transaction.
    /// The caller frees the block itself through the allocator.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn forget(&mut self, block: BlockNo) -> Result<()> {
        self.take_credit()?;
        self.changed = true;
        if let Some(buffer) = self.journal.cache().remove(block) {
            buffer.write().transaction = None;
        }
        self.journal.data.forget(block);
        self.journal.transaction(self.tid).lock().revoked.insert(block);
        Ok(())
    }

    /// Records freed blocks. The allocator gets them back when the transaction is durable.
    pub fn freed(&mut self, freed: Freed) {
        self.changed = true;
        self.journal.transaction(self.tid).lock().freed.push(freed);
    }

    fn take_credit(&mut self) -> Result<()> {
        self.journal.check_not_aborted()?;
        if self.credits == 0 && !self.extend_to(1) {
            return Err(self.journal.broken("a handle has credits for its blocks"));
        }
        self.credits -= 1;
        Ok(())
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.changed && std::thread::panicking() {
            // The transaction holds half an operation, which must not become durable.
            self.journal.abort(Error::new(ErrorKind::Internal, "an operation panicked"));
        }
        self.journal.stop(self.credits);
    }
}
