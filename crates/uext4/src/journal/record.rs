//! The encoding of a transaction in the log.
//!
//! On disk: revoke blocks, then descriptor blocks each followed by the images it names, then,
//! written separately, the commit block.
//! Invariants: an image that begins with the journal's magic number is escaped in the log, and its
//! tag's checksum covers the escaped form. Commit times never go back.

use crate::cache::Snapshot;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::time::SystemTime;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;
use uext4_ondisk::journal::block::{
    CommitBlock, DescriptorWriter, RevokeWriter, escape, must_escape, records_per_revoke,
    tags_per_descriptor,
};
use uext4_ondisk::journal::superblock::JournalFormat;
use uext4_ondisk::{BlockNo, Tid};

/// Encodes transactions in one journal's format.
#[derive(Debug)]
pub(super) struct RecordFormat {
    format: JournalFormat,
    last_commit_secs: AtomicU64,
}

impl RecordFormat {
    pub(super) fn new(format: JournalFormat, last_commit_secs: u64) -> Self {
        Self { format, last_commit_secs: AtomicU64::new(last_commit_secs) }
    }

    /// Number of log blocks of a transaction, including the commit block.
    pub(super) fn blocks_needed(&self, images: usize, revokes: usize) -> u32 {
        let descriptors = images.div_ceil(tags_per_descriptor(&self.format) as usize);
        let revokes = revokes.div_ceil(records_per_revoke(&self.format) as usize);
        u32::try_from(images + descriptors + revokes + 1).unwrap_or(u32::MAX)
    }

    /// All log blocks of a transaction except the commit block.
    pub(super) fn encode<'a>(
        &self,
        tid: Tid,
        images: &'a [Snapshot],
        revoked: &BTreeSet<BlockNo>,
    ) -> Vec<Cow<'a, [u8]>> {
        let mut blocks = Vec::new();
        let revoked: Vec<BlockNo> = revoked.iter().copied().collect();
        for chunk in revoked.chunks(records_per_revoke(&self.format) as usize) {
            let mut bytes = self.empty_block();
            let mut writer = RevokeWriter::new(&mut bytes, &self.format, tid);
            for &block in chunk {
                assert!(writer.push(block), "records per revoke block");
            }
            writer.finish();
            blocks.push(Cow::Owned(bytes));
        }
        for chunk in images.chunks(tags_per_descriptor(&self.format) as usize) {
            let mut descriptor = self.empty_block();
            let mut writer = DescriptorWriter::new(&mut descriptor, &self.format, tid);
            let mut logged = Vec::with_capacity(chunk.len());
            for Snapshot { block, image, .. } in chunk {
                let escaped = must_escape(image);
                let mut image: Cow<'_, [u8]> = Cow::Borrowed(image);
                if escaped {
                    escape(image.to_mut());
                }
                assert!(writer.push(*block, escaped, &image), "tags per descriptor");
                logged.push(image);
            }
            writer.finish();
            blocks.push(Cow::Owned(descriptor));
            blocks.append(&mut logged);
        }
        blocks
    }

    pub(super) fn commit_block(&self, tid: Tid) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let before = self.last_commit_secs.fetch_max(now.as_secs(), Ordering::Relaxed);
        let secs = now.as_secs().max(before);
        let nanos = if secs == now.as_secs() { now.subsec_nanos() } else { 0 };
        let mut bytes = self.empty_block();
        CommitBlock::write(&mut bytes, &self.format, tid, (secs, nanos), None);
        bytes
    }

    fn empty_block(&self) -> Vec<u8> {
        vec![0; self.format.block_size as usize]
    }
}
