//! What a volume keeps in memory, by its own counters, beside the budget that it was given.

use uext4::Volume;

/// What may be in memory beyond the budget: pages under the writes of all callers and neighbours,
/// blocks of the running and of the committing transaction, and inodes in use.
const SLACK: u64 = 1 << 20;
/// Of an inode, about, as the engine reckons.
const INODE_BYTES: u64 = 1024;

/// Whether pages, metadata blocks and inodes stay within the budget and [`SLACK`].
pub(super) fn check(volume: &Volume) -> Result<(), String> {
    let stats = volume.stats();
    let number = |name: &str| stats.number(name).unwrap_or(0);
    let (pages, blocks) = (number("pages"), number("metadata_blocks"));
    let images = number("images_awaiting_checkpoint");
    let inodes = number("inodes");
    let bytes = (pages + blocks + images) * number("page_bytes") + inodes * INODE_BYTES;
    let bound = number("cache_bytes_max") + SLACK;
    if bytes <= bound {
        return Ok(());
    }
    Err(format!(
        "memory: {pages} pages, {blocks} metadata blocks, {images} images and {inodes} inodes are \
         {bytes} bytes; the bound is {bound}"
    ))
}
