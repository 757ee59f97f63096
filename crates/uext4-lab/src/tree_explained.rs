//! Runs of M1 to M7 that are looked at: one more of each candidate, after the rounds.
//!
//! What: looked at is the load with the sync that makes it durable; the end of the file system is
//! not, as nothing of it can be asked then.

use std::cell::{Cell, RefCell};
use std::fs::File;
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
                // syncfs(2) alone tells no FUSE server to flush; fuse2fs knows no sync of a folder.
                let _ = rustix::fs::syncfs(&dir).map(|()| dir.sync_all());
                Ok(())
            }
        }
    }

    /// Seconds that looking began and ended in, beside the work.
    pub(crate) fn took_s(&self) -> f64 {
        self.took.take().as_secs_f64()
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
    /// for its target, `rates` are those of the rounds.
    ///
    /// # Errors
    /// An early end; a file that cannot be written.
    pub(crate) fn explain_all(
        &mut self,
        plan: &Plan,
        at: TargetRun,
        how: (Work, Start),
        candidates: &[Candidate],
        rates: &[Vec<Option<f64>>],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let Some(folder) = &plan.explain else { return Ok(()) };
        let run_of = |candidate: &Candidate| TargetRun { target: candidate.target, ..at };
        let known = explain::keys(folder);
        let wanted = || candidates.iter().zip(rates).filter(|(of, _)| of.variant != AA);
        // What was seen is written at once, when all had their turn: a run that goes on looks once.
        if wanted().any(|(of, _)| known.contains(&run_of(of).named(&of.variant).key())) {
            return Ok(());
        }
        let mut all = Vec::new();
        for (candidate, rates) in wanted() {
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
                rates: rates.clone(),
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
    use super::*;

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
