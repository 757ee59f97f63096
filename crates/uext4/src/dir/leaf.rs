//! Leaves of a hash tree as bytes: room, order by hash, splitting, packing.
//!
//! What: pure functions over the bytes of one block.
//! Invariants: a leaf that has no room for a new record has at least three live records, because a
//! record is at most 272 bytes and a leaf at least 1012. Each half of its split has room for the
//! new record.

use std::ops::RangeInclusive;
use uext4_ondisk::CorruptKind;
use uext4_ondisk::dir_entry::{self, DirBlock, RawDirEntry, RecordForm, StoredName, TAIL_SIZE};
use uext4_ondisk::hash::DirHasher;

/// A live record: the hash of its name, its offset, and the bytes it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hashed {
    hash: u32,
    offset: u32,
    len: u32,
}

/// How the names of one leaf are hashed, and the hashes that they may have.
#[derive(Clone, Debug)]
pub(super) struct LeafHasher {
    pub(super) hasher: DirHasher,
    pub(super) range: RangeInclusive<u32>,
}

impl LeafHasher {
    /// The hash that a name of the leaf is split by. A name in the wrong leaf, which is damage,
    /// stays at the end that it is nearer to: the new index entry must not leave the leaf's hashes.
    fn hash(&self, name: StoredName<'_>) -> u32 {
        match self.hasher.hash_within(name, &self.range) {
            Some((hash, _)) => hash,
            None => DirHasher::near_end(self.hasher.hash_of(name).0, &self.range),
        }
    }
}

/// A leaf that was split.
#[derive(Debug)]
pub(super) struct Halves {
    /// The leaf with the lower hashes.
    pub(super) lower: Vec<u8>,
    /// The new leaf, with the higher ones.
    pub(super) upper: Vec<u8>,
    /// Least hash of the new leaf.
    pub(super) hash: u32,
    /// Whether the lower leaf also has names with that hash.
    pub(super) is_continued: bool,
}

impl Halves {
    /// The hash of the new leaf's index entry.
    pub(super) fn index_hash(&self) -> u32 {
        self.hash | u32::from(self.is_continued)
    }

    /// The half for a name with this hash.
    pub(super) fn half_for(&mut self, hash: u32) -> &mut Vec<u8> {
        if hash >= self.hash { &mut self.upper } else { &mut self.lower }
    }
}

/// How the blocks of a directory are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Whether a block ends in the record with the checksum.
    pub(super) has_tail: bool,
    pub(super) records: RecordForm,
}

/// Bytes of a block that records may use.
fn usable(block: &[u8], has_tail: bool) -> usize {
    block.len().saturating_sub(if has_tail { TAIL_SIZE } else { 0 })
}

/// The records of a block, without the one with the checksum.
pub(super) fn records(block: &[u8], form: Form) -> DirBlock<'_> {
    DirBlock::new(&block[..usable(block, form.has_tail)]).of(form.records)
}

/// Whether a name fits when the records are packed.
pub(super) fn has_room(
    block: &[u8],
    name: StoredName<'_>,
    form: Form,
) -> Result<bool, CorruptKind> {
    let mut used = name.record_len() as usize;
    for entry in records(block, form) {
        used += entry?.used() as usize;
    }
    Ok(used <= usable(block, form.has_tail))
}

/// The block with its live records moved together, in the same order, and one gap at the end.
pub(super) fn pack(block: &[u8], form: Form) -> Result<Vec<u8>, CorruptKind> {
    let mut live = Vec::new();
    for entry in records(block, form).live() {
        let entry = entry?;
        live.push((entry.offset, entry.used()));
    }
    Ok(copy_packed(block, &live, form.has_tail))
}

/// Splits the live records of a leaf by hash into two leaves of about the same size. `first`: the
/// block is the first one of a directory that becomes a tree; its `.` and `..` are left out.
pub(super) fn split(
    block: &[u8],
    hasher: &LeafHasher,
    form: Form,
    first: bool,
) -> Result<Halves, CorruptKind> {
    let records = by_hash(block, hasher, form, first)?;
    if records.len() < 2 {
        return Err(CorruptKind::Rule { what: "directory block", why: "is too empty to split" });
    }
    let at = split_point(&records, block.len());
    let places = |part: &[Hashed]| part.iter().map(|r| (r.offset, r.len)).collect::<Vec<_>>();
    let (lower, upper) = records.split_at(at);
    Ok(Halves {
        lower: copy_packed(block, &places(lower), form.has_tail),
        upper: copy_packed(block, &places(upper), form.has_tail),
        hash: records[at].hash,
        is_continued: records[at].hash == records[at - 1].hash,
    })
}

/// Live records in order of hash.
fn by_hash(
    block: &[u8],
    hasher: &LeafHasher,
    form: Form,
    first: bool,
) -> Result<Vec<Hashed>, CorruptKind> {
    let mut hashed = Vec::new();
    for (index, entry) in records(block, form).enumerate() {
        let entry = entry?;
        if !entry.is_live() || (first && index < 2) {
            continue;
        }
        if entry.is_dot() {
            let why = "'.' or '..' out of place";
            return Err(CorruptKind::DirEntry { offset: entry.offset, why });
        }
        let hash = hasher.hash(entry.stored());
        hashed.push(Hashed { hash, offset: entry.offset, len: entry.used() });
    }
    hashed.sort_by_key(|record| (record.hash, record.offset));
    Ok(hashed)
}

/// Index of the first record of the upper half; neither half is empty.
fn split_point(records: &[Hashed], block_size: usize) -> usize {
    let half = block_size / 2;
    let mut moved_bytes = 0;
    for (index, record) in records.iter().enumerate().rev() {
        let len = record.len as usize;
        // A record with more than half of its bytes past the middle stays in the lower half.
        if moved_bytes + len / 2 > half {
            return index + 1;
        }
        moved_bytes += len;
    }
    // The records fill less than half of the block.
    records.len() / 2
}

/// A new block with copies of the records at these offsets, the last one grown to the end.
fn copy_packed(block: &[u8], records: &[(u32, u32)], has_tail: bool) -> Vec<u8> {
    let mut packed = vec![0; block.len()];
    dir_entry::init_block(&mut packed, has_tail);
    let end = usable(block, has_tail);
    let mut at = 0;
    for (index, &(offset, len)) in records.iter().enumerate() {
        let (from, len) = (offset as usize, len as usize);
        packed[at..at + len].copy_from_slice(&block[from..from + len]);
        let rec_len = if index + 1 == records.len() { end - at } else { len };
        if let Some(raw) = RawDirEntry::mut_from_prefix(&mut packed[at..]) {
            raw.rec_len.set(u16::try_from(rec_len).expect("a block has at most 4096 bytes"));
        }
        at += len;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4_ondisk::hash::HashVersion;
    use uext4_ondisk::{FileKind, Ino};

    const HASHER: DirHasher = DirHasher {
        version: HashVersion::HalfMd4,
        unsigned: true,
        seed: [1, 2, 3, 4],
        folds: false,
    };

    fn form(has_tail: bool) -> Form {
        Form { has_tail, records: RecordForm::Plain }
    }

    fn of_all(hasher: DirHasher) -> LeafHasher {
        LeafHasher { hasher, range: 0..=u32::MAX }
    }

    fn add(block: &mut [u8], name: &[u8], ino: u32, has_tail: bool) -> bool {
        dir_entry::insert(block, name, Ino(ino), Some(FileKind::Regular), has_tail).unwrap()
    }

    fn has_gap(block: &[u8], name_len: usize, has_tail: bool) -> bool {
        dir_entry::scan(block, &vec![b'~'; name_len], has_tail).unwrap().gap.is_some()
    }

    fn names(block: &[u8], has_tail: bool) -> Vec<Vec<u8>> {
        records(block, form(has_tail)).live().map(|e| e.unwrap().name.to_vec()).collect()
    }

    /// A block full of names of `name_len` bytes.
    fn full(block_size: usize, name_len: usize, has_tail: bool) -> Vec<u8> {
        let mut block = vec![0; block_size];
        dir_entry::init_block(&mut block, has_tail);
        let mut count = 1;
        loop {
            let name = format!("{count:0>name_len$}");
            if !add(&mut block, name.as_bytes(), count, has_tail) {
                return block;
            }
            count += 1;
        }
    }

    #[test]
    fn halves_hold_every_name_on_its_side_and_have_room() {
        for block_size in [1024, 2048, 4096] {
            for name_len in [4, 20, 100, 255] {
                for has_tail in [false, true] {
                    let block = full(block_size, name_len, has_tail);
                    assert!(
                        !has_room(&block, StoredName::from(&[b'x'; 255]), form(has_tail)).unwrap()
                    );
                    let mut halves = split(&block, &of_all(HASHER), form(has_tail), false).unwrap();
                    let mut all = names(&halves.lower, has_tail);
                    let upper = names(&halves.upper, has_tail);
                    assert!(!all.is_empty() && !upper.is_empty());
                    assert!(all.iter().all(|n| HASHER.hash(n).0 <= halves.hash));
                    assert!(upper.iter().all(|n| HASHER.hash(n).0 >= halves.hash));
                    all.extend(upper);
                    all.sort();
                    let mut want = names(&block, has_tail);
                    want.sort();
                    assert_eq!(all, want);
                    for hash in [0, u32::MAX] {
                        let half = halves.half_for(hash);
                        assert!(add(half, &[b'x'; 255], 9, has_tail));
                        assert_eq!(dir_entry::has_tail(half), has_tail);
                    }
                }
            }
        }
    }

    #[test]
    fn names_of_one_hash_continue() {
        // Only the name's hash matters here, so a hasher that knows no differences will do: the
        // legacy function of names with the same bytes up to signedness.
        let mut block = vec![0; 1024];
        dir_entry::init_block(&mut block, false);
        let hasher =
            DirHasher { version: HashVersion::Legacy, unsigned: true, seed: [0; 4], folds: false };
        let (one, other) = colliding_pair(&hasher);
        assert!(add(&mut block, &one, 1, false) && add(&mut block, &other, 2, false));
        let halves = split(&block, &of_all(hasher), form(false), false).unwrap();
        assert!(halves.is_continued);
        assert_eq!(halves.index_hash(), hasher.hash(&one).0 | 1);
    }

    /// Two names with one hash, found by the birthday paradox.
    fn colliding_pair(hasher: &DirHasher) -> (Vec<u8>, Vec<u8>) {
        let mut seen = std::collections::HashMap::new();
        for n in 0.. {
            let name = format!("{n:x}").into_bytes();
            if let Some(other) = seen.insert(hasher.hash(&name).0, name.clone()) {
                return (other, name);
            }
        }
        unreachable!("hashes have 31 bits")
    }

    /// A damaged leaf does not refuse new names, and its halves stay within its hashes.
    #[test]
    fn names_in_the_wrong_leaf_stay_in_it() {
        let block = full(4096, 20, true);
        let mut hashes: Vec<_> = names(&block, true).iter().map(|n| HASHER.hash(n).0).collect();
        hashes.sort_unstable();
        let (third, len) = (hashes.len() / 3, hashes.len());
        for (from, to) in [(0, third), (third, 2 * third), (2 * third, len - 1), (3, 4)] {
            let (low, high) = (hashes[from], hashes[to]);
            let of_part = LeafHasher { hasher: HASHER, range: low..=high };
            let halves = split(&block, &of_part, form(true), false).unwrap();
            assert!((low..=high).contains(&halves.hash), "{from} to {to}");
            let count = names(&halves.lower, true).len() + names(&halves.upper, true).len();
            assert_eq!(count, len);
        }
    }

    #[test]
    fn packing_joins_the_gaps() {
        let mut block = full(1024, 40, true);
        let doomed: Vec<u32> = records(&block, form(true))
            .filter_map(|e| e.ok().filter(|e| e.ino.get() % 3 == 1).map(|e| e.offset))
            .collect();
        for offset in doomed.into_iter().rev() {
            dir_entry::delete(&mut block, offset).unwrap();
        }
        let before = names(&block, true);
        assert!(
            !has_gap(&block, 200, true)
                && has_room(&block, StoredName::from(&[b'y'; 200]), form(true)).unwrap()
        );
        let mut packed = pack(&block, form(true)).unwrap();
        assert_eq!(names(&packed, true), before);
        assert!(has_gap(&packed, 200, true));
        assert!(add(&mut packed, &[b'y'; 200], 7, true));
    }

    #[test]
    fn the_first_block_splits_without_its_dots() {
        let mut block = vec![0; 1024];
        dir_entry::init_first_block(&mut block, Ino(12), Ino(2), true, true);
        for n in 0..20 {
            assert!(add(&mut block, format!("name{n}").as_bytes(), 20 + n, true));
        }
        let halves = split(&block, &of_all(HASHER), form(true), true).unwrap();
        let all = names(&halves.lower, true).len() + names(&halves.upper, true).len();
        assert_eq!(all, 20);
        assert!(split(&block, &of_all(HASHER), form(true), false).is_err());
    }
}
