//! Maps of sparse files: GNU's old one in header blocks, and the three of pax headers.

use std::ops::Range;

use crate::entry::Content;
use crate::error::{Error, Result};
use crate::extended::decimal;
use crate::header::{Header, number};
use crate::input::{BLOCK, Input};

/// Most data ranges of a file: a limit for memory.
const RANGES_MAX: usize = 4 << 20;

/// Fields of GNU's old header: four ranges, a mark that blocks of 21 follow, the real length.
const OLD_RANGES: usize = 386;
const OLD_CONTINUES: usize = 482;
const OLD_LEN: usize = 483;
const MORE_RANGES: usize = 21;
const MORE_CONTINUES: usize = 504;
const NUMBER_BYTES: usize = 12;

/// `GNU.sparse.` records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    major: Option<u64>,
    pub(crate) name: Option<Vec<u8>>,
    len: Option<u64>,
    ranges: Vec<Range<u64>>,
    /// Of 0.0: the start whose length comes in the next record.
    start: Option<u64>,
}

/// A map, and how many bytes of the stored content it took itself.
pub(crate) struct Map {
    pub(crate) len: u64,
    pub(crate) ranges: Vec<Range<u64>>,
    pub(crate) taken: u64,
}

const MALFORMED: &str = "malformed map of a sparse file";
const TOO_LONG: &str = "map of a sparse file with more than 4194304 ranges";

impl Words {
    /// Whether the entry is a sparse file.
    pub(crate) fn is_given(&self) -> bool {
        self.major.is_some() || self.len.is_some()
    }

    pub(crate) fn apply(
        &mut self,
        key: &[u8],
        value: &[u8],
    ) -> std::result::Result<(), &'static str> {
        let number = || decimal(value).ok_or(MALFORMED);
        match key {
            b"major" => self.major = Some(number()?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.len = Some(number()?),
            b"offset" => self.start = Some(number()?),
            b"numbytes" => {
                let start = self.start.take().ok_or(MALFORMED)?;
                push(&mut self.ranges, start, number()?)?;
            }
            b"map" => {
                let mut numbers = value.split(|byte| *byte == b',');
                while let Some(start) = numbers.next() {
                    let pair = decimal(start).zip(numbers.next().and_then(decimal));
                    let (start, len) = pair.ok_or(MALFORMED)?;
                    push(&mut self.ranges, start, len)?;
                }
            }
            // `minor`, and `numblocks`, which only says what the map has.
            _ => {}
        }
        Ok(())
    }

    /// The map; that of 1.0 stands before the content itself.
    pub(crate) fn map(&mut self, input: &mut Input, stored: u64) -> Result<Map> {
        let len = self.len.unwrap_or(0);
        if self.major.unwrap_or(0) == 0 {
            return Ok(Map { len, ranges: std::mem::take(&mut self.ranges), taken: 0 });
        }
        let at = input.at();
        let mut lines = Lines { input, left: stored, block: [0; BLOCK], used: BLOCK };
        let count = lines.number()?;
        if count > RANGES_MAX as u64 {
            return Err(Error::Damaged { at, what: TOO_LONG });
        }
        let mut ranges = Vec::new();
        for _ in 0..count {
            let (start, len) = (lines.number()?, lines.number()?);
            push(&mut ranges, start, len).map_err(|what| Error::Damaged { at, what })?;
        }
        Ok(Map { len, ranges, taken: stored - lines.left })
    }
}

fn push(
    ranges: &mut Vec<Range<u64>>,
    start: u64,
    len: u64,
) -> std::result::Result<(), &'static str> {
    if ranges.len() == RANGES_MAX {
        return Err(TOO_LONG);
    }
    ranges.push(start..start.checked_add(len).ok_or(MALFORMED)?);
    Ok(())
}

/// Decimal numbers, one a line, in whole blocks of the content.
struct Lines<'a> {
    input: &'a mut Input,
    left: u64,
    block: [u8; BLOCK],
    used: usize,
}

impl Lines<'_> {
    fn number(&mut self) -> Result<u64> {
        let malformed = |input: &Input| Error::Damaged { at: input.at(), what: MALFORMED };
        let mut digits = Vec::new();
        loop {
            if self.used == BLOCK {
                self.left = self.left.checked_sub(BLOCK as u64).ok_or(malformed(self.input))?;
                self.input.exact(&mut self.block)?;
                self.used = 0;
            }
            let byte = self.block[self.used];
            self.used += 1;
            match byte {
                b'\n' => return decimal(&digits).ok_or(malformed(self.input)),
                byte if digits.len() < 20 => digits.push(byte),
                _ => return Err(malformed(self.input)),
            }
        }
    }
}

/// The map of GNU's old format; its further blocks stand before the content and are not counted in
/// the size.
pub(crate) fn old_map(header: &Header, input: &mut Input) -> Result<Map> {
    let at = input.at();
    let damaged = |what| Error::Damaged { at, what };
    let block = header.block();
    let mut ranges = Vec::new();
    old_ranges(&block[OLD_RANGES..OLD_CONTINUES], &mut ranges).map_err(damaged)?;
    let mut continues = block[OLD_CONTINUES] != 0;
    while continues {
        let mut more = [0; BLOCK];
        input.exact(&mut more)?;
        let part = &more[..MORE_RANGES * 2 * NUMBER_BYTES];
        old_ranges(part, &mut ranges).map_err(damaged)?;
        continues = more[MORE_CONTINUES] != 0;
    }
    let len = unsigned(&block[OLD_LEN..OLD_LEN + NUMBER_BYTES]).ok_or(damaged(MALFORMED))?;
    Ok(Map { len, ranges, taken: 0 })
}

fn old_ranges(
    fields: &[u8],
    ranges: &mut Vec<Range<u64>>,
) -> std::result::Result<(), &'static str> {
    for field in fields.chunks_exact(2 * NUMBER_BYTES) {
        let (start, len) = field.split_at(NUMBER_BYTES);
        // Fields that are not used.
        if start[0] == 0 || len[0] == 0 {
            break;
        }
        let (start, len) = unsigned(start).zip(unsigned(len)).ok_or(MALFORMED)?;
        push(ranges, start, len)?;
    }
    Ok(())
}

fn unsigned(field: &[u8]) -> Option<u64> {
    number(field).and_then(|value| u64::try_from(value).ok())
}

impl Map {
    /// The content, if the ranges are in order, within the length, and as many bytes as are stored.
    pub(crate) fn content(self, stored: u64) -> std::result::Result<Content, String> {
        let Some(content) = Content::sparse(self.len, self.ranges) else {
            return Err("has a map whose ranges overlap or exceed its length".to_owned());
        };
        let has = content.stored();
        if has != stored {
            return Err(format!("has {stored} bytes, but a map of {has}"));
        }
        Ok(content)
    }
}
