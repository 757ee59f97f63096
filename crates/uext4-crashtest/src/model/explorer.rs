//! The states that a loss of power could leave of a trace.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use uext4_device::MemoryDevice;

use crate::error::Result;
use crate::model::base::{Base, Entries};
use crate::model::guarantees::Guarantees;
use crate::model::history::{History, ZERO_RANGE};
use crate::model::options::{Moment, Promises};
use crate::model::replay::Checkpoint;
use crate::model::spec::{Rest, StateSpec};
use crate::trace::{Call, FileId, Step, Trace};

/// The states of one trace.
#[derive(Debug)]
pub struct Explorer {
    base: Base,
    /// The names of the base.
    entries: Entries,
    steps: Vec<Step>,
    before: Vec<(FileId, u32)>,
    history: History,
    /// Bytes of output before each step, and of all.
    printed: Vec<usize>,
    checkpoints: Mutex<BTreeMap<usize, Arc<Checkpoint>>>,
}

impl Explorer {
    /// The states that a loss of power could leave of a trace, which began on an image that was
    /// closed cleanly.
    ///
    /// # Errors
    /// An image that cannot be read, or that does not have what the trace names.
    pub fn new(base: &MemoryDevice, trace: &Trace, guarantees: Guarantees) -> Result<Self> {
        let base = Base::of(base)?;
        let history = History::of(&base, trace, guarantees)?;
        let entries = base.entries()?;
        let first = Arc::new(Checkpoint::of(&base, &trace.before));
        let mut printed = vec![0];
        for step in &trace.steps {
            let bytes = match &step.call {
                Call::Output(bytes) => bytes.len(),
                _ => 0,
            };
            printed.push(printed.last().copied().unwrap_or(0) + bytes);
        }
        let (steps, before) = (trace.steps.clone(), trace.before.clone());
        let checkpoints = Mutex::new(BTreeMap::from([(0, first)]));
        Ok(Self { base, entries, steps, before, history, printed, checkpoints })
    }

    /// What is guaranteed.
    #[must_use]
    pub fn guarantees(&self) -> Guarantees {
        self.history.guarantees
    }

    /// What the program had printed when the power failed.
    #[must_use]
    pub fn acknowledged(&self, spec: &StateSpec) -> Vec<u8> {
        let mut bytes = Vec::new();
        for step in &self.steps[..spec.crash.min(self.steps.len())] {
            if let Call::Output(printed) = &step.call {
                bytes.extend_from_slice(printed);
            }
        }
        bytes
    }

    /// The state that has everything before a crash.
    #[must_use]
    pub fn everything(&self, crash: usize) -> StateSpec {
        StateSpec {
            crash,
            committed: crash,
            part: None,
            rest_of_sizes: Rest::Newest,
            rest_of_blocks: Rest::Newest,
            sizes: Vec::new(),
            blocks: Vec::new(),
        }
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub(crate) fn before(&self) -> &[(FileId, u32)] {
        &self.before
    }

    pub(crate) fn history(&self) -> &History {
        &self.history
    }

    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    pub(crate) fn checkpoints(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Checkpoint>>> {
        self.checkpoints.lock()
    }

    /// Bytes that were printed before a step.
    pub(crate) fn printed(&self, crash: usize) -> usize {
        self.printed[crash.min(self.steps.len())]
    }

    /// How often the last step of a prefix of the journal can be there in part: the blocks of a
    /// write that goes there block by block, or what comes before the last handle of a zeroed range
    /// whose ends lie within blocks. 0 otherwise.
    pub(crate) fn parts(&self, committed: usize) -> u64 {
        let last = committed.checked_sub(1).map(|last| &self.steps[last].call);
        let block = self.history.block;
        match last {
            Some(Call::Write { offset, data, .. }) if !self.guarantees().allocates_late() => {
                (offset + data.len() as u64).div_ceil(block) - offset / block
            }
            // The size; the marks of whole blocks.
            Some(Call::Allocate { mode, offset, len, .. })
                if mode & ZERO_RANGE != 0
                    && !(offset | offset.saturating_add(*len)).is_multiple_of(block) =>
            {
                2
            }
            _ => 0,
        }
    }

    /// The nearest moment that is possible, and what is promised then.
    pub(crate) fn moment(&self, spec: &StateSpec) -> (Moment, Promises) {
        let crash = spec.crash.min(self.steps.len());
        let promises = Promises::at(&self.history, crash);
        let committed = spec.committed.clamp(promises.committed, crash);
        let is_open = |part: &u64| committed > promises.committed && *part < self.parts(committed);
        let part = spec.part.filter(is_open);
        (Moment { crash, committed, part }, promises)
    }
}
