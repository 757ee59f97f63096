//! What the medium may hold of a file when the power fails: the rules of docs/crash-model.md.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::model::file_history::FileHistory;
use crate::model::generation::{Event, SizeEvent, What};
use crate::model::guarantees::Mode;
use crate::model::history::History;
use crate::trace::FileId;

/// A moment of a loss of power, and how far the journal was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The steps before this have taken effect.
    pub(crate) crash: usize,
    /// The steps before this are in the journal.
    pub(crate) committed: usize,
    /// Of the last committed step only so many parts are: `Explorer::parts`.
    pub(crate) part: Option<u64>,
}

/// What the syncs that had returned promise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    /// The steps before this are in the journal.
    pub(crate) committed: usize,
    /// The data of the steps before this is durable.
    all: usize,
    /// The same of single files.
    files: BTreeMap<FileId, usize>,
    /// The same of ranges of blocks, in the order of the steps.
    ranges: BTreeMap<FileId, Vec<(usize, Range<u64>)>>,
    /// The last sync of anything.
    last: Option<usize>,
}

/// Versions of a block are counts of its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockOptions {
    /// The version that reads as zeros, if that is possible.
    pub(crate) zeros: Option<usize>,
    /// It may hold what was on the medium before.
    pub(crate) stale: bool,
    /// The oldest version of the data.
    pub(crate) oldest: usize,
    /// The newest one.
    pub(crate) newest: usize,
    /// Those between that cannot be there: marks as unwritten that the journal does not have, and
    /// whatever it lacks where data goes through it.
    pub(crate) except: Vec<usize>,
    /// The block has data of this file for certain or perhaps: it has a place on the medium.
    pub(crate) has_data: bool,
}

/// The sizes on the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SizeOptions {
    pub(crate) smallest: u64,
    pub(crate) largest: u64,
    /// Sizes in between at which a write ended; any multiple of a block is possible, too.
    pub(crate) ends: Vec<u64>,
}

/// What the medium may hold of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileOptions {
    pub(crate) generation: usize,
    pub(crate) sizes: SizeOptions,
    pub(crate) blocks: BTreeMap<u64, BlockOptions>,
}

impl BlockOptions {
    fn only(version: usize) -> Self {
        let (oldest, newest) = (version, version);
        Self { zeros: None, stale: false, oldest, newest, except: Vec::new(), has_data: true }
    }

    /// Those of a block that no step changed.
    pub(crate) fn untouched() -> Self {
        Self::only(0)
    }

    /// The versions of the data, the oldest first.
    pub(crate) fn versions(&self) -> impl Iterator<Item = usize> {
        (self.oldest..=self.newest).filter(|version| !self.except.contains(version))
    }

    /// The version that is nearest to one, from `oldest` on.
    pub(crate) fn nearest(&self, version: usize) -> usize {
        self.versions().take_while(|it| *it <= version).last().unwrap_or(self.oldest)
    }

    /// There is nothing to choose.
    pub(crate) fn is_settled(&self) -> bool {
        self.zeros.is_none() && !self.stale && self.oldest == self.newest
    }
}

impl SizeOptions {
    /// A size is possible.
    pub(crate) fn allow(&self, size: u64, block: u64) -> bool {
        size == self.smallest
            || size == self.largest
            || (self.smallest < size
                && size < self.largest
                && (size.is_multiple_of(block) || self.ends.contains(&size)))
    }
}

impl Promises {
    /// Those of a crash after the steps before `crash`.
    pub(crate) fn at(history: &History, crash: usize) -> Self {
        let mut promises = Self::default();
        for sync in &history.syncs {
            if !history.had_returned(sync.step, crash) {
                continue;
            }
            promises.committed = promises.committed.max(sync.needs);
            promises.last = promises.last.max(Some(sync.step));
            match (sync.file, &sync.blocks) {
                (None, _) => promises.all = promises.all.max(sync.step),
                (Some(file), Some(blocks)) => {
                    let ranges = promises.ranges.entry(file).or_default();
                    ranges.push((sync.step, blocks.clone()));
                }
                (Some(file), None) => {
                    let durable = promises.files.entry(file).or_default();
                    *durable = (*durable).max(sync.step);
                }
            }
        }
        promises
    }

    /// The data of a file that was written by the steps before this is durable.
    pub(crate) fn durable(&self, file: FileId) -> usize {
        self.all.max(self.files.get(&file).copied().unwrap_or(0))
    }

    fn ranges(&self, file: FileId) -> &[(usize, Range<u64>)] {
        self.ranges.get(&file).map_or(&[], Vec::as_slice)
    }
}

/// What decides about one file.
struct View<'a> {
    history: &'a History,
    file: &'a FileHistory,
    generation: usize,
    moment: Moment,
    durable: usize,
    /// Ranges of blocks that are durable up to a step.
    ranges: &'a [(usize, Range<u64>)],
    last_sync: Option<usize>,
}

impl History {
    /// What the medium may hold of a file.
    pub(crate) fn options(
        &self,
        id: FileId,
        moment: Moment,
        promises: &Promises,
    ) -> Option<FileOptions> {
        let file = self.files.get(&id)?;
        let generation = file.generation_at(moment.committed);
        let durable = promises.durable(id);
        let last_sync = promises.last;
        let ranges = promises.ranges(id);
        let view = View { history: self, file, generation, moment, durable, ranges, last_sync };
        let blocks = file.generations[generation].blocks.iter();
        let blocks = blocks.map(|(at, events)| (*at, view.block(*at, events))).collect();
        Some(FileOptions { generation, sizes: view.sizes(), blocks })
    }
}

impl View<'_> {
    /// An event of a block is in the journal, if it goes there.
    fn in_journal(&self, event: &Event, at: u64) -> bool {
        let Moment { committed, part, .. } = self.moment;
        let Some(part) = part.filter(|_| event.step + 1 == committed) else {
            return event.step < committed;
        };
        match &event.what {
            What::Written { start, range, .. } => {
                // The offset in the write of what is in this block.
                let begin = at * self.history.block + *start as u64 - range.start as u64;
                at < (begin / self.history.block).saturating_add(part)
            }
            // Of a range whose ends lie within blocks: after the size the marks, then the ends.
            What::Cleared { .. } => part > 0,
            What::Zeroed { .. } | What::Removed => false,
        }
    }

    fn block(&self, at: u64, events: &[Event]) -> BlockOptions {
        if self.history.guarantees.journals_data() {
            let version = events.iter().take_while(|event| self.in_journal(event, at)).count();
            return self.journaled_block(events, version);
        }
        let gone =
            events.iter().rposition(|event| event.what.is_removal() && self.in_journal(event, at));
        let start = gone.map_or(0, |index| index + 1);
        let is_taken = |event: &Event| matches!(event.what, What::Removed);
        let visible = events[start..]
            .iter()
            .take_while(|event| !is_taken(event) && event.step < self.moment.crash);
        let until = start + visible.count();
        let mut end = until;
        // A mark as unwritten that the journal does not have clears nothing by itself, but the same
        // block has what was written after it.
        let is_mark = |event: &Event| event.what.is_removal() && !self.is_zeroed(event);
        while end > start && is_mark(&events[end - 1]) {
            end -= 1;
        }
        let mut options = self.present_block(at, events, gone, end);
        options.except = (start..end).filter(|at| is_mark(&events[*at])).map(|at| at + 1).collect();
        // It was taken from the file, and the journal does not know it yet.
        let taken = events.get(until).filter(|event| event.step < self.moment.crash);
        options.stale |= options.has_data
            && self.history.guarantees.reuses_early()
            && taken.is_some_and(|event| self.history.writes_after(event.step, self.moment.crash));
        options
    }

    /// A block was marked as unwritten, and zeroed on the medium for a write beside it.
    fn is_zeroed(&self, event: &Event) -> bool {
        let What::Cleared { zeroed } = event.what else { return false };
        zeroed.is_some_and(|step| step < self.moment.crash)
    }

    /// A block whose data is in the journal up to a version. Only zeros go past it: they may be on
    /// the medium before the journal has the mark, and a replay of what was there may undo them.
    fn journaled_block(&self, events: &[Event], version: usize) -> BlockOptions {
        let mut options = BlockOptions::only(version);
        if let [before @ .., Event { what: What::Cleared { zeroed: Some(step) }, .. }] =
            &events[..version]
            && *step < self.moment.committed
        {
            // Marks are no end of that: only blocks that were given away are revoked.
            let is_mark = |event: &&Event| matches!(event.what, What::Cleared { .. });
            let marks = before.iter().rev().take_while(is_mark).count();
            let start = before.len() - marks;
            if start > 0 && !before[start - 1].what.is_removal() {
                options.oldest = start;
            }
        }
        // What comes after the blocks were given away is in other blocks.
        let end = events[version..].iter().position(|event| matches!(event.what, What::Removed));
        let end = end.map_or(events.len(), |index| version + index);
        let after = (version..end).filter(|index| self.is_zeroed(&events[*index]));
        let zeroed: Vec<usize> = after.map(|index| index + 1).collect();
        options.newest = zeroed.last().copied().unwrap_or(version);
        let others = version + 1..options.newest;
        options.except = others.filter(|version| !zeroed.contains(version)).collect();
        options
    }

    /// A block after the last removal that is in the journal, `gone`, and before the next one.
    fn present_block(
        &self,
        at: u64,
        events: &[Event],
        gone: Option<usize>,
        end: usize,
    ) -> BlockOptions {
        let start = gone.map_or(0, |index| index + 1);
        if gone.is_none() && self.file.began_allocated(self.generation, at) {
            let mut options = BlockOptions::only(start);
            options.newest = end;
            options.oldest = self.oldest(at, events, start, end);
            return options;
        }
        self.fresh_block(at, events, start, end)
    }

    /// A block that the file gets by a write.
    fn fresh_block(&self, at: u64, events: &[Event], start: usize, end: usize) -> BlockOptions {
        let guarantees = &self.history.guarantees;
        let is_write = |event: &Event| matches!(event.what, What::Written { .. });
        let first = events[start..end].iter().position(is_write).map(|index| start + index);
        let Some(first) = first.filter(|index| self.in_journal(&events[*index], at)) else {
            return BlockOptions { has_data: false, ..BlockOptions::only(start) };
        };
        let step = events[first].step;
        let allocated = self.allocated_after(step);
        let is_direct = matches!(events[first].what, What::Written { direct: true, .. });
        // A flush waits for no more: what was allocated before is written in place.
        let oldest = self.oldest(at, events, first + 1, end);
        let is_durable = step < self.durable_at(at) || is_direct;
        let has_place = !guarantees.allocates_late() || allocated.is_some();
        let shows_data = guarantees.commit_waits_for_data();
        // Allocated, it reads as zeros only while it is marked as unwritten.
        let may_be_zeros = if has_place { guarantees.unwritten_blocks() } else { true };
        BlockOptions {
            zeros: (may_be_zeros && !is_durable).then_some(start),
            stale: guarantees.shows_stale_blocks() && !is_durable && !shows_data,
            oldest,
            newest: end,
            except: Vec::new(),
            has_data: true,
        }
    }

    /// The oldest version from `first` on that can be on the medium.
    fn oldest(&self, at: u64, events: &[Event], first: usize, end: usize) -> usize {
        let mut oldest = first.max(version_before(events, self.durable_at(at), end));
        for (index, event) in events.iter().enumerate().take(end).skip(first.saturating_sub(1)) {
            let is_durable = match &event.what {
                What::Written { direct: true, .. } => self.flushed(event.step),
                // The commit of a truncate waits for the block that it cleared in part.
                What::Zeroed { .. } => {
                    self.history.guarantees.mode == Mode::Ordered && self.in_journal(event, at)
                }
                _ => false,
            };
            if is_durable {
                oldest = oldest.max(index + 1);
            }
        }
        oldest
    }

    /// What the steps before this wrote in a block is durable.
    fn durable_at(&self, at: u64) -> usize {
        let covering = self.ranges.iter().filter(|(_, blocks)| blocks.contains(&at));
        covering.map(|(step, _)| *step).fold(self.durable, usize::max)
    }

    /// A sync of anything began after this step had returned, and has returned itself.
    fn flushed(&self, step: usize) -> bool {
        let times = &self.history.times;
        self.last_sync.is_some_and(|sync| step < sync && times[step].1 <= times[sync].0)
    }

    /// The last allocation of all blocks that is in the journal and came after a step.
    fn allocated_after(&self, step: usize) -> Option<usize> {
        let sizes = self.file.generations[self.generation].sizes.iter().rev();
        let flushes = sizes.filter(|event| matches!(event, SizeEvent::Allocated { .. }));
        flushes.map(SizeEvent::step).find(|at| self.has_allocation(*at)).filter(|at| step < *at)
    }

    /// The journal has an allocation of all blocks at a step: it has the step, or a sync of some
    /// range waited for it. The allocation came in an earlier transaction than the rename, perhaps.
    fn has_allocation(&self, step: usize) -> bool {
        step < self.moment.committed || self.ranges.last().is_some_and(|(sync, _)| step < *sync)
    }

    fn sizes(&self) -> SizeOptions {
        let generation = &self.file.generations[self.generation];
        let late = self.history.guarantees.allocates_late();
        let block = self.history.block;
        let (mut smallest, mut largest) = (generation.first_size, generation.first_size);
        let mut ends = Vec::new();
        let mut durable = false;
        let mut ranges = self.ranges.iter().peekable();
        // A sync of a range takes the size no further than to the range's end.
        let reached = |end: u64, largest: u64| largest.min(end.saturating_mul(block));
        for event in &generation.sizes {
            while let Some((_, blocks)) = ranges.next_if(|(step, _)| *step <= event.step()) {
                smallest = smallest.max(reached(blocks.end, largest));
            }
            if !durable && event.step() >= self.durable {
                (durable, smallest) = (true, largest);
            }
            let is_in_journal = match event {
                SizeEvent::Allocated { step } => self.has_allocation(*step),
                _ => event.step() < self.moment.committed,
            };
            if !is_in_journal {
                break;
            }
            match *event {
                SizeEvent::Set { size, .. } => (smallest, largest) = (size, size),
                SizeEvent::Allocated { .. } => smallest = largest,
                // No block of it is there: the size goes with the first.
                SizeEvent::Grown { step, .. }
                    if step + 1 == self.moment.committed && self.moment.part == Some(0) => {}
                SizeEvent::Grown { step, from, to, direct } => {
                    let part = self.moment.part.filter(|_| step + 1 == self.moment.committed);
                    let to = part.map_or(to, |part| to.min((from / block + part) * block));
                    largest = largest.max(to);
                    ends.push(to);
                    if direct || !late {
                        smallest = largest;
                    }
                }
            }
        }
        for (_, blocks) in ranges {
            smallest = smallest.max(reached(blocks.end, largest));
        }
        if generation.sizes.last().is_some_and(|event| event.step() < self.durable) {
            smallest = largest;
        }
        ends.retain(|size| smallest < *size && *size < largest);
        SizeOptions { smallest, largest, ends }
    }
}

/// The version after the steps before `step`, at most `end`.
fn version_before(events: &[Event], step: usize, end: usize) -> usize {
    events[..end].iter().take_while(|event| event.step < step).count()
}
