//! Threads that use the same files: direct and cached writes beside cuts, removals and syncs.
//!
//! # What
//! The model knows what a file holds that one thread writes; of a file that several write it is
//! known that every word is zero or the file's mark, which no other file ever has. A foreign mark
//! is a write that came to blocks which belong to another file by then. The same holds after a
//! crash, so these files are checked in every recovered volume ([`check`]).

use super::around::Around;
use crate::content::{self, FileBytes};
use crate::operation::{Id, Place};
use crate::view::View;
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::atomic::Ordering;
use uext4::{
    AllocateMode, Error, ErrorKind, FileKind, InodeRef, NewInode, OpenFile, Owner, SetAttr, Volume,
};

/// The directory of these files; its number is of no thread.
pub(super) const SHARED_FILES: Id = 0x7100_0000;
pub(super) const SHARED_FILES_NAME: &[u8] = b"files";
/// A name there that always exists.
pub(super) const ANCHOR: &[u8] = b"anchor";
/// A file there that nobody changes.
pub(super) const PLAIN: &[u8] = b"plain";
/// Names.
const FILES: u32 = 3;
/// Largest file, in blocks.
const BLOCKS: u64 = 24;

/// One iteration of a racer.
pub(super) fn race(around: &Around, rng: &mut StdRng) -> Result<(), Error> {
    // Asynchronous commits may show anything in what was not synced (D32).
    if around.life.options.journal_async_commit {
        return Ok(());
    }
    let volume = &around.volume;
    // Half of the runs gather at one file and sync it more than anything else.
    let gathers = around.plan.case.seed.is_multiple_of(2);
    let name = format!("f{}", rng.random_range(0..if gathers { 1 } else { FILES })).into_bytes();
    let dir = volume.lookup(&volume.root()?, SHARED_FILES_NAME)?;
    for _ in 0..rng.random_range(1..6) {
        let done = iteration(around, rng, &dir, &name, gathers);
        match done {
            // Another one has removed or made it.
            Err(error) if is_expected(&error) => {}
            other => other?,
        }
        around.progress.iteration();
    }
    Ok(())
}

fn is_expected(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Exists | ErrorKind::NoSpace)
}

fn iteration(
    around: &Around,
    rng: &mut StdRng,
    dir: &InodeRef,
    name: &[u8],
    gathers: bool,
) -> Result<(), Error> {
    let volume = &around.volume;
    let block = u64::from(volume.layout().block_size);
    let inode = match volume.lookup(dir, name) {
        Err(error) if *error.kind() == ErrorKind::NotFound => make(around, dir, name)?,
        found => found?,
    };
    let mark = volume.attr(&inode).uid;
    let file = volume.open_file(&inode)?;
    let at = rng.random_range(0..BLOCKS) * block;
    let len = rng.random_range(1..=4) * block;
    if gathers && rng.random_bool(0.5) {
        file.write_at(at, &marked(mark, 8))?;
        return file.sync(true);
    }
    match rng.random_range(0..20) {
        0..=5 => file.write_direct_at(at, &marked(mark, len)).map(drop),
        6..=7 => file.write_at(at, &marked(mark, len)).map(drop),
        8..=9 => cut(volume, &inode, at),
        10 => file.allocate(AllocateMode::PunchHole, at, len),
        11 => file.allocate(AllocateMode::Allocate { keep_size: false }, at, len),
        12..=13 => file.sync(rng.random()),
        14 => volume.unlink(dir, name),
        15..=16 => look(around, &file, mark, BLOCKS * block, false),
        _ => look(around, &file, mark, at + len, true),
    }
}

fn make(around: &Around, dir: &InodeRef, name: &[u8]) -> Result<InodeRef, Error> {
    let number = around.marks.fetch_add(1, Ordering::Relaxed);
    let owner =
        Owner { uid: SHARED_FILES + (around.number as u32 + 1) * 0x1_0000 + number, gid: 0 };
    let new = NewInode { kind: FileKind::Regular, mode: 0o600, owner, rdev: Default::default() };
    around.volume.create(dir, name, &new)
}

fn cut(volume: &Volume, inode: &InodeRef, size: u64) -> Result<(), Error> {
    volume.set_attr(inode, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

pub(super) fn marked(mark: Id, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    content::fill(&mut bytes, mark, 0, 0);
    bytes
}

/// Reads from the start of a file, past the cache if `is_direct`.
pub(super) fn read(file: &OpenFile, bytes: &mut [u8], is_direct: bool) -> Result<usize, Error> {
    if is_direct { file.read_direct_at(0, bytes) } else { file.read_at(0, bytes) }
}

fn look(
    around: &Around,
    file: &OpenFile,
    mark: Id,
    len: u64,
    is_direct: bool,
) -> Result<(), Error> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let count = read(file, &mut bytes, is_direct)?;
    if let Err(fault) = is_marked(mark, 0, &bytes[..count]) {
        around.progress.fault(fault);
    }
    Ok(())
}

pub(super) fn is_marked(mark: Id, offset: u64, bytes: &[u8]) -> Result<(), String> {
    let pattern = content::pattern(mark, 0);
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        if word != pattern && word != [0; 8] {
            let at = offset + 8 * index as u64;
            return Err(format!("shared file {mark:#x}: byte {at}: {word:02x?} is not its mark"));
        }
    }
    Ok(())
}

/// Tries to make a name that exists: a number is claimed for nothing.
pub(super) fn collide(around: &Around, rng: &mut StdRng) -> Result<(), Error> {
    let volume = &around.volume;
    let dir = volume.lookup(&volume.root()?, SHARED_FILES_NAME)?;
    for _ in 0..rng.random_range(1..6) {
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Fifo];
        let kind = kinds[rng.random_range(0..kinds.len())];
        let owner = Owner { uid: 0, gid: 0 };
        let new = NewInode { kind, mode: 0o600, owner, rdev: Default::default() };
        match volume.create(&dir, ANCHOR, &new) {
            Err(error) if is_expected(&error) => {}
            Err(error) => return Err(error),
            Ok(_) => around.progress.fault("a name that exists was made again".to_owned()),
        }
    }
    Ok(())
}

/// What is wrong with the shared files of a recovered volume.
pub(super) fn check(view: &View) -> Vec<String> {
    let is_shared = |place: &&Place| place.dir == SHARED_FILES;
    let inodes = view.entries.iter().filter(|(place, _)| is_shared(place)).map(|(_, ino)| ino);
    let nodes = inodes.filter_map(|ino| view.nodes.get(ino)).filter(|node| node.uid != 0);
    nodes.filter_map(|node| check_file(node.uid, &node.content).err()).collect()
}

fn check_file(mark: Id, content: &FileBytes) -> Result<(), String> {
    content.data.iter().try_for_each(|(offset, bytes)| is_marked(mark, *offset, bytes))
}
