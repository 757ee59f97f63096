//! Turns of the load that stores.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use uext4::{OpenFile, Volume};
use uext4_device::{DaxDevice, DaxMemory};

use crate::bootstrap::Bound;
use crate::check;
use crate::error::{Doing, Error, Result};
use crate::load::Load;
use crate::machine;
use crate::plan::{Event, Figure, Plan, Turn};
use crate::report::DEFAULT;
use crate::stage::{self, Stage};
use crate::stored::generator::{self, Job, Outcome, Sink};
use crate::stored::shape::{self, BLOCK, FILES, Pieces, Places, Shape};
use crate::target::Target;

/// What uext4 runs beside its default.
const OWN_VARIANT: &str = "dax_overwrite=journal";
/// Blocks that are read back after a turn.
const SAMPLE: usize = 8192;

type Figures = Vec<(&'static str, f64)>;

/// A side of the comparison.
#[derive(Clone, Debug, PartialEq)]
struct Player {
    target: Target,
    variant: String,
}

impl Player {
    fn all(plan: &Plan, targets: &[Target]) -> Vec<Self> {
        let mut players = Vec::new();
        for &target in targets.iter().filter(|target| **target != Target::Kernel) {
            let mut variants = vec![DEFAULT];
            if target == Target::Uext4 {
                variants.push(OWN_VARIANT);
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

/// Why the kernel's side cannot be had.
fn kernel_obstacle() -> String {
    let has_one = (0..16).any(|number| Path::new(&format!("/dev/pmem{number}")).exists());
    match has_one {
        true => "a pmem device is somebody's: E2 does not format it".to_owned(),
        false => "DAX of the kernel needs a pmem device, and there is no /dev/pmem*".to_owned(),
    }
}

/// All turns of the load on those targets.
///
/// # Errors
/// No room; a store that cannot be mapped; an early end. Failures of targets are events.
pub(crate) fn run(
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    if targets.contains(&Target::Kernel) {
        tell(Event::Skipped(Target::Kernel, kernel_obstacle()));
    }
    let players = Player::all(plan, targets);
    let bench = Bench::new(plan, load, tell)?;
    for threads in plan.threads_of(load) {
        bench.all_rounds(threads, &players, tell)?;
    }
    Ok(())
}

/// What all turns share.
struct Bench<'a> {
    plan: &'a Plan,
    load: &'static Load,
    /// Holds the image.
    _stage: Stage,
    shape: Shape,
    image: PathBuf,
    /// Where the files lie before the first turn, and so after each.
    places: Places,
}

impl<'a> Bench<'a> {
    fn new(plan: &'a Plan, load: &'static Load, tell: &mut dyn FnMut(Event<'_>)) -> Result<Self> {
        let shape = Shape::new(plan.scale);
        let stage = Stage::new(plan.store, plan.folder.as_deref(), shape.image_bytes())?;
        let (need, free) = (shape.image_bytes(), stage::room(stage.folder())?);
        let mib = |bytes: u64| bytes >> 20;
        let text = format!(
            "{FILES} files of {} MiB: needs {} MiB of memory for the image, {} free",
            mib(shape.file_bytes),
            mib(need),
            mib(free)
        );
        if free < need {
            return Err(Error::new(format!("{}: {text}: use --scale", load.id)));
        }
        tell(Event::Note(load, text));
        let image = shape::make_image(&stage, shape)?;
        let volume = shape::open(&image, "")?;
        let places = Places::of(&volume, shape)?;
        volume.close()?;
        Ok(Self { plan, load, _stage: stage, shape, image, places })
    }

    /// All rounds with a number of threads, and the ratio over them.
    fn all_rounds(
        &self,
        threads: u32,
        players: &[Player],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let mut iops = vec![Vec::new(); players.len()];
        let load = self.load;
        for round in 1..=self.plan.rounds {
            for (player, iops) in players.iter().zip(&mut iops) {
                self.plan.go_on()?;
                let (target, variant) = (player.target, &player.variant);
                tell(Event::Turn { load, target, variant, threads, round });
                let turn = Turn { load, target, form: None, threads, round };
                match self.play(player, threads, round) {
                    Ok(figures) => {
                        let found = figures.iter().find(|(metric, _)| *metric == "iops");
                        iops.push(found.map(|(_, value)| *value));
                        for (metric, value) in figures {
                            let figure = Figure { variant: variant.clone(), metric, value };
                            tell(Event::Measured(&self.plan.measurement(turn, &figure)));
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
        let turn = Turn { load, target: Target::Uext4, form: None, threads, round: 0 };
        for (metric, value) in ratios(players, &iops) {
            let figure = Figure { variant: DEFAULT.into(), metric, value };
            tell(Event::Measured(&self.plan.measurement(turn, &figure)));
        }
        Ok(())
    }

    /// One turn, to a checked image.
    fn play(&self, player: &Player, threads: u32, round: u32) -> Result<Figures> {
        let job = Job {
            threads,
            shape: self.shape,
            time: self.plan.duration,
            seed: round.into(),
            stop: &self.plan.stop,
        };
        let (outcome, figures) = match player.target {
            Target::Raw => {
                let device = shape::map(&self.image)?;
                let sink = RawSink { device, pieces: Pieces::of(&self.places) };
                self.warm_up(&sink)?;
                measure(&sink, job)?
            }
            _ => self.play_library(player, job)?,
        };
        self.plan.go_on()?;
        self.judge(&outcome)?;
        Ok(figures)
    }

    /// Writes each block once: pages that the kernel maps when they are first touched, and what is
    /// learnt of each file, are no part of the rate.
    fn warm_up(&self, sink: &dyn Sink) -> Result<()> {
        let data = vec![0x32; BLOCK];
        let blocks = self.shape.blocks();
        (0..FILES * blocks).try_for_each(|place| sink.store(place / blocks, place % blocks, &data))
    }

    fn play_library(&self, player: &Player, job: Job<'_>) -> Result<(Outcome, Figures)> {
        let volume = shape::open(&self.image, player.options())?;
        let sink = LibrarySink { files: shape::files(&volume)?, volume: volume.clone() };
        self.warm_up(&sink)?;
        volume.sync()?;
        let count = |name| volume.stats().number(name).unwrap_or(0);
        let names = [
            ("handles", "handles"),
            ("dax_overwrite_handles", "handles_of_overwrites"),
            ("dax_overwrites", "dax_overwrites"),
            ("transactions", "transactions"),
        ];
        let before = names.map(|(name, _)| count(name));
        let (outcome, mut figures) = measure(&sink, job)?;
        for ((name, metric), before) in names.into_iter().zip(before) {
            figures.push((metric, (count(name) - before) as f64));
        }
        let slow = outcome.operations - (count("dax_overwrites") - before[2]);
        figures.push(("slow_writes", slow as f64));
        drop(sink);
        volume.close()?;
        Ok((outcome, figures))
    }

    /// Both checkers; the files lie where they did; blocks that were written hold the last write.
    fn judge(&self, outcome: &Outcome) -> Result<()> {
        let volume = check::clean(&self.image)?;
        let places = Places::of(&volume, self.shape);
        volume.close()?;
        if places? != self.places {
            return Err(Error::new("the files lie elsewhere after it"));
        }
        // Past the file system: where the blocks are in the image.
        let image = File::open(&self.image).doing("reading back")?;
        let mut data = vec![0; BLOCK];
        let blocks = self.shape.blocks();
        let step = outcome.last.len().div_ceil(SAMPLE).max(1);
        let written = outcome.last.iter().enumerate().filter(|(_, last)| **last > 0);
        for (place, last) in written.step_by(step) {
            let at = self.places.0[place / blocks][place % blocks];
            image.read_exact_at(&mut data, at).doing("reading back")?;
            if !generator::holds(&data, place, *last) {
                let (file, block) = (shape::name(place / blocks), place % blocks);
                return Err(Error::new(format!("{file}: the last write of block {block} is lost")));
            }
        }
        Ok(())
    }
}

/// The ordinary write of the library.
struct LibrarySink {
    files: Vec<OpenFile>,
    volume: Volume,
}

impl Sink for LibrarySink {
    fn store(&self, file: usize, block: usize, data: &[u8]) -> Result<()> {
        let count = self.files[file].write_at((block * BLOCK) as u64, data)?;
        if count == data.len() { Ok(()) } else { Err(Error::new("a write was short")) }
    }

    fn flush(&self) -> Result<()> {
        Ok(self.volume.sync()?)
    }
}

/// The stores alone, where the blocks lie.
struct RawSink {
    device: DaxDevice,
    pieces: Pieces,
}

impl Sink for RawSink {
    fn store(&self, file: usize, block: usize, data: &[u8]) -> Result<()> {
        self.device.store(self.pieces.place(file, block), data).doing("a store")
    }

    fn flush(&self) -> Result<()> {
        self.device.persist().doing("a flush")
    }
}

fn measure(sink: &dyn Sink, job: Job<'_>) -> Result<(Outcome, Figures)> {
    let cpu = machine::processor_seconds();
    let outcome = generator::run(sink, job)?;
    let cpu = cpu.zip(machine::processor_seconds()).map(|(then, now)| now - then);
    if outcome.operations == 0 {
        return Err(Error::new("nothing was done in the time"));
    }
    let iops = outcome.operations as f64 / outcome.seconds;
    let figures = [
        ("iops", Some(iops)),
        ("bytes_per_s", Some(iops * BLOCK as f64)),
        ("latency_p50_us", Some(outcome.latency_us(0.5))),
        ("latency_p99_us", Some(outcome.latency_us(0.99))),
        ("latency_p999_us", Some(outcome.latency_us(0.999))),
        ("cpu_s", cpu),
        ("operations", Some(outcome.operations as f64)),
    ];
    let figures = figures.into_iter().filter_map(|(metric, value)| Some((metric, value?)));
    Ok((outcome, figures.collect()))
}

/// uext4's default by the floor, paired by round: the mean and its lower bound.
fn ratios(players: &[Player], iops: &[Vec<Option<f64>>]) -> Figures {
    let of = |target: Target| {
        let at = players.iter().position(|p| p.target == target && p.variant == DEFAULT)?;
        iops.get(at)
    };
    let (Some(own), Some(peer)) = (of(Target::Uext4), of(Target::Raw)) else { return Vec::new() };
    let pairs = own.iter().zip(peer).filter_map(|(own, peer)| Some(((*own)?, (*peer)?)));
    let ratios: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
    let Some(bound) = Bound::of(&ratios) else { return Vec::new() };
    let mean = Some(("iops_ratio_raw", bound.mean));
    mean.into_iter().chain(bound.lower.map(|value| ("iops_ratio_raw_lower", value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uext4_plays_with_and_without_a_journal() {
        let plan = Plan::default();
        let players = Player::all(&plan, &[Target::Uext4, Target::Kernel, Target::Raw]);
        let names: Vec<_> = players.iter().map(|p| (p.target.name(), &*p.variant)).collect();
        assert_eq!(names, [("uext4", DEFAULT), ("uext4", OWN_VARIANT), ("raw", DEFAULT)]);
        let iops = [vec![Some(2.0), None], vec![None, None], vec![Some(4.0), Some(1.0)]];
        assert_eq!(ratios(&players, &iops), [("iops_ratio_raw", 0.5)]);
    }
}
