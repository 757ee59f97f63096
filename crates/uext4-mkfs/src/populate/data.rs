//! Carrying the content of files from the source to its places.
//!
//! How: jobs are stretches of the device, each read into one buffer, file by file, and written at
//! once. Threads take them in the order of the device.

use super::Fill;
use super::tree::{ContentId, Piece};
use crate::error::{MkfsError, Result};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use uext4_device::Device;

/// Most bytes of a job.
const JOB_BYTES: u64 = 1 << 20;

/// Blocks of a file that stand one after the other, in the file and on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    /// First byte on the device.
    pub(crate) at: u64,
    /// Bytes on the device: whole blocks.
    pub(crate) len: u64,
    /// First byte of the file.
    pub(crate) offset: u64,
    /// Bytes of them that the file has; zeros follow.
    pub(crate) bytes: u64,
    pub(crate) content: ContentId,
}

/// A stretch of the device, by what it is to hold.
#[derive(Debug)]
pub(crate) struct Job {
    at: u64,
    len: u64,
    parts: Vec<Stretch>,
}

/// Makes jobs of stretches.
pub(crate) fn jobs(mut stretches: Vec<Stretch>) -> Vec<Job> {
    stretches.sort_unstable_by_key(|stretch| stretch.at);
    let mut jobs: Vec<Job> = Vec::new();
    for mut rest in stretches {
        while rest.len > 0 {
            let last =
                jobs.last_mut().filter(|job| job.at + job.len == rest.at && job.len < JOB_BYTES);
            let room = last.as_ref().map_or(JOB_BYTES, |job| JOB_BYTES - job.len);
            let len = rest.len.min(room);
            let part = Stretch { len, bytes: rest.bytes.min(len), ..rest };
            match last {
                Some(job) => {
                    job.len += len;
                    job.parts.push(part);
                }
                None => jobs.push(Job { at: rest.at, len, parts: vec![part] }),
            }
            rest.at += len;
            rest.offset += len;
            rest.len -= len;
            rest.bytes -= part.bytes;
        }
    }
    jobs
}

/// Threads that do jobs.
pub(crate) struct Carrier<'a> {
    device: &'a dyn Device,
    fill: &'a Fill<'a>,
    jobs: &'a [Job],
    next: AtomicUsize,
    written: AtomicU64,
    failure: Mutex<Option<MkfsError>>,
}

impl<'a> Carrier<'a> {
    pub(crate) fn new(device: &'a dyn Device, fill: &'a Fill<'a>, jobs: &'a [Job]) -> Self {
        let (next, written) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { device, fill, jobs, next, written, failure: Mutex::new(None) }
    }

    /// Does all jobs, while this thread does `meanwhile`. Returns the bytes that were written.
    pub(crate) fn run(self, meanwhile: impl FnOnce() -> Result<()>) -> Result<u64> {
        let outcome = std::thread::scope(|scope| {
            for _ in 1..self.fill.threads {
                scope.spawn(|| self.work());
            }
            let outcome = meanwhile();
            if outcome.is_err() {
                self.stop();
            }
            self.work();
            outcome
        });
        outcome?;
        let failure = self.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(self.written.into_inner()), Err)
    }

    /// Does jobs until there are no more.
    fn work(&self) {
        let mut buffer = Vec::new();
        loop {
            let Some(job) = self.jobs.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            if let Err(error) = self.job(job, &mut buffer) {
                self.stop();
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                return;
            }
        }
    }

    /// No more jobs are begun.
    fn stop(&self) {
        self.next.fetch_max(self.jobs.len(), Ordering::Relaxed);
    }

    fn job(&self, job: &Job, buffer: &mut Vec<u8>) -> Result<()> {
        buffer.clear();
        buffer.resize(usize::try_from(job.len).unwrap_or(0), 0);
        let mut rest = &mut buffer[..];
        let mut parts = job.parts.iter().peekable();
        let mut pieces = Vec::new();
        while let Some(part) = parts.next() {
            let (own, behind) = rest.split_at_mut(usize::try_from(part.len).unwrap_or(0));
            rest = behind;
            let bytes = usize::try_from(part.bytes).unwrap_or(0);
            if bytes > 0 {
                pieces.push(Piece { offset: part.offset, buf: &mut own[..bytes] });
            }
            // All of one file by one call.
            if parts.peek().is_none_or(|next| next.content != part.content) {
                if !pieces.is_empty() {
                    self.fill.contents.read(part.content, &mut pieces)?;
                }
                pieces.clear();
            }
        }
        let io = |source| MkfsError::Io { what: "file content", source };
        self.device.write_at(job.at, buffer).map_err(io)?;
        self.written.fetch_add(job.len, Ordering::Relaxed);
        (self.fill.progress)(job.len);
        Ok(())
    }
}
