//! Deleting inodes that are unlinked and no longer in use.
//!
//! Invariants: such an inode has been an orphan since its last link went, or, if it was made for
//! the value of an attribute, since it was made. Its number is freed in the same handle that takes
//! it off the orphans.

use super::FileContext;
use super::removal::{Removal, corrupt};
use super::truncate::Truncation;
use crate::error::{Error, Result};
use crate::extent;
use crate::injected_faults::Fault;
use crate::inode::{Inode, InodeRef};
use crate::sync::state::{AtomicU64, AtomicUsize, Ordering};
use crate::xattr::{self, Release};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, CorruptKind, FileBlock, FileKind, Incompat, Place};

/// Numbers of inodes that have no link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlinked {
    /// Inodes that are in use, or are being deleted. Interrupted truncates count as well.
    pub held: usize,
    /// Inodes that have been deleted since the volume was opened. Their blocks are free, or will be
    /// with the next commit.
    pub deleted: u64,
}

/// Deletes inodes.
#[derive(Debug)]
pub(crate) struct Deletion {
    context: Arc<FileContext>,
    truncation: Arc<Truncation>,
    /// Numbers of unlinked inodes that are being deleted, and that have been.
    deleting: AtomicUsize,
    deleted: AtomicU64,
}

impl Deletion {
    pub(super) fn new(context: &Arc<FileContext>, truncation: &Arc<Truncation>) -> Self {
        let (deleting, deleted) = (AtomicUsize::new(0), AtomicU64::new(0));
        let (context, truncation) = (Arc::clone(context), Arc::clone(truncation));
        Self { context, truncation, deleting, deleted }
    }

    /// Deletes the inodes whose last reference has gone.
    ///
    /// # Errors
    /// The first failure. An inode that could not be deleted stays an orphan, which the next mount
    /// cleans up.
    pub(crate) fn delete_unlinked(&self) -> Result<()> {
        let mut result = Ok(());
        if Fault::HastyDelete.is_injected() {
            self.empty_while_held()?;
        }
        // A file that is deleted may leave values of attributes that nobody refers to.
        let incompat = self.context.space.layout().features.incompat;
        let leaves_values = incompat.contains(Incompat::EA_INODE);
        loop {
            let unlinked = self.context.table.take_unlinked();
            if unlinked.is_empty() {
                return result;
            }
            for inode in unlinked {
                if self.context.is_read_only() {
                    continue;
                }
                let deleted = self.report(self.delete(&inode));
                if result.is_ok() {
                    result = deleted;
                }
            }
            if !leaves_values {
                return result;
            }
        }
    }

    /// Deletes every unlinked inode, even one that is still in use. Called when the volume is
    /// closed, because a clean image has no orphans.
    ///
    /// # Errors
    /// The first failure.
    pub(crate) fn delete_all_unlinked(&self) -> Result<()> {
        let mut result = self.delete_unlinked();
        for inode in self.context.table.all_unlinked() {
            let links = inode.attributes().links;
            if links == 0 && !self.context.is_read_only() {
                let deleted = {
                    // It may be open, and be read or written at this moment.
                    let _exclusive = inode.lock().write();
                    self.delete(&inode)
                };
                result = result.and(self.report(deleted));
            }
        }
        result.and(self.delete_unlinked())
    }

    /// Numbers of unlinked inodes that are not deleted yet, and that have been.
    pub(crate) fn unlinked(&self) -> Unlinked {
        // An inode that is being deleted leaves the orphans before its blocks are free.
        let held = self.context.orphans.len() + self.deleting.load(Ordering::SeqCst);
        Unlinked { held, deleted: self.deleted.load(Ordering::SeqCst) }
    }

    /// [`Unlinked::deleted`] alone, without a lock.
    pub(crate) fn deletions(&self) -> u64 {
        self.deleted.load(Ordering::SeqCst)
    }

    /// The injected fault: unlinked inodes that are in use lose their blocks and stay orphans.
    fn empty_while_held(&self) -> Result<()> {
        for inode in self.context.table.all_unlinked() {
            if inode.attributes().links == 0 && self.context.orphans.contains(inode.ino()) {
                let _writeback = inode.writeback();
                let drained = inode.drain_direct_io(FileBlock(0), FileBlock::END)?;
                self.truncation.remove_range(&inode, &drained, FileBlock(0), FileBlock::END)?;
            }
        }
        Ok(())
    }

    /// Reports the damage that an inode was deleted in spite of. The caller holds no lock.
    fn report(&self, deleted: Result<Vec<Error>>) -> Result<()> {
        let skipped = deleted?;
        skipped.into_iter().for_each(|error| self.context.watch_dropped::<()>(Err(error)));
        Ok(())
    }

    /// Deletes an inode. Returns damage of its attributes that it was deleted in spite of.
    fn delete(&self, inode: &Arc<Inode>) -> Result<Vec<Error>> {
        // An inode that lost its links on this mount is an orphan. Any other has been deleted while
        // it was open, or is damage, and is left alone.
        if !self.context.orphans.contains(inode.ino()) {
            return Ok(Vec::new());
        }
        self.deleting.fetch_add(1, Ordering::SeqCst);
        let result = self.delete_orphan(inode);
        self.deleted.fetch_add(1, Ordering::SeqCst);
        self.deleting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Checks that the blocks of an inode can be freed: with clusters a block map, which says
    /// nothing of them, could free the clusters of other files. mke2fs makes no such inode.
    fn check_map(&self, inode: &Inode) -> Result<()> {
        let has_clusters = self.context.space.layout().has_clusters();
        if has_clusters && inode.has_blocks() && !inode.has_extent_tree() {
            let why = "has a block map on a file system with clusters";
            return Err(CorruptKind::Rule { what: "inode", why }
                .at(Place::Inode(inode.ino()))
                .into());
        }
        Ok(())
    }

    /// Checks that no block of data is a node or the attribute block of the file as well. A handle
    /// that freed it as data would leave the others to a block that is free, or is in another file
    /// by the time of the next one.
    fn check_own_blocks(&self, inode: &Inode) -> Result<()> {
        let mut own = extent::all_nodes(inode)?;
        let attributes = inode.attributes().file_acl;
        if attributes != 0 {
            own.push(BlockNo(attributes));
            own.sort_unstable();
        }
        if own.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(corrupt(inode, "has its attribute block as a node"));
        }
        if own.is_empty() {
            return Ok(());
        }
        let mut is_shared = false;
        extent::list(inode, FileBlock(0), &mut |run| {
            let at = own.partition_point(|block| *block < run.start);
            is_shared = own.get(at).is_some_and(|block| *block < run.start.plus(run.len.into()));
            !is_shared
        })?;
        match is_shared {
            true => Err(corrupt(inode, "maps a block that is its attribute block or a node of it")),
            false => Ok(()),
        }
    }

    fn delete_orphan(&self, inode: &Arc<Inode>) -> Result<Vec<Error>> {
        self.check_map(inode)?;
        let _writeback = inode.writeback();
        let drained = inode.drain_direct_io(FileBlock(0), FileBlock::END)?;
        let mut removal = Removal::nothing();
        if inode.has_blocks() {
            self.check_own_blocks(inode)?;
            self.truncation.discard_pages(inode, FileBlock(0), FileBlock::END);
            removal =
                self.truncation.plan_removal(inode, &drained, FileBlock(0), FileBlock::END)?;
        }
        while !removal.is_last {
            self.context.journal().run(removal.credits, |handle| {
                self.truncation.remove_planned(handle, inode, &mut removal)
            })?;
            removal =
                self.truncation.plan_removal(inode, &drained, FileBlock(0), FileBlock::END)?;
        }
        let mut skipped = Vec::new();
        let mut attributes = loop {
            match xattr::AttributeChange::plan_release(inode)? {
                Release::Nothing => break None,
                Release::Rest(rest) => break Some(rest),
                Release::Some(mut some) => {
                    skipped.extend(some.take_skipped());
                    self.context.journal().run(some.credits(), |handle| some.apply(handle))?;
                }
            }
        };
        if let Some(attributes) = &mut attributes {
            skipped.extend(attributes.take_skipped());
        }
        let _pins = (inode.table_block()?, self.context.space.pin_inode(inode.ino())?);
        let block_credits = attributes.as_ref().map_or(0, xattr::AttributeChange::credits);
        let steps = self.context.space.credits();
        let credits = removal.credits + block_credits + steps.orphan + steps.inode_number + 1;
        let is_directory = inode.kind() == FileKind::Directory;
        self.context.journal().run(credits, |handle| {
            self.truncation.remove_planned(handle, inode, &mut removal)?;
            if let Some(attributes) = attributes {
                attributes.apply(handle)?;
            }
            self.context.orphans.remove(handle, inode)?;
            let now = u32::try_from(crate::inode::now().secs).unwrap_or(u32::MAX);
            inode.update(handle, |attributes| {
                attributes.set_size(0);
                attributes.dtime = now;
            })?;
            inode.uncharge(handle)?;
            self.context.space.free_inode(handle, inode.ino(), is_directory)
        })?;
        Ok(skipped)
    }

    /// Completes what a crash interrupted: deletes orphans without links and truncates the others
    /// to their size, one after the other, because there may be more than memory holds. Returns the
    /// errors of those that could not be cleaned up; they stay orphans.
    ///
    /// # Errors
    /// The journal is aborted; an orphan cannot be read.
    pub(crate) fn clean_orphans(&self) -> Result<Vec<Error>> {
        let mut problems = Vec::new();
        for ino in self.context.orphans.numbers_in_file() {
            let cleaned = self.clean_orphan(self.context.table.get_orphan(ino)?);
            problems.extend(self.context.watch(cleaned).err());
        }
        while let Some(inode) = self.context.orphans.next_of_list(&self.context.table)? {
            let cleaned = self.clean_orphan(inode);
            problems.extend(self.context.watch(cleaned).err());
        }
        // Damage may have made the volume read-only (`errors=`). It can be opened all the same.
        let is_read_only = self.context.read_only.load(Ordering::Acquire);
        if self.context.journal().is_aborted() && !is_read_only {
            return Err(self.context.journal().aborted_error());
        }
        Ok(problems)
    }

    fn clean_orphan(&self, inode: InodeRef) -> Result<()> {
        // An inode with links stays in memory while the list holds it.
        let is_truncated = inode.attributes().links > 0;
        if is_truncated {
            self.check_map(&inode)?;
        }
        inode.set_unfinished_truncate(is_truncated);
        if is_truncated {
            let _exclusive = inode.lock().write();
            return self.truncation.finish_truncate(&inode, &mut inode.writeback());
        }
        drop(inode);
        self.delete_unlinked()
    }
}
