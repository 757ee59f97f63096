//! What is left of a regular file once it is made in the target: content, owner, attributes, mode
//! and times.
//!
//! What: a [`Filler`] does it. The walk does so itself, or hands the file to the threads of a
//! [`Crew`]: those touch nothing but the file that they were given, so that the walk may finish
//! the directory that it is in meanwhile. A file with several names is the walk's own, as a
//! link is made to a whole file only. So is one that takes the place of another.
//!
//! Locks: those of the queue and of what is done are never held together, nor while a file is
//! written.

use std::sync::{Mutex, PoisonError};

use uext4::FileKind;
use uext4_archive::Acl;

use crate::copy::tree::Words;
use crate::copy::{Meta, Source, Target, Try, Undo, mode_without_list};
use crate::failure::Why;
use crate::queue::{Closing, Limits, Queue};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;
/// Each file on the way holds its own descriptor and that of its directory: no more than 64 are.
const LIMITS: Limits = Limits { batch_files: 8, batch_bytes: 1 << 20, bytes: 2 << 20 };
/// What a file counts for at least, and at most.
const FILE_BYTES: std::ops::RangeInclusive<usize> = 32 << 10..=1 << 20;

/// Access lists, which a new file may get from its directory although the source has none. The
/// second one is a directory's.
const INHERITED: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];

/// A file that was made.
pub(crate) struct Leaf<S: Source, T: Target> {
    pub(crate) node: S::Node,
    pub(crate) made: T::Node,
    pub(crate) meta: Meta,
    /// What messages call it.
    pub(crate) path: Vec<u8>,
    pub(crate) to: Vec<u8>,
}

/// What became shorter is there as far as it goes, and told.
pub(crate) fn whole(is_whole: bool) -> Try<()> {
    match is_whole {
        true => Ok(()),
        false => Err(Why::new("became shorter while it was read")),
    }
}

/// Gives files what they are to have.
pub(crate) struct Filler<'a, S, T> {
    source: &'a S,
    target: &'a T,
    buffer: Vec<u8>,
}

impl<'a, S: Source, T: Target> Filler<'a, S, T> {
    /// One for a thread.
    pub(crate) fn new(source: &'a S, target: &'a T) -> Self {
        Self { source, target, buffer: vec![0; COPY_BYTES] }
    }

    /// Content; `count` is told how many bytes more there are. `false`: there was less than the
    /// size that the source had at first.
    pub(crate) fn contents(
        &mut self,
        (node, made): (&S::Node, &T::Node),
        meta: &Meta,
        words: Words<'_>,
        count: &mut dyn FnMut(u64),
    ) -> Try<bool> {
        let mut offset = 0;
        while let Some(data) = self.source.next_data(node, offset)? {
            offset = data.start;
            while offset < data.end {
                let left = usize::try_from(data.end - offset).unwrap_or(usize::MAX);
                let want = self.buffer.len().min(left);
                let got = self.source.read(node, offset, &mut self.buffer[..want])?;
                if got == 0 {
                    let is_stream = data.end == u64::MAX;
                    return Ok(is_stream);
                }
                words.target(self.target.write(made, offset, &self.buffer[..got]))?;
                offset += got as u64;
                count(got as u64);
            }
        }
        if offset != meta.size {
            words.target(self.target.set_len(made, meta.size))?;
        }
        Ok(true)
    }

    /// Owner, attributes, mode and times, in the order that keeps each.
    pub(crate) fn dress(
        &self,
        node: &S::Node,
        made: &T::Node,
        mut meta: Meta,
        words: Words<'_>,
    ) -> Try<()> {
        words.target(self.target.set_owner(made, &meta))?;
        let attributes = self.attributes(node, made, &mut meta, words);
        // Also after a failure: a file that is newer than its source is taken for a copy of it.
        words.target(self.target.finish(made, &meta))?;
        attributes
    }

    /// All attributes that can be given; the first failure is told. Where an access list cannot be,
    /// the mode gives no more than it would have.
    fn attributes(
        &self,
        node: &S::Node,
        made: &T::Node,
        meta: &mut Meta,
        words: Words<'_>,
    ) -> Try<()> {
        let xattrs = self.source.xattrs(node)?;
        let mut outcome = Ok(());
        let lists = match meta.kind {
            FileKind::Symlink => 0,
            FileKind::Directory => 2,
            _ => 1,
        };
        for name in &INHERITED[..lists] {
            if xattrs.iter().all(|xattr| xattr.name != **name) {
                outcome = outcome.and(words.target(self.target.remove_xattr(made, name)));
            }
        }
        for xattr in &xattrs {
            let set = words.target(self.target.set_xattr(made, xattr));
            if set.is_err() && xattr.name == INHERITED[0] {
                let list = Acl::from_xattr(&xattr.value);
                meta.mode = list.map_or(meta.mode, |list| mode_without_list(meta.mode, &list));
            }
            outcome = outcome.and(set);
        }
        outcome
    }
}

impl<S: Source, T: Undo> Filler<'_, S, T> {
    /// All that a new file is to have; half of one does not stay.
    fn fill(&mut self, leaf: Leaf<S, T>, count: &mut dyn FnMut(u64)) -> Try<()> {
        let Leaf { node, made, meta, path, to } = leaf;
        let words = Words { path: &path, to: &to };
        let is_whole = self.contents((&node, &made), &meta, words, count).inspect_err(|_| {
            let _ = self.target.undo(&made);
        })?;
        self.dress(&node, &made, meta, words)?;
        whole(is_whole)
    }
}

/// Threads that fill files which the walk has made.
pub(crate) struct Crew<S: Source, T: Target> {
    queue: Queue<Leaf<S, T>>,
    done: Mutex<Done>,
}

/// What the threads have done and not told.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) bytes: u64,
    /// Paths, and what failed there.
    pub(crate) failures: Vec<(Vec<u8>, Why)>,
}

impl<S: Source, T: Undo> Crew<S, T> {
    /// The work of one of its threads.
    pub(crate) fn work(&self, mut filler: Filler<'_, S, T>) {
        self.queue.work(|leaf| {
            let (path, mut bytes) = (leaf.path.clone(), 0);
            let filled = filler.fill(leaf, &mut |more| bytes += more);
            let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.bytes += bytes;
            done.failures.extend(filled.err().map(|why| (path, why)));
        });
    }
}

impl<S: Source, T: Target> Crew<S, T> {
    /// Without threads yet.
    pub(crate) fn new() -> Self {
        Self { queue: Queue::new(LIMITS), done: Mutex::default() }
    }

    /// Hands a file over. `false`: a thread has panicked, and nothing more is filled.
    pub(crate) fn push(&self, leaf: Leaf<S, T>) -> bool {
        let bytes = usize::try_from(leaf.meta.size).unwrap_or(usize::MAX);
        self.queue.push(leaf, bytes.clamp(*FILE_BYTES.start(), *FILE_BYTES.end()))
    }

    /// What has been done since it was asked last.
    pub(crate) fn news(&self) -> Done {
        std::mem::take(&mut self.done.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until all files are filled.
    pub(crate) fn wait(&self) {
        self.queue.wait();
    }

    /// The threads end when this is dropped.
    pub(crate) fn closing(&self) -> Closing<'_, Leaf<S, T>> {
        self.queue.closing()
    }
}
