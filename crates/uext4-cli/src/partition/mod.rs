//! Partition tables: where the partitions of a disk lie, and what else on it is not free.
//!
//! What: [`read`] takes a table from the first device that has one; GPT ([`gpt`]) by either of its
//! copies, MBR ([`mbr`]) with the logical partitions of extended ones. Numbers are those of Linux:
//! `p1` is what the kernel calls `sda1`.
//!
//! Invariants: nothing is written. A table is what its disk says, and a disk may lie: reading one
//! ends after a bounded number of steps, takes a bounded amount of memory, and never panics.

mod gpt;
mod mbr;
mod raw;

use std::fmt;
use std::io;
use std::ops::Range;

use uext4_device::Device;

use crate::failure::Why;
use crate::signature;

/// Most partitions that one line names.
const NAMED_MAX: usize = 16;

/// The owner of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Partition(u32),
    /// The table itself, or what it keeps free of partitions.
    Table,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(number) => write!(f, "partition {number}"),
            Self::Table => f.write_str("the partition table"),
        }
    }
}

/// A run of bytes of the disk that is not free.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    owner: Owner,
    bytes: Range<u64>,
}

impl Span {
    fn new(owner: Owner, start: u64, end: u64) -> Self {
        Self { owner, bytes: start..end }
    }
}

/// A partition table that makes sense.
#[derive(Debug)]
pub(crate) struct Table {
    /// `GPT` or `MBR`.
    pub(crate) kind: &'static str,
    spans: Vec<Span>,
    /// Length of the disk in bytes.
    len: u64,
}

/// The partition table of a disk; `None` where it has none. `sector` is the size of its sectors in
/// bytes, if it is known; a GPT says its own.
pub(crate) fn read(disk: &dyn Device, sector: Option<u64>) -> Result<Option<Table>, Why> {
    let record = match sector {
        Some(sector) => mbr::read(disk, sector)?,
        None => mbr_of_file(disk)?,
    };
    let (kind, spans) = match record {
        // As the kernel does: a GPT behind a record with partitions of its own is a left-over.
        mbr::Record::Partitions(spans) => ("MBR", spans),
        mbr::Record::Protective | mbr::Record::None => match gpt::read(disk)? {
            gpt::Gpt::Partitions(spans) => ("GPT", spans),
            gpt::Gpt::None if matches!(record, mbr::Record::None) => return Ok(None),
            gpt::Gpt::None | gpt::Gpt::Damaged => {
                return Err(Why::new("has a GPT partition table that is damaged (both copies)"));
            }
        },
        mbr::Record::Damaged => {
            return Err(Why::new(
                "has an MBR partition table that is damaged (logical partitions)",
            ));
        }
    };
    Ok(Some(Table { kind, spans, len: disk.len() }))
}

/// Reads a master boot record that may count sectors of either size, as a copy of a disk does: 512
/// bytes, unless more partitions hold something that is known when they are 4096.
fn mbr_of_file(disk: &dyn Device) -> io::Result<mbr::Record> {
    let (usual, large) = (mbr::read(disk, 512)?, mbr::read(disk, 4096)?);
    let known = |spans: &[Span]| {
        let partitions = spans.iter().filter(|span| span.owner != Owner::Table);
        partitions.filter(|span| signature::is_known_at(disk, span.bytes.start)).count()
    };
    let before = match &usual {
        mbr::Record::Partitions(spans) => known(spans),
        // Logical partitions alone are not found with sectors of another size.
        mbr::Record::None => 0,
        mbr::Record::Protective | mbr::Record::Damaged => return Ok(usual),
    };
    let fits = |spans: &[Span]| spans.iter().all(|span| span.bytes.end <= disk.len());
    match &large {
        mbr::Record::Partitions(spans) if fits(spans) && known(spans) > before => Ok(large),
        _ => Ok(usual),
    }
}

impl Table {
    /// The bytes of a partition.
    pub(crate) fn partition(&self, number: u32) -> Result<Range<u64>, Why> {
        let Some(bytes) = self.partitions().find(|(n, _)| *n == number).map(|(_, bytes)| bytes)
        else {
            let has = self.listed(|number, _| number.to_string());
            return Err(Why::new(format!("has no partition {number} (it has {has})")));
        };
        self.check_end(Owner::Partition(number), bytes)?;
        Ok(bytes.clone())
    }

    /// All partitions, in the order of the table.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = (u32, &Range<u64>)> {
        self.spans.iter().filter_map(|span| match span.owner {
            Owner::Partition(number) => Some((number, &span.bytes)),
            Owner::Table => None,
        })
    }

    /// The partitions for a message: each in a few words, or `none`.
    pub(crate) fn listed(&self, each: impl Fn(u32, &Range<u64>) -> String) -> String {
        let partitions = self.partitions().map(|(number, bytes)| each(number, bytes));
        let mut words: Vec<String> = partitions.take(NAMED_MAX + 1).collect();
        match words.len() {
            0 => words.push("none".to_owned()),
            1..=NAMED_MAX => {}
            _ => words[NAMED_MAX] = "...".to_owned(),
        }
        words.join(", ")
    }

    /// Where the room that begins at a byte ends: at the end of the partition it lies in, or before
    /// whatever is next. Refused where the byte is not free, or not one partition's alone.
    pub(crate) fn room_end(&self, start: u64) -> Result<u64, Why> {
        if start >= self.len {
            return Err(Why::new(format!("the disk ends at byte {}", self.len)));
        }
        let mut around = self.spans.iter().filter(|span| span.bytes.contains(&start));
        let (own, other) = (around.next(), around.next());
        let behind = self.spans.iter().filter(|span| span.bytes.start > start);
        let next = behind.min_by_key(|span| span.bytes.start);
        let overlap = |one: &Owner, two: &Owner| Err(Why::new(format!("{one} overlaps {two}")));
        match (own, other, next) {
            (Some(own), Some(other), _) => overlap(&own.owner, &other.owner),
            (Some(own), None, _) if own.owner == Owner::Table => {
                Err(Why::new(format!("byte {start} lies in the partition table")))
            }
            (Some(own), None, Some(next)) if next.bytes.start < own.bytes.end => {
                overlap(&own.owner, &next.owner)
            }
            (Some(own), None, _) => {
                self.check_end(own.owner, &own.bytes)?;
                Ok(own.bytes.end)
            }
            (None, _, next) => Ok(next.map_or(self.len, |next| next.bytes.start.min(self.len))),
        }
    }

    /// Where what begins at a byte ends at the latest, also where partitions overlap: at the end of
    /// what the byte lies in or before the next start, whichever is nearest. `None` behind the
    /// disk.
    pub(crate) fn nearest_end(&self, start: u64) -> Option<u64> {
        let bounds = self.spans.iter().filter_map(|span| match &span.bytes {
            bytes if bytes.start > start => Some(bytes.start),
            bytes if bytes.end > start => Some(bytes.end),
            _ => None,
        });
        bounds.chain([self.len]).min().filter(|end| *end > start)
    }

    fn check_end(&self, owner: Owner, bytes: &Range<u64>) -> Result<(), Why> {
        if bytes.end > self.len {
            let (end, len) = (bytes.end, self.len);
            return Err(Why::new(format!("{owner} ends at byte {end}, but the disk at {len}")));
        }
        Ok(())
    }
}

/// Bytes of the disk; `None` where it is too short for them.
fn bytes_at(disk: &dyn Device, at: Option<u64>, len: usize) -> io::Result<Option<Vec<u8>>> {
    let fits = |at: &u64| at.checked_add(len as u64).is_some_and(|end| end <= disk.len());
    let Some(at) = at.filter(fits) else { return Ok(None) };
    let mut bytes = vec![0; len];
    disk.read_at(at, &mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
