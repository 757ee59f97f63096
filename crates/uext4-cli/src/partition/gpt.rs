//! GUID partition tables (UEFI specification, chapter 5): a header and an array of entries at the
//! front of the disk, and both again at its end. Either copy will do, if its checksums are right.

use std::io;

use bytemuck::pod_read_unaligned;
use gpt_disk_types::{BlockSize, GptHeader, GptPartitionEntryArray};
use uext4_device::Device;

use super::{Owner, Span, bytes_at};

/// Sizes of sectors that disks have, in bytes.
const SECTORS: [u32; 2] = [512, 4096];
/// Most bytes that are taken for an array of entries, as in Linux; 128 entries have 16 KiB.
const ARRAY_MAX: u64 = 4 << 20;
/// Length of a header in bytes.
const HEADER_LEN: usize = size_of::<GptHeader>();

/// What stands where a table would.
pub(super) enum Found {
    None,
    /// The mark of a table, but no copy with right checksums.
    Damaged,
    Partitions(Vec<Span>),
}

/// Looks for a table with sectors of either size: the copy in front first.
pub(super) fn read(disk: &dyn Device) -> io::Result<Found> {
    let mut found = Found::None;
    for is_backup in [false, true] {
        for sector in SECTORS {
            let last = (disk.len() / u64::from(sector)).saturating_sub(1);
            match copy_at(disk, if is_backup { last } else { 1 }, sector)? {
                Found::Partitions(spans) => return Ok(Found::Partitions(spans)),
                Found::Damaged => found = Found::Damaged,
                Found::None => {}
            }
        }
    }
    Ok(found)
}

/// The copy whose header is at a sector of the disk.
fn copy_at(disk: &dyn Device, lba: u64, sector: u32) -> io::Result<Found> {
    let at = lba.checked_mul(sector.into());
    let Some(bytes) = bytes_at(disk, at, HEADER_LEN)? else { return Ok(Found::None) };
    let header: GptHeader = pod_read_unaligned(&bytes);
    if !header.is_signature_valid() {
        return Ok(Found::None);
    }
    let is_whole = header.header_size.to_u32() as usize == HEADER_LEN
        && header.header_crc32 == header.calculate_header_crc32()
        && header.my_lba.to_u64() == lba;
    let spans = if is_whole { spans(disk, &header, sector)? } else { None };
    Ok(spans.map_or(Found::Damaged, Found::Partitions))
}

/// The partitions, and what lies outside of the usable sectors; `None` where it makes no sense.
fn spans(disk: &dyn Device, header: &GptHeader, sector: u32) -> io::Result<Option<Vec<Span>>> {
    let byte_of = |lba: u64| lba.checked_mul(sector.into());
    let behind = |lba: u64| lba.checked_add(1).and_then(byte_of);
    let layout = header.get_partition_entry_array_layout().ok();
    let layout = layout.filter(|layout| layout.num_bytes_exact().is_some_and(|n| n <= ARRAY_MAX));
    let usable = byte_of(header.first_usable_lba.to_u64());
    let usable = usable.zip(behind(header.last_usable_lba.to_u64()));
    let (Some(layout), Some((first, last)), Some(sector)) =
        (layout, usable.filter(|(first, last)| first < last), BlockSize::new(sector))
    else {
        return Ok(None);
    };
    let len = layout.num_bytes_exact_as_usize().unwrap_or(0);
    let Some(mut bytes) = bytes_at(disk, byte_of(layout.start_lba.to_u64()), len)? else {
        return Ok(None);
    };
    // The array type wants whole sectors; the checksum covers the entries only.
    bytes.resize(len.next_multiple_of(sector.to_u32() as usize), 0);
    let Ok(array) = GptPartitionEntryArray::new(layout, sector, &mut bytes) else {
        return Ok(None);
    };
    if array.calculate_crc32() != header.partition_entry_array_crc32 {
        return Ok(None);
    }
    let mut spans =
        vec![Span::new(Owner::Table, 0, first), Span::new(Owner::Table, last, u64::MAX)];
    for index in 0..layout.num_entries {
        let entry = array.get_partition_entry(index).filter(|entry| entry.is_used());
        let Some(range) = entry.and_then(|entry| entry.lba_range()) else { continue };
        let bytes = byte_of(range.start().to_u64()).zip(behind(range.end().to_u64()));
        let Some((start, end)) = bytes else { return Ok(None) };
        spans.push(Span::new(Owner::Partition(index + 1), start, end));
    }
    Ok(Some(spans))
}
