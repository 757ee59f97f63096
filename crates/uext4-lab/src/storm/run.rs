//! Turns of a load that syncs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use uext4::Volume;
use uext4_device::{FileDevice, MeteredDevice};

use crate::check;
use crate::error::{Doing, Error, Result};
use crate::load::{Load, Work};
use crate::machine;
use crate::plan::{Event, Figure, Plan, Turn};
use crate::report::DEFAULT;
use crate::stage::{self, Loop, Medium, Route, Stage};
use crate::storm::base;
use crate::storm::content::{self, ReadBlock};
use crate::storm::counters::{CAUSES, Counters};
use crate::storm::fio;
use crate::storm::generator::{self, Limits, Outcome};
use crate::storm::raw::{self, Raw};
use crate::storm::shape::{BLOCK, JOURNAL_MIB, Shape};
use crate::storm::sink::{Directory, Library};
use crate::target::{self, Side, Target};

/// A side with a fixed number of writes that is slower than planned is cut off after this many
/// times the duration of the plan.
const PATIENCE: u32 = 6;
/// Mount options of the report of the collapse.
const OWN_OPTIONS: &str = "noatime,nodiratime,data=ordered";
/// What the kernel's side of E0 runs beside its default.
const KERNEL_VARIANTS: [&str; 2] = [DEFAULT, "dioread_lock"];

/// A side of the comparison.
#[derive(Clone, Debug)]
struct Player {
    target: Target,
    /// `default`, or options that are added.
    variant: String,
    options: String,
}

impl Player {
    fn new(load: &Load, target: Target, variant: &str) -> Self {
        let shared = Shape::new(load.work, 1, JOURNAL_MIB, 1.0).shared;
        let words = [if shared { "" } else { OWN_OPTIONS }, variant];
        let used = words.into_iter().filter(|word| !word.is_empty() && *word != DEFAULT);
        let options = used.collect::<Vec<&str>>().join(",");
        Self { target, variant: variant.to_owned(), options }
    }

    fn all(plan: &Plan, load: &Load, targets: &[Target]) -> Vec<Self> {
        let mut players = Vec::new();
        for &target in targets {
            let mut variants = vec![DEFAULT];
            if target.is_own() {
                variants.extend(plan.variants.iter().map(String::as_str));
            } else if target == Target::Kernel && load.work == Work::SyncOwn {
                variants = KERNEL_VARIANTS.to_vec();
            }
            players.extend(variants.into_iter().map(|v| Self::new(load, target, v)));
        }
        players
    }
}

/// All turns of a load on those targets.
///
/// # Errors
/// No room; an early end. Failures of targets are events.
pub(crate) fn run(
    plan: &Plan,
    load: &'static Load,
    targets: &[Target],
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    let players = Player::all(plan, load, targets);
    let is_shared = Shape::new(load.work, 1, JOURNAL_MIB, 1.0).shared;
    let journals: &[u32] = if is_shared { &[JOURNAL_MIB] } else { &plan.journals };
    for threads in plan.threads_of(load) {
        for &journal in journals {
            let shape = Shape::new(load.work, threads, journal, plan.scale);
            let stage = Stage::new(plan.store, plan.folder.as_deref(), shape.image_bytes())?;
            room(plan, load, &shape, &stage, tell)?;
            let base = base::make(plan, &stage, &shape)?;
            let mut bench = Bench { plan, load, stage, shape, base, operations: None };
            bench.calibrate(tell)?;
            for round in 1..=plan.rounds {
                for player in &players {
                    plan.go_on()?;
                    let turn = Turn { load, target: player.target, form: None, threads, round };
                    bench.tell_turn(player, turn, tell);
                }
            }
        }
    }
    plan.go_on()
}

/// Tells how much space the turns need, and whether it is there.
fn room(
    plan: &Plan,
    load: &'static Load,
    shape: &Shape,
    stage: &Stage,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    let (need, free) = (shape.space_bytes(plan.operations), stage::room(stage.folder())?);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let folder = stage.folder().parent().unwrap_or(stage.folder()).display();
    let text = format!(
        "{} threads, journal {} MiB: needs at most {:.1} GiB in {folder}, which has {:.1}",
        shape.threads,
        shape.journal_mib,
        gib(need),
        gib(free)
    );
    if free < need {
        return Err(Error::new(format!("{}: {text}: use --scale or --ops", load.id)));
    }
    tell(Event::Note(load, text));
    Ok(())
}

/// What the turns of a number of threads and a journal share.
struct Bench<'a> {
    plan: &'a Plan,
    load: &'static Load,
    stage: Stage,
    shape: Shape,
    base: PathBuf,
    /// Writes of each thread, where every side makes the same number.
    operations: Option<u32>,
}

impl Bench<'_> {
    /// Finds how many writes each thread makes: as many as uext4 does in the time of the plan.
    fn calibrate(&mut self, tell: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let direct = self.store_takes_direct_io()?;
        if let Some(direct) = direct {
            let text = if direct { "pass the page cache by" } else { "go through the page cache" };
            tell(Event::Note(self.load, format!("loop devices {text}")));
        }
        if self.shape.shared {
            return Ok(());
        }
        let blocks = self.shape.blocks();
        let operations = match self.plan.operations {
            Some(count) => count,
            None => {
                let player = Player::new(self.load, Target::Uext4, DEFAULT);
                let (outcome, _) = self.play(&player)?;
                let each = outcome.operations / u64::from(self.shape.threads);
                u32::try_from(each).unwrap_or(u32::MAX)
            }
        };
        let operations = operations.clamp(1, blocks);
        self.operations = Some(operations);
        let seconds = self.plan.duration.as_secs_f64();
        let text = format!(
            "each thread makes {operations} writes of {blocks} that there is room for; \
             planned are {seconds} s on uext4"
        );
        tell(Event::Note(self.load, text));
        Ok(())
    }

    /// Whether loop devices over the store pass its page cache by; `None` if none is used.
    fn store_takes_direct_io(&self) -> Result<Option<bool>> {
        if self.plan.route != Route::Device || Target::Kernel.obstacle(self.plan).is_some() {
            return Ok(None);
        }
        let medium = Medium::new(&self.base, Loop::Direct)?;
        let direct = medium.is_direct();
        medium.release()?;
        Ok(Some(direct))
    }

    fn tell_turn(&self, player: &Player, turn: Turn, tell: &mut dyn FnMut(Event<'_>)) {
        let (load, target) = (turn.load, turn.target);
        let variant = variant_name(&player.variant, self.shape.journal_mib);
        let Turn { threads, round, .. } = turn;
        tell(Event::Turn { load, target, variant: &variant, threads, round });
        let played = self.play(player);
        if let Ok((outcome, _)) = &played
            && outcome.cut_off
        {
            let (done, seconds) = (outcome.operations, outcome.seconds);
            let wanted = u64::from(self.operations.unwrap_or(0)) * u64::from(threads);
            let text = format!(
                "{} {variant} was cut off after {seconds:.0} s: {done} of {wanted} writes",
                target.name()
            );
            tell(Event::Note(load, text));
        }
        match played {
            Ok((_, figures)) => figures.into_iter().for_each(|(metric, value)| {
                let figure = Figure { variant: variant.clone(), metric, value };
                tell(Event::Measured(&self.plan.measurement(turn, &figure)));
            }),
            Err(error) => {
                let error = Error::new(format!("{variant}: {error}"));
                tell(Event::Failed(load, target, error));
            }
        }
    }

    /// One turn, from a fresh image to a checked one.
    fn play(&self, player: &Player) -> Result<(Outcome, Figures)> {
        let image = self.stage.image("turn");
        let played = self.play_on(player, &image);
        // It may hold tens of GiB: gone before the next one is made.
        if image.exists() {
            std::fs::remove_file(&image).doing("removing an image")?;
        }
        played
    }

    fn play_on(&self, player: &Player, image: &Path) -> Result<(Outcome, Figures)> {
        if player.target == Target::Raw {
            let file = File::create(image).and_then(|file| file.set_len(self.shape.image_bytes()));
            file.doing("making an image")?;
        } else {
            stage::copy_image(&self.base, image)?;
        }
        stage::drop_cached(image)?;
        machine::drop_caches();
        let by_loop = match (self.plan.route, player.target) {
            (Route::Device, _) => Loop::Direct,
            (Route::Natural, Target::Kernel) => Loop::Cached,
            (Route::Natural, _) => Loop::None,
        };
        let medium = Medium::new(image, by_loop)?;
        let (outcome, figures) = match player.target {
            Target::Raw => self.play_raw(&medium)?,
            Target::Uext4 => self.play_library(player, &medium)?,
            _ => self.play_mount(player, &medium)?,
        };
        medium.sync()?;
        medium.release()?;
        self.plan.go_on()?;
        self.judge(player, image, &outcome)?;
        Ok((outcome, figures))
    }

    fn limits(&self) -> Limits<'_> {
        let patience = if self.operations.is_some() { PATIENCE } else { 1 };
        let time = self.plan.duration.saturating_mul(patience).max(Duration::from_millis(100));
        Limits { operations: self.operations, time, stop: &self.plan.stop }
    }

    fn play_raw(&self, medium: &Medium) -> Result<(Outcome, Figures)> {
        let raw = Raw::open(medium.path(), &self.shape)?;
        let count = || Counters {
            flushes: Some(raw.flushes()),
            transactions: Some(raw.batches()),
            handles: Some(raw.syncs()),
            ..Counters::of_kernel(None)
        };
        measure(count, || generator::run(&raw, &self.shape, self.limits()), || None)
    }

    fn play_library(&self, player: &Player, medium: &Medium) -> Result<(Outcome, Figures)> {
        let (options, file) = target::parse_options(&player.options)?;
        let device = FileDevice::open_with(medium.path(), &file).doing("opening the image")?;
        let device = Arc::new(device);
        // A loop device counts its flushes itself, for every side alike.
        let meter = medium.loop_device().is_none().then(|| MeteredDevice::new(device.clone()));
        let meter = meter.map(Arc::new);
        let volume = match &meter {
            Some(meter) => Volume::open(meter.clone(), options)?,
            None => Volume::open(device, options)?,
        };
        let count = || {
            let mut counters = Counters::of_kernel(medium.loop_device()).with_volume(&volume);
            if let Some(meter) = &meter {
                let read = meter.read_meter();
                counters.flushes = Some(read.flushes + read.fua_writes);
            }
            counters
        };
        let work = || generator::run(&Library(&volume), &self.shape, self.limits());
        let measured = measure(count, work, machine::peak_rss_kib)?;
        volume.close()?;
        Ok(measured)
    }

    fn play_mount(&self, player: &Player, medium: &Medium) -> Result<(Outcome, Figures)> {
        let side = player.target.start(self.plan, &self.stage, medium, &player.options)?;
        let Side::Mount(mount) = &side else { return Err(Error::new("not a mount")) };
        let count = || Counters::of_kernel(medium.loop_device());
        let work = || {
            if fio::is_installed() && !self.shape.appends {
                let log = self.stage.source("fio.json");
                return fio::run(&self.shape, mount.dir(), self.limits(), &log);
            }
            generator::run(&Directory(mount.dir()), &self.shape, self.limits())
        };
        let measured = measure(count, work, || side.peak_rss_kib())?;
        side.end()?;
        Ok(measured)
    }

    /// Both checkers, and what the blocks hold where our own threads wrote them.
    fn judge(&self, player: &Player, image: &Path, outcome: &Outcome) -> Result<()> {
        let (shape, writes) = (&self.shape, &outcome.writes);
        if player.target == Target::Raw {
            let file = File::open(image).doing("reading back")?;
            let mut read = |number: u32, block: u32, data: &mut [u8]| {
                let at = raw::file_start(shape, number) + u64::from(block) * BLOCK as u64;
                file.read_exact_at(data, at).doing("reading back")
            };
            return content::check(shape, writes, &mut read);
        }
        let volume = check::clean(image)?;
        let whole = (0..shape.files()).try_for_each(|number| {
            let inode = volume.lookup(&volume.root()?, shape.name(number).as_bytes())?;
            let size = volume.attr(&inode).size;
            if size == shape.file_bytes || shape.appends {
                return Ok(());
            }
            Err(Error::new(format!("{} has {size} bytes", shape.name(number))))
        });
        let by_kernel = Target::Kernel.obstacle(self.plan).is_none();
        let read_back = whole.and_then(|()| match writes.is_empty() {
            true => Ok(()),
            // Not by those who wrote it, where there is somebody else.
            false if by_kernel && player.target != Target::Kernel => Ok(()),
            false => content::check(shape, writes, &mut read_by_library(shape, &volume)),
        });
        volume.close()?;
        read_back?;
        if by_kernel && player.target != Target::Kernel && !writes.is_empty() {
            self.read_by_kernel(image, writes)?;
        }
        Ok(())
    }

    fn read_by_kernel(&self, image: &Path, writes: &[u64]) -> Result<()> {
        let medium = Medium::new(image, Loop::Cached)?;
        let side = Target::Kernel.start(self.plan, &self.stage, &medium, "ro")?;
        let Side::Mount(mount) = &side else { return Err(Error::new("not a mount")) };
        let mut read = |number: u32, block: u32, data: &mut [u8]| {
            let file = File::open(mount.dir().join(self.shape.name(number)));
            let at = u64::from(block) * BLOCK as u64;
            file.and_then(|file| file.read_exact_at(data, at)).doing("reading back")
        };
        let found = content::check(&self.shape, writes, &mut read);
        side.end()?;
        medium.release()?;
        found
    }
}

fn read_by_library<'a>(shape: &'a Shape, volume: &'a Volume) -> Box<ReadBlock<'a>> {
    Box::new(move |number, block, data| {
        let inode = volume.lookup(&volume.root()?, shape.name(number).as_bytes())?;
        let file = volume.open_file(&inode)?;
        let count = file.read_at(u64::from(block) * BLOCK as u64, data)?;
        if count == data.len() { Ok(()) } else { Err(Error::new("reading back: short read")) }
    })
}

/// `default`, options, or either with the journal if that is not the usual one.
fn variant_name(variant: &str, journal_mib: u32) -> String {
    match (variant, journal_mib) {
        (_, JOURNAL_MIB) => variant.to_owned(),
        (DEFAULT, _) => format!("journal={journal_mib}"),
        _ => format!("{variant},journal={journal_mib}"),
    }
}

type Figures = Vec<(&'static str, f64)>;

/// Does the work and forms figures of it.
fn measure(
    count: impl Fn() -> Counters,
    work: impl FnOnce() -> Result<Outcome>,
    peak_rss_kib: impl FnOnce() -> Option<u64>,
) -> Result<(Outcome, Figures)> {
    machine::reset_peak_rss();
    let (before, cpu) = (count(), machine::processor_seconds());
    let outcome = work()?;
    let cpu = cpu.zip(machine::processor_seconds()).map(|(then, now)| now - then);
    let counted = count().since(before);
    if outcome.operations == 0 || outcome.syncs == 0 {
        return Err(Error::new("nothing was written in the time"));
    }
    let (operations, syncs) = (outcome.operations as f64, outcome.syncs as f64);
    let sync_us = outcome.sync.mean_us * syncs;
    let per = |count: Option<u64>, of: f64| count.map(|count| count as f64 / of);
    let figures = [
        ("iops", Some(operations / outcome.seconds)),
        ("latency_p50_us", Some(outcome.sync.p50_us)),
        ("latency_p99_us", Some(outcome.sync.p99_us)),
        ("latency_max_us", Some(outcome.sync.max_us)),
        ("latency_mean_us", Some(outcome.sync.mean_us)),
        ("write_latency_p50_us", Some(outcome.write.p50_us)),
        ("write_latency_p99_us", Some(outcome.write.p99_us)),
        ("write_latency_max_us", Some(outcome.write.max_us)),
        ("handles_per_txn", counted.handles_per_txn()),
        ("commit_mean_us", counted.commit_mean_us()),
        ("flushes_per_fsync", per(counted.flushes, syncs)),
        ("context_switches_per_op", per(counted.context_switches, operations)),
        ("log_space_wait_share", counted.log_space_wait_us.map(|us| us / sync_us)),
        ("cpu_s", cpu),
        ("peak_rss_kib", peak_rss_kib().map(|kib| kib as f64)),
        ("operations", Some(operations)),
    ];
    let causes = CAUSES.into_iter().zip(counted.causes.map(|count| count.map(|n| n as f64)));
    let reserved = counted.reserved_high_water.map(|credits| credits as f64);
    let causes = causes.chain([("reserved_high_water", reserved)]);
    let figures =
        figures.into_iter().chain(causes).filter_map(|(metric, value)| Some((metric, value?)));
    Ok((outcome, figures.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_named_as_scripts_expect() {
        assert_eq!(variant_name("default", 128), "default");
        assert_eq!(variant_name("default", 4), "journal=4");
        assert_eq!(variant_name("dioread_lock", 128), "dioread_lock");
        assert_eq!(variant_name("dioread_lock", 4), "dioread_lock,journal=4");
    }

    #[test]
    fn the_kernel_plays_both_ways_in_e0_and_uext4_each_variant() {
        let plan = Plan { variants: vec!["journal_join=herd".into()], ..Plan::default() };
        let name = |player: &Player| (player.target.name(), player.options.clone());
        let load = Load::find("E0").unwrap();
        let players = Player::all(&plan, load, &[Target::Uext4, Target::Kernel, Target::Raw]);
        let usual = OWN_OPTIONS.to_owned();
        let expected = [
            ("uext4", usual.clone()),
            ("uext4", format!("{usual},journal_join=herd")),
            ("kernel", usual.clone()),
            ("kernel", format!("{usual},dioread_lock")),
            ("raw", usual),
        ];
        assert_eq!(players.iter().map(name).collect::<Vec<_>>(), expected);
        let load = Load::find("E3").unwrap();
        let players = Player::all(&plan, load, &[Target::Kernel]);
        assert_eq!(players.iter().map(name).collect::<Vec<_>>(), [("kernel", String::new())]);
    }
}
