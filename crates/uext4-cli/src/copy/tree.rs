//! The walk: copies a file or a tree from any source to any target.
//!
//! Depth costs heap, not stack, and a directory that is its own ancestor (a corrupt image) is
//! reported instead of followed. A failure is reported and the rest goes on, as cp(1) does.

use std::collections::HashMap;
use std::vec::IntoIter;

use uext4::FileKind;

use crate::copy::{Id, Meta, Source, Target, Try, check_name};
use crate::failure::{Outcome, Why};
use crate::progress::Progress;
use crate::spec;

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// What a copy is asked to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// Copy directories.
    pub(crate) recursive: bool,
    /// Leave what is there.
    pub(crate) no_clobber: bool,
    /// Name each file on standard output.
    pub(crate) verbose: bool,
}

/// State of one copy: hard links are kept among all that one copier copies.
pub(crate) struct Copier<'a, S: Source, T: Target> {
    source: &'a S,
    target: &'a T,
    settings: Settings,
    /// Files with several names that were copied, by what they are in the source.
    links: HashMap<Id, T::Saved>,
    buffer: Vec<u8>,
    progress: &'a mut Progress,
    outcome: &'a mut Outcome,
}

/// A directory being copied.
struct Level<S: Source, T: Target> {
    node: S::Node,
    made: T::Node,
    names: IntoIter<Vec<u8>>,
    path: Vec<u8>,
}

impl<'a, S: Source, T: Target> Copier<'a, S, T> {
    /// A copier from `source` to `target`; failures go to `outcome`.
    pub(crate) fn new(
        source: &'a S,
        target: &'a T,
        settings: Settings,
        progress: &'a mut Progress,
        outcome: &'a mut Outcome,
    ) -> Self {
        let (links, buffer) = (HashMap::new(), vec![0; COPY_BYTES]);
        Self { source, target, settings, links, buffer, progress, outcome }
    }

    /// Copies `node`, which messages call `path`, to `name` in `dir`.
    pub(crate) fn copy(&mut self, node: S::Node, path: &[u8], dir: &T::Node, name: &[u8]) {
        match self.one(node, path, dir, name) {
            Ok(Some(level)) => self.walk(level),
            Ok(None) => {}
            Err(why) => self.note(path, why),
        }
    }

    /// Copies what is in the directory `node` into `dir`, and its attributes onto it.
    pub(crate) fn copy_contents(&mut self, node: S::Node, path: &[u8], dir: T::Node) {
        match self.level(node, path.to_vec(), dir) {
            Ok(level) => self.walk(level),
            Err(why) => self.note(path, why),
        }
    }

    fn note(&mut self, path: &[u8], why: Why) {
        self.outcome.note(why.at("cp", spec::show(path)));
    }

    fn walk(&mut self, first: Level<S, T>) {
        let mut levels = vec![first];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.next() else {
                let done = levels.pop().expect("just seen");
                // Last of all: making the entries has changed the directory's times.
                let meta = self.source.meta(&done.node);
                if let Err(why) = self.dress(&done.node, &done.made, &meta) {
                    self.note(&done.path, why);
                }
                continue;
            };
            let path = spec::join(&level.path, &name);
            let found = check_name(&name).and_then(|()| self.source.child(&level.node, &name));
            let made = found.and_then(|node| {
                let id = self.source.meta(&node).id;
                if levels.iter().any(|level| self.source.meta(&level.node).id == id) {
                    return Err(Why::new("directory loop; run fsck"));
                }
                let level = levels.last().expect("not popped since");
                self.one(node, &path, &level.made, &name)
            });
            match made {
                Ok(Some(level)) => levels.push(level),
                Ok(None) => {}
                Err(why) => self.note(&path, why),
            }
        }
    }

    fn level(&self, node: S::Node, path: Vec<u8>, made: T::Node) -> Try<Level<S, T>> {
        let names = self.source.names(&node)?.into_iter();
        Ok(Level { node, made, names, path })
    }

    /// Copies one file; of a directory only the directory, with the level to go on with.
    fn one(
        &mut self,
        node: S::Node,
        path: &[u8],
        dir: &T::Node,
        name: &[u8],
    ) -> Try<Option<Level<S, T>>> {
        let meta = self.source.meta(&node);
        let there = self.target.identity(dir, name)?;
        if there == Some(meta.id) {
            return Err(Why::new("source and target are the same file"));
        }
        if meta.kind == FileKind::Directory {
            if !self.settings.recursive {
                return Err(Why::new("-r not specified; omitting directory"));
            }
            let made = self.target.directory(dir, name)?;
            self.tell(path);
            return self.level(node, path.to_vec(), made).map(Some);
        }
        if there.is_some() && self.settings.no_clobber {
            return Ok(None);
        }
        self.tell(path);
        self.progress.add_file();
        if let Some(saved) = self.links.get(&meta.id) {
            self.target.link(dir, name, saved)?;
            return Ok(None);
        }
        let made = match meta.kind {
            FileKind::Regular => {
                let made = self.target.file(dir, name)?;
                self.contents(&node, &made, &meta)?;
                made
            }
            FileKind::Symlink => {
                let target = self.source.link_target(&node)?;
                self.target.symlink(dir, name, &target)?
            }
            _ => self.target.special(dir, name, &meta)?,
        };
        if meta.links > 1 {
            self.links.insert(meta.id, self.target.save(&made));
        }
        self.dress(&node, &made, &meta)?;
        Ok(None)
    }

    fn contents(&mut self, node: &S::Node, made: &T::Node, meta: &Meta) -> Try<()> {
        let mut offset = 0;
        while let Some(data) = self.source.next_data(node, offset)? {
            offset = data.start;
            while offset < data.end {
                let left = usize::try_from(data.end - offset).unwrap_or(usize::MAX);
                let want = self.buffer.len().min(left);
                let got = self.source.read(node, offset, &mut self.buffer[..want])?;
                if got == 0 {
                    // The file became shorter while it was read.
                    return Ok(());
                }
                self.target.write(made, offset, &self.buffer[..got])?;
                offset += got as u64;
                self.progress.add_bytes(got as u64);
            }
        }
        self.target.set_len(made, meta.size)
    }

    /// Owner, attributes, mode and times, in the order that keeps each.
    fn dress(&mut self, node: &S::Node, made: &T::Node, meta: &Meta) -> Try<()> {
        self.target.set_owner(made, meta)?;
        for xattr in self.source.xattrs(node)? {
            self.target.set_xattr(made, &xattr)?;
        }
        self.target.finish(made, meta)
    }

    fn tell(&self, path: &[u8]) {
        if self.settings.verbose {
            use std::io::Write;
            // A closed pipe must not stop the copy.
            let _ = writeln!(std::io::stdout(), "'{}'", spec::show(path));
        }
    }
}
