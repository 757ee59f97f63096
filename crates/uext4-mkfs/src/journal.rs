//! The journal of a new file system: its size, place, inode and superblock.
//!
//! On disk: the journal superblock has no features. The first mount sets those it needs, while the
//! log is empty.

use crate::error::{MkfsError, Result};
use crate::inodes::{Files, no_space};
use crate::options::Options;
use uext4_ondisk::extent::{self, Extent, MAX_WRITTEN_LEN};
use uext4_ondisk::journal::RawJournalSuperblock;
use uext4_ondisk::journal::superblock::MIN_JOURNAL_BLOCKS;
use uext4_ondisk::{BlockNo, Compat, FileBlock, FileKind, GroupNo, Ino, RawInode};

const MAX_JOURNAL_BLOCKS: u64 = 10_240_000;
/// A journal has one block for fast commits for so many others.
const FAST_COMMIT_SHARE: u64 = 64;

impl Files<'_> {
    /// Blocks of the journal; `None` when the file system is too small for one.
    pub(crate) fn journal_size(&self, options: &Options) -> Result<Option<u64>> {
        let layout = &self.geometry.layout;
        let fast = u64::from(self.fast_commit_blocks(options));
        let Some(mib) = options.journal_mib.filter(|&mib| mib > 0) else {
            let blocks = default_journal_blocks(layout.blocks_count);
            let least = options.has_tight_journal.then_some(u64::from(MIN_JOURNAL_BLOCKS));
            return Ok(blocks.or(least).map(|blocks| blocks + fast));
        };
        let blocks = u64::from(mib) * u64::from((1 << 20) / layout.block_size) + fast;
        if !(u64::from(MIN_JOURNAL_BLOCKS)..=MAX_JOURNAL_BLOCKS).contains(&blocks) {
            return Err(MkfsError::option(format!(
                "journal of {blocks} blocks: want {MIN_JOURNAL_BLOCKS} to {MAX_JOURNAL_BLOCKS}"
            )));
        }
        let free = layout.blocks_count - layout.first_data_block.get() - self.space.used_count();
        let most = if options.has_tight_journal { free } else { free / 2 };
        if blocks > most {
            let message = format!("journal of {blocks} blocks is too big: {free} blocks are free");
            return Err(MkfsError::option(message));
        }
        Ok(Some(blocks))
    }

    /// Blocks at the end of the journal for fast commits: as in mke2fs, a share of the journal that
    /// the file system would have by default, whichever it has.
    fn fast_commit_blocks(&self, options: &Options) -> u32 {
        let asked = options.fast_commit_kib.filter(|kib| *kib > 0);
        let layout = &self.geometry.layout;
        let blocks = match (layout.features.compat.contains(Compat::FAST_COMMIT), asked) {
            (false, _) => 0,
            (true, Some(kib)) => u64::from(kib) * 1024 / u64::from(layout.block_size),
            (true, None) => {
                default_journal_blocks(layout.blocks_count).unwrap_or(0) / FAST_COMMIT_SHARE
            }
        };
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    fn free_in_group(&self, group: u32) -> u64 {
        let layout = &self.geometry.layout;
        let first = layout.group_first_block(GroupNo(group)).get();
        let count = u64::from(layout.blocks_in_group(GroupNo(group)));
        count - self.space.used_in(first..first + count).map(|r| r.end - r.start).sum::<u64>()
    }

    /// Where to begin to look for room for the log.
    fn journal_goal(&self, options: &Options) -> Result<u64> {
        let layout = &self.geometry.layout;
        let first = layout.first_data_block.get();
        match options.journal_location {
            Some(place) => match place.blocks(layout.block_size) {
                at if at < layout.blocks_count => Ok(at.max(first)),
                _ => Err(MkfsError::option("location: want a block of the file system")),
            },
            None if options.packed_meta_blocks == Some(true) => Ok(first),
            None => Ok(self.middle()),
        }
    }

    /// A block near the middle of the file system, so that the journal is near everything: the
    /// start of the emptiest of a few groups.
    fn middle(&self) -> u64 {
        let layout = &self.geometry.layout;
        let middle = (layout.blocks_count - layout.first_data_block.get()) / 2;
        let middle = layout.group_of(BlockNo(middle)).map_or(0, |(group, _)| group.get());
        let flex = layout.groups_per_flex;
        let last = layout.group_count - 1;
        let (start, end) = if flex > 1 && middle > flex {
            let first = middle / flex * flex;
            let group = (first..=last).find(|&g| self.free_in_group(g) > 0).unwrap_or(0);
            (group, (group + 1).min(last))
        } else {
            (middle.saturating_sub(1), (middle + 1).min(last))
        };
        let mut best = start;
        for group in start..=end {
            if self.free_in_group(group) > self.free_in_group(best) {
                best = group;
            }
        }
        layout.group_first_block(GroupNo(best)).get()
    }

    pub(crate) fn journal(&mut self, options: &Options, count: u64) -> Result<()> {
        let mut raw = self.new_inode(FileKind::Regular, 0o600, 1);
        let (extents, nodes) = match self.has_extents() {
            true => self.journal_extents(&mut raw, count, self.journal_goal(options)?)?,
            false => {
                // As in mke2fs, not in the middle: near its inode.
                let mut at = self.geometry.layout.first_data_block.get();
                self.map_blocks(&mut raw, 0..count, &mut at)?
            }
        };
        let block_size = self.geometry.layout.block_size;
        self.set_space(&mut raw, count * u64::from(block_size), count, nodes);
        self.put_inode(Ino::JOURNAL, &raw)?;
        self.journal_superblock(options, extents[0].start, count);
        self.back_up_journal(&raw);
        self.journal = extents;
        Ok(())
    }

    /// Allocates the log, and maps it by extents. Returns them, and the number of their nodes.
    fn journal_extents(
        &mut self,
        raw: &mut RawInode,
        count: u64,
        goal: u64,
    ) -> Result<(Vec<Extent>, u64)> {
        let mut extents = Vec::new();
        let mut at = goal;
        let (mut done, mut node) = (0, None);
        while done < count {
            at = self.space.find_one(at).ok_or_else(no_space)?;
            let len = self.space.free_at(at, (count - done).min(u64::from(MAX_WRITTEN_LEN)));
            self.take(at, len);
            extents.push(Extent {
                first: FileBlock(u32::try_from(done).unwrap_or(u32::MAX)),
                len: u32::try_from(len).unwrap_or(u32::MAX),
                start: BlockNo(at),
                unwritten: false,
            });
            (at, done) = (at + len, done + len);
            if extents.len() == usize::from(extent::ROOT_ENTRIES) + 1 {
                // The root is full now. As in mke2fs, a node precedes the rest of the log.
                node = Some(self.take_node(&extents)?);
            }
        }
        let nodes = self.map(Ino::JOURNAL, raw, &extents, node)?;
        Ok((extents, nodes))
    }

    fn journal_superblock(&mut self, options: &Options, at: BlockNo, count: u64) {
        let layout = &self.geometry.layout;
        let length = u32::try_from(count).unwrap_or(u32::MAX);
        let mut sb = RawJournalSuperblock::fresh(layout.block_size, length, 1, layout.uuid);
        sb.s_nr_users.set(1);
        sb.s_num_fc_blks.set(self.fast_commit_blocks(options));
        let mut block = vec![0; layout.block_size as usize];
        block[..size_of::<RawJournalSuperblock>()].copy_from_slice(sb.bytes());
        self.blocks.insert(at, block);
    }

    /// Copies the journal's map and size to the superblock, for fsck.
    fn back_up_journal(&mut self, raw: &RawInode) {
        let sb = &mut self.geometry.sb;
        sb.s_journal_inum.set(Ino::JOURNAL.get());
        sb.s_jnl_backup_type = uext4_ondisk::superblock::JOURNAL_BACKUP_BLOCKS;
        for (word, bytes) in sb.s_jnl_blocks.iter_mut().zip(raw.i_block.chunks_exact(4)) {
            word.set(bytes.iter().rev().fold(0, |value, &byte| (value << 8) | u32::from(byte)));
        }
        sb.s_jnl_blocks[15] = raw.i_size_high;
        sb.s_jnl_blocks[16] = raw.i_size_lo;
    }
}

/// The smallest file system that has a journal by default, in blocks.
pub(crate) const BLOCKS_WITH_JOURNAL: u64 = 2048;

/// Sizes of file systems, in blocks, from which on the journal is larger.
pub(crate) const JOURNAL_STEPS: [u64; 7] =
    [32_768, 262_144, 524_288, 4_194_304, 8_388_608, 16_777_216, 33_554_432];

/// Blocks of the journal by the size of the file system (mke2fs's table); `None` where it is too
/// small.
fn default_journal_blocks(fs_blocks: u64) -> Option<u64> {
    const K: u64 = 1024;
    Some(match fs_blocks {
        0..BLOCKS_WITH_JOURNAL => return None,
        BLOCKS_WITH_JOURNAL..32_768 => K,
        32_768..262_144 => 4 * K,
        262_144..524_288 => 8 * K,
        524_288..4_194_304 => 16 * K,
        4_194_304..8_388_608 => 32 * K,
        8_388_608..16_777_216 => 64 * K,
        16_777_216..33_554_432 => 128 * K,
        _ => 256 * K,
    })
}
