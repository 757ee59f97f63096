//! A mount under load for long.
//!
//! # Fault models
//! Memory, threads or descriptors of a daemon that grow with the work that it has done, which shows
//! when all programs have ended; an image that needs more than a replay after `kill -9`, or is not
//! clean after an unmount; anything that hangs: a mount, an unmount, a program, a client of a
//! daemon that was killed while its queues were full.
//!
//! # Not covered
//! What the programs of the load read is not compared: see [`crate::kill9`] and
//! [`crate::programs`]. Growth below the bounds of [`Bounds`].

mod level;
mod mounts;
mod queues;
mod stress;

pub use level::{Bounds, Level};
pub use mounts::mounts;
pub use queues::killed_with_full_queues;

use crate::daemon_mount::Transport;
use crate::programs::Bench;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::time::{Duration, Instant};

/// What a run does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Time under load.
    pub time: Duration,
    /// Time of one load: the programs end then, and the daemon is looked at.
    pub period: Duration,
    /// Mounts and unmounts under load, before that.
    pub mounts: u32,
    /// Chooses the programs.
    pub seed: u64,
}

/// Size of the image in MiB.
const IMAGE_MIB: u64 = 1024;

/// Words of `-o`: bounded memory, so that growth is seen.
const OPTIONS: &str = "allow_other,suid,dev,cache=64M";

/// Why a run cannot be made here, or `None` if it can.
#[must_use]
pub fn why_not() -> Option<&'static str> {
    if !crate::mount::is_root() {
        return Some("needs root");
    }
    if crate::oracle::program("stress-ng").is_none() {
        return Some("needs stress-ng");
    }
    crate::mount::why_no_fuse()
}

/// Makes the whole run by the transports that there are; `tell` gets a line of each part.
///
/// # Errors
/// What went wrong.
pub fn run(binary: &Path, plan: &Plan, tell: &dyn Fn(&str)) -> Result<(), String> {
    let ways: Vec<Transport> =
        Transport::ALL.into_iter().filter(|way| way.why_not().is_none()).collect();
    for way in &ways {
        let waiting = killed_with_full_queues(binary, *way)?;
        tell(&format!("{}: killed with {waiting} requests waiting, no client stuck", way.name()));
    }
    let start = Instant::now();
    mounts(binary, &ways, plan.mounts)?;
    let seconds = start.elapsed().as_secs_f64();
    tell(&format!("{} mounts and unmounts under load, {seconds:.0} s", plan.mounts));
    lives(binary, &ways, plan, tell)
}

/// Mounts one image again and again. The first two thirds are one long life by each transport, in
/// which growth shows; then lives are short, and every second pair ends by SIGKILL under load.
fn lives(
    binary: &Path,
    ways: &[Transport],
    plan: &Plan,
    tell: &dyn Fn(&str),
) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let mut bench = Bench::new(binary, ways[0], IMAGE_MIB)?;
    bench.unmount()?;
    let start = Instant::now();
    let long = plan.time * 2 / 3;
    for number in 0.. {
        let way = ways[number % ways.len()];
        let is_long = number < ways.len();
        let begun = Instant::now();
        let enough = |periods: usize| match is_long {
            true => begun.elapsed() >= long / ways.len() as u32,
            false => periods >= 2,
        };
        let is_killed = !is_long && number / ways.len() % 2 == 1;
        bench.mount_by(way, OPTIONS)?;
        let mut levels = Vec::new();
        let failed = |why: String| format!("life {number} by {}: {why}", way.name());
        while levels.is_empty() || !enough(levels.len()) {
            let stressors = stress::choose(&mut rng);
            stress::period(&bench, &stressors, plan.period).map_err(failed)?;
            let daemon = bench.mounted().ok_or("nothing is mounted")?.daemon();
            levels.push(Level::quiet(daemon, &Bounds::DEFAULT).map_err(failed)?);
        }
        level::check_growth(&levels, &Bounds::DEFAULT).map_err(failed)?;
        if is_killed {
            let moment = Duration::from_millis(rng.random_range(100..1500));
            stress::killed(&bench, &stress::choose(&mut rng), moment).map_err(failed)?;
            bench.bury().map_err(failed)?;
        } else {
            bench.unmount().map_err(failed)?;
        }
        let end = if is_killed { "killed" } else { "unmounted" };
        let (name, range) = (way.name(), level::range(&levels));
        tell(&format!("life {number} by {name}: {} periods, {range}, {end}", levels.len()));
        // Not before each kind of end has been.
        if start.elapsed() >= plan.time && number + 1 >= 4 * ways.len() {
            break;
        }
    }
    Ok(())
}
