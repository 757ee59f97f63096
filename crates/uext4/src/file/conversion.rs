//! Giving a file with a block map an extent tree.
//!
//! What: the nodes of the tree are written to blocks that nothing refers to yet. Then one handle
//! exchanges the root. A file of any length takes bounded handles, because the blocks of the nodes
//! and the old indirect blocks belong to a *holder* meanwhile: a file without a name.
//! Invariants: before the exchange the holder has the blocks of the new nodes as its content, after
//! it the indirect blocks. The tree by which it has these is written beforehand as well, and the
//! same handle makes it the holder's. So at any commit every block has one owner, and a crash
//! deletes the holder with what nobody needs.
//! Locking: file lock exclusively, then the writeback lock. No other call on the file may be under
//! way, because look-ups do not expect that its form changes.
//! Kernel counterpart: `fs/ext4/migrate.c`.

use super::Files;
use crate::error::{CorruptKind, Error, ErrorKind, Place, Result};
use crate::extent::{self, Edit, NodeAllocations, NodeSource, build, edit_credits, nodes_for};
use crate::inode::{Inode, InodeRef};
use crate::journal::Handle;
use uext4_ondisk::extent::{Extent, MAX_UNWRITTEN_LEN};
use uext4_ondisk::{BlockNo, FileBlock, FileKind, InodeFlags};

/// The trees of an exchange.
struct Exchange {
    /// Root of the file.
    root: [u8; 60],
    /// Root of the holder.
    holder_root: [u8; 60],
    /// Blocks that the holder has by that root.
    held: u32,
    /// Blocks of the holder that no tree needs.
    unused: Vec<BlockNo>,
    /// Blocks that the file gets, less those that it loses.
    blocks: i64,
}

impl Files {
    /// Gives a file with a block map an extent tree. `holder` is an empty file without a name, with
    /// an extent tree, that nobody else has. False if the file has an extent tree, or no blocks of
    /// its own (a device, a short symbolic link).
    ///
    /// # Errors
    /// `NoSpace`, `ReadOnly`, `NotPermitted`; a corrupt map; a device failure. The file is as it
    /// was.
    pub(crate) fn convert_to_extents(&self, inode: &InodeRef, holder: &InodeRef) -> Result<bool> {
        self.context.check_changeable(inode)?;
        if !inode.has_blocks() || inode.has_extent_tree() {
            return Ok(false);
        }
        let (extents, indirect) = self.settled_map(inode)?;
        check_apart(inode, &extents, &indirect)?;
        let count = nodes_for(inode, extents.len());
        // A bound: the holder has the indirect blocks, nodes of its own, and what is left over.
        let most = nodes_for(holder, indirect.len() + (count + indirect.len()) / 10 + 64);
        self.fill_holder(holder, count + most)?;
        let _exclusive = inode.lock().write();
        let _writeback = inode.writeback();
        let mut again = Vec::with_capacity(extents.len());
        extent::list(inode, FileBlock(0), &mut |run| {
            again.push(run);
            true
        })?;
        if again != extents {
            return Err(Error::new(ErrorKind::InvalidArgument, "the file changes meanwhile"));
        }
        let exchange = self.prepare_exchange(inode, holder, &extents, &indirect)?;
        let _pins = (inode.table_block()?, holder.table_block()?);
        let mut pins = Vec::new();
        for &block in &exchange.unused {
            pins.extend(self.context.space.pin_run(block, 1)?);
        }
        let per_block = self.context.space.credits().blocks;
        // Both inodes, whose owners' usage changes, and blocks that are freed.
        let counted = 2 + u32::try_from(exchange.unused.len()).unwrap_or(u32::MAX / 8);
        let credits = 2 + per_block * counted;
        self.context
            .journal()
            .run(credits, |handle| self.exchange(handle, inode, holder, &exchange))?;
        inode.pages().by_block_map = false;
        // From now on its blocks are metadata, of which the log may have images.
        holder.set_holds_nodes();
        Ok(true)
    }

    /// The extents and the indirect blocks of a file, all of whose data is mapped.
    fn settled_map(&self, inode: &InodeRef) -> Result<(Vec<Extent>, Vec<BlockNo>)> {
        let _exclusive = inode.lock().write();
        let mut state = inode.writeback();
        if inode.kind() == FileKind::Regular {
            self.truncation.finish_truncate(inode, &mut state)?;
            self.context.writeback.write_back(inode, &mut state)?;
        }
        let mut extents = Vec::new();
        extent::list(inode, FileBlock(0), &mut |run| {
            extents.push(run);
            true
        })?;
        Ok((extents, extent::indirect_blocks(inode)?))
    }

    /// Writes the nodes of both trees and makes them durable.
    fn prepare_exchange(
        &self,
        inode: &Inode,
        holder: &InodeRef,
        extents: &[Extent],
        indirect: &[BlockNo],
    ) -> Result<Exchange> {
        let count = nodes_for(inode, extents.len());
        let blocks = blocks_of(holder)?;
        let own = extent::node_blocks(holder)?;
        let fixed = runs_of(indirect.iter().chain(&own).copied());
        // As many nodes as the runs need, of which those that are no nodes are a part.
        let mut nodes = nodes_for(holder, fixed.len());
        let held = loop {
            let Some(rest) = blocks.get(count + nodes..) else {
                let journal = self.context.journal();
                return Err(journal.broken("a holder has room for its tree"));
            };
            let all = indirect.iter().chain(&own).chain(rest).copied();
            let runs = runs_of(all);
            if nodes_for(holder, runs.len()) <= nodes {
                break runs;
            }
            nodes += 1;
        };
        let used = nodes_for(holder, held.len());
        let (of_file, of_holder) = (&blocks[..count], &blocks[count..count + nodes]);
        let exchange = Exchange {
            root: build(inode, extents, of_file)?,
            holder_root: build(holder, &held, of_holder)?,
            held: held.iter().map(|run| run.len).sum(),
            unused: of_holder[used..].to_vec(),
            blocks: count as i64 - indirect.len() as i64,
        };
        let flushed = self.context.cache().device().flush();
        flushed.map_err(|error| Error::io("flushing the nodes of a tree", error))?;
        Ok(exchange)
    }

    /// Gives the holder `count` blocks.
    fn fill_holder(&self, holder: &InodeRef, count: usize) -> Result<()> {
        let space = &self.context.space;
        let _writeback = holder.writeback();
        let (mut at, mut goal) = (FileBlock(0), holder.goal());
        while (at.get() as usize) < count {
            let want = (count - at.get() as usize).min(MAX_UNWRITTEN_LEN as usize);
            let mut allocation = space.allocate(goal, want as u32)?;
            let (first, len) = (at, allocation.len());
            let mut nodes = NodeAllocations::for_edits(holder, &[first], NodeSource::Free)?;
            let credits = 1 + space.credits().blocks + edit_credits(holder);
            self.context.journal().run(credits, |handle| {
                let start = space.mark_used(handle, &mut allocation, len)?;
                let new = Extent { first, len, start, unwritten: false };
                goal = new.start.plus(len.into());
                Edit::insert(new).apply(handle, holder, &mut nodes).map(drop)
            })?;
            at = at.plus(len);
        }
        Ok(())
    }

    fn exchange(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        holder: &Inode,
        exchange: &Exchange,
    ) -> Result<()> {
        let layout = self.context.space.layout();
        for &block in &exchange.unused {
            self.context.space.free(handle, block, 1)?;
        }
        let unused = exchange.unused.len() as i64;
        {
            let mut tree = holder.tree().write();
            tree.bytes = exchange.holder_root;
            holder.update(handle, |attributes| {
                attributes.block_map = exchange.holder_root;
                attributes.add_blocks(layout, -exchange.blocks - unused);
                attributes.set_size(u64::from(exchange.held) * u64::from(layout.block_size));
            })?;
        }
        let mut tree = inode.tree().write();
        tree.bytes = exchange.root;
        inode.note_data_change(handle);
        inode.update(handle, |attributes| {
            attributes.block_map = exchange.root;
            attributes.flags |= InodeFlags::EXTENTS;
            attributes.add_blocks(layout, exchange.blocks);
            attributes.touch();
        })
    }
}

/// Checks that no indirect block is a block of the file as well: it would be freed.
fn check_apart(inode: &Inode, extents: &[Extent], indirect: &[BlockNo]) -> Result<()> {
    let mut runs: Vec<&Extent> = extents.iter().collect();
    runs.sort_unstable_by_key(|run| run.start);
    let twice = runs.windows(2).any(|two| two[0].start.plus(two[0].len.into()) > two[1].start);
    let is_data = |block: &&BlockNo| {
        let next = runs.partition_point(|run| run.start <= **block);
        next.checked_sub(1).is_some_and(|at| **block < runs[at].start.plus(runs[at].len.into()))
    };
    if twice || indirect.iter().any(|block| is_data(&block)) {
        let kind = CorruptKind::Rule { what: "block map", why: "names a block twice" };
        return Err(kind.at(Place::Inode(inode.ino())).into());
    }
    Ok(())
}

/// The blocks of a file, in its order.
fn blocks_of(inode: &Inode) -> Result<Vec<BlockNo>> {
    let mut blocks = Vec::new();
    extent::list(inode, FileBlock(0), &mut |run| {
        blocks.extend((0..u64::from(run.len)).map(|n| run.start.plus(n)));
        true
    })?;
    Ok(blocks)
}

/// Extents of a file that consists of these blocks.
fn runs_of(blocks: impl Iterator<Item = BlockNo>) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for (n, block) in (0..).zip(blocks) {
        match runs.last_mut() {
            Some(run) if run.start.plus(run.len.into()) == block && run.len < MAX_UNWRITTEN_LEN => {
                run.len += 1;
            }
            _ => runs.push(Extent { first: FileBlock(n), len: 1, start: block, unwritten: false }),
        }
    }
    runs
}
