//! What a file holds.
//!
//! # What
//! Every byte that a load writes is told by its pattern: file, generation of the write, position.
//! [`Content`] keeps for each range which generation was written last; 0 stands for zero bytes, and
//! everything behind the size is zero, as the format has it.
//!
//! Ranges that are taken out or put in move everything behind them, at once and in order (D34).
//! What may be left of all that after a crash is said in [`check`](check()).

mod check;
#[cfg(test)]
mod tests;

pub use check::{FileBytes, check, check_moment};

use crate::operation::{Id, Operation};
use std::collections::BTreeMap;
use std::ops::Range;

/// Smallest block of the format.
pub const BLOCK_BYTES_MIN: u64 = 1024;
/// Largest block that the kit makes.
const BLOCK_BYTES_MAX: u64 = 4096;

/// The eight bytes that repeat through what one write puts into a file. None of them is zero.
#[must_use]
pub fn pattern(id: Id, generation: u32) -> [u8; 8] {
    let mut word = u64::from(id) << 32 | u64::from(generation);
    // The finisher of splitmix64: neighbours share nothing.
    word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^= word >> 31;
    let mut bytes = [0; 8];
    for byte in &mut bytes {
        *byte = (word & 0xff).max(1) as u8;
        word >>= 8;
    }
    bytes
}

/// Fills `buf`, which stands at byte `offset` of the file, with the pattern of a write.
pub fn fill(buf: &mut [u8], id: Id, generation: u32, offset: u64) {
    let pattern = pattern(id, generation);
    for (at, byte) in (offset..).zip(buf) {
        *byte = pattern[(at & 7) as usize];
    }
}

/// Effect of an operation on a file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The bytes that change.
    pub range: Range<u64>,
    /// What they become: a generation, or 0 for zero bytes.
    pub generation: u32,
    /// The size afterwards.
    pub size: u64,
    /// The size in between, where the write is two requests ([`queued_front`]) that may be mapped
    /// one after the other.
    pub size_between: Option<u64>,
    /// What is behind this range moves; no byte changes besides.
    pub shift: Option<Shift>,
}

/// A range that is taken out of a file, or put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shift {
    /// In bytes, in the file in which it is.
    pub range: Range<u64>,
    /// Taken out; else put in.
    pub out: bool,
}

impl Shift {
    /// What takes it back, content apart.
    fn inverse(&self) -> Shift {
        Shift { range: self.range.clone(), out: !self.out }
    }

    /// Where a range is afterwards: its part before the shift, and its part behind. What is taken
    /// out is nowhere.
    fn moved(&self, range: &Range<u64>) -> [Range<u64>; 2] {
        let Range { start, end } = self.range;
        let len = end - start;
        let from = if self.out { end } else { start };
        let before = range.start..range.end.min(start).max(range.start);
        let behind = range.start.max(from)..range.end;
        let place = |at: u64| match at {
            u64::MAX => at,
            at if self.out => at - len,
            at => at + len,
        };
        let is_there = behind.start < behind.end;
        let behind = if is_there { place(behind.start)..place(behind.end) } else { 0..0 };
        [before, behind]
    }
}

/// Whether the direct write of a generation goes by a queue, in two requests.
pub(crate) fn is_queued(generation: u32) -> bool {
    generation % 2 == 1
}

/// Bytes of the first of the two requests: whole sectors.
pub(crate) fn queued_front(len: u64) -> u64 {
    len / 1024 * 512
}

impl Effect {
    /// Whether a crash shows it wholly or not at all where data is journaled.
    fn is_one_handle(&self, whole_max: u64) -> bool {
        let is_write = self.generation != 0;
        let cuts = self.range.end == u64::MAX;
        // Two requests of a queue are two writes.
        let is_one = is_write && self.size_between.is_none();
        cuts || (is_one && self.range.end - self.range.start <= whole_max)
    }

    /// Effect of `operation` on a file of `size` bytes; `None` for operations on anything else.
    #[must_use]
    pub fn of(operation: &Operation, size: u64) -> Option<Effect> {
        Some(match *operation {
            Operation::Write { offset, len, generation, append, direct, .. } => {
                let end = offset + len;
                let is_queued = direct && !append && is_queued(generation);
                let between = is_queued.then(|| size.max(offset + queued_front(len)));
                Effect {
                    range: offset..end,
                    generation,
                    size: size.max(end),
                    size_between: between,
                    shift: None,
                }
            }
            Operation::Resize { size: new, .. } => {
                let range = if new < size { new..u64::MAX } else { 0..0 };
                Effect { range, size: new, ..Effect::default() }
            }
            Operation::Allocate { offset, len, keep_size, .. } => {
                let size = if keep_size { size } else { size.max(offset + len) };
                Effect { size, ..Effect::default() }
            }
            Operation::Punch { offset, len, .. } => {
                Effect { range: offset..offset + len, size, ..Effect::default() }
            }
            Operation::Zero { offset, len, keep_size, .. } => {
                let size = if keep_size { size } else { size.max(offset + len) };
                Effect { range: offset..offset + len, size, ..Effect::default() }
            }
            Operation::Collapse { offset, len, .. } => {
                let shift = Some(Shift { range: offset..offset + len, out: true });
                Effect { size: size - len, shift, ..Effect::default() }
            }
            Operation::Insert { offset, len, .. } => {
                let shift = Some(Shift { range: offset..offset + len, out: false });
                Effect { size: size + len, shift, ..Effect::default() }
            }
            _ => return None,
        })
    }
}

/// What a file holds at one moment.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Bytes.
    pub size: u64,
    /// Start of a range to its end and generation; gaps are zero.
    runs: BTreeMap<u64, (u64, u32)>,
}

impl Content {
    /// Applies an effect.
    pub fn apply(&mut self, effect: &Effect) {
        self.size = effect.size;
        if let Some(shift) = &effect.shift {
            self.shift(shift);
        }
        let Range { start, end } = effect.range;
        if start >= end {
            return;
        }
        let touched: Vec<(u64, u64, u32)> = self
            .runs
            .range(..end)
            .rev()
            .take_while(|(_, (run_end, _))| *run_end > start)
            .map(|(&at, &(run_end, generation))| (at, run_end, generation))
            .collect();
        for (at, run_end, generation) in touched {
            self.runs.remove(&at);
            if at < start {
                self.runs.insert(at, (start, generation));
            }
            if run_end > end {
                self.runs.insert(end, (run_end, generation));
            }
        }
        if effect.generation != 0 {
            self.runs.insert(start, (end, effect.generation));
        }
    }

    fn shift(&mut self, shift: &Shift) {
        for (start, (end, generation)) in std::mem::take(&mut self.runs) {
            let parts = shift.moved(&(start..end)).into_iter().filter(|part| !part.is_empty());
            self.runs.extend(parts.map(|part| (part.start, (part.end, generation))));
        }
    }

    fn at(&self, byte: u64) -> u32 {
        match self.runs.range(..=byte).next_back() {
            Some((_, (end, generation))) if *end > byte => *generation,
            _ => 0,
        }
    }
}
