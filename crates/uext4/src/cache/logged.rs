//! Images that are durable in the log and await checkpoint.
//!
//! What: for each block, the image of the latest durable transaction that changed it, and the
//! oldest transaction whose image of it is not checkpointed. The tail of the log cannot pass that
//! one.
//! Invariants: images enter only when their transaction is durable, so the checkpointer may write
//! any of them. The image of a freed block leaves when the freeing transaction is durable and
//! *before* the block can be reused. If a checkpoint is writing the image, the caller waits for
//! that write.
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
    images: BTreeMap<BlockNo, LoggedImage>,
    /// The batch that is being written: the images whose oldest transaction is not after this one.
    writing: Option<Tid>,
}

#[derive(Debug)]
struct LoggedImage {
    image: Arc<[u8]>,
    oldest: Tid,
    latest: Tid,
}

/// One image of a checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointImage {
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
    /// Number of images that await checkpoint.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().images.len()
    }

    pub(crate) fn get(&self, block: BlockNo) -> Option<Arc<[u8]>> {
        self.inner.lock().images.get(&block).map(|logged| Arc::clone(&logged.image))
    }

    /// Adds the images of transaction `tid`, which is durable.
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
                .or_insert(LoggedImage { image, oldest: tid, latest: tid });
        }
    }

    /// Drops blocks whose freeing is durable. On return no write of them is under way. A write that
    /// is in the device's cache is harmless, because the block's next content is written after it.
    pub(crate) fn cancel(&self, blocks: impl Iterator<Item = BlockNo>) {
        let mut inner = self.inner.lock();
        let mut is_written = false;
        for block in blocks {
            let dropped = inner.images.remove(&block);
            is_written |= dropped.is_some_and(|logged| inner.writes(&logged));
        }
        while is_written && inner.writing.is_some() {
            self.batch_done.wait(&mut inner);
        }
    }

    /// Takes the next batch, in device order: the images that the oldest transactions need, at
    /// least one transaction and about `most` images. The writes end with
    /// [`LoggedImages::batch_written`], the batch with [`LoggedImages::end_batch`].
    pub(crate) fn begin_batch(&self, most: usize) -> Vec<CheckpointImage> {
        let mut inner = self.inner.lock();
        inner.writing = inner.batch_end(most);
        let taken = inner.images.iter().filter(|(_, logged)| inner.writes(logged));
        taken
            .map(|(&block, logged)| CheckpointImage {
                block,
                image: Arc::clone(&logged.image),
                latest: logged.latest,
            })
            .collect()
    }

    /// Records that the writes of the batch have ended, successfully or not.
    pub(crate) fn batch_written(&self) {
        self.inner.lock().writing = None;
        self.batch_done.notify_all();
    }

    /// Ends the batch, which is written and flushed (`done`) or has failed. Returns the oldest
    /// transaction that still has an image here.
    pub(crate) fn end_batch(&self, batch: &[CheckpointImage], done: bool) -> Option<Tid> {
        let mut inner = self.inner.lock();
        if done {
            for written in batch {
                let Some(logged) = inner.images.get_mut(&written.block) else { continue };
                if logged.latest == written.latest {
                    inner.images.remove(&written.block);
                } else if !logged.oldest.is_after(written.latest) {
                    // Logged again meanwhile: everything up to the written image is checkpointed.
                    logged.oldest = written.latest.next();
                }
            }
        }
        inner.oldest()
    }
}

impl Inner {
    /// Whether the batch that is being written contains this image.
    fn writes(&self, logged: &LoggedImage) -> bool {
        self.writing.is_some_and(|end| !logged.oldest.is_after(end))
    }

    fn oldest(&self) -> Option<Tid> {
        let ages = self.images.values().map(|logged| logged.oldest);
        ages.reduce(|oldest, tid| if oldest.is_after(tid) { tid } else { oldest })
    }

    /// The last transaction of a batch of about `most` images.
    fn batch_end(&self, most: usize) -> Option<Tid> {
        let oldest = self.oldest()?;
        let mut ages: Vec<u32> =
            self.images.values().map(|l| l.oldest.get().wrapping_sub(oldest.get())).collect();
        let last = most.clamp(1, ages.len()) - 1;
        let (_, &mut age, _) = ages.select_nth_unstable(last);
        Some(Tid(oldest.get().wrapping_add(age)))
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
        let batch = logged.begin_batch(10);
        logged.add(Tid(6), [(BlockNo(9), image(2))].into_iter());
        assert_eq!(logged.end_batch(&batch, true), Some(Tid(6)));
        assert_eq!(logged.get(BlockNo(9)).unwrap()[0], 2);
        assert!(logged.get(BlockNo(10)).is_none());
    }

    #[test]
    fn a_failed_batch_keeps_everything() {
        let logged = LoggedImages::default();
        logged.add(Tid(5), [(BlockNo(9), image(1))].into_iter());
        let batch = logged.begin_batch(10);
        assert_eq!(logged.end_batch(&batch, false), Some(Tid(5)));
        assert_eq!(logged.len(), 1);
    }

    #[test]
    fn batches_are_whole_transactions_from_the_oldest_on() {
        let logged = LoggedImages::default();
        let blocks = |range: std::ops::Range<u64>| range.map(|n| (BlockNo(n), image(1)));
        logged.add(Tid(u32::MAX), blocks(10..13));
        logged.add(Tid(0), blocks(0..3));
        logged.add(Tid(1), blocks(11..14));
        let taken = |most| -> Vec<u64> {
            let batch = logged.begin_batch(most);
            logged.batch_written();
            batch.iter().map(|image| image.block.get()).collect()
        };
        assert_eq!(taken(1), [10, 11, 12]);
        assert_eq!(taken(4), [0, 1, 2, 10, 11, 12]);
        assert_eq!(taken(100), [0, 1, 2, 10, 11, 12, 13]);
        let batch = logged.begin_batch(1);
        logged.batch_written();
        assert_eq!(logged.end_batch(&batch, true), Some(Tid(0)));
        assert_eq!(logged.len(), 4);
    }

    #[test]
    fn a_freed_block_waits_only_for_its_own_checkpoint_write() {
        let logged = Arc::new(LoggedImages::default());
        logged.add(Tid(5), [(BlockNo(9), image(1)), (BlockNo(10), image(1))].into_iter());
        let batch = logged.begin_batch(10);
        logged.add(Tid(6), [(BlockNo(11), image(1))].into_iter());
        // Not in the batch.
        logged.cancel([BlockNo(11), BlockNo(12)].into_iter());
        let other = Arc::clone(&logged);
        let freed = std::thread::spawn(move || other.cancel([BlockNo(9)].into_iter()));
        while logged.get(BlockNo(9)).is_some() {
            std::thread::yield_now();
        }
        assert!(!freed.is_finished());
        logged.batch_written();
        freed.join().unwrap();
        assert_eq!(logged.end_batch(&batch, true), None);
    }
}
