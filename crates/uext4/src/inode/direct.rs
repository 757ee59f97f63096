//! What an inode knows of direct accesses, and whether it is in DAX mode.
//!
//! Invariants: the flags that these rest on do not change while the inode is in memory.

use super::Inode;
use super::attributes::now;
use super::overwrites::{Excluded, Overwrites};
use crate::config::DaxMode;
use crate::error::Result;
use uext4_ondisk::{FileBlock, InodeFlags, Timestamp};

impl Inode {
    /// State of direct accesses, if there were any.
    pub(crate) fn overwrites(&self) -> Option<&Overwrites> {
        self.overwrites.get().map(|overwrites| &**overwrites)
    }

    /// Likewise; there will be some.
    pub(crate) fn overwrites_to_be(&self) -> &Overwrites {
        self.overwrites.get_or_init(|| {
            use uext4_ondisk::InodeFlags as Flags;
            // None of them changes while the inode is in memory.
            let flags = self.attributes().flags;
            let asks_more = Flags::IMMUTABLE | Flags::APPEND | Flags::SYNC;
            Box::new(Overwrites::new(!flags.intersects(asks_more)))
        })
    }

    /// Keeps direct accesses out, waits for those that are under way, and forgets what is known of
    /// blocks `first .. end`: to be held by whoever removes their mappings or makes them unwritten,
    /// from before the first handle to after the last. A direct overwrite holds no lock: without
    /// this it would write to a block that is another file's by now. The caller holds the file
    /// exclusively, or it is unlinked and has no user; and no handle.
    ///
    /// # Errors
    /// Requests of a queue that was given up may still be done: the blocks cannot be removed.
    pub(crate) fn exclude_direct(&self, first: FileBlock, end: FileBlock) -> Result<Excluded<'_>> {
        Excluded::new(self.overwrites(), first, end, self.space().journal().waits())
    }

    /// To be called before a page is put in, or read for that: see [`Overwrites`]. The caller holds
    /// the file, shared at least, until the page is in.
    pub(crate) fn note_cached(&self) {
        debug_assert!(!self.is_dax, "a page of a file in DAX mode");
        if let Some(overwrites) = self.overwrites() {
            overwrites.note_cached(self.space().journal().waits());
        }
    }

    /// A direct overwrite has completed.
    pub(crate) fn note_direct_write(&self, overwrites: &Overwrites) {
        let now = now();
        // Until the year 2554.
        let secs = u64::try_from(now.secs).unwrap_or(0);
        let now_ns = secs.wrapping_mul(1_000_000_000).wrapping_add(u64::from(now.nanos));
        if overwrites.note_write(now_ns.max(1)) {
            self.dirty.set();
        }
    }

    /// A direct read has completed, and access times are kept.
    pub(crate) fn note_direct_read(&self, overwrites: &Overwrites) {
        if overwrites.note_read() {
            self.dirty.set();
        }
    }

    /// Brings the times of direct overwrites into the attributes; true if there was a direct read
    /// that the access time does not know.
    pub(crate) fn fold_direct_times(&self) -> bool {
        let Some(overwrites) = self.overwrites() else { return false };
        if let Some(ns) = overwrites.take_written() {
            let secs = i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX);
            let nanos = u32::try_from(ns % 1_000_000_000).unwrap_or(0);
            let time = Timestamp { secs, nanos };
            let mut attributes = self.attributes();
            attributes.note_written_at(time);
            self.note_times(&mut attributes);
        }
        overwrites.take_accessed()
    }

    /// Whether requests of a queue that was given up may still write to its blocks.
    pub(super) fn is_lost_to_direct(&self) -> bool {
        self.overwrites().is_some_and(Overwrites::is_lost)
    }

    /// Whether the attributes lack times of direct accesses.
    pub(crate) fn is_direct_late(&self) -> bool {
        self.overwrites().is_some_and(Overwrites::is_late)
    }
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
