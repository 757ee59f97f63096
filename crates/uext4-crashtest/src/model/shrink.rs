//! The smallest state that still fails.

use crate::error::Result;
use crate::model::contents::{Choices, Picked, choice};
use crate::model::explorer::Explorer;
use crate::model::spec::{BlockChoice, Rest, SizeChoice, StateSpec};

/// Whether a state fails.
pub type Fails<'a> = dyn FnMut(&StateSpec) -> Result<bool> + 'a;

/// States that are tried at most.
const TRIES: usize = 1000;

/// One thing that is not as the program saw it.
#[derive(Clone, Copy)]
enum Lack {
    Size(SizeChoice),
    Block(BlockChoice),
}

struct Shrinker<'a, 'b> {
    explorer: &'a Explorer,
    best: StateSpec,
    fails: &'a mut Fails<'b>,
    /// How many states may still be tried.
    left: usize,
}

impl Explorer {
    /// The smallest state that still fails: as little missing as possible, as much of the metadata
    /// in the journal as possible, and the crash as early as possible.
    ///
    /// # Errors
    /// Those of `fails`.
    pub fn shrink(&self, spec: &StateSpec, fails: &mut Fails<'_>) -> Result<StateSpec> {
        let best = self.explicit(spec);
        let mut shrinker = Shrinker { explorer: self, best, fails, left: TRIES };
        // What is fewest after a step may let another one go on.
        for _ in 0..2 {
            shrinker.commit_more()?;
            shrinker.lack_less()?;
            shrinker.crash_earlier()?;
        }
        Ok(shrinker.best)
    }

    /// The same state as what it lacks of the newest one.
    fn explicit(&self, spec: &StateSpec) -> StateSpec {
        let (moment, promises) = self.moment(spec);
        let choices = Choices::of(spec);
        let mut explicit = self.everything(moment.crash);
        (explicit.committed, explicit.part) = (moment.committed, moment.part);
        for (id, file) in &self.history().files {
            if !file.has_name(moment.committed) {
                continue;
            }
            let Some(picked) = self.history().pick(*id, &choices, moment, &promises) else {
                continue;
            };
            if picked.size != picked.options.sizes.largest {
                explicit.sizes.push(SizeChoice { file: *id, size: picked.size });
            }
            let events = &file.generations[picked.options.generation].blocks;
            for (at, content) in picked.blocks {
                let allowed = &picked.options.blocks[&at];
                let is_seen = at * self.history().block < picked.size;
                if is_seen && content != Picked::Version(allowed.newest) {
                    explicit.blocks.push(choice(*id, at, &events[&at], allowed, content));
                }
            }
        }
        explicit
    }
}

impl Shrinker<'_, '_> {
    /// Takes a state if it fails and is another one.
    fn try_state(&mut self, spec: StateSpec) -> Result<bool> {
        if self.left == 0 || spec == self.best {
            return Ok(false);
        }
        self.left -= 1;
        let fails = (self.fails)(&spec)?;
        if fails {
            self.best = spec;
        }
        Ok(fails)
    }

    fn commit_more(&mut self) -> Result<()> {
        if self.best.part.is_some() {
            self.try_state(StateSpec { part: None, ..self.best.clone() })?;
        }
        let mut committed = self.best.crash;
        while committed > self.best.committed {
            if self.try_state(StateSpec { committed, ..self.best.clone() })? {
                break;
            }
            committed -= (committed - self.best.committed).div_ceil(2);
        }
        Ok(())
    }

    /// Removes halves, quarters and so on of what is missing, as long as the state fails.
    fn lack_less(&mut self) -> Result<()> {
        let mut lacks = self.lacks();
        let mut chunk = lacks.len().max(1);
        loop {
            let mut at = 0;
            while at < lacks.len() {
                let end = (at + chunk).min(lacks.len());
                let kept: Vec<Lack> = [&lacks[..at], &lacks[end..]].concat();
                if self.try_state(self.with(&kept))? {
                    lacks = kept;
                } else {
                    at = end;
                }
            }
            if chunk == 1 || self.left == 0 {
                return Ok(());
            }
            chunk = chunk.div_ceil(2);
        }
    }

    fn crash_earlier(&mut self) -> Result<()> {
        let mut stride = self.best.crash;
        while stride > 0 {
            let crash = self.best.crash.saturating_sub(stride);
            let committed = self.best.committed.min(crash);
            if !self.try_state(StateSpec { crash, committed, ..self.best.clone() })? {
                stride /= 2;
            }
            stride = stride.min(self.best.crash);
        }
        self.best = self.explorer.explicit(&self.best);
        Ok(())
    }

    fn lacks(&self) -> Vec<Lack> {
        let sizes = self.best.sizes.iter().map(|size| Lack::Size(*size));
        sizes.chain(self.best.blocks.iter().map(|block| Lack::Block(*block))).collect()
    }

    fn with(&self, lacks: &[Lack]) -> StateSpec {
        let mut spec = StateSpec { sizes: Vec::new(), blocks: Vec::new(), ..self.best.clone() };
        for lack in lacks {
            match lack {
                Lack::Size(size) => spec.sizes.push(*size),
                Lack::Block(block) => spec.blocks.push(*block),
            }
        }
        debug_assert_eq!(spec.rest_of_blocks, Rest::Newest);
        spec
    }
}
