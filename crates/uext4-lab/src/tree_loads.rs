//! The loads on a tree and on small files, M1 to M7.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::archive;
use crate::bench::Candidate;
use crate::build::{Builds, CUT_OFF};
use crate::check::{self, Expected};
use crate::clock::Clock;
use crate::directory;
use crate::error::{Doing, Error, Result};
use crate::evidence::{RunName, Scene, Served, TargetRun, keep_layout};
use crate::explain::Subject;
use crate::laps::{Lap, figures, lap_of, small_laps};
use crate::library;
use crate::load::{Form, Load, SMALL_FILE_DIRS, SMALL_FILES, SmallFiles, Start, Work};
use crate::machine;
use crate::mkfs_option::{self, MkfsOptions};
use crate::mount::Mount;
use crate::mounted::{self, Workers};
use crate::plan::{Event, Figure, Plan};
use crate::report::DEFAULT;
use crate::stage::{self, Medium, Stage};
use crate::target::{Opened, Target};
use crate::tree::{self, Tree, scaled};
use crate::tree_explained::{Looking, Rounds};
use crate::worker::Verb;

/// What runs of these loads share.
pub(crate) struct Runner<'a> {
    plan: &'a Plan,
    stage: Stage,
    pub(crate) tree: Tree,
    pub(crate) builds: Builds,
    pub(crate) looking: Looking,
    /// Images to start from, made when first needed.
    bases: HashMap<(Start, Option<MkfsOptions>), PathBuf>,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Result<Self> {
        let tree = Tree::new(plan.scale);
        let stage = Stage::for_tree(plan.store, plan.folder.as_deref(), &tree, plan.scale)?;
        let looking = Looking::in_folder(stage.sources());
        let (builds, bases) = (Builds::default(), HashMap::new());
        Ok(Self { plan, stage, tree, builds, looking, bases })
    }

    /// All rounds of a load on those targets, by its own plan.
    pub(crate) fn run(
        &mut self,
        plan: &Plan,
        load: &'static Load,
        how: (Work, Start),
        targets: &[Target],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let all = plan.candidates_of(load, targets);
        for form in plan.forms_of(load) {
            for threads in plan.threads_of(load) {
                let takes = |candidate: &&Candidate| candidate.target.takes_threads(threads);
                let candidates: Vec<_> = all.iter().filter(takes).cloned().collect();
                let mut rounds = vec![Rounds::default(); candidates.len()];
                let at = |target, round| TargetRun {
                    load,
                    target,
                    form,
                    threads,
                    bs: load.block_bytes,
                    round,
                };
                for round in 1..=plan.rounds {
                    for (candidate, rounds) in candidates.iter().zip(&mut rounds) {
                        plan.go_on()?;
                        let run = at(candidate.target, round);
                        self.tell_run(run, candidate, how, rounds, tell)?;
                    }
                }
                let looked_at = at(Target::Uext4, plan.rounds + 1);
                self.explain_all(plan, looked_at, how, &candidates, &rounds, tell)?;
            }
        }
        Ok(())
    }

    /// One of the rounds.
    fn tell_run(
        &mut self,
        run: TargetRun,
        candidate: &Candidate,
        how: (Work, Start),
        rounds: &mut Rounds,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let name = run.named(&candidate.variant);
        if let Some(known) = self.plan.resumed.figures(&name.key()) {
            // Which part of a load in several it is of is not known any more.
            let has_parts = matches!(how.0, Work::ReadTree | Work::Stat);
            let rate = known.get(run.load.metric).copied().filter(|_| !has_parts);
            rounds.add(rate, known.contains_key(CUT_OFF));
            return Ok(());
        }
        tell(Event::Run(name));
        let note = &mut |text: &str| tell(Event::Note(run.load, text.to_owned()));
        match self.one_run(run, candidate, how, note) {
            Ok(figures) => {
                let is_it = |f: &&Figure| f.variant == DEFAULT && f.metric == run.load.metric;
                let rate = figures.iter().find(is_it).map(|figure| figure.value);
                rounds.add(rate, figures.iter().any(|figure| figure.metric == CUT_OFF));
                for mut figure in figures {
                    figure.variant = lap_of(&candidate.variant, &figure.variant);
                    tell(Event::Measured(&self.plan.measurement(run, &figure)));
                }
                tell(Event::Ended(name));
            }
            Err(error) => {
                self.plan.go_on()?;
                tell(Event::Failed(name, error));
                rounds.add(None, false);
            }
        }
        Ok(())
    }

    pub(crate) fn small_files(&self, form: Option<Form>) -> SmallFiles {
        let per_dir = (scaled(SMALL_FILES, self.plan.scale) / SMALL_FILE_DIRS).max(8);
        match form {
            Some(Form::Shared) => SmallFiles { dirs: 1, per_dir: per_dir * SMALL_FILE_DIRS },
            _ => SmallFiles { dirs: SMALL_FILE_DIRS, per_dir },
        }
    }

    /// One load on one target, from a fresh image to a checked one.
    pub(crate) fn one_run(
        &mut self,
        run: TargetRun,
        candidate: &Candidate,
        (work, start): (Work, Start),
        note: &mut dyn FnMut(&str),
    ) -> Result<Vec<Figure>> {
        let TargetRun { load, target, form, threads, .. } = run;
        let files = self.small_files(form);
        let file = self.stage.image("run");
        let image = self.plan.device().unwrap_or(&file);
        if work == Work::Build {
            let from = self.builds.from(self.plan, &self.stage, &self.tree, form)?;
            return from.build(target, &file, &self.looking, note);
        }
        let start = match (start, form) {
            (Start::Files, Some(Form::Shared)) => Start::SharedFiles,
            (start, _) => start,
        };
        let medium = match &self.plan.dir {
            Some(dir) if target == Target::Dir => self.folder(dir, start)?,
            _ => {
                let base = self.base(start, candidate.mkfs.as_ref())?;
                match &self.plan.lent {
                    Some(device) => device.write_image(&base)?,
                    None => stage::copy_image(&base, image)?,
                }
                stage::drop_cached(image)?;
                target.medium(self.plan, image)?
            }
        };
        #[cfg(feature = "peer-rust-fs-ext4")]
        if target == Target::RustFsExt4 {
            return self.on_rust_fs_ext4(run.named(&candidate.variant), (work, files), image);
        }
        let opened = target.start(self.plan, &self.stage, &medium, &candidate.options)?;
        let job = self.prepare(work, files, &opened, threads)?;
        let scene = Scene {
            plan: self.plan,
            name: run.named(&candidate.variant),
            served: Served::by(&opened),
            device: medium.block_device(),
        };
        let load_itself = || {
            let laps = self.work(work, files, &opened, job, threads)?;
            self.looking.sync(&opened).map(|()| laps)
        };
        let subject = Subject::of(&opened, &medium);
        let mut clock = Clock::start();
        // Read while it is mounted, but not in the time of the load; kept when that is over.
        let (mut laps, told) =
            scene.during_by(&mut clock, || self.looking.at(subject, load_itself))?;
        let peak = clock.aside(|| opened.peak_rss_kib());
        opened.end()?;
        medium.sync()?;
        let cpu = self.stop(&clock, &mut laps);
        told.keep()?;
        let distance = if target == Target::Dir {
            directory::check(medium.path(), Expected::after(work, target, files), &self.tree)?;
            medium.release()?;
            None
        } else {
            medium.release()?;
            self.judge(run.named(&candidate.variant), (work, files), image)?
        };
        Ok(figures(load, &laps, [cpu, peak.map(|kib| kib as f64), distance]))
    }

    /// Ends the lap of a load that changes the image: now the change is on it. Returns the
    /// processor time of the load, in seconds.
    pub(crate) fn stop(&self, clock: &Clock, laps: &mut [Lap]) -> Option<f64> {
        if let [lap] = laps {
            lap.seconds = clock.seconds() - self.looking.took_s();
        }
        clock.cpu_seconds()
    }

    /// Whether the image is what a load should have made of it. Returns how far apart small files
    /// lie, of the load that creates them.
    pub(crate) fn judge(
        &self,
        name: RunName<'_>,
        (work, files): (Work, SmallFiles),
        image: &Path,
    ) -> Result<Option<f64>> {
        let expected = Expected::after(work, name.run.target, files);
        let distance = check::image(image, expected, &self.tree)?;
        if matches!(work, Work::Unpack | Work::Create) {
            keep_layout(self.plan, name, image)?;
        }
        Ok(distance.filter(|_| work == Work::Create))
    }

    /// What has to be there before the clock starts.
    fn prepare(
        &self,
        work: Work,
        files: SmallFiles,
        opened: &Opened,
        threads: u32,
    ) -> Result<Option<Workers>> {
        let verb = match work {
            Work::Create => Verb::Create,
            Work::Stat => Verb::Stat,
            Work::Unlink => Verb::Unlink,
            _ => return Ok(None),
        };
        if verb == Verb::Create {
            match opened {
                Opened::Library(volume) => library::make_dirs(volume, files)?,
                Opened::Mount(mount) => mounted::make_dirs(mount.dir(), files)?,
            }
        }
        match opened {
            Opened::Library(_) => Ok(None),
            Opened::Mount(mount) => {
                let program = self.plan.command.as_deref();
                let program =
                    program.ok_or_else(|| Error::new("the uext4 command is not at hand"))?;
                Workers::start(program, verb, mount.dir(), files, threads).map(Some)
            }
        }
    }

    /// The load itself. Loads that change the image have one lap, which the caller ends.
    fn work(
        &self,
        work: Work,
        files: SmallFiles,
        opened: &Opened,
        mut workers: Option<Workers>,
        threads: u32,
    ) -> Result<Vec<Lap>> {
        let operations = u64::from(files.count());
        let archive = self.stage.source("tree.tar");
        let mut pass = || match (opened, &mut workers) {
            (Opened::Mount(_), Some(workers)) => workers.pass(),
            (Opened::Library(volume), _) => {
                let each = match work {
                    Work::Create => library::create_small,
                    Work::Stat => library::stat_small,
                    _ => |volume: &_, dir: &_, name: &_| {
                        Ok(uext4::Volume::unlink(volume, dir, name)?)
                    },
                };
                library::for_small_files(volume, threads, files, each)
            }
            (Opened::Mount(_), None) => Err(Error::new("no workers")),
        };
        match (work, opened) {
            (Work::Unpack, Opened::Library(volume)) => library::unpack(volume, &archive)?,
            (Work::Unpack, Opened::Mount(mount)) => mounted::unpack(mount.dir(), &archive)?,
            (Work::RemoveTree, Opened::Library(volume)) => {
                library::remove_tree(volume, &volume.root()?, tree::TOP.as_bytes())?;
            }
            (Work::RemoveTree, Opened::Mount(mount)) => mounted::remove_tree(mount.dir())?,
            (Work::ReadTree, opened) => {
                let mut read = || match opened {
                    Opened::Library(volume) => match library::read_tree(volume)? {
                        bytes if bytes == self.tree.bytes() => Ok(()),
                        bytes => Err(Error::new(format!("read {bytes} bytes"))),
                    },
                    Opened::Mount(mount) => mounted::read_tree(mount.dir()),
                };
                return Ok(vec![
                    Lap::time("default", self.tree.bytes(), &mut read)?,
                    Lap::time("warm", self.tree.bytes(), &mut read)?,
                ]);
            }
            (Work::Create | Work::Stat | Work::Unlink, _) => {
                return small_laps(work, operations, &mut pass);
            }
            (Work::Build, _) => return Err(Error::new("not a load of this kind")),
        }
        Ok(vec![Lap::whole(operations)])
    }

    /// Makes what a load starts from on an empty file system.
    fn fill(&self, start: Start, opened: &Opened) -> Result<()> {
        let archive = self.archive()?;
        match (start, opened) {
            (Start::Nothing | Start::Empty, _) => Ok(()),
            (Start::Tree, Opened::Library(volume)) => library::unpack(volume, &archive),
            (Start::Tree, Opened::Mount(mount)) => mounted::unpack(mount.dir(), &archive),
            (Start::Files | Start::SharedFiles, _) => {
                let files = self.files_of(start);
                let workers = self.prepare(Work::Create, files, opened, 1)?;
                self.work(Work::Create, files, opened, workers, 1).map(|_| ())
            }
        }
    }

    fn files_of(&self, start: Start) -> SmallFiles {
        self.small_files((start == Start::SharedFiles).then_some(Form::Shared))
    }

    /// A new folder of a mounted directory, which holds what a load starts from.
    fn folder(&self, dir: &Path, start: Start) -> Result<Medium> {
        self.archive()?;
        let medium = Medium::folder_in(dir)?;
        self.fill(start, &Opened::Mount(Mount::there(medium.path())))?;
        medium.sync()?;
        machine::drop_caches();
        Ok(medium)
    }

    fn archive(&self) -> Result<PathBuf> {
        let archive = self.stage.source("tree.tar");
        if !archive.exists() {
            archive::write(&self.tree, &archive).doing("writing the archive")?;
        }
        Ok(archive)
    }

    /// The image that a load starts from. It is made by the kernel where that can be had, so that
    /// no other target reads what it has laid out itself; else by the library.
    fn base(&mut self, start: Start, mkfs: Option<&MkfsOptions>) -> Result<PathBuf> {
        self.archive()?;
        let key = (start, mkfs.cloned());
        if let Some(image) = self.bases.get(&key) {
            return Ok(image.clone());
        }
        let name = MkfsOptions::file_name(&format!("base-{start:?}"), mkfs);
        let image = self.stage.image(&name);
        match mkfs {
            Some(option) => mkfs_option::make(&image, self.stage.image_bytes(), option)?,
            None => self.stage.format(&image)?,
        }
        if start != Start::Empty {
            let has_kernel = Target::Kernel.obstacle(self.plan).is_none();
            let maker = if has_kernel && self.plan.command.is_some() {
                Target::Kernel
            } else {
                Target::Uext4
            };
            let medium = maker.medium(self.plan, &image)?;
            let opened = maker.start(self.plan, &self.stage, &medium, "")?;
            self.fill(start, &opened)?;
            opened.end()?;
            medium.release()?;
        }
        check::image(&image, Expected::before(start, self.files_of(start)), &self.tree)?;
        self.bases.insert(key, image.clone());
        Ok(image)
    }
}
