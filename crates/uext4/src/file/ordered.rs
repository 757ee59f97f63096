//! Data that a transaction waits for: `writeback=ordered`, a contrast.
//!
//! What: here mappings are inserted before their data is written, as the kernel's data=ordered does
//! without `dioread_nolock`. What was mapped stands on the list of its transaction; the sweep goes
//! on to write it, and so does the committer of that transaction if it comes first. Either waits
//! for the other.
//! Invariants: a transaction is not written to the log before all data on its list is on the
//! device, so no crash shows what a block held before. Data is a snapshot of pages under writeback:
//! the committer takes no lock of an inode. A sweep ends only when its data is written, so under
//! the sweep lock nothing is in flight and blocks can be freed.
//! Locking: leaves, not held over I/O.

use super::Files;
use super::batch::Run;
use crate::error::{Error, Result};
use crate::journal::OrderedData;
use crate::sync::{Condvar, LockRank, Mutex};
use std::sync::Arc;
use uext4_device::{SharedDevice, WriteRun};
use uext4_ondisk::Tid;

/// The lists of the running and the committing transaction, by the low bit of their id.
#[derive(Debug)]
pub struct OrderedWrites {
    device: SharedDevice,
    block_size: u64,
    lists: [Mutex<Vec<Arc<Job>>>; 2],
}

/// Data of one handle.
#[derive(Debug)]
pub(super) struct Job {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Debug)]
enum State {
    Waiting(Vec<Run>),
    Writing,
    Done(Option<Error>),
}

impl OrderedWrites {
    pub(super) fn new(device: SharedDevice, block_size: u64) -> Self {
        let list = || Mutex::new(LockRank::Leaf, Vec::new());
        Self { device, block_size, lists: [list(), list()] }
    }

    /// Puts data on the list of transaction `tid`, which has an open handle.
    pub(super) fn add(&self, tid: Tid, runs: Vec<Run>) -> Arc<Job> {
        let state = Mutex::new(LockRank::Leaf, State::Waiting(runs));
        let job = Arc::new(Job { state, done: Condvar::new() });
        self.list(tid).lock().push(Arc::clone(&job));
        job
    }

    fn list(&self, tid: Tid) -> &Mutex<Vec<Arc<Job>>> {
        &self.lists[(tid.get() & 1) as usize]
    }

    fn write_runs(&self, runs: &[Run]) -> Result<()> {
        let views: Vec<Vec<&[u8]>> =
            runs.iter().map(|run| run.data.iter().map(|data| &**data).collect()).collect();
        let writes: Vec<WriteRun<'_>> = runs
            .iter()
            .zip(&views)
            .map(|(run, bufs)| WriteRun { offset: run.start.get() * self.block_size, bufs })
            .collect();
        self.device.write_many(&writes).map_err(|e| Error::io("writing ordered data", e))
    }

    /// Writes the data of a job, or waits for whoever does.
    fn write_job(&self, job: &Job) -> Result<()> {
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
            // All of them: whoever waits for one must be told.
            result = result.and(self.write_job(job));
        }
        result
    }
}

impl Files {
    /// Writes data that is mapped already. A failure ends the journal: its transaction must not
    /// become durable.
    pub(super) fn write_job(&self, job: &Job) -> Result<()> {
        self.ordered.write_job(job).inspect_err(|error| self.space.journal().abort(error.clone()))
    }
}
