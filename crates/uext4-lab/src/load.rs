//! The loads, as data.

use std::ops::Range;

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
    /// Threads append and fsync, each to a file of its own.
    SyncAppend,
    /// Threads grow files by fallocate and cut them off, for a time.
    Recycle,
    /// Threads grow a file each by fallocate to its full length.
    Fill,
    /// One thread keeps many direct requests in flight.
    Queue,
    /// Threads overwrite blocks of files on a mapped image.
    Store,
}

/// A form of a load that has several: `form` of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// E1a: each thread cuts its own file off. M4 and M6: directories divided among the threads;
    /// results do not name it then.
    Own,
    /// E1a: another thread cuts off, and files are synced.
    Foreign,
    /// M4 and M6: all threads work in one directory.
    Shared,
    /// E1b: on a file system that was filled and rewritten at random.
    Aged,
    /// E4: requests read.
    Read,
    /// E4: requests overwrite.
    Write,
}

impl Form {
    const ALL: [Self; 6] =
        [Self::Own, Self::Foreign, Self::Shared, Self::Aged, Self::Read, Self::Write];

    /// Its name in commands and results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Foreign => "foreign",
            Self::Shared => "shared",
            Self::Aged => "aged",
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// The form of that name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name() == name)
    }
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
    /// As many small files, all in one directory.
    SharedFiles,
}

/// A load and how it is measured.
#[derive(Debug)]
pub struct Load {
    /// Its name in commands and in `experiment` of the results.
    pub id: &'static str,
    /// What it does, in a line.
    pub what: &'static str,
    /// `wall_s`, `ops_per_s`, `bytes_per_s` or `iops`.
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
        matches!(self.work, Work::SyncOwn | Work::SyncShared | Work::SyncAppend)
    }

    /// Whether threads allocate and the layout counts, too.
    #[must_use]
    pub const fn is_allocation(&self) -> bool {
        matches!(self.work, Work::Recycle | Work::Fill)
    }

    /// Whether requests are queued: such a load has several sizes of them.
    #[must_use]
    pub const fn is_queued(&self) -> bool {
        matches!(self.work, Work::Queue)
    }

    /// Whether threads store into mapped files.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        matches!(self.work, Work::Store)
    }

    /// Whether it is run with variants of uext4: all of them meet in one table.
    #[must_use]
    pub const fn takes_variants(&self) -> bool {
        self.is_sync() || self.is_allocation() || self.is_queued() || self.is_stored()
    }

    /// Most processes or threads that it can be run with.
    #[must_use]
    pub const fn threads_max(&self) -> u32 {
        match self.work {
            Work::Create | Work::Stat | Work::Unlink => SMALL_FILE_DIRS,
            Work::SyncOwn | Work::SyncShared | Work::SyncAppend | Work::Recycle | Work::Fill => {
                SYNC_THREADS_MAX
            }
            Work::Store => STORE_THREADS_MAX,
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
/// Most threads that store: each has a table of all blocks.
const STORE_THREADS_MAX: u32 = 64;
/// Two images with the tree in them, and what making them takes.
const TREE_SPACE: u64 = 3 * 942_000_000;

/// Small files of M4 to M6, at full scale.
pub(crate) const SMALL_FILES: u32 = 60_000;
/// Directories that the small files are divided among: at least the most processes of a load, so
/// that one process and two leave the same file system.
pub(crate) const SMALL_FILE_DIRS: u32 = 60;
/// How the small files lie in directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SmallFiles {
    pub(crate) dirs: u32,
    pub(crate) per_dir: u32,
}

impl SmallFiles {
    pub(crate) fn count(self) -> u32 {
        self.dirs * self.per_dir
    }

    /// Those that one of several workers goes through, directory by directory: whole directories,
    /// or a part of the only one.
    pub(crate) fn part(self, worker: u32, workers: u32) -> impl Iterator<Item = (u32, Range<u32>)> {
        let workers = workers.max(1);
        let shared = self.dirs == 1;
        let share = self.per_dir.div_ceil(workers);
        let part = (worker * share).min(self.per_dir)..((worker + 1) * share).min(self.per_dir);
        let files = if shared { part } else { 0..self.per_dir };
        let first = if shared { 0 } else { worker };
        (first..self.dirs).step_by(workers as usize).map(move |dir| (dir, files.clone()))
    }
}

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
        id: "E1a",
        what: "fallocate2: threads append 8 KiB by fallocate up to 1 MiB, cut off, again (2 forms)",
        metric: "ops_per_s",
        threads: &[1, 2, 4, 8, 16, 32, 64],
        block_bytes: 8 << 10,
        space_bytes: 2 << 30,
        work: Work::Recycle,
        start: Start::Nothing,
    },
    Load {
        id: "E1b",
        what: "append-frag: threads append 4 KiB by fallocate to 1 GiB each (--aged: when aged)",
        metric: "bytes_per_s",
        threads: &[64],
        block_bytes: 4 << 10,
        space_bytes: 3 << 30,
        work: Work::Fill,
        start: Start::Nothing,
    },
    Load {
        id: "E2",
        what: "dax-overwrite: random overwrites of 4 KiB in 32 written files of a mapped image",
        metric: "iops",
        threads: &[1, 2, 4, 8, 16],
        block_bytes: 4 << 10,
        space_bytes: 700 << 20,
        work: Work::Store,
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
        id: "E4",
        what: "aio-dio: 64 direct requests of 4 to 16 KiB in flight, one thread (2 forms)",
        metric: "iops",
        threads: &[1],
        block_bytes: 4 << 10,
        space_bytes: 2_500_000_000,
        work: Work::Queue,
        start: Start::Nothing,
    },
    Load {
        id: "S1",
        what: "appends of 16 KiB to a new file, fsync after each: what one thread alone pays",
        metric: "iops",
        threads: &[1],
        block_bytes: 16 << 10,
        space_bytes: 3 << 29,
        work: Work::SyncAppend,
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
    fn workers_share_all_small_files() {
        for (dirs, per_dir) in [(60, 8), (1, 481)] {
            for workers in [1, 2, 7] {
                let files = SmallFiles { dirs, per_dir };
                let mut seen: Vec<_> = (0..workers)
                    .flat_map(|worker| files.part(worker, workers))
                    .flat_map(|(dir, files)| files.map(move |file| (dir, file)))
                    .collect();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), files.count() as usize, "{dirs} {workers}");
            }
        }
    }

    #[test]
    fn loads_fit_their_directories() {
        for load in LOADS {
            assert!(load.threads.iter().all(|&n| n <= load.threads_max()), "{}", load.id);
            assert!(matches!(load.metric, "wall_s" | "ops_per_s" | "bytes_per_s" | "iops"));
            assert!(std::ptr::eq(Load::find(&load.id.to_lowercase()).unwrap(), load));
        }
    }
}
