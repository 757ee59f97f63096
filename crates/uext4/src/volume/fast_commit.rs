//! Fast commits at the opening of a volume: repeated on a copy in memory, and then logged.
//!
//! What: [`changes`] opens the volume over an overlay of the device, lets it repeat the records,
//! and returns the blocks that differ then. The volume itself is opened after these are replayed.
//! Invariants: nothing is written to the device here.

use super::mount::{Purpose, open_as};
use super::superblock;
use crate::config::MountOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::journal::LeftFastCommits;
use std::sync::Arc;
use uext4_device::{Device, OverlayDevice, SharedDevice};
use uext4_ondisk::superblock::SUPERBLOCK_OFFSET;
use uext4_ondisk::{BlockNo, Incompat, Layout, RawSuperblock, RoCompat};

/// The blocks that the outcome of fast commits differs in, ascending.
///
/// # Errors
/// Records that cannot be repeated; a volume that cannot be written; a device failure.
pub(super) fn changes(
    device: &SharedDevice,
    layout: &Layout,
    left: &LeftFastCommits,
) -> Result<Vec<(BlockNo, Arc<[u8]>)>> {
    if layout.has_clusters() {
        let context = "fast commits of a file system with clusters (bigalloc)";
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    // Usage, and the blocks of clusters, are not in the records.
    let others = layout.features.ro_compat & (RoCompat::QUOTA | RoCompat::BIGALLOC);
    if !others.is_empty() {
        let context =
            format!("fast commits together with {}; run e2fsck", others.names().join(" "));
        return Err(Error::new(ErrorKind::NeedsRecovery, context));
    }
    let before = superblock::read(&**device)?;
    let overlay = Arc::new(OverlayDevice::new(device.clone()));
    let copy: SharedDevice = overlay.clone();
    let journal = left.empty_journal_of(&copy)?;
    let mut clean = before;
    let recovered = clean.s_feature_incompat.get() & !Incompat::RECOVER.bits();
    clean.s_feature_incompat.set(recovered);
    put_superblock(&*copy, &mut clean)?;

    let options = MountOptions { cache_bytes: MountOptions::CACHE_BYTES_MIN, ..Default::default() };
    let volume = open_as(copy.clone(), journal, options, Purpose::RepeatFastCommits)?;
    if let Some(why) = volume.read_only_reason() {
        let context = format!("fast commits of a file system that can only be read: {why}");
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    match volume.inner.vfs.repeat_fast_commits(&left.records, left.log_blocks()) {
        Ok(()) => volume.close()?,
        Err(error) => {
            volume.abandon();
            return Err(error);
        }
    }
    let after = superblock::read(&*copy)?;
    put_superblock(&*copy, &mut counted(before, &after))?;
    differences(device, &overlay, layout, left)
}

/// The superblock of before, with what the outcome counts.
fn counted(before: RawSuperblock, after: &RawSuperblock) -> RawSuperblock {
    let mut raw = before;
    raw.set_free_blocks_count(after.free_blocks_count());
    raw.s_free_inodes_count = after.s_free_inodes_count;
    raw.s_last_orphan = after.s_last_orphan;
    raw.s_overhead_clusters = before.s_overhead_clusters;
    raw
}

fn put_superblock(device: &dyn Device, raw: &mut RawSuperblock) -> Result<()> {
    raw.seal();
    device
        .write_at(SUPERBLOCK_OFFSET, raw.bytes())
        .map_err(|error| Error::io("writing the superblock", error))
}

/// The blocks of the overlay that differ from the device, but for those of the journal.
fn differences(
    device: &SharedDevice,
    overlay: &OverlayDevice,
    layout: &Layout,
    left: &LeftFastCommits,
) -> Result<Vec<(BlockNo, Arc<[u8]>)>> {
    let size = u64::from(layout.block_size);
    let at = |error| Error::io("comparing the outcome of the fast commits", error);
    let mut blocks: Vec<u64> = overlay
        .written_pages()
        .into_iter()
        .flat_map(|page| page.start / size..page.end.div_ceil(size))
        .filter(|&block| block < layout.blocks_count)
        .collect();
    blocks.dedup();
    let mut changed = Vec::new();
    let (mut old, mut new) =
        (vec![0; layout.block_size as usize], vec![0; layout.block_size as usize]);
    for block in blocks.into_iter().map(BlockNo) {
        if left.is_of_journal(block) {
            continue;
        }
        device.read_at(layout.byte_of(block), &mut old).map_err(at)?;
        overlay.read_at(layout.byte_of(block), &mut new).map_err(at)?;
        if old != new {
            changed.push((block, Arc::from(&new[..])));
        }
    }
    Ok(changed)
}
