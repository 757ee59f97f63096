//! Orphans: inodes that must be deleted or truncated after a crash.
//!
//! On disk: the orphan file (`orphan_file`), an array of inode numbers. Without that feature, or
//! when the file is full, a list that begins in the superblock and continues through the deletion
//! time fields of the inodes.
//! Invariants: an inode becomes an orphan in the transaction in which its last link goes, or in
//! which its size shrinks while blocks past it remain, or which makes it for the value of an
//! attribute (`inode/values.rs`): it has a link when an attribute refers to it. It ceases to be one
//! in the transaction that completes the work. As in ext4, entries that cannot be trusted are not
//! followed: the list is cut
//! off in front of an entry that cannot be an orphan. On a file system in an error state nothing is
//! cleaned up: its list is cut off at the head, and e2fsck, which it needs anyway, finds what the
//! list held. An orphan that can be trusted but not cleaned up (its leaf is unreadable) stays
//! one for the next mount.
//! Without a journal new orphans are kept in memory alone.
//! Locking: one lock, taken inside handles. While the volume is opened, its only thread also reads
//! under it.
//! Kernel counterpart: `fs/ext4/orphan.c`.

use crate::alloc::Space;
use crate::cache::{BlockKind, Buffer, Cache};
use crate::error::{Error, ErrorKind, Result};
use crate::extent::block_of;
use crate::inode::{Inode, InodeRef, InodeTable, OrphanList};
use crate::journal::Handle;
use crate::sync::{LockRank, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use uext4_ondisk::{Compat, CorruptKind, FileBlock, FileKind, Ino, Place, RawSuperblock, orphan};

/// Orphans of a volume.
#[derive(Debug)]
pub struct Orphans {
    state: Mutex<State>,
    /// New orphans are recorded on the device. Without a journal a crash leaves the list and its
    /// inodes in any state, so that e2fsck has to find orphans by themselves.
    records: bool,
    superblock: Arc<Buffer>,
    superblock_at: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Blocks of the orphan file, with the number of free slots of each.
    file: Vec<(Arc<Buffer>, u32)>,
    /// Slot in the orphan file: block index, slot.
    in_file: FxHashMap<Ino, (usize, u32)>,
    /// The list, its head last.
    list: Vec<Listed>,
    /// The rest of the list that a crash left on the device, behind `list`. 0 is its end.
    rest: Ino,
    /// Number of entries of the rest that can be orphans. The list is cut off behind them.
    rest_len: usize,
    /// Where the search for a free slot begins.
    hand: usize,
    /// Orphans that only memory knows. Used where there is no journal.
    unlisted: FxHashSet<Ino>,
}

/// An inode on the list.
#[derive(Debug)]
struct Listed {
    inode: Arc<Inode>,
    /// Its table block. The handle in which its successor leaves the list changes the block, and
    /// has not read it beforehand.
    _table_block: Arc<Buffer>,
}

/// The orphans that [`Orphans::open`] found.
#[derive(Debug, Default)]
pub struct FoundOrphans {
    /// Orphans to be cleaned up.
    pub count: usize,
    /// Why others are not cleaned up: the first [`PROBLEMS_MAX`] reasons.
    pub problems: Vec<Error>,
}

/// Most reasons that are kept, because a hostile image can have millions of bad orphans.
const PROBLEMS_MAX: usize = 16;

impl FoundOrphans {
    fn note(&mut self, problem: Error) -> Result<()> {
        // An inode that cannot be read now may be an orphan at the next mount, and must not be
        // forgotten.
        if *problem.kind() == ErrorKind::Io {
            return Err(problem);
        }
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
        Ok(())
    }
}

impl Listed {
    fn new(inode: &Arc<Inode>) -> Result<Self> {
        Ok(Self { inode: Arc::clone(inode), _table_block: inode.table_block()? })
    }
}

impl Orphans {
    /// Finds and checks the orphans that a crash left. They stay orphans until
    /// `Deletion::clean_orphans` has cleaned them up. With `has_errors` the file system is
    /// known to have errors, and no orphan is trusted. Changes nothing.
    ///
    /// # Errors
    /// A corrupt orphan file; a device failure.
    pub fn open(
        table: &Arc<InodeTable>,
        superblock: &RawSuperblock,
        has_errors: bool,
    ) -> Result<(Self, FoundOrphans)> {
        let (buffer, superblock_at) = table.context().cache.superblock()?;
        let mut state = State::default();
        let mut search = Search { table, has_errors, seen: FxHashSet::default() };
        let mut found = FoundOrphans::default();
        if table.context().space.layout().features.compat.contains(Compat::ORPHAN_FILE) {
            state.read_file(&mut search, superblock, &mut found)?;
        }
        state.rest = Ino(superblock.s_last_orphan.get());
        let mut next = state.rest;
        while next.get() != 0 {
            match search.check(next) {
                Ok(inode) => {
                    found.count += 1;
                    state.rest_len += 1;
                    next = Ino(inode.attributes().dtime);
                }
                Err(error) => {
                    found.note(error)?;
                    break;
                }
            }
        }
        if has_errors {
            // All of them say the same.
            found.problems.truncate(1);
        }
        let orphans = Self {
            state: Mutex::new(LockRank::Orphan, state),
            records: table.context().space.journal().has_log(),
            superblock: buffer,
            superblock_at,
        };
        Ok((orphans, found))
    }

    /// The orphans of the orphan file.
    pub(super) fn numbers_in_file(&self) -> Vec<Ino> {
        self.state.lock().in_file.keys().copied().collect()
    }

    /// The next orphan of the list that a crash left, behind those that could not be cleaned up.
    /// `None` if the list has ended, or was cut off because the next entry cannot be an orphan.
    ///
    /// # Errors
    /// A device failure.
    pub(super) fn next_of_list(&self, table: &Arc<InodeTable>) -> Result<Option<InodeRef>> {
        let (ino, len) = {
            let state = self.state.lock();
            (state.rest, state.rest_len)
        };
        if ino.get() == 0 {
            return Ok(None);
        }
        if len == 0 {
            self.end_list(&table.context().space)?;
            return Ok(None);
        }
        let inode = table.get_orphan(ino)?;
        let listed = Listed::new(&inode)?;
        let mut state = self.state.lock();
        state.rest = Ino(inode.attributes().dtime);
        state.rest_len -= 1;
        state.list.insert(0, listed);
        Ok(Some(inode))
    }

    /// The orphans of the list that a crash left, and that nothing has cleaned up yet.
    ///
    /// # Errors
    /// A device failure.
    pub(crate) fn waiting(&self, table: &Arc<InodeTable>) -> Result<FxHashSet<Ino>> {
        let (mut next, len) = {
            let state = self.state.lock();
            (state.rest, state.rest_len)
        };
        let mut waiting = FxHashSet::default();
        for _ in 0..len {
            waiting.insert(next);
            next = Ino(table.get_orphan(next)?.attributes().dtime);
        }
        Ok(waiting)
    }

    /// Cuts off the rest of the list on the device, behind `list`.
    fn end_list(&self, space: &Space) -> Result<()> {
        space.journal().run(space.credits().orphan, |handle| {
            let mut state = self.state.lock();
            match state.list.first() {
                Some(last) => last.inode.update(handle, |attributes| attributes.dtime = 0)?,
                None => self.set_head(handle, Ino(0))?,
            }
            state.rest = Ino(0);
            Ok(())
        })
    }

    /// Whether the inode is an orphan.
    pub(super) fn contains(&self, ino: Ino) -> bool {
        let state = self.state.lock();
        state.in_file.contains_key(&ino)
            || state.position(ino).is_some()
            || state.unlisted.contains(&ino)
    }

    /// The orphans of a volume that is not changed. Those on the device stay as they are.
    ///
    /// # Errors
    /// A device failure.
    pub fn none(cache: &Cache) -> Result<Self> {
        let (superblock, superblock_at) = cache.superblock()?;
        let state = Mutex::new(LockRank::Orphan, State::default());
        Ok(Self { state, records: true, superblock, superblock_at })
    }

    /// Whether there is no orphan, not even one that is left to e2fsck.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        let is_free = |(buffer, free): &(Arc<Buffer>, u32)| {
            let size = u32::try_from(buffer.read().len()).unwrap_or(u32::MAX);
            *free == orphan::slots_per_block(size)
        };
        state.list.is_empty()
            && state.rest.get() == 0
            && state.unlisted.is_empty()
            && state.file.iter().all(is_free)
    }

    /// Makes an inode an orphan, unless it is one. The caller holds its table block.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn add(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        let mut state = self.state.lock();
        if state.position(inode.ino()).is_some() || state.in_file.contains_key(&inode.ino()) {
            return Ok(());
        }
        if !self.records {
            state.unlisted.insert(inode.ino());
            return Ok(());
        }
        if let Some(index) = state.block_with_room() {
            let (buffer, free) = &mut state.file[index];
            let mut bytes = handle.write(buffer)?;
            let slots = bytes.len() / 4 - 2;
            let used: Vec<u32> = orphan::entries(&bytes).map(|(slot, _)| slot).collect();
            let slot = first_gap(&used, slots as u32);
            orphan::set_entry(&mut bytes, slot, inode.ino());
            *free -= 1;
            drop(bytes);
            state.in_file.insert(inode.ino(), (index, slot));
            return Ok(());
        }
        let next = state.list.last().map_or(state.rest, |head| head.inode.ino());
        let listed = Listed::new(inode)?;
        inode.update(handle, |attributes| attributes.dtime = next.get())?;
        self.set_head(handle, inode.ino())?;
        state.list.push(listed);
        Ok(())
    }

    /// The number of orphans.
    pub fn len(&self) -> usize {
        let state = self.state.lock();
        state.list.len() + state.in_file.len() + state.rest_len + state.unlisted.len()
    }

    /// Takes an inode off the orphans in the handle that completes the work on it. Does nothing if
    /// it is none.
    ///
    /// # Errors
    /// Those of [`Handle::write`].
    pub fn remove(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mut state = self.state.lock();
        if state.unlisted.remove(&inode.ino()) {
            return Ok(());
        }
        if let Some((index, slot)) = state.in_file.remove(&inode.ino()) {
            let (buffer, free) = &mut state.file[index];
            orphan::set_entry(&mut handle.write(buffer)?, slot, Ino(0));
            *free += 1;
            return Ok(());
        }
        let Some(position) = state.position(inode.ino()) else { return Ok(()) };
        let next = match position.checked_sub(1) {
            Some(before) => state.list[before].inode.ino(),
            None => state.rest,
        };
        match state.list.get(position + 1) {
            Some(predecessor) => {
                predecessor.inode.update(handle, |attributes| attributes.dtime = next.get())?
            }
            None => self.set_head(handle, next)?,
        }
        inode.update(handle, |attributes| attributes.dtime = 0)?;
        state.list.remove(position);
        Ok(())
    }

    fn set_head(&self, handle: &mut Handle<'_>, ino: Ino) -> Result<()> {
        let mut bytes = handle.write(&self.superblock)?;
        if let Some(raw) = RawSuperblock::mut_from_prefix(&mut bytes[self.superblock_at..]) {
            raw.s_last_orphan.set(ino.get());
        }
        Ok(())
    }
}

impl OrphanList for Orphans {
    fn add(&self, handle: &mut Handle<'_>, inode: &Arc<Inode>) -> Result<()> {
        Self::add(self, handle, inode)
    }

    fn remove(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        Self::remove(self, handle, inode)
    }
}

impl State {
    fn read_file(
        &mut self,
        search: &mut Search<'_>,
        superblock: &RawSuperblock,
        found: &mut FoundOrphans,
    ) -> Result<()> {
        let block_size = search.table.context().space.layout().block_size;
        let inode = search.table.get(Ino(superblock.s_orphan_file_inum.get()))?;
        let blocks = inode.size() / u64::from(block_size);
        // mke2fs makes 512 blocks at most; far more is a hostile image.
        if blocks > (16 << 20) / u64::from(block_size) {
            return Err(corrupt(inode.ino(), "is too large"));
        }
        for index in 0..u32::try_from(blocks).unwrap_or(0) {
            let block = block_of(&inode, FileBlock(index))?;
            let kind = BlockKind::Orphan { seed: inode.seed() };
            let buffer = inode.cache().read(block, kind)?;
            let entries: Vec<(u32, Ino)> = orphan::entries(&buffer.read()).collect();
            let free = orphan::slots_per_block(block_size).saturating_sub(entries.len() as u32);
            for (slot, ino) in entries {
                match search.check(ino) {
                    Ok(_) => {
                        found.count += 1;
                        self.in_file.insert(ino, (index as usize, slot));
                    }
                    // The slot stays in use, so that e2fsck finds it.
                    Err(error) => found.note(error)?,
                }
            }
            self.file.push((buffer, free));
        }
        Ok(())
    }

    fn position(&self, ino: Ino) -> Option<usize> {
        self.list.iter().rposition(|orphan| orphan.inode.ino() == ino)
    }

    fn block_with_room(&mut self) -> Option<usize> {
        let count = self.file.len();
        let found = (0..count)
            .map(|step| (self.hand + step) % count)
            .find(|&index| self.file[index].1 > 0)?;
        // The next orphan goes to another block, so that threads seldom share one.
        self.hand = (found + 1) % count;
        Some(found)
    }
}

/// A search for the orphans that a crash left.
struct Search<'a> {
    table: &'a Arc<InodeTable>,
    /// The file system is in an error state.
    has_errors: bool,
    seen: FxHashSet<Ino>,
}

impl Search<'_> {
    /// Checks that an orphan is an ordinary inode in use that has occurred only once. The inode is
    /// not kept in memory, because there may be millions.
    fn check(&mut self, ino: Ino) -> Result<Inode> {
        if self.has_errors {
            let why = "the file system has errors: its orphans are left to e2fsck";
            return Err(Error::new(ErrorKind::NeedsRecovery, why));
        }
        let space = &self.table.context().space;
        if space.is_special(ino) || ino.get() > space.layout().inodes_count {
            return Err(corrupt(ino, "cannot be one"));
        }
        if !self.seen.insert(ino) {
            return Err(corrupt(ino, "is there twice"));
        }
        if !space.is_inode_used(ino)? {
            return Err(corrupt(ino, "is a free inode"));
        }
        let inode = self.table.read(ino)?;
        if inode.attributes().links > 0 && inode.kind() != FileKind::Regular {
            return Err(corrupt(ino, "is to be truncated and is no regular file"));
        }
        if inode.is_value() {
            let (links, references) = {
                let attributes = inode.attributes();
                (attributes.links, attributes.references())
            };
            if links > 0 || references > 0 {
                return Err(corrupt(ino, "holds the value of an attribute"));
            }
        }
        Ok(inode)
    }
}

fn corrupt(ino: Ino, why: &'static str) -> Error {
    CorruptKind::Rule { what: "orphan", why }.at(Place::Inode(ino)).into()
}

/// The first number of `0..slots` that is not in `used`, which ascends.
fn first_gap(used: &[u32], slots: u32) -> u32 {
    let gap = used.iter().zip(0..).find(|(used, at)| **used != *at).map(|(_, at)| at);
    gap.unwrap_or_else(|| u32::try_from(used.len()).unwrap_or(u32::MAX)).min(slots - 1)
}
