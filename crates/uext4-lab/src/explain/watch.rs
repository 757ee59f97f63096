//! One run that is looked at while it is made.
//!
//! Invariants: whatever looks has ended when [`watch`] returns. A run that is looked at gives no
//! figures: looking costs.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use uext4::Volume;

use crate::error::{Doing, Error, Result};
use crate::explain::counts::{Counts, Sources};
use crate::explain::profiler::Profiler;
use crate::explain::sampler::{Sampled, Sampler};
use crate::explain::stacks::Keep;
use crate::explain::tasks::{self, OBSERVER, Wanted};
use crate::mount::Mount;
use crate::stage::Medium;
use crate::target::Opened;

/// What a run works on, as far as it can be looked into.
#[derive(Clone, Copy, Default)]
pub(crate) struct Subject<'a> {
    /// A volume of this process.
    pub(crate) volume: Option<&'a Volume>,
    pub(crate) mount: Option<&'a Mount>,
    /// Whether programs make the load.
    pub(crate) has_programs: bool,
    /// The block device below, if there is one.
    pub(crate) device: Option<&'a Path>,
}

impl<'a> Subject<'a> {
    /// What a target has opened on a medium.
    pub(crate) fn of(opened: &'a Opened, medium: &'a Medium) -> Self {
        let device = medium.block_device();
        match opened {
            Opened::Library(volume) => Self { volume: Some(volume), device, ..Self::default() },
            Opened::Mount(mount) => {
                Self { mount: Some(mount), has_programs: true, device, ..Self::default() }
            }
        }
    }

    /// A volume of this process.
    pub(crate) fn volume(volume: &'a Volume, medium: &'a Medium) -> Self {
        Self { volume: Some(volume), device: medium.block_device(), ..Self::default() }
    }

    /// No file system.
    pub(crate) fn raw(medium: &'a Medium) -> Self {
        Self { device: medium.block_device(), ..Self::default() }
    }
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(super) sampled: Sampled,
    pub(super) counts: Counts,
    /// Stacks, folded.
    pub(super) profile: Option<String>,
    /// What the profile is made by, or why there is none.
    pub(super) profiled_by: String,
    /// Processor time that looking took.
    pub(super) looking_cpu_s: f64,
}

/// Sets a flag at its end, whatever that is.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does the work and looks at it. What is written meanwhile lies in `folder`, which is the run's:
/// it goes with the run, however that ends.
///
/// # Errors
/// Those of the work.
pub(crate) fn watch<T>(
    subject: Subject<'_>,
    folder: &Path,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Seen)> {
    let folder = tempfile::tempdir_in(folder).doing("making a folder")?;
    let profiler = Profiler::begin(folder.path(), subject.has_programs);
    let sources = Sources {
        volume: subject.volume,
        mount: subject.mount.map(Mount::dir),
        device: subject.device,
    };
    sources.switch_on();
    let wanted = Wanted {
        caller: rustix::thread::gettid().as_raw_nonzero().get(),
        before: tasks::own_threads(),
        has_programs: subject.has_programs,
        daemons: subject.mount.map(Mount::daemons).unwrap_or_default(),
        observer: profiler.as_ref().ok().and_then(Profiler::process),
        device: sources.device_name(),
    };
    let before = sources.read();
    let sampler = Sampler::new(sources, &wanted);
    let stop = AtomicBool::new(false);
    let looked = thread::scope(|scope| {
        let observer = thread::Builder::new().name(OBSERVER.to_owned());
        let look = || sampler.run(&stop);
        let observer = observer.spawn_scoped(scope, look).doing("starting a thread")?;
        let done = {
            let _at_end = AtEnd(&stop);
            work()
        };
        let sampled = observer.join().map_err(|_| Error::new("the observer panicked"))?;
        Ok::<_, Error>((done, sampled))
    });
    sources.switch_off();
    let (done, sampled) = looked?;
    let counts = sources.read().since(&before);
    let keep = Keep { processes: sampled.processes.clone(), device: wanted.device };
    let mut looking_cpu_s = sampled.cpu_s;
    let (profile, profiled_by) = match profiler.and_then(|profiler| profiler.end(&keep)) {
        Ok(profile) => {
            looking_cpu_s += profile.cpu_s;
            match profile.folded.is_empty() {
                true => (None, format!("no stack was seen in the time by {}", profile.by)),
                false => (Some(profile.folded), profile.by),
            }
        }
        Err(why) => (None, why.to_string()),
    };
    Ok((done?, Seen { sampled, counts, profile, profiled_by, looking_cpu_s }))
}
