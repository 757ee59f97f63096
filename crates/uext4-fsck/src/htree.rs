//! Pass 2, hashed directories: the tree over the leaves, and the hashes in them.

use rustc_hash::FxHashMap;
use uext4_ondisk::checksum::InodeSeed;
use uext4_ondisk::dir_entry::StoredName;
use uext4_ondisk::hash::{DirHasher, HashVersion};
use uext4_ondisk::htree::{
    self, NODE_ENTRIES_OFFSET, ROOT_ENTRIES_OFFSET, ROOT_INFO_OFFSET, RawDxCountLimit, RawDxEntry,
    RawDxRootInfo,
};
use uext4_ondisk::{CorruptKind, Incompat, Ino};

use crate::log::Log;
use crate::problem::Problem;
use crate::volume::{Dir, Volume};

const ENTRY: usize = 8;
/// Greatest hash of an index.
const HASH_MAX: u32 = 0xffff_fffe;
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// Entry of an index block: least hash, block of the directory.
type Index = Vec<(u32, u32)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Root,
    Node,
    Leaf,
}

/// One block of the directory.
#[derive(Clone, Copy, Debug)]
struct Block {
    kind: Kind,
    /// Hashes of the names in a leaf.
    min: u32,
    max: u32,
    referenced: bool,
}

/// The index of a directory, and the hashes in its leaves.
pub(crate) struct Tree {
    hasher: DirHasher,
    levels: u8,
    has_csum: bool,
    root: Index,
    nodes: FxHashMap<u32, Index>,
    blocks: Vec<Block>,
}

impl Tree {
    /// Reads the root, block 0. `None`: there is no valid root, and the log says why.
    pub(crate) fn root(
        volume: &Volume<'_>,
        dir: &Dir,
        block: &[u8],
        seed: InodeSeed,
        blocks: u32,
        log: &mut Log,
    ) -> Option<Self> {
        let (folds, is_hashed, dir) = (dir.folding.is_some(), dir.is_hashed(), dir.ino);
        let mut bad = |why| {
            log.add(Problem::HtreeRoot { dir, why });
            None
        };
        let info = block.get(ROOT_INFO_OFFSET..).and_then(RawDxRootInfo::ref_from_prefix)?;
        if !volume.compat(uext4_ondisk::Compat::DIR_INDEX) {
            return bad("there is one without the dir_index feature");
        }
        if info.reserved_zero.get() != 0 || info.info_length < 8 {
            return bad("the root is invalid");
        }
        let is_known = matches!(info.hash_version, 0..=2 | 6);
        let version = HashVersion::from_raw(info.hash_version).filter(|_| is_known);
        let Some(version) = version else { return bad("the hash function is unknown") };
        match (version == HashVersion::SipHash, is_hashed) {
            (true, false) => return bad("its hash function needs an encrypted directory"),
            (false, true) => return bad("its hash function is not that of encrypted directories"),
            _ => {}
        }
        if info.unused_flags & 1 != 0 {
            return bad("it has an incompatible flag");
        }
        let levels = info.indirect_levels;
        if levels > if volume.incompat(Incompat::LARGEDIR) { 2 } else { 1 } {
            return bad("it is too deep");
        }
        let (sb, has_csum) = (&volume.sb, volume.layout.has_metadata_csum());
        let unsigned = sb.hash_is_unsigned();
        let hasher = DirHasher { version, unsigned, seed: sb.hash_seed(), folds };
        let root = match index(block, ROOT_ENTRIES_OFFSET, has_csum) {
            Ok(root) => root,
            Err(why) => return bad(why),
        };
        match htree::verify_dx(block, seed) {
            Ok(()) => {}
            Err(CorruptKind::Checksum { .. }) => log.add(Problem::HtreeChecksum { dir, block: 0 }),
            Err(_) => return bad("the root is invalid"),
        }
        let fresh = Block { kind: Kind::Leaf, min: u32::MAX, max: 0, referenced: false };
        let mut blocks = vec![fresh; blocks as usize];
        if let Some(first) = blocks.first_mut() {
            first.kind = Kind::Root;
        }
        Some(Self { hasher, levels, has_csum, root, nodes: FxHashMap::default(), blocks })
    }

    /// Keeps a block if it is an index block. Returns whether it is.
    pub(crate) fn node(
        &mut self,
        dir: Ino,
        logical: u32,
        block: &[u8],
        seed: InodeSeed,
        log: &mut Log,
    ) -> bool {
        let limit = htree::entry_limit(block.len(), NODE_ENTRIES_OFFSET, self.has_csum);
        let head = block.get(NODE_ENTRIES_OFFSET..).and_then(RawDxCountLimit::ref_from_prefix);
        let fits = head.is_some_and(|head| head.limit.get() == limit);
        // Byte 6 is the length of the name.
        if !fits || !htree::is_node(block) || block.get(6) != Some(&0) {
            return false;
        }
        if let Some(found) = self.blocks.get_mut(logical as usize) {
            found.kind = Kind::Node;
        }
        match htree::verify_dx(block, seed) {
            Ok(()) => {}
            Err(CorruptKind::Checksum { .. }) => {
                log.add(Problem::HtreeChecksum { dir, block: logical });
            }
            Err(_) => {
                log.add(Problem::HtreeNode { dir, block: logical, why: "it is invalid" });
                return true;
            }
        }
        match index(block, NODE_ENTRIES_OFFSET, self.has_csum) {
            Ok(index) => _ = self.nodes.insert(logical, index),
            Err(why) => log.add(Problem::HtreeNode { dir, block: logical, why }),
        }
        true
    }

    /// Notes a name of a leaf.
    pub(crate) fn name(&mut self, logical: u32, name: StoredName<'_>) {
        let (hash, _) = self.hasher.hash_of(name);
        if let Some(block) = self.blocks.get_mut(logical as usize) {
            block.min = block.min.min(hash);
            block.max = block.max.max(hash);
        }
    }

    /// Compares the index with the leaves.
    pub(crate) fn check(mut self, dir: Ino, log: &mut Log) {
        let root = std::mem::take(&mut self.root);
        self.level(dir, 0, &root, self.levels, HASH_MAX, log);
        for (logical, block) in (0..).zip(&self.blocks) {
            if !block.referenced && block.kind != Kind::Root {
                log.add(Problem::HtreeUnreferenced { dir, block: logical });
            }
        }
    }

    /// Checks an index block that has `levels` of nodes below it.
    fn level(&mut self, dir: Ino, at: u32, index: &Index, levels: u8, end: u32, log: &mut Log) {
        for (n, &(least, child)) in index.iter().enumerate() {
            let most = index.get(n + 1).map_or(end, |next| next.0);
            let bad = |why| Problem::HtreeNode { dir, block: at, why };
            let Some(block) = self.blocks.get_mut(child as usize) else {
                log.add(bad("it names a block past the end"));
                continue;
            };
            if block.referenced || block.kind == Kind::Root {
                log.add(Problem::HtreeReferenced { dir, block: child });
                continue;
            }
            block.referenced = true;
            let block = *block;
            if (block.kind == Kind::Node) != (levels > 0) {
                log.add(bad("the leaves below it are not all as deep as the root says"));
                continue;
            }
            if levels > 0 {
                if let Some(index) = self.nodes.remove(&child) {
                    if index.iter().skip(1).any(|(hash, _)| *hash < least || *hash > most) {
                        log.add(Problem::HtreeHash { dir, block: child, found: least });
                    }
                    self.level(dir, child, &index, levels - 1, most, log);
                }
            } else if block.min < least {
                log.add(Problem::HtreeHash { dir, block: child, found: block.min });
            } else if block.max > most {
                log.add(Problem::HtreeHash { dir, block: child, found: block.max });
            }
        }
    }
}

/// The entries of an index block. Hashes are without the bit that says that a hash continues.
fn index(block: &[u8], offset: usize, has_csum: bool) -> Result<Index, &'static str> {
    let area = block.get(offset..).unwrap_or_default();
    let head = RawDxCountLimit::ref_from_prefix(area).ok_or("it has no entries")?;
    let limit = htree::entry_limit(block.len(), offset, has_csum);
    let (count, found) = (head.count.get(), head.limit.get());
    if found != limit {
        return Err("room for entries is wrong");
    }
    if count == 0 || count > limit {
        return Err("number of entries is wrong");
    }
    let entries = area.chunks_exact(ENTRY).take(usize::from(count));
    let raw = entries.filter_map(RawDxEntry::ref_from_prefix).enumerate();
    let index: Index = raw
        .map(|(n, raw)| {
            let hash = if n == 0 { 0 } else { raw.hash.get() & !1 };
            (hash, raw.block.get() & BLOCK_MASK)
        })
        .collect();
    if !index.is_sorted_by_key(|(hash, _)| *hash) {
        return Err("entries are out of order");
    }
    Ok(index)
}
