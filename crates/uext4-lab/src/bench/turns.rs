//! Rounds and turns.

use std::fs::{self, File};
use std::path::Path;

use crate::bench::experiment::{Experiment, Figures, Start};
use crate::bench::player::Player;
use crate::bench::ratio;
use crate::error::{Doing, Error, Result};
use crate::load::{Form, Load};
use crate::machine;
use crate::plan::{Event, Figure, Plan, Turn};
use crate::report::DEFAULT;
use crate::stage::{self, Loop, Medium, Route, Stage};
use crate::target::Target;

/// Figure that sides are compared by over all rounds.
const RATE: &str = "iops";

/// What turns of a load share.
pub(crate) struct Bench<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) load: &'static Load,
    pub(crate) stage: Stage,
}

/// What is the same in the turns of all players and rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) form: Option<Form>,
    pub(crate) threads: u32,
    /// Bytes of one read or write, as figures name them.
    pub(crate) bs: u32,
}

impl<'a> Bench<'a> {
    /// With room for images of that length.
    pub(crate) fn new(plan: &'a Plan, load: &'static Load, image_bytes: u64) -> Result<Self> {
        let stage = Stage::new(plan.store, plan.folder.as_deref(), image_bytes)?;
        Ok(Self { plan, load, stage })
    }

    /// Tells how much space the turns need at most, in bytes, and refuses them if it is not there.
    pub(crate) fn require_room(
        &self,
        what: &str,
        need: u64,
        advice: &str,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let free = stage::room(self.stage.folder())?;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let folder = self.stage.folder().parent().unwrap_or(self.stage.folder()).display();
        let (need_gib, free_gib) = (gib(need), gib(free));
        let text =
            format!("{what}: needs at most {need_gib:.1} GiB in {folder}, which has {free_gib:.1}");
        self.admit(free >= need, text, advice, tell)
    }

    /// Tells this of the space; refuses the turns if they do not fit.
    pub(crate) fn admit(
        &self,
        fits: bool,
        text: String,
        advice: &str,
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        if !fits {
            return Err(Error::new(format!("{}: {text}: {advice}", self.load.id)));
        }
        tell(Event::Note(self.load, text));
        Ok(())
    }

    /// Plays all rounds: in each of them every player has one turn. Failures of players are told.
    ///
    /// # Errors
    /// An early end; a player that cannot be prepared.
    pub(crate) fn all_rounds<E: Experiment>(
        &self,
        experiment: &mut E,
        setting: Setting,
        players: &[Player],
        tell: &mut dyn FnMut(Event<'_>),
    ) -> Result<()> {
        let mut rates = vec![Vec::new(); players.len()];
        let (load, threads) = (self.load, setting.threads);
        for round in 1..=self.plan.rounds {
            for turn in 0..players.len() {
                // Another side is first in each round: the first may find another machine.
                let at = (turn + round as usize - 1) % players.len();
                let (player, rates) = (&players[at], &mut rates[at]);
                self.plan.go_on()?;
                let (target, variant) = (player.target, &player.variant);
                tell(Event::Turn { load, target, variant, threads, round });
                experiment.prepare(self, player)?;
                let turn = self.turn(setting, target, round);
                match self.play(experiment, player, turn) {
                    Ok((outcome, figures)) => {
                        if let Some(text) = experiment.remark(player, &outcome) {
                            tell(Event::Note(load, text));
                        }
                        let rate = figures.iter().find(|(metric, _)| *metric == RATE);
                        rates.push(rate.map(|(_, value)| *value));
                        self.tell_figures(turn, variant, figures, tell);
                    }
                    Err(error) => {
                        rates.push(None);
                        let error = Error::new(format!("{variant}: {error}"));
                        tell(Event::Failed(load, target, error));
                    }
                }
            }
        }
        // Round 0: of all rounds together.
        let turn = self.turn(setting, Target::Uext4, 0);
        self.tell_figures(turn, DEFAULT, ratio::over_rounds(E::RATIOS, players, &rates), tell);
        Ok(())
    }

    /// Where the figures of a target's turn belong.
    pub(crate) fn turn(&self, setting: Setting, target: Target, round: u32) -> Turn {
        let Setting { form, threads, bs } = setting;
        Turn { load: self.load, target, form, threads, bs, round }
    }

    fn tell_figures(
        &self,
        turn: Turn,
        variant: &str,
        figures: Figures,
        tell: &mut dyn FnMut(Event<'_>),
    ) {
        for (metric, value) in figures {
            let figure = Figure { variant: variant.to_owned(), metric, value };
            tell(Event::Measured(&self.plan.measurement(turn, &figure)));
        }
    }

    /// One turn, from an image to a judged one.
    pub(crate) fn play<E: Experiment>(
        &self,
        experiment: &E,
        player: &Player,
        turn: Turn,
    ) -> Result<(E::Outcome, Figures)> {
        let start = experiment.start(player);
        if let Start::Itself(image) = start {
            return self.play_on(experiment, player, turn, image);
        }
        let image = self.stage.image("turn");
        let played =
            begin(start, &image).and_then(|()| self.play_on(experiment, player, turn, &image));
        // It may hold tens of GiB: gone before the next one is made.
        if image.exists() {
            fs::remove_file(&image).doing("removing an image")?;
        }
        played
    }

    fn play_on<E: Experiment>(
        &self,
        experiment: &E,
        player: &Player,
        turn: Turn,
        image: &Path,
    ) -> Result<(E::Outcome, Figures)> {
        let medium = experiment.medium(self, player, image)?;
        let (outcome, mut figures) = experiment.play(self, player, turn, &medium)?;
        medium.sync()?;
        medium.release()?;
        self.plan.go_on()?;
        figures.extend(experiment.judge(self, player, turn, image, &outcome)?);
        Ok((outcome, figures))
    }

    /// Makes sure that nobody starts with a part of the image in a cache.
    pub(crate) fn cool(&self, image: &Path) -> Result<()> {
        stage::drop_cached(image)?;
        machine::drop_caches();
        Ok(())
    }

    /// The image as the plan lets a player open it: on the same kind of device as all others, or
    /// as its user would.
    pub(crate) fn medium(&self, player: &Player, image: &Path) -> Result<Medium> {
        let by_loop = match (self.plan.route, player.target) {
            (Route::Device, _) => Loop::Direct,
            (Route::Natural, Target::Kernel) => Loop::Cached,
            (Route::Natural, _) => Loop::None,
        };
        Medium::new(image, by_loop)
    }
}

/// Makes the image of one turn.
fn begin(start: Start<'_>, image: &Path) -> Result<()> {
    match start {
        Start::Copy(base) => stage::copy_image(base, image),
        Start::Empty(bytes) => {
            let file = File::create(image).and_then(|file| file.set_len(bytes));
            file.doing("making an image")
        }
        Start::Itself(_) => Ok(()),
    }
}
