//! Digests of images and of recovered volumes.
//!
//! # What
//! An image's digest is the exclusive-or of its pages' digests, so that a state which differs from
//! another in a few pages costs those pages only. [`of_used`] is of the blocks in use of a
//! recovered volume; [`of_view`] is what a user can tell apart: names, attributes, bytes and free
//! counts, without times. The second one counts states.

use crate::external;
use crate::view::View;
use std::hash::{DefaultHasher, Hash, Hasher};
use uext4::{Volume, journal::LogLocation};
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::{GroupNo, bitmap};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;

/// Digest of bytes that stand at `at`: two lanes of multiply and rotate, 128 bits.
fn digest(at: u64, bytes: &[u8]) -> u128 {
    const ODD: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f];
    let mut lanes = [at ^ ODD[1], at.wrapping_mul(ODD[0])];
    let words = bytes.chunks_exact(8);
    let rest = words.remainder();
    let mut take = |word: u64| {
        for (lane, odd) in lanes.iter_mut().zip(ODD) {
            *lane = (lane.rotate_left(23) ^ word).wrapping_mul(odd);
        }
    };
    for word in words {
        take(U64::read_from_bytes(word).map_or(0, U64::get));
    }
    for &byte in rest {
        take(u64::from(byte) | 1 << 63);
    }
    for lane in &mut lanes {
        *lane = (*lane ^ *lane >> 29).wrapping_mul(ODD[0]);
        *lane ^= *lane >> 32;
    }
    u128::from(lanes[0]) << 64 | u128::from(lanes[1])
}

/// Digest of the page at byte `at`.
pub(super) fn of_page(device: &MemoryDevice, at: u64) -> u128 {
    let mut page = [0; PAGE as usize];
    let count = (device.len() - at).min(PAGE) as usize;
    // A memory device fails only past its end.
    let read = device.read_at(at, &mut page[..count]);
    debug_assert!(read.is_ok());
    digest(at, &page[..count])
}

/// Digest of a whole image.
pub(super) fn of_image(device: &MemoryDevice) -> u128 {
    (0..device.len()).step_by(PAGE as usize).fold(0, |sum, at| sum ^ of_page(device, at))
}

/// Blocks of a volume that [`of_used`] looks at: those in use, but for the superblock, which has
/// times and counters of mounts, and the journal.
#[derive(Debug)]
pub(crate) struct Used {
    block_size: u64,
    blocks: Vec<u64>,
}

impl Used {
    /// Of an open volume on `device`.
    ///
    /// # Errors
    /// The journal or a bitmap cannot be read.
    pub(crate) fn of(volume: &Volume, device: &MemoryDevice) -> Result<Used, String> {
        let layout = volume.layout();
        let log = match external::parts(device) {
            Some(_) => LogLocation::default(),
            None => LogLocation::find(device, layout, &volume.superblock())
                .map_err(|error| format!("journal: {error}"))?,
        };
        let block_size = u64::from(layout.block_size);
        let mut blocks = Vec::new();
        let mut map = vec![0; layout.block_size as usize];
        for group in (0..layout.group_count).map(GroupNo) {
            let at = volume.group_desc(group).block_bitmap();
            device.read_at(layout.byte_of(at), &mut map).map_err(|error| error.to_string())?;
            let first = layout.group_first_block(group).get();
            let count = layout.blocks_in_group(group);
            let used = (0..count).filter(|&bit| bitmap::test(&map, bit));
            blocks.extend(used.map(|bit| first + u64::from(bit)));
        }
        let superblock = layout.super_block_no().get();
        blocks.retain(|&block| {
            let in_log = |&(_, start, len): &(u32, uext4::BlockNo, u32)| {
                (start.get()..start.get() + u64::from(len)).contains(&block)
            };
            block != superblock && !log.runs.iter().any(in_log)
        });
        Ok(Used { block_size, blocks })
    }
}

impl Used {
    /// Bytes of a block.
    pub(crate) fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Block numbers, rising.
    pub(crate) fn blocks(&self) -> &[u64] {
        &self.blocks
    }
}

/// Digest of the blocks in use.
pub(super) fn of_used(device: &MemoryDevice, used: &Used) -> u128 {
    let mut bytes = vec![0; used.block_size as usize];
    used.blocks.iter().fold(0, |sum, block| {
        let at = block * used.block_size;
        let read = device.read_at(at, &mut bytes);
        debug_assert!(read.is_ok());
        sum ^ digest(at, &bytes)
    })
}

/// Digest of what a recovered volume shows.
pub(super) fn of_view(view: &View, free: (u64, u64)) -> u64 {
    let mut hasher = DefaultHasher::new();
    free.hash(&mut hasher);
    for (place, ino) in &view.entries {
        (place.dir, &place.name, ino.get()).hash(&mut hasher);
    }
    for seen in view.nodes.values() {
        let kind = seen.kind.map(|kind| kind as u8);
        (seen.ino.get(), seen.uid, kind, seen.mode, seen.gid, seen.links).hash(&mut hasher);
        (&seen.target, &seen.xattrs, seen.content.size).hash(&mut hasher);
        for (at, bytes) in &seen.content.data {
            digest(*at, bytes).hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_digest_of_its_bytes_in_their_places() {
        let one = MemoryDevice::new(3 * PAGE);
        one.write_at(0, &[1; 10]).unwrap();
        let other = one.snapshot();
        assert_eq!(of_image(&one), of_image(&other));
        other.write_at(5000, &[1]).unwrap();
        assert_ne!(of_image(&one), of_image(&other));
        let changed = of_image(&one) ^ of_page(&one, PAGE) ^ of_page(&other, PAGE);
        assert_eq!(changed, of_image(&other));
        let moved = MemoryDevice::new(3 * PAGE);
        moved.write_at(PAGE, &[1; 10]).unwrap();
        assert_ne!(of_image(&one), of_image(&moved));
    }
}
