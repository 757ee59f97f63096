//! What options of a mount choose between.

/// When reading updates the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    None,
    /// When it is older than the modification or change time, or than a day.
    Relative,
    /// Always.
    Strict,
}

/// What a corrupt structure does to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Mark the volume, go on.
    Continue,
    /// Mark the volume, allow no more changes.
    RemountReadOnly,
    /// End the mounting process. A host program that uses the library is never ended: there it
    /// acts as [`OnError::RemountReadOnly`].
    Panic,
}

/// How file data and the journal relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataMode {
    /// Data is on the device before the transaction that makes it reachable.
    Ordered,
    /// As [`DataMode::Ordered`] here, where data is written before its mapping exists; ext4
    /// promises less. It is what `journal_async_commit` needs.
    Writeback,
    /// Data goes through the journal with its mapping. Blocks are allocated at write, whatever
    /// [`delalloc`](super::MountOptions::delalloc) says, and
    /// [`writeback`](super::MountOptions::writeback) has no effect.
    Journal,
}

/// When the mapping of delayed data is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritebackMode {
    /// After the data is on the device, as written extents.
    Mapped,
    /// Before, as written extents; the commit of that transaction writes the data (contrast:
    /// `dioread_lock` of the kernel).
    Ordered,
    /// Before, as unwritten extents, that a reserved second handle converts when the data is on the
    /// device (contrast: `dioread_nolock` of the kernel).
    Unwritten,
}

/// Who wakes a handle that waits to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinMode {
    /// A queue: whoever fits is woken when it has joined.
    Fifo,
    /// All are woken and try again (contrast).
    Herd,
}

/// How many blocks a handle asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditMode {
    /// What it may dirty, from the tree as it is.
    Exact,
    /// What a handle of the kernel asks for: the worst tree, each shared block anew (contrast).
    Worst,
}

/// Who frees log space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointMode {
    /// A thread, from a quarter of the log on.
    Background,
    /// Whoever finds no room, one at a time, oldest transaction first (contrast).
    Inline,
}

/// What a sync does that arrives while another one of the same inode runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncBatch {
    /// It shares the next sweep with all who wait for it.
    Single,
    /// Each makes a sweep of its own and looks again for what became dirty meanwhile (contrast:
    /// kernels before 5.8).
    Rescan,
}

/// Where a direct overwrite is ended that a queue has reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DioCompletion {
    /// Where it is reaped.
    Inline,
    /// On a worker thread, to which each is handed (contrast: kernels 4.19 to 6.18).
    Deferred,
}

impl DioCompletion {
    /// Whether it is [`DioCompletion::Deferred`].
    #[must_use]
    pub fn is_deferred(self) -> bool {
        self == Self::Deferred
    }
}

/// Which files of a byte-addressable device are used without the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaxMode {
    /// All regular files, but those whose data is journaled. Needs such a device.
    Always,
    /// Those with the DAX flag, where the device can.
    Inode,
    /// None, whatever their flags.
    Never,
}

/// What an overwrite of a file in DAX mode takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaxOverwrite {
    /// Nothing but the stores.
    Direct,
    /// A handle on the inode first (contrast: kernels before 5.10).
    Journal,
}
