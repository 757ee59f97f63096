//! One run while its load runs: what looks at it, and what its tools said.
//!
//! What: [`Scene::during`] wraps the measured part of every run of every load. Whatever observes
//! runs (profiles, waits) begins and ends there; counters of the kernel and of the engine are
//! copied at its end, outside the measured time.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use uext4::Volume;

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
    /// Does the measured part of a run, and keeps what is to be seen at its end.
    ///
    /// # Errors
    /// Those of the work; no room for the evidence.
    pub(crate) fn during<T>(self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work()?;
        self.keep_counters()?;
        Ok(done)
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

    fn keep_counters(&self) -> Result<()> {
        let Some(tools) = Tools::of(self.plan, self.name) else { return Ok(()) };
        match self.served {
            Served::Volume(volume) => {
                let text = stats_of(volume).to_string();
                tools.keep("uext4-stats.json", text.as_bytes())
            }
            Served::Mount { dir, daemon: Some(_) } => {
                let mut json = vec![0; STATS_BYTES_MAX];
                // Other servers know no such attribute.
                match rustix::fs::getxattr(dir, STATS_XATTR, &mut json[..]) {
                    Ok(len) => tools.keep("uext4-stats.json", &json[..len]),
                    Err(_) => Ok(()),
                }
            }
            Served::Mount { daemon: None, .. } => self.keep_kernel(&tools),
            Served::Nothing => Ok(()),
        }
    }

    /// What the kernel tells of a file system on that device.
    fn keep_kernel(&self, tools: &Tools) -> Result<()> {
        let Some(name) = self.device.and_then(Path::file_name) else { return Ok(()) };
        let name = name.to_string_lossy();
        let journal = jbd2_info::folder(Path::new("/proc/fs/jbd2"), &name);
        let ext4 = Path::new("/proc/fs/ext4").join(&*name);
        let files = [
            (journal.map(|folder| folder.join("info")), "jbd2-info.txt"),
            (Some(ext4.join("mb_groups")), "mb_groups.txt"),
            (Some(ext4.join("mb_stats")), "mb_stats.txt"),
        ];
        files.into_iter().try_for_each(|(from, to)| {
            // Kernels differ in which they have.
            match from.and_then(|path| fs::read(path).ok()) {
                Some(text) => tools.keep(to, &text),
                None => Ok(()),
            }
        })
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
