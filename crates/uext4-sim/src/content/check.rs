//! What a file may hold after a crash.
//!
//! Each byte is, independently of the others, what it was at the last completed sync or what any
//! later operation made of it ([`check`]). The size lies between the smallest and the largest since
//! that sync: writeback of a range may be cut anywhere.
//!
//! A recovered file is at one *epoch*, the number of shifts that it shows. What other epochs wrote
//! is looked for where its blocks are in this one ([`Shift`]), for a write after a shift that was
//! lost is in its block all the same. Sizes are those of the epoch. The range of a shift that was
//! lost may be punched already. Not covered: a shift in several handles; no file here is so large.

use super::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Content, Effect, Shift, pattern};
use crate::model::Rules;
use crate::operation::Id;
use std::ops::Range;

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
    pub(super) fn parts(&self, range: Range<u64>) -> Vec<(Range<u64>, Option<&[u8]>)> {
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
