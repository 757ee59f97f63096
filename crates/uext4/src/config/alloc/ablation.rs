//! Ablation options of the block allocator: each leaves out one mechanism, for comparison.

/// Where a request of a stream begins its search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamGoal {
    /// At the goal of its inode.
    Inode,
    /// Where the last stream of the volume got blocks (ablation).
    Global,
}

/// How the blocks that a durable transaction freed become usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeMode {
    /// Gathered by group, with each group's lock taken once.
    Sharded,
    /// Run by run, under one lock of the volume (ablation).
    Global,
}

/// The mechanisms of the allocator that can be left out. The default has all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocAblation {
    /// Choose groups by the order indexes. Without: scan all groups one after the other, as kernels
    /// before 5.13 do.
    pub optimize_scan: bool,
    /// Skip a group whose lock is held where another group will do. Without: wait for it.
    pub trylock: bool,
    /// Where streams search.
    pub stream_goal: StreamGoal,
    /// How frees become usable.
    pub free: FreeMode,
    /// Streams and locality groups hold blocks ahead of their need (`mb_reserve`).
    pub preallocate: bool,
}

impl Default for AllocAblation {
    fn default() -> Self {
        Self {
            optimize_scan: true,
            trylock: true,
            stream_goal: StreamGoal::Inode,
            free: FreeMode::Sharded,
            preallocate: true,
        }
    }
}
