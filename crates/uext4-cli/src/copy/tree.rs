//! The walk: copies a file or a tree from any source to any target.
//!
//! Depth costs heap, not stack, and a directory that is its own ancestor (a corrupt image) is
//! reported instead of followed. A failure is reported and the rest goes on, as cp(1) does.

use std::collections::{HashMap, HashSet};
use std::vec::IntoIter;

use uext4::FileKind;

use crate::copy::leaf::{Crew, Done, Filler, Leaf, whole};
use crate::copy::{Id, Meta, Source, Target, There, Try, check_name};
use crate::failure::{Outcome, Why};
use crate::output::Told;
use crate::progress::Progress;
use crate::spec;

/// What a copy is asked to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// The verb that copies, for messages.
    pub(crate) verb: &'static str,
    /// Copy directories.
    pub(crate) recursive: bool,
    /// Leave what is there.
    pub(crate) no_clobber: bool,
    /// Leave what is there and not older.
    pub(crate) update: bool,
    /// Name each file on standard output.
    pub(crate) verbose: bool,
}

impl Settings {
    /// Whether something that is there may stay.
    fn may_keep(&self) -> bool {
        self.no_clobber || self.update
    }

    /// Whether what is there stays.
    pub(crate) fn keeps(&self, there: There, meta: &Meta) -> bool {
        self.no_clobber || self.update && there.mtime >= (meta.mtime.secs, meta.mtime.nanos)
    }
}

/// Files with several names that were copied, by what they are in the source: hard links are kept
/// among all that is copied with one table.
pub(crate) type Links<T> = HashMap<Id, <T as Target>::Saved>;

/// Where a copier tells of its work.
pub(crate) struct Reports<'a> {
    /// How far it is.
    pub(crate) progress: &'a mut Progress,
    /// What failed.
    pub(crate) outcome: &'a mut Outcome,
    /// The images of the command, as files of the host: neither copied nor replaced.
    pub(crate) images: &'a [Id],
}

/// State of one copy.
pub(crate) struct Copier<'a, S: Source, T: Target> {
    source: &'a S,
    target: &'a T,
    settings: Settings,
    links: &'a mut Links<T>,
    filler: Filler<'a, S, T>,
    crew: Option<&'a Crew<S, T>>,
    progress: &'a mut Progress,
    outcome: &'a mut Outcome,
    images: &'a [Id],
    is_full: bool,
}

/// A directory being copied.
struct Level<S: Source, T: Target> {
    node: S::Node,
    made: T::Node,
    names: IntoIter<Vec<u8>>,
    path: Vec<u8>,
    to: Vec<u8>,
}

/// What messages call the two sides of a copy.
#[derive(Clone, Copy)]
pub(crate) struct Words<'w> {
    /// The source.
    pub(crate) path: &'w [u8],
    /// The target.
    pub(crate) to: &'w [u8],
}

impl Words<'_> {
    /// A step of the target; where it fails the message names the target.
    pub(crate) fn target<T>(self, step: Try<T>) -> Try<T> {
        step.map_err(|why| why.of(spec::show(self.to)))
    }
}

/// Where a file goes: a name in a directory.
#[derive(Clone, Copy)]
struct Spot<'s, N> {
    dir: &'s N,
    name: &'s [u8],
    /// Named on the command line, so that links and devices there are what is meant.
    is_meant: bool,
}

impl<'a, S: Source, T: Target> Copier<'a, S, T> {
    /// A copier from `source` to `target`.
    pub(crate) fn new(
        source: &'a S,
        target: &'a T,
        settings: Settings,
        links: &'a mut Links<T>,
        Reports { progress, outcome, images }: Reports<'a>,
    ) -> Self {
        let filler = Filler::new(source, target);
        let (crew, is_full) = (None, false);
        Self { source, target, settings, links, filler, crew, progress, outcome, images, is_full }
    }

    /// The same, which leaves the content of new files to the threads of `crew`. Nothing is
    /// finished before [`Self::settle`].
    pub(crate) fn with_crew(self, crew: &'a Crew<S, T>) -> Self {
        Self { crew: Some(crew), ..self }
    }

    /// Waits for the crew.
    pub(crate) fn settle(&mut self) {
        if let Some(crew) = self.crew {
            crew.wait();
            self.report(crew);
        }
    }

    /// Tells what the crew has done.
    fn report(&mut self, crew: &Crew<S, T>) {
        let Done { bytes, failures } = crew.news();
        self.progress.add_bytes(bytes);
        for (path, why) in failures {
            self.note(&path, why);
        }
    }

    /// Whether nothing more can be written. What stands where the next file would go must stay.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Copies `node` to `name` in `dir`. `is_meant`: what is there by that name is what the user
    /// named, and is written into where it is a link, a device or a fifo ([`Target::in_place`]).
    pub(crate) fn copy(
        &mut self,
        node: S::Node,
        words: Words<'_>,
        (dir, name): (&T::Node, &[u8]),
        is_meant: bool,
    ) {
        match self.one(node, words, Spot { dir, name, is_meant }) {
            Ok(Some(level)) => self.walk(level),
            Ok(None) => {}
            Err(why) => self.note(words.path, why),
        }
    }

    /// Copies what is in the directory `node` into `dir`, and its attributes onto it.
    pub(crate) fn copy_contents(&mut self, node: S::Node, words: Words<'_>, dir: T::Node) {
        match self.level(node, words, dir) {
            Ok(level) => self.walk(level),
            Err(why) => self.note(words.path, why),
        }
    }

    fn note(&mut self, path: &[u8], why: Why) {
        // The reason that ends all is told once.
        if self.is_full {
            return;
        }
        self.is_full = why.is_final();
        self.outcome.note(why.at(self.settings.verb, spec::show(path)));
    }

    fn walk(&mut self, first: Level<S, T>) {
        let mut entered = HashSet::from([self.source.meta(&first.node).id]);
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            let next = if self.is_full { None } else { level.names.next() };
            let Some(name) = next else {
                let done = levels.pop().expect("just seen");
                // Last of all: making the entries has changed the directory's times.
                let meta = self.source.meta(&done.node);
                let words = Words { path: &done.path, to: &done.to };
                if let Err(why) = self.filler.dress(&done.node, &done.made, meta, words) {
                    self.note(&done.path, why);
                }
                continue;
            };
            let (path, to) = (spec::join(&level.path, &name), spec::join(&level.to, &name));
            let found = check_name(&name).and_then(|()| self.source.child(&level.node, &name));
            let made = found.and_then(|node| {
                if self.source.is_left_out(&node, &path)? {
                    return Ok(None);
                }
                let meta = self.source.meta(&node);
                if levels.iter().any(|level| self.source.meta(&level.node).id == meta.id) {
                    return Err(Why::new("directory loop; run fsck"));
                }
                let mut is_second = || self.source.is_tree() && !entered.insert(meta.id);
                if meta.kind == FileKind::Directory && is_second() {
                    return Err(Why::new("a second name of a directory; run fsck"));
                }
                let level = levels.last().expect("not popped since");
                let spot = Spot { dir: &level.made, name: &name, is_meant: false };
                self.one(node, Words { path: &path, to: &to }, spot)
            });
            match made {
                Ok(Some(level)) => levels.push(level),
                Ok(None) => {}
                Err(why) => self.note(&path, why),
            }
        }
    }

    fn level(&self, node: S::Node, words: Words<'_>, made: T::Node) -> Try<Level<S, T>> {
        spec::check_path(words.path)?;
        let names = self.source.names(&node)?.into_iter();
        Ok(Level { node, made, names, path: words.path.to_vec(), to: words.to.to_vec() })
    }

    /// Copies one file; of a directory only the directory, with the level to go on with.
    fn one(
        &mut self,
        node: S::Node,
        words: Words<'_>,
        Spot { dir, name, is_meant }: Spot<'_, T::Node>,
    ) -> Try<Option<Level<S, T>>> {
        let meta = self.source.meta(&node);
        // Most files are new: what stands at a name is asked for where something does. A file is
        // linked to only after its content has been written, so not by the crew; and what gives way
        // to another stays until all before it is known to have been written.
        let is_plain = meta.kind == FileKind::Regular && !is_meant && meta.links <= 1;
        if let Some(crew) = self.crew
            && is_plain
            && !self.settings.may_keep()
            && !self.images.contains(&meta.id)
        {
            self.source.check_readable(&node)?;
            if let Some(made) = words.target(self.target.new_file(dir, name))? {
                self.tell(words);
                self.progress.add_file();
                let (path, to) = (words.path.to_vec(), words.to.to_vec());
                self.hand_over(crew, Leaf { node, made, meta, path, to })?;
                return Ok(None);
            }
            self.settle();
            if self.is_full {
                return Ok(None);
            }
        }
        let there = words.target(self.target.there(dir, name))?;
        if there.as_ref().is_some_and(|there| there.id == meta.id) {
            return Err(Why::new("source and target are the same file"));
        }
        if self.images.contains(&meta.id) {
            return Err(Why::new("is an image of this command; not copied"));
        }
        if there.as_ref().is_some_and(|there| self.images.contains(&there.id)) {
            return words.target(Err(Why::new("is an image of this command; not replaced")));
        }
        if meta.kind == FileKind::Directory {
            if !self.settings.recursive {
                return Err(Why::new("-r not specified; omitting directory"));
            }
            let made = words.target(self.target.directory(dir, name))?;
            self.tell(words);
            return self.level(node, words, made).map(Some);
        }
        if there.is_some_and(|there| self.settings.keeps(there, &meta)) {
            return Ok(None);
        }
        if meta.kind == FileKind::Regular {
            self.source.check_readable(&node)?;
        }
        self.tell(words);
        self.progress.add_file();
        if is_meant && let Some(made) = words.target(self.target.in_place(dir, name, meta.kind))? {
            let is_whole = self.contents(&node, &made, &meta, words)?;
            self.filler.dress(&node, &made, meta, words)?;
            return whole(is_whole).map(|()| None);
        }
        if let Some(saved) = self.links.get(&meta.id) {
            words.target(self.target.link(dir, name, saved))?;
            return Ok(None);
        }
        let mut is_whole = true;
        let made = match meta.kind {
            FileKind::Regular => {
                let made = words.target(self.target.file(dir, name))?;
                is_whole = self.contents(&node, &made, &meta, words).inspect_err(|_| {
                    // Half a file would look like a whole one. The first failure is told.
                    let _ = self.target.discard(dir, name);
                })?;
                made
            }
            FileKind::Symlink => {
                let target = self.source.link_target(&node)?;
                words.target(self.target.symlink(dir, name, &target))?
            }
            _ => words.target(self.target.special(dir, name, &meta))?,
        };
        if meta.links > 1 {
            self.links.insert(meta.id, self.target.save(&made));
        }
        self.filler.dress(&node, &made, meta, words)?;
        whole(is_whole).map(|()| None)
    }

    fn contents(
        &mut self,
        node: &S::Node,
        made: &T::Node,
        meta: &Meta,
        words: Words<'_>,
    ) -> Try<bool> {
        let progress = &self.progress;
        let count = &mut |bytes| progress.add_bytes(bytes);
        self.filler.contents((node, made), meta, words, count)
    }

    /// Hands a new file to the crew.
    fn hand_over(&mut self, crew: &Crew<S, T>, leaf: Leaf<S, T>) -> Try<()> {
        let is_taken = crew.push(leaf);
        self.report(crew);
        let broken = || Why::new("a thread that writes files has ended");
        is_taken.then_some(()).ok_or_else(broken)
    }

    fn tell(&self, Words { path, to }: Words<'_>) {
        let (path, to) = (spec::show(path), spec::show(to));
        Told::new(self.settings.verbose).say(&format!("'{path}' -> '{to}'"));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::copy::host_source::HostSource;
    use crate::copy::host_target::HostTarget;

    /// What is left of a file is copied, and no zeros in place of the rest.
    #[test]
    fn a_file_that_became_shorter_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&to).unwrap();
        for left in [0, 5, 1 << 20, (1 << 20) + 5] {
            fs::write(&from, vec![b'x'; 3 << 20]).unwrap();
            let node = HostSource.open(&from).unwrap();
            fs::File::options().write(true).open(&from).unwrap().set_len(left).unwrap();
            let target = HostTarget::open(&to).unwrap();
            let (mut progress, mut outcome) = (Progress::bytes("cp"), Outcome::default());
            let reports = Reports { progress: &mut progress, outcome: &mut outcome, images: &[] };
            let mut links = Links::<HostTarget>::new();
            let settings = Settings { verb: "cp", ..Settings::default() };
            let mut copier = Copier::new(&HostSource, &target, settings, &mut links, reports);
            let words = Words { path: b"from", to: b"to" };
            copier.copy(node, words, (&target.root(), b"file"), false);
            assert!(outcome.finish().is_err());
            let copied = fs::read(to.join("file")).unwrap();
            assert!(copied == vec![b'x'; usize::try_from(left).unwrap()], "{}", copied.len());
        }
    }
}
