//! Modes that options of a mount choose between.

/// When reading updates the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    None,
    /// When the access time is older than the modification or change time, or than a day.
    Relative,
    /// Always.
    Strict,
}

/// The reaction of a volume to a corrupt structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Mark the volume, go on.
    Continue,
    /// Mark the volume, allow no more changes.
    RemountReadOnly,
    /// End the mounting process. A host program that uses the library is never ended: there it acts
    /// as [`OnError::RemountReadOnly`].
    Panic,
}

/// How file data is ordered with the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataMode {
    /// Data is on the device before the transaction that makes it reachable.
    Ordered,
    /// The same as [`DataMode::Ordered`], because data is written before its mapping exists; ext4
    /// promises less. `journal_async_commit` needs this mode.
    Writeback,
    /// Data goes through the journal with its mapping. Blocks are allocated at write, whatever
    /// [`delalloc`](super::MountOptions::delalloc) says, and
    /// [`writeback`](super::MountOptions::writeback) has no effect.
    Journal,
}

/// Which files of a byte-addressable device are used without the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaxMode {
    /// All regular files, except those with journaled data. Needs such a device.
    Always,
    /// Files with the DAX flag, if the device supports it.
    Inode,
    /// No file, whatever its flags.
    Never,
}
