//! Giving a file a Merkle tree (fs-verity): from then on its content never changes.
//!
//! What: [`Sealing::seal`] computes the tree from the file's blocks, writes it and the descriptor
//! behind the end of the file, and marks the file.
//! Invariants: data, tree and descriptor are durable before the handle that marks the file. Until
//! then the tree lies in blocks behind the end that are allocated and unwritten, or the file is an
//! orphan that is to be truncated to its size. So a crash leaves a sealed file, or one with the
//! content and size that it had and nothing behind its end.
//! Locking: the file exclusively from the first look to the mark, and its writeback lock, so no
//! writer comes between; direct I/O is drained, and finds a file that cannot be overwritten.
//! Kernel counterpart: `fs/verity/enable.c`, `ext4_begin_enable_verity`, `ext4_end_enable_verity`.

use super::FileContext;
use super::allocate::RangeAllocation;
use super::read::PageReader;
use super::sync::Syncs;
use super::truncate::Truncation;
use crate::error::{Error, ErrorKind, Result};
use crate::extent::{Edit, NodeAllocations, NodeSource, State, edit_credits, lookup};
use crate::inode::{ExclusiveGuard, Inode, InodeRef, WritebackState};
use std::sync::Arc;
use uext4_ondisk::extent::Extent;
use uext4_ondisk::verity::{Parameters, RawVerityDescriptor, Tree};
use uext4_ondisk::{FileBlock, FileKind, InodeFlags, RoCompat};

/// Seals files.
#[derive(Debug)]
pub(crate) struct Sealing {
    pub(super) context: Arc<FileContext>,
    pub(super) reader: Arc<PageReader>,
    pub(super) truncation: Arc<Truncation>,
    pub(super) ranges: Arc<RangeAllocation>,
    pub(super) syncs: Arc<Syncs>,
}

/// Hash blocks of a tree that are filled, one a level.
struct TreeWriter<'a> {
    sealing: &'a Sealing,
    inode: &'a Inode,
    tree: &'a Tree,
    /// By level, the leaves first: the block that is being filled, and its number.
    open: Vec<(Vec<u8>, u64)>,
    root: Vec<u8>,
}

impl Sealing {
    /// Gives a file a Merkle tree.
    ///
    /// # Errors
    /// `Exists` if it has one; `Unsupported` without the feature `verity`, and for files that are
    /// encrypted, without an extent tree or with journaled data; `InvalidArgument` for parameters
    /// that no tree has; `FileTooBig` if the tree has too many levels or goes past the largest
    /// file; `NoSpace`, `ReadOnly`; a device failure. The file has its content and size then, but
    /// blocks that were allocated behind its end may be gone.
    pub(crate) fn seal(&self, inode: &InodeRef, parameters: Parameters) -> Result<()> {
        self.check(inode)?;
        self.syncs.sync(inode, false)?;
        {
            let _exclusive = inode.lock().write();
            self.check(inode)?;
            let mut state = inode.writeback();
            self.truncation.finish_truncate(inode, &mut state)?;
            self.context.writeback.write_back(inode, &mut state)?;
            self.context.check_tree_block(&parameters)?;
            if !parameters.are_sound() {
                let why = "a Merkle tree has blocks of 1 KiB or more, and a short salt";
                return Err(Error::new(ErrorKind::InvalidArgument, why));
            }
            let tree = Tree::new(parameters, inode.size()).ok_or_else(|| {
                let why = "a Merkle tree of more than 8 levels; with larger blocks it has fewer";
                Error::new(ErrorKind::FileTooBig, why)
            })?;
            self.context.check_end(inode, self.descriptor_place(&tree).1)?;
            let drained = inode.drain_direct_io(FileBlock(0), FileBlock::END)?;
            let sealed = self.seal_locked(inode, &drained, &mut state, &tree);
            if sealed.is_err() {
                // The first error says more than one of this. An orphan that this leaves is
                // completed before the file changes; blocks that it leaves are unwritten.
                let _ = self.take_back(inode, &drained, &mut state);
            }
            sealed?;
        }
        self.syncs.sync(inode, false)
    }

    fn check(&self, inode: &Inode) -> Result<()> {
        self.context.check_changeable(inode)?;
        let unsupported = |why| Err(Error::new(ErrorKind::Unsupported, why));
        if !self.context.space.layout().features.ro_compat.contains(RoCompat::VERITY) {
            return unsupported("the file system has no feature verity");
        }
        if inode.kind() != FileKind::Regular {
            return Err(Error::new(ErrorKind::InvalidArgument, "not a regular file"));
        }
        if inode.is_verity() {
            return Err(Error::new(ErrorKind::Exists, "the file has a Merkle tree"));
        }
        if inode.is_encrypted() {
            return unsupported("a Merkle tree of an encrypted file");
        }
        let is_inline = inode.attributes().flags.contains(InodeFlags::INLINE_DATA);
        if !inode.has_extent_tree() || is_inline {
            return unsupported("a Merkle tree of a file without an extent tree of its own");
        }
        // A checkpoint of older images could overwrite the tree.
        if self.context.is_journaled(inode) {
            return unsupported("a Merkle tree of a file whose data is journaled");
        }
        if inode.is_dax() {
            return unsupported("a Merkle tree of a file in DAX mode");
        }
        Ok(())
    }

    /// Where the descriptor of a tree begins, and the byte behind its last block.
    fn descriptor_place(&self, tree: &Tree) -> (u64, u64) {
        let block_size = self.context.block_size();
        let start = tree.end.next_multiple_of(block_size);
        let end = start + size_of::<RawVerityDescriptor>() as u64 + 4;
        (start, end.next_multiple_of(block_size))
    }

    fn seal_locked(
        &self,
        inode: &InodeRef,
        drained: &ExclusiveGuard<'_>,
        state: &mut WritebackState,
        tree: &Tree,
    ) -> Result<()> {
        let (descriptor_at, end) = self.descriptor_place(tree);
        let behind = self.context.block_from(inode.size());
        self.truncation.remove_range(inode, drained, behind, FileBlock::END)?;
        inode.preallocation.truncate(&self.context.space, behind.get());
        let first = self.context.block_at(tree.levels.last().map_or(descriptor_at, |root| root.0));
        let last = self.context.block_from(end);
        self.ranges.fill_holes(inode, first, last, None)?;

        let root = self.write_tree(inode, tree)?;
        let descriptor = RawVerityDescriptor::of(tree, &root);
        let mut block = vec![0; usize::try_from(end - descriptor_at).unwrap_or(0)];
        block[..descriptor.bytes().len()].copy_from_slice(descriptor.bytes());
        let len = uext4_ondisk::verity::descriptor_tail(descriptor.bytes().len());
        let tail = block.len() - len.len();
        block[tail..].copy_from_slice(&len);
        self.store(inode, descriptor_at, &block)?;
        // The data, too: the mark says what it hashes to.
        let device = self.context.cache().device();
        device.flush().map_err(|e| Error::io("flushing a Merkle tree", e))?;
        self.mark(inode, first, last)?;
        let _ = state;
        Ok(())
    }

    /// Makes the blocks of the tree written, and the file one that has it.
    fn mark(&self, inode: &InodeRef, first: FileBlock, last: FileBlock) -> Result<()> {
        let orphan = self.context.space.credits().orphan;
        let _pin = inode.table_block()?;
        self.context.journal().run(orphan + 1, |handle| {
            inode.set_unfinished_truncate(true);
            self.context.orphans.add(handle, inode)
        })?;
        let mut at = first;
        while at < last {
            let mapping = lookup(inode, at)?;
            let end = mapping.end().min(last);
            if let State::Unwritten(start) = mapping.state {
                let new = Extent { first: at, len: end.get() - at.get(), start, unwritten: false };
                let mut nodes = NodeAllocations::for_edits(inode, &[at], NodeSource::Pool)?;
                let credits = edit_credits(inode) + nodes.new_node_credits();
                let edit = Edit::insert(new);
                self.context
                    .journal()
                    .run(credits, |handle| edit.apply(handle, inode, &mut nodes).map(drop))?;
            }
            at = end;
        }
        let flags = inode.attributes().flags | InodeFlags::VERITY;
        inode.expect_flags(flags);
        self.context.journal().run(orphan + 1, |handle| {
            inode.update(handle, |attributes| {
                attributes.flags = flags;
                attributes.touch();
            })?;
            self.context.orphans.remove(handle, inode)
        })?;
        inode.set_sealed();
        inode.follow_flags();
        inode.set_unfinished_truncate(false);
        // What is in memory was not verified.
        self.truncation.discard_pages(inode, FileBlock(0), FileBlock::END);
        Ok(())
    }

    /// Removes what a sealing that failed has left behind the end.
    fn take_back(
        &self,
        inode: &InodeRef,
        drained: &ExclusiveGuard<'_>,
        state: &mut WritebackState,
    ) -> Result<()> {
        if inode.has_unfinished_truncate() {
            return self.truncation.shrink(inode, drained, state, inode.size());
        }
        let behind = self.context.block_from(inode.size());
        self.truncation.remove_range(inode, drained, behind, FileBlock::END)
    }

    /// Writes the tree; returns the root's hash.
    fn write_tree(&self, inode: &InodeRef, tree: &Tree) -> Result<Vec<u8>> {
        let unit = tree.parameters.block_size as usize;
        let open = vec![(vec![0; unit], 0); tree.levels.len()];
        let mut writer = TreeWriter { sealing: self, inode, tree, open, root: Vec::new() };
        let mut bytes = vec![0; (1 << 20).max(unit)];
        let (size, mut at) = (tree.data_size, 0);
        while at < size {
            let count = usize::try_from(size - at).unwrap_or(usize::MAX).min(bytes.len());
            self.reader.read_around(inode, at, &mut bytes[..count])?;
            let whole = count.next_multiple_of(unit);
            bytes[count..whole].fill(0);
            for (index, block) in bytes[..whole].chunks_exact(unit).enumerate() {
                writer.add(0, at / unit as u64 + index as u64, &tree.hash(block))?;
            }
            at += count as u64;
        }
        writer.finish()
    }

    /// Writes bytes of the file's blocks in place, which are allocated.
    fn store(&self, inode: &Inode, offset: u64, bytes: &[u8]) -> Result<()> {
        let block_size = self.context.block_size();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let mapping = lookup(inode, self.context.block_at(at))?;
            let (State::Unwritten(start) | State::Written(start)) = mapping.state else {
                return Err(Error::new(ErrorKind::Internal, "the blocks of a tree are allocated"));
            };
            let room = self.context.offset_of(mapping.end()) - at;
            let count = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len() - done);
            let to = start.get() * block_size + at - self.context.offset_of(mapping.first);
            let device = self.context.cache().device();
            let written = device.write_at(to, &bytes[done..done + count]);
            written.map_err(|e| Error::io("writing a Merkle tree", e))?;
            done += count;
        }
        Ok(())
    }
}

impl TreeWriter<'_> {
    /// Adds the hash of block `number` of the level below `level`.
    fn add(&mut self, level: usize, number: u64, hash: &[u8]) -> Result<()> {
        let Some((_, block, within)) = self.tree.place_of_hash(level, number) else {
            self.root = hash.to_vec();
            return Ok(());
        };
        if self.open[level].1 != block {
            self.close(level)?;
            self.open[level].1 = block;
        }
        self.open[level].0[within..within + hash.len()].copy_from_slice(hash);
        Ok(())
    }

    /// Writes the block of a level that is full, and adds its hash to the level above.
    fn close(&mut self, level: usize) -> Result<()> {
        let (bytes, number) = &mut self.open[level];
        let (bytes, number) = (std::mem::take(bytes), *number);
        let unit = bytes.len();
        let at = self.tree.levels[level].0 + number * unit as u64;
        self.sealing.store(self.inode, at, &bytes)?;
        let hash = self.tree.hash(&bytes);
        self.open[level].0 = vec![0; unit];
        self.add(level + 1, number, &hash)
    }

    /// Writes what is open; returns the root's hash. An empty file has none.
    fn finish(mut self) -> Result<Vec<u8>> {
        for level in 0..self.open.len() {
            self.close(level)?;
        }
        Ok(self.root)
    }
}
