//! Threads that allocate.
//!
//! What: in the first form of E1a each thread grows a file and truncates it, again and again. In
//! the second it hands the full file to the next thread, which truncates it and goes on with it;
//! one thread alone has a partner that only truncates. In E1b each thread fills one file.
//! Invariants: every operation that is counted was done: fallocate calls and truncations, not
//! syncs. All start together; the clock stops when the last one ends. A thread that waits for a
//! file holds none, and there are more files than threads: somebody always goes on.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::append::append_shape::{AppendKind, AppendShape, SYNC_EVERY};
use crate::bench::files::{FileSystem, LoadFile};
use crate::bench::{self, Latencies, Limits, Thread, threads};
use crate::error::{Error, Result};
use crate::load::Form;

/// Operations between two looks at the clock.
const LOOK_EVERY: u64 = 8;

/// What a run measured: fallocate calls and truncations.
pub(crate) type AppendOutcome = bench::Outcome<Appends>;

/// The fallocate calls alone.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Appends(pub(crate) u64);

/// One thread's part.
struct Worker<'a> {
    shape: AppendShape,
    thread: Thread<'a>,
    end: Instant,
    operations: u64,
    appends: u64,
}

/// Where a thread's full files go, and where it gets others.
struct Ring {
    inbox: Receiver<u32>,
    outbox: Sender<u32>,
}

/// Runs the threads to their end. The files are made before the clock starts.
///
/// # Errors
/// The first failure of a thread; the others are stopped then.
pub(crate) fn run(
    files: &dyn FileSystem,
    shape: &AppendShape,
    limits: Limits<'_>,
) -> Result<AppendOutcome> {
    let files: Vec<_> =
        (0..shape.files()).map(|n| files.create(&AppendShape::name(n))).collect::<Result<_>>()?;
    let foreign = shape.form == Some(Form::Foreign);
    let count = if foreign { shape.threads.max(2) } else { shape.threads };
    let rings: Vec<_> = ring(count).into_iter().map(|ends| Mutex::new(Some(ends))).collect();
    let work = |thread: Thread<'_>| -> Result<(u64, u64)> {
        let number = thread.number;
        let ring = rings[number as usize].lock().unwrap_or_else(PoisonError::into_inner).take();
        let end = thread.start() + limits.time;
        let mut worker = Worker { shape: *shape, thread, end, operations: 0, appends: 0 };
        match ring.filter(|_| foreign) {
            Some(ring) if number < shape.threads => worker.pass_on(&files, number, &ring)?,
            Some(ring) => worker.only_truncate(&files, &ring)?,
            None if shape.kind == AppendKind::Recycle => {
                worker.recycle(&*files[number as usize])?
            }
            None => worker.fill(&*files[number as usize])?,
        }
        Ok((worker.operations, worker.appends))
    };
    let ended = threads::run(count, limits.stop, work, |began| began)?;
    Ok(AppendOutcome {
        operations: ended.parts.iter().map(|(operations, _)| operations).sum(),
        seconds: (ended.at - ended.meanwhile).as_secs_f64(),
        latency: Latencies::default(),
        timelines: Vec::new(),
        more: Appends(ended.parts.iter().map(|(_, appends)| appends).sum()),
    })
}

/// Threads in a ring: what one sends the next one gets.
fn ring(count: u32) -> Vec<Ring> {
    let (mut outboxes, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
    outboxes.rotate_left(1);
    outboxes.into_iter().zip(inboxes).map(|(outbox, inbox)| Ring { inbox, outbox }).collect()
}

impl Worker<'_> {
    fn is_over(&self) -> bool {
        self.thread.is_stopped()
            || (self.shape.kind == AppendKind::Recycle && Instant::now() >= self.end)
    }

    /// Grows a file to its full length; false if the time is over before.
    fn grow(&mut self, file: &dyn LoadFile, syncs: bool) -> Result<bool> {
        let mut offset = 0;
        while offset < self.shape.file_bytes {
            if self.operations.is_multiple_of(LOOK_EVERY) && self.is_over() {
                return Ok(false);
            }
            file.allocate(offset, self.shape.append_bytes)?;
            offset += self.shape.append_bytes;
            self.operations += 1;
            self.appends += 1;
            if syncs && self.operations.is_multiple_of(SYNC_EVERY) {
                file.sync()?;
            }
        }
        Ok(true)
    }

    fn truncate(&mut self, file: &dyn LoadFile) -> Result<()> {
        file.truncate()?;
        self.operations += 1;
        Ok(())
    }

    /// E1b.
    fn fill(&mut self, file: &dyn LoadFile) -> Result<()> {
        match self.grow(file, false)? {
            true => Ok(()),
            false => Err(Error::new("ended before the file was full")),
        }
    }

    /// E1a, first form.
    fn recycle(&mut self, file: &dyn LoadFile) -> Result<()> {
        while self.grow(file, false)? {
            self.truncate(file)?;
        }
        Ok(())
    }

    /// E1a, second form.
    fn pass_on(
        &mut self,
        files: &[Box<dyn LoadFile + '_>],
        number: u32,
        ring: &Ring,
    ) -> Result<()> {
        let has_partner = self.shape.threads == 1;
        let mut empty = vec![2 * number, 2 * number + 1];
        while !self.is_over() {
            loop {
                let got = if empty.is_empty() {
                    ring.inbox.recv().ok()
                } else {
                    ring.inbox.try_recv().ok()
                };
                let Some(file) = got else { break };
                if !has_partner {
                    self.truncate(&*files[file as usize])?;
                }
                empty.push(file);
            }
            // None: the thread that had one for this one has ended.
            let Some(file) = empty.pop() else { break };
            let is_full = self.grow(&*files[file as usize], true)?;
            if !is_full || ring.outbox.send(file).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The partner of a single thread.
    fn only_truncate(&mut self, files: &[Box<dyn LoadFile + '_>], ring: &Ring) -> Result<()> {
        while let Ok(file) = ring.inbox.recv() {
            self.truncate(&*files[file as usize])?;
            if ring.outbox.send(file).is_err() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    /// Files that record which thread did what to them.
    #[derive(Default)]
    struct Counted {
        grown_by: Mutex<HashSet<ThreadId>>,
        size: AtomicU64,
        cuts_by_grower: AtomicU64,
        cuts: AtomicU64,
        syncs: AtomicU64,
        fails: bool,
    }

    #[derive(Default)]
    struct Files {
        fails: bool,
        made: Mutex<Vec<std::sync::Arc<Counted>>>,
    }

    impl FileSystem for Files {
        fn create(&self, _: &str) -> Result<Box<dyn LoadFile + '_>> {
            let file = std::sync::Arc::new(Counted { fails: self.fails, ..Counted::default() });
            self.made.lock().unwrap().push(file.clone());
            Ok(Box::new(file))
        }
    }

    impl LoadFile for std::sync::Arc<Counted> {
        fn allocate(&self, offset: u64, len: u64) -> Result<()> {
            if self.fails {
                return Err(Error::new("as planned"));
            }
            assert_eq!(self.size.swap(offset + len, Ordering::Relaxed), offset, "in order");
            self.grown_by.lock().unwrap().insert(thread::current().id());
            Ok(())
        }
        fn truncate(&self) -> Result<()> {
            let mut growers = self.grown_by.lock().unwrap();
            let own = growers.contains(&thread::current().id());
            self.cuts_by_grower.fetch_add(u64::from(own), Ordering::Relaxed);
            growers.clear();
            self.cuts.fetch_add(1, Ordering::Relaxed);
            self.size.store(0, Ordering::Relaxed);
            Ok(())
        }
        fn sync(&self) -> Result<()> {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    fn run_on(
        files: &Files,
        kind: AppendKind,
        form: Option<Form>,
        threads: u32,
    ) -> Result<AppendOutcome> {
        let stop = AtomicBool::new(false);
        let time = Duration::from_millis(50);
        let limits = Limits { operations: None, time, stop: &stop, timelines: false };
        run(files, &AppendShape::new(kind, form, threads, 0.001), limits)
    }

    fn sum(files: &Files, of: fn(&Counted) -> &AtomicU64) -> u64 {
        files.made.lock().unwrap().iter().map(|file| of(file).load(Ordering::Relaxed)).sum()
    }

    #[test]
    fn in_the_first_form_each_thread_cuts_its_own_file_off() {
        let files = Files::default();
        let outcome = run_on(&files, AppendKind::Recycle, Some(Form::Own), 3).unwrap();
        let cuts = sum(&files, |file| &file.cuts);
        assert!(cuts > 0 && cuts == sum(&files, |file| &file.cuts_by_grower));
        assert_eq!(outcome.operations - outcome.more.0, cuts);
        assert_eq!(sum(&files, |file| &file.syncs), 0);
    }

    #[test]
    fn in_the_second_form_others_cut_off_and_files_are_synced() {
        for threads in [1, 2, 5] {
            let files = Files::default();
            let outcome =
                run_on(&files, AppendKind::Recycle, Some(Form::Foreign), threads).unwrap();
            assert!(outcome.operations > 2000 && outcome.seconds < 5.0, "{outcome:?}");
            assert!(sum(&files, |file| &file.cuts) > 0);
            assert_eq!(sum(&files, |file| &file.cuts_by_grower), 0, "{threads}");
            assert!(sum(&files, |file| &file.syncs) > 0);
        }
    }

    #[test]
    fn filling_makes_every_append_and_a_failure_ends_the_run() {
        let files = Files::default();
        let outcome = run_on(&files, AppendKind::Fill, None, 3).unwrap();
        assert_eq!((outcome.operations, outcome.more.0), (3 * 263, 3 * 263));
        let files = Files { fails: true, ..Files::default() };
        for form in [Form::Own, Form::Foreign] {
            let error = run_on(&files, AppendKind::Recycle, Some(form), 3).unwrap_err();
            assert_eq!(error.to_string(), "as planned");
        }
    }
}
