//! One metadata block in memory.
//!
//! Invariants: the bytes are a block image in an `Arc`. A committer or checkpointer that needs the
//! current bytes clones the `Arc`. A later writer copies the image first (`Arc::make_mut`), so
//! neither waits for the other. `unsealed` names the slots whose live bytes lack their checksum:
//! inodes of an inode table block, descriptors of a descriptor block, slot 0 of any other block.
//! Checksums are stored in the images that are written, never in live bytes, so a slot stays
//! unsealed until the buffer is read again from an image. `checked` means that the owner of the
//! structure has found all of these bytes well formed. Any change resets it, except through
//! [`BufferState::edit_checked`].

use super::seal::BlockKind;
use crate::error::Result;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{LockRank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use uext4_ondisk::{BlockNo, CorruptKind, Place, Tid};

/// A metadata block in memory, shared by all its users.
#[derive(Debug)]
pub struct Buffer {
    block: BlockNo,
    ready: AtomicBool,
    referenced: AtomicBool,
    state: RwLock<BufferState>,
}

/// What the lock of a [`Buffer`] guards. As a slice it is the bytes, and to borrow them mutably is
/// to change them.
#[derive(Debug)]
pub struct BufferState {
    image: Arc<[u8]>,
    kind: BlockKind,
    unsealed: u128,
    /// The running transaction that this block is part of.
    pub(crate) transaction: Option<Tid>,
    /// Loading failed, so the block needs another buffer.
    abandoned: bool,
    /// The bytes were found well formed. Atomic, because readers set it too.
    checked: AtomicBool,
    /// Counts changes of the bytes.
    version: u64,
}

/// Shared access to a block's bytes.
pub type BufferRead<'a> = RwLockReadGuard<'a, BufferState>;
/// Exclusive access to a block's bytes. Only a handle gives it.
pub type BufferWrite<'a> = RwLockWriteGuard<'a, BufferState>;

/// A block as its transaction takes it when it closes.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) block: BlockNo,
    pub(crate) kind: BlockKind,
    pub(crate) unsealed: u128,
    pub(crate) image: Arc<[u8]>,
}

impl Buffer {
    /// A buffer with `image`, or one that is not ready.
    pub(super) fn new(block: BlockNo, kind: BlockKind, image: Option<Arc<[u8]>>) -> Self {
        let ready = AtomicBool::new(image.is_some());
        let state = BufferState {
            image: image.unwrap_or_default(),
            kind,
            unsealed: 0,
            transaction: None,
            abandoned: false,
            checked: AtomicBool::new(false),
            version: 0,
        };
        Self {
            block,
            ready,
            referenced: AtomicBool::new(true),
            state: RwLock::new(LockRank::Buffer, state),
        }
    }

    /// The block's number.
    #[must_use]
    pub fn block(&self) -> BlockNo {
        self.block
    }

    /// Shared access to the bytes.
    #[must_use]
    pub fn read(&self) -> BufferRead<'_> {
        self.state.read()
    }

    /// The current image, if it is loaded.
    pub(super) fn image(&self) -> Option<Arc<[u8]>> {
        self.is_ready().then(|| Arc::clone(&self.state.read().image))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Loads the buffer once; other threads wait for its lock meanwhile. False if loading failed in
    /// another thread, so that the block needs another buffer.
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

    /// Marks the buffer as loaded, because its owner has stored the bytes.
    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Checks the kind of structure. Only a hostile or damaged file system uses one block as two
    /// kinds.
    pub(super) fn expect_kind(&self, kind: BlockKind) -> Result<()> {
        let found = self.state.read().kind;
        if found.is_same_structure(kind) {
            return Ok(());
        }
        let why = "is claimed by two structures";
        Err(CorruptKind::Rule { what: "metadata block", why }.at(Place::Block(self.block)).into())
    }

    pub(super) fn touch(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn take_touch(&self) -> bool {
        self.referenced.swap(false, Ordering::Relaxed)
    }

    /// Exclusive access, for the handle that brings the block into its transaction.
    pub(crate) fn write(&self) -> BufferWrite<'_> {
        self.state.write()
    }

    /// Takes the block out of transaction `tid` with its current image. `None` if it is not in it.
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

impl BufferState {
    /// Records a change of the bytes. With `careful`, checked bytes stay well formed.
    fn note_change(&mut self, careful: bool) {
        self.version += 1;
        if !careful {
            self.checked.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the checksum of `slot` in these bytes is up to date.
    #[must_use]
    pub fn is_sealed(&self, slot: u32) -> bool {
        self.unsealed & slot_bit(slot) == 0
    }

    /// The version of the bytes, which every change increments.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Whether the bytes were found well formed and only [`BufferState::edit_checked`] changed them
    /// since.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.checked.load(Ordering::Relaxed)
    }

    /// Records that the owner of the structure found all bytes well formed.
    pub fn note_checked(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// Replaces the image. The old one is not copied.
    pub(crate) fn replace(&mut self, image: Arc<[u8]>) {
        self.note_change(false);
        self.image = image;
    }

    /// Changes the bytes in a way that leaves checked bytes well formed.
    pub fn edit_checked<T>(&mut self, change: impl FnOnce(&mut [u8]) -> T) -> T {
        self.note_change(true);
        change(Arc::make_mut(&mut self.image))
    }

    /// Marks `slot` as changed: its checksum is computed at commit.
    pub fn unseal(&mut self, slot: u32) {
        debug_assert!(slot < u128::BITS, "a block that is written has at most 128 slots");
        self.unsealed |= slot_bit(slot);
    }

    /// Makes the block another kind of structure of the same owner, such as a directory block that
    /// becomes the root of an index.
    pub fn set_kind(&mut self, kind: BlockKind) {
        self.kind = kind;
    }
}

impl Deref for BufferState {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.image
    }
}

impl DerefMut for BufferState {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.note_change(false);
        Arc::make_mut(&mut self.image)
    }
}

/// The slots of blocks above 4096 bytes, which are never written, have no bit from the 128th on.
fn slot_bit(slot: u32) -> u128 {
    1u128.checked_shl(slot).unwrap_or(0)
}
