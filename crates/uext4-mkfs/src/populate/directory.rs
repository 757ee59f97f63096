//! Directories as they stand in their blocks: in the order of names, or with a hash tree.
//!
//! Policy: a directory with more than one block gets a tree, made from the sorted hashes at once:
//! the root, then the nodes, then full leaves in the order of the hashes.

use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::dir_entry::{
    init_block, init_first_block, insert_at, rec_len_for, seal_dir_leaf,
};
use uext4_ondisk::hash::DirHasher;
use uext4_ondisk::htree::{
    DxEntry, DxRoot, MAX_LEVELS, MAX_LEVELS_LARGEDIR, NODE_ENTRIES_OFFSET, ROOT_ENTRIES_OFFSET,
    entry_limit, seal_dx, write_node, write_root,
};
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Ino};

/// How directories of a file system look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) block_size: usize,
    pub(crate) has_filetype: bool,
    /// Whether blocks have checksums.
    pub(crate) has_tail: bool,
    /// Hashes of names; `None`: no trees are made.
    pub(crate) hasher: Option<DirHasher>,
    pub(crate) has_large_dir: bool,
}

/// A name and what it names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
}

/// The blocks of a directory, one after the other, and whether it has a hash tree.
pub(crate) struct Blocks {
    pub(crate) bytes: Vec<u8>,
    pub(crate) is_indexed: bool,
}

/// What a directory is beside its names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    pub(crate) ino: Ino,
    pub(crate) parent: Ino,
    pub(crate) seed: InodeSeed,
    /// Least number of blocks of a directory without tree.
    pub(crate) least: usize,
}

/// Lays a directory out. `None`: it has too many names for a tree.
pub(crate) fn lay_out(
    form: &Form,
    own: Own,
    entries: &[Entry<'_>],
) -> Result<Option<Blocks>, CorruptKind> {
    let linear = |form: &Form| form.linear(own, entries);
    let dots = 2 * rec_len_for(2) as usize;
    let bytes: usize = entries.iter().map(|entry| rec_len_for(entry.name.len()) as usize).sum();
    if form.hasher.is_none() || dots + bytes <= form.room() {
        return linear(form).map(Some);
    }
    form.tree(own, entries)
}

/// A block that is being filled.
struct Filling<'a> {
    block: &'a mut [u8],
    /// Offset of the last record, and of what follows it.
    last: u32,
    end: usize,
}

impl Form {
    /// Bytes of a block for records.
    fn room(&self) -> usize {
        self.block_size - if self.has_tail { uext4_ondisk::dir_entry::TAIL_SIZE } else { 0 }
    }

    /// Adds a record at the end. The caller knows that there is room.
    fn add(&self, to: &mut Filling<'_>, entry: &Entry<'_>) -> Result<(), CorruptKind> {
        let kind = self.has_filetype.then_some(entry.kind);
        insert_at(to.block, to.last, entry.name, entry.ino, kind, self.has_tail)?;
        to.last = u32::try_from(to.end).unwrap_or(u32::MAX);
        to.end += rec_len_for(entry.name.len()) as usize;
        Ok(())
    }

    /// Fills a block with the first entries that fit after `end` bytes, whose last record is at
    /// `last`. Returns how many do.
    fn fill(
        &self,
        block: &mut [u8],
        (last, end): (u32, usize),
        entries: &[Entry<'_>],
    ) -> Result<usize, CorruptKind> {
        let mut filling = Filling { block, last, end };
        let mut count = 0;
        for entry in entries {
            if filling.end + rec_len_for(entry.name.len()) as usize > self.room() {
                break;
            }
            self.add(&mut filling, entry)?;
            count += 1;
        }
        Ok(count)
    }

    fn linear(&self, own: Own, entries: &[Entry<'_>]) -> Result<Blocks, CorruptKind> {
        let mut bytes = vec![0; self.block_size];
        let (has_filetype, has_tail) = (self.has_filetype, self.has_tail);
        init_first_block(&mut bytes, own.ino, own.parent, has_filetype, has_tail);
        let mut done = self.fill(&mut bytes, (12, 24), entries)?;
        seal_dir_leaf(&mut bytes, own.seed);
        while done < entries.len() || bytes.len() / self.block_size < own.least {
            done += self.leaf(&mut bytes, own.seed, &entries[done..])?;
        }
        Ok(Blocks { bytes, is_indexed: false })
    }

    /// Adds a block with the first of the entries. Returns how many fit.
    fn leaf(
        &self,
        bytes: &mut Vec<u8>,
        seed: InodeSeed,
        entries: &[Entry<'_>],
    ) -> Result<usize, CorruptKind> {
        let start = bytes.len();
        bytes.resize(start + self.block_size, 0);
        let block = &mut bytes[start..];
        init_block(block, self.has_tail);
        let count = self.fill(block, (0, 0), entries)?;
        seal_dir_leaf(block, seed);
        Ok(count)
    }

    fn tree(&self, own: Own, entries: &[Entry<'_>]) -> Result<Option<Blocks>, CorruptKind> {
        let Some(hasher) = self.hasher else { return Ok(None) };
        let mut hashed: Vec<((u32, u32), Entry<'_>)> =
            entries.iter().map(|entry| (hasher.hash(entry.name), *entry)).collect();
        hashed.sort_unstable_by(|(a, x), (b, y)| a.cmp(b).then_with(|| x.name.cmp(y.name)));
        let sorted: Vec<Entry<'_>> = hashed.iter().map(|(_, entry)| *entry).collect();
        // The leaves first, to know how many nodes there are above them.
        let (mut leaves, mut starts, mut done) = (Vec::new(), Vec::new(), 0);
        while done < sorted.len() {
            let hash = hashed[done].0.0;
            let continues = done > 0 && hashed[done - 1].0.0 == hash;
            starts.push(if done == 0 { 0 } else { hash | u32::from(continues) });
            done += self.leaf(&mut leaves, own.seed, &sorted[done..])?;
        }
        let Some(levels) = self.levels(starts.len()) else { return Ok(None) };
        let (root_block, above) = self.nodes(&levels, &starts, own);
        let mut bytes = root_block;
        bytes.extend_from_slice(&above);
        bytes.extend_from_slice(&leaves);
        Ok(Some(Blocks { bytes, is_indexed: true }))
    }

    /// Nodes of each level between root and leaves, from the top. `None`: the tree would be too
    /// deep.
    fn levels(&self, leaves: usize) -> Option<Vec<usize>> {
        let limit = |offset| usize::from(entry_limit(self.block_size, offset, self.has_tail));
        let most = if self.has_large_dir { MAX_LEVELS_LARGEDIR } else { MAX_LEVELS };
        let (mut levels, mut count) = (Vec::new(), leaves);
        while count > limit(ROOT_ENTRIES_OFFSET) {
            count = count.div_ceil(limit(NODE_ENTRIES_OFFSET));
            levels.insert(0, count);
        }
        (levels.len() <= usize::from(most)).then_some(levels)
    }

    /// The root, and the nodes of all levels.
    fn nodes(&self, levels: &[usize], starts: &[u32], own: Own) -> (Vec<u8>, Vec<u8>) {
        let per_node =
            usize::from(entry_limit(self.block_size, NODE_ENTRIES_OFFSET, self.has_tail));
        let nodes: usize = levels.iter().sum();
        let mut above = vec![0; nodes * self.block_size];
        // Behind the root; each level behind the one above it.
        let mut first_child = 1 + nodes;
        let mut hashes = starts.to_vec();
        for count in levels.iter().rev() {
            let children = entries_of(&hashes, first_child);
            first_child -= count;
            let blocks = above[(first_child - 1) * self.block_size..].chunks_mut(self.block_size);
            for (block, chunk) in blocks.zip(children.chunks(per_node)) {
                // Chunks have the size that fits.
                _ = write_node(block, self.has_tail, chunk);
                seal_dx(block, own.seed);
            }
            hashes = hashes.chunks(per_node).map(|chunk| chunk[0]).collect();
        }
        let mut root = vec![0; self.block_size];
        let version = self.hasher.map_or(uext4_ondisk::hash::HashVersion::HalfMd4, |h| h.version);
        let levels = u8::try_from(levels.len()).unwrap_or(u8::MAX);
        let head = DxRoot { hash: version, levels, own: own.ino, parent: own.parent };
        let children = entries_of(&hashes, first_child);
        _ = write_root(&mut root, &head, self.has_filetype, self.has_tail, &children);
        seal_dx(&mut root, own.seed);
        (root, above)
    }
}

fn entries_of(hashes: &[u32], first: usize) -> Vec<DxEntry> {
    let block = |n: usize| FileBlock(u32::try_from(first + n).unwrap_or(u32::MAX));
    hashes.iter().enumerate().map(|(n, hash)| DxEntry { hash: *hash, block: block(n) }).collect()
}
