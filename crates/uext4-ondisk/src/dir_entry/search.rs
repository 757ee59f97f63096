//! Searching an unchecked block for a name, and for room for a new one.

use super::{DirBlock, DirEntry, RecordForm, StoredName, tail::usable};
use crate::error::CorruptKind;
use crate::num::idx;

/// The result of one pass over a block for a name that may be added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The name is there.
    pub found: bool,
    /// Offset of the first record with a gap that is large enough, for
    /// [`insert_at`](super::insert_at).
    pub gap: Option<u32>,
    /// Whether the name has room, if need be after the records are moved together.
    pub has_room: bool,
}

/// Looks for a name and for room for it.
///
/// # Errors
/// A malformed record. If the name is found, only a malformed record before it.
pub fn scan(block: &[u8], name: &[u8], has_csum_tail: bool) -> Result<Scan, CorruptKind> {
    scan_by(block, name.into(), |entry| entry.name == name, has_csum_tail, RecordForm::Plain)
}

/// As [`scan`], for a name that is stored so; `is_it` tells the entries that have it from others.
///
/// # Errors
/// As [`scan`].
pub fn scan_by(
    block: &[u8],
    name: StoredName<'_>,
    is_it: impl Fn(&DirEntry<'_>) -> bool,
    has_csum_tail: bool,
    form: RecordForm,
) -> Result<Scan, CorruptKind> {
    let need = name.record_len();
    let area = usable(block, has_csum_tail);
    let (mut gap, mut taken) = (None, 0_u32);
    for entry in DirBlock::new(block.get(..area).unwrap_or_default()).of(form) {
        let entry = entry?;
        if entry.is_live() && is_it(&entry) {
            return Ok(Scan { found: true, gap: None, has_room: false });
        }
        let used = entry.used();
        taken = taken.saturating_add(used);
        if gap.is_none() && entry.rec_len.saturating_sub(used) >= need {
            gap = Some(entry.offset);
        }
    }
    Ok(Scan { found: false, gap, has_room: idx(taken.saturating_add(need)) <= area })
}

/// The live record with this name.
///
/// # Errors
/// A malformed record before it.
pub fn find<'a>(block: &'a [u8], name: &[u8]) -> Result<Option<DirEntry<'a>>, CorruptKind> {
    let mut live = DirBlock::new(block).live();
    live.find(|entry| entry.as_ref().map_or(true, |entry| entry.name == name)).transpose()
}
