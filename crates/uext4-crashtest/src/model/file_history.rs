//! What a trace did to one file.

use std::ops::Range;

use crate::model::generation::{Event, Generation, Source, What};
use crate::model::history::INSERT_RANGE;

/// A regular file.
#[derive(Debug)]
pub(crate) struct FileHistory {
    /// Names after steps, the first before the trace or at creation.
    names: Vec<(Option<usize>, u32)>,
    /// Bytes of a block.
    block: u64,
    /// From the begin to a shift of blocks, and from there to the next one.
    pub(crate) generations: Vec<Generation>,
    /// The next close allocates its blocks.
    pub(super) truncated_to_nothing: bool,
    /// The last step that changed its content.
    pub(crate) last_change: Option<usize>,
}

impl FileHistory {
    pub(super) fn new(
        block: u64,
        names: u32,
        since: Option<usize>,
        source: Source,
        size: u64,
    ) -> Self {
        Self {
            block,
            names: vec![(since, names)],
            generations: vec![Generation::new(None, source, size)],
            truncated_to_nothing: false,
            last_change: None,
        }
    }

    /// It has a name, if the changes of the steps before `position` are in effect.
    pub(crate) fn has_name(&self, position: usize) -> bool {
        let at = self.names.partition_point(|(step, _)| step.is_none_or(|step| step < position));
        at > 0 && self.names[at - 1].1 > 0
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> u64 {
        self.block
    }

    /// It was created before `position`.
    pub(crate) fn exists(&self, position: usize) -> bool {
        self.names[0].0.is_none_or(|step| step < position)
    }

    /// It has no name at `position` and gets one later.
    pub(crate) fn gets_a_name_after(&self, position: usize) -> bool {
        let is_later = |step: &Option<usize>| step.is_some_and(|step| step >= position);
        self.exists(position)
            && !self.has_name(position)
            && self.names.iter().any(|(step, names)| is_later(step) && *names > 0)
    }

    /// The index of the generation in effect.
    pub(crate) fn generation_at(&self, position: usize) -> usize {
        let before = |generation: &Generation| generation.since.is_none_or(|step| step < position);
        self.generations.iter().rposition(before).unwrap_or(0)
    }

    pub(super) fn now(&mut self) -> &mut Generation {
        self.generations.last_mut().expect("a file begins with one")
    }

    pub(super) fn count_names(&mut self, step: usize, change: i64) {
        let now = self.names.last().map_or(0, |(_, names)| *names);
        let next = u32::try_from(i64::from(now) + change).unwrap_or(0);
        self.names.push((Some(step), next));
    }

    /// A block has a place on the medium, once all that was written has been written back.
    pub(crate) fn is_allocated(&self, at: u64) -> bool {
        self.was_allocated(self.generations.len() - 1, at)
    }

    /// [`FileHistory::is_allocated`] at the end of a generation.
    fn was_allocated(&self, generation: usize, at: u64) -> bool {
        let events = self.generations[generation].blocks.get(&at);
        let last = events.and_then(|events| {
            events.iter().rev().find(|event| !matches!(event.what, What::Zeroed { .. }))
        });
        match last {
            Some(event) => matches!(event.what, What::Written { .. }),
            None => self.began_allocated(generation, at),
        }
    }

    /// [`FileHistory::is_allocated`] at the begin of a generation.
    pub(crate) fn began_allocated(&self, generation: usize, at: u64) -> bool {
        match &self.generations[generation].source {
            Source::Empty => false,
            Source::Image { allocated, .. } => allocated.iter().any(|range| range.contains(&at)),
            Source::Shifted { range, insert } => Source::before_shift(range, *insert, at)
                .is_some_and(|at| self.was_allocated(generation - 1, at)),
        }
    }

    /// Blocks leave the file, or are cleared.
    pub(super) fn remove(&mut self, index: usize, range: Range<u64>, what: &What) {
        let last = self.generations.len() - 1;
        let now = &self.generations[last];
        let mut gone: Vec<u64> = now.blocks.range(range.clone()).map(|(at, _)| *at).collect();
        if let Source::Image { allocated, .. } = &now.source {
            for part in allocated {
                let part = part.start.max(range.start)..part.end.min(range.end);
                gone.extend(part.filter(|at| !now.blocks.contains_key(at)));
            }
        } else if matches!(now.source, Source::Shifted { .. }) {
            let end = now.size.div_ceil(self.block).min(range.end);
            gone.extend((range.start..end).filter(|at| !now.blocks.contains_key(at)));
        }
        for at in gone {
            if self.is_allocated(at) || self.was_cleared(at) {
                self.now().events(at).push(Event { step: index, what: what.clone() });
            }
        }
    }

    /// A block is marked as unwritten.
    fn was_cleared(&self, at: u64) -> bool {
        let events = self.generations.last().and_then(|now| now.blocks.get(&at)?.last());
        events.is_some_and(|last| matches!(last.what, What::Cleared { .. }))
    }

    /// The kernel may zero marked blocks beside a new one, with which they become one extent of
    /// `extent` blocks that are written. `at_once`: what was written since has its place already.
    pub(super) fn zero_beside(&mut self, index: usize, at: u64, extent: u64, at_once: bool) {
        let reach = extent.saturating_sub(1);
        let near = at.saturating_sub(reach)..=at.saturating_add(reach);
        for (_, events) in self.now().blocks.range_mut(near).filter(|(other, _)| **other != at) {
            for event in events.iter_mut().rev() {
                match &mut event.what {
                    What::Cleared { zeroed } => {
                        zeroed.get_or_insert(index);
                        break;
                    }
                    What::Removed => break,
                    What::Written { .. } if at_once => break,
                    What::Written { .. } | What::Zeroed { .. } => {}
                }
            }
        }
    }

    /// Bytes of a block become zeros in the page cache.
    pub(super) fn zero(&mut self, index: usize, at: u64, range: Range<usize>) {
        if self.is_allocated(at) {
            self.now().events(at).push(Event { step: index, what: What::Zeroed { range } });
        }
    }

    /// A range reads as zeros: whole blocks lose their content at once, the edges are written.
    pub(super) fn clear(&mut self, index: usize, range: &Range<u64>, what: &What) {
        let block = self.block;
        let inner = range.start.div_ceil(block)..range.end / block;
        if inner.start < inner.end {
            self.remove(index, inner, what);
        }
        let first = range.start / block;
        let last = range.end / block;
        let within = |at: u64| {
            let from = range.start.max(at * block) - at * block;
            from as usize..(range.end.min((at + 1) * block) - at * block) as usize
        };
        if !range.start.is_multiple_of(block) || first == last {
            self.zero(index, first, within(first));
        }
        if !range.end.is_multiple_of(block) && last != first {
            self.zero(index, last, within(last));
        }
    }

    /// Blocks move along the file; all data has been written before that.
    pub(super) fn shift(&mut self, index: usize, range: Range<u64>, mode: u32) {
        let insert = mode & INSERT_RANGE != 0;
        let len = (range.end - range.start) * self.block;
        let before = self.now().size;
        let size = if insert { before + len } else { before.saturating_sub(len) };
        let source = Source::Shifted { range, insert };
        self.generations.push(Generation::new(Some(index), source, size));
    }
}
