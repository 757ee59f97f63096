//! Calls that must be refused, beside all others: what they have taken until then they give back.

use super::around::Around;
use super::racer::{ANCHOR, PLAIN, SHARED_FILES_NAME};
use rand::Rng;
use rand::rngs::StdRng;
use uext4::{
    AllocateMode, Error, ErrorKind, FileKind, Ino, InodeRef, NewInode, Owner, RenameMode, SetAttr,
    Volume, XattrMode,
};

/// What the calls are made on: a directory, and in it an empty one and an empty file.
struct Places<'a> {
    volume: &'a Volume,
    root: InodeRef,
    dir: InodeRef,
    anchor: InodeRef,
    plain: InodeRef,
}

type RefusedCall = fn(&Places<'_>) -> Result<(), Error>;

const OWNER: Owner = Owner { uid: 0, gid: 0 };

/// One iteration.
pub(super) fn be_refused(around: &Around, rng: &mut StdRng) -> Result<(), Error> {
    let volume = &around.volume;
    let root = volume.root()?;
    let dir = volume.lookup(&root, SHARED_FILES_NAME)?;
    let (anchor, plain) = (volume.lookup(&dir, ANCHOR)?, volume.lookup(&dir, PLAIN)?);
    let at = Places { volume, root, dir, anchor, plain };
    for _ in 0..rng.random_range(1..8) {
        let number = rng.random_range(0..CALLS.len());
        match CALLS[number](&at) {
            Ok(()) => around.progress.fault(format!("refused call {number}: it was done")),
            Err(error) if is_failure(&error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Whether it is no answer to the arguments.
fn is_failure(error: &Error) -> bool {
    use ErrorKind::{Aborted, Corrupt, Internal, Io, NoSpace, ReadOnly};
    matches!(error.kind(), Io | Aborted | ReadOnly | Corrupt(_) | Internal | NoSpace)
}

fn rename(at: &Places<'_>, from: &[u8], to: &[u8], mode: RenameMode) -> Result<(), Error> {
    at.volume.rename(&at.dir, from, &at.dir, to, mode)
}

fn create(at: &Places<'_>, name: &[u8], kind: FileKind) -> Result<(), Error> {
    let new = NewInode { kind, mode: 0o600, owner: OWNER, rdev: Default::default() };
    at.volume.create(&at.dir, name, &new).map(drop)
}

fn allocate(at: &Places<'_>, mode: AllocateMode, offset: u64, len: u64) -> Result<(), Error> {
    at.volume.open_file(&at.plain)?.allocate(mode, offset, len)
}

fn set_size(at: &Places<'_>, inode: &InodeRef, size: u64) -> Result<(), Error> {
    at.volume.set_attr(inode, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

const PREALLOCATE: AllocateMode = AllocateMode::Allocate { keep_size: false };

const CALLS: &[RefusedCall] = &[
    |at| rename(at, PLAIN, ANCHOR, RenameMode::NoReplace),
    |at| rename(at, PLAIN, ANCHOR, RenameMode::Replace),
    |at| rename(at, ANCHOR, PLAIN, RenameMode::Replace),
    |at| rename(at, PLAIN, b"nothing", RenameMode::Exchange),
    |at| rename(at, b"nothing", PLAIN, RenameMode::Replace),
    |at| at.volume.rename(&at.dir, ANCHOR, &at.anchor, b"in", RenameMode::Replace),
    |at| at.volume.rename(&at.root, SHARED_FILES_NAME, &at.anchor, b"in", RenameMode::Replace),
    |at| at.volume.rename(&at.dir, ANCHOR, &at.root, SHARED_FILES_NAME, RenameMode::Replace),
    |at| at.volume.rename(&at.dir, PLAIN, &at.plain, b"in", RenameMode::Replace),
    |at| at.volume.rmdir(&at.root, SHARED_FILES_NAME),
    |at| at.volume.rmdir(&at.dir, PLAIN),
    |at| at.volume.unlink(&at.dir, ANCHOR),
    |at| at.volume.unlink(&at.dir, b"nothing"),
    |at| at.volume.link(&at.anchor, &at.dir, b"link"),
    |at| at.volume.link(&at.plain, &at.dir, ANCHOR),
    |at| at.volume.lookup(&at.plain, b"in").map(drop),
    |at| at.volume.lookup(&at.dir, &[b'n'; 256]).map(drop),
    |at| at.volume.inode(Ino(0)).map(drop),
    |at| at.volume.inode(Ino(u32::MAX)).map(drop),
    |at| at.volume.free_runs(uext4_ondisk::GroupNo(u32::MAX)).map(drop),
    |at| create(at, b"", FileKind::Regular),
    |at| create(at, b"a/b", FileKind::Directory),
    |at| create(at, &[b'n'; 256], FileKind::Fifo),
    |at| create(at, b"link", FileKind::Symlink),
    |at| at.volume.symlink(&at.dir, b"link", b"", OWNER).map(drop),
    |at| at.volume.symlink(&at.dir, b"link", &[b't'; 8192], OWNER).map(drop),
    |at| at.volume.symlink(&at.dir, PLAIN, b"target", OWNER).map(drop),
    |at| at.volume.read_link(&at.plain).map(drop),
    |at| set_size(at, &at.anchor, 7),
    |at| set_size(at, &at.plain, u64::MAX),
    |at| allocate(at, PREALLOCATE, 0, 0),
    |at| allocate(at, PREALLOCATE, u64::MAX - 4096, 4096),
    |at| allocate(at, AllocateMode::CollapseRange, 0, 4096),
    |at| allocate(at, AllocateMode::CollapseRange, 1, 7),
    |at| allocate(at, AllocateMode::InsertRange, 4096, 4096),
    |at| allocate(at, AllocateMode::InsertRange, 0, !4095),
    |at| at.volume.open_file(&at.plain)?.write_direct_at(1, &[0; 512]).map(drop),
    |at| at.volume.open_file(&at.plain)?.seek_data(0).map(drop),
    |at| at.volume.open_file(&at.anchor)?.write_at(0, b"bytes").map(drop),
    |at| at.volume.xattr_get(&at.plain, b"user.nothing").map(drop),
    |at| at.volume.xattr_remove(&at.plain, b"user.nothing"),
    |at| at.volume.xattr_set(&at.plain, b"nowhere.name", b"value", XattrMode::Any),
    |at| at.volume.xattr_set(&at.plain, b"user.name", b"value", XattrMode::Replace),
    |at| at.volume.xattr_set(&at.plain, b"user.name", &[0; 70_000], XattrMode::Any),
];
