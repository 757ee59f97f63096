//! The order in which states are tried.
//!
//! What: for each moment of the crash, spread over the whole trace, first the extremes; then states
//! that lack or have a single write; then random ones without end.
//!
//! Invariant: no state comes twice, where two are one if they hold the same names and bytes and the
//! program had printed the same.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::model::contents::{Choices, Picked, choice};
use crate::model::explorer::Explorer;
use crate::model::options::{FileOptions, Moment, Promises};
use crate::model::random::Random;
use crate::model::spec::{Rest, SizeChoice, StateSpec};
use crate::trace::FileId;

/// Random states without a new one after which there are no more.
const TRIES: usize = 2000;

/// The states of a trace, each once.
#[derive(Debug)]
pub struct States<'a> {
    explorer: &'a Explorer,
    random: Random,
    seen: HashSet<u64>,
    /// Crashes in the order in which they are tried.
    crashes: Vec<usize>,
    phase: Phase,
    ready: VecDeque<StateSpec>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Extremes(usize),
    Singles(usize),
    Random,
}

impl Explorer {
    /// The states, the extreme ones first, each once.
    #[must_use]
    pub fn states(&self, seed: u64) -> States<'_> {
        States {
            explorer: self,
            random: Random::new(seed),
            seen: HashSet::new(),
            crashes: spread(self.steps().len()),
            phase: Phase::Extremes(0),
            ready: VecDeque::new(),
        }
    }

    /// A hash of what a state holds and what had been printed.
    pub(crate) fn fingerprint(&self, spec: &StateSpec) -> u64 {
        let (moment, promises) = self.moment(spec);
        let mut hasher = DefaultHasher::new();
        let history = self.history();
        self.printed(moment.crash).hash(&mut hasher);
        history.structure.partition_point(|step| *step < moment.committed).hash(&mut hasher);
        let choices = Choices::of(spec);
        for (id, file) in &history.files {
            if file.last_change.is_none() || !file.has_name(moment.committed) {
                continue;
            }
            let Some(picked) = history.pick(*id, &choices, moment, &promises) else { continue };
            (id, picked.size, picked.options.generation).hash(&mut hasher);
            for (at, content) in &picked.blocks {
                if at * history.block < picked.size {
                    (at, content).hash(&mut hasher);
                }
            }
        }
        hasher.finish()
    }

    /// The options of all files that have any choice.
    pub(crate) fn open_options(
        &self,
        moment: Moment,
        promises: &Promises,
    ) -> Vec<(FileId, FileOptions)> {
        let mut open = Vec::new();
        for (id, file) in &self.history().files {
            let is_settled = file.last_change.is_none_or(|step| step < promises.durable(*id));
            if is_settled || !file.has_name(moment.committed) {
                continue;
            }
            let Some(mut options) = self.history().options(*id, moment, promises) else { continue };
            options.blocks.retain(|_, block| !block.is_settled());
            if !options.blocks.is_empty() || options.sizes.smallest != options.sizes.largest {
                open.push((*id, options));
            }
        }
        open
    }
}

/// All crashes, the end first and then evenly over the trace, ever closer.
fn spread(steps: usize) -> Vec<usize> {
    let mut order = vec![steps];
    let mut stride = steps.next_power_of_two().max(1);
    while stride > 0 {
        order.extend(
            (0..steps)
                .step_by(stride)
                .filter(|at| stride * 2 > steps || at % (stride * 2) != 0 || *at == 0),
        );
        stride /= 2;
    }
    let mut seen = HashSet::new();
    order.retain(|at| seen.insert(*at));
    order
}

impl Iterator for States<'_> {
    type Item = StateSpec;

    fn next(&mut self) -> Option<StateSpec> {
        let mut tries = 0;
        loop {
            while let Some(spec) = self.ready.pop_front() {
                if self.seen.insert(self.explorer.fingerprint(&spec)) {
                    return Some(spec);
                }
            }
            match self.phase {
                Phase::Extremes(index) => {
                    self.phase = match self.crashes.get(index) {
                        Some(crash) => {
                            self.extremes(*crash);
                            Phase::Extremes(index + 1)
                        }
                        None => Phase::Singles(0),
                    };
                }
                Phase::Singles(index) => {
                    self.phase = match self.crashes.get(index) {
                        Some(crash) => {
                            self.singles(*crash);
                            Phase::Singles(index + 1)
                        }
                        None => Phase::Random,
                    };
                }
                Phase::Random if tries < TRIES => {
                    tries += 1;
                    let spec = self.random();
                    self.ready.push_back(spec);
                }
                Phase::Random => return None,
            }
        }
    }
}

impl States<'_> {
    /// How far the journal may be at a crash, the least first.
    fn commits(&self, crash: usize) -> Vec<usize> {
        let least = Promises::at(self.explorer.history(), crash).committed;
        let prefixes = &self.explorer.history().prefixes;
        let from = prefixes.partition_point(|end| *end <= least);
        let to = prefixes.partition_point(|end| *end < crash);
        let mut commits = vec![least];
        commits.extend(&prefixes[from..to.max(from)]);
        commits.push(crash);
        commits.dedup();
        commits
    }

    fn extremes(&mut self, crash: usize) {
        let commits = self.commits(crash);
        let all = self.explorer.everything(crash);
        // The outermost first, and no more of the others than a crash test has time for.
        let inner = commits.len().saturating_sub(2).min(8);
        let last = commits.len() - 1;
        let inner = (1..=inner).map(|index| commits[last.saturating_sub(index)]);
        for committed in [commits[0], commits[last]].into_iter().chain(inner) {
            let kinds = [
                (Rest::Oldest, Rest::Oldest),
                (Rest::Newest, Rest::Newest),
                (Rest::Newest, Rest::Oldest),
                (Rest::Newest, Rest::Stale),
            ];
            for (rest_of_sizes, rest_of_blocks) in kinds {
                let spec = StateSpec { committed, rest_of_sizes, rest_of_blocks, ..all.clone() };
                self.ready.push_back(spec);
            }
        }
    }

    /// States that lack or have one write, or have it in part.
    fn singles(&mut self, crash: usize) {
        let all = self.explorer.everything(crash);
        let parts = self.explorer.parts(crash);
        for part in [0, 1, parts / 2, parts.saturating_sub(1)] {
            if part < parts {
                self.ready.push_back(StateSpec { part: Some(part), ..all.clone() });
            }
        }
        let (moment, promises) = self.explorer.moment(&all);
        for (id, options) in self.explorer.open_options(moment, &promises) {
            let events = &self.explorer.history().files[&id].generations[options.generation].blocks;
            for (at, allowed) in &options.blocks {
                let mut contents: Vec<Picked> =
                    allowed.zeros.map(Picked::Version).into_iter().collect();
                contents.extend(allowed.stale.then_some(Picked::Stale));
                contents.extend(allowed.versions().map(Picked::Version));
                if allowed.stale {
                    let new = allowed.newest;
                    contents.extend([1, !1].map(|sectors| Picked::PartlyStale { new, sectors }));
                }
                if allowed.oldest < allowed.newest {
                    let (old, new) = (allowed.newest - 1, allowed.newest);
                    contents.extend([1, !1].map(|sectors| Picked::Torn { old, new, sectors }));
                }
                for content in contents {
                    let blocks = vec![choice(id, *at, &events[at], allowed, content)];
                    let lacks = StateSpec { blocks, ..all.clone() };
                    let rest_of_blocks = Rest::Oldest;
                    self.ready.push_back(StateSpec { rest_of_blocks, ..lacks.clone() });
                    self.ready.push_back(lacks);
                }
            }
            let sizes = &options.sizes;
            let block = self.explorer.history().block;
            let first = (sizes.smallest / block + 1) * block;
            let last = sizes.largest.saturating_sub(1) / block * block;
            for size in [sizes.smallest, first, last].into_iter().chain(sizes.ends.iter().copied())
            {
                let sizes = vec![SizeChoice { file: id, size }];
                for rest_of_blocks in [Rest::Newest, Rest::Oldest] {
                    let sizes = sizes.clone();
                    self.ready.push_back(StateSpec { sizes, rest_of_blocks, ..all.clone() });
                }
            }
        }
    }

    fn random(&mut self) -> StateSpec {
        let crash = self.random.below(self.explorer.steps().len() + 1);
        let commits = self.commits(crash);
        let mut spec = self.explorer.everything(crash);
        spec.committed = commits[self.random.below(commits.len())];
        let parts = self.explorer.parts(spec.committed) as usize;
        spec.part = (parts > 1 && self.random.one_in(2)).then(|| self.random.below(parts) as u64);
        let (moment, promises) = self.explorer.moment(&spec);
        // How many blocks have their newest version differs from state to state.
        let newest = self.random.below(101);
        for (id, options) in self.explorer.open_options(moment, &promises) {
            let sizes = &options.sizes;
            let size = match self.random.below(4) {
                0 => sizes.smallest,
                1 if !sizes.ends.is_empty() => sizes.ends[self.random.below(sizes.ends.len())],
                2 => {
                    let block = self.explorer.history().block;
                    let blocks = (sizes.largest - sizes.smallest) / block + 1;
                    sizes.smallest / block * block
                        + self.random.below(blocks as usize) as u64 * block
                }
                _ => sizes.largest,
            };
            spec.sizes.push(SizeChoice { file: id, size });
            let events = &self.explorer.history().files[&id].generations[options.generation].blocks;
            for (at, allowed) in &options.blocks {
                if self.random.below(100) < newest {
                    continue;
                }
                let content = self.random_content(allowed);
                spec.blocks.push(choice(id, *at, &events[at], allowed, content));
            }
        }
        spec
    }

    fn random_content(&mut self, allowed: &crate::model::options::BlockOptions) -> Picked {
        if let Some(zeros) = allowed.zeros.filter(|_| self.random.one_in(2)) {
            return Picked::Version(zeros);
        }
        let versions = allowed.newest - allowed.oldest + 1;
        let new = allowed.nearest(allowed.oldest + self.random.below(versions));
        if allowed.stale && self.random.one_in(2) {
            return match self.random.one_in(2) {
                true => Picked::Stale,
                false => Picked::PartlyStale { new, sectors: self.random.next() },
            };
        }
        if new > allowed.oldest && self.random.one_in(3) {
            let old = allowed.oldest + self.random.below(new - allowed.oldest);
            return Picked::Torn { old, new, sectors: self.random.next() };
        }
        Picked::Version(new)
    }
}
