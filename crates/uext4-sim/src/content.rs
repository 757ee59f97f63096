//! What a file holds, and what it may hold after a crash.
//!
//! # What
//! Every byte that a load writes is told by its pattern: file, generation of the write, position.
//! [`Content`] keeps for each range which generation was written last; 0 stands for zero bytes, and
//! everything behind the size is zero, as the format has it.
//!
//! After a crash each byte is, independently of the others, what it was at the last completed sync
//! or what any later operation made of it ([`check`]). The size lies between the smallest and the
//! largest since that sync: writeback of a range may be cut anywhere.
//!
//! Ranges that are taken out or put in move everything behind them, at once and in order (D34): a
//! recovered file is at one *epoch*, the number of shifts that it shows. What other epochs wrote is
//! looked for where its blocks are in this one ([`Shift`]), for a write after a shift that was lost
//! is in its block all the same. Sizes are those of the epoch. The range of a shift that was lost
//! may be punched already. Not covered: a shift in several handles; no file here is so large.

use crate::model::Rules;
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

/// The bytes of a file as they were read: its size and the ranges that hold data; the rest are
/// holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileBytes {
    /// Bytes.
    pub size: u64,
    /// Offset and bytes of each range, in order.
    pub data: Vec<(u64, Vec<u8>)>,
}

impl FileBytes {
    /// Parts of `range` in order: bytes, or `None` for a hole.
    fn parts(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<&[u8]>)> {
        let mut parts = Vec::new();
        let mut at = range.start;
        for (start, bytes) in &self.data {
            let end = (start + bytes.len() as u64).min(range.end);
            if end <= at {
                continue;
            }
            if *start >= range.end {
                break;
            }
            if *start > at {
                parts.push((at..*start, None));
                at = *start;
            }
            parts.push((at..end, Some(&bytes[(at - start) as usize..(end - start) as usize])));
            at = end;
        }
        if at < range.end {
            parts.push((at..range.end, None));
        }
        parts
    }
}

/// Checks a recovered file against what it held at the last completed sync and the effects since.
///
/// # Errors
/// What is wrong, with the place and what stands there.
pub fn check(
    id: Id,
    synced: &Content,
    later: &[Effect],
    found: &FileBytes,
    rules: Rules,
) -> Result<(), String> {
    let epochs = later.iter().filter(|effect| effect.shift.is_some()).count();
    if epochs == 0 {
        return check_epoch(id, synced, later, found, rules);
    }
    let mut faults = Vec::new();
    for epoch in 0..=epochs {
        let (content, effects) = as_of_epoch(synced, later, epoch);
        match check_epoch(id, &content, &effects, found, rules) {
            Ok(()) => return Ok(()),
            Err(fault) => faults.push(format!("after {epoch} shifts: {fault}")),
        }
    }
    Err(faults.join("; "))
}

/// What a file held when `epoch` shifts of those in `later` had happened, if nothing else had, and
/// the other effects in its places and with its sizes.
fn as_of_epoch(synced: &Content, later: &[Effect], epoch: usize) -> (Content, Vec<Effect>) {
    let shifts: Vec<&Shift> = later.iter().filter_map(|effect| effect.shift.as_ref()).collect();
    let mut content = synced.clone();
    for effect in later.iter().filter(|effect| effect.shift.is_some()).take(epoch) {
        content.apply(effect);
    }
    let mut effects = Vec::new();
    let mut done = 0;
    for effect in later {
        if let Some(shift) = &effect.shift {
            if done == epoch && shift.out {
                // It may have freed its range before it was lost.
                let (range, size) = (shift.range.clone(), content.size);
                effects.push(Effect { range, size, ..Effect::default() });
            }
            done += 1;
            continue;
        }
        let (range, generation) = (effect.range.clone(), effect.generation);
        let mut parts = vec![range];
        let through = |parts: Vec<Range<u64>>, shift: &Shift| -> Vec<Range<u64>> {
            let moved = parts.iter().flat_map(|part| shift.moved(part));
            moved.filter(|part| !part.is_empty()).collect()
        };
        if done == epoch {
            effects.push(effect.clone());
            continue;
        }
        for shift in shifts.iter().take(epoch).skip(done) {
            parts = through(parts, shift);
        }
        for shift in shifts.iter().take(done).skip(epoch).rev() {
            parts = through(parts, &shift.inverse());
        }
        let size = content.size;
        let moved = parts.into_iter();
        effects.extend(moved.map(|range| Effect { range, generation, size, ..Effect::default() }));
    }
    (content, effects)
}

/// As [`check`], among effects that move nothing.
fn check_epoch(
    id: Id,
    synced: &Content,
    later: &[Effect],
    found: &FileBytes,
    rules: Rules,
) -> Result<(), String> {
    let sizes = later.iter().map(|effect| effect.size).chain([synced.size]);
    let (least, most) =
        sizes.fold((u64::MAX, 0), |(least, most), size| (least.min(size), most.max(size)));
    if found.size < least || found.size > most {
        return Err(format!("size {} is not between {least} and {most}", found.size));
    }
    // Writeback and allocation may be cut between blocks, but nowhere else.
    let is_of = |e: &Effect| e.size == found.size || e.size_between == Some(found.size);
    let had = found.size == synced.size || later.iter().any(is_of);
    if rules.sizes_were_had && !had && !found.size.is_multiple_of(BLOCK_BYTES_MIN) {
        return Err(format!("size {} is one that the file never had", found.size));
    }
    for range in segments(synced, later, found.size) {
        let is_late = |effect: &Effect| effect.range.contains(&range.start);
        // A hole around what was written since came into being with the mapping of its block.
        let is_hole = synced.at(range.start) == 0;
        let is_near = |effect: &Effect| is_hole && blocks_of(effect).contains(&range.start);
        if rules.data_may_be_late && later.iter().any(|e| is_late(e) || is_near(e)) {
            continue;
        }
        let mut allowed = vec![synced.at(range.start)];
        for effect in later {
            if is_late(effect) && !allowed.contains(&effect.generation) {
                allowed.push(effect.generation);
            }
        }
        for (part, bytes) in found.parts(range) {
            check_part(id, &allowed, part, bytes)?;
        }
    }
    Ok(())
}

/// As [`check`] where data goes through the journal: the file is as it was at one moment since the
/// sync, or in the middle of one operation that takes several handles. Truncations, and writes of
/// at most `whole_max` bytes, are no such operations.
///
/// # Errors
/// As [`check`].
pub fn check_moment(
    id: Id,
    synced: &Content,
    later: &[Effect],
    found: &FileBytes,
    whole_max: u64,
) -> Result<(), String> {
    check(id, synced, later, found, Rules::EXACT)?;
    let mut moment = synced.clone();
    let is = |moment: &Content, during: &[Effect]| {
        check(id, moment, during, found, Rules::EXACT).is_ok()
    };
    if is(&moment, &[]) {
        return Ok(());
    }
    for effect in later {
        let during = match &effect.shift {
            Some(shift) if shift.out => {
                let (range, size) = (shift.range.clone(), moment.size);
                Some(Effect { range, size, ..Effect::default() })
            }
            Some(_) => None,
            None => (!effect.is_one_handle(whole_max)).then(|| effect.clone()),
        };
        if during.is_some_and(|during| is(&moment, &[during])) {
            return Ok(());
        }
        moment.apply(effect);
        if is(&moment, &[]) {
            return Ok(());
        }
    }
    let moments = later.len() + 1;
    Err(format!(
        "each byte is one that the file held, but all together at none of {moments} moments"
    ))
}

/// The largest blocks that the range of an effect touches.
fn blocks_of(effect: &Effect) -> Range<u64> {
    let Range { start, end } = effect.range;
    if start >= end {
        return 0..0;
    }
    let most = BLOCK_BYTES_MAX;
    start - start % most..end.checked_next_multiple_of(most).unwrap_or(u64::MAX)
}

/// Ranges below `size` inside which every byte has the same past.
fn segments(synced: &Content, later: &[Effect], size: u64) -> Vec<Range<u64>> {
    let mut bounds: Vec<u64> = later
        .iter()
        .flat_map(|effect| {
            let blocks = blocks_of(effect);
            [effect.range.start, effect.range.end, blocks.start, blocks.end]
        })
        .chain(synced.runs.iter().flat_map(|(start, (end, _))| [*start, *end]))
        .filter(|bound| *bound < size)
        .chain([0, size])
        .collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn check_part(
    id: Id,
    allowed: &[u32],
    range: Range<u64>,
    bytes: Option<&[u8]>,
) -> Result<(), String> {
    let Some(bytes) = bytes else {
        if allowed.contains(&0) {
            return Ok(());
        }
        return Err(format!("bytes {range:?} are a hole; allowed are generations {allowed:?}"));
    };
    let patterns: Vec<[u8; 8]> =
        allowed.iter().map(|&g| if g == 0 { [0; 8] } else { pattern(id, g) }).collect();
    let fits = |at: u64, byte: u8| patterns.iter().any(|p| p[(at & 7) as usize] == byte);
    let Some(wrong) = (range.start..).zip(bytes).position(|(at, &byte)| !fits(at, byte)) else {
        return Ok(());
    };
    let end = bytes.len().min(wrong + 16);
    let count = (range.start..).zip(bytes).filter(|&(at, &byte)| !fits(at, byte)).count();
    Err(format!(
        "byte {} (and {} more of {range:?}) was never written: {:02x?}; allowed are generations \
         {allowed:?}",
        range.start + wrong as u64,
        count - 1,
        &bytes[wrong..end],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Id = 0x10_0007;

    fn write(offset: u64, len: u64, generation: u32) -> Operation {
        Operation::Write { id: ID, offset, len, generation, append: false, direct: false }
    }

    fn apply(content: &mut Content, operation: &Operation) -> Effect {
        let effect = Effect::of(operation, content.size).unwrap();
        content.apply(&effect);
        effect
    }

    /// The bytes that `content` stands for, with a hole where nothing was written.
    fn bytes_of(content: &Content) -> FileBytes {
        let mut bytes = vec![0; content.size as usize];
        for (at, byte) in bytes.iter_mut().enumerate() {
            let generation = content.at(at as u64);
            if generation > 0 {
                *byte = pattern(ID, generation)[at & 7];
            }
        }
        FileBytes { size: content.size, data: vec![(0, bytes)] }
    }

    #[test]
    fn runs_are_cut_and_replaced() {
        let mut content = Content::default();
        apply(&mut content, &write(10, 30, 1));
        apply(&mut content, &write(20, 5, 2));
        apply(&mut content, &Operation::Punch { id: ID, offset: 35, len: 100 });
        apply(&mut content, &write(50, 10, 3));
        apply(&mut content, &Operation::Resize { id: ID, size: 55 });
        let at: Vec<u32> =
            [9, 10, 19, 20, 24, 25, 34, 35, 50, 54, 55].map(|b| content.at(b)).into();
        assert_eq!(at, [0, 1, 1, 2, 2, 1, 1, 0, 3, 3, 0]);
        assert_eq!(content.size, 55);
    }

    #[test]
    fn the_synced_state_and_any_later_one_pass() {
        let mut content = Content::default();
        apply(&mut content, &write(0, 100, 1));
        let synced = content.clone();
        let later = [
            apply(&mut content, &write(40, 20, 2)),
            apply(&mut content, &Operation::Resize { id: ID, size: 50 }),
            apply(&mut content, &write(70, 10, 3)),
        ];
        check(ID, &synced, &later, &bytes_of(&synced), Rules::EXACT).unwrap();
        check(ID, &synced, &later, &bytes_of(&content), Rules::EXACT).unwrap();
        // A mixture: the new bytes without the truncation.
        let mut mixed = synced.clone();
        apply(&mut mixed, &write(70, 10, 3));
        check(ID, &synced, &later, &bytes_of(&mixed), Rules::EXACT).unwrap();
    }

    #[test]
    fn what_is_behind_a_shift_moves_with_it_or_not_at_all() {
        let mut content = Content::default();
        apply(&mut content, &write(0, 12_000, 1));
        apply(&mut content, &write(4096, 4096, 2));
        let synced = content.clone();
        let collapse = apply(&mut content, &Operation::Collapse { id: ID, offset: 0, len: 4096 });
        assert_eq!((content.size, content.at(0), content.at(4096)), (7904, 2, 1));
        let shifted = content.clone();
        let over = apply(&mut content, &write(100, 50, 3));
        let insert = apply(&mut content, &Operation::Insert { id: ID, offset: 4096, len: 4096 });
        assert_eq!((content.size, content.at(4096), content.at(8192)), (12_000, 0, 1));
        let later = [collapse, over, insert];
        let verdict = |found: &FileBytes| check(ID, &synced, &later, found, Rules::EXACT);
        for moment in [&synced, &shifted, &content] {
            verdict(&bytes_of(moment)).unwrap();
        }
        // The shift was lost, and the write after it was not; the punch before it was not.
        let mut moved = synced.clone();
        apply(&mut moved, &write(4196, 50, 3));
        verdict(&bytes_of(&moved)).unwrap();
        apply(&mut moved, &Operation::Punch { id: ID, offset: 0, len: 4096 });
        verdict(&bytes_of(&moved)).unwrap();
        // Half of a shift, and one with the size of another moment.
        apply(&mut moved, &Operation::Punch { id: ID, offset: 4096, len: 100 });
        verdict(&bytes_of(&moved)).unwrap_err();
        let mut half = shifted.clone();
        half.size = 12_000;
        verdict(&bytes_of(&half)).unwrap_err();
        let mut old_place = shifted;
        apply(&mut old_place, &write(4196, 50, 3));
        verdict(&bytes_of(&old_place)).unwrap_err();
    }

    #[test]
    fn lost_and_foreign_bytes_are_found() {
        let mut content = Content::default();
        apply(&mut content, &write(0, 100, 1));
        let mut found = bytes_of(&content);
        found.data[0].1[50] = 0;
        let error = check(ID, &content, &[], &found, Rules::EXACT).unwrap_err();
        assert!(error.starts_with("byte 50 (and 0 more"), "{error}");
        found = FileBytes { size: 100, data: Vec::new() };
        assert!(check(ID, &content, &[], &found, Rules::EXACT).unwrap_err().contains("are a hole"));
        found = FileBytes { size: 99, data: Vec::new() };
        assert!(check(ID, &content, &[], &found, Rules::EXACT).unwrap_err().starts_with("size 99"));
        // Bytes of a generation that was overwritten before the sync.
        let stale = bytes_of(&content);
        apply(&mut content, &write(10, 10, 2));
        assert!(
            check(ID, &content, &[], &stale, Rules::EXACT).unwrap_err().starts_with("byte 10 ")
        );
        // What has been written since the sync may be anything if data may be late, and no more.
        let late = Rules { data_may_be_late: true, ..Rules::EXACT };
        let synced = content.clone();
        let later = [apply(&mut content, &write(20, 10, 3))];
        found = bytes_of(&synced);
        found.data[0].1[25] = 0xa5;
        check(ID, &synced, &later, &found, Rules::EXACT).unwrap_err();
        check(ID, &synced, &later, &found, late).unwrap();
        found.data[0].1[30] = 0xa5; // synced
        check(ID, &synced, &later, &found, late).unwrap_err();
    }

    #[test]
    fn journaled_content_is_of_one_moment() {
        let mut content = Content::default();
        apply(&mut content, &write(0, 9000, 1));
        let synced = content.clone();
        let small = apply(&mut content, &write(100, 2000, 2));
        let after_small = content.clone();
        let large = apply(&mut content, &write(0, 8192, 3));
        let later = [small, large];
        let passes =
            |content: &Content| check_moment(ID, &synced, &later, &bytes_of(content), 4096).is_ok();
        assert!(passes(&synced) && passes(&after_small) && passes(&content));
        // The large write up to a block.
        let mut part = after_small.clone();
        apply(&mut part, &write(0, 4096, 3));
        assert!(passes(&part));
        // Half of the small one, and the large one without it.
        let mut torn = synced.clone();
        apply(&mut torn, &write(100, 924, 2));
        assert!(!passes(&torn));
        let mut reordered = synced.clone();
        apply(&mut reordered, &write(4096, 4096, 3));
        assert!(!passes(&reordered));
        check(ID, &synced, &later, &bytes_of(&torn), Rules::EXACT).unwrap();
        // Half of it, if it was two requests of a queue.
        let mut later = later;
        later[0].size_between = Some(synced.size);
        check_moment(ID, &synced, &later, &bytes_of(&torn), 4096).unwrap();
        check_moment(ID, &synced, &later, &bytes_of(&reordered), 4096).unwrap_err();
    }

    #[test]
    fn parts_tell_holes_from_data() {
        let found = FileBytes { size: 40, data: vec![(10, vec![1; 10]), (30, vec![2; 5])] };
        let parts: Vec<_> =
            found.parts(5..33).into_iter().map(|(r, b)| (r, b.map(<[u8]>::len))).collect();
        assert_eq!(parts, [(5..10, None), (10..20, Some(10)), (20..30, None), (30..33, Some(3))]);
    }
}
