//! Options of the block allocator: the tunables of ext4, by their names in `/sys/fs/ext4/*/`.

/// Options of the block allocator. Blocks are file-system blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocOptions {
    /// A file of at least this many blocks is a stream. Smaller files share a locality group.
    pub stream_req: u32,
    /// Blocks that a locality group preallocates at a time.
    pub group_prealloc: u32,
    /// Most free runs that a linear scan of a group looks at.
    pub max_to_scan: u32,
    /// Free runs that a linear scan looks at before it accepts one that is long enough.
    pub min_to_scan: u32,
    /// Requests for a power of two of at least two to this many blocks are aligned to their length
    /// if possible.
    pub order2_req: u32,
    /// Most powers of two by which a request is shortened to find a run of the best length.
    pub best_avail_max_trim_order: u32,
    /// Groups that are scanned one after the other before an order index is asked.
    pub max_linear_groups: u32,
    /// Requests of at least this many blocks are aligned to it, for RAID; 0: none.
    pub stripe: u32,
    /// Most blocks that are set aside for nodes of extent trees; never more than a fiftieth.
    pub node_pool: u32,
    /// What is left out for comparison.
    pub ablation: AllocAblation,
}

impl Default for AllocOptions {
    fn default() -> Self {
        Self {
            stream_req: 16,
            group_prealloc: 512,
            max_to_scan: 200,
            min_to_scan: 10,
            order2_req: 2,
            best_avail_max_trim_order: 3,
            max_linear_groups: 4,
            stripe: 0,
            node_pool: 4096,
            ablation: AllocAblation::default(),
        }
    }
}

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
