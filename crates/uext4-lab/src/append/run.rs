//! Turns of a load that allocates.

use std::fs::File;
use std::path::{Path, PathBuf};

use uext4::Volume;

use crate::append::age;
use crate::append::generator::{self, Limits, Outcome};
use crate::append::layout::{self, Files};
use crate::append::shape::Shape;
use crate::append::sink;
use crate::check;
use crate::command;
use crate::error::{Doing, Error, Result};
use crate::load::{Form, Load};
use crate::machine;
use crate::plan::{Event, Figure, Plan, Turn};
use crate::report::DEFAULT;
use crate::stage::{self, Loop, Medium, Route, Stage};
use crate::storm::counters::Counters;
use crate::target::{Side, Target};

/// What the kernel's side of E1b runs beside its default.
const KERNEL_VARIANT: &str = "mb_optimize_scan=0";

type Figures = Vec<(&'static str, f64)>;

/// A side of the comparison.
#[derive(Clone, Debug, PartialEq)]
struct Player {
    target: Target,
    /// `default`, or mount options.
    variant: String,
}

impl Player {
    fn all(plan: &Plan, shape: &Shape, targets: &[Target]) -> Vec<Self> {
        let mut players = Vec::new();
        for &target in targets {
            let mut variants = vec![DEFAULT];
            if target.is_own() {
                variants.extend(plan.variants.iter().map(String::as_str));
            } else if target == Target::Kernel && !shape.recycles {
                variants.push(KERNEL_VARIANT);
            }
            players.extend(variants.iter().map(|v| Self { target, variant: (*v).to_owned() }));
        }
        players
    }

    fn options(&self) -> &str {
        if self.variant == DEFAULT { "" } else { &self.variant }
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
    for form in plan.forms_of(load) {
        for threads in plan.threads_of(load) {
            plan.go_on()?;
            let shape = Shape::new(load.work, form, threads, plan.scale);
            let players = Player::all(plan, &shape, targets);
            Bench::new(plan, load, shape, &players, tell)?.all_rounds(&players, tell)?;
        }
    }
    plan.go_on()
}

/// What the turns of a form and a number of threads share.
struct Bench<'a> {
    plan: &'a Plan,
    load: &'static Load,
    stage: Stage,
    shape: Shape,
    /// The empty file system.
    base: PathBuf,
    /// Bytes free on it.
    free_bytes: u64,
}

impl<'a> Bench<'a> {
    fn new(
        plan: &'a Plan,
        load: &'static Load,
        mut shape: Shape,
        players: &[Player],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<Self> {
        let stage = Stage::new(plan.store, plan.folder.as_deref(), shape.image_bytes)?;
        // Each player ages an image of its own; it stays for all rounds.
        let aged = shape.form == Some(Form::Aged);
        let bases = 1 + if aged { u32::try_from(players.len()).unwrap_or(0) } else { 0 };
        let (need, free) = (shape.space_bytes(bases), stage::room(stage.folder())?);
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let folder = stage.folder().parent().unwrap_or(stage.folder()).display();
        let text = format!(
            "{} threads: an image of {:.1} GiB, sparse: needs at most {:.1} GiB in {folder}, \
             which has {:.1}",
            shape.threads,
            gib(shape.image_bytes),
            gib(need),
            gib(free)
        );
        if free < need {
            return Err(Error::new(format!("{}: {text}: use --scale", load.id)));
        }
        tell(Event::Note(load, text));
        let base = stage.image("base");
        format(&base, shape.image_bytes)?;
        let volume = check::clean(&base)?;
        let stat = volume.stat_fs();
        let free_bytes = stat.blocks_available * u64::from(stat.block_size);
        volume.close()?;
        if aged {
            let left = free_bytes as f64 * (1.0 - plan.ageing.full);
            shape = shape.within(left as u64);
            let text = format!(
                "filled to {:.0} %, {:.2} times rewritten (seed {}); then {} files of {} MiB",
                plan.ageing.full * 100.0,
                plan.ageing.churn,
                plan.ageing.seed,
                shape.files(),
                shape.file_bytes >> 20
            );
            tell(Event::Note(load, text));
        }
        Ok(Self { plan, load, stage, shape, base, free_bytes })
    }

    fn all_rounds(&self, players: &[Player], tell: &mut dyn FnMut(Event<'_>)) -> Result<()> {
        let mut aged = Vec::new();
        for round in 1..=self.plan.rounds {
            for (number, player) in players.iter().enumerate() {
                self.plan.go_on()?;
                let Shape { form, threads, .. } = self.shape;
                let (load, target) = (self.load, player.target);
                let turn = Turn { load, target, form, threads, round };
                let variant = &player.variant;
                tell(Event::Turn { load, target, variant, threads, round });
                let played = (|| {
                    if form != Some(Form::Aged) {
                        return self.play(player, &self.base);
                    }
                    if aged.len() <= number {
                        let image = self.stage.image(&format!("aged-{number}"));
                        let figures = self.age(player, &image)?;
                        aged.push((image, figures));
                    }
                    let (image, figures) = &aged[number];
                    let mut all = self.play(player, image)?;
                    all.extend(figures);
                    Ok(all)
                })();
                match played {
                    Ok(figures) => figures.into_iter().for_each(|(metric, value)| {
                        let figure = Figure { variant: variant.clone(), metric, value };
                        tell(Event::Measured(&self.plan.measurement(turn, &figure)));
                    }),
                    Err(error) => {
                        // Whose image could not be aged has no turn that would count.
                        if form == Some(Form::Aged) && aged.len() <= number {
                            return Err(Error::new(format!("ageing: {variant}: {error}")));
                        }
                        let error = Error::new(format!("{variant}: {error}"));
                        tell(Event::Failed(load, target, error));
                    }
                }
            }
        }
        Ok(())
    }

    fn medium(&self, player: &Player, image: &Path) -> Result<Medium> {
        let by_loop = match (self.plan.route, player.target) {
            (Route::Device, _) => Loop::Direct,
            (Route::Natural, Target::Kernel) => Loop::Cached,
            (Route::Natural, _) => Loop::None,
        };
        Medium::new(image, by_loop)
    }

    /// An aged image, made by the side that is to go on with it.
    fn age(&self, player: &Player, image: &Path) -> Result<Figures> {
        stage::copy_image(&self.base, image)?;
        let medium = self.medium(player, image)?;
        let side = player.target.start(self.plan, &self.stage, &medium, player.options())?;
        let (plan, free) = (self.plan, self.free_bytes);
        age::age(&*sink::of(&side), free, &plan.ageing, &plan.stop)?;
        side.end()?;
        medium.sync()?;
        medium.release()?;
        let volume = check::clean(image)?;
        let mut files = Files::default();
        age::dirs().try_for_each(|dir| files.add_dir(&volume, &dir))?;
        let figures = vec![
            ("aged_extents_per_file", files.extents_per_file()),
            ("aged_frag_score", files.score()),
            ("aged_free_extent_mean_kib", layout::free_extent_mean_kib(&volume)?),
        ];
        volume.close()?;
        stage::drop_cached(image)?;
        Ok(figures)
    }

    /// One turn, from a copy of an image to a checked one.
    fn play(&self, player: &Player, base: &Path) -> Result<Figures> {
        let image = self.stage.image("turn");
        let played = self.play_on(player, base, &image);
        if image.exists() {
            std::fs::remove_file(&image).doing("removing an image")?;
        }
        played
    }

    fn play_on(&self, player: &Player, base: &Path, image: &Path) -> Result<Figures> {
        stage::copy_image(base, image)?;
        stage::drop_cached(image)?;
        machine::drop_caches();
        let medium = self.medium(player, image)?;
        let side = player.target.start(self.plan, &self.stage, &medium, player.options())?;
        machine::reset_peak_rss();
        let count = || {
            let counters = Counters::of_kernel(medium.loop_device());
            match &side {
                Side::Library(volume) => counters.with_volume(volume),
                Side::Mount(_) => counters,
            }
        };
        let (before, cpu) = (count(), machine::processor_seconds());
        let limits = Limits { time: self.plan.duration, stop: &self.plan.stop };
        let outcome = generator::run(&*sink::of(&side), &self.shape, limits)?;
        let cpu = cpu.zip(machine::processor_seconds()).map(|(then, now)| now - then);
        let counted = count().since(before);
        let peak = match &side {
            Side::Library(_) => machine::peak_rss_kib(),
            Side::Mount(_) => side.peak_rss_kib(),
        };
        side.end()?;
        medium.sync()?;
        medium.release()?;
        self.plan.go_on()?;
        let mut figures = self.speed(&outcome, &counted)?;
        figures.extend(cpu.map(|seconds| ("cpu_s", seconds)));
        figures.extend(peak.map(|kib| ("peak_rss_kib", kib as f64)));
        figures.extend(self.judge(image)?);
        Ok(figures)
    }

    fn speed(&self, outcome: &Outcome, counted: &Counters) -> Result<Figures> {
        if outcome.operations == 0 {
            return Err(Error::new("nothing was allocated in the time"));
        }
        let operations = outcome.operations as f64;
        let bytes = (outcome.appends * self.shape.append_bytes) as f64;
        let per = |count: Option<u64>, of: f64| count.map(|count| count as f64 / of);
        let figures = [
            ("ops_per_s", Some(operations / outcome.seconds)),
            ("bytes_per_s", Some(bytes / outcome.seconds)),
            ("contended_per_kop", per(counted.contended, operations / 1000.0)),
            ("context_switches_per_op", per(counted.context_switches, operations)),
            ("transactions", counted.transactions.map(|count| count as f64)),
            ("operations", Some(operations)),
        ];
        Ok(figures.into_iter().filter_map(|(metric, value)| Some((metric, value?))).collect())
    }

    /// Both checkers; whether each file has the blocks that its size asks for; how they lie.
    fn judge(&self, image: &Path) -> Result<Figures> {
        let volume = check::clean(image)?;
        let figures = self.layout(&volume);
        volume.close()?;
        figures
    }

    fn layout(&self, volume: &Volume) -> Result<Figures> {
        let (root, mut files) = (volume.root()?, Files::default());
        for number in 0..self.shape.files() {
            let name = Shape::name(number);
            let inode = volume.lookup(&root, name.as_bytes())?;
            let before = files.blocks();
            files.add(volume, &inode)?;
            let size = volume.attr(&inode).size;
            let blocks = files.blocks() - before;
            let whole = size == self.shape.file_bytes || self.shape.recycles;
            let wanted = size.div_ceil(u64::from(volume.layout().block_size));
            if !whole || blocks != wanted {
                return Err(Error::new(format!("{name} has {size} bytes and {blocks} blocks")));
            }
        }
        let mut figures = vec![("free_extent_mean_kib", layout::free_extent_mean_kib(volume)?)];
        if !self.shape.recycles {
            figures.extend([
                ("extents_per_file", files.extents_per_file()),
                ("runs_per_file", files.runs_per_file()),
                ("frag_score", files.score()),
            ]);
        }
        Ok(figures)
    }
}

/// An empty file system as the report of E1b made it, where mke2fs is installed, else our own.
pub(crate) fn format(image: &Path, bytes: u64) -> Result<()> {
    if command::find("mke2fs").is_none() {
        return stage::format(image, bytes);
    }
    if image.exists() {
        std::fs::remove_file(image).doing("removing an image")?;
    }
    // Sparse: mke2fs leaves tables of zeroes as holes.
    let file = File::create(image).and_then(|file| file.set_len(bytes));
    file.doing("making an image")?;
    let lazy = "lazy_itable_init=0,lazy_journal_init=0";
    let image_name = image.to_string_lossy();
    let args = ["-q", "-F", "-E", lazy, "-t", "ext4", "-b", "4096", &image_name];
    let with_orphan_file = [&args[..8], &["-O", "orphan_file"], &args[8..]].concat();
    // Old ones know no orphan file.
    let made = command::run("mke2fs", &with_orphan_file);
    made.or_else(|_| command::run("mke2fs", &args)).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Work;

    #[test]
    fn the_kernel_plays_both_scan_modes_in_e1b_and_uext4_each_variant() {
        let plan = Plan { variants: vec!["mb_reserve=off".into()], ..Plan::default() };
        let targets = [Target::Uext4, Target::Kernel];
        let names = |work, form| {
            let players = Player::all(&plan, &Shape::new(work, form, 2, 0.01), &targets);
            let name = |p: Player| (p.target.name(), p.variant.clone(), p.options().to_owned());
            players.into_iter().map(name).collect::<Vec<_>>()
        };
        let side = |target, variant: &str, options: &str| (target, variant.into(), options.into());
        let own = [side("uext4", DEFAULT, ""), side("uext4", "mb_reserve=off", "mb_reserve=off")];
        let kernel = side("kernel", DEFAULT, "");
        let mut wanted = vec![own[0].clone(), own[1].clone(), kernel];
        assert_eq!(names(Work::Recycle, Some(Form::Own)), wanted);
        wanted.push(side("kernel", KERNEL_VARIANT, KERNEL_VARIANT));
        assert_eq!(names(Work::Fill, None), wanted);
        assert_eq!(names(Work::Fill, Some(Form::Aged)), wanted);
    }
}
