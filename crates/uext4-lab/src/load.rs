//! The loads, as data.

use crate::target::Target;

/// What a load does; [`crate::library`] and [`crate::mounted`] say how on each kind of target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Unpacks the tree's archive into an empty file system.
    Unpack,
    /// Reads every file of the tree.
    ReadTree,
    /// Removes the tree.
    RemoveTree,
    /// Creates small files and writes one block into each.
    Create,
    /// Looks every small file up and reads its attributes.
    Stat,
    /// Removes every small file.
    Unlink,
    /// Makes an image with the tree in it from a directory.
    Build,
    /// Threads write and fsync, each in a file of its own that was only allocated.
    SyncOwn,
    /// Threads write and fsync, all in one small file.
    SyncShared,
}

/// What the image holds before the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Start {
    /// No image.
    Nothing,
    /// An empty file system.
    Empty,
    /// The tree.
    Tree,
    /// The small files.
    Files,
}

/// A load and how it is measured.
#[derive(Debug)]
pub struct Load {
    /// Its name in commands and in `experiment` of the results.
    pub id: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// `wall_s`, `ops_per_s` or `iops`.
    pub metric: &'static str,
    /// Numbers of processes (mounts) or threads (library) it is run with.
    pub threads: &'static [u32],
    /// Bytes of one read or write of the load; 0 where programs choose.
    pub block_bytes: u32,
    /// Space for images that it takes at full size at most, in bytes.
    pub space_bytes: u64,
    pub(crate) work: Work,
    pub(crate) start: Start,
}

impl Load {
    /// The load of that name, in upper or lower case.
    #[must_use]
    pub fn find(id: &str) -> Option<&'static Self> {
        LOADS.iter().find(|load| load.id.eq_ignore_ascii_case(id))
    }

    /// Whether threads write and fsync: such loads take variants, journals and a duration.
    #[must_use]
    pub const fn is_sync(&self) -> bool {
        matches!(self.work, Work::SyncOwn | Work::SyncShared)
    }

    /// Most processes or threads that it can be run with.
    #[must_use]
    pub const fn threads_max(&self) -> u32 {
        match self.work {
            Work::Create | Work::Stat | Work::Unlink => SMALL_FILE_DIRS,
            Work::SyncOwn | Work::SyncShared => SYNC_THREADS_MAX,
            _ => 1,
        }
    }

    /// The targets that it is run on beside uext4.
    pub fn peers(&self) -> impl Iterator<Item = Target> {
        Target::ALL.into_iter().filter(|target| !target.is_own() && target.takes(self))
    }
}

/// Most threads of a load that syncs: 2 GiB of address space for their stacks.
const SYNC_THREADS_MAX: u32 = 8192;
/// Two images with the tree in them, and what making them takes.
const TREE_SPACE: u64 = 3 * 942_000_000;

/// Small files of M4 to M6, at full scale.
pub(crate) const SMALL_FILES: u32 = 60_000;
/// Directories that the small files are divided among: at least the most processes of a load, so
/// that one process and two leave the same file system.
pub(crate) const SMALL_FILE_DIRS: u32 = 60;
/// Bytes of a small file.
pub(crate) const SMALL_FILE_BYTES: usize = 4096;
/// Passes of M5 over files that were looked at before.
pub(crate) const WARM_PASSES: u32 = 2;

/// Every load.
pub static LOADS: &[Load] = &[
    Load {
        id: "E0",
        what: "fsync-storm: random writes into allocated files, one a thread, fsync after each",
        metric: "iops",
        threads: &[2048],
        block_bytes: 16 << 10,
        space_bytes: 60_300_000_000,
        work: Work::SyncOwn,
        start: Start::Nothing,
    },
    Load {
        id: "E3",
        what: "fsync-batch: random overwrites of one file of 1 MiB by all, fsync after each",
        metric: "iops",
        threads: &[16],
        block_bytes: 16 << 10,
        space_bytes: 2 << 30,
        work: Work::SyncShared,
        start: Start::Nothing,
    },
    Load {
        id: "M1",
        what: "unpack a source tree of 45,313 entries and 757 MB (tar -xf; library: import)",
        metric: "wall_s",
        threads: &[1],
        block_bytes: 0,
        space_bytes: TREE_SPACE,
        work: Work::Unpack,
        start: Start::Empty,
    },
    Load {
        id: "M2",
        what: "read every file of that tree back, freshly mounted, then again (variant warm)",
        metric: "wall_s",
        threads: &[1],
        block_bytes: 0,
        space_bytes: TREE_SPACE,
        work: Work::ReadTree,
        start: Start::Tree,
    },
    Load {
        id: "M3",
        what: "remove that tree (rm -rf), freshly mounted",
        metric: "wall_s",
        threads: &[1],
        block_bytes: 0,
        space_bytes: TREE_SPACE,
        work: Work::RemoveTree,
        start: Start::Tree,
    },
    Load {
        id: "M4",
        what: "create 60,000 files and write 4 KiB into each",
        metric: "ops_per_s",
        threads: &[1, 2],
        block_bytes: 4096,
        space_bytes: TREE_SPACE,
        work: Work::Create,
        start: Start::Empty,
    },
    Load {
        id: "M5",
        what: "stat 60,000 files twice after a first pass (variant fresh: that first pass)",
        metric: "ops_per_s",
        threads: &[1, 2],
        block_bytes: 0,
        space_bytes: TREE_SPACE,
        work: Work::Stat,
        start: Start::Files,
    },
    Load {
        id: "M6",
        what: "unlink 60,000 files of 4 KiB, freshly mounted",
        metric: "ops_per_s",
        threads: &[1, 2],
        block_bytes: 0,
        space_bytes: TREE_SPACE,
        work: Work::Unlink,
        start: Start::Files,
    },
    Load {
        id: "M7",
        what: "build an image from that tree (peer: mke2fs -d)",
        metric: "wall_s",
        threads: &[1],
        block_bytes: 0,
        space_bytes: TREE_SPACE,
        work: Work::Build,
        start: Start::Nothing,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_fit_their_directories() {
        for load in LOADS {
            assert!(load.threads.iter().all(|&n| n <= load.threads_max()), "{}", load.id);
            assert!(matches!(load.metric, "wall_s" | "ops_per_s" | "iops"));
            assert!(std::ptr::eq(Load::find(&load.id.to_lowercase()).unwrap(), load));
        }
    }
}
