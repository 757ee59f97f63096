//! Listing a directory from a cursor that stays valid while the directory changes.
//!
//! What: in a linear directory a cursor is a byte offset, because records never move there. A
//! directory that has a hash tree, or gets one when it grows, is read in order of hash, and a
//! cursor is a position in that order. Between two calls leaves may split, records may move, and
//! the only block may become a tree.
//! Invariants: an entry that exists from the first call to the last is listed exactly once. The
//! cursor of each entry is above the one before. The order is by hash, then by a second hash, then
//! by the bytes of the name. An entry's key has `hash / 2` and `second hash / 2` as the halves of
//! 64 bits. Of entries with equal keys the later ones get the next free keys. A cursor is then
//! exact unless names that agree in both hashes are added or removed while the directory is read.

use super::hash_path::HashPath;
use super::lookup::dots;
use super::view::{Shape, View};
use super::{inline, leaf, names};
use crate::error::Result;
use crate::inode::Inode;
use std::borrow::Cow;
use uext4_ondisk::checksum::crc32c;
use uext4_ondisk::dir_entry::DirBlock;
use uext4_ondisk::hash::{DirHasher, HashVersion};
use uext4_ondisk::{CorruptKind, FileBlock, FileKind, Ino};

/// An entry, as it is passed to a visitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Inode.
    pub ino: Ino,
    /// Type of the file; `None` in file systems without the filetype feature.
    pub kind: Option<FileKind>,
    /// Name.
    pub name: &'a [u8],
    /// The cursor behind this entry.
    pub next: u64,
}

/// Called with an entry. False stops the listing, and the entry counts as not listed.
type Visit<'a> = dyn FnMut(DirEntry<'_>) -> bool + 'a;

/// Above every cursor of a directory that is read in order of hash.
const HASH_END: u64 = 0x7fff_ffff << 32;
/// Most bytes of names with one hash that are kept in memory.
const SAME_HASH_BYTES_MAX: usize = 64 << 20;

/// Calls `visit` with the entries of directory `dir` from `cursor` on. 0 is the start; other values
/// are [`DirEntry::next`] of an entry that was listed. `.` and `..` come first.
///
/// # Errors
/// `NotADirectory`; a device failure; `Corrupt`, also for a name in the wrong leaf of a hash tree.
pub fn read(dir: &Inode, cursor: u64, visit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
    let view = View::of(dir)?;
    match view.shape {
        _ if view.is_hash_ordered() => read_by_hash(&view, cursor, visit),
        Shape::Inline => inline::read_linear(&view, cursor, visit),
        Shape::Linear | Shape::Indexed => read_linear(&view, cursor, visit),
    }
}

fn read_linear(view: &View<'_>, cursor: u64, visit: &mut Visit<'_>) -> Result<()> {
    let block_size = view.block_size() as u64;
    let first = u32::try_from(cursor / block_size).unwrap_or(u32::MAX);
    for at in (first..view.blocks).map(FileBlock) {
        // A copy, because the visitor must not run under the block's lock.
        let bytes = view.leaf(at)?.read().to_vec();
        let start = u64::from(at.get()) * block_size;
        for (index, entry) in DirBlock::new(&bytes).of(view.records()).enumerate() {
            let entry = entry.map_err(|kind| view.corrupt(at, kind))?;
            let offset = start + u64::from(entry.offset);
            if !entry.is_live() || offset < cursor {
                continue;
            }
            let may_be_dot = at == FileBlock(0) && index < 2;
            if entry.is_dot() && !may_be_dot {
                return Err(view.bad_record(at, entry.offset, "'.' or '..' out of place"));
            }
            let ino = view.check_ino(at, &entry)?;
            let next = offset + u64::from(entry.rec_len);
            let name = match view.encrypted && !may_be_dot {
                true => Cow::Owned(
                    names::to_show(view, entry.hashes.unwrap_or_default(), entry.name)?.into_vec(),
                ),
                false => Cow::Borrowed(entry.name),
            };
            if !visit(DirEntry { ino, kind: entry.kind(), name: &name, next }) {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn read_by_hash(view: &View<'_>, cursor: u64, visit: &mut Visit<'_>) -> Result<()> {
    if cursor >= HASH_END {
        return Ok(());
    }
    let mut out = KeyedListing { view, cursor, last_key: 1, visit };
    let bytes = match view.shape {
        Shape::Inline => view.inline_block()?,
        Shape::Linear | Shape::Indexed => view.first_block()?.read().to_vec(),
    };
    let (own, parent) = dots(view, &bytes)?;
    for (key, dot) in [(0, own), (1, parent)] {
        let entry = DirEntry { ino: dot.ino, kind: dot.kind(), name: dot.name, next: key + 1 };
        if cursor <= key && !(out.visit)(entry) {
            return Ok(());
        }
    }
    // The upper half has 31 bits, because the cursor is below the end.
    let start = u32::try_from(cursor >> 32).unwrap_or(u32::MAX) << 1;
    if view.shape == Shape::Indexed {
        return read_tree(view, start, &mut out);
    }
    let mut names = Names::new(view.hasher(None)?);
    names.gather(view, FileBlock(0), &bytes, start, 2)?;
    out.show(names.take_below(None)).map(|_| ())
}

fn read_tree(view: &View<'_>, start: u32, out: &mut KeyedListing<'_, '_>) -> Result<()> {
    let mut path = HashPath::to_hash(view, start)?;
    let mut names = Names::new(path.hasher);
    loop {
        let at = path.leaf;
        let bytes = view.leaf(at)?.read().to_vec();
        let high = path.next_low()?.map(|low| low & !1);
        names.range = path.range()?;
        names.gather(view, at, &bytes, start, 0)?;
        // Names whose hash is the bound are kept, because the next leaf may have more of them.
        if !out.show(names.take_below(high))? || !path.advance()? {
            return Ok(());
        }
    }
}

/// A name read from a leaf.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    hash: u32,
    second: u32,
    name: Box<[u8]>,
    ino: Ino,
    kind: Option<u8>,
    /// The second half of the hash as it is shown without a key.
    minor: u32,
}

/// Names that were read and not yet listed.
#[derive(Debug)]
struct Names {
    hasher: DirHasher,
    /// Hashes that the current leaf may hold.
    range: std::ops::RangeInclusive<u32>,
    names: Vec<Name>,
    bytes: usize,
}

impl Names {
    fn new(hasher: DirHasher) -> Self {
        Self { hasher, range: 0..=u32::MAX, names: Vec::new(), bytes: 0 }
    }

    /// Adds the names of a block whose hash is at least `start`. The first `skip` records are no
    /// names.
    fn gather(
        &mut self,
        view: &View<'_>,
        at: FileBlock,
        block: &[u8],
        start: u32,
        skip: usize,
    ) -> Result<()> {
        for entry in leaf::records(block, view.form()).skip(skip) {
            let entry = entry.map_err(|kind| view.corrupt(at, kind))?;
            if !entry.is_live() {
                continue;
            }
            if entry.is_dot() {
                return Err(view.bad_record(at, entry.offset, "'.' or '..' out of place"));
            }
            let Some((hash, minor)) = self.hasher.hash_within(entry.stored(), &self.range) else {
                return Err(view.bad_record(at, entry.offset, "name is in the wrong leaf"));
            };
            if hash < start {
                continue;
            }
            // The legacy hash has no second half.
            let legacy = self.hasher.version == HashVersion::Legacy;
            let second = if legacy { crc32c(!0, entry.name) } else { minor };
            let ino = view.check_ino(at, &entry)?;
            let kind = entry.kind().map(FileKind::dirent);
            self.bytes += entry.name.len() + size_of::<Name>();
            let (second, name) = (second >> 1, entry.name.into());
            self.names.push(Name { hash, second, name, ino, kind, minor });
        }
        if self.bytes > SAME_HASH_BYTES_MAX {
            let kind = CorruptKind::Rule { what: "directory", why: "too many names of one hash" };
            return Err(view.corrupt(at, kind));
        }
        Ok(())
    }

    /// Removes and returns the names whose hash is below `bound`, or all, in order.
    fn take_below(&mut self, bound: Option<u32>) -> Vec<Name> {
        let all = std::mem::take(&mut self.names);
        let is_ready = |name: &Name| bound.is_none_or(|bound| name.hash < bound);
        let (mut ready, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(is_ready);
        self.bytes = rest.iter().map(|name| name.name.len() + size_of::<Name>()).sum();
        self.names = rest;
        ready.sort_unstable();
        ready
    }
}

/// Assigns keys to names, and lists those from the cursor on.
struct KeyedListing<'v, 'f> {
    view: &'v View<'v>,
    cursor: u64,
    /// Key of the last name; `.` and `..` have 0 and 1.
    last_key: u64,
    visit: &'v mut Visit<'f>,
}

impl KeyedListing<'_, '_> {
    /// Lists names in order. All names of a hash are in one call. False when the visitor has
    /// stopped.
    fn show(&mut self, names: Vec<Name>) -> Result<bool> {
        for name in names {
            let key = (u64::from(name.hash >> 1) << 32) | u64::from(name.second);
            let key = key.max(self.last_key + 1);
            self.last_key = key;
            if key < self.cursor {
                continue;
            }
            let kind = name.kind.and_then(FileKind::from_dirent);
            let hashes = (name.hash, name.minor);
            let shown = match self.view.encrypted {
                true => Cow::Owned(names::to_show(self.view, hashes, &name.name)?.into_vec()),
                false => Cow::Borrowed(&*name.name),
            };
            let entry = DirEntry { ino: name.ino, kind, name: &shown, next: key + 1 };
            if !(self.visit)(entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
