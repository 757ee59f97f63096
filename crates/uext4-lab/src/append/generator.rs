//! Threads that allocate.
//!
//! What: in the first form of E1a each thread grows a file and cuts it off, again and again. In the
//! second it hands the full file to the next thread, which cuts it off and goes on with it; one
//! thread alone has a partner that only cuts off. In E1b each thread fills one file.
//! Invariants: every operation that is counted was done: fallocate calls and truncations, not
//! syncs. All start together; the clock stops when the last one ends. A thread that waits for a
//! file holds none, and there are more files than threads: somebody always goes on.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::append::shape::{SYNC_EVERY, Shape};
use crate::append::sink::{Cell, Sink};
use crate::error::{Doing, Error, Result};
use crate::gate::Gate;
use crate::load::Form;

/// What the engine's deepest call needs, and no more.
const STACK_BYTES: usize = 256 << 10;
/// Operations between two looks at the clock.
const LOOK_EVERY: u64 = 8;

/// When threads stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// After this time, in E1a.
    pub(crate) time: Duration,
    /// When somebody sets this.
    pub(crate) stop: &'a AtomicBool,
}

/// What a turn measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// fallocate calls and truncations.
    pub(crate) operations: u64,
    /// fallocate calls.
    pub(crate) appends: u64,
    pub(crate) seconds: f64,
}

/// One thread's part.
struct Worker<'a> {
    shape: Shape,
    limits: Limits<'a>,
    failed: &'a AtomicBool,
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
pub(crate) fn run(sink: &dyn Sink, shape: &Shape, limits: Limits<'_>) -> Result<Outcome> {
    let cells: Vec<_> =
        (0..shape.files()).map(|n| sink.create(&Shape::name(n))).collect::<Result<_>>()?;
    let foreign = shape.form == Some(Form::Foreign);
    let crew = if foreign { shape.threads.max(2) } else { shape.threads };
    let rings: Vec<_> = ring(crew).into_iter().map(|ends| Mutex::new(Some(ends))).collect();
    let (gate, failed) = (Gate::default(), AtomicBool::new(false));
    let part = |number: u32| -> Result<(u64, u64)> {
        let ring = rings[number as usize].lock().unwrap_or_else(PoisonError::into_inner).take();
        let began = gate.wait();
        let end = began + limits.time;
        let mut worker =
            Worker { shape: *shape, limits, failed: &failed, end, operations: 0, appends: 0 };
        match ring.filter(|_| foreign) {
            Some(ring) if number < shape.threads => worker.pass_on(&cells, number, &ring)?,
            Some(ring) => worker.only_cut_off(&cells, &ring)?,
            None if shape.recycles => worker.recycle(&*cells[number as usize])?,
            None => worker.fill(&*cells[number as usize])?,
        }
        Ok((worker.operations, worker.appends))
    };
    let work = |number: u32| {
        let done = part(number);
        if done.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        done
    };
    let (seconds, parts) = thread::scope(|scope| {
        let work = &work;
        let mut running = Vec::new();
        for number in 0..crew {
            let builder = thread::Builder::new().stack_size(STACK_BYTES);
            let builder = builder.name(format!("load-{number}"));
            match builder.spawn_scoped(scope, move || work(number)) {
                Ok(handle) => running.push(handle),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    gate.open(0);
                    return Err(error).doing(format_args!("starting thread {number}"));
                }
            }
        }
        let began = gate.open(crew);
        let parts: Vec<Result<(u64, u64)>> = running
            .into_iter()
            .map(|handle| {
                let ended = handle.join();
                ended.map_err(|_| Error::new("a thread of the load panicked")).flatten()
            })
            .collect();
        Ok((began.elapsed().as_secs_f64(), parts))
    })?;
    let mut outcome = Outcome { seconds, ..Outcome::default() };
    for part in parts {
        let (operations, appends) = part?;
        outcome.operations += operations;
        outcome.appends += appends;
    }
    Ok(outcome)
}

/// Threads in a ring: what one sends the next one gets.
fn ring(count: u32) -> Vec<Ring> {
    let (mut outboxes, inboxes): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
    outboxes.rotate_left(1);
    outboxes.into_iter().zip(inboxes).map(|(outbox, inbox)| Ring { inbox, outbox }).collect()
}

impl Worker<'_> {
    fn is_over(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
            || self.limits.stop.load(Ordering::Relaxed)
            || (self.shape.recycles && Instant::now() >= self.end)
    }

    /// Grows a file to its full length; false if the time is over before.
    fn grow(&mut self, cell: &dyn Cell, syncs: bool) -> Result<bool> {
        let mut offset = 0;
        while offset < self.shape.file_bytes {
            if self.operations.is_multiple_of(LOOK_EVERY) && self.is_over() {
                return Ok(false);
            }
            cell.allocate(offset, self.shape.append_bytes)?;
            offset += self.shape.append_bytes;
            self.operations += 1;
            self.appends += 1;
            if syncs && self.operations.is_multiple_of(SYNC_EVERY) {
                cell.sync()?;
            }
        }
        Ok(true)
    }

    fn cut_off(&mut self, cell: &dyn Cell) -> Result<()> {
        cell.truncate()?;
        self.operations += 1;
        Ok(())
    }

    /// E1b.
    fn fill(&mut self, cell: &dyn Cell) -> Result<()> {
        match self.grow(cell, false)? {
            true => Ok(()),
            false => Err(Error::new("ended before the file was full")),
        }
    }

    /// E1a, first form.
    fn recycle(&mut self, cell: &dyn Cell) -> Result<()> {
        while self.grow(cell, false)? {
            self.cut_off(cell)?;
        }
        Ok(())
    }

    /// E1a, second form.
    fn pass_on(&mut self, cells: &[Box<dyn Cell + '_>], number: u32, ring: &Ring) -> Result<()> {
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
                    self.cut_off(&*cells[file as usize])?;
                }
                empty.push(file);
            }
            // None: whoever had one for this thread has ended.
            let Some(file) = empty.pop() else { break };
            let is_full = self.grow(&*cells[file as usize], true)?;
            if !is_full || ring.outbox.send(file).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// The partner of a single thread.
    fn only_cut_off(&mut self, cells: &[Box<dyn Cell + '_>], ring: &Ring) -> Result<()> {
        while let Ok(file) = ring.inbox.recv() {
            self.cut_off(&*cells[file as usize])?;
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
    use crate::load::Work;
    use std::collections::HashSet;
    use std::sync::atomic::AtomicU64;
    use std::thread::ThreadId;

    /// Files that know who did what to them.
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

    impl Sink for Files {
        fn make_dir(&self, _: &str) -> Result<()> {
            Ok(())
        }
        fn create(&self, _: &str) -> Result<Box<dyn Cell + '_>> {
            let file = std::sync::Arc::new(Counted { fails: self.fails, ..Counted::default() });
            self.made.lock().unwrap().push(file.clone());
            Ok(Box::new(file))
        }
        fn remove(&self, _: &str) -> Result<()> {
            Ok(())
        }
    }

    impl Cell for std::sync::Arc<Counted> {
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

    fn play(files: &Files, work: Work, form: Option<Form>, threads: u32) -> Result<Outcome> {
        let stop = AtomicBool::new(false);
        let limits = Limits { time: Duration::from_millis(50), stop: &stop };
        run(files, &Shape::new(work, form, threads, 0.001), limits)
    }

    fn sum(files: &Files, of: fn(&Counted) -> &AtomicU64) -> u64 {
        files.made.lock().unwrap().iter().map(|file| of(file).load(Ordering::Relaxed)).sum()
    }

    #[test]
    fn in_the_first_form_each_thread_cuts_its_own_file_off() {
        let files = Files::default();
        let outcome = play(&files, Work::Recycle, Some(Form::Own), 3).unwrap();
        let cuts = sum(&files, |file| &file.cuts);
        assert!(cuts > 0 && cuts == sum(&files, |file| &file.cuts_by_grower));
        assert_eq!(outcome.operations - outcome.appends, cuts);
        assert_eq!(sum(&files, |file| &file.syncs), 0);
    }

    #[test]
    fn in_the_second_form_others_cut_off_and_files_are_synced() {
        for threads in [1, 2, 5] {
            let files = Files::default();
            let outcome = play(&files, Work::Recycle, Some(Form::Foreign), threads).unwrap();
            assert!(outcome.operations > 2000 && outcome.seconds < 5.0, "{outcome:?}");
            assert!(sum(&files, |file| &file.cuts) > 0);
            assert_eq!(sum(&files, |file| &file.cuts_by_grower), 0, "{threads}");
            assert!(sum(&files, |file| &file.syncs) > 0);
        }
    }

    #[test]
    fn filling_makes_every_append_and_a_failure_ends_the_run() {
        let files = Files::default();
        let outcome = play(&files, Work::Fill, None, 3).unwrap();
        assert_eq!((outcome.operations, outcome.appends), (3 * 263, 3 * 263));
        let files = Files { fails: true, ..Files::default() };
        for form in [Form::Own, Form::Foreign] {
            let error = play(&files, Work::Recycle, Some(form), 3).unwrap_err();
            assert_eq!(error.to_string(), "as planned");
        }
    }
}
