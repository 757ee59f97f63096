//! What one transaction has gathered.
//!
//! Invariants: the running transaction gathers, the committing one has been emptied by its
//! committer, so two of these, used in turns, are enough.

use super::handle::Freed;
use crate::cache::Buffer;
use crate::sync::{LockRank, Mutex};
use std::collections::BTreeSet;
use std::sync::Arc;
use uext4_ondisk::BlockNo;

/// Blocks, revokes and frees of one transaction.
#[derive(Debug)]
pub(super) struct Transaction {
    contents: Mutex<Contents>,
}

/// What the committer takes.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Blocks with changes; a block forgotten later is still listed.
    pub(super) buffers: Vec<Arc<Buffer>>,
    /// Freed metadata blocks: images of them up to this transaction are dead.
    pub(super) revoked: BTreeSet<BlockNo>,
    /// Blocks that can be used again once this transaction is durable.
    pub(super) freed: Vec<Freed>,
}

impl Contents {
    fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.revoked.is_empty() && self.freed.is_empty()
    }
}

impl Transaction {
    pub(super) fn new() -> Self {
        Self { contents: Mutex::new(LockRank::Transaction, Contents::default()) }
    }

    pub(super) fn add_buffer(&self, buffer: Arc<Buffer>) {
        self.contents.lock().buffers.push(buffer);
    }

    pub(super) fn revoke(&self, block: BlockNo) {
        self.contents.lock().revoked.insert(block);
    }

    pub(super) fn add_freed(&self, freed: Freed) {
        self.contents.lock().freed.push(freed);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.contents.lock().is_empty()
    }

    pub(super) fn take(&self) -> Contents {
        std::mem::take(&mut *self.contents.lock())
    }
}
