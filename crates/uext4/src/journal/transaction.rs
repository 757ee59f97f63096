//! The contents of one transaction.
//!
//! Invariants: two of these suffice, because only the running transaction collects blocks, and the
//! committer has emptied the one before it.

use super::handle::Freed;
use crate::cache::Buffer;
use std::collections::BTreeSet;
use std::sync::Arc;
use uext4_ondisk::BlockNo;

/// The blocks, revokes and frees that a transaction collects, and that the committer takes when it
/// closes the transaction.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// Changed blocks. A block stays listed when it is forgotten later.
    pub(super) buffers: Vec<Arc<Buffer>>,
    /// Freed metadata blocks. No replay writes their images of this transaction or earlier ones.
    pub(super) revoked: BTreeSet<BlockNo>,
    /// Blocks that can be reused once this transaction is durable.
    pub(super) freed: Vec<Freed>,
}

impl Transaction {
    pub(super) fn is_empty(&self) -> bool {
        self.buffers.is_empty() && self.revoked.is_empty() && self.freed.is_empty()
    }
}
