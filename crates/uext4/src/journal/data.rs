//! File data blocks that have an image in the log.
//!
//! What: for each block whose data went through the journal, the latest transaction that logged it,
//! as long as the log reaches back to that transaction. Data needs a revoke only where a replay
//! could write an old image over it, and a file of gigabytes has few such blocks. Metadata is not
//! listed, because it is always revoked when it is freed.
//! Invariants: a block is listed before its transaction can close, until the tail is durably past
//! that transaction or the block is revoked. A checkpoint of the image does not end the listing:
//! the log still has the image, and a replay writes it over the block's new content until the tail
//! has passed. So the list is never longer than the log.
//! Locking: one leaf lock, for look-ups only.

use crate::sync::{LockRank, Mutex};
use std::collections::BTreeMap;
use uext4_ondisk::{BlockNo, Tid};

/// The list. See the module.
#[derive(Debug)]
pub(super) struct LoggedData {
    blocks: Mutex<BTreeMap<BlockNo, Tid>>,
}

impl Default for LoggedData {
    fn default() -> Self {
        Self { blocks: Mutex::new(LockRank::Leaf, BTreeMap::new()) }
    }
}

impl LoggedData {
    /// Lists a block whose data transaction `tid` logs.
    pub(super) fn note(&self, block: BlockNo, tid: Tid) {
        self.blocks.lock().insert(block, tid);
    }

    /// Removes a block that is revoked.
    pub(super) fn forget(&self, block: BlockNo) {
        self.blocks.lock().remove(&block);
    }

    /// The listed blocks of the `len` from `start`, ascending.
    pub(super) fn within(&self, start: BlockNo, len: u32) -> Vec<BlockNo> {
        let range = start..start.plus(u64::from(len));
        self.blocks.lock().range(range).map(|(&block, _)| block).collect()
    }

    /// Removes the blocks of transactions before `tail`, where the log durably begins now.
    pub(super) fn tail_moved(&self, tail: Tid) {
        self.blocks.lock().retain(|_, tid| !tail.is_after(*tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_listed_until_the_tail_is_past_its_latest_transaction() {
        let data = LoggedData::default();
        for (block, tid) in [(10, 5), (11, 5), (10, 7), (40, 6)] {
            data.note(BlockNo(block), Tid(tid));
        }
        assert_eq!(data.within(BlockNo(10), 30), [BlockNo(10), BlockNo(11)]);
        data.tail_moved(Tid(5));
        assert_eq!(data.within(BlockNo(0), 100).len(), 3);
        data.tail_moved(Tid(7));
        assert_eq!(data.within(BlockNo(0), 100), [BlockNo(10)]);
        data.forget(BlockNo(10));
        assert!(data.within(BlockNo(0), 100).is_empty());
    }
}
