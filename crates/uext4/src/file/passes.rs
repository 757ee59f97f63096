//! Which inodes are written back, together or alone.
//!
//! What: an inode is written back alone, or in a group that shares a pass of [`super::writeback`].
//! Syncs: [`super::group_writeback`]. The flusher, sync(2) and closing the volume drain the list
//! of dirty inodes in groups.
//! Locking: writeback locks. A group only tries them: an inode whose lock is busy is written back
//! alone, afterwards.

use super::sync::Syncs;
use super::writeback::Part;
use crate::cache::Drain;
use crate::error::Result;
use crate::inode::InodeRef;
use uext4_ondisk::{FileBlock, FileKind};

/// Most inodes of a group.
const GROUP_INODES: usize = 256;
/// Files with more dirty pages are written back alone.
const GROUPED_PAGES: usize = 256;

impl Syncs {
    /// Writes back everything of an inode that is dirty now. A failure is also recorded for open
    /// files that sync later.
    ///
    /// # Errors
    /// A device failure; no space; an aborted journal. The pages stay dirty.
    pub(crate) fn write_back(&self, inode: &InodeRef) -> Result<()> {
        self.context.writeback.write_back(inode, &mut inode.writeback())
    }

    /// Writes back the inodes of a drain that `wants` picks, data and times. Returns the first
    /// failure; failures of data are recorded with their inodes as well.
    pub(super) fn write_back_drained(
        &self,
        drain: &Drain<'_>,
        wants: impl Fn(&InodeRef) -> bool,
    ) -> Result<()> {
        let mut result = Ok(());
        let mut group = Vec::new();
        let mut pages = 0;
        for &ino in drain.inodes() {
            // An inode that has left memory was clean.
            let Some(inode) = self.context.table.find(ino) else { continue };
            inode.dirty.take();
            self.context.fold_direct_times(&inode);
            if !wants(&inode) {
                mark_if_dirty(&inode);
                continue;
            }
            let dirty = inode.pages().map.dirty();
            if dirty > GROUPED_PAGES {
                self.keep_first(&mut result, self.write_back_one(&inode));
                mark_if_dirty(&inode);
                continue;
            }
            pages += dirty;
            group.push(inode);
            if group.len() == GROUP_INODES || pages >= self.context.table.budget().batch_pages() {
                self.keep_first(&mut result, self.write_back_group(&group));
                group.drain(..).for_each(|inode| mark_if_dirty(&inode));
                pages = 0;
            }
        }
        self.keep_first(&mut result, self.write_back_group(&group));
        group.iter().for_each(mark_if_dirty);
        result
    }

    pub(super) fn keep_first(&self, first: &mut Result<()>, next: Result<()>) {
        if first.is_ok() {
            *first = next;
        } else {
            self.context.watch_dropped(next);
        }
    }

    fn write_back_one(&self, inode: &InodeRef) -> Result<()> {
        if inode.kind() == FileKind::Regular {
            self.write_back(inode)?;
        }
        self.write_times(inode)
    }

    /// Writes back inodes in groups of a suitable size.
    pub(super) fn write_back_in_groups(&self, inodes: &[InodeRef]) -> Result<()> {
        let mut result = Ok(());
        for group in inodes.chunks(GROUP_INODES / 4) {
            self.keep_first(&mut result, self.write_back_group(group));
        }
        result
    }

    /// Writes back data and times of several inodes together.
    fn write_back_group(&self, inodes: &[InodeRef]) -> Result<()> {
        let alone = self.try_write_back_group(inodes);
        let mut result = Ok(());
        for inode in alone {
            self.keep_first(&mut result, self.write_back_one(inode));
        }
        result
    }

    /// Writes back, as one group, the inodes whose writeback lock is free. Returns the others. If
    /// anything fails it returns all of them, because writing each back alone shows which one
    /// fails.
    pub(super) fn try_write_back_group<'a>(&self, inodes: &'a [InodeRef]) -> Vec<&'a InodeRef> {
        let mut alone = Vec::new();
        let (mut locks, mut parts) = (Vec::new(), Vec::new());
        for inode in inodes {
            if inode.kind() != FileKind::Regular {
                parts.push(Part::of_attributes(inode));
                continue;
            }
            let Some(lock) = inode.try_writeback() else {
                alone.push(inode);
                continue;
            };
            let part = self.context.writeback.take(inode, FileBlock(0), 2 * GROUPED_PAGES);
            if !part.is_last {
                alone.push(inode);
            }
            locks.push(lock);
            parts.push(part);
        }
        match self.context.writeback.pass(&mut parts, true) {
            Ok(()) => alone,
            Err(error) => {
                self.context.watch_dropped::<()>(Err(error));
                inodes.iter().collect()
            }
        }
    }

    /// Writes back the unused inodes that keep the table over its limit, data and times. Called
    /// before an operation takes locks.
    pub(crate) fn trim_inodes(&self) {
        for index in self.context.table.take_overfull() {
            let mut unused = Vec::new();
            self.context.table.for_shard(index, |inode| {
                if inode.is_only_ours() && inode.is_dirty() {
                    unused.push(inode);
                }
            });
            if self.context.is_read_only() {
                continue;
            }
            // A look-up may do this while another thread closes the volume, and a handle that
            // joined after the last commit would be lost.
            if let Some(_inside) = self.context.try_begin_call() {
                // Failures are recorded: of writeback with the inode, of a handle with the journal.
                self.context.watch_dropped(self.write_back_in_groups(&unused));
            }
        }
    }
}

fn mark_if_dirty(inode: &InodeRef) {
    if inode.is_dirty() {
        inode.dirty.set();
    }
}
