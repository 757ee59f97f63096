//! What experiments differ in.

use std::path::Path;

use crate::bench::candidate::Candidate;
use crate::bench::ratio::Ratio;
use crate::bench::rounds::Bench;
use crate::error::Result;
use crate::evidence::TargetRun;
use crate::stage::Medium;

/// Metrics with their values, in the order in which they are told.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// Those that can be had.
pub(crate) fn known(
    figures: impl IntoIterator<Item = (&'static str, Option<f64>)>,
) -> impl Iterator<Item = (&'static str, f64)> {
    figures.into_iter().filter_map(|(metric, value)| Some((metric, value?)))
}

/// What image a run starts from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StartImage<'a> {
    /// A copy of this one.
    Copy(&'a Path),
    /// So many bytes without a file system.
    Empty(u64),
    /// This one itself: runs leave it as it was, but for data.
    Itself(&'a Path),
}

/// A load with its shape and its figures. Methods come in the order in which a run calls them.
pub(crate) trait Experiment {
    /// What a run did, for its judge.
    type Outcome;

    /// Peers that uext4's default is compared with over all rounds, by `iops`.
    const RATIOS: &'static [Ratio] = &[];

    /// Makes what the candidate's runs need beside the image that all have.
    ///
    /// # Errors
    /// The candidate has no figure then.
    fn prepare(&mut self, _bench: &Bench<'_>, _candidate: &Candidate) -> Result<()> {
        Ok(())
    }

    /// What image the candidate's runs start from.
    fn start(&self, candidate: &Candidate) -> StartImage<'_>;

    /// That image as the candidate opens it.
    fn medium(&self, bench: &Bench<'_>, candidate: &Candidate, image: &Path) -> Result<Medium> {
        bench.cool(image)?;
        bench.medium(candidate, image)
    }

    /// Starts the candidate, runs the load and ends the candidate: everything is on the medium
    /// then.
    fn perform(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        medium: &Medium,
    ) -> Result<(Self::Outcome, Figures)>;

    /// Whether the image, which nobody has open, is what the load should have made of it; returns
    /// figures of it.
    fn judge(
        &self,
        bench: &Bench<'_>,
        candidate: &Candidate,
        run: TargetRun,
        image: &Path,
        outcome: &Self::Outcome,
    ) -> Result<Figures>;

    /// Makes in a new folder of a mounted directory what the image would hold.
    fn fill(&self, _bench: &Bench<'_>, _dir: &Path) -> Result<()> {
        Ok(())
    }

    /// Whether such a folder holds what the load should have made of it.
    fn judge_folder(&self, _dir: &Path, _outcome: &Self::Outcome) -> Result<()> {
        Ok(())
    }

    /// What is to be known about the figures of this run.
    fn remark(&self, _candidate: &Candidate, _outcome: &Self::Outcome) -> Option<String> {
        None
    }
}
