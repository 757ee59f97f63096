//! What is told of a journal, as text and as JSON.

use serde::Serialize;
use uext4::Timestamp;
use uext4_ondisk::journal::block::{CommitBlock, TagFlags};
use uext4_ondisk::journal::listing::ListedImage;
use uext4_ondisk::journal::{JournalLayout, RawJournalSuperblock, ReplayError, ReplayPlan};
use uext4_ondisk::uuid_text;

use super::fast_commits::FastCommits;
use crate::failure::Result;
use crate::output::Output;
use crate::text;

/// All of it.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) journal: Journal,
    pub(super) transactions: Vec<Transaction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) old: Option<Vec<Transaction>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fast_commits: Option<FastCommits>,
    pub(super) recovery: Recovery,
}

/// The superblock of the journal.
#[derive(Serialize)]
pub(super) struct Journal {
    place: String,
    version: u32,
    uuid: String,
    features: Vec<String>,
    block_size: u32,
    blocks: u32,
    first: u32,
    end: u32,
    fast_commit_first: u32,
    fast_commit_end: u32,
    sequence: u32,
    start: u32,
    head: u32,
    errno: i32,
    users: Vec<String>,
}

impl Journal {
    pub(super) fn new(
        place: &str,
        block_size: u32,
        superblock: &RawJournalSuperblock,
        layout: &JournalLayout,
    ) -> Self {
        let is_v2 = superblock.is_v2();
        Self {
            place: place.to_owned(),
            version: if is_v2 { 2 } else { 1 },
            uuid: uuid_text(&superblock.s_uuid),
            features: superblock.feature_names(),
            block_size,
            blocks: superblock.s_maxlen.get(),
            first: layout.first,
            end: layout.end,
            fast_commit_first: layout.fast_commits.start,
            fast_commit_end: layout.fast_commits.end,
            sequence: superblock.s_sequence.get(),
            start: superblock.s_start.get(),
            head: if is_v2 { superblock.s_head.get() } else { 0 },
            // Stored as a negative errno.
            errno: superblock.s_errno.get().cast_signed(),
            users: superblock.users().iter().map(uuid_text).collect(),
        }
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
        let mut rows = vec![
            ("Journal", format!("{}, version {}", self.place, self.version)),
            ("Journal UUID", self.uuid.clone()),
            ("Journal features", or(self.features.join(" "), "(none)")),
            ("Journal blocks", format!("{} of {} bytes", self.blocks, self.block_size)),
            ("Log", format!("blocks {} to {}", self.first, self.end.saturating_sub(1))),
        ];
        if self.fast_commit_first < self.fast_commit_end {
            let (first, last) = (self.fast_commit_first, self.fast_commit_end - 1);
            rows.push(("Fast commits", format!("blocks {first} to {last}")));
        }
        let start = match self.start {
            0 => "0 (the log is empty)".to_owned(),
            start => start.to_string(),
        };
        rows.extend([("Journal sequence", self.sequence.to_string()), ("Journal start", start)]);
        if self.head != 0 {
            rows.push(("Journal head", self.head.to_string()));
        }
        if self.errno != 0 {
            rows.push(("Journal errno", self.errno.to_string()));
        }
        if !self.users.is_empty() && self.users.iter().any(|user| *user != NOBODY) {
            rows.push(("Journal users", self.users.join(" ")));
        }
        rows
    }
}

const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

/// Blocks of a transaction's log that are told as damaged.
const DAMAGED_MAX: usize = 16;

/// A transaction.
#[derive(Serialize)]
pub(super) struct Transaction {
    pub(super) tid: u32,
    first_block: u32,
    pub(super) last_block: u32,
    /// When it was committed; without it, it was not.
    pub(super) commit: Option<String>,
    pub(super) images: u64,
    pub(super) revokes: u64,
    /// Log blocks whose checksums are wrong.
    damaged: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) blocks: Vec<Block>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) revoked: Vec<u64>,
}

/// A block that a transaction writes.
#[derive(Serialize)]
pub(super) struct Block {
    block: u64,
    log_block: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<String>,
    escaped: bool,
    sound: bool,
}

impl Block {
    pub(super) fn new(image: &ListedImage, role: Option<String>) -> Self {
        Self {
            block: image.tag.block.get(),
            log_block: image.log_block,
            role,
            escaped: image.tag.flags.contains(TagFlags::ESCAPE),
            sound: image.is_sound,
        }
    }

    fn line(&self) -> String {
        let mut line = format!("  block {} at {}", self.block, self.log_block);
        for (is_so, word) in [(self.escaped, ", escaped"), (!self.sound, ", wrong checksum")] {
            line.push_str(if is_so { word } else { "" });
        }
        if let Some(role) = &self.role {
            line.push_str(&format!(": {role}"));
        }
        line
    }
}

/// The time of a commit, for JSON and text alike.
pub(super) fn time(commit: &CommitBlock) -> String {
    match i64::try_from(commit.secs) {
        // Any year of four digits.
        Ok(secs @ 0..253_402_300_800) if commit.nanos < 1_000_000_000 => {
            text::time_json(Timestamp { secs, nanos: commit.nanos })
        }
        _ => format!("{}.{:09} s", commit.secs, commit.nanos),
    }
}

impl Transaction {
    pub(super) fn new(tid: u32, first_block: u32) -> Self {
        Self {
            tid,
            first_block,
            last_block: first_block,
            commit: None,
            images: 0,
            revokes: 0,
            damaged: Vec::new(),
            blocks: Vec::new(),
            revoked: Vec::new(),
        }
    }

    /// Notes a log block whose checksum is wrong.
    pub(super) fn damage(&mut self, log_block: u32) {
        if self.damaged.len() < DAMAGED_MAX && self.damaged.last() != Some(&log_block) {
            self.damaged.push(log_block);
        }
    }

    fn print(&self, output: &mut Output) -> Result<()> {
        let Self { tid, first_block, last_block, images, revokes, .. } = self;
        let commit = match &self.commit {
            Some(time) => format!("committed {time}"),
            None => "not committed".to_owned(),
        };
        let mut line = format!(
            "Transaction {tid}: log blocks {first_block} to {last_block}, {commit}, {images} blocks"
        );
        if *revokes != 0 {
            line.push_str(&format!(", {revokes} revoked"));
        }
        if !self.damaged.is_empty() {
            let blocks: Vec<String> = self.damaged.iter().map(u32::to_string).collect();
            line.push_str(&format!(", wrong checksums at {}", blocks.join(" ")));
        }
        output.line(&line)?;
        for block in &self.blocks {
            output.line(&block.line())?;
        }
        for revoked in self.revoked.chunks(8) {
            let revoked: Vec<String> = revoked.iter().map(u64::to_string).collect();
            output.line(&format!("  revoked: {}", revoked.join(" ")))?;
        }
        let listed = (self.blocks.len() + self.revoked.len()) as u64;
        if listed != 0 && listed < images + revokes {
            output.line(&format!("  and {} more", images + revokes - listed))?;
        }
        Ok(())
    }
}

/// What a recovery would do.
#[derive(Serialize)]
pub(super) struct Recovery {
    /// Whether the file system says that it is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    needed: Option<bool>,
    transactions: u32,
    blocks: usize,
    revoked: u32,
    skipped: u32,
    /// Blocks that cannot be replayed.
    damaged: usize,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    is_empty: bool,
}

impl Recovery {
    pub(super) fn new<E: std::error::Error + 'static>(
        needed: Option<bool>,
        layout: &JournalLayout,
        plan: std::result::Result<&ReplayPlan, &ReplayError<E>>,
    ) -> Self {
        let is_empty = layout.is_empty();
        match plan {
            Ok(plan) => Self {
                needed,
                transactions: plan.transactions,
                blocks: plan.writes.len(),
                revoked: plan.revoked,
                skipped: plan.skipped,
                damaged: plan.damaged.len(),
                error: None,
                is_empty,
            },
            Err(error) => Self {
                needed,
                transactions: 0,
                blocks: 0,
                revoked: 0,
                skipped: 0,
                damaged: 0,
                error: Some(error.to_string()),
                is_empty,
            },
        }
    }

    fn sentence(&self) -> String {
        let Self { transactions, blocks, skipped, damaged, .. } = self;
        let mut sentence = match (&self.error, self.is_empty, self.needed) {
            (Some(error), ..) => return format!("Recovery: fails: {error}"),
            (None, true, Some(true)) => {
                "Recovery: needed, and there is nothing to replay".to_owned()
            }
            (None, true, _) => return "Recovery: nothing to do".to_owned(),
            (None, false, Some(false)) => {
                return "Recovery: the file system needs none; what is in the log is not replayed"
                    .to_owned();
            }
            _ => format!("Recovery: replays {transactions} transactions, {blocks} blocks"),
        };
        if *skipped != 0 {
            sentence.push_str(&format!("; {skipped} images are left out as revoked"));
        }
        if *damaged != 0 {
            sentence.push_str(&format!("; {damaged} images are damaged"));
        }
        sentence
    }
}

impl Report {
    pub(super) fn print(&self, as_json: bool, output: &mut Output) -> Result<()> {
        if as_json {
            return output.json(self);
        }
        for (name, value) in self.journal.rows() {
            output.line(&format!("{:<18} {value}", format!("{name}:")))?;
        }
        output.line("")?;
        for transaction in &self.transactions {
            transaction.print(output)?;
        }
        if let Some(old) = &self.old {
            output.line(&format!("Checkpointed, and not overwritten yet: {}", old.len()))?;
            for transaction in old {
                transaction.print(output)?;
            }
        }
        if let Some(fast_commits) = &self.fast_commits {
            fast_commits.print(output)?;
        }
        output.line(&self.recovery.sentence())
    }
}
