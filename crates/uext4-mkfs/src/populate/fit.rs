//! The size of a file system by what fills it.
//!
//! How: the tree is planned once in a file system that is large enough, which says how many blocks
//! it takes. What a file system of some size has for it is asked of plans of empty ones, which cost
//! little. The plan of the chosen size is then made in full; where it falls short, because files
//! were divided more often, the size grows by little steps.

use super::Fill;
use super::tree::{Body, NodeId};
use crate::error::{MkfsError, Result};
use crate::geometry;
use crate::journal::{BLOCKS_WITH_JOURNAL, JOURNAL_STEPS};
use crate::journal_device::JournalDevice;
use crate::options::Options;
use crate::plan::{Plan, Wanted};
use uext4_ondisk::features::Compat;
use uext4_ondisk::journal::superblock::MIN_JOURNAL_BLOCKS;

/// Bytes of a block, if neither they nor a usage are asked for.
const BLOCK_SIZE: u32 = 4096;
/// Room beyond the content in the first attempt.
const FIRST_SLACK: u64 = 512 << 20;
/// Most blocks that are thought of.
const BLOCKS_MAX: u64 = 1 << 39;
/// Most attempts at sizes that turn out too small.
const ATTEMPTS_MAX: u32 = 40;

/// How much room a file system is to have beyond what fills it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Room {
    /// So many percent of its blocks are free, those that are kept for root among them.
    Free(f64),
    /// As little as can be: no spare inodes and no blocks for root either, unless the options say
    /// how many.
    Least,
}

/// Chooses the size of a file system that `fill` fills, and what goes with it.
///
/// # Errors
/// [`MkfsError::Option`]: a contradiction in the options, or a share that cannot be had;
/// [`MkfsError::Source`]: a file that cannot be stored.
pub fn fitted(
    options: &Options,
    external: Option<&JournalDevice<'_>>,
    fill: &Fill<'_>,
    room: Room,
) -> Result<Options> {
    let mut options = options.clone();
    if let Some(external) = external {
        // What it says of blocks is needed now; all of it is said again when the image is made.
        let mut adapted = options.clone();
        external.adapt(&mut adapted)?;
        options.block_size = adapted.block_size;
    }
    if options.usage.is_empty() {
        options.block_size.get_or_insert(BLOCK_SIZE);
    }
    let inodes = fill.inodes()?;
    let percent = match room {
        Room::Free(percent) if (0.0..100.0).contains(&percent) => percent,
        Room::Free(percent) => {
            return Err(MkfsError::option(format!("{percent} percent cannot be free")));
        }
        Room::Least => {
            options.reserved_percent.get_or_insert(0.0);
            options.has_tight_journal = true;
            0.0
        }
    };
    let is_least = room == Room::Least;
    let (tree, empty_tree) = (0, 0);
    let mut fitting =
        Fitting { options, external, fill, inodes, is_least, percent, tree, empty_tree };
    fitting.measure()?;
    fitting.choose()
}

struct Fitting<'a> {
    options: Options,
    external: Option<&'a JournalDevice<'a>>,
    fill: &'a Fill<'a>,
    inodes: u32,
    is_least: bool,
    percent: f64,
    /// Blocks that the tree takes.
    tree: u64,
    /// Blocks of an empty tree.
    empty_tree: u64,
}

impl Fitting<'_> {
    fn plan(&self, bytes: u64, fill: Option<&Fill<'_>>) -> Result<Plan> {
        let (external, inodes) = (self.external, self.inodes);
        let (device_name, has_least_inodes) = (String::new(), self.is_least);
        let wanted = Wanted { device_name, external, fill, inodes, has_least_inodes };
        let options = Options { size: Some(bytes), ..self.options.clone() };
        Plan::new(bytes, &options, &wanted)
    }

    /// Plans the tree with much room, and leaves nothing about blocks to the size.
    fn measure(&mut self) -> Result<()> {
        let mut seen = vec![false; self.fill.tree.node_count()];
        // A file with several names is stored once.
        let is_first = |id: &NodeId| !std::mem::replace(&mut seen[id.index()], true);
        let nodes = self.fill.tree.reachable().filter(is_first);
        let content: u64 = nodes
            .map(|id| match &self.fill.tree.node(id).body {
                Body::File(file) => file.stored_bytes(),
                Body::Directory(names) => names.keys().map(|name| name.len() as u64 + 20).sum(),
                _ => 0,
            })
            .fold(0, u64::saturating_add);
        let files = u64::from(self.inodes);
        let per_file = 65_536 * 2 + 1024;
        let room = files.saturating_mul(per_file).saturating_add(FIRST_SLACK);
        let wanted = content.saturating_mul(2).saturating_add(room);
        let wanted = wanted.div_ceil(self.block_size()).min(BLOCKS_MAX);
        // The tree takes as much without room for growth, which may end below this size.
        let growth = self.options.resize.take();
        let low = content.saturating_add(FIRST_SLACK) / self.block_size();
        let bytes = self.largest(low, wanted).unwrap_or(wanted) * self.block_size();
        let plan = self.plan(bytes, Some(self.fill))?;
        self.tree = plan.tree_blocks;
        self.options.block_size = plan.options.block_size;
        self.empty_tree = self.plan(bytes, None)?.tree_blocks;
        self.options.resize = growth;
        Ok(())
    }

    /// Whether the format allows so many blocks with these options.
    fn is_possible(&self, blocks: u64) -> bool {
        let bytes = blocks * self.block_size();
        let options = Options { size: Some(bytes), ..self.options.clone() };
        let settled = options.settled(bytes);
        settled.and_then(|options| geometry::plan(bytes, &options)).is_ok()
    }

    /// Most blocks, from `low` on and below `high`, that the format allows. `None` where it allows
    /// `high` itself, or not even `low`, as where options contradict each other.
    fn largest(&self, low: u64, high: u64) -> Option<u64> {
        let (mut low, mut high) = (low, high);
        if low >= high || self.is_possible(high) || !self.is_possible(low) {
            return None;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.is_possible(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    fn block_size(&self) -> u64 {
        self.options.block_size.unwrap_or(BLOCK_SIZE).into()
    }

    /// Whether a file system of so many blocks has the room, as far as an empty one can tell.
    fn is_enough(&self, blocks: u64) -> bool {
        let plan = self.plan(blocks * self.block_size(), None);
        plan.is_ok_and(|plan| self.has_room_for_tree(&plan))
    }

    /// Whether the plan of an empty file system has the room.
    fn has_room_for_tree(&self, plan: &Plan) -> bool {
        self.has_room(plan, plan.free_blocks() + self.empty_tree, self.tree)
    }

    /// Whether `free` blocks are enough for `used` more and the share that is to be free.
    fn has_room(&self, plan: &Plan, free: u64, used: u64) -> bool {
        let blocks = plan.geometry.layout.blocks_count as f64;
        free.checked_sub(used).is_some_and(|rest| rest as f64 >= blocks * self.percent / 100.0)
    }

    /// The least number of blocks from `low` on, below `high`, which is enough.
    fn least(&self, low: u64, high: u64) -> u64 {
        let (mut low, mut high) = (low, high);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.is_enough(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        high
    }

    /// A number of blocks that is enough.
    fn high(&self) -> Result<u64> {
        // What is to grow ends below the size that it is to grow to.
        let growth = self.options.resize.map(|size| size.blocks(self.block_size() as u32));
        let mut most = growth.map_or(BLOCKS_MAX, |blocks| blocks.saturating_sub(1).min(BLOCKS_MAX));
        let mut high = (self.tree.max(BLOCKS_WITH_JOURNAL) * 2).min(most);
        let mut is_possible = false;
        loop {
            match self.plan(high * self.block_size(), None) {
                Ok(plan) if self.has_room_for_tree(&plan) => return Ok(high),
                Ok(_) => is_possible = true,
                // A contradiction, which every size has, is told as what it is.
                Err(error) if high == most && !is_possible => return Err(error),
                // Less may do than is not allowed.
                Err(_) => most = self.largest(self.tree, high).unwrap_or(most),
            }
            if high == most {
                return Err(MkfsError::option(match growth {
                    Some(_) => "resize: want more blocks than are needed now".to_owned(),
                    None => format!("{} percent cannot be free", self.percent),
                }));
            }
            high = (high * 2).min(most);
        }
    }

    fn choose(&self) -> Result<Options> {
        let high = self.high()?;
        let features = self.plan(high * self.block_size(), None)?.options.feature_set()?;
        let has_journal = features.compat.contains(Compat::HAS_JOURNAL) && self.external.is_none();
        let first = match has_journal {
            true if self.options.has_tight_journal => MIN_JOURNAL_BLOCKS.into(),
            true => BLOCKS_WITH_JOURNAL,
            false => 1,
        };
        // The journal grows by steps: before a step there may be more room than behind it.
        let step = JOURNAL_STEPS.iter().find(|step| **step > first && self.is_enough(**step - 1));
        let high = step.map_or(high, |step| high.min(*step - 1));
        let mut blocks = self.least(first, high);
        let mut last = MkfsError::option("found no size that is enough: give one");
        for _ in 0..ATTEMPTS_MAX {
            let bytes = blocks * self.block_size();
            match self.plan(bytes, Some(self.fill)) {
                Ok(plan) if self.has_room(&plan, plan.free_blocks(), 0) => {
                    let bytes = plan.geometry.layout.bytes();
                    let mut options = Options { size: Some(bytes), ..self.options.clone() };
                    if self.is_least && options.inode_ratio.is_none() {
                        options.inodes = plan.options.inodes;
                    }
                    return Ok(options);
                }
                Ok(_) => {}
                // Too small still, or what no size mends.
                Err(error @ MkfsError::Option(_)) => last = error,
                Err(error) => return Err(error),
            }
            blocks += (blocks / 4096).max(1);
        }
        Err(last)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::{Attributes, ContentId, Contents, FileBody, Node, Piece, Tree};
    use super::*;

    /// A sixteenth of 2^32 blocks of 1024 bytes.
    const PART: u64 = 1 << 38;

    /// Contents that are never asked for: nothing is written.
    struct Unread;

    impl Contents for Unread {
        fn read(&self, _: ContentId, _: &mut [Piece<'_>]) -> Result<()> {
            Err(MkfsError::option("not to be read"))
        }
    }

    /// The size for a file with so many bytes and names, of which so many percent are free. Large
    /// clusters make few groups.
    fn size(bytes: u64, names: u32, percent: f64) -> Result<u64> {
        let mut tree = Tree::new(Attributes::default());
        let body = Body::File(FileBody { size: bytes, data: None, content: ContentId(0) });
        let node = Node { attributes: Attributes::default(), body };
        let id = tree.add(tree.root(), b"0", node).unwrap();
        for name in 1..names {
            tree.link(tree.root(), name.to_string().as_bytes(), id).unwrap();
        }
        let fill = Fill {
            tree: &tree,
            contents: &Unread,
            is_reproducible: true,
            threads: 1,
            progress: &|_| {},
        };
        let options = Options {
            features: "bigalloc,^64bit,^resize_inode".to_owned(),
            block_size: Some(1024),
            cluster_size: Some(1 << 20),
            inode_ratio: Some(4 << 20),
            ..Options::default()
        };
        let options = fitted(&options, None, &fill, Room::Free(percent))?;
        Ok(options.size.unwrap())
    }

    /// Fault model: the plan with much room is beyond what the format allows, and that is told in
    /// the place of a size that is enough.
    #[test]
    fn the_first_plan_is_within_the_format() {
        let once = size(PART, 1, 10.0).unwrap();
        assert!((PART..2 * PART).contains(&once), "{once}");
        // Each name would ask for as much again.
        let often = size(PART, 300, 10.0).unwrap();
        assert!(often - once < 4 << 20, "{once} {often}");
        // Twice the content is above 2^32 blocks, or twice what has been too small.
        let large = size(10 * PART, 1, 10.0).unwrap();
        assert!((10 * PART..12 * PART).contains(&large), "{large}");
        let free = size(7 * PART, 1, 54.0).unwrap();
        assert!((15 * PART..16 * PART).contains(&free), "{free}");
        for (bytes, percent) in [(17 * PART, 10.0), (9 * PART, 60.0)] {
            size(bytes, 1, percent).unwrap_err();
        }
    }
}
