//! One run while its load runs: what looks at it, and what its tools said.
//!
//! What: [`Scene::during`] wraps the measured part of every run of every load. Whatever observes
//! runs (profiles, waits) begins and ends there; counters of the kernel and of the engine are
//! read at its end, outside the measured time.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use uext4::Volume;

use crate::clock::Clock;
use crate::error::{Doing, Result};
use crate::evidence::run_name::RunName;
use crate::jbd2_info;
use crate::plan::Plan;
use crate::target::Opened;

/// The attribute of a uext4 mount's root that tells its statistics, as JSON.
const STATS_XATTR: &str = "system.uext4.stats";
/// More than those statistics have.
const STATS_BYTES_MAX: usize = 64 << 10;

/// What serves a run.
#[derive(Clone, Copy)]
pub(crate) enum Served<'a> {
    /// A volume of this process.
    Volume(&'a Volume),
    /// A mount: where it is, and the process that serves it, if that is not the kernel.
    Mount { dir: &'a Path, daemon: Option<i32> },
    /// No file system.
    Nothing,
}

impl<'a> Served<'a> {
    /// By a target that is ready.
    pub(crate) fn by(opened: &'a Opened) -> Self {
        match opened {
            Opened::Library(volume) => Self::Volume(volume),
            Opened::Mount(mount) => Self::Mount { dir: mount.dir(), daemon: mount.daemon() },
        }
    }
}

/// A run that is about to be measured.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) name: RunName<'a>,
    pub(crate) served: Served<'a>,
    /// The loop device below it.
    pub(crate) device: Option<&'a Path>,
}

impl Scene<'_> {
    /// Does the measured part of a run, which has a clock of its own, and keeps what is to be seen
    /// at its end.
    ///
    /// # Errors
    /// Those of the work; no room for the evidence.
    pub(crate) fn during<T>(self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work()?;
        self.counters().keep()?;
        Ok(done)
    }

    /// Does a part of a run whose clock goes on when it has ended, and reads what is to be seen
    /// then outside of that time. It is for the caller to keep, when the clock has stopped.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn during_by<T>(
        self,
        clock: &mut Clock,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Told)> {
        let done = work()?;
        Ok((done, clock.aside(|| self.counters())))
    }

    /// Keeps what a program of the load has written.
    ///
    /// # Errors
    /// No room; it has written nothing.
    pub(crate) fn keep_file(&self, name: &str, from: &Path) -> Result<()> {
        let Some(tools) = Tools::of(self.plan, self.name) else { return Ok(()) };
        let text = fs::read(from).doing(format_args!("reading {}", from.display()))?;
        tools.keep(name, &text)
    }

    /// What the file system tells of itself.
    fn counters(&self) -> Told {
        let Some(tools) = Tools::of(self.plan, self.name) else { return Told::default() };
        let files = match self.served {
            Served::Volume(volume) => {
                vec![("uext4-stats.json", stats_of(volume).to_string().into_bytes())]
            }
            Served::Mount { dir, daemon: Some(_) } => {
                let mut json = vec![0; STATS_BYTES_MAX];
                // Other servers know no such attribute.
                let len = rustix::fs::getxattr(dir, STATS_XATTR, &mut json[..]);
                len.map(|len| ("uext4-stats.json", json[..len].to_vec())).into_iter().collect()
            }
            Served::Mount { daemon: None, .. } => self.of_kernel(),
            Served::Nothing => Vec::new(),
        };
        Told { tools: Some(tools), files }
    }

    /// What the kernel tells of a file system on that device.
    fn of_kernel(&self) -> Vec<(&'static str, Vec<u8>)> {
        let Some(name) = self.device.and_then(Path::file_name) else { return Vec::new() };
        let name = name.to_string_lossy();
        let journal = jbd2_info::folder(Path::new("/proc/fs/jbd2"), &name);
        let ext4 = Path::new("/proc/fs/ext4").join(&*name);
        let files = [
            (journal.map(|folder| folder.join("info")), "jbd2-info.txt"),
            (Some(ext4.join("mb_groups")), "mb_groups.txt"),
            (Some(ext4.join("mb_stats")), "mb_stats.txt"),
        ];
        // Kernels differ in which they have.
        let read = |(from, to): (Option<PathBuf>, _)| Some((to, fs::read(from?).ok()?));
        files.into_iter().filter_map(read).collect()
    }
}

/// What a file system has told of itself at the end of a load, not kept yet.
#[derive(Default)]
pub(crate) struct Told {
    tools: Option<Tools>,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl Told {
    /// Keeps it.
    ///
    /// # Errors
    /// No room for it.
    pub(crate) fn keep(self) -> Result<()> {
        let Self { tools, files } = self;
        tools
            .iter()
            .try_for_each(|tools| files.iter().try_for_each(|(to, text)| tools.keep(to, text)))
    }
}

/// Statistics of a volume, in the names that a mount tells them by.
fn stats_of(volume: &Volume) -> Value {
    let stats = volume.stats();
    let numbers = |named: &[(&'static str, u64)]| -> Value {
        named.iter().map(|(name, number)| ((*name).to_owned(), Value::from(*number))).collect()
    };
    let histogram = |(name, reading): &(&'static str, uext4::stats::SampledReading)| {
        let steps: Vec<(u64, u64)> = reading.timed.steps().collect();
        let (timed, sum_ns) = (reading.timed.count, reading.timed.sum_ns);
        let value =
            json!({"calls": reading.calls, "timed": timed, "sum_ns": sum_ns, "steps": steps});
        ((*name).to_owned(), value)
    };
    let histograms: Value = stats.histograms.iter().map(histogram).collect();
    json!({
        "open_for_ns": u64::try_from(stats.open_for.as_nanos()).unwrap_or(u64::MAX),
        "counters": numbers(&stats.counters),
        "levels": numbers(&stats.levels),
        "histograms": histograms,
    })
}

/// Where the outputs of a run's tools go.
pub(crate) struct Tools(PathBuf);

impl Tools {
    /// Of a run; `None` where no evidence is kept.
    pub(crate) fn of(plan: &Plan, name: RunName<'_>) -> Option<Self> {
        Some(Self(plan.out.as_ref()?.join("tools").join(name.key())))
    }

    /// Keeps an output.
    pub(crate) fn keep(&self, name: &str, text: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        let kept = fs::create_dir_all(&self.0).and_then(|()| fs::write(&path, text));
        kept.doing(format_args!("keeping {}", path.display()))
    }
}
