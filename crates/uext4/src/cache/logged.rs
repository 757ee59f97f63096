//! Images that are durable in the log and not yet at home.
//!
//! What: for each block, the image of the latest durable transaction that changed it, and the
//! oldest transaction whose image of it is not at home: the log's tail cannot pass that one.
//! Invariants: images enter only when their transaction is durable, so the checkpointer may
//! write any of them. A block that is freed leaves when the freeing transaction is durable and
//! *before* the block can be used again; if a checkpoint of it is under way, the caller waits.
//! Locking: one leaf lock, never held over I/O.

use crate::sync::{Condvar, LockRank, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4_ondisk::{BlockNo, Tid};

#[derive(Debug)]
pub(crate) struct LoggedImages {
    inner: Mutex<Inner>,
    batch_done: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    images: BTreeMap<BlockNo, Logged>,
    /// A batch is being written home.
    writing: bool,
}

#[derive(Debug)]
struct Logged {
    image: Arc<[u8]>,
    oldest: Tid,
    latest: Tid,
}

/// One image that a checkpoint writes home.
#[derive(Debug)]
pub(crate) struct Homebound {
    pub(crate) block: BlockNo,
    pub(crate) image: Arc<[u8]>,
    latest: Tid,
}

impl Default for LoggedImages {
    fn default() -> Self {
        Self { inner: Mutex::new(LockRank::Leaf, Inner::default()), batch_done: Condvar::new() }
    }
}

impl LoggedImages {
    /// Images waiting to go home.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().images.len()
    }

    pub(crate) fn get(&self, block: BlockNo) -> Option<Arc<[u8]>> {
        self.inner.lock().images.get(&block).map(|logged| Arc::clone(&logged.image))
    }

    /// Takes the images of `tid`, which is durable.
    pub(crate) fn add(&self, tid: Tid, images: impl Iterator<Item = (BlockNo, Arc<[u8]>)>) {
        let mut inner = self.inner.lock();
        for (block, image) in images {
            inner
                .images
                .entry(block)
                .and_modify(|logged| {
                    logged.image = Arc::clone(&image);
                    logged.latest = tid;
                })
                .or_insert(Logged { image, oldest: tid, latest: tid });
        }
    }

    /// Drops blocks whose freeing is durable; on return no write of them is under way.
    pub(crate) fn cancel(&self, blocks: impl Iterator<Item = BlockNo>) {
        let mut inner = self.inner.lock();
        let mut dropped = false;
        for block in blocks {
            dropped |= inner.images.remove(&block).is_some();
        }
        while dropped && inner.writing {
            self.batch_done.wait(&mut inner);
        }
    }

    /// The checkpointer is gone: nobody may wait for it.
    pub(crate) fn give_up(&self) {
        self.inner.lock().writing = false;
        self.batch_done.notify_all();
    }

    /// Everything that can go home now, in device order. Ends with [`LoggedImages::end_batch`].
    pub(crate) fn begin_batch(&self) -> Vec<Homebound> {
        let mut inner = self.inner.lock();
        inner.writing = true;
        let images = &inner.images;
        images
            .iter()
            .map(|(&block, logged)| Homebound {
                block,
                image: Arc::clone(&logged.image),
                latest: logged.latest,
            })
            .collect()
    }

    /// The batch is at home and flushed (`done`), or has failed. Returns the oldest transaction
    /// that still has an image here.
    pub(crate) fn end_batch(&self, batch: &[Homebound], done: bool) -> Option<Tid> {
        let mut inner = self.inner.lock();
        inner.writing = false;
        if done {
            for home in batch {
                let Some(logged) = inner.images.get_mut(&home.block) else { continue };
                if logged.latest == home.latest {
                    inner.images.remove(&home.block);
                } else {
                    // Logged again meanwhile: all up to the written version is at home.
                    logged.oldest = home.latest.next();
                }
            }
        }
        self.batch_done.notify_all();
        let mut oldest: Option<Tid> = None;
        for logged in inner.images.values() {
            if oldest.is_none_or(|o| o.is_after(logged.oldest)) {
                oldest = Some(logged.oldest);
            }
        }
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(byte: u8) -> Arc<[u8]> {
        vec![byte; 4].into()
    }

    #[test]
    fn a_block_logged_again_during_its_checkpoint_stays() {
        let logged = LoggedImages::default();
        logged.add(Tid(5), [(BlockNo(9), image(1)), (BlockNo(10), image(1))].into_iter());
        let batch = logged.begin_batch();
        logged.add(Tid(6), [(BlockNo(9), image(2))].into_iter());
        assert_eq!(logged.end_batch(&batch, true), Some(Tid(6)));
        assert_eq!(logged.get(BlockNo(9)).unwrap()[0], 2);
        assert!(logged.get(BlockNo(10)).is_none());
    }

    #[test]
    fn a_failed_batch_keeps_everything() {
        let logged = LoggedImages::default();
        logged.add(Tid(5), [(BlockNo(9), image(1))].into_iter());
        let batch = logged.begin_batch();
        assert_eq!(logged.end_batch(&batch, false), Some(Tid(5)));
        assert_eq!(logged.len(), 1);
    }
}
