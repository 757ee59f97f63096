//! Data that a transaction waits for: `writeback=ordered`.
//!
//! What: the order of the kernel's data=ordered without `dioread_nolock`: mappings are inserted
//! before their data is written. The handle that inserts them puts the data on a list of its
//! transaction. The writeback pass then writes it; so does the committer of the transaction if it
//! comes first. Either waits for the other.
//! Invariants: a transaction is not written to the log before all data on its list is on the
//! device, so no crash shows what a block held before. The data is a snapshot of pages under
//! writeback, so the committer takes no lock of an inode. A pass ends only when its data is
//! written: under the writeback lock nothing is in flight, and blocks can be freed.
//! Locking: leaf locks, not held over I/O.

use super::WritebackOrder;
use crate::alloc::Space;
use crate::error::{Error, Result};
use crate::file::writeback::{DataRun, HandlePlan, Item, Part, Writeback, take_overwrites};
use crate::journal::OrderedData;
use crate::sync::{Condvar, LockRank, Mutex};
use std::sync::Arc;
use uext4_device::{SharedDevice, WriteRun};
use uext4_ondisk::Tid;

#[derive(Debug)]
pub(super) struct Ordered {
    writes: Arc<OrderedWrites>,
}

/// The lists of the running and the committing transaction, by the low bit of their id.
#[derive(Debug)]
struct OrderedWrites {
    device: SharedDevice,
    block_size: u64,
    lists: [Mutex<Vec<Arc<OrderedJob>>>; 2],
}

/// The data of one handle.
#[derive(Debug)]
struct OrderedJob {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting(Vec<DataRun>),
    Writing,
    Done(Option<Error>),
}

impl Ordered {
    pub(super) fn new(space: &Space) -> Self {
        let list = || Mutex::new(LockRank::Leaf, Vec::new());
        let writes = Arc::new(OrderedWrites {
            device: Arc::clone(space.journal().cache().device()),
            block_size: u64::from(space.layout().block_size),
            lists: [list(), list()],
        });
        space.journal().set_ordered_data(&writes);
        Self { writes }
    }

    /// Makes the mappings of one handle, then writes their data.
    fn map_and_write(
        &self,
        writeback: &Writeback,
        parts: &[Part<'_>],
        items: &mut [Item],
        HandlePlan { nodes, credits }: HandlePlan,
    ) -> Result<()> {
        let journal = writeback.space().journal();
        let job = journal.run(credits, |handle| {
            let pending = items.iter_mut().filter_map(|item| item.pending.as_mut());
            let with_data = pending.filter(|pending| !pending.data.is_empty());
            let runs: Vec<DataRun> = with_data.map(|pending| pending.take_run()).collect();
            writeback.map_in(handle, parts, items, nodes)?;
            Ok((!runs.is_empty()).then(|| self.writes.add(handle.tid(), runs)))
        })?;
        let Some(job) = job else { return Ok(()) };
        // If the data cannot be written, its transaction must not become durable.
        self.writes.write_job(&job).inspect_err(|error| journal.abort(error.clone()))?;
        let epoch = journal.flush_gate().epoch();
        for item in items {
            parts[item.part].inode.note_written(epoch);
        }
        Ok(())
    }
}

impl WritebackOrder for Ordered {
    fn write_and_map(
        &self,
        writeback: &Writeback,
        parts: &mut [Part<'_>],
        times: bool,
    ) -> Result<()> {
        writeback.write_runs(take_overwrites(parts), false)?;
        writeback.note_written(parts);
        writeback.map_with(parts, times, &|parts, items, plan| {
            self.map_and_write(writeback, parts, items, plan)
        })
    }

    /// Data may still be on its way to blocks that the same transaction has mapped.
    fn recycles_blocks(&self) -> bool {
        false
    }
}

impl OrderedWrites {
    /// Puts data on the list of transaction `tid`, which has an open handle.
    fn add(&self, tid: Tid, runs: Vec<DataRun>) -> Arc<OrderedJob> {
        let state = Mutex::new(LockRank::Leaf, State::Waiting(runs));
        let job = Arc::new(OrderedJob { state, done: Condvar::new() });
        self.list(tid).lock().push(Arc::clone(&job));
        job
    }

    fn list(&self, tid: Tid) -> &Mutex<Vec<Arc<OrderedJob>>> {
        &self.lists[(tid.get() & 1) as usize]
    }

    fn write_runs(&self, runs: &[DataRun]) -> Result<()> {
        let views: Vec<Vec<&[u8]>> =
            runs.iter().map(|run| run.data.iter().map(|data| &**data).collect()).collect();
        let writes: Vec<WriteRun<'_>> = runs
            .iter()
            .zip(&views)
            .map(|(run, bufs)| WriteRun { offset: run.start.get() * self.block_size, bufs })
            .collect();
        self.device.write_many(&writes).map_err(|e| Error::io("writing ordered data", e))
    }

    /// Writes the data of a job, or waits for the thread that does.
    fn write_job(&self, job: &OrderedJob) -> Result<()> {
        let mut state = job.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::Writing) {
                State::Waiting(runs) => {
                    drop(state);
                    let written = self.write_runs(&runs);
                    *job.state.lock() = State::Done(written.clone().err());
                    job.done.notify_all();
                    return written;
                }
                State::Done(error) => {
                    *state = State::Done(error.clone());
                    return error.map_or(Ok(()), Err);
                }
                State::Writing => job.done.wait(&mut state),
            }
        }
    }
}

impl OrderedData for OrderedWrites {
    fn write(&self, tid: Tid) -> Result<()> {
        let jobs = std::mem::take(&mut *self.list(tid).lock());
        let mut result = Ok(());
        for job in &jobs {
            // Every job, even after a failure, because a writeback pass may wait for it.
            result = result.and(self.write_job(job));
        }
        result
    }
}
