//! Runs of M1 to M7 that are looked at: one more of each candidate, after the rounds.
//!
//! What: looked at is the load with the sync that makes it durable; the end of the file system is
//! not, as nothing of it can be asked then.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::bench::Candidate;
use crate::error::{Doing, Error, Result};
use crate::evidence::TargetRun;
use crate::explain::{self, Explained, Seen, Subject};
use crate::load::{SmallFiles, Start, WARM_PASSES, Work};
use crate::plan::{Event, Plan};
use crate::report::{AA, DEFAULT};
use crate::target::Opened;
use crate::tree::{Body, Tree};
use crate::tree_loads::Runner;

/// Whether the run of now is looked at, and what was seen of it.
#[derive(Default)]
pub(crate) struct Looking {
    /// Where what is written meanwhile lies: it goes with the run.
    folder: PathBuf,
    is_on: Cell<bool>,
    seen: RefCell<Option<Seen>>,
    took: Cell<Duration>,
}

impl Looking {
    /// In a folder of the run.
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf(), ..Self::default() }
    }

    /// Does the work of a load, and looks at it if this run is there for that.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn at<T>(
        &self,
        subject: Subject<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.took.take();
        if !self.is_on.get() {
            return work();
        }
        let began = Instant::now();
        let worked = Cell::new(Duration::ZERO);
        let timed = || {
            let began = Instant::now();
            let done = work();
            worked.set(began.elapsed());
            done
        };
        let (done, seen) = explain::watch(subject, &self.folder, timed)?;
        self.took.set(began.elapsed().saturating_sub(worked.get()));
        self.seen.replace(Some(seen));
        Ok(done)
    }

    /// Makes what a load did durable, if the run is looked at: what that takes belongs to the load.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn sync(&self, opened: &Opened) -> Result<()> {
        if !self.is_on.get() {
            return Ok(());
        }
        match opened {
            Opened::Library(volume) => Ok(volume.sync()?),
            Opened::Mount(mount) => {
                let dir = File::open(mount.dir()).doing("opening the mount")?;
                rustix::fs::syncfs(&dir).doing("syncing the mount")?;
                // That alone tells no FUSE server to flush. One that knows no sync of a folder
                // leaves it at that.
                match dir.sync_all() {
                    Err(error) if !knows_no_sync(&error) => Err(error).doing("syncing the mount"),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Seconds that looking began and ended in, beside the work.
    pub(crate) fn took_s(&self) -> f64 {
        self.took.take().as_secs_f64()
    }
}

/// Whether a server of a mount says by this that it has no call to sync a folder.
fn knows_no_sync(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput)
}

/// What the rounds of a candidate gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds {
    /// The figure that candidates are compared by; `None` of a round that failed.
    rates: Vec<Option<f64>>,
    /// Whether one was ended before it had done.
    is_cut_off: bool,
}

impl Rounds {
    /// Adds a round.
    pub(crate) fn add(&mut self, rate: Option<f64>, is_cut_off: bool) {
        self.rates.push(rate);
        self.is_cut_off |= is_cut_off;
    }
}

/// Files or entries that a load works on, one after the other.
fn operations(work: Work, files: SmallFiles, tree: &Tree) -> u64 {
    let count = match work {
        Work::Unpack | Work::RemoveTree | Work::Build => tree.entries.len(),
        Work::ReadTree => {
            2 * tree.entries.iter().filter(|entry| matches!(entry.body, Body::File(_))).count()
        }
        Work::Create | Work::Unlink => files.count() as usize,
        Work::Stat => (files.count() * (1 + WARM_PASSES)) as usize,
    };
    count as u64
}

impl Runner<'_> {
    /// Looks at a run of each candidate, and writes what is seen. `at` is where the run belongs but
    /// for its target, `rounds` are those that each had.
    ///
    /// # Errors
    /// An early end; a file that cannot be written.
    pub(crate) fn explain_all(
        &mut self,
        plan: &Plan,
        at: TargetRun,
        how: (Work, Start),
        candidates: &[Candidate],
        rounds: &[Rounds],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let Some(folder) = &plan.explain else { return Ok(()) };
        let run_of = |candidate: &Candidate| TargetRun { target: candidate.target, ..at };
        let known = explain::keys(folder);
        let wanted = || candidates.iter().zip(rounds).filter(|(of, _)| of.variant != AA);
        // What was seen is written at once, when all had their turn: a run that goes on looks once.
        if wanted().any(|(of, _)| known.contains(&run_of(of).named(&of.variant).key())) {
            return Ok(());
        }
        let mut all = Vec::new();
        for (candidate, rounds) in wanted() {
            plan.go_on()?;
            let run = run_of(candidate);
            let name = run.named(&candidate.variant);
            tell(Event::Run(name));
            let note = &mut |text: &str| tell(Event::Note(run.load, text.to_owned()));
            self.looking.is_on.set(true);
            let done = self.one_run(run, candidate, how, note);
            self.looking.is_on.set(false);
            let seen = self.looking.seen.take();
            let figures = match done {
                Ok(figures) => figures,
                Err(error) => {
                    plan.go_on()?;
                    tell(Event::Failed(name, Error::new(format!("looked at: {error}"))));
                    continue;
                }
            };
            let Some(seen) = seen else { continue };
            let of_load = |figure: &&crate::plan::Figure| {
                figure.variant == DEFAULT && figure.metric == run.load.metric
            };
            all.push(Explained {
                candidate: candidate.clone(),
                run,
                key: name.key(),
                metric: run.load.metric,
                operations: self.operations(how.0, run.form),
                watched_rate: figures.iter().find(of_load).map_or(0.0, |figure| figure.value),
                rates: rounds.rates.clone(),
                is_cut_off: rounds.is_cut_off,
                seen,
                timelines: Vec::new(),
            });
        }
        for sentence in explain::write(folder, &all)? {
            tell(Event::Note(at.load, sentence));
        }
        Ok(())
    }

    fn operations(&self, work: Work, form: Option<crate::load::Form>) -> u64 {
        let tree = match (work, form) {
            (Work::Build, Some(_)) => self.builds.flat().unwrap_or(&self.tree),
            _ => &self.tree,
        };
        operations(work, self.small_files(form), tree)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    /// Fault model: an error of the device at the end of a load is taken for a server's lack.
    #[test]
    fn only_a_server_that_knows_no_sync_is_let_off() {
        let of = |errno: Errno| knows_no_sync(&io::Error::from(errno));
        assert!([Errno::NOSYS, Errno::OPNOTSUPP, Errno::INVAL].into_iter().all(of));
        assert!(![Errno::IO, Errno::NOSPC, Errno::ROFS, Errno::NOTCONN].into_iter().any(of));
    }

    #[test]
    fn a_round_that_was_ended_is_known_of_all() {
        let mut rounds = Rounds::default();
        [(Some(1.0), false), (Some(120.0), true), (None, false)]
            .into_iter()
            .for_each(|(rate, is_cut_off)| rounds.add(rate, is_cut_off));
        assert_eq!((rounds.rates.len(), rounds.is_cut_off), (3, true));
    }

    #[test]
    fn operations_are_what_a_load_works_on() {
        let (files, tree) = (SmallFiles { dirs: 60, per_dir: 8 }, Tree::new(0.01));
        let all = tree.entries.len() as u64;
        assert_eq!(operations(Work::Unpack, files, &tree), all);
        let read = operations(Work::ReadTree, files, &tree);
        assert!(read < 2 * all && read.is_multiple_of(2), "{read}");
        assert_eq!(operations(Work::Create, files, &tree), 480);
        assert_eq!(operations(Work::Stat, files, &tree), 480 * 3);
    }
}
