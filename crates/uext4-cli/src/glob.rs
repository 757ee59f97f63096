//! Globs in paths of images: `IMAGE:/etc/**/*.{conf,d}`, which no shell can expand.
//!
//! As bash has them, with `globstar`: `*`, `?` and `[...]` stand for a part of a name, a backslash
//! takes their meaning away, `{a,b}` is one path each, and `**` alone between slashes stands for
//! any number of directories, or at the end for all that is below. None of them stands for a dot at
//! the start of a name. A name that exists as it is written wins, and a glob that nothing matches
//! stays as it is written, so that its verb says what is missing.
//!
//! Links are followed where a name is written or matched, but not below `**`, which enters a
//! directory once: neither links nor damage make it endless. What cannot be read is told and left
//! out, as the verbs do it.

mod braces;

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;

use uext4::{FileKind, Ino, InodeRef, Volume};

use crate::failure::{Outcome, Result, Why};
use crate::image::{self, Access};
use crate::image_path::{Last, Listed, names, resolve};
use crate::operands::Try;
use crate::pattern::Pattern;
use crate::spec::{self, Image, ImagePath, Location};

/// The operands of a verb that lie in images, with their globs expanded.
pub(crate) fn in_image(
    verb: &str,
    operands: &[OsString],
    outcome: &mut Outcome,
) -> Result<Vec<ImagePath>> {
    let paths: Result<Vec<_>> = operands.iter().map(|name| spec::in_image(verb, name)).collect();
    expand_all(verb, paths?, outcome)
}

/// The same for operands that may be an image, of which the root is meant.
pub(crate) fn image_or_inside(
    verb: &str,
    operands: &[OsString],
    outcome: &mut Outcome,
) -> Result<Vec<ImagePath>> {
    let paths = operands.iter().map(|name| spec::image_or_inside(name)).collect();
    expand_all(verb, paths, outcome)
}

/// Expands the globs of operands of which some are in images.
pub(crate) fn locations(
    verb: &str,
    operands: Vec<Location>,
    outcome: &mut Outcome,
) -> Result<Vec<Location>> {
    let mut open = Open::default();
    let mut found = Vec::new();
    for operand in operands {
        match operand {
            Location::Image(path) => {
                let paths = open.expand(verb, path, outcome)?;
                found.extend(paths.into_iter().map(Location::Image));
            }
            host @ Location::Host(_) => found.push(host),
        }
    }
    Ok(found)
}

fn expand_all(verb: &str, paths: Vec<ImagePath>, outcome: &mut Outcome) -> Result<Vec<ImagePath>> {
    let mut open = Open::default();
    let mut found = Vec::new();
    for path in paths {
        found.extend(open.expand(verb, path, outcome)?);
    }
    Ok(found)
}

/// The image that was looked into last.
#[derive(Default)]
struct Open(Option<(Image, Volume)>);

impl Open {
    fn expand(
        &mut self,
        verb: &str,
        path: ImagePath,
        outcome: &mut Outcome,
    ) -> Result<Vec<ImagePath>> {
        if !is_glob(&path.path) {
            return Ok(vec![path]);
        }
        if self.0.as_ref().is_none_or(|(image, _)| *image != path.image) {
            self.0 = None;
            match image::volume(verb, &path.image, Access::Read) {
                Ok(volume) => self.0 = Some((path.image.clone(), volume)),
                // The verb will say the same, and has its own way to end.
                Err(_) => return Ok(vec![path]),
            }
        }
        let Some((_, volume)) = &self.0 else { return Ok(vec![path]) };
        let mut search = Search { verb, volume, image: &path.image, outcome };
        let found = search.expand(&path.path).map_err(|why| why.at(verb, &path))?;
        let in_image = |found| ImagePath { image: path.image.clone(), path: found };
        Ok(found.into_iter().map(in_image).collect())
    }
}

/// Whether something in a path may stand for more than itself.
fn is_glob(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[{".contains(byte))
}

/// Whether something in a path without braces does, or is not what stands for it.
fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[\\".contains(byte))
}

/// Looks for what globs stand for in an image.
struct Search<'a> {
    verb: &'a str,
    volume: &'a Volume,
    image: &'a Image,
    /// What cannot be read on the way.
    outcome: &'a mut Outcome,
}

/// A part of a path between slashes.
enum Step {
    /// A name without globs, and whether backslashes have been taken out of it.
    Name(Vec<u8>),
    /// A pattern, and whether it begins with a dot.
    Matching(Pattern, bool),
    /// `**`.
    Below,
}

impl Step {
    fn new(part: &[u8]) -> Try<Self> {
        if part == b"**" {
            return Ok(Self::Below);
        }
        if !is_pattern(part) {
            return Ok(Self::Name(part.to_vec()));
        }
        let asks_for_dot = part.starts_with(b".") || part.starts_with(b"\\.");
        Ok(Self::Matching(Pattern::new(part, false)?, asks_for_dot))
    }
}

impl Search<'_> {
    /// What a path with globs stands for; itself if that is nothing.
    fn expand(&mut self, path: &[u8]) -> Try<Vec<Vec<u8>>> {
        if resolve(self.volume, path, Last::Keep).is_ok() {
            return Ok(vec![path.to_vec()]);
        }
        let mut all = Vec::new();
        for path in braces::expand(path)? {
            let found = if is_pattern(&path) { self.matches(&path)? } else { Vec::new() };
            if found.is_empty() { all.push(path) } else { all.extend(found) }
        }
        Ok(all)
    }

    /// The paths that a pattern matches, in the order of their bytes.
    fn matches(&mut self, path: &[u8]) -> Try<Vec<Vec<u8>>> {
        let mut found = BTreeSet::from([b"/".to_vec()]);
        let mut parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            // `**/**` is `**`.
            while part == b"**" && parts.next_if_eq(&part).is_some() {}
            let is_last = parts.peek().is_none();
            let step = Step::new(part)?;
            let mut next = BTreeSet::new();
            for dir in &found {
                self.take(&step, dir, is_last, &mut next);
            }
            found = next;
        }
        let mut found: Vec<_> = found.into_iter().collect();
        if path.last() == Some(&b'/') {
            found.iter_mut().for_each(|path| path.push(b'/'));
            found.retain(|path| resolve(self.volume, path, Last::Follow).is_ok());
        }
        Ok(found)
    }

    /// Adds what a step stands for in a directory. `is_last` of the path.
    fn take(&mut self, step: &Step, dir: &[u8], is_last: bool, found: &mut BTreeSet<Vec<u8>>) {
        match step {
            Step::Name(name) => {
                let path = spec::join(dir, name);
                if resolve(self.volume, &path, Last::Keep).is_ok() {
                    found.insert(path);
                }
            }
            Step::Matching(pattern, asks_for_dot) => {
                let Ok(resolved) = resolve(self.volume, dir, Last::Follow) else { return };
                for Listed { name, .. } in self.listed(resolved.inode(), dir) {
                    let is_hidden = name.starts_with(b".") && !asks_for_dot;
                    if !is_hidden && pattern.matches(&name) {
                        found.insert(spec::join(dir, &name));
                    }
                }
            }
            Step::Below => self.below(dir, is_last, found),
        }
    }

    /// What `**` stands for: the directory and all directories below it; at the end of a path all
    /// names below it.
    fn below(&mut self, dir: &[u8], is_last: bool, found: &mut BTreeSet<Vec<u8>>) {
        if found.contains(dir) {
            // What is below it was found with another directory, above it.
            return;
        }
        let Ok(resolved) = resolve(self.volume, dir, Last::Follow) else { return };
        if !is_last {
            found.insert(dir.to_vec());
        }
        let mut entered: HashSet<Ino> = HashSet::new();
        let mut waiting = vec![(dir.to_vec(), resolved.inode().ino())];
        while let Some((dir, ino)) = waiting.pop() {
            let opened = spec::check_path(&dir).and_then(|()| Ok(self.volume.inode(ino)?));
            let inode = match opened {
                Ok(inode) => inode,
                Err(why) => {
                    self.note(&dir, why);
                    continue;
                }
            };
            for Listed { name, ino } in self.listed(&inode, &dir) {
                if name.starts_with(b".") {
                    continue;
                }
                let path = spec::join(&dir, &name);
                let is_dir = match self.volume.inode(ino) {
                    Ok(inode) => inode.kind() == FileKind::Directory,
                    Err(error) => {
                        self.note(&path, error.into());
                        continue;
                    }
                };
                if is_dir && entered.insert(ino) {
                    waiting.push((path.clone(), ino));
                }
                if is_dir || is_last {
                    found.insert(path);
                }
            }
        }
    }

    /// The names of a directory; nothing of what is none.
    fn listed(&mut self, inode: &InodeRef, path: &[u8]) -> Vec<Listed> {
        if inode.kind() != FileKind::Directory {
            return Vec::new();
        }
        match names(self.volume, inode) {
            Ok(names) => names,
            Err(why) => {
                self.note(path, why);
                Vec::new()
            }
        }
    }

    fn note(&mut self, path: &[u8], why: Why) {
        let place = ImagePath { image: self.image.clone(), path: path.to_vec() };
        self.outcome.note(why.at(self.verb, place));
    }
}
