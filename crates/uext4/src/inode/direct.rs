//! The part of an inode that serves direct I/O, and whether it is in DAX mode.
//!
//! Invariants: whether an inode is in DAX mode does not change while it is in memory. A change of
//! the flags that disable direct overwrites reaches [`DirectIoState`] before it returns.

use super::Inode;
use super::attributes::now;
use super::direct_io_state::{DirectIoState, ExclusiveGuard};
use crate::config::DaxMode;
use crate::error::Result;
use uext4_ondisk::{FileBlock, InodeFlags, Timestamp};

impl Inode {
    /// State of the inode's direct I/O, if there has been any.
    pub(crate) fn direct_io(&self) -> Option<&DirectIoState> {
        self.direct_io.get().map(|state| &**state)
    }

    /// State of the inode's direct I/O, created if there has been none.
    pub(crate) fn direct_io_or_init(&self) -> &DirectIoState {
        self.direct_io
            .get_or_init(|| Box::new(DirectIoState::new(is_overwritable(self.attributes().flags))))
    }

    /// Called before the flags of a regular file change to `new`, with the file held exclusively:
    /// a change that concerns direct I/O needs the state, because one that is made meanwhile would
    /// have read the old flags.
    pub(crate) fn expect_flags(&self, new: InodeFlags) {
        let old = self.attributes().flags;
        if is_overwritable(old) != is_overwritable(new) {
            self.direct_io_or_init();
        }
    }

    /// Called when the flags have changed, before direct I/O goes on.
    pub(crate) fn follow_flags(&self) {
        if let Some(direct_io) = self.direct_io() {
            direct_io.set_overwritable(is_overwritable(self.attributes().flags));
        }
    }

    /// Stops direct I/O, drains what is under way, and forgets what is known of blocks
    /// `first .. end`. A caller that removes mappings of these blocks, or makes them unwritten,
    /// holds the guard from before its first handle to after its last. Without it: thread A finds
    /// the block of an overwrite, which holds no lock; thread B punches the range and the block
    /// goes to another file; A writes into that file. The caller holds no handle, and holds the
    /// file exclusively unless it is unlinked and has no user.
    ///
    /// # Errors
    /// Requests of a queue that the device gave up may still be done, so the blocks cannot be
    /// removed.
    pub(crate) fn drain_direct_io(
        &self,
        first: FileBlock,
        end: FileBlock,
    ) -> Result<ExclusiveGuard<'_>> {
        ExclusiveGuard::new(self.direct_io(), first, end, self.space().journal().waits())
    }

    /// Disables the fast path of direct I/O before a page is put in, or read for that: see
    /// [`DirectIoState`]. The caller holds the file, shared at least, until the page is in.
    pub(crate) fn disable_direct_fast_path(&self) {
        debug_assert!(!self.is_dax, "a page of a file in DAX mode");
        if let Some(direct_io) = self.direct_io() {
            direct_io.disable_for_pages(self.space().journal().waits());
        }
    }

    /// Notes that a direct overwrite has completed.
    pub(crate) fn note_direct_write(&self, direct_io: &DirectIoState) {
        let now = now();
        // Until the year 2554.
        let secs = u64::try_from(now.secs).unwrap_or(0);
        let now_ns = secs.wrapping_mul(1_000_000_000).wrapping_add(u64::from(now.nanos));
        if direct_io.note_write(now_ns.max(1)) {
            self.dirty.set();
        }
    }

    /// Notes that a direct read has completed, on a volume that keeps access times.
    pub(crate) fn note_direct_read(&self, direct_io: &DirectIoState) {
        if direct_io.note_read() {
            self.dirty.set();
        }
    }

    /// Brings the lazy timestamps of direct overwrites into the attributes. True if there was a
    /// direct read since the access time was last brought up to date.
    pub(crate) fn fold_direct_times(&self) -> bool {
        let Some(direct_io) = self.direct_io() else { return false };
        if let Some(ns) = direct_io.take_written() {
            let secs = i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX);
            let nanos = u32::try_from(ns % 1_000_000_000).unwrap_or(0);
            let time = Timestamp { secs, nanos };
            let mut attributes = self.attributes();
            attributes.note_written_at(time);
            self.note_times(&mut attributes);
        }
        direct_io.take_accessed()
    }

    /// Whether requests of a queue that the device gave up may still write to its blocks.
    pub(super) fn is_lost_to_direct(&self) -> bool {
        self.direct_io().is_some_and(DirectIoState::is_lost)
    }

    /// Whether there are timestamps of direct accesses that the attributes do not show yet.
    pub(crate) fn has_lazy_direct_times(&self) -> bool {
        self.direct_io().is_some_and(DirectIoState::has_lazy_times)
    }
}

/// Whether a write inside a file with these flags changes nothing but bytes and times.
fn is_overwritable(flags: InodeFlags) -> bool {
    !flags.intersects(
        InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::SYNC | InodeFlags::VERITY,
    )
}

/// Whether a regular file with these flags is in DAX mode.
pub(super) fn is_dax(mode: DaxMode, flags: InodeFlags) -> bool {
    let is_wanted = match mode {
        DaxMode::Always => true,
        DaxMode::Inode => flags.contains(InodeFlags::DAX),
        DaxMode::Never => false,
    };
    let others = InodeFlags::JOURNAL_DATA
        | InodeFlags::ENCRYPT
        | InodeFlags::VERITY
        | InodeFlags::INLINE_DATA;
    is_wanted && flags.contains(InodeFlags::EXTENTS) && !flags.intersects(others)
}
