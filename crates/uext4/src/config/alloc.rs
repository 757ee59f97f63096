//! Options of the block allocator: the tunables of ext4 by their names in `/sys/fs/ext4/*/`, and
//! the contrast options.

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

impl AllocOptions {
    /// Largest order of a request: more blocks than a group has.
    const ORDER_MAX: u32 = 16;

    /// Takes one option. False if `name` is none of the allocator's.
    pub(super) fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool, &'static str> {
        match name {
            "mb_optimize_scan" => self.optimize_scan = flag(value)?,
            "mb_trylock" => self.trylock = flag(value)?,
            "mb_reserve" => {
                self.reserve = match value {
                    Some("on") => true,
                    Some("off") => false,
                    _ => return Err("one of on, off"),
                };
            }
            "mb_stream_goal" => {
                self.stream_goal = match value {
                    Some("inode") => StreamGoal::Inode,
                    Some("global") => StreamGoal::Global,
                    _ => return Err("one of inode, global"),
                };
            }
            "mb_free" => {
                self.free = match value {
                    Some("sharded") => FreeMode::Sharded,
                    Some("global") => FreeMode::Global,
                    _ => return Err("one of sharded, global"),
                };
            }
            "mb_order2_req" => self.order2_req = order(value)?,
            "mb_best_avail_max_trim_order" => self.best_avail_max_trim_order = order(value)?,
            "mb_stream_req" => self.stream_req = number(value)?,
            "mb_node_pool" => self.node_pool = number(value)?,
            "mb_group_prealloc" => self.group_prealloc = number(value)?,
            "mb_max_to_scan" => self.max_to_scan = number(value)?,
            "mb_min_to_scan" => self.min_to_scan = number(value)?,
            "mb_max_linear_groups" => self.max_linear_groups = number(value)?,
            "stripe" => self.stripe = number(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn flag(value: Option<&str>) -> Result<bool, &'static str> {
    match value {
        Some("1") => Ok(true),
        Some("0") => Ok(false),
        _ => Err("0 or 1"),
    }
}

fn number(value: Option<&str>) -> Result<u32, &'static str> {
    value.and_then(|value| value.parse().ok()).ok_or("not a number")
}

fn order(value: Option<&str>) -> Result<u32, &'static str> {
    number(value).ok().filter(|order| *order <= AllocOptions::ORDER_MAX).ok_or("0 to 16")
}
