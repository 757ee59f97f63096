//! Options of the block allocator: the tunables of ext4 by their names in `/sys/fs/ext4/*/`, and
//! the ablation options.

/// Where a request of a stream begins its search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamGoal {
    /// Where its inode wants it.
    Inode,
    /// In the group that the last stream of the volume got blocks in (contrast).
    Global,
}

/// How the blocks that a durable transaction freed become usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeMode {
    /// Gathered by group, each group's lock once.
    Sharded,
    /// Run by run, under one lock of the volume (contrast).
    Global,
}

/// Options of the block allocator. Blocks are file-system blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocOptions {
    /// A file of at least so many blocks is a stream; smaller ones share a locality group.
    pub stream_req: u32,
    /// Blocks that a locality group claims at a time.
    pub group_prealloc: u32,
    /// Most free runs that a linear scan of a group looks at.
    pub max_to_scan: u32,
    /// Free runs that it looks at before it is content with one that is long enough.
    pub min_to_scan: u32,
    /// Requests of at least two to this many blocks that are a power of two are looked for
    /// aligned to it.
    pub order2_req: u32,
    /// Powers of two by which a request is shortened at most to find a run of the best length.
    pub best_avail_max_trim_order: u32,
    /// Groups that are scanned one after the other before the order index is asked.
    pub max_linear_groups: u32,
    /// Requests of at least so many blocks are aligned to it, as a RAID wants it; 0: none.
    pub stripe: u32,
    /// Ask the index of groups by order, rather than scan all groups one after the other
    /// (contrast, as in kernels before 5.13).
    pub optimize_scan: bool,
    /// Pass over a group that somebody holds where another will do, rather than wait (contrast).
    pub trylock: bool,
    /// Where streams search.
    pub stream_goal: StreamGoal,
    /// How frees become usable.
    pub free: FreeMode,
    /// Streams and locality groups hold blocks ahead of their need (without: contrast).
    pub reserve: bool,
    /// Most blocks that are kept back for nodes of extent trees; never more than a fiftieth.
    pub node_pool: u32,
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
            optimize_scan: true,
            trylock: true,
            stream_goal: StreamGoal::Inode,
            free: FreeMode::Sharded,
            reserve: true,
            node_pool: 4096,
        }
    }
}
