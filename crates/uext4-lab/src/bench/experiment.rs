//! What experiments differ in.

use std::path::Path;

use crate::bench::player::Player;
use crate::bench::ratio::Ratio;
use crate::bench::turns::Bench;
use crate::error::Result;
use crate::plan::Turn;
use crate::stage::Medium;

/// Metrics with their values, in the order in which they are told.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// Those that can be had.
pub(crate) fn known(
    figures: impl IntoIterator<Item = (&'static str, Option<f64>)>,
) -> impl Iterator<Item = (&'static str, f64)> {
    figures.into_iter().filter_map(|(metric, value)| Some((metric, value?)))
}

/// What image a turn starts from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start<'a> {
    /// A copy of this one.
    Copy(&'a Path),
    /// So many bytes without a file system.
    Empty(u64),
    /// This one itself: turns leave it as it was, but for data.
    Itself(&'a Path),
}

/// A load with its shape and its figures. Methods come in the order in which a turn calls them.
pub(crate) trait Experiment {
    /// What a turn did, for whoever judges it.
    type Outcome;

    /// Peers that uext4's default is compared with over all rounds, by `iops`.
    const RATIOS: &'static [Ratio] = &[];

    /// Makes what the player's turns need beside the image that all have.
    ///
    /// # Errors
    /// The run ends: without it no turn counts.
    fn prepare(&mut self, _bench: &Bench<'_>, _player: &Player) -> Result<()> {
        Ok(())
    }

    /// What image the player's turns start from.
    fn start(&self, player: &Player) -> Start<'_>;

    /// That image as the player opens it.
    fn medium(&self, bench: &Bench<'_>, player: &Player, image: &Path) -> Result<Medium> {
        bench.cool(image)?;
        bench.medium(player, image)
    }

    /// Starts the player, runs the load and ends the player: everything is on the medium then.
    fn play(
        &self,
        bench: &Bench<'_>,
        player: &Player,
        turn: Turn,
        medium: &Medium,
    ) -> Result<(Self::Outcome, Figures)>;

    /// Whether the image, which nobody has open, is what the load should have made of it; returns
    /// figures of it.
    fn judge(
        &self,
        bench: &Bench<'_>,
        player: &Player,
        turn: Turn,
        image: &Path,
        outcome: &Self::Outcome,
    ) -> Result<Figures>;

    /// What is to be known about the figures of this turn.
    fn remark(&self, _player: &Player, _outcome: &Self::Outcome) -> Option<String> {
        None
    }
}
