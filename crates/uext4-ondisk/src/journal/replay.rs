//! The plan of a journal replay: which images of the log are written to their final locations.
//!
//! What: a pure function over a reader of log blocks, in jbd2's three passes. *Scan* finds the last
//! complete transaction, *revoke* collects the blocks that must not be written, *replay* lists the
//! images to write. The caller writes them.
//!
//! The end of the log follows jbd2 (`fs/jbd2/recovery.c`). The log ends:
//! - at a block that is no log block, has another transaction id than expected, or an unknown type;
//! - at a commit block whose checksum is wrong: that transaction and all after it never happened.
//!   The blocks before it may be left over from another journal in the same place, so their
//!   checksums mean nothing.
//! - with async_commit (and checksum v2 or v3), at a transaction with a wrong checksum anywhere, in
//!   descriptor, revoke block, image or commit block. Its commit block may have reached the medium
//!   before the rest of it, so it never happened.
//!
//! Damage is distinguished from the end:
//! - If, with checksum v2 or v3, the next transaction begins behind a transaction that would end
//!   the log, the log is damaged, an error: the next one was written when this one was durable.
//! - A descriptor or revoke block with a wrong checksum may be left over from an earlier use of the
//!   log. The sound commit block of its transaction decides: if its commit time is older than that
//!   of the previous transaction, the log ends; otherwise the log is damaged, an error. Without a
//!   commit block the transaction never happened.
//! - An image with a wrong checksum in a complete transaction is omitted and counted as damage.
//!   jbd2 writes the rest and reports an error.
//!
//! Invariants: each pass reads each log block at most once, so time is bounded by the log. Memory
//! is bounded by the log's blocks and [`ReplayLimits::max_revokes`].

use super::block::{
    BlockType, CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE, CommitBlock, TagFlags, header, revoked_blocks,
    tags, verify_commit, verify_tail,
};
use super::superblock::{JournalChecksum, JournalLayout};
use crate::checksum::crc32_be;
use crate::error::CorruptKind;
use crate::num::idx;
use crate::units::{BlockNo, Tid};
use std::collections::{BTreeMap, HashMap};

/// Bounds of a plan.
#[derive(Clone, Copy, Debug)]
pub struct ReplayLimits {
    /// Blocks of the file system. Every image belongs to a block below this.
    pub fs_blocks: u64,
    /// Most revoked blocks held in memory.
    pub max_revokes: usize,
}

impl ReplayLimits {
    /// Bounds for a file system of `fs_blocks` blocks: 16 million revoked blocks.
    #[must_use]
    pub const fn new(fs_blocks: u64) -> Self {
        Self { fs_blocks, max_revokes: 1 << 24 }
    }
}

/// An image to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayBlock {
    /// Its log block, counted from the journal's start.
    pub log_block: u32,
    /// Its first four bytes must be restored ([`super::block::unescape`]).
    pub escaped: bool,
    /// Transaction that wrote it.
    pub tid: Tid,
}

/// The plan of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPlan {
    /// Every block to write, with its newest image.
    pub writes: BTreeMap<BlockNo, ReplayBlock>,
    /// Oldest transaction of the log.
    pub first_tid: Tid,
    /// Complete transactions.
    pub transactions: u32,
    /// Id of the first transaction after the replay. One id is skipped, so that commit blocks left
    /// in the log never match again.
    pub next_tid: Tid,
    /// Log block after the last complete transaction.
    pub next_log_block: u32,
    /// Commit time of the last complete transaction, in seconds. Later commits must not be older.
    pub last_commit_secs: u64,
    /// Distinct revoked blocks.
    pub revoked: u32,
    /// Images omitted because of a revoke.
    pub skipped: u32,
    /// Images omitted because their checksum is wrong, so that the replay is incomplete: final
    /// location and log block. At most 1000 are listed.
    pub damaged: Vec<(BlockNo, u32)>,
}

/// The reason why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError<E: std::error::Error + 'static> {
    /// A log block could not be read.
    #[error("journal block {log_block}: {source}")]
    Read {
        /// Log block.
        log_block: u32,
        /// The reader's error.
        source: E,
    },
    /// A block of a complete transaction is damaged.
    #[error("journal block {log_block}: {kind}")]
    Corrupt {
        /// Log block.
        log_block: u32,
        /// The damage.
        kind: CorruptKind,
    },
    /// An image belongs to a block outside the file system.
    #[error("journal block {log_block}: image for block {block} of {fs_blocks}")]
    OutOfRange {
        /// Log block of the descriptor.
        log_block: u32,
        /// The block of the image.
        block: BlockNo,
        /// Blocks of the file system.
        fs_blocks: u64,
    },
    /// More revoked blocks than the limit.
    #[error("journal revokes more than {max} blocks")]
    TooManyRevokes {
        /// The limit.
        max: usize,
    },
}

/// Damaged images that a plan lists.
const MAX_DAMAGED: usize = 1000;

/// A descriptor or revoke block of a transaction.
struct Part {
    log_block: u32,
    tid: Tid,
    kind: BlockType,
}

/// The result of the scan.
struct Scan {
    parts: Vec<Part>,
    end_tid: Tid,
    transactions: u32,
    next_log_block: u32,
    last_commit_secs: u64,
}

/// Reads log blocks into one buffer.
struct Reader<'a, R> {
    layout: &'a JournalLayout,
    read: R,
    block: Vec<u8>,
}

impl<E, R> Reader<'_, R>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    fn load(&mut self, log_block: u32) -> Result<(), ReplayError<E>> {
        (self.read)(log_block, &mut self.block)
            .map_err(|source| ReplayError::Read { log_block, source })
    }
}

/// Plans the replay of a journal. `read` fills a buffer of one block with a log block.
///
/// # Errors
/// [`ReplayError`]. Nothing has been changed.
pub fn plan<E, R>(
    layout: &JournalLayout,
    limits: ReplayLimits,
    read: R,
) -> Result<ReplayPlan, ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    let mut plan = ReplayPlan {
        writes: BTreeMap::new(),
        first_tid: layout.sequence,
        transactions: 0,
        next_tid: layout.sequence.next(),
        next_log_block: layout.first,
        last_commit_secs: 0,
        revoked: 0,
        skipped: 0,
        damaged: Vec::new(),
    };
    if layout.is_empty() {
        return Ok(plan);
    }
    let mut reader = Reader { layout, read, block: vec![0; idx(layout.format.block_size)] };
    let scan = scan(&mut reader)?;
    plan.transactions = scan.transactions;
    plan.next_tid = scan.end_tid.next();
    plan.next_log_block = scan.next_log_block;
    plan.last_commit_secs = scan.last_commit_secs;
    let revokes = revokes(&mut reader, &scan.parts, limits)?;
    plan.revoked = crate::num::len32(revokes.len());
    for part in scan.parts.iter().filter(|part| part.kind == BlockType::Descriptor) {
        replay(&mut reader, part, &revokes, limits, &mut plan)?;
    }
    Ok(plan)
}

/// State of the scan between two blocks.
struct Cursor {
    next: u32,
    /// Blocks that the scan may still visit: the log, once.
    left: u32,
    tid: Tid,
    /// Parts of complete transactions.
    committed: usize,
    /// First block of the open transaction with a wrong checksum.
    suspect: Option<(u32, CorruptKind)>,
    /// CRC-32 of the open transaction (checksum v1).
    crc: u32,
    /// First image of the open transaction with a wrong checksum (async_commit only).
    torn: Option<u32>,
}

impl Cursor {
    /// Advances by `n` blocks. False if that would go round the whole log.
    fn advance(&mut self, layout: &JournalLayout, n: u32) -> bool {
        self.next = layout.after(self.next, n);
        let left = self.left.checked_sub(n);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

fn scan<E, R>(reader: &mut Reader<'_, R>) -> Result<Scan, ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    let layout = reader.layout;
    let mut found = Scan {
        parts: Vec::new(),
        end_tid: layout.sequence,
        transactions: 0,
        next_log_block: layout.start,
        last_commit_secs: 0,
    };
    let mut cursor = Cursor {
        next: layout.start,
        left: layout.len(),
        tid: layout.sequence,
        committed: 0,
        suspect: None,
        crc: !0,
        torn: None,
    };
    let may_tear = layout.async_commit && layout.format.has_crc32c();
    while cursor.left > 0 {
        let log_block = cursor.next;
        reader.load(log_block)?;
        let Some((kind, tid)) = header(&reader.block) else { break };
        if tid != cursor.tid || !cursor.advance(layout, 1) {
            break;
        }
        match kind {
            BlockType::Descriptor | BlockType::Revoke => {
                let sound = verify_tail(&reader.block, &layout.format);
                if may_tear && sound.is_err() {
                    break;
                }
                if let (Err(kind), None) = (sound, cursor.suspect) {
                    cursor.suspect = Some((log_block, kind));
                }
                found.parts.push(Part { log_block, tid, kind });
                if kind == BlockType::Descriptor && !skip_images(reader, &mut cursor)? {
                    break;
                }
            }
            BlockType::Commit => {
                if !judge_commit(reader, &mut cursor, &mut found, log_block)? {
                    break;
                }
            }
            BlockType::SuperblockV1 | BlockType::SuperblockV2 => break,
        }
    }
    found.parts.truncate(cursor.committed);
    Ok(found)
}

/// Steps over the images of the descriptor in the buffer, summing them up for checksum v1.
/// Returns false if they go round the whole log.
fn skip_images<E, R>(
    reader: &mut Reader<'_, R>,
    cursor: &mut Cursor,
) -> Result<bool, ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    let layout = reader.layout;
    if layout.async_commit && layout.format.has_crc32c() {
        return verify_images(reader, cursor);
    }
    let count = crate::num::len32(tags(&reader.block, &layout.format).count());
    if layout.format.checksum != JournalChecksum::V1 {
        return Ok(cursor.advance(layout, count));
    }
    cursor.crc = crc32_be(cursor.crc, &reader.block);
    for _ in 0..count {
        if cursor.left == 0 {
            return Ok(false);
        }
        reader.load(cursor.next)?;
        cursor.crc = crc32_be(cursor.crc, &reader.block);
        cursor.advance(layout, 1);
    }
    Ok(true)
}

/// Steps over the images of the descriptor in the buffer and verifies their checksums, because with
/// async_commit the commit block proves nothing about them.
fn verify_images<E, R>(
    reader: &mut Reader<'_, R>,
    cursor: &mut Cursor,
) -> Result<bool, ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    let layout = reader.layout;
    let found: Vec<_> = tags(&reader.block, &layout.format).collect();
    for tag in found {
        if cursor.left == 0 {
            return Ok(false);
        }
        let log_block = cursor.next;
        reader.load(log_block)?;
        if cursor.torn.is_none() && !tag.matches(&layout.format, cursor.tid, &reader.block) {
            cursor.torn = Some(log_block);
        }
        cursor.advance(layout, 1);
    }
    Ok(true)
}

/// Whether the next transaction begins at the current position of the scan.
fn goes_on<E, R>(reader: &mut Reader<'_, R>, cursor: &Cursor) -> Result<bool, ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    if cursor.left == 0 {
        return Ok(false);
    }
    reader.load(cursor.next)?;
    let format = &reader.layout.format;
    Ok(match header(&reader.block) {
        Some((BlockType::Descriptor | BlockType::Revoke, tid)) => {
            tid == cursor.tid.next() && verify_tail(&reader.block, format).is_ok()
        }
        _ => false,
    })
}

/// Checks the commit block in the buffer. Returns whether the log continues after it.
fn judge_commit<E, R>(
    reader: &mut Reader<'_, R>,
    cursor: &mut Cursor,
    found: &mut Scan,
    commit_at: u32,
) -> Result<bool, ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    let Some(commit) = CommitBlock::read(&reader.block) else { return Ok(false) };
    let format = &reader.layout.format;
    let is_sound = verify_commit(&reader.block, format).is_ok();
    if let (true, Some((log_block, kind))) = (is_sound, cursor.suspect) {
        if commit.secs < found.last_commit_secs {
            return Ok(false);
        }
        return Err(ReplayError::Corrupt { log_block, kind });
    }
    let sum_fits = format.checksum != JournalChecksum::V1
        || commit.v1 == (CHECKSUM_CRC32, CHECKSUM_CRC32_SIZE, cursor.crc)
        || commit.v1 == (0, 0, 0);
    if !sum_fits {
        return Ok(false);
    }
    if !is_sound || cursor.torn.is_some() {
        let log_block = cursor.torn.unwrap_or(commit_at);
        if goes_on(reader, cursor)? {
            let why = "is damaged, and a later one is not";
            let kind = CorruptKind::Rule { what: "journal transaction", why };
            return Err(ReplayError::Corrupt { log_block, kind });
        }
        return Ok(false);
    }
    cursor.tid = cursor.tid.next();
    cursor.crc = !0;
    cursor.committed = found.parts.len();
    found.end_tid = cursor.tid;
    found.transactions = found.transactions.saturating_add(1);
    found.next_log_block = cursor.next;
    found.last_commit_secs = commit.secs;
    Ok(true)
}

/// Revoked blocks, each with the newest transaction that revokes it.
fn revokes<E, R>(
    reader: &mut Reader<'_, R>,
    parts: &[Part],
    limits: ReplayLimits,
) -> Result<HashMap<BlockNo, Tid>, ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    let mut table = HashMap::new();
    for part in parts.iter().filter(|part| part.kind == BlockType::Revoke) {
        reader.load(part.log_block)?;
        let blocks = revoked_blocks(&reader.block, &reader.layout.format)
            .map_err(|kind| ReplayError::Corrupt { log_block: part.log_block, kind })?;
        for block in blocks {
            // Parts ascend by transaction, so the last one inserted is the newest.
            table.insert(block, part.tid);
            if table.len() > limits.max_revokes {
                return Err(ReplayError::TooManyRevokes { max: limits.max_revokes });
            }
        }
    }
    Ok(table)
}

/// Adds the images of one descriptor to the plan.
fn replay<E, R>(
    reader: &mut Reader<'_, R>,
    part: &Part,
    revokes: &HashMap<BlockNo, Tid>,
    limits: ReplayLimits,
    plan: &mut ReplayPlan,
) -> Result<(), ReplayError<E>>
where
    E: std::error::Error + 'static,
    R: FnMut(u32, &mut [u8]) -> Result<(), E>,
{
    let layout = reader.layout;
    reader.load(part.log_block)?;
    let found: Vec<_> = tags(&reader.block, &layout.format).collect();
    let mut log_block = part.log_block;
    for tag in found {
        log_block = layout.after(log_block, 1);
        if revokes.get(&tag.block).is_some_and(|&revoked| !part.tid.is_after(revoked)) {
            plan.skipped = plan.skipped.saturating_add(1);
            continue;
        }
        let (block, fs_blocks) = (tag.block, limits.fs_blocks);
        if block.get() >= fs_blocks {
            return Err(ReplayError::OutOfRange { log_block: part.log_block, block, fs_blocks });
        }
        if layout.format.has_crc32c() {
            reader.load(log_block)?;
            if !tag.matches(&layout.format, part.tid, &reader.block) {
                if plan.damaged.len() < MAX_DAMAGED {
                    plan.damaged.push((block, log_block));
                }
                continue;
            }
        }
        let escaped = tag.flags.contains(TagFlags::ESCAPE);
        plan.writes.insert(block, ReplayBlock { log_block, escaped, tid: part.tid });
    }
    Ok(())
}
