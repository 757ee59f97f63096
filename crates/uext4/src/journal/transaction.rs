//! The contents of one transaction.
//!
//! Invariants: two of these suffice, because only the running transaction collects blocks, and the
//! committer has emptied the one before it.

use super::handle::Freed;
use crate::cache::Buffer;
use crate::sync::{LockRank, Mutex};
use std::collections::BTreeSet;
use std::sync::Arc;
use uext4_ondisk::BlockNo;

/// The blocks, revokes and frees that a transaction collects.
#[derive(Debug)]
pub(super) struct Transaction {
    contents: Mutex<Contents>,
}

/// What the committer takes when it closes the transaction.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Changed blocks. A block stays listed when it is forgotten later.
    pub(super) buffers: Vec<Arc<Buffer>>,
    /// Freed metadata blocks. No replay writes their images of this transaction or earlier ones.
    pub(super) revoked: BTreeSet<BlockNo>,
    /// Blocks that can be reused once this transaction is durable.
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
