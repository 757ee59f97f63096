//! Blocks of file data that have an image in the log.
//!
//! What: for each block whose data went through the journal, the latest transaction that did it,
//! for as long as the log reaches back to that one. Metadata is not listed: whoever frees it
//! revokes it always. Data need be revoked only where a replay could bring an old image back, and a
//! file of gigabytes has a few such blocks.
//! Invariants: a block is listed from before its transaction can close until the tail is durably
//! past that, or until it is revoked. That an image is at home is not enough: the log keeps it, and
//! would replay it over whatever stands there by then, until the tail has passed it. So the list is
//! never longer than the log.
//! Locking: one leaf lock, for look-ups only.

use crate::sync::{LockRank, Mutex};
use std::collections::BTreeMap;
use uext4_ondisk::{BlockNo, Tid};

/// See the module.
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
    /// Transaction `tid` has taken the data of a block.
    pub(super) fn note(&self, block: BlockNo, tid: Tid) {
        self.blocks.lock().insert(block, tid);
    }

    /// The block is revoked.
    pub(super) fn forget(&self, block: BlockNo) {
        self.blocks.lock().remove(&block);
    }

    /// The listed ones of `len` blocks from `start`, ascending.
    pub(super) fn within(&self, start: BlockNo, len: u32) -> Vec<BlockNo> {
        let range = start..start.plus(u64::from(len));
        self.blocks.lock().range(range).map(|(&block, _)| block).collect()
    }

    /// The log begins with transaction `tail`, durably.
    pub(super) fn tail_moved(&self, tail: Tid) {
        self.blocks.lock().retain(|_, tid| !tail.is_after(*tid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_listed_until_the_tail_is_past_their_latest_transaction() {
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
