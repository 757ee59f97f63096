//! Runs that are looked at: one more of each candidate, after the rounds.

use crate::bench::candidate::Candidate;
use crate::bench::experiment::Experiment;
use crate::bench::measure::Outcome;
use crate::bench::rounds::{Bench, Setting};
use crate::error::{Error, Result};
use crate::explain::{self, Explained, Subject};
use crate::plan::Event;
use crate::report::AA;

impl Bench<'_> {
    /// Does the work of a load, and looks at it if this run is there for that.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn watched<More>(
        &self,
        subject: Subject<'_>,
        work: impl FnOnce() -> Result<Outcome<More>>,
    ) -> Result<Outcome<More>> {
        if !self.is_watching() {
            return work();
        }
        let (mut outcome, seen) = explain::watch(subject, self.stage.sources(), work)?;
        let timelines = std::mem::take(&mut outcome.timelines);
        self.seen.replace(Some((seen, timelines, outcome.operations)));
        Ok(outcome)
    }

    /// Whether the run is looked at: what costs and serves only that is done then.
    pub(crate) fn is_watching(&self) -> bool {
        self.watches.get()
    }

    /// Whether a run before this one has looked: what was seen of a setting is written at once,
    /// when all its candidates had their turn. One that failed then is not looked at alone: pairs
    /// need both.
    pub(super) fn is_explained(&self, setting: Setting, candidates: &[Candidate]) -> bool {
        let Some(folder) = &self.plan.explain else { return true };
        let known = explain::keys(folder);
        let key = |candidate: &Candidate| {
            let run = self.run_of(setting, candidate.target, self.plan.rounds + 1);
            run.named(&candidate.variant).key()
        };
        candidates.iter().filter(|of| of.variant != AA).any(|of| known.contains(&key(of)))
    }

    /// Looks at a run of each candidate, and writes what is seen. `rates` are those of the rounds.
    ///
    /// # Errors
    /// An early end; a file that cannot be written.
    pub(super) fn explain_all<E: Experiment>(
        &self,
        experiment: &mut E,
        setting: Setting,
        candidates: &[Candidate],
        rates: &[Vec<Option<f64>>],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let Some(folder) = &self.plan.explain else { return Ok(()) };
        if self.is_explained(setting, candidates) {
            return Ok(());
        }
        let (load, round) = (self.load, self.plan.rounds + 1);
        let mut all = Vec::new();
        for (candidate, rates) in candidates.iter().zip(rates).filter(|(of, _)| of.variant != AA) {
            self.plan.go_on()?;
            let run = self.run_of(setting, candidate.target, round);
            let name = run.named(&candidate.variant);
            tell(Event::Run(name));
            let prepared = experiment.prepare(self, candidate);
            self.watches.set(true);
            let done = prepared.and_then(|()| self.run(experiment, candidate, run));
            self.watches.set(false);
            let seen = self.seen.take();
            let figures = match done {
                Ok((_, figures)) => figures,
                Err(error) => {
                    let error = Error::new(format!("looked at: {error}"));
                    tell(Event::Failed(name, error));
                    continue;
                }
            };
            // A load that nobody can look into has nothing to explain.
            let Some((seen, timelines, operations)) = seen else { continue };
            let rate = figures.iter().find(|(metric, _)| *metric == load.metric);
            all.push(Explained {
                candidate: candidate.clone(),
                run,
                key: name.key(),
                metric: load.metric,
                operations,
                watched_rate: rate.map_or(0.0, |(_, rate)| *rate),
                rates: rates.clone(),
                is_cut_off: false,
                seen,
                timelines,
            });
        }
        for sentence in explain::write(folder, &all)? {
            tell(Event::Note(load, sentence));
        }
        Ok(())
    }
}
