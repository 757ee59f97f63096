//! The partition table of a master boot record, and the chains of records in its extended
//! partitions, by the rules of Linux: an entry counts if it has sectors, logical partitions have
//! numbers from 5, and the third and fourth entry of a record in an extended partition count only
//! if they lie in it and in the part of it that the record is for.

use std::io;

use uext4_device::Device;
use zerocopy::FromBytes;

use super::raw::{BootRecord, MbrEntry};
use super::{Owner, Span, bytes_at};

const RECORD_LEN: usize = size_of::<BootRecord>();
const SIGNATURE: [u8; 2] = [0x55, 0xaa];
/// The record is there to protect a GPT.
const PROTECTIVE: u8 = 0xee;
/// Types of extended partitions: DOS, Windows 98, Linux.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// Number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;
/// Most records of all chains that are followed. A chain that bites its tail ends here.
const CHAIN_MAX: u32 = 256;

/// What the first sector is.
pub(super) enum Record {
    None,
    /// Of a disk with a GPT.
    Protective,
    /// A chain of logical partitions without end.
    Damaged,
    Partitions(Vec<Span>),
}

/// Reads the first sector, and what it leads to. LBAs count sectors of `sector` bytes.
pub(super) fn read(disk: &dyn Device, sector: u64) -> io::Result<Record> {
    let Some(entries) = entries_at(disk, 0)? else { return Ok(Record::None) };
    // A boot sector of another kind has code here.
    if entries.iter().any(|entry| entry.boot_indicator & 0x7f != 0) {
        return Ok(Record::None);
    }
    if entries.iter().any(|entry| entry.kind == PROTECTIVE) {
        return Ok(Record::Protective);
    }
    let mut spans = vec![Span::new(Owner::Table, 0, sector)];
    let mut logical = Logical { disk, sector, records: 0, spans: Vec::new() };
    for (number, entry) in (1..).zip(&entries).filter(|(_, entry)| is_used(entry)) {
        if !is_extended(entry) {
            spans.push(span(Owner::Partition(number), 0, entry, sector));
        } else if !logical.follow(entry)? {
            return Ok(Record::Damaged);
        }
    }
    spans.append(&mut logical.spans);
    Ok(if spans.len() > 1 { Record::Partitions(spans) } else { Record::None })
}

/// Follows the chains of logical partitions.
struct Logical<'a> {
    disk: &'a dyn Device,
    sector: u64,
    /// How many were read.
    records: u32,
    spans: Vec<Span>,
}

impl Logical<'_> {
    /// Adds what is in an extended partition; `false`: there is no end.
    fn follow(&mut self, extended: &MbrEntry) -> io::Result<bool> {
        let (first, len) = (u64::from(extended.first_lba.get()), sectors_of(extended));
        // Where the next record is, and how many sectors the link to it gives to its partitions.
        let (mut at, mut room) = (first, len);
        loop {
            // An extended partition that is empty needs no record.
            let Some(entries) = entries_at(self.disk, at * self.sector)? else { return Ok(true) };
            self.records += 1;
            if self.records > CHAIN_MAX {
                return Ok(false);
            }
            self.spans.push(Span::new(Owner::Table, at * self.sector, (at + 1) * self.sector));
            for (slot, entry) in entries.iter().enumerate() {
                if !is_used(entry) || is_extended(entry) {
                    continue;
                }
                // What stands in the last two is often no entry.
                let (start, count) = (u64::from(entry.first_lba.get()), sectors_of(entry));
                if slot >= 2 && (start + count > room || at + start + count > first + len) {
                    continue;
                }
                let partitions = self.spans.iter().filter(|span| span.owner != Owner::Table);
                let number = FIRST_LOGICAL + partitions.count() as u32;
                self.spans.push(span(Owner::Partition(number), at, entry, self.sector));
            }
            let next = entries.iter().find(|entry| is_used(entry) && is_extended(entry));
            let Some(next) = next else { return Ok(true) };
            (at, room) = (first + u64::from(next.first_lba.get()), sectors_of(next));
        }
    }
}

/// The four entries of the record at a byte, if one is there.
fn entries_at(disk: &dyn Device, at: u64) -> io::Result<Option<[MbrEntry; 4]>> {
    let Some(bytes) = bytes_at(disk, Some(at), RECORD_LEN)? else { return Ok(None) };
    let record = BootRecord::read_from_bytes(&bytes).ok();
    let record = record.filter(|record| record.signature == SIGNATURE);
    Ok(record.map(|record| record.entries))
}

fn is_used(entry: &MbrEntry) -> bool {
    entry.sectors.get() != 0
}

fn sectors_of(entry: &MbrEntry) -> u64 {
    entry.sectors.get().into()
}

fn is_extended(entry: &MbrEntry) -> bool {
    EXTENDED.contains(&entry.kind)
}

/// The bytes of an entry that counts from the record at LBA `base`. All LBAs are far below 2^35, so
/// that nothing overflows.
fn span(owner: Owner, base: u64, entry: &MbrEntry, sector: u64) -> Span {
    let start = base + u64::from(entry.first_lba.get());
    let end = start + sectors_of(entry);
    Span::new(owner, start * sector, end * sector)
}
