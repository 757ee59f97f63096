//! The baseline: the same bytes with the same flushes, batched by hand, without a file system.
//!
//! What: a thread that syncs hands its write to the batch that gathers, and waits. One of the
//! waiters makes a batch durable while the next one gathers: all its writes at once, past the page
//! cache and by io_uring where those can be had; then one flush. Where the data becomes part of its
//! file only by a transaction (E0: a range that was only allocated), a record of 4 KiB follows and
//! a second flush: what the commit of one transaction for all of them takes at least. Overwritten
//! data (E3) needs no transaction.
//! Invariants: a thread returns when a flush that began after its write ended has succeeded. Of
//! writes to one place in a batch the last one counts.
//! Locking: `state` is held for moments, never over I/O.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use uext4_device::{Access, Caching, Device, FileDevice, FileOptions, Submission, WriteRun};

use crate::bench::files::{FileSystem, LoadFile};
use crate::error::{Doing, Error, Result};
use crate::storm::content::{LAID_OUT, stamp};
use crate::storm::storm_shape::{BLOCK, StormKind, StormShape};

/// What direct I/O needs at most, in bytes.
const ALIGNMENT: usize = 4096;
const RECORD_BYTES: usize = 4096;

/// A device that threads write to in batches.
pub(crate) struct Raw {
    device: FileDevice,
    shape: StormShape,
    state: Mutex<State>,
    /// Waiters for a batch, by the low bit of its number.
    done: [Condvar; 2],
    /// Where the record of a commit goes, in bytes; `None` where none is needed.
    record: Option<u64>,
    flushes: AtomicU64,
    batches: AtomicU64,
    syncs: AtomicU64,
}

/// A write that waits: where, in bytes, and what.
type Pending = (u64, Aligned);

#[derive(Default)]
struct State {
    gathering: Vec<Pending>,
    /// Number of the batch that gathers.
    batch: u64,
    /// Batches that are durable: those with lower numbers.
    durable: u64,
    /// Whether somebody makes a batch durable.
    busy: bool,
    error: Option<String>,
}

/// A block that direct I/O takes as it is.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(data: &[u8]) -> Self {
        let mut bytes = vec![0; data.len() + ALIGNMENT];
        let start = bytes.as_ptr().addr().next_multiple_of(ALIGNMENT) - bytes.as_ptr().addr();
        bytes[start..start + data.len()].copy_from_slice(data);
        Self { bytes, start, len: data.len() }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl Raw {
    /// Opens an image or a block device, and lays the shared file out if the shape has one.
    pub(crate) fn open(path: &Path, shape: &StormShape) -> Result<Self> {
        let options = FileOptions {
            caching: Caching::Direct,
            submission: Submission::Uring,
            ..FileOptions::new(Access::ReadWrite)
        };
        let device = FileDevice::open_with(path, &options).doing("opening the image")?;
        let record = (shape.kind != StormKind::Shared).then(|| file_start(shape, shape.files()));
        let raw = Self {
            device,
            shape: *shape,
            state: Mutex::default(),
            done: [Condvar::new(), Condvar::new()],
            record,
            flushes: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        };
        if shape.kind == StormKind::Shared {
            raw.lay_out(shape)?;
        }
        Ok(raw)
    }

    fn lay_out(&self, shape: &StormShape) -> Result<()> {
        let mut data = vec![0; BLOCK];
        for block in 0..shape.blocks() {
            stamp(&mut data, 0, block, LAID_OUT);
            self.write(u64::from(block) * BLOCK as u64, &Aligned::new(&data))?;
        }
        self.flush()
    }

    /// Flushes so far.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Syncs so far.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// Batches so far.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    fn submit(&self, pending: Pending) -> Result<()> {
        let mut state = lock(&self.state);
        state.gathering.push(pending);
        let own = state.batch;
        while state.durable <= own {
            if let Some(error) = &state.error {
                return Err(Error::new(error.clone()));
            }
            if state.busy {
                let done = &self.done[(own % 2) as usize];
                state = done.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let batch = std::mem::take(&mut state.gathering);
            state.batch += 1;
            state.busy = true;
            drop(state);
            let result = self.make_durable(batch);
            state = lock(&self.state);
            state.busy = false;
            state.durable = own + 1;
            self.done[(own % 2) as usize].notify_all();
            match result {
                // The next leader.
                Ok(()) => self.done[((own + 1) % 2) as usize].notify_one(),
                Err(error) => {
                    state.error = Some(error.to_string());
                    self.done[((own + 1) % 2) as usize].notify_all();
                    return Err(error);
                }
            }
        }
        // The batch of this thread may have failed.
        state.error.as_ref().map_or(Ok(()), |error| Err(Error::new(error.clone())))
    }

    fn make_durable(&self, mut batch: Vec<Pending>) -> Result<()> {
        let syncs = batch.len() as u64;
        // Stable: of writes to one place the last stays last, and it is the one that is kept.
        batch.sort_by_key(|(offset, _)| *offset);
        batch.reverse();
        batch.dedup_by_key(|(offset, _)| *offset);
        batch.reverse();
        self.syncs.fetch_add(syncs, Ordering::Relaxed);
        let bufs: Vec<&[u8]> = batch.iter().map(|(_, data)| data.get()).collect();
        let runs = runs_of(&batch, &bufs);
        self.device.write_many(&runs).doing("raw write")?;
        self.flush()?;
        if let Some(record) = self.record {
            self.write(record, &Aligned::new(&[0x5a; RECORD_BYTES]))?;
            self.flush()?;
        }
        self.batches.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn write(&self, offset: u64, data: &Aligned) -> Result<()> {
        self.device.write_at(offset, data.get()).doing("raw write")
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.device.flush().doing("raw flush")
    }
}

/// Joins sorted writes that follow one another.
fn runs_of<'a>(batch: &[Pending], bufs: &'a [&'a [u8]]) -> Vec<WriteRun<'a>> {
    let mut runs: Vec<WriteRun<'a>> = Vec::new();
    let mut first = 0;
    for next in 1..=batch.len() {
        let last = next - 1;
        let goes_on = batch
            .get(next)
            .is_some_and(|(offset, _)| batch[last].0 + batch[last].1.len as u64 == *offset);
        if !goes_on {
            runs.push(WriteRun { offset: batch[first].0, bufs: &bufs[first..next] });
            first = next;
        }
    }
    runs
}

/// Where a file of the shape lies on the device, in bytes.
pub(crate) fn file_start(shape: &StormShape, file: u32) -> u64 {
    u64::from(file) * u64::from(shape.blocks()) * BLOCK as u64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What they guard is whole at every moment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FileSystem for Raw {
    fn open(&self, path: &str) -> Result<Box<dyn LoadFile + '_>> {
        let file = self.shape.file_named(path).ok_or_else(|| Error::new("no such file"))?;
        let start = file_start(&self.shape, file);
        Ok(Box::new(RawFile { raw: self, start, written: Mutex::default() }))
    }
}

struct RawFile<'a> {
    raw: &'a Raw,
    start: u64,
    /// What waits for the sync.
    written: Mutex<Option<Pending>>,
}

impl LoadFile for RawFile<'_> {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        *lock(&self.written) = Some((self.start + offset, Aligned::new(data)));
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let pending = lock(&self.written).take();
        pending.map_or(Ok(()), |pending| self.raw.submit(pending))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Limits;
    use crate::storm::content;
    use crate::storm::syncers;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    #[test]
    fn every_write_is_on_the_device_and_batches_have_their_flushes() {
        for (kind, flushes) in [(StormKind::Own, 2), (StormKind::Shared, 1)] {
            let file_bytes = 16 * BLOCK as u64;
            let shape = StormShape { kind, threads: 6, journal_mib: 4, file_bytes };
            let mut image = tempfile::NamedTempFile::new().unwrap();
            image.as_file_mut().set_len(shape.image_bytes()).unwrap();
            let raw = Raw::open(image.path(), &shape).unwrap();
            let before = raw.flushes();
            let stop = AtomicBool::new(false);
            let time = Duration::from_secs(60);
            let limits = Limits { operations: Some(9), time, stop: &stop, timelines: false };
            let outcome = syncers::run(&raw, &shape, limits).unwrap();
            assert_eq!(raw.flushes() - before, flushes * raw.batches());
            assert!(raw.batches() <= 54 && outcome.operations == 54);
            drop(raw);
            let read = |file: u32, block: u32, data: &mut [u8]| {
                let at = file_start(&shape, file) + u64::from(block) * BLOCK as u64;
                image.as_file().read_exact_at(data, at).doing("read")
            };
            content::check(&shape, &outcome.more.writes, &mut { read }).unwrap();
        }
    }
}
