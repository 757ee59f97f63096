//! Recovers one state and judges what comes of it.
//!
//! # What each state must show
//! - uext4 opens it for writing, replays, cleans up orphans and closes it.
//! - The checker finds nothing: no error, no warning.
//! - The volume shows what the model demands and nothing that it forbids: [`History::check`].
//!
//! Of a part of the states also: the power fails **during the recovery**, and whatever that leaves
//! is recovered and judged in the same way; it fails during the commit of an overlay; what e2fsck
//! and the kernel make of the state (see [`super::thorough`] and [`super::kernel`]).
//!
//! # Cost
//! Most states of a run recover to a volume that another one recovered to. Only the recovery is
//! paid for these: the digest of the blocks in use tells.

use super::digest::{self, Used};
use super::window::{CrashState, Depth, Windows};
use super::{kernel, thorough};
use crate::encrypted::with_key;
use crate::external;
use crate::model::{History, Mark};
use crate::oracle::Oracle;
use crate::overlaid;
use crate::run::Run;
use crate::view::View;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uext4::{MountOptions, Volume};
use uext4_device::{MemoryDevice, RecordingDevice, SharedDevice};

/// Judges the structure of an image at rest.
pub trait Judge {
    /// What is wrong with it, one line each.
    ///
    /// # Errors
    /// The judge itself failed.
    fn findings(&self, image: &MemoryDevice) -> Result<Vec<String>, String>;
}

/// The checker of this project.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checker;

impl Judge for Checker {
    fn findings(&self, image: &MemoryDevice) -> Result<Vec<String>, String> {
        let options = uext4_fsck::Options { threads: 1, findings_max: 10 };
        let (data, journal) = external::split(&(Arc::new(image.snapshot()) as SharedDevice));
        let report = uext4_fsck::check_with_journal(&*data, journal.as_deref(), &options, &mut ())
            .map_err(|error| format!("checker: {error}"))?;
        Ok(report.findings.iter().map(|finding| format!("checker: {finding}")).collect())
    }
}

/// The checker, after a volume whose journal was aborted: that asks for a check, which is a finding
/// of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckerAfterErrors;

impl Judge for CheckerAfterErrors {
    fn findings(&self, image: &MemoryDevice) -> Result<Vec<String>, String> {
        let mut found = Checker.findings(image)?;
        found.retain(|line| !line.ends_with("[superblock.errors]"));
        Ok(found)
    }
}

impl Judge for Oracle {
    fn findings(&self, image: &MemoryDevice) -> Result<Vec<String>, String> {
        let path = self.put(image, "judged.img").map_err(|error| error.to_string())?;
        Ok(crate::oracle::expect_clean(&path).err().into_iter().collect())
    }
}

/// Which states also get the slower judges.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Every so many different recovered volumes: crashes during the recovery; 0: none.
    pub nested: usize,
    /// Every so many: e2fsck's recovery; 0: none.
    pub e2fsck: usize,
    /// Every so many: the kernel's; 0: none.
    pub kernel: usize,
    /// Different recovered volumes so far, of all runs that share this.
    pub count: Arc<AtomicUsize>,
}

/// What judging the states of a run has come to.
#[derive(Debug, Default)]
pub struct Judged {
    /// States that were recovered.
    pub states: usize,
    /// Of these, states of crashes during a recovery.
    pub nested: usize,
    /// States recovered by e2fsck as well.
    pub e2fsck: usize,
    /// States recovered by the kernel as well.
    pub kernel: usize,
    /// Digests of what the recovered volumes show.
    pub views: HashSet<u64>,
    /// State and what is wrong with it.
    pub faults: Vec<(String, String)>,
}

/// Judges the states of one run.
pub(super) struct RunJudge<'a> {
    run: &'a Run,
    judge: &'a dyn Judge,
    samples: Samples,
    /// Images that have been recovered, with the number of syncs that had returned.
    images: HashSet<(u128, usize)>,
    /// Recovered volumes that have been looked at, with the number of syncs that had returned.
    recovered: HashSet<(u128, usize)>,
    pub(super) judged: Judged,
}

/// A volume after its recovery.
struct RecoveredState {
    device: Arc<MemoryDevice>,
    digest: u128,
}

impl<'a> RunJudge<'a> {
    pub(super) fn new(run: &'a Run, judge: &'a dyn Judge, samples: Samples) -> RunJudge<'a> {
        RunJudge {
            run,
            judge,
            samples,
            images: HashSet::new(),
            recovered: HashSet::new(),
            judged: Judged::default(),
        }
    }

    /// Judges a state; true if it had a fault.
    ///
    /// # Errors
    /// The machinery failed.
    pub(super) fn judge(&mut self, state: &CrashState, rng: &mut StdRng) -> Result<bool, String> {
        let marks: Vec<Mark> =
            self.run.recording.marks_before(state.moment).map(Mark::from_number).collect();
        if !self.images.insert((state.digest, marks.len())) {
            return Ok(false);
        }
        let before = self.judged.faults.len();
        let image = match self.run.shown(&state.device) {
            Ok(image) => image,
            Err(error) => {
                self.fault(&state.name, vec![error]);
                return Ok(true);
            }
        };
        let is_new = self.judge_image(&image, &marks, &state.name)?;
        if is_new {
            let number = self.samples.count.fetch_add(1, Ordering::Relaxed) + 1;
            let is_due = |every: usize| every > 0 && number.is_multiple_of(every);
            if is_due(self.samples.nested) {
                self.judge_recovery(state, &marks, rng)?;
                self.judge_commits(state, &image, rng)?;
            }
            // Others take a torn transaction of an asynchronous commit for a damaged log.
            let others = !self.run.history.rules.data_may_be_late;
            if others && is_due(self.samples.e2fsck) {
                self.judged.e2fsck += 1;
                let device = image.snapshot();
                let found = thorough::judge_image(device, &self.run.history, marks.clone())?;
                self.fault(&state.name, found);
            }
            if others && is_due(self.samples.kernel) && !kernel::lacks_key(&image) {
                self.judged.kernel += 1;
                let found = kernel::judge(&image, &self.run.history, &marks)?;
                self.fault(&state.name, found);
            }
        }
        Ok(self.judged.faults.len() > before)
    }

    fn fault(&mut self, state: &str, found: Vec<String>) {
        self.judged.faults.extend(found.into_iter().map(|what| (state.to_owned(), what)));
    }

    /// The power fails during the commit of an overlay in this state.
    fn judge_commits(
        &mut self,
        state: &CrashState,
        image: &MemoryDevice,
        rng: &mut StdRng,
    ) -> Result<(), String> {
        let Some(base) = &self.run.base else { return Ok(()) };
        let (states, found) = overlaid::cut_commits(&state.device, base, image, rng.random())?;
        self.judged.nested += states;
        self.fault(&state.name, found);
        Ok(())
    }

    /// Recovers an image and judges what comes of it; true if that is a volume not seen yet.
    fn judge_image(
        &mut self,
        image: &MemoryDevice,
        marks: &[Mark],
        name: &str,
    ) -> Result<bool, String> {
        self.judged.states += 1;
        let device = Arc::new(image.snapshot());
        let recovered = match guarded(|| recover(device.clone(), device)) {
            Ok(recovered) => recovered,
            Err(error) => {
                self.fault(name, vec![format!("uext4's recovery: {error}")]);
                return Ok(false);
            }
        };
        if !self.recovered.insert((recovered.digest, marks.len())) {
            return Ok(false);
        }
        self.judge_recovered(&recovered.device, marks, name)
    }

    /// Judges a volume at rest; true if it shows something new.
    fn judge_recovered(
        &mut self,
        device: &Arc<MemoryDevice>,
        marks: &[Mark],
        name: &str,
    ) -> Result<bool, String> {
        let structure = self.judge.findings(device)?;
        self.fault(name, structure);
        match guarded(|| look(device.clone())) {
            Ok((view, digest)) => {
                let found = self.run.history.check(marks, &view);
                self.fault(name, found);
                Ok(self.judged.views.insert(digest))
            }
            Err(error) => {
                self.fault(name, vec![format!("after uext4's recovery: {error}")]);
                Ok(false)
            }
        }
    }

    /// The power fails again, during the recovery of this state.
    fn judge_recovery(
        &mut self,
        state: &CrashState,
        marks: &[Mark],
        rng: &mut StdRng,
    ) -> Result<(), String> {
        const STATES_MAX: usize = 24;
        let recorder = Arc::new(RecordingDevice::over(state.device.snapshot()));
        let parts = self.run.split_recorded(&recorder)?;
        if guarded(|| open(parts)?.close().map_err(|error| error.to_string())).is_err() {
            // Told of by the first recovery.
            return Ok(());
        }
        let recording = recorder.recording();
        let mut windows = Windows::of_image_at(&recording, self.run.image_start());
        let mut left = STATES_MAX;
        let mut failed = Ok(());
        while let Some(window) = windows.advance() {
            let depth = Depth { exhaustive_max: 2, random: 1 };
            windows.states(&window, depth, rng, &mut |inner| {
                if self.images.insert((inner.digest, marks.len())) {
                    self.judged.nested += 1;
                    let name = format!("{}; recovery {}", state.name, inner.name);
                    let image = self.run.shown(&inner.device);
                    if let Err(error) =
                        image.and_then(|image| self.judge_image(&image, marks, &name))
                    {
                        failed = Err(error);
                    }
                }
                left -= 1;
                left > 0 && failed.is_ok()
            });
            if left == 0 || failed.is_err() {
                break;
            }
        }
        failed
    }
}

/// A panic of the engine is a fault like others.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("(no message)")))
    })
}

fn open(parts: (SharedDevice, Option<SharedDevice>)) -> Result<Volume, String> {
    let options = MountOptions { cache_bytes: 32 << 20, ..MountOptions::default() };
    let volume =
        external::open(parts, with_key(options)).map_err(|error| format!("open: {error}"))?;
    match volume.read_only_reason() {
        Some(reason) => Err(format!("opened read-only: {reason}")),
        None => Ok(volume),
    }
}

/// Opens and closes; `memory` is what `device` stands on.
fn recover(device: SharedDevice, memory: Arc<MemoryDevice>) -> Result<RecoveredState, String> {
    let volume = open(external::split(&device))?;
    let closed = volume.clone();
    volume.close().map_err(|error| format!("close: {error}"))?;
    let digest = digest::of_used(&memory, &Used::of(&closed, &memory)?);
    Ok(RecoveredState { device: memory, digest })
}

/// What a volume at rest shows, and the digest of that.
fn look(device: SharedDevice) -> Result<(View, u64), String> {
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume = external::open(external::split(&device), with_key(options))
        .map_err(|error| format!("open: {error}"))?;
    let view = View::read(&volume)?;
    let space = volume.stat_fs();
    let digest = digest::of_view(&view, (space.blocks_free, space.inodes_free));
    Ok((view, digest))
}

/// Recovers an image, whose journal may have been aborted, and judges it by the checker and the
/// model.
///
/// # Errors
/// The machinery failed.
pub fn judge_recovered(
    image: &MemoryDevice,
    history: &History,
    marks: &[Mark],
) -> Result<Vec<String>, String> {
    let device = Arc::new(image.snapshot());
    match guarded(|| recover(device.clone(), device)) {
        Ok(recovered) => at_rest(&CheckerAfterErrors, &recovered.device, history, marks),
        Err(error) => Ok(vec![format!("uext4's recovery: {error}")]),
    }
}

/// Judges one image at rest by the checker and the model.
///
/// # Errors
/// The machinery failed.
pub fn judge_at_rest(
    image: &MemoryDevice,
    history: &History,
    marks: &[Mark],
) -> Result<Vec<String>, String> {
    at_rest(&Checker, image, history, marks)
}

fn at_rest(
    judge: &dyn Judge,
    image: &MemoryDevice,
    history: &History,
    marks: &[Mark],
) -> Result<Vec<String>, String> {
    let mut found = judge.findings(image)?;
    match guarded(|| look(Arc::new(image.snapshot()))) {
        Ok((view, _)) => found.extend(history.check(marks, &view)),
        Err(error) => found.push(error),
    }
    Ok(found)
}
