//! Counters of direct I/O.

use crate::stats::Counter;

/// Numbers of requests, by the path that they took.
#[derive(Debug, Default)]
pub(crate) struct DirectStats {
    /// Reads that took no lock.
    pub(crate) reads: Counter,
    /// Reads under the file's lock.
    pub(crate) slow_reads: Counter,
    /// Writes that took no lock: pure overwrites.
    pub(crate) overwrites: Counter,
    /// Writes that met cached pages.
    pub(crate) cached: Counter,
    /// Writes past the end of the file.
    pub(crate) extending: Counter,
    /// Writes inside the file into holes.
    pub(crate) holes: Counter,
    /// Writes inside the file into unwritten blocks, and into no hole.
    pub(crate) unwritten: Counter,
    /// Writes into unwritten blocks that took no lock, and were converted afterwards.
    pub(crate) in_place: Counter,
    /// Overwrites that had to wait for a transaction, or for a flag of the inode.
    pub(crate) held: Counter,
    /// Groups of writes that shared device writes and handles, and the writes in them.
    pub(crate) groups: Counter,
    pub(crate) grouped: Counter,
    /// Overwrites that ended where they were reaped, and overwrites that a worker ended.
    pub(crate) inline: Counter,
    pub(crate) deferred: Counter,
    /// Requests that were ended by a thread that waited for them.
    pub(crate) helped: Counter,
    /// Reads and overwrites of files in DAX mode that took no lock; other writes to them.
    pub(crate) dax_reads: Counter,
    pub(crate) dax_overwrites: Counter,
    pub(crate) dax_slow_writes: Counter,
    /// Handles that overwrites started, with `dax_overwrite=journal`.
    pub(crate) dax_handles: Counter,
}

impl DirectStats {
    /// All counters, by name.
    pub(crate) fn counters(&self) -> [(&'static str, u64); 18] {
        [
            ("direct_reads", self.reads.get()),
            ("direct_reads_slow", self.slow_reads.get()),
            ("direct_overwrites", self.overwrites.get()),
            ("direct_writes_cached", self.cached.get()),
            ("direct_writes_extending", self.extending.get()),
            ("direct_writes_into_holes", self.holes.get()),
            ("direct_writes_into_unwritten", self.unwritten.get()),
            ("direct_writes_in_place", self.in_place.get()),
            ("direct_writes_held", self.held.get()),
            ("direct_groups", self.groups.get()),
            ("direct_writes_grouped", self.grouped.get()),
            ("direct_completions_inline", self.inline.get()),
            ("direct_completions_deferred", self.deferred.get()),
            ("direct_completions_helped", self.helped.get()),
            ("dax_reads", self.dax_reads.get()),
            ("dax_overwrites", self.dax_overwrites.get()),
            ("dax_writes_slow", self.dax_slow_writes.get()),
            ("dax_overwrite_handles", self.dax_handles.get()),
        ]
    }
}
