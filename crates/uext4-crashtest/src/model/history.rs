//! What a trace did to each file, by step: names, sizes and blocks.
//!
//! What: the trace is walked once. Each file gets the events that can differ between the medium
//! and what the program saw, in the order of the steps. `options.rs` says which of them a crash may
//! leave out.
//!
//! Invariant: a block has at most one event of a step.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::model::base::{Base, BaseFile};
use crate::model::file_history::FileHistory;
use crate::model::generation::{Event, SizeEvent, Source, What};
use crate::model::guarantees::Guarantees;
use crate::trace::{Call, FileId, NewFile, Step, Trace};

/// fallocate(2).
pub(crate) const KEEP_SIZE: u32 = 1;
pub(crate) const PUNCH_HOLE: u32 = 2;
pub(crate) const COLLAPSE_RANGE: u32 = 8;
pub(crate) const ZERO_RANGE: u32 = 16;
pub(crate) const INSERT_RANGE: u32 = 32;

/// Bytes of an unwritten extent that the kernel zeroes rather than dividing it: the default of
/// `extent_max_zeroout_kb`.
const ZEROED_MAX: u64 = 32 << 10;

/// A sync of the trace.
#[derive(Clone, Debug)]
pub(crate) struct Sync {
    pub(crate) step: usize,
    /// `None`: of the whole file system.
    pub(crate) file: Option<FileId>,
    /// Metadata of the steps before this index is in the journal once it has returned.
    pub(crate) needs: usize,
    /// The blocks whose data is written back; `None`: all.
    pub(crate) blocks: Option<Range<u64>>,
}

/// All of a trace.
#[derive(Debug)]
pub(crate) struct History {
    /// Bytes of a block.
    pub(crate) block: u64,
    pub(crate) guarantees: Guarantees,
    /// Regular files.
    pub(crate) files: BTreeMap<FileId, FileHistory>,
    /// Steps that change metadata other than by writing, in order.
    pub(crate) structure: Vec<usize>,
    /// Ends of prefixes of the journal that differ from each other, in order.
    pub(crate) prefixes: Vec<usize>,
    pub(crate) syncs: Vec<Sync>,
    /// Steps that wrote data, in order.
    writes: Vec<usize>,
    pub(crate) times: Vec<(Duration, Duration)>,
    /// The latest begin of the steps before an index.
    latest_start: Vec<Duration>,
    /// Where the changes of inodes stand in the journal.
    changed: BTreeMap<FileId, Changed>,
}

/// Where the last changes of an inode stand in the journal, as the index after their steps.
#[derive(Debug, Default)]
struct Changed {
    /// Of any change.
    all: usize,
    /// Of one that fdatasync waits for.
    data: usize,
    /// Of a write that allocates late, by the blocks that are allocated with it or take the size
    /// further: that is in no transaction before the block is written back.
    late: BTreeMap<u64, usize>,
    /// The last of `late`.
    latest: usize,
}

impl Changed {
    /// All blocks were allocated: what came late so far is in a transaction.
    fn allocates(&mut self) {
        self.all = self.all.max(self.latest);
        self.data = self.data.max(self.latest);
    }

    /// What a sync of these blocks, or of all, waits for.
    fn needs(&self, data_only: bool, blocks: Option<&Range<u64>>) -> usize {
        let at_once = if data_only { self.data } else { self.all };
        let late = match blocks {
            None => self.latest,
            Some(blocks) if blocks.is_empty() => 0,
            Some(blocks) => self.late.range(blocks.clone()).map(|(_, at)| *at).max().unwrap_or(0),
        };
        at_once.max(late)
    }
}

impl History {
    pub(crate) fn of(base: &Base, trace: &Trace, guarantees: Guarantees) -> Result<Self> {
        let mut history = Self {
            block: base.block_size(),
            guarantees,
            files: BTreeMap::new(),
            structure: Vec::new(),
            prefixes: Vec::new(),
            syncs: Vec::new(),
            writes: Vec::new(),
            times: trace.steps.iter().map(|step| (step.started, step.returned)).collect(),
            latest_start: vec![Duration::ZERO],
            changed: BTreeMap::new(),
        };
        for (file, number) in &trace.before {
            if let Some(BaseFile { names, size, allocated }) = base.regular_file(*number)? {
                let source = Source::Image { number: *number, allocated };
                history
                    .files
                    .insert(*file, FileHistory::new(history.block, names, None, source, size));
            }
        }
        for (index, step) in trace.steps.iter().enumerate() {
            history.walk(index, step);
            let latest = history.latest_start[index].max(step.started);
            history.latest_start.push(latest);
        }
        Ok(history)
    }

    /// The steps.
    pub(crate) fn len(&self) -> usize {
        self.times.len()
    }

    /// A step had certainly returned when the power failed after the steps before `crash`.
    pub(crate) fn had_returned(&self, step: usize, crash: usize) -> bool {
        step < crash && (crash >= self.len() || self.times[step].1 <= self.latest_start[crash])
    }

    /// Data was written after a step, before the crash.
    pub(crate) fn writes_after(&self, step: usize, crash: usize) -> bool {
        let next = self.writes.partition_point(|write| *write <= step);
        self.writes.get(next).is_some_and(|write| *write < crash)
    }

    fn walk(&mut self, index: usize, step: &Step) {
        match &step.call {
            Call::Create { file, name, kind, .. } => {
                if *kind == NewFile::Regular {
                    let names = u32::from(name.is_some());
                    let source = Source::Empty;
                    let new = FileHistory::new(self.block, names, Some(index), source, 0);
                    self.files.insert(*file, new);
                }
                self.changes(index, *file, true);
                if let Some(name) = name {
                    self.changes(index, name.parent, true);
                }
            }
            Call::Link { file, name } => self.names(index, *file, 1, name.parent),
            Call::Remove { file, name } => self.names(index, *file, -1, name.parent),
            Call::Rename { file, from, to, replaced, exchange } => {
                self.changes(index, *file, false);
                self.changes(index, from.parent, true);
                self.changes(index, to.parent, true);
                if let Some(replaced) = replaced {
                    let lost = if *exchange { 0 } else { -1 };
                    self.names(index, *replaced, lost, to.parent);
                    if !exchange {
                        self.allocates(index, *file);
                    }
                }
            }
            Call::Write { file, offset, data, direct } => {
                self.write(index, *file, *offset, data, *direct);
            }
            Call::Truncate { file, size, .. } => {
                self.changes(index, *file, true);
                self.truncate(index, *file, *size);
            }
            Call::Allocate { file, mode, offset, len } => {
                self.changes(index, *file, true);
                self.allocate(index, *file, *mode, *offset..offset.saturating_add(*len));
            }
            Call::SetAttributes { file, .. } | Call::SetXattr { file, .. } => {
                self.changes(index, *file, false);
            }
            Call::Sync { file, data_only, range } => {
                let range = range.as_ref();
                let blocks = range.map(|it| it.start / self.block..it.end.div_ceil(self.block));
                let changed = self.changed.get(file);
                let needs = match self.files.contains_key(file) {
                    true => changed.map_or(0, |it| it.needs(*data_only, blocks.as_ref())),
                    // Linux 6.4: of whatever is no regular file, everything is committed.
                    false => index,
                };
                self.syncs.push(Sync { step: index, file: Some(*file), needs, blocks });
            }
            Call::SyncAll => {
                self.syncs.push(Sync { step: index, file: None, needs: index, blocks: None });
            }
            Call::Close { file } => {
                let truncated = self
                    .files
                    .get_mut(file)
                    .is_some_and(|history| std::mem::take(&mut history.truncated_to_nothing));
                if truncated {
                    self.allocates(index, *file);
                }
            }
            Call::Output(_) => {}
        }
    }

    /// A step changes an inode, and with `data` what fdatasync waits for: of a directory all of its
    /// names.
    fn changes(&mut self, index: usize, file: FileId, data: bool) {
        self.in_journal(index, file, data);
        if self.structure.last() != Some(&index) {
            self.structure.push(index);
        }
    }

    fn in_journal(&mut self, index: usize, file: FileId, data: bool) {
        let changed = self.changed.entry(file).or_default();
        changed.all = index + 1;
        if data {
            changed.data = index + 1;
        }
        self.prefix(index + 1);
    }

    fn prefix(&mut self, end: usize) {
        if self.prefixes.last() != Some(&end) {
            self.prefixes.push(end);
        }
    }

    fn names(&mut self, index: usize, file: FileId, change: i64, parent: FileId) {
        self.changes(index, file, false);
        self.changes(index, parent, true);
        let frees = self.guarantees.reuses_early();
        if let Some(history) = self.files.get_mut(&file) {
            history.count_names(index, change);
            if frees && !history.has_name(index + 1) {
                history.last_change = Some(index);
                history.remove(index, 0..u64::MAX, &What::Removed);
            }
        }
    }

    /// The kernel allocates what is not allocated yet: `auto_da_alloc`.
    fn allocates(&mut self, index: usize, file: FileId) {
        if !self.guarantees.auto_da_alloc || !self.guarantees.allocates_late() {
            return;
        }
        if let Some(history) = self.files.get_mut(&file) {
            history.now().sizes.push(SizeEvent::Allocated { step: index });
            self.changed.entry(file).or_default().allocates();
            self.prefix(index + 1);
        }
    }

    fn write(&mut self, index: usize, file: FileId, offset: u64, data: &Arc<[u8]>, direct: bool) {
        self.writes.push(index);
        let journals = self.guarantees.journals_data();
        let direct = direct && !journals;
        let block = self.block;
        let Some(history) = self.files.get_mut(&file) else { return };
        let end = offset + data.len() as u64;
        history.last_change = Some(index);
        let blocks = offset / block..end.div_ceil(block);
        let fresh: Vec<u64> = blocks.clone().filter(|at| !history.is_allocated(*at)).collect();
        if !self.guarantees.unwritten_blocks() && !direct {
            let at_once = !self.guarantees.allocates_late();
            for at in &fresh {
                history.zero_beside(index, *at, ZEROED_MAX / block, at_once);
            }
        }
        for at in blocks.clone() {
            let from = offset.max(at * block);
            let to = end.min((at + 1) * block);
            let what = What::Written {
                start: (from - at * block) as usize,
                data: Arc::clone(data),
                range: (from - offset) as usize..(to - offset) as usize,
                direct,
            };
            history.now().events(at).push(Event { step: index, what });
        }
        let now = history.now();
        // The blocks with which the size grows, if it does.
        let mut growing = 0..0;
        if end > now.size {
            growing = (now.size / block).max(blocks.start)..blocks.end;
            now.sizes.push(SizeEvent::Grown { step: index, from: offset, to: end, direct });
            now.size = end;
        }
        let changes = !growing.is_empty() || !fresh.is_empty();
        if changes && self.guarantees.allocates_late() && !direct {
            let changed = self.changed.entry(file).or_default();
            changed.late.extend(fresh.into_iter().chain(growing).map(|at| (at, index + 1)));
            changed.latest = index + 1;
            self.prefix(index + 1);
        } else if changes || journals {
            self.in_journal(index, file, true);
        }
    }

    fn truncate(&mut self, index: usize, file: FileId, size: u64) {
        let block = self.block;
        let Some(history) = self.files.get_mut(&file) else { return };
        history.last_change = Some(index);
        history.truncated_to_nothing |= size == 0;
        let before = history.now().size;
        if size < before {
            history.remove(index, size.div_ceil(block)..u64::MAX, &What::Removed);
            if !size.is_multiple_of(block) {
                history.zero(index, size / block, (size % block) as usize..block as usize);
            }
        }
        let now = history.now();
        now.sizes.push(SizeEvent::Set { step: index, size });
        now.size = size;
    }

    fn allocate(&mut self, index: usize, file: FileId, mode: u32, range: Range<u64>) {
        let block = self.block;
        let Some(history) = self.files.get_mut(&file) else { return };
        history.last_change = Some(index);
        if mode & (COLLAPSE_RANGE | INSERT_RANGE) != 0 {
            history.shift(index, range.start / block..range.end / block, mode);
            return;
        }
        match mode & (PUNCH_HOLE | ZERO_RANGE) {
            0 => {}
            PUNCH_HOLE => history.clear(index, &range, &What::Removed),
            // The blocks stay, marked as unwritten.
            _ => history.clear(index, &range, &What::Cleared { zeroed: None }),
        }
        let now = history.now();
        if mode & (PUNCH_HOLE | KEEP_SIZE) == 0 && range.end > now.size {
            now.sizes.push(SizeEvent::Set { step: index, size: range.end });
            now.size = range.end;
        }
    }
}
