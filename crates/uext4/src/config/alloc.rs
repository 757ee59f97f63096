//! Options of the block allocator: the tunables of ext4, by their names in `/sys/fs/ext4/*/`.

mod ablation;

pub use ablation::{AllocAblation, FreeMode, StreamGoal};

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

impl AllocOptions {
    /// Largest order of a request: more blocks than a group has.
    const ORDER_MAX: u32 = 16;

    /// Takes one option. False if `name` is none of the allocator's.
    pub(super) fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool, &'static str> {
        match name {
            "mb_order2_req" => self.order2_req = order(value)?,
            "mb_best_avail_max_trim_order" => self.best_avail_max_trim_order = order(value)?,
            "mb_stream_req" => self.stream_req = number(value)?,
            "mb_node_pool" => self.node_pool = number(value)?,
            "mb_group_prealloc" => self.group_prealloc = number(value)?,
            "mb_max_to_scan" => self.max_to_scan = number(value)?,
            "mb_min_to_scan" => self.min_to_scan = number(value)?,
            "mb_max_linear_groups" => self.max_linear_groups = number(value)?,
            "stripe" => self.stripe = number(value)?,
            _ => return self.ablation.take(name, value),
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
