//! Ablation options: each switches on something that the engine is built to avoid, so that its cost
//! can be measured. [`super::alloc`] has those of the block allocator, [`super::table`] the words.
//!
//! Invariants: the default of each is the production path. The code of the other paths is in
//! modules named `ablation`.

/// When delayed data is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritebackMode {
    /// After the data is on the device, as written extents.
    Mapped,
    /// Before the data is written, as written extents; the commit of that transaction waits for the
    /// data (ablation: `dioread_lock` of the kernel).
    Ordered,
    /// Before the data is written, as unwritten extents, which a reserved second handle converts
    /// when the data is on the device (ablation: `dioread_nolock` of the kernel).
    Unwritten,
}

/// How a handle that waits to join is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinMode {
    /// In the order of a queue: a waiter is woken when it has joined.
    Fifo,
    /// All waiters are woken and try again (ablation).
    Herd,
}

/// How many credits a handle asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditMode {
    /// One for each block that it may dirty, counted on the tree as it is.
    Exact,
    /// As many as a handle of the kernel: for the worst tree, with every shared block counted again
    /// (ablation).
    Worst,
}

/// Which thread frees log space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckpointMode {
    /// A background thread, from a quarter of the log on.
    Background,
    /// The thread that finds no room, one at a time, oldest transaction first (ablation).
    Inline,
}

/// What a sync does that arrives while another sync of the same inode runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncBatch {
    /// It shares the next writeback pass with all callers that wait for it.
    Single,
    /// It runs a pass of its own, which looks again for pages that became dirty meanwhile
    /// (ablation: kernels before 5.8).
    Rescan,
}

/// Which thread ends a direct overwrite that a queue has reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DioCompletion {
    /// The thread that reaps it.
    Inline,
    /// A worker thread, to which each overwrite is handed (ablation: kernels 4.19 to 6.18).
    Deferred,
}

/// What an overwrite of a file in DAX mode begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DaxOverwrite {
    /// Nothing: it is only stores.
    Direct,
    /// A handle on the inode (ablation: kernels before 5.10).
    Journal,
}
