//! Quota files: usage and limits of users, groups and projects (`vfsv1`, version 2 revision 1).
//!
//! On disk: a file of blocks of 1 KiB (`QT_TREE`). Block 0 has the header and the defaults. Block 1
//! is the root of a tree of four levels; each level is indexed by a byte of the id, highest first.
//! The last level leads to a data block: a header and 14 entries, in any order. Entries of one data
//! block may be of any ids. Data blocks with room are in a doubly linked list, blocks that are
//! wholly free in another. An entry whose bytes are all zero is unused.
//!
//! Invariants: no function panics, loops or allocates without bound on any input: a look-up reads
//! five blocks, an insertion a few more, and a walk visits a block once.

use crate::error::CorruptKind;
use crate::num::{le32_at, put};
use zerocopy::little_endian::{U16, U32, U64};

/// Bytes of a block of a quota file.
pub const BLOCK_SIZE: usize = 1024;
/// Entries of a data block.
pub const ENTRIES: usize = 14;
/// Most blocks that an insertion adds to the file: tree blocks below the root, and a data block.
pub const NEW_BLOCKS_MAX: u32 = 4;
/// Default grace of soft limits: a week, in seconds.
pub const GRACE: u32 = 7 * 24 * 3600;
/// Bytes that limits of space count in.
pub const SPACE_UNIT: u64 = 1024;

const VERSION: u32 = 1;
const ROOT: u32 = 1;
const DEPTH: u32 = 4;
const DATA_HEADER: usize = 16;
const ENTRY: usize = 72;
const WHAT: &str = "quota file";

raw_struct! {
    /// `struct v2_disk_dqheader` and `struct v2_disk_dqinfo`, which follows it.
    pub struct RawQuotaHeader [32] {
        dqh_magic: U32,
        dqh_version: U32,
        dqi_bgrace: U32,
        dqi_igrace: U32,
        dqi_flags: U32,
        dqi_blocks: U32,
        dqi_free_blk: U32,
        dqi_free_entry: U32,
    }
}

raw_struct! {
    /// `struct qt_disk_dqdbheader`.
    pub struct RawQuotaDataHeader [16] {
        dqdh_next_free: U32,
        dqdh_prev_free: U32,
        dqdh_entries: U16,
        dqdh_pad1: U16,
        dqdh_pad2: U32,
    }
}

raw_struct! {
    /// `struct v2r1_disk_dqblk`.
    pub struct RawQuotaEntry [72] {
        dqb_id: U32,
        dqb_pad: U32,
        dqb_ihardlimit: U64,
        dqb_isoftlimit: U64,
        dqb_curinodes: U64,
        dqb_bhardlimit: U64,
        dqb_bsoftlimit: U64,
        dqb_curspace: U64,
        dqb_btime: U64,
        dqb_itime: U64,
    }
}

/// Whose usage a quota file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// All kinds, in the order of their numbers in the kernel.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// Its number in the kernel.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Self::User => 0,
            Self::Group => 1,
            Self::Project => 2,
        }
    }

    /// Its word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }

    const fn magic(self) -> u32 {
        match self {
            Self::User => 0xd9c0_1f11,
            Self::Group => 0xd9c0_1927,
            Self::Project => 0xd9c0_3f14,
        }
    }
}

/// Usage and limits of one kind of resource. A limit of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// What is in use: bytes, or inodes.
    pub used: u64,
    /// It may be exceeded for the time of grace.
    pub soft: u64,
    /// It is never exceeded.
    pub hard: u64,
    /// When the grace of the soft limit ends, in seconds since 1970; 0 below it.
    pub deadline: u64,
}

/// Usage and limits of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaEntry {
    /// User, group or project.
    pub id: u32,
    /// Bytes.
    pub space: Counted,
    /// Inodes.
    pub inodes: Counted,
}

impl QuotaEntry {
    fn read(raw: &RawQuotaEntry) -> Self {
        let bytes = |limit: U64| limit.get().saturating_mul(SPACE_UNIT);
        Self {
            id: raw.dqb_id.get(),
            space: Counted {
                used: raw.dqb_curspace.get(),
                soft: bytes(raw.dqb_bsoftlimit),
                hard: bytes(raw.dqb_bhardlimit),
                deadline: raw.dqb_btime.get(),
            },
            inodes: Counted {
                used: raw.dqb_curinodes.get(),
                soft: raw.dqb_isoftlimit.get(),
                hard: raw.dqb_ihardlimit.get(),
                deadline: raw.dqb_itime.get(),
            },
        }
    }

    fn write(&self) -> RawQuotaEntry {
        let mut raw = RawQuotaEntry::zeroed();
        raw.dqb_id.set(self.id);
        raw.dqb_curspace.set(self.space.used);
        raw.dqb_bsoftlimit.set(self.space.soft.div_ceil(SPACE_UNIT));
        raw.dqb_bhardlimit.set(self.space.hard.div_ceil(SPACE_UNIT));
        raw.dqb_btime.set(self.space.deadline);
        raw.dqb_curinodes.set(self.inodes.used);
        raw.dqb_isoftlimit.set(self.inodes.soft);
        raw.dqb_ihardlimit.set(self.inodes.hard);
        raw.dqb_itime.set(self.inodes.deadline);
        if raw == RawQuotaEntry::zeroed() {
            // All zeroes would be an unused entry. The time means nothing below a limit.
            raw.dqb_itime.set(1);
        }
        raw
    }
}

/// The blocks of a quota file.
pub trait QuotaBlocks {
    /// Failure of the store; damage of the file is one.
    type Error: From<CorruptKind>;

    /// Reads a block.
    ///
    /// # Errors
    /// The block is not there; the store failed.
    fn read(&mut self, block: u32) -> Result<[u8; BLOCK_SIZE], Self::Error>;

    /// Writes a block, which may be the one behind the last.
    ///
    /// # Errors
    /// Those of [`QuotaBlocks::read`].
    fn write(&mut self, block: u32, bytes: &[u8; BLOCK_SIZE]) -> Result<(), Self::Error>;
}

/// The place of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryPlace {
    /// Block of the file.
    pub block: u32,
    /// First byte in the block.
    pub at: usize,
}

impl EntryPlace {
    /// Reads the entry from the bytes of its block.
    #[must_use]
    pub fn read(self, block: &[u8]) -> Option<QuotaEntry> {
        let raw = RawQuotaEntry::ref_from_prefix(block.get(self.at..)?)?;
        Some(QuotaEntry::read(raw))
    }

    /// Writes the entry into the bytes of its block.
    pub fn write(self, block: &mut [u8], entry: &QuotaEntry) {
        put(block, self.at, entry.write().bytes());
    }
}

/// What block 0 says of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaInfo {
    /// Grace of soft limits of space, in seconds.
    pub space_grace: u32,
    /// Grace of soft limits of inodes.
    pub inode_grace: u32,
    /// Flags, of which none has a meaning here.
    pub flags: u32,
    /// Blocks of the file.
    pub blocks: u32,
    free_block: u32,
    free_entry: u32,
}

fn rule(why: &'static str) -> CorruptKind {
    CorruptKind::Rule { what: WHAT, why }
}

impl QuotaInfo {
    /// Reads block 0 and checks it. The file has `bytes` bytes.
    ///
    /// # Errors
    /// It is of another kind or version, or leads outside the file.
    pub fn read(block: &[u8], kind: QuotaKind, bytes: u64) -> Result<Self, CorruptKind> {
        let raw = RawQuotaHeader::ref_from_prefix(block).ok_or(rule("is too short"))?;
        if raw.dqh_magic.get() != kind.magic() {
            return Err(rule("has not the magic number of its kind"));
        }
        if raw.dqh_version.get() != VERSION {
            return Err(rule("is of a version that is not known"));
        }
        let info = Self {
            space_grace: raw.dqi_bgrace.get(),
            inode_grace: raw.dqi_igrace.get(),
            flags: raw.dqi_flags.get(),
            blocks: raw.dqi_blocks.get(),
            free_block: raw.dqi_free_blk.get(),
            free_entry: raw.dqi_free_entry.get(),
        };
        let held = bytes.div_ceil(BLOCK_SIZE as u64);
        if info.blocks < 2 || u64::from(info.blocks) > held {
            return Err(rule("has fewer blocks than it counts"));
        }
        if info.free_block >= info.blocks || info.free_entry >= info.blocks {
            return Err(rule("has a free list that begins outside the file"));
        }
        Ok(info)
    }

    /// Writes it into block 0.
    pub fn write(&self, block: &mut [u8], kind: QuotaKind) {
        let mut raw = RawQuotaHeader::zeroed();
        raw.dqh_magic.set(kind.magic());
        raw.dqh_version.set(VERSION);
        raw.dqi_bgrace.set(self.space_grace);
        raw.dqi_igrace.set(self.inode_grace);
        raw.dqi_flags.set(self.flags);
        raw.dqi_blocks.set(self.blocks);
        raw.dqi_free_blk.set(self.free_block);
        raw.dqi_free_entry.set(self.free_entry);
        put(block, 0, raw.bytes());
    }

    /// That of a new file without entries, which has blocks 0 and 1.
    #[must_use]
    pub fn new() -> Self {
        Self {
            space_grace: GRACE,
            inode_grace: GRACE,
            flags: 0,
            blocks: 2,
            free_block: 0,
            free_entry: 0,
        }
    }
}

impl Default for QuotaInfo {
    fn default() -> Self {
        Self::new()
    }
}

/// Index of an id in the tree block of a level; the root has level 0.
fn index(id: u32, level: u32) -> usize {
    let shift = DEPTH.saturating_sub(1).saturating_sub(level).saturating_mul(8);
    (id.checked_shr(shift).unwrap_or(0) & 0xff) as usize
}

fn child(block: &[u8], index: usize) -> u32 {
    le32_at(block, index.saturating_mul(4))
}

fn slot_at(slot: usize) -> usize {
    DATA_HEADER.saturating_add(slot.saturating_mul(ENTRY))
}

/// The places in a data block.
fn slots(block: u32) -> impl Iterator<Item = EntryPlace> {
    (0..ENTRIES).map(move |slot| EntryPlace { block, at: slot_at(slot) })
}

fn is_unused(bytes: &[u8], place: EntryPlace) -> bool {
    let end = place.at.saturating_add(ENTRY);
    bytes.get(place.at..end).is_some_and(|entry| entry.iter().all(|&byte| byte == 0))
}

fn data_header(bytes: &[u8]) -> RawQuotaDataHeader {
    RawQuotaDataHeader::from_prefix(bytes).unwrap_or_else(RawQuotaDataHeader::zeroed)
}

/// Finds the entry of an id.
///
/// # Errors
/// `Corrupt`: the tree leads outside the file, or to a block without the entry; those of `file`.
pub fn find<B: QuotaBlocks>(
    file: &mut B,
    info: &QuotaInfo,
    id: u32,
) -> Result<Option<(EntryPlace, QuotaEntry)>, B::Error> {
    let mut at = ROOT;
    for level in 0..DEPTH {
        let bytes = file.read(at)?;
        at = child(&bytes, index(id, level));
        if at == 0 {
            return Ok(None);
        }
        check_child(info, at)?;
    }
    let bytes = file.read(at)?;
    let found = slots(at).filter(|&place| !is_unused(&bytes, place)).find_map(|place| {
        place.read(&bytes).filter(|entry| entry.id == id).map(|entry| (place, entry))
    });
    found.map(Some).ok_or_else(|| rule("leads to a block without the entry").into())
}

fn check_child(info: &QuotaInfo, at: u32) -> Result<(), CorruptKind> {
    if at <= ROOT || at >= info.blocks { Err(rule("leads outside itself")) } else { Ok(()) }
}

/// Inserts an entry for an id that has none. The file has room for [`NEW_BLOCKS_MAX`] blocks behind
/// its last, as far as the list of free blocks has fewer. The caller writes `info` into block 0.
///
/// # Errors
/// `Corrupt`: the tree or a list of free blocks is damaged; those of `file`.
pub fn insert<B: QuotaBlocks>(
    file: &mut B,
    info: &mut QuotaInfo,
    entry: &QuotaEntry,
) -> Result<EntryPlace, B::Error> {
    // From the root to the data block: what is there.
    let mut path = vec![ROOT];
    for level in 0..DEPTH {
        let bytes = file.read(path.last().copied().unwrap_or(ROOT))?;
        let at = child(&bytes, index(entry.id, level));
        if at == 0 {
            break;
        }
        check_child(info, at)?;
        path.push(at);
    }
    let levels = u32::try_from(path.len()).unwrap_or(u32::MAX);
    if levels > DEPTH {
        return Err(rule("has an entry already").into());
    }
    // mke2fs and the kernel number the missing tree blocks from the top, and the data block last.
    let mut added = Vec::new();
    for _ in levels..DEPTH {
        added.push(take_block(file, info)?);
    }
    for &block in &added {
        file.write(block, &[0; BLOCK_SIZE])?;
    }
    let place = put_entry(file, info, entry)?;
    path.extend(added);
    path.push(place.block);
    for (level, pair) in (0..DEPTH).zip(path.windows(2)) {
        let [parent, below] = pair else { break };
        if level.saturating_add(1) < levels {
            continue;
        }
        let mut bytes = file.read(*parent)?;
        put(&mut bytes, index(entry.id, level).saturating_mul(4), &below.to_le_bytes());
        file.write(*parent, &bytes)?;
    }
    Ok(place)
}

/// A block that is in no use: from the list of free blocks, or behind the last.
fn take_block<B: QuotaBlocks>(file: &mut B, info: &mut QuotaInfo) -> Result<u32, B::Error> {
    if info.free_block != 0 {
        let block = info.free_block;
        let next = data_header(&file.read(block)?).dqdh_next_free.get();
        if next >= info.blocks || next == block {
            return Err(rule("has a list of free blocks that leads outside itself").into());
        }
        info.free_block = next;
        return Ok(block);
    }
    let block = info.blocks;
    info.blocks = block.checked_add(1).ok_or(rule("has too many blocks"))?;
    Ok(block)
}

/// Puts an entry into a data block with room, or into a new one.
fn put_entry<B: QuotaBlocks>(
    file: &mut B,
    info: &mut QuotaInfo,
    entry: &QuotaEntry,
) -> Result<EntryPlace, B::Error> {
    let is_new = info.free_entry == 0;
    let block = if is_new { take_block(file, info)? } else { info.free_entry };
    if block <= ROOT {
        return Err(rule("has a list of data blocks that leads to its root").into());
    }
    let mut bytes = if is_new { [0; BLOCK_SIZE] } else { file.read(block)? };
    let mut header = data_header(&bytes);
    let place = slots(block)
        .find(|&place| is_unused(&bytes, place))
        .ok_or(rule("lists a full block among those with room"))?;
    let used = header.dqdh_entries.get();
    if usize::from(used) >= ENTRIES {
        return Err(rule("counts more entries than a block has").into());
    }
    header.dqdh_entries.set(used.saturating_add(1));
    if is_new {
        info.free_entry = block;
    }
    if usize::from(used).saturating_add(1) >= ENTRIES {
        // The block leaves the list, of which it is the first.
        let next = header.dqdh_next_free.get();
        if next >= info.blocks || next == block {
            return Err(rule("has a list of data blocks that leads outside itself").into());
        }
        header.dqdh_next_free.set(0);
        header.dqdh_prev_free.set(0);
        info.free_entry = next;
        if next != 0 {
            let mut second = file.read(next)?;
            let mut after = data_header(&second);
            after.dqdh_prev_free.set(0);
            put(&mut second, 0, after.bytes());
            file.write(next, &second)?;
        }
    }
    put(&mut bytes, 0, header.bytes());
    place.write(&mut bytes, entry);
    file.write(block, &bytes)?;
    Ok(place)
}

/// Calls `visit` with every entry, by id of the tree's order. Each block is visited once.
///
/// # Errors
/// `Corrupt`: the tree leads outside the file, or to a block twice; those of `file`.
pub fn walk<B: QuotaBlocks>(
    file: &mut B,
    info: &QuotaInfo,
    visit: &mut dyn FnMut(QuotaEntry),
) -> Result<(), B::Error> {
    let bits = (info.blocks as usize).div_ceil(8);
    let mut walk = Walk { file, info, trees: vec![0; bits], data: vec![0; bits], visit };
    walk.tree(ROOT, 0)
}

/// True if a block is met for the first time.
fn enter(seen: &mut [u8], block: u32) -> bool {
    let mask = 1_u8.checked_shl(block & 7).unwrap_or(1);
    let Some(byte) = seen.get_mut((block >> 3) as usize) else { return false };
    let is_new = *byte & mask == 0;
    *byte |= mask;
    is_new
}

struct Walk<'a, B> {
    file: &'a mut B,
    info: &'a QuotaInfo,
    /// A bit for each block: whether it was met as a tree block, and as a data block.
    trees: Vec<u8>,
    data: Vec<u8>,
    visit: &'a mut dyn FnMut(QuotaEntry),
}

impl<B: QuotaBlocks> Walk<'_, B> {
    /// Goes through a tree block. Recursion ends at the fourth level.
    fn tree(&mut self, block: u32, level: u32) -> Result<(), B::Error> {
        if !enter(&mut self.trees, block) {
            return Err(rule("leads to a tree block twice").into());
        }
        let bytes = self.file.read(block)?;
        for index in 0..256 {
            let at = child(&bytes, index);
            if at == 0 {
                continue;
            }
            check_child(self.info, at)?;
            if level.saturating_add(1) < DEPTH {
                self.tree(at, level.saturating_add(1))?;
            } else if enter(&mut self.data, at) {
                self.entries(at)?;
            }
        }
        Ok(())
    }

    fn entries(&mut self, block: u32) -> Result<(), B::Error> {
        if !enter(&mut self.trees, block) {
            return Err(rule("has a block that is of the tree and has entries").into());
        }
        let bytes = self.file.read(block)?;
        for place in slots(block).filter(|&place| !is_unused(&bytes, place)) {
            if let Some(entry) = place.read(&bytes) {
                (self.visit)(entry);
            }
        }
        Ok(())
    }
}

/// A new quota file in memory with these entries, as mke2fs makes it.
#[must_use]
pub fn new_file(kind: QuotaKind, entries: &[QuotaEntry]) -> Vec<u8> {
    let mut file = MemoryFile { bytes: vec![0; BLOCK_SIZE.saturating_mul(2)] };
    let mut info = QuotaInfo::new();
    for entry in entries {
        // A file in memory does not fail, and ids differ.
        _ = insert(&mut file, &mut info, entry);
    }
    info.write(&mut file.bytes, kind);
    file.bytes
}

/// A quota file in memory.
#[derive(Clone, Debug)]
pub struct MemoryFile {
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl QuotaBlocks for MemoryFile {
    type Error = CorruptKind;

    fn read(&mut self, block: u32) -> Result<[u8; BLOCK_SIZE], CorruptKind> {
        let at = (block as usize).saturating_mul(BLOCK_SIZE);
        let bytes = self.bytes.get(at..at.saturating_add(BLOCK_SIZE));
        bytes.and_then(|bytes| bytes.try_into().ok()).ok_or(rule("is shorter than it says"))
    }

    fn write(&mut self, block: u32, bytes: &[u8; BLOCK_SIZE]) -> Result<(), CorruptKind> {
        let at = (block as usize).saturating_mul(BLOCK_SIZE);
        if at == self.bytes.len() {
            self.bytes.resize(at.saturating_add(BLOCK_SIZE), 0);
        }
        if put(&mut self.bytes, at, bytes) { Ok(()) } else { Err(rule("is shorter than it says")) }
    }
}

/// Fault model: a wrong level or byte order of an id, a free list that loses or repeats a block, a
/// zero entry that is taken for an unused one, a walk that does not end.
#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u32, used: u64) -> QuotaEntry {
        QuotaEntry { id, space: Counted { used, ..Counted::default() }, ..QuotaEntry::default() }
    }

    fn open(file: &MemoryFile) -> QuotaInfo {
        QuotaInfo::read(&file.bytes, QuotaKind::User, file.bytes.len() as u64).unwrap()
    }

    #[test]
    fn a_new_file_is_that_of_mke2fs() {
        let root =
            QuotaEntry { inodes: Counted { used: 2, ..Counted::default() }, ..entry(0, 0x5000) };
        let bytes = new_file(QuotaKind::User, &[root]);
        assert_eq!(bytes.len(), 6144);
        let mut want = vec![0_u8; 6144];
        for (at, word) in [
            (0, 0xd9c0_1f11_u32),
            (4, 1),
            (8, GRACE),
            (12, GRACE),
            (20, 6),
            (28, 5),
            (0x400, 2),
            (0x800, 3),
            (0xc00, 4),
            (0x1000, 5),
            (0x1408, 1),
            (0x1428, 2),
            (0x1440, 0x5000),
        ] {
            want[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        assert!(bytes == want);
    }

    #[test]
    fn many_ids_are_found_again_in_any_order() {
        let mut file = MemoryFile { bytes: new_file(QuotaKind::User, &[]) };
        let mut info = open(&file);
        let id = |n: u32| n.wrapping_mul(0x9e37_79b1).rotate_left(n % 32);
        let mut ids: Vec<u32> = (0..300).map(id).chain([u32::MAX, 0]).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.rotate_left(77);
        for &id in &ids {
            assert_eq!(find(&mut file, &info, id).unwrap(), None);
            insert(&mut file, &mut info, &entry(id, u64::from(id) * 3)).unwrap();
            assert!(insert(&mut file, &mut info, &entry(id, 1)).is_err());
        }
        info.write(&mut file.bytes, QuotaKind::User);
        let info = open(&file);
        for &id in &ids {
            let (_, found) = find(&mut file, &info, id).unwrap().unwrap();
            assert_eq!((found.id, found.space.used), (id, u64::from(id) * 3));
        }
        let mut walked = Vec::new();
        walk(&mut file, &info, &mut |entry| walked.push(entry.id)).unwrap();
        walked.sort_unstable();
        ids.sort_unstable();
        assert_eq!(walked, ids);
    }

    #[test]
    fn damaged_files_are_errors() {
        let mut file = MemoryFile { bytes: new_file(QuotaKind::User, &[entry(0, 1), entry(9, 2)]) };
        let good = file.clone();
        for block in 1..5_usize {
            for to in [1, block as u32, 77, u32::MAX] {
                file.bytes.clone_from(&good.bytes);
                let info = open(&file);
                file.bytes[block * BLOCK_SIZE..][..4].copy_from_slice(&to.to_le_bytes());
                let mut visits = 0;
                let walked = walk(&mut file, &info, &mut |_| visits += 1);
                assert!(walked.is_err() && visits <= 2, "{block} {to}");
                // A tree block that is taken for one with entries may well have one of id 0.
                let is_told = find(&mut file, &info, 0).is_err();
                assert!(is_told || (block, to) == (4, 4), "{block} {to}");
            }
        }
        for (at, word) in [(0, 1), (4, 7), (20, 1), (20, 99), (24, 6), (28, 6)] {
            let mut bytes = good.bytes.clone();
            bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
            assert!(QuotaInfo::read(&bytes, QuotaKind::User, 6144).is_err(), "{at}");
        }
        assert!(QuotaInfo::read(&good.bytes, QuotaKind::Group, 6144).is_err());
    }
}
