//! Ablation options of the block allocator: each leaves out one mechanism, for comparison.

use super::flag;

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

impl AllocAblation {
    /// Takes one option. False if `name` is none of these.
    pub(super) fn take(&mut self, name: &str, value: Option<&str>) -> Result<bool, &'static str> {
        match name {
            "mb_optimize_scan" => self.optimize_scan = flag(value)?,
            "mb_trylock" => self.trylock = flag(value)?,
            "mb_reserve" => {
                self.preallocate = match value {
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
            _ => return Ok(false),
        }
        Ok(true)
    }
}
