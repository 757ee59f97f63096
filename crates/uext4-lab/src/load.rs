//! What a load is.

use std::ops::Range;

use crate::error::Result;
use crate::loads::LOADS;
use crate::plan::{Event, Plan};
use crate::target::Target;

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

/// How a load is run where all of them have to fit into a quarter of an hour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quick {
    pub(crate) scale: f64,
    pub(crate) seconds: f64,
    pub(crate) rounds: u32,
    pub(crate) threads: &'static [u32],
    /// Sizes of a request, of a load that has several.
    pub(crate) sizes: &'static [u32],
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
    /// Space for images that a run takes at most, in bytes, by form, threads and candidates, whose
    /// own images stay for all rounds.
    pub(crate) room: fn(&Plan, Option<Form>, u32, u32) -> u64,
    /// Length of the image of a run, in bytes, by form and threads.
    pub(crate) length: fn(&Plan, Option<Form>, u32) -> u64,
    /// Whether its image can be a block device.
    pub(crate) on_device: bool,
    pub(crate) time: RunTime,
    /// How it is run with `--quick`.
    pub(crate) quick: Quick,
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

    /// Why the load means nothing on a target of its own in this plan; `None` if it does.
    pub(crate) fn left_out(&self, plan: &Plan, target: Target) -> Option<String> {
        let has_device = plan.lent.is_some() || plan.store.flush().is_some();
        let no_device = has_device && !self.on_device;
        let no_device = no_device.then(|| "its image cannot be a block device".to_owned());
        let aged =
            plan.aged && target == Target::Dir && matches!(self.forms, Forms::OnDemand(Form::Aged));
        let aged = aged.then(|| "a mounted file system is not aged".to_owned());
        let no_threads = !plan.threads_of(self).iter().any(|count| target.takes_threads(*count));
        let no_threads = no_threads.then(|| "it takes one thread".to_owned());
        no_device.or(aged).or(no_threads).or_else(|| (self.obstacle)(target))
    }

    /// The targets that it is run on beside uext4.
    pub fn peers(&self) -> impl Iterator<Item = Target> {
        self.targets.iter().copied().filter(|target| !target.is_own())
    }
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
