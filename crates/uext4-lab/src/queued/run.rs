//! Turns of the load that queues.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uext4_device::{Access, Caching, FileDevice, FileOptions, Submission};

use crate::bootstrap::Bound;
use crate::check;
use crate::error::{Doing, Error, Result};
use crate::load::{Form, Load};
use crate::machine;
use crate::plan::{Event, Figure, Plan, Turn};
use crate::queued::content::read_stamp;
use crate::queued::fio;
use crate::queued::generator::{self, Job, Outcome};
use crate::queued::ring::{DeviceRing, LibraryRing, Op};
use crate::queued::shape::{self, Map, NAME, Shape};
use crate::report::{DEFAULT, Measurement};
use crate::stage::{self, Loop, Medium, Route, Stage};
use crate::storm::counters::Counters;
use crate::storm::fio::is_installed;
use crate::target::{self, Side, Target};

/// What uext4 runs beside its default.
const OWN_VARIANT: &str = "dio_completion=deferred";
/// How the kernel's ext4 is driven.
const BY_RING: &str = "io_uring";
const BY_FIO: &str = "libaio";
/// Blocks that are read back after a turn.
const SAMPLE: usize = 8192;

/// The sides that uext4's default is compared with, and the metrics of that.
const RATIOS: [(Target, &str, [&str; 2]); 3] = [
    (Target::Raw, DEFAULT, ["iops_ratio_raw", "iops_ratio_raw_lower"]),
    (Target::Kernel, BY_RING, ["iops_ratio_io_uring", "iops_ratio_io_uring_lower"]),
    (Target::Kernel, BY_FIO, ["iops_ratio_libaio", "iops_ratio_libaio_lower"]),
];

type Figures = Vec<(&'static str, f64)>;

/// A side of the comparison.
#[derive(Clone, Debug, PartialEq)]
struct Player {
    target: Target,
    variant: String,
}

impl Player {
    fn all(plan: &Plan, targets: &[Target], has_fio: bool) -> Vec<Self> {
        let mut players = Vec::new();
        for &target in targets {
            let mut variants = match target {
                Target::Uext4 => vec![DEFAULT, OWN_VARIANT],
                Target::Kernel if has_fio => vec![BY_RING, BY_FIO],
                Target::Kernel => vec![BY_RING],
                _ => vec![DEFAULT],
            };
            if target == Target::Uext4 {
                variants.extend(plan.variants.iter().map(String::as_str));
                variants.dedup();
            }
            players.extend(variants.iter().map(|v| Self { target, variant: (*v).to_owned() }));
        }
        players
    }

    fn options(&self) -> &str {
        if self.variant == DEFAULT { "" } else { &self.variant }
    }
}

/// All turns of the load on those targets.
///
/// # Errors
/// No room; an early end. Failures of targets are events.
pub(crate) fn run(
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    if targets.contains(&Target::Kernel) && !is_installed() {
        tell(Event::Note(load, "kernel libaio is left out: fio is not installed".into()));
    }
    let players = Player::all(plan, targets, is_installed());
    let bench = Bench::new(plan, load, tell)?;
    for form in plan.forms_of(load) {
        for bytes in plan.blocks_of(load) {
            bench.all_rounds(form, bytes, &players, tell)?;
        }
    }
    plan.go_on()
}

/// What all turns share.
struct Bench<'a> {
    plan: &'a Plan,
    load: &'static Load,
    stage: Stage,
    shape: Shape,
    image: PathBuf,
    /// Where the file lies before the first turn, and so after each.
    map: Map,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, load: &'static Load, tell: &mut dyn FnMut(Event<'_>)) -> Result<Self> {
        let shape = Shape::new(plan.scale);
        let stage = Stage::new(plan.store, plan.folder.as_deref(), shape.image_bytes())?;
        let (need, free) = (shape.image_bytes(), stage::room(stage.folder())?);
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let folder = stage.folder().parent().unwrap_or(stage.folder()).display();
        let text = format!(
            "one file of {:.2} GiB: needs at most {:.1} GiB in {folder}, which has {:.1}",
            gib(shape.file_bytes),
            gib(need),
            gib(free)
        );
        if free < need {
            return Err(Error::new(format!("{}: {text}: use --scale", load.id)));
        }
        tell(Event::Note(load, text));
        let image = shape::make_image(plan, &stage, shape)?;
        let volume = target::open(&image, true, "")?;
        let map = Map::of(&volume)?;
        volume.close()?;
        Ok(Self { plan, load, stage, shape, image, map })
    }

    /// All rounds of a form and a size of requests, and the ratios over them.
    fn all_rounds(
        &self,
        form: Option<Form>,
        bytes: u32,
        players: &[Player],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let mut iops = vec![Vec::new(); players.len()];
        let (load, threads) = (self.load, 1);
        for round in 1..=self.plan.rounds {
            for (player, iops) in players.iter().zip(&mut iops) {
                self.plan.go_on()?;
                let (target, variant) = (player.target, &player.variant);
                tell(Event::Turn { load, target, variant, threads, round });
                let turn = Turn { load, target, form, threads, round };
                match self.play(player, form, bytes, round) {
                    Ok(figures) => {
                        let found = figures.iter().find(|(metric, _)| *metric == "iops");
                        iops.push(found.map(|(_, value)| *value));
                        for (metric, value) in figures {
                            let figure = Figure { variant: variant.clone(), metric, value };
                            tell(Event::Measured(&self.measurement(turn, bytes, &figure)));
                        }
                    }
                    Err(error) => {
                        iops.push(None);
                        let error = Error::new(format!("{variant}: {error}"));
                        tell(Event::Failed(load, target, error));
                    }
                }
            }
        }
        // Round 0: of all rounds together.
        let turn = Turn { load, target: Target::Uext4, form, threads, round: 0 };
        for (metric, value) in ratios(players, &iops) {
            let figure = Figure { variant: DEFAULT.into(), metric, value };
            tell(Event::Measured(&self.measurement(turn, bytes, &figure)));
        }
        Ok(())
    }

    fn measurement(&self, turn: Turn, bytes: u32, figure: &Figure) -> Measurement {
        Measurement { bs: bytes, ..self.plan.measurement(turn, figure) }
    }

    /// One turn, from a cold image to a checked one.
    fn play(&self, player: &Player, form: Option<Form>, bytes: u32, round: u32) -> Result<Figures> {
        let op = if form == Some(Form::Read) { Op::Read } else { Op::Write };
        let job = Job {
            op,
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            file_bytes: self.shape.file_bytes,
            time: self.plan.duration,
            seed: u64::from(round) << 32 | u64::from(bytes),
            map: &self.map,
            stop: &self.plan.stop,
        };
        stage::drop_cached(&self.image)?;
        machine::drop_caches();
        let by_loop = match (self.plan.route, player.target) {
            (Route::Device, _) => Loop::Direct,
            (Route::Natural, Target::Kernel) => Loop::Cached,
            (Route::Natural, _) => Loop::None,
        };
        let medium = Medium::new(&self.image, by_loop)?;
        let (outcome, figures) = match player.target {
            Target::Raw => self.play_raw(job, &medium)?,
            Target::Uext4 => play_library(player, job, &medium)?,
            _ => self.play_kernel(player, job, &medium)?,
        };
        medium.sync()?;
        medium.release()?;
        self.plan.go_on()?;
        self.judge(op, &outcome, u64::from(bytes))?;
        Ok(figures)
    }

    /// The device that the library would use, without the library.
    fn play_raw(&self, job: Job<'_>, medium: &Medium) -> Result<(Outcome, Figures)> {
        let options = FileOptions::auto(Access::ReadWrite);
        let device = FileDevice::open_with(medium.path(), &options).doing("opening the image")?;
        let memory = generator::memory(job.bytes)?;
        let mut ring = DeviceRing::new(device, self.map.clone(), &memory)?;
        measure(|| Counters::of_kernel(None), job, || generator::run(&mut ring, job, memory))
    }

    fn play_kernel(
        &self,
        player: &Player,
        job: Job<'_>,
        medium: &Medium,
    ) -> Result<(Outcome, Figures)> {
        let side = player.target.start(self.plan, &self.stage, medium, "")?;
        let Side::Mount(mount) = &side else { return Err(Error::new("not a mount")) };
        let file = mount.dir().join(NAME);
        let count = || Counters::of_kernel(medium.loop_device());
        let measured = if player.variant == BY_FIO {
            let log = self.stage.source("fio.json");
            measure(count, job, || fio::run(&file, &job, &log))?
        } else {
            let device = open_past_cache(&file)?;
            let map = Map::identity(job.file_bytes);
            let memory = generator::memory(job.bytes)?;
            let mut ring = DeviceRing::new(device, map, &memory)?;
            measure(count, job, || generator::run(&mut ring, job, memory))?
        };
        side.end()?;
        Ok(measured)
    }

    /// Both checkers; the file lies where it did; blocks that were written hold the last write.
    fn judge(&self, op: Op, outcome: &Outcome, bytes: u64) -> Result<()> {
        let volume = check::clean(&self.image)?;
        let map = Map::of(&volume);
        volume.close()?;
        if map? != self.map {
            return Err(Error::new(format!("{NAME} lies elsewhere after it")));
        }
        if op == Op::Read || outcome.last.is_empty() {
            return Ok(());
        }
        // Past all file systems: where the blocks are in the image.
        let image = File::open(&self.image).doing("reading back")?;
        let mut data = vec![0; usize::try_from(bytes).unwrap_or(0)];
        let written = (0_u64..).zip(&outcome.last).filter(|(_, last)| **last > 0);
        let step = outcome.last.len().div_ceil(SAMPLE).max(1);
        for (block, last) in written.step_by(step) {
            let offset = block * bytes;
            let place = self.map.find(offset, bytes);
            let place = place.ok_or_else(|| Error::new("a write that lies in pieces"))?;
            image.read_exact_at(&mut data, place).doing("reading back")?;
            if read_stamp(&data, offset) != Some(u64::from(*last)) {
                return Err(Error::new(format!("{NAME}: the last write at {offset} is lost")));
            }
        }
        Ok(())
    }
}

fn play_library(player: &Player, job: Job<'_>, medium: &Medium) -> Result<(Outcome, Figures)> {
    let volume = target::open(medium.path(), false, player.options())?;
    let memory = generator::memory(job.bytes)?;
    let mut ring = LibraryRing::new(&volume, &memory)?;
    let count = || Counters::of_kernel(medium.loop_device()).with_volume(&volume);
    let deferred = || volume.stats().number("direct_completions_deferred").unwrap_or(0);
    let before = deferred();
    let (outcome, mut figures) = measure(count, job, || generator::run(&mut ring, job, memory))?;
    let share = (deferred() - before) as f64 / outcome.operations as f64;
    figures.push(("deferred_per_op", share));
    drop(ring);
    volume.close()?;
    Ok((outcome, figures))
}

/// A file of a mount, by a ring and past its page cache or not at all.
fn open_past_cache(file: &Path) -> Result<FileDevice> {
    let options = FileOptions {
        caching: Caching::Direct,
        submission: Submission::Uring,
        ..FileOptions::new(Access::ReadWrite)
    };
    let device = FileDevice::open_with(file, &options).doing("opening the file")?;
    match device.notice() {
        Some(notice) => Err(Error::new(notice)),
        None => Ok(device),
    }
}

fn measure(
    count: impl Fn() -> Counters,
    job: Job<'_>,
    work: impl FnOnce() -> Result<Outcome>,
) -> Result<(Outcome, Figures)> {
    let (before, cpu) = (count(), machine::processor_seconds());
    let switches = machine::own_context_switches();
    let outcome = work()?;
    let switches = switches.zip(machine::own_context_switches());
    let switches = switches.map(|(then, now)| now.saturating_sub(then));
    let cpu = cpu.zip(machine::processor_seconds()).map(|(then, now)| now - then);
    let counted = count().since(before);
    if outcome.operations == 0 {
        return Err(Error::new("nothing was done in the time"));
    }
    let operations = outcome.operations as f64;
    let iops = operations / outcome.seconds;
    let per_op = |count: Option<u64>| count.map(|count| count as f64 / operations);
    let figures = [
        ("iops", Some(iops)),
        ("bytes_per_s", Some(iops * job.bytes as f64)),
        ("latency_p50_us", Some(outcome.p50_us)),
        ("latency_p99_us", Some(outcome.p99_us)),
        ("context_switches_per_op", per_op(outcome.context_switches.or(switches))),
        ("system_context_switches_per_op", per_op(counted.context_switches)),
        ("transactions", counted.transactions.map(|count| count as f64)),
        ("cpu_s", cpu),
        ("operations", Some(operations)),
    ];
    let figures = figures.into_iter().filter_map(|(metric, value)| Some((metric, value?)));
    Ok((outcome, figures.collect()))
}

/// uext4's default by each of its peers, paired by round: the mean and its lower bound.
fn ratios(players: &[Player], iops: &[Vec<Option<f64>>]) -> Figures {
    let of = |target: Target, variant: &str| {
        let at = players.iter().position(|p| p.target == target && p.variant == variant)?;
        iops.get(at)
    };
    let mut figures = Vec::new();
    let Some(own) = of(Target::Uext4, DEFAULT) else { return figures };
    for (target, variant, [mean, lower]) in RATIOS {
        let Some(peer) = of(target, variant) else { continue };
        let pairs = own.iter().zip(peer).filter_map(|(own, peer)| Some(((*own)?, (*peer)?)));
        let ratios: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
        if let Some(bound) = Bound::of(&ratios) {
            figures.push((mean, bound.mean));
            figures.extend(bound.lower.map(|value| (lower, value)));
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uext4_plays_both_completions_and_the_kernel_both_interfaces() {
        let plan = Plan { variants: vec!["noatime".into()], ..Plan::default() };
        let targets = [Target::Uext4, Target::Kernel, Target::Raw];
        let names = |has_fio| {
            let players = Player::all(&plan, &targets, has_fio);
            players.into_iter().map(|p| (p.target.name(), p.variant)).collect::<Vec<_>>()
        };
        let named = |(target, variant): (&'static str, &str)| (target, variant.to_owned());
        let mut wanted = [
            ("uext4", DEFAULT),
            ("uext4", OWN_VARIANT),
            ("uext4", "noatime"),
            ("kernel", BY_RING),
            ("kernel", BY_FIO),
            ("raw", DEFAULT),
        ]
        .map(named)
        .to_vec();
        assert_eq!(names(true), wanted);
        wanted.retain(|(_, variant)| variant != BY_FIO);
        assert_eq!(names(false), wanted);
    }

    #[test]
    fn rounds_that_failed_pair_with_nothing() {
        let player = |target, variant: &str| Player { target, variant: variant.into() };
        let players = [player(Target::Uext4, DEFAULT), player(Target::Raw, DEFAULT)];
        let iops = [vec![Some(1.0), None, Some(2.0)], vec![Some(2.0), Some(1.0), Some(4.0)]];
        let half = vec![("iops_ratio_raw", 0.5), ("iops_ratio_raw_lower", 0.5)];
        assert_eq!(ratios(&players, &iops), half);
        assert_eq!(ratios(&players[1..], &iops[1..]), []);
    }
}
