//! The loads, as data.

use std::ops::Range;

use crate::error::Result;
use crate::plan::{Event, Plan};
use crate::target::Target;
use crate::{append, queued, stored, storm};

/// What a load on a tree or on small files does; [`crate::library`] and [`crate::mounted`] say how
/// on each kind of target.
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
}

/// How a load is run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// Threads of our own, beside each other on all targets: see [`crate::bench`].
    Bench(RunLoad),
    /// Programs on a tree or on small files, from an image that holds this.
    Tree(Work, Start),
}

/// Runs a load on those targets, and tells its figures.
pub(crate) type RunLoad =
    fn(&Plan, &'static Load, &[Target], &mut dyn FnMut(Event<'_>)) -> Result<()>;

/// What a run takes, roughly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunTime {
    /// By `--seconds`.
    pub(crate) timed: f64,
    /// At full size, in seconds, beside that.
    pub(crate) full_s: f64,
}

/// What a target of a load is run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// These mount options, beside the default.
    Options(&'static str),
    /// This, which makes the requests; there is no default then.
    Driver(&'static str),
}

impl Beside {
    /// The driver that is fio's.
    pub(crate) const LIBAIO: &'static str = "libaio";
    /// The driver that is ours.
    pub(crate) const IO_URING: &'static str = "io_uring";
}

/// The forms that a load has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Forms {
    /// One.
    One,
    /// These, and all of them where none is asked for.
    Each(&'static [Form]),
    /// The usual one, and this one where it is asked for.
    OnDemand(Form),
}

/// A form of a load that has several: `form` of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// E1a: each thread cuts its own file off. M4 and M6: directories divided among the threads;
    /// results do not name it then.
    Own,
    /// E1a: another thread cuts off, and files are synced.
    Foreign,
    /// M4 and M6: all threads work in one directory. M7: the tree is 120,000 files of 1 KiB in one.
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
    /// Most processes or threads that it can be run with.
    pub threads_max: u32,
    /// Sizes of a request, of a load that has several; empty: `block_bytes` alone.
    pub sizes: &'static [u32],
    /// What it can be run on.
    pub targets: &'static [Target],
    /// Whether it is run with journals of several sizes.
    pub(crate) has_journals: bool,
    /// Space for images that a run takes at most, in bytes, by form and threads.
    pub(crate) room: fn(&Plan, Option<Form>, u32) -> u64,
    pub(crate) time: RunTime,
    /// What targets are run with beside their default, or by instead of it.
    pub(crate) beside: &'static [(Target, Beside)],
    /// A target that the load means nothing on where this says why.
    pub(crate) obstacle: fn(Target) -> Option<String>,
    pub(crate) forms: Forms,
    pub(crate) how: How,
}

impl Load {
    /// The load of that name, in upper or lower case.
    #[must_use]
    pub fn find(id: &str) -> Option<&'static Self> {
        LOADS.iter().find(|load| load.id.eq_ignore_ascii_case(id))
    }

    /// Whether it is run with variants of uext4: all of them meet in one table.
    #[must_use]
    pub const fn takes_variants(&self) -> bool {
        !matches!(self.how, How::Tree(Work::Build, _))
    }

    /// Why the load means nothing on a target of its own; `None` if it does.
    pub(crate) fn left_out(&self, target: Target) -> Option<String> {
        (self.obstacle)(target)
    }

    /// The targets that it is run on beside uext4.
    pub fn peers(&self) -> impl Iterator<Item = Target> {
        self.targets.iter().copied().filter(|target| !target.is_own())
    }
}

/// Most threads of a load: 2 GiB of address space for their stacks.
const THREADS_MAX: u32 = 8192;
/// Most threads that store: each has a table of all blocks.
const STORE_THREADS_MAX: u32 = 64;
/// Two images with the tree in them, and what making them takes.
const TREE_SPACE: u64 = 3 * 942_000_000;
/// The same of the smallest tree.
const TREE_SPACE_MIN: u64 = 64 << 20;

/// Space of a load on the tree, or on small files.
fn tree_room(plan: &Plan, _: Option<Form>, _: u32) -> u64 {
    ((TREE_SPACE as f64 * plan.scale) as u64).max(TREE_SPACE_MIN)
}

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

/// The library, the kernel and no file system.
const BARE: &[Target] = &[Target::Uext4, Target::Kernel, Target::Raw];
/// What threads of ours allocate on.
const ALLOCATING: &[Target] = &[Target::Uext4, Target::Uext4Mount, Target::Kernel];
/// What programs work on.
const MOUNTED: &[Target] = &[Target::Uext4, Target::Uext4Mount, Target::Kernel, Target::Fuse2fs];
const MOUNTED_OR_RAW: &[Target] =
    &[Target::Uext4, Target::Uext4Mount, Target::Kernel, Target::Fuse2fs, Target::Raw];

/// A load of our own threads: what most of them have.
pub(crate) const THREADS: Load = Load {
    id: "",
    what: "",
    metric: "iops",
    threads: &[1],
    threads_max: THREADS_MAX,
    block_bytes: 16 << 10,
    sizes: &[],
    space_bytes: 0,
    targets: BARE,
    has_journals: false,
    room: tree_room,
    time: RunTime { timed: 1.0, full_s: 1.0 },
    beside: &[],
    obstacle: |_| None,
    forms: Forms::One,
    how: How::Tree(Work::Build, Start::Nothing),
};
/// A load on the tree.
const TREE: Load = Load {
    metric: "wall_s",
    threads_max: 1,
    block_bytes: 0,
    space_bytes: TREE_SPACE,
    time: RunTime { timed: 0.0, full_s: 12.0 },
    targets: MOUNTED,
    ..THREADS
};
/// A load on small files.
const SMALL: Load =
    Load { metric: "ops_per_s", threads: &[1, 2], threads_max: SMALL_FILE_DIRS, ..TREE };

/// Every load: the only place that names them. Help, documents and comparisons go by it.
pub static LOADS: &[Load] = &[
    Load {
        id: "E0",
        what: "fsync-storm: random writes into allocated files, one a thread, fsync after each",
        threads: &[2048],
        space_bytes: 60_300_000_000,
        has_journals: true,
        room: |p, _, threads| storm::room(storm::StormKind::Own, p, threads),
        time: RunTime { timed: 1.5, full_s: 20.0 },
        beside: &[(Target::Kernel, Beside::Options("dioread_lock"))],
        how: How::Bench(|p, l, t, tell| storm::run(storm::StormKind::Own, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E1a",
        what: "fallocate2: threads append 8 KiB by fallocate up to 1 MiB, cut off, again (2 forms)",
        metric: "ops_per_s",
        threads: &[1, 2, 4, 8, 16, 32, 64],
        block_bytes: 8 << 10,
        space_bytes: 2 << 30,
        targets: ALLOCATING,
        room: |p, form, threads| append::room(append::AppendKind::Recycle, p, form, threads),
        forms: Forms::Each(&[Form::Own, Form::Foreign]),
        how: How::Bench(|p, l, t, tell| append::run(append::AppendKind::Recycle, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E1b",
        what: "append-frag: threads append 4 KiB by fallocate to 1 GiB each (--aged: when aged)",
        metric: "bytes_per_s",
        threads: &[64],
        block_bytes: 4 << 10,
        space_bytes: 3 << 30,
        targets: ALLOCATING,
        room: |p, form, threads| append::room(append::AppendKind::Fill, p, form, threads),
        time: RunTime { timed: 0.0, full_s: 60.0 },
        beside: &[(Target::Kernel, Beside::Options("mb_optimize_scan=0"))],
        forms: Forms::OnDemand(Form::Aged),
        how: How::Bench(|p, l, t, tell| append::run(append::AppendKind::Fill, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E2",
        what: "dax-overwrite: random overwrites of 4 KiB in 32 written files of a mapped image",
        threads: &[1, 2, 4, 8, 16],
        threads_max: STORE_THREADS_MAX,
        block_bytes: 4 << 10,
        space_bytes: 700 << 20,
        room: |p, _, _| stored::room(p),
        time: RunTime { timed: 1.5, full_s: 1.0 },
        beside: &[(Target::Uext4, Beside::Options("dax_overwrite=journal"))],
        obstacle: stored::obstacle,
        how: How::Bench(stored::run),
        ..THREADS
    },
    Load {
        id: "E3",
        what: "fsync-batch: random overwrites of one file of 1 MiB by all, fsync after each",
        threads: &[16],
        space_bytes: 2 << 30,
        targets: MOUNTED_OR_RAW,
        room: |p, _, threads| storm::room(storm::StormKind::Shared, p, threads),
        how: How::Bench(|p, l, t, tell| storm::run(storm::StormKind::Shared, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "E4",
        what: "aio-dio: 64 direct requests of 4 to 16 KiB in flight, one thread (2 forms)",
        threads_max: 1,
        block_bytes: 4 << 10,
        sizes: &[4 << 10, 8 << 10, 12 << 10, 16 << 10],
        space_bytes: 2_500_000_000,
        room: |p, _, _| queued::room(p),
        beside: &[
            (Target::Uext4, Beside::Options("dio_completion=deferred")),
            (Target::Kernel, Beside::Driver(Beside::IO_URING)),
            (Target::Kernel, Beside::Driver(Beside::LIBAIO)),
        ],
        // Reads first: fio leaves blocks that name no write.
        forms: Forms::Each(&[Form::Read, Form::Write]),
        how: How::Bench(queued::run),
        ..THREADS
    },
    Load {
        id: "S1",
        what: "appends of 16 KiB to a new file, fsync after each: what one thread alone pays",
        space_bytes: 3 << 29,
        has_journals: true,
        room: |p, _, threads| storm::room(storm::StormKind::Append, p, threads),
        time: RunTime { timed: 1.5, full_s: 2.0 },
        how: How::Bench(|p, l, t, tell| storm::run(storm::StormKind::Append, p, l, t, tell)),
        ..THREADS
    },
    Load {
        id: "M1",
        what: "unpack a source tree of 45,313 entries and 757 MB (tar -xf; library: import)",
        how: How::Tree(Work::Unpack, Start::Empty),
        ..TREE
    },
    Load {
        id: "M2",
        what: "read every file of that tree back, freshly mounted, then again (variant warm)",
        how: How::Tree(Work::ReadTree, Start::Tree),
        ..TREE
    },
    Load {
        id: "M3",
        what: "remove that tree (rm -rf), freshly mounted",
        how: How::Tree(Work::RemoveTree, Start::Tree),
        ..TREE
    },
    Load {
        id: "M4",
        what: "create 60,000 files and write 4 KiB into each",
        block_bytes: 4096,
        forms: Forms::OnDemand(Form::Shared),
        how: How::Tree(Work::Create, Start::Empty),
        ..SMALL
    },
    Load {
        id: "M5",
        what: "stat 60,000 files twice after a first pass (variant fresh: that first pass)",
        how: How::Tree(Work::Stat, Start::Files),
        ..SMALL
    },
    Load {
        id: "M6",
        what: "unlink 60,000 files of 4 KiB, freshly mounted",
        forms: Forms::OnDemand(Form::Shared),
        how: How::Tree(Work::Unlink, Start::Files),
        ..SMALL
    },
    Load {
        id: "M7",
        what: "build an image from that tree by mkfs -d (peer: mke2fs -d)",
        targets: &[Target::Uext4, Target::Mke2fs],
        forms: Forms::OnDemand(Form::Shared),
        how: How::Tree(Work::Build, Start::Nothing),
        ..TREE
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
            assert!(load.threads.iter().all(|&n| n <= load.threads_max), "{}", load.id);
            assert!(matches!(load.metric, "wall_s" | "ops_per_s" | "bytes_per_s" | "iops"));
            assert!(std::ptr::eq(Load::find(&load.id.to_lowercase()).unwrap(), load));
        }
    }
}
