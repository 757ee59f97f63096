//! Nodes of a tree, written.

use super::node::max_entries;
use super::{ENTRY_SIZE, EXTENT_MAGIC, Extent, ExtentIndex, RawExtentHeader};
use crate::num::{len16, put};
use zerocopy::little_endian::{U16, U32};

/// Writes the header of a node with `entries` entries over the start of `bytes`; `eh_max` is what
/// fits `bytes`. The rest of the node stays as it is.
pub fn write_header(bytes: &mut [u8], depth: u16, entries: u16) {
    let header = RawExtentHeader {
        eh_magic: U16::new(EXTENT_MAGIC),
        eh_entries: U16::new(entries),
        eh_max: U16::new(max_entries(bytes.len())),
        eh_depth: U16::new(depth),
        eh_generation: U32::new(0),
    };
    put(bytes, 0, header.bytes());
}

/// Writes a whole leaf: header, entries, zeros after them. Returns false, having changed nothing,
/// when they do not fit.
pub fn write_leaf(bytes: &mut [u8], extents: &[Extent]) -> bool {
    write_node(bytes, 0, extents.len(), extents.iter().map(|e| zerocopy::transmute!(e.to_raw())))
}

/// Writes entry `index` of a leaf anew. Returns false, having changed nothing, when the leaf has no
/// such entry.
pub fn write_extent(bytes: &mut [u8], index: usize, extent: &Extent) -> bool {
    let entries = RawExtentHeader::ref_from_prefix(bytes).map_or(0, |h| h.eh_entries.get());
    let slot = bytes.chunks_exact_mut(ENTRY_SIZE).skip(1).take(usize::from(entries)).nth(index);
    let raw: [u8; ENTRY_SIZE] = zerocopy::transmute!(extent.to_raw());
    slot.is_some_and(|slot| {
        slot.copy_from_slice(&raw);
        true
    })
}

/// Writes a whole index node; `depth` is at least 1. See [`write_leaf`].
pub fn write_index(bytes: &mut [u8], depth: u16, children: &[ExtentIndex]) -> bool {
    let raw = children.iter().map(|c| zerocopy::transmute!(c.to_raw()));
    write_node(bytes, depth, children.len(), raw)
}

fn write_node(
    bytes: &mut [u8],
    depth: u16,
    count: usize,
    entries: impl Iterator<Item = [u8; ENTRY_SIZE]>,
) -> bool {
    if count > usize::from(max_entries(bytes.len())) {
        return false;
    }
    bytes.fill(0);
    write_header(bytes, depth, len16(count));
    let slots = bytes.chunks_exact_mut(ENTRY_SIZE).skip(1);
    slots.zip(entries).for_each(|(slot, entry)| slot.copy_from_slice(&entry));
    true
}
