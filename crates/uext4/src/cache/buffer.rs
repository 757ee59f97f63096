//! One metadata block in memory.
//!
//! Invariants: the bytes are an `Arc` image. A committer or checkpointer that needs the bytes as
//! they are now clones the `Arc`; a writer that comes later copies the block first
//! (`Arc::make_mut`), so neither waits for the other. `unsealed` names the slots (inodes of an
//! inode-table block, descriptors of a group-descriptor block; slot 0 for everything else) whose
//! live bytes lack their checksum: checksums are put into the images that are written, never into
//! live bytes, so a slot stays unsealed until the buffer is read again from an image. `checked`
//! says that the owner has looked at all of these bytes and found them well formed: it goes with
//! any change but those through [`BufferWrite::edit_checked`].

use super::seal::{self, BlockKind};
use crate::error::Result;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{LockRank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, Tid};

/// A metadata block in memory, shared by all who use it.
#[derive(Debug)]
pub struct Buffer {
    block: BlockNo,
    ready: AtomicBool,
    referenced: AtomicBool,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    image: Arc<[u8]>,
    kind: BlockKind,
    unsealed: u128,
    /// The running transaction that this block is part of.
    transaction: Option<Tid>,
    /// Loading failed: this buffer is no longer the block's.
    abandoned: bool,
    /// Set by readers, too.
    checked: AtomicBool,
    /// Counts changes of the bytes.
    version: u64,
}

/// What a transaction takes of a block when it closes.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) block: BlockNo,
    pub(crate) kind: BlockKind,
    pub(crate) unsealed: u128,
    pub(crate) image: Arc<[u8]>,
}

impl State {
    /// The bytes are about to change; `careful`: what was checked stays well formed.
    fn note_change(&mut self, careful: bool) {
        self.version += 1;
        if !careful {
            self.checked.store(false, Ordering::Relaxed);
        }
    }
}

impl Buffer {
    pub(super) fn empty(block: BlockNo, kind: BlockKind) -> Self {
        Self::build(block, kind, Arc::new([]), false)
    }

    pub(super) fn ready(block: BlockNo, kind: BlockKind, image: Arc<[u8]>) -> Self {
        Self::build(block, kind, image, true)
    }

    fn build(block: BlockNo, kind: BlockKind, image: Arc<[u8]>, ready: bool) -> Self {
        let state = State {
            image,
            kind,
            unsealed: 0,
            transaction: None,
            abandoned: false,
            checked: AtomicBool::new(false),
            version: 0,
        };
        Self {
            block,
            ready: AtomicBool::new(ready),
            referenced: AtomicBool::new(true),
            state: RwLock::new(LockRank::Buffer, state),
        }
    }

    /// The block's number.
    #[must_use]
    pub fn block(&self) -> BlockNo {
        self.block
    }

    /// The bytes, shared with other readers.
    #[must_use]
    pub fn read(&self) -> BufferRead<'_> {
        BufferRead { state: self.state.read() }
    }

    /// The bytes, if they are in memory.
    pub(super) fn image(&self) -> Option<Arc<[u8]>> {
        self.is_ready().then(|| Arc::clone(&self.state.read().image))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Fills the buffer once; others who want it wait on its lock. False: loading has failed for
    /// somebody else, and the block needs another buffer.
    pub(super) fn load_with(&self, load: impl FnOnce() -> Result<Arc<[u8]>>) -> Result<bool> {
        let mut state = self.state.write();
        if state.abandoned {
            return Ok(false);
        }
        if !self.is_ready() {
            state.image = load().inspect_err(|_| state.abandoned = true)?;
            self.ready.store(true, Ordering::Release);
        }
        Ok(true)
    }

    /// Its bytes were put in by their owner; nobody needs to load it any more.
    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// The same block cannot be two kinds of structure: a hostile image says so, or a damaged one.
    pub(super) fn expect_kind(&self, kind: BlockKind) -> Result<()> {
        let found = self.state.read().kind;
        if found.is_same_structure(kind) {
            return Ok(());
        }
        Err(seal::shared_by_kinds(self.block, found, kind).into())
    }

    pub(super) fn touch(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn take_touch(&self) -> bool {
        self.referenced.swap(false, Ordering::Relaxed)
    }

    /// Exclusive access for the handle that has joined this block to its transaction.
    pub(crate) fn write(&self) -> BufferWrite<'_> {
        BufferWrite { state: self.state.write() }
    }

    /// The block as it is now, if it is part of transaction `tid`; it leaves the transaction.
    pub(crate) fn snapshot(&self, tid: Tid) -> Option<Snapshot> {
        let mut state = self.state.write();
        if state.transaction != Some(tid) {
            return None;
        }
        state.transaction = None;
        Some(Snapshot {
            block: self.block,
            kind: state.kind,
            unsealed: state.unsealed,
            image: Arc::clone(&state.image),
        })
    }
}

/// Shared access to a block's bytes.
#[derive(Debug)]
pub struct BufferRead<'a> {
    state: RwLockReadGuard<'a, State>,
}

impl BufferRead<'_> {
    /// Whether the checksum of `slot` in these bytes is up to date.
    #[must_use]
    pub fn is_sealed(&self, slot: u32) -> bool {
        self.state.unsealed & slot_bit(slot) == 0
    }

    /// Tells these bytes from those before and after any change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.state.version
    }

    /// Whether these bytes were found well formed, and changed with care since.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.state.checked.load(Ordering::Relaxed)
    }

    /// The structure's owner has found all of these bytes well formed.
    pub fn note_checked(&self) {
        self.state.checked.store(true, Ordering::Relaxed);
    }
}

impl Deref for BufferRead<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.state.image
    }
}

/// Exclusive access to a block's bytes, obtained from a handle only.
#[derive(Debug)]
pub struct BufferWrite<'a> {
    state: RwLockWriteGuard<'a, State>,
}

impl BufferWrite<'_> {
    pub(crate) fn transaction(&self) -> Option<Tid> {
        self.state.transaction
    }

    pub(crate) fn set_transaction(&mut self, tid: Option<Tid>) {
        self.state.transaction = tid;
    }

    /// Exchanges all the bytes, without copying the old ones for whoever holds them.
    pub(crate) fn replace(&mut self, image: Arc<[u8]>) {
        self.state.note_change(false);
        self.state.image = image;
    }

    /// As [`BufferRead::version`].
    pub(crate) fn version(&self) -> u64 {
        self.state.version
    }

    /// Changes the bytes in a way that leaves what was checked well formed.
    pub fn edit_checked<T>(&mut self, change: impl FnOnce(&mut [u8]) -> T) -> T {
        self.state.note_change(true);
        change(Arc::make_mut(&mut self.state.image))
    }

    /// The checksum of `slot` is to be computed at commit.
    pub fn unseal(&mut self, slot: u32) {
        self.state.unsealed |= slot_bit(slot);
    }

    /// The block becomes another kind of structure of the same owner (a directory block that
    /// becomes the root of an index).
    pub fn set_kind(&mut self, kind: BlockKind) {
        self.state.kind = kind;
    }
}

impl Deref for BufferWrite<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.state.image
    }
}

impl DerefMut for BufferWrite<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.state.note_change(false);
        Arc::make_mut(&mut self.state.image)
    }
}

fn slot_bit(slot: u32) -> u128 {
    debug_assert!(slot < u128::BITS, "a block has at most 128 slots");
    1u128.checked_shl(slot).unwrap_or(0)
}
