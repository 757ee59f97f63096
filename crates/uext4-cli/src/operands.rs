//! Operands of the verbs that change images: one after the other, and an image is opened once for
//! those that follow each other.
//!
//! Invariants: operands that are wrong by their form alone are refused before anything changes. A
//! failure of one operand is told, and the others are still done. What was changed is on the
//! device when the verb ends, also after a failure.

use std::ffi::OsString;

use uext4::{Device, ErrorKind, FileKind, InodeRef, NewInode, Owner, Volume};

use crate::failure::{Failure, Outcome, Result, Why, say};
use crate::glob;
use crate::image::{self, Access};
use crate::image_path::{Last, end_of, resolve};
use crate::spec::{Image, ImagePath};
use crate::walk::{self, Go, Node, Visitor};

/// Result of a step at one operand.
pub(crate) type Try<T> = std::result::Result<T, Why>;

/// Why what one operand made is not replaced by what another makes under the same name.
pub(crate) const JUST_MADE: &str = "was just made by this command; not replaced";

/// The images of one run of a verb: one is open at a time.
pub(crate) struct Images {
    verb: &'static str,
    open: Option<(Image, Volume)>,
    outcome: Outcome,
}

impl Images {
    /// For the messages of `verb`.
    pub(crate) fn new(verb: &'static str) -> Self {
        Self { verb, open: None, outcome: Outcome::default() }
    }

    /// Takes operands apart that all lie in images, and expands their globs.
    pub(crate) fn paths(&mut self, names: &[OsString]) -> Result<Vec<ImagePath>> {
        glob::in_image(self.verb, names, &mut self.outcome)
    }

    /// Does `work` on a path, with its image open for changes; a failure is told.
    pub(crate) fn at(&mut self, path: &ImagePath, work: impl FnOnce(&Volume) -> Try<()>) {
        self.on(&path.image, |volume, _| work(volume).map_err(|why| (why, path.to_string())));
    }

    /// Does `work` on a path as [`Images::at`]; failures of parts of it go to the outcome.
    pub(crate) fn among(
        &mut self,
        path: &ImagePath,
        work: impl FnOnce(&Volume, &mut Outcome) -> Try<()>,
    ) {
        let work = |volume: &_, outcome: &mut _| work(volume, outcome);
        self.on(&path.image, |volume, outcome| {
            work(volume, outcome).map_err(|why| (why, path.to_string()))
        });
    }

    fn on(
        &mut self,
        image: &Image,
        work: impl FnOnce(&Volume, &mut Outcome) -> std::result::Result<(), (Why, String)>,
    ) {
        if self.open.as_ref().is_none_or(|(open, _)| open != image) {
            self.close();
            match image::volume(self.verb, image, Access::Write) {
                Ok(volume) => self.open = Some((image.clone(), volume)),
                Err(failure) => return self.outcome.note(failure),
            }
        }
        let Some((_, volume)) = &self.open else { return };
        if let Err((why, place)) = work(volume, &mut self.outcome) {
            self.outcome.note(why.at(self.verb, place));
        }
    }

    fn close(&mut self) {
        if let Some((image, volume)) = self.open.take()
            && let Err(failure) = image::close(self.verb, &image, volume)
        {
            self.outcome.note(failure);
        }
    }

    /// Closes what is open: all changes are on the device. The result of the verb.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.close();
        self.outcome.finish()
    }
}

/// The sources and the target of a verb that has both: the last operand, or what `-t` names.
pub(crate) fn split_target<'a>(
    verb: &str,
    paths: &'a [OsString],
    directory: Option<&'a OsString>,
) -> Result<(&'a [OsString], &'a OsString)> {
    match (directory, paths.split_last()) {
        (Some(directory), _) => Ok((paths, directory)),
        (None, Some((target, sources @ [_, ..]))) => Ok((sources, target)),
        (None, only) => {
            let only = only.map_or_else(Default::default, |(only, _)| only.display().to_string());
            say(&format!("{verb}: {only}: needs a target after it"));
            Err(Failure::Status(2))
        }
    }
}

/// Does `work` at each operand.
pub(crate) fn each(
    verb: &'static str,
    names: &[OsString],
    mut work: impl FnMut(&Volume, &ImagePath) -> Try<()>,
) -> Result<()> {
    let mut images = Images::new(verb);
    for path in images.paths(names)? {
        images.at(&path, |volume| work(volume, &path));
    }
    images.finish()
}

/// A file of a tree that is visited, with its path for messages.
pub(crate) struct Visited<'v> {
    /// The file.
    pub(crate) inode: &'v InodeRef,
    /// What it is called.
    pub(crate) path: &'v ImagePath,
}

/// Visits all that is below the directory `top`, each directory before what is in it, and nothing
/// below a directory whose visit fails. What fails is told, and the rest is visited.
pub(crate) fn below(
    verb: &str,
    volume: &Volume,
    top: Visited<'_>,
    outcome: &mut Outcome,
    visit: &mut dyn FnMut(Visited<'_>) -> Try<()>,
) {
    let mut visits = Visits { verb, volume, image: &top.path.image, outcome, visit };
    if let Err(failure) = walk::walk(verb, volume, top.path, top.inode, &mut visits) {
        outcome.note(failure);
    }
}

/// The visits of [`below`].
struct Visits<'a> {
    verb: &'a str,
    volume: &'a Volume,
    image: &'a Image,
    outcome: &'a mut Outcome,
    visit: &'a mut dyn FnMut(Visited<'_>) -> Try<()>,
}

impl Visitor for Visits<'_> {
    fn enter(&mut self, node: &Node, _is_last: bool) -> Result<Go> {
        if node.depth == 0 {
            return Ok(Go::On);
        }
        let path = ImagePath { image: self.image.clone(), path: node.path() };
        let visited = self.volume.inode(node.attr.ino).map_err(Why::from);
        match visited.and_then(|inode| (self.visit)(Visited { inode: &inode, path: &path })) {
            Ok(()) => Ok(Go::On),
            Err(why) => {
                self.outcome.note(why.at(self.verb, path));
                Ok(Go::Past)
            }
        }
    }

    fn fail(&mut self, failure: Failure) {
        self.outcome.note(failure);
    }
}

/// The user that runs the command owns what it makes.
pub(crate) fn caller() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

/// The umask, which can only be read by setting it; no other thread creates files now.
pub(crate) fn umask() -> u16 {
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::process::umask(mask);
    (mask.as_raw_mode() & 0o777) as u16
}

/// What a path leads to; `None` if there is nothing, also at the end of a symbolic link.
pub(crate) fn existing(volume: &Volume, path: &[u8], last: Last) -> Try<Option<InodeRef>> {
    match resolve(volume, path, last) {
        Ok(found) => Ok(Some(found.inode().clone())),
        Err(why) if why.is_not_found() => Ok(None),
        Err(why) => Err(why),
    }
}

/// What a name of a directory leads to, if it is there.
pub(crate) fn entry(volume: &Volume, dir: &InodeRef, name: &[u8]) -> Try<Option<InodeRef>> {
    match volume.lookup(dir, name) {
        Ok(found) => Ok(Some(found)),
        Err(error) if *error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Blocks that are free in a volume that is not full.
const FREE_BLOCKS: u64 = 1000;

/// Why a name could not be made: a directory that can hold no more is not a volume that is full.
pub(crate) fn why_not_made(volume: &Volume, error: uext4::Error) -> Why {
    let free = volume.stat_fs();
    let is_full = free.inodes_free == 0 || free.blocks_available < FREE_BLOCKS;
    let is_space = *error.kind() == ErrorKind::NoSpace;
    let why = Why::from(error);
    if is_space && !is_full { why.of_this_file() } else { why }
}

/// Makes an empty file where a path leads, also where a symbolic link at its end leads to nothing.
pub(crate) fn make_file(volume: &Volume, path: &[u8]) -> Try<InodeRef> {
    let end = end_of(volume, path)?;
    new_file(volume, end.dir.inode(), &end.name, 0o666 & !umask())
}

/// Makes an empty file of the caller.
pub(crate) fn new_file(volume: &Volume, dir: &InodeRef, name: &[u8], mode: u16) -> Try<InodeRef> {
    let rdev = Device { major: 0, minor: 0 };
    let new = NewInode { kind: FileKind::Regular, mode, owner: caller(), rdev };
    Ok(volume.create(dir, name, &new)?)
}

/// A name that nothing has in a directory, for what is to be renamed.
pub(crate) fn free_name(volume: &Volume, dir: &InodeRef) -> Try<Vec<u8>> {
    let mut number = 0_u64;
    loop {
        let name = format!(".uext4-{number}").into_bytes();
        if entry(volume, dir, &name)?.is_none() {
            return Ok(name);
        }
        number += 1;
    }
}
