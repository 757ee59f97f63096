//! The crash test: what a loss of power may leave behind, recovered and judged.
//!
//! # Fault model
//! The power fails at any moment of a recorded run. The medium then holds every write that a
//! completed flush or FUA promises, and of the other writes that were issued any subset, torn: see
//! [`window`]. What each state must show: [`judge`].
//!
//! | module | what it is |
//! |---|---|
//! | [`window`] | the states that a recording allows |
//! | [`digest`] | equal images and equal recovered volumes |
//! | [`judge`] | recovery, checker, model; crashes during the recovery |
//! | [`thorough`] | the same with e2fsck's recovery beside ours |
//! | [`kernel`] | the kernel's recovery |
//! | [`unjournaled`] | file systems without a journal, which have rules of their own |
//! | [`campaign`] | runs of all categories, one after the other, and their table |
//!
//! # Counting
//! A state counts once, by what its recovered volume shows ([`digest`]): names, inodes, attributes,
//! bytes, free counts. Many images that recover to the same are one state.
//!
//! # Not covered
//! Media that lose what they had promised; failing reads and writes (the fault harness has these).

pub mod campaign;
pub mod digest;
pub mod judge;
pub mod kernel;
pub mod thorough;
pub mod unjournaled;
pub mod window;

pub use campaign::{Campaign, Summary, Tally};
pub use judge::{
    Checker, CheckerAfterErrors, Judge, Judged, Samples, judge_at_rest, judge_recovered,
};
pub use thorough::judge_image;
pub use window::Depth;

use crate::run::Run;
use judge::RunJudge;
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::path::PathBuf;
use std::time::Instant;
use uext4_device::{MemoryDevice, Recording};
use window::Windows;

/// How much of one run to judge.
#[derive(Clone, Debug)]
pub struct Effort {
    /// Stop before this moment.
    pub until: Option<Instant>,
    /// Stop after this many faults; 0: never.
    pub faults_max: usize,
    /// States to recover at most; 0: all.
    pub states_max: usize,
    /// How much of a window that is looked at closely.
    pub depth: Depth,
    /// Every so many windows are looked at closely, of the others only all and none of the writes.
    pub close_every: usize,
    /// Which states get the slower judges.
    pub samples: Samples,
    /// Where the images of faults are kept.
    pub keep: Option<PathBuf>,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort {
            until: None,
            faults_max: 5,
            states_max: 0,
            depth: Depth { exhaustive_max: 6, random: 2 },
            close_every: 1,
            samples: Samples::default(),
            keep: None,
        }
    }
}

/// Judges the states of a run.
///
/// # Errors
/// The machinery failed.
pub fn judge_run(
    run: &Run,
    seed: u64,
    judge: &dyn Judge,
    effort: &Effort,
) -> Result<Judged, String> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x0ca5_cade);
    let mut judged = RunJudge::new(run, judge, effort.samples.clone());
    let mut windows = Windows::of_image_at(&run.recording, run.image_start());
    let mut failed = Ok(());
    while let Some(window) = windows.advance() {
        let close = (window.index as u64 + seed).is_multiple_of(effort.close_every.max(1) as u64);
        let depth = if close { effort.depth } else { Depth { exhaustive_max: 0, random: 0 } };
        let mut go_on = true;
        // The judge has its own numbers, so that a state does not depend on those before it.
        let mut inner = StdRng::seed_from_u64(seed ^ (window.index as u64) << 20);
        windows.states(&window, depth, &mut rng, &mut |state| {
            match judged.judge(&state, &mut inner) {
                Ok(true) => keep(effort, seed, &state),
                Ok(false) => {}
                Err(error) => failed = Err(error),
            }
            let found = judged.judged.faults.len();
            let enough = effort.faults_max > 0 && found >= effort.faults_max
                || effort.states_max > 0 && judged.judged.states >= effort.states_max;
            let late = effort.until.is_some_and(|until| Instant::now() >= until);
            go_on = !enough && !late && failed.is_ok();
            go_on
        });
        if !go_on {
            break;
        }
    }
    failed.map(|()| judged.judged)
}

/// Calls `visit` with the states that a loss of power could leave during a recording, and their
/// names, until it returns false.
pub fn each_state(
    recording: &Recording,
    depth: Depth,
    seed: u64,
    visit: &mut dyn FnMut(&MemoryDevice, &str) -> bool,
) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut windows = Windows::new(recording);
    let mut goes_on = true;
    while let Some(window) = windows.advance().filter(|_| goes_on) {
        windows.states(&window, depth, &mut rng, &mut |state| {
            goes_on = visit(&state.device, &state.name);
            goes_on
        });
    }
}

/// Judges the states of a run under the weaker fault model of `barrier=0`: the process or the
/// machine ends, but the medium has all writes in order up to some point. Every `step`th of them.
///
/// # Errors
/// The machinery failed.
pub fn judge_in_order(
    run: &Run,
    seed: u64,
    judge: &dyn Judge,
    step: usize,
) -> Result<Judged, String> {
    let mut judged = RunJudge::new(run, judge, Samples::default());
    let mut failed = Ok(());
    let mut rng = StdRng::seed_from_u64(seed);
    window::prefixes(&run.recording, step, &mut |state| {
        failed = judged.judge(&state, &mut rng).map(drop);
        failed.is_ok()
    });
    failed.map(|()| judged.judged)
}

fn keep(effort: &Effort, seed: u64, state: &window::CrashState) {
    let Some(folder) = &effort.keep else { return };
    let name: String =
        state.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = folder.join(format!("seed-{seed}-{name}.img"));
    if let Err(error) = state.device.save(&path) {
        println!("cannot keep {}: {error}", path.display());
    }
}
