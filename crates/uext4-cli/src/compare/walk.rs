//! The walk down both trees at once, on several threads.
//!
//! Jobs are directories and handfuls of names; a thread takes the newest, so that few wait. Each
//! thread keeps the blocks of the files that it meets.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use uext4::{FileKind, Ino};
use uext4_ondisk::InodeFlags;

use super::blocks::{Blocks, Pending};
use super::content::{self, Buffers, Plan};
use super::entry::{Aspect, Entry, Id, What};
use super::inode::{self, Found};
use super::{Settings, Side};
use crate::failure::Why;
use crate::image_path::names;
use crate::progress::Progress;
use crate::spec;

/// Threads, at most.
const THREADS_MAX: usize = 4;
/// Names of a job.
const NAMES: usize = 256;

/// All that the walk finds, in no order.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) entries: Vec<Entry>,
    /// Lines for standard error.
    pub(super) troubles: Vec<String>,
    /// Names of files that have several.
    pub(super) linked: Vec<Linked>,
}

/// A name of a file that has several on one side at least.
pub(super) struct Linked {
    pub(super) below: Vec<u8>,
    pub(super) inodes: Pair,
}

/// What a name leads to on each side.
pub(super) type Pair = [Option<Ino>; 2];

enum Job {
    Directory { below: Vec<u8>, inodes: Pair },
    Names { below: Arc<[u8]>, names: Vec<(Vec<u8>, Pair)> },
}

#[derive(Default)]
struct Queue {
    jobs: Vec<Job>,
    busy: usize,
}

struct Walk<'a> {
    sides: &'a [Side; 2],
    settings: Settings,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Directories that were entered, by side.
    entered: Mutex<HashSet<(usize, Ino)>>,
    progress: Progress,
}

/// Walks down from a pair of inodes.
pub(super) fn run(sides: &[Side; 2], settings: Settings, roots: [Ino; 2]) -> Findings {
    let root = (Vec::new(), roots.map(Some));
    let first = Job::Names { below: Arc::from([]), names: vec![root] };
    let walk = Walk {
        sides,
        settings,
        queue: Mutex::new(Queue { jobs: vec![first], busy: 0 }),
        changed: Condvar::new(),
        entered: Mutex::new(HashSet::new()),
        progress: Progress::names("diff"),
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let mut all = Findings::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| Worker::new(&walk).work())).collect();
        for worker in workers {
            match worker.join() {
                Ok(found) => all.add(found),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    all
}

impl Findings {
    fn add(&mut self, other: Self) {
        self.entries.extend(other.entries);
        self.troubles.extend(other.troubles);
        self.linked.extend(other.linked);
    }
}

impl Walk<'_> {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // The queue is whole between any two statements that hold it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        self.queue().jobs.push(job);
        self.changed.notify_one();
    }

    /// The next job; `None` if all are done.
    fn next(&self, was_busy: bool) -> Option<Job> {
        let mut queue = self.queue();
        queue.busy -= usize::from(was_busy);
        loop {
            if let Some(job) = queue.jobs.pop() {
                queue.busy += 1;
                return Some(job);
            }
            if queue.busy == 0 {
                self.changed.notify_all();
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn enter(&self, side: usize, ino: Ino) -> bool {
        let mut entered = self.entered.lock().unwrap_or_else(PoisonError::into_inner);
        entered.insert((side, ino))
    }
}

/// A thread of the walk.
struct Worker<'a> {
    walk: &'a Walk<'a>,
    blocks: Blocks,
    buffers: Buffers,
    found: Findings,
}

/// Ends the walk for the others too when a thread panics: they would wait for it forever.
struct Busy<'a>(&'a Walk<'a>);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut queue = self.0.queue();
            queue.jobs.clear();
            queue.busy = queue.busy.saturating_sub(1);
            self.0.changed.notify_all();
        }
    }
}

impl<'a> Worker<'a> {
    fn new(walk: &'a Walk<'a>) -> Self {
        let blocks = Blocks::new(walk.sides[0].volume.layout().block_size);
        Self { walk, blocks, buffers: Buffers::new(), found: Findings::default() }
    }

    fn work(mut self) -> Findings {
        let mut was_busy = false;
        while let Some(job) = self.walk.next(was_busy) {
            let _busy = Busy(self.walk);
            was_busy = true;
            match job {
                Job::Directory { below, inodes } => self.directory(below, inodes),
                Job::Names { below, names } => {
                    self.walk.progress.add(names.len());
                    for (name, inodes) in names {
                        self.name(spec::join(&below, &name), inodes);
                    }
                }
            }
            if self.blocks.is_full() {
                self.compare_blocks();
            }
        }
        self.compare_blocks();
        self.found
    }

    fn trouble(&mut self, below: &[u8], side: usize, why: Why) {
        self.found.troubles.push(self.walk.sides[side].trouble(below, why));
    }

    /// Makes jobs of the names of a directory, or of a pair of them.
    fn directory(&mut self, below: Vec<u8>, inodes: Pair) {
        let mut listed = [Vec::new(), Vec::new()];
        for side in 0..2 {
            let Some(ino) = inodes[side] else { continue };
            match self.list(&below, side, ino) {
                Ok(names) => listed[side] = names,
                // Nothing is known of the other side's names then.
                Err(why) => return self.trouble(&below, side, why),
            }
        }
        let names = merge(listed);
        let below: Arc<[u8]> = below.into();
        let mut names = names.into_iter().peekable();
        while names.peek().is_some() {
            let names = names.by_ref().take(NAMES).collect();
            self.walk.push(Job::Names { below: Arc::clone(&below), names });
        }
    }

    fn list(&self, below: &[u8], side: usize, ino: Ino) -> Result<Vec<(Vec<u8>, Ino)>, Why> {
        if !self.walk.enter(side, ino) {
            return Err(Why::new("directory with several names, or a loop; run fsck"));
        }
        spec::check_path(below)?;
        let volume = &self.walk.sides[side].volume;
        let listed = names(volume, &volume.inode(ino)?)?;
        let mut listed: Vec<_> =
            listed.into_iter().map(|listed| (listed.name, listed.ino)).collect();
        listed.sort();
        Ok(listed)
    }

    fn look(&self, side: usize, ino: Ino) -> Result<Found, (usize, Why)> {
        let volume = &self.walk.sides[side].volume;
        let inode = volume.inode(ino).map_err(|error| (side, error.into()))?;
        Ok(Found::new(volume, inode))
    }

    fn name(&mut self, below: Vec<u8>, inodes: Pair) {
        let done = match inodes {
            [Some(a), Some(b)] => self.both(&below, [a, b]),
            [Some(ino), None] => self.only(&below, 0, ino),
            [None, Some(ino)] => self.only(&below, 1, ino),
            [None, None] => Ok(()),
        };
        if let Err((side, why)) = done {
            self.trouble(&below, side, why);
        }
    }

    /// A name of one side, with all that is below it.
    fn only(&mut self, below: &[u8], side: usize, ino: Ino) -> Result<(), (usize, Why)> {
        let attr = self.look(side, ino)?.attr;
        let what = if side == 0 { What::Removed } else { What::Added };
        let (kind, id) = (attr.kind, Id::new(&attr));
        let mut inodes = [None, None];
        inodes[side] = Some(ino);
        if id.is_linked() {
            self.found.linked.push(Linked { below: below.to_vec(), inodes });
        }
        let (below, aspects) = (below.to_vec(), Vec::new());
        if kind == FileKind::Directory {
            self.walk.push(Job::Directory { below: below.clone(), inodes });
        }
        self.found.entries.push(Entry { below, what, kind, id: Some(id), aspects });
        Ok(())
    }

    /// A name of both sides.
    fn both(&mut self, below: &[u8], inodes: [Ino; 2]) -> Result<(), (usize, Why)> {
        let (sides, settings) = (self.walk.sides, self.walk.settings);
        let pair = [&self.look(0, inodes[0])?, &self.look(1, inodes[1])?];
        let kinds = pair.map(|found| found.attr.kind);
        let is_dir = kinds.map(|kind| kind == FileKind::Directory);
        if is_dir[0] || is_dir[1] {
            let of = |side: usize| Some(inodes[side]).filter(|_| is_dir[side]);
            let inodes = [of(0), of(1)];
            self.walk.push(Job::Directory { below: below.to_vec(), inodes });
        }
        let is_linked = |side: usize| !is_dir[side] && pair[side].attr.links > 1;
        if is_linked(0) || is_linked(1) {
            let inodes = inodes.map(Some);
            self.found.linked.push(Linked { below: below.to_vec(), inodes });
        }
        let mut aspects = inode::aspects(sides, settings, pair)?;
        if kinds == [FileKind::Regular; 2] {
            let sizes = pair.map(|found| found.attr.size);
            let plan = match sizes[0] == sizes[1] {
                true => content::plan(sides, pair, settings.trust_times)?,
                false => Plan::Read,
            };
            match plan {
                Plan::Same => {}
                Plan::Blocks(runs) => {
                    let is_encrypted = pair[0].attr.flags.contains(InodeFlags::ENCRYPT);
                    let below = below.to_vec();
                    let pending = Pending { below, inodes, is_encrypted, aspects, first: None };
                    content::defer(&mut self.blocks, pending, sizes[0], &runs);
                    return Ok(());
                }
                Plan::Read => {
                    let first = content::first_difference(sides, pair, &mut self.buffers)?;
                    aspects.extend(first.map(|at| Aspect::Content(Some(at))));
                }
            }
        }
        self.changed(below.to_vec(), kinds[1], aspects);
        Ok(())
    }

    fn changed(&mut self, below: Vec<u8>, kind: FileKind, aspects: Vec<Aspect>) {
        if !aspects.is_empty() {
            let what = What::Changed;
            self.found.entries.push(Entry { below, what, kind, id: None, aspects });
        }
    }

    /// Compares the blocks that wait for it.
    fn compare_blocks(&mut self) {
        let sides = self.walk.sides;
        let troubles = &mut self.found.troubles;
        let files = self.blocks.run(sides, |file, side, why| {
            troubles.push(sides[side].trouble(&file.below, why));
        });
        for mut file in files {
            if let Some(at) = file.first {
                let at = if file.is_encrypted { self.plain(&file) } else { Some(at) };
                file.aspects.push(Aspect::Content(at));
            }
            self.changed(file.below, FileKind::Regular, file.aspects);
        }
    }

    /// The first byte that differs of encrypted files, whose blocks do.
    fn plain(&mut self, file: &Pending) -> Option<u64> {
        let pair = [&self.look(0, file.inodes[0]).ok()?, &self.look(1, file.inodes[1]).ok()?];
        content::first_difference(self.walk.sides, pair, &mut self.buffers).ok().flatten()
    }
}

/// Names of both sides, each in order, as pairs.
fn merge([a, b]: [Vec<(Vec<u8>, Ino)>; 2]) -> Vec<(Vec<u8>, Pair)> {
    let mut merged = Vec::with_capacity(a.len().max(b.len()));
    let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
    loop {
        let order = match (a.peek(), b.peek()) {
            (Some(one), Some(other)) => one.0.cmp(&other.0),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => return merged,
        };
        let was = if order.is_le() { a.next() } else { None };
        let is = if order.is_ge() { b.next() } else { None };
        let inodes = [was.as_ref().map(|(_, ino)| *ino), is.as_ref().map(|(_, ino)| *ino)];
        if let Some((name, _)) = was.or(is) {
            merged.push((name, inodes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_merged_in_order() {
        let list = |names: &[&str]| -> Vec<(Vec<u8>, Ino)> {
            names.iter().map(|name| (name.as_bytes().to_vec(), Ino::ROOT)).collect()
        };
        let (here, gone) = (Some(Ino::ROOT), None);
        let merged = merge([list(&["a", "b", "d"]), list(&["b", "c", "e"])]);
        let want = [("a", [here, gone]), ("b", [here, here]), ("c", [gone, here])];
        let want = want.into_iter().chain([("d", [here, gone]), ("e", [gone, here])]);
        let want: Vec<_> = want.map(|(name, pair)| (name.as_bytes().to_vec(), pair)).collect();
        assert_eq!(merged, want);
    }
}
