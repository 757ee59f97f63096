//! A handle: the right to change metadata within one transaction.
//!
//! Invariants: only `&mut Handle` gives a writable block, so an unjournaled change does not
//! compile. The first time a transaction sees a block costs one credit of the handle that brings
//! it; a block that it has already costs nothing. All reads and checks of an operation come before
//! its first change: a handle that fails after it aborts the journal, for the transaction now holds
//! half an operation.
//! Locking: an open handle has rank `Handle`. While one is open its thread takes no file,
//! directory or sweep lock, and waits for no other handle.
//! Kernel counterpart: `fs/jbd2/transaction.c`.

use super::Journal;
use crate::cache::{BlockKind, Buffer, BufferWrite};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::RankGuard;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, Tid};

/// Blocks that an operation frees; they can be used again when the freeing is durable.
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
    changed: bool,
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

    /// Blocks that this handle may still bring into the transaction.
    #[must_use]
    pub fn credits_left(&self) -> u32 {
        self.credits
    }

    /// Whether the handle has changed anything.
    #[must_use]
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Takes more credits, so that `credits` are left; false if the transaction has not so many.
    /// The caller then ends this handle and starts another.
    pub fn extend_to(&mut self, credits: u32) -> bool {
        let more = credits.saturating_sub(self.credits);
        let fits = more == 0 || self.journal.extend(more);
        if fits {
            self.credits += more;
        }
        fits
    }

    /// The block's bytes for changing; its checksum is computed at commit.
    ///
    /// # Errors
    /// The journal is aborted, or the operation asked for too few credits (a fault of uext4).
    pub fn write<'b>(&mut self, buffer: &'b Arc<Buffer>) -> Result<BufferWrite<'b>> {
        self.write_slot(buffer, 0)
    }

    /// As [`Handle::write`] for one slot of a block that many share: the inode or the group
    /// descriptor number `slot` of the block.
    ///
    /// # Errors
    /// As [`Handle::write`].
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

    /// True if the transaction did not have the block.
    fn bring_in(&mut self, buffer: &Arc<Buffer>, guard: &mut BufferWrite<'_>) -> Result<bool> {
        let is_new = guard.transaction() != Some(self.tid);
        if is_new {
            debug_assert!(guard.transaction().is_none(), "a closed transaction was snapshotted");
            self.take_credit(buffer.block())?;
            guard.set_transaction(Some(self.tid));
            self.journal.transaction(self.tid).add_buffer(Arc::clone(buffer));
        }
        self.changed = true;
        Ok(is_new)
    }

    /// Exchanges the content of a block of file data, which from now on goes home through the log.
    /// No bytes are copied.
    ///
    /// # Errors
    /// As [`Handle::write`].
    pub fn replace_data(&mut self, buffer: &Arc<Buffer>, image: Arc<[u8]>) -> Result<()> {
        let mut guard = buffer.write();
        if self.bring_in(buffer, &mut guard)? {
            self.journal.data.note(buffer.block(), self.tid);
        }
        guard.replace(image);
        buffer.set_ready();
        Ok(())
    }

    /// A zeroed block that this operation has allocated as metadata.
    ///
    /// # Errors
    /// As [`Handle::write`].
    pub fn create(&mut self, block: BlockNo, kind: BlockKind) -> Result<Arc<Buffer>> {
        let buffer = self.journal.cache().create(block, kind);
        self.write(&buffer)?;
        Ok(buffer)
    }

    /// A block of metadata or journaled data is freed: no image of it may be replayed or written
    /// home any more. Costs one credit, which bounds the revoke records of a transaction. The
    /// caller frees the block itself through the allocator.
    ///
    /// # Errors
    /// As [`Handle::write`].
    pub fn forget(&mut self, block: BlockNo) -> Result<()> {
        self.take_credit(block)?;
        self.changed = true;
        if let Some(buffer) = self.journal.cache().remove(block) {
            buffer.write().set_transaction(None);
        }
        self.journal.data.forget(block);
        self.journal.transaction(self.tid).revoke(block);
        Ok(())
    }

    /// Blocks freed by this handle; the allocator gets them back when the transaction is durable.
    pub fn freed(&mut self, freed: Freed) {
        self.changed = true;
        self.journal.transaction(self.tid).add_freed(freed);
    }

    fn take_credit(&mut self, block: BlockNo) -> Result<()> {
        if self.journal.is_aborted() {
            return Err(self.journal.aborted_error());
        }
        if self.credits == 0 && !self.extend_to(1) {
            debug_assert!(false, "handle out of credits at block {block}");
            let context = format!("handle out of credits at block {block}");
            return Err(Error::new(ErrorKind::Internal, context));
        }
        self.credits -= 1;
        Ok(())
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.changed && std::thread::panicking() {
            // Half an operation must not become durable.
            self.journal.abort(Error::new(ErrorKind::Internal, "an operation panicked"));
        }
        self.journal.stop(self.credits);
    }
}
