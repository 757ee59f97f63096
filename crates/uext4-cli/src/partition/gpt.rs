//! GUID partition tables (UEFI specification, chapter 5): a header and an array of entries at the
//! front of the disk, and both again at its end. Either copy will do, if its checksums are right.

use std::io;

use uext4_device::Device;
use zerocopy::FromBytes;

use super::raw::{GptEntry, GptHeader};
use super::{Owner, Span, bytes_at};

/// Sizes of sectors that disks have, in bytes.
const SECTORS: [u32; 2] = [512, 4096];
/// Most bytes that are taken for an array of entries, as in Linux; 128 entries have 16 KiB.
const ARRAY_MAX: u64 = 4 << 20;
/// Length of a header in bytes.
const HEADER_LEN: usize = size_of::<GptHeader>();
/// Least length of an entry in bytes.
const ENTRY_LEN: usize = size_of::<GptEntry>();

/// What stands where a table would.
pub(super) enum Gpt {
    None,
    /// The mark of a table, but no copy with right checksums.
    Damaged,
    Partitions(Vec<Span>),
}

/// Looks for a table with sectors of either size: the copy in front first.
pub(super) fn read(disk: &dyn Device) -> io::Result<Gpt> {
    let mut found = Gpt::None;
    for is_backup in [false, true] {
        for sector in SECTORS {
            let last = (disk.len() / u64::from(sector)).saturating_sub(1);
            match copy_at(disk, if is_backup { last } else { 1 }, sector)? {
                Gpt::Partitions(spans) => return Ok(Gpt::Partitions(spans)),
                Gpt::Damaged => found = Gpt::Damaged,
                Gpt::None => {}
            }
        }
    }
    Ok(found)
}

/// The copy whose header is at a sector of the disk.
fn copy_at(disk: &dyn Device, lba: u64, sector: u32) -> io::Result<Gpt> {
    let at = lba.checked_mul(sector.into());
    let Some(bytes) = bytes_at(disk, at, HEADER_LEN)? else { return Ok(Gpt::None) };
    let header = GptHeader::read_from_bytes(&bytes).ok();
    let header = header.filter(|header| header.signature == GptHeader::SIGNATURE);
    let Some(header) = header else { return Ok(Gpt::None) };
    let is_whole = header.header_size.get() as usize == HEADER_LEN
        && header.header_crc32.get() == header.checksum()
        && header.my_lba.get() == lba;
    let spans = if is_whole { spans(disk, &header, sector)? } else { None };
    Ok(spans.map_or(Gpt::Damaged, Gpt::Partitions))
}

/// The partitions, and what lies outside of the usable sectors; `None` where it makes no sense.
fn spans(disk: &dyn Device, header: &GptHeader, sector: u32) -> io::Result<Option<Vec<Span>>> {
    let byte_of = |lba: u64| lba.checked_mul(sector.into());
    let behind = |lba: u64| lba.checked_add(1).and_then(byte_of);
    let usable = byte_of(header.first_usable_lba.get()).zip(behind(header.last_usable_lba.get()));
    let Some((first, last)) = usable.filter(|(first, last)| first < last) else { return Ok(None) };
    let entry_size = header.entry_size.get() as usize;
    let len = u64::from(header.entries.get()) * u64::from(header.entry_size.get());
    if entry_size < ENTRY_LEN || len > ARRAY_MAX {
        return Ok(None);
    }
    let Some(bytes) = bytes_at(disk, byte_of(header.entry_lba.get()), len as usize)? else {
        return Ok(None);
    };
    if crc32fast::hash(&bytes) != header.entries_crc32.get() {
        return Ok(None);
    }
    let mut spans =
        vec![Span::new(Owner::Table, 0, first), Span::new(Owner::Table, last, u64::MAX)];
    for (number, bytes) in (1..).zip(bytes.chunks_exact(entry_size)) {
        let Ok((entry, _)) = GptEntry::read_from_prefix(bytes) else { return Ok(None) };
        let (first, last) = (entry.first_lba.get(), entry.last_lba.get());
        if entry.kind == [0; 16] || first > last {
            continue;
        }
        let Some((start, end)) = byte_of(first).zip(behind(last)) else { return Ok(None) };
        spans.push(Span::new(Owner::Partition(number), start, end));
    }
    Ok(Some(spans))
}
