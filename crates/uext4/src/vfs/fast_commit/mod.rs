//! Repeating the fast commits that a kernel left in the log.
//!
//! What: [`Vfs::repeat_fast_commits`] brings inodes, mappings, bitmaps and names to the state that
//! the records come to (`outcome`). It runs on a volume over a copy in memory, whose changed blocks
//! then become one transaction of the log (`volume/fast_commit.rs`), so it may stop anywhere.
//! On disk: `uext4_ondisk::journal::fast_commit`.
//! Invariants: a block that the records map is free before, or a file loses it by the records;
//! anything else is corrupt. Blocks that only the records use are allocated before anything else.
//! Kernel counterpart: `fs/ext4/fast_commit.c`, which repeats records one by one and corrects the
//! bitmaps at the end.

mod block_events;
mod inodes;
mod names;
mod outcome;
mod ranges;

use super::Vfs;
use crate::alloc::{Allocation, Space};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Edit, NodeAllocations, NodeSource, edit_credits};
use crate::inode::{Inode, InodeRef};
use block_events::{BlockEvents, Fate, twice};
use outcome::{Before, Outcome, RangeChange};
use std::sync::Arc;
use uext4_ondisk::journal::fast_commit::Record;
use uext4_ondisk::{BlockNo, CorruptKind, FileBlock, FileKind, Ino, Place};

/// A repetition under way.
struct Repetition<'v> {
    vfs: &'v Vfs,
    space: Arc<Space>,
    /// Free blocks that the records map.
    held: Vec<Allocation>,
    events: BlockEvents,
    /// Blocks of inode tables that may still be zeroed. All of them must fit in the log.
    table_room: u32,
}

fn corrupt(ino: Ino, why: &'static str) -> Error {
    CorruptKind::Rule { what: "fast commit", why }.at(Place::Inode(ino)).into()
}

/// What the records hold cannot be repeated without what a kernel has not logged.
fn not_repeatable(ino: Ino, why: &str) -> Error {
    Error::new(ErrorKind::NeedsRecovery, format!("fast commits of inode {ino}, {why}; run e2fsck"))
}

impl Vfs {
    /// Repeats the records of fast commits, whose outcome must fit in a log of `log_blocks`. No
    /// other thread uses the volume.
    ///
    /// # Errors
    /// `Corrupt` for records that contradict each other or the volume; `NeedsRecovery` for what
    /// cannot be repeated; `NoSpace`; a device failure.
    pub(crate) fn repeat_fast_commits(&self, records: &[Record], log_blocks: u32) -> Result<()> {
        let space = Arc::clone(&self.files.context.space);
        let (held, events) = (Vec::new(), BlockEvents::default());
        let mut repetition = Repetition { vfs: self, space, held, events, table_room: log_blocks };
        let outcome = Outcome::of(records, |ino| repetition.before(ino))?;
        for change in &outcome.ranges {
            if let Some(extent) = change.new {
                repetition
                    .held
                    .extend(repetition.space.allocate_exactly(extent.start, extent.len)?);
            }
        }
        repetition.repeat_inodes(&outcome)?;
        // All files lose blocks before one gets any: with `data=writeback` a kernel gives a block
        // away that another file, whose records come later, has lost.
        for change in &outcome.ranges {
            repetition.clear_range(change)?;
        }
        for change in &outcome.ranges {
            repetition.repeat_range(change)?;
        }
        repetition.settle_blocks()?;
        repetition.repeat_names(&outcome)
    }
}

impl Repetition<'_> {
    /// An inode as it is now, if it is in use.
    fn before(&self, ino: Ino) -> Result<Option<Before>> {
        let is_ordinary = ino == Ino::ROOT || !self.space.is_special(ino);
        if !is_ordinary || self.space.layout().group_of_ino(ino).is_none() {
            return Err(corrupt(ino, "names an inode that no file can have"));
        }
        if !self.space.is_inode_used(ino)? {
            return Ok(None);
        }
        let inode = self.vfs.files.context.table.read(ino)?;
        let (generation, links) = (inode.generation(), inode.attributes().links);
        Ok(Some(Before { generation, links, kind: inode.kind() }))
    }

    fn inode(&self, ino: Ino) -> Result<InodeRef> {
        self.vfs.files.context.table.get_orphan(ino)
    }

    /// Takes out what a file maps where the records say something else.
    fn clear_range(&mut self, change: &RangeChange) -> Result<()> {
        let inode = self.inode(change.ino)?;
        if inode.kind() == FileKind::Directory {
            return Err(corrupt(change.ino, "maps blocks of a directory"));
        }
        if !inode.has_extent_tree() {
            return Err(not_repeatable(change.ino, "which has no extent tree"));
        }
        let len = change.end.get().saturating_sub(change.first.get());
        if len == 0 || change.new.is_some_and(|new| new.len != len) {
            return Err(corrupt(change.ino, "maps no block, or blocks that no file can have"));
        }
        self.unmap(&inode, change.first, change.end)
    }

    /// Maps what a file gets.
    fn repeat_range(&mut self, change: &RangeChange) -> Result<()> {
        let Some(new) = change.new else { return Ok(()) };
        let inode = self.inode(change.ino)?;
        let nodes = NodeAllocations::for_edits(&inode, &[new.first], NodeSource::Free)?;
        self.edit(&inode, Edit::insert(new), nodes)?;
        self.events.get(new.start, new.len)
    }

    /// Takes blocks out of a file's mapping.
    fn unmap(&mut self, inode: &Inode, first: FileBlock, end: FileBlock) -> Result<()> {
        let mut next = Some(first);
        while let Some(at) = next {
            let nodes = NodeAllocations::for_removal(inode, &[at], true)?;
            next = self.edit(inode, Edit { first: at, end, new: None }, nodes)?;
        }
        Ok(())
    }

    /// Applies an edit, and notes the blocks that the file loses. Returns where it goes on.
    fn edit(
        &mut self,
        inode: &Inode,
        edit: Edit,
        mut nodes: NodeAllocations,
    ) -> Result<Option<FileBlock>> {
        let _writeback = inode.writeback();
        let pins = u32::try_from(nodes.blocks().count()).unwrap_or(u32::MAX / 4);
        let credits = edit_credits(inode) + nodes.new_node_credits() + 3 * pins;
        let removed =
            self.space.journal().run(credits, |handle| edit.apply(handle, inode, &mut nodes))?;
        for (start, len) in removed.runs {
            self.space.check_run(start, u64::from(len))?;
            self.events.lose(start, len);
        }
        Ok(removed.next)
    }

    /// Marks used what files have got, and frees what they have lost.
    fn settle_blocks(&mut self) -> Result<()> {
        let mut held = std::mem::take(&mut self.held);
        held.sort_unstable_by_key(Allocation::start);
        let events: Vec<_> = self.events.iter().collect();
        let mut held = held.into_iter().peekable();
        for (mut at, end, fate) in events {
            while at < end {
                let Some(allocation) = held.peek_mut().filter(|held| held.start().get() < end)
                else {
                    self.settle_run(at, end, fate)?;
                    break;
                };
                let (start, len) = (allocation.start().get(), allocation.len());
                if start + u64::from(len) <= at {
                    held.next();
                    continue;
                }
                if start > at {
                    self.settle_run(at, start, fate)?;
                    at = start;
                }
                // What is in front of this run, no file has got.
                drop(allocation.split_front(count(at - start.min(at))));
                let mut part = allocation.split_front(count(end - at));
                at += u64::from(part.len());
                if let Fate::Got { .. } = fate {
                    let len = part.len();
                    let credits = self.space.credits().blocks;
                    self.space.journal().run(credits, |handle| {
                        self.space.mark_used(handle, &mut part, len).map(drop)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Settles blocks that were in use before the records.
    fn settle_run(&self, start: u64, end: u64, fate: Fate) -> Result<()> {
        match fate {
            Fate::Got { were_lost: true } => Ok(()),
            Fate::Got { were_lost: false } => Err(twice(BlockNo(start))),
            Fate::Lost => {
                // Each step within a group.
                let per_group = u64::from(self.space.layout().blocks_per_group);
                let mut at = start;
                while at < end {
                    let len = count((end - at).min(per_group));
                    let _pins = self.space.pin_run(BlockNo(at), len)?;
                    let credits = 2 * self.space.credits().blocks;
                    self.space
                        .journal()
                        .run(credits, |handle| self.space.free(handle, BlockNo(at), len))?;
                    at += u64::from(len);
                }
                Ok(())
            }
        }
    }
}

fn count(blocks: u64) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}
