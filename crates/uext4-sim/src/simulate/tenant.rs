//! Callers on a volume that has hardly a block to spare.
//!
//! # What
//! A few files of a bounded size are written, allocated, cut, punched and synced by all callers of
//! a life, cached and past the cache. What is freed is taken again at once, by another file, so a
//! write that comes too late meets a block of somebody else: each file has a mark of its own, and
//! holds nothing but it and zeroes ([`super::racer::check`]). There is room for
//! - all files at their largest, and then no call may say that there is none; or
//! - half of that, and then each call may say so that asks for more, but no sync of what was
//!   taken, and no thread that releases blocks.
//!
//! From time to time all callers stop, and one of them syncs the volume: what was promised must be
//! there without anybody giving something back.

use super::around::Around;
use super::racer::{self, SHARED_FILES, SHARED_FILES_NAME};
use crate::operation::Id;
use crate::run;
use rand::Rng;
use rand::rngs::StdRng;
use uext4::{
    AllocateMode, Error, ErrorKind, FileKind, InodeRef, NewInode, OpenFile, Owner, SetAttr, Volume,
};
use uext4_schedule::{Condvar, Mutex};

/// Takes the blocks that the files do not need.
const FILLER: &[u8] = b"filler";
/// Blocks for nodes of extent trees, for each file and each caller: a node, and one that is claimed
/// for the worst case and given back.
const NODES: u64 = 2;

/// How little room there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tenancy {
    /// Files.
    pub(super) files: u32,
    /// Blocks of each, at most.
    pub(super) quota: u64,
    /// There is not room for all of them.
    pub(super) is_scarce: bool,
    /// Some writes go through the page cache.
    pub(super) caches: bool,
    /// Blocks are kept back for nodes of extent trees. Without them a broken promise is seen: none
    /// is left that could stand in for what was promised. The files are so small then that their
    /// trees need no nodes.
    pub(super) has_pool: bool,
    /// Callers sync. Else what is freed piles up until somebody needs it.
    pub(super) syncs: bool,
}

impl Tenancy {
    pub(super) fn draw(rng: &mut StdRng) -> Tenancy {
        let has_pool = rng.random_ratio(2, 5);
        Tenancy {
            files: rng.random_range(2..=6),
            quota: if has_pool { rng.random_range(2..=12) } else { rng.random_range(2..=4) },
            is_scarce: rng.random(),
            caches: rng.random_ratio(3, 5),
            has_pool,
            syncs: rng.random_ratio(3, 5),
        }
    }

    /// Blocks that must be free when the files are empty.
    fn room(&self, callers: u64) -> u64 {
        let files = u64::from(self.files);
        if self.is_scarce {
            return files * self.quota / 2 + 1;
        }
        // What is promised is the worst case: for a write all of its blocks, for cached data a node
        // for each block besides.
        let cached = if self.caches { files * self.quota } else { 0 };
        (files + callers) * (self.quota + NODES) + cached
    }
}

fn name_of(file: u32) -> Vec<u8> {
    format!("tenant{file}").into_bytes()
}

/// The room that an earlier life took away is there again.
pub(super) fn move_out(volume: &Volume) -> Result<(), Error> {
    match volume.unlink(&volume.root()?, FILLER) {
        Err(error) if *error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => volume.sync(),
    }
}

/// Makes the files, empty, and leaves as much room as planned; `NoSpace` if there is less.
pub(super) fn move_in(
    volume: &Volume,
    tenancy: &Tenancy,
    life: usize,
    callers: u64,
) -> Result<(), Error> {
    let root = volume.root()?;
    match volume.unlink(&root, run::FILL) {
        Err(error) if *error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let dir = volume.lookup(&root, SHARED_FILES_NAME)?;
    for file in 0..tenancy.files {
        let uid = SHARED_FILES + (life as u32 + 1) * 0x1_0000 + 0x8000 + file;
        match volume.unlink(&dir, &name_of(file)) {
            Err(error) if *error.kind() != ErrorKind::NotFound => return Err(error),
            _ => drop(volume.create(&dir, &name_of(file), &regular(uid))?),
        }
    }
    let filler = volume.open_file(&volume.create(&root, FILLER, &regular(0))?)?;
    let block = u64::from(volume.layout().block_size);
    let room = tenancy.room(callers) + volume.space().node_pool_blocks();
    let mut size = 0;
    // Nodes of the filler's own tree come off as well.
    for _ in 0..4 {
        volume.sync()?;
        let free = volume.stat_fs().blocks_free;
        if free > room {
            let len = (free - room) * block;
            file_up(&filler, size, len)?;
            size += len;
        } else if free < room {
            size = size.saturating_sub((room - free) * block);
            cut(volume, filler.inode(), size)?;
        } else {
            return Ok(());
        }
    }
    volume.sync()?;
    match volume.stat_fs().blocks_free >= room {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::NoSpace, "earlier lives need it".to_owned())),
    }
}

fn file_up(filler: &OpenFile, size: u64, len: u64) -> Result<(), Error> {
    filler.allocate(AllocateMode::Allocate { keep_size: false }, size, len)
}

fn regular(uid: Id) -> NewInode {
    let owner = Owner { uid, gid: 0 };
    NewInode { kind: FileKind::Regular, mode: 0o600, owner, rdev: Default::default() }
}

fn cut(volume: &Volume, inode: &InodeRef, size: u64) -> Result<(), Error> {
    volume.set_attr(inode, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

/// What a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// Blocks, perhaps.
    More,
    /// None but nodes of the tree, which the pool has.
    Less,
    /// What was promised.
    Nothing,
}

/// One operation of a caller. `home`: the file that it uses most.
pub(super) fn iteration(
    around: &Around,
    tenancy: &Tenancy,
    home: u32,
    rng: &mut StdRng,
) -> Result<(), Error> {
    let volume = &around.volume;
    let file = if rng.random() { home } else { rng.random_range(0..tenancy.files) };
    let dir = volume.lookup(&volume.root()?, SHARED_FILES_NAME)?;
    let inode = volume.lookup(&dir, &name_of(file))?;
    let mark = volume.attr(&inode).uid;
    let file = volume.open_file(&inode)?;
    let block = u64::from(volume.layout().block_size);
    let first = rng.random_range(0..tenancy.quota);
    let count = rng.random_range(1..=tenancy.quota - first);
    let (at, len) = (first * block, count * block);
    let keep_size = rng.random();
    let roll = rng.random_range(0..20);
    let (wish, done) = match roll {
        0..=3 if tenancy.caches => (Wish::More, write(&file, at, mark, len)),
        4 if tenancy.caches => {
            let done = write(&file, at, mark, len);
            (Wish::Nothing, done.or_else(unless_full).and_then(|()| file.sync(true)))
        }
        0..=6 => (Wish::More, file.write_direct_at(at, &racer::marked(mark, len)).map(drop)),
        7..=8 => (Wish::More, file.allocate(AllocateMode::Allocate { keep_size }, at, len)),
        9 => (Wish::More, file.allocate(AllocateMode::ZeroRange { keep_size }, at, len)),
        10..=12 => (Wish::Less, cut(volume, &inode, at)),
        13 => (Wish::Less, file.allocate(AllocateMode::PunchHole, at, len)),
        14 => (Wish::Less, collapse(&file, at, len)),
        15..=17 if !tenancy.syncs => {
            let done = cut(volume, &inode, 0);
            let bytes = racer::marked(mark, tenancy.quota * block);
            (Wish::More, done.and_then(|()| file.write_direct_at(0, &bytes).map(drop)))
        }
        15..=16 => (Wish::Nothing, file.sync(rng.random())),
        17 => (Wish::Nothing, volume.space().journal().commit_all()),
        _ => (Wish::Nothing, look(around, &file, mark, at + len, rng.random())),
    };
    match done {
        Err(error) if is_full(&error) && !around.excuses(&error) => {
            let may_want = match wish {
                Wish::More => true,
                Wish::Less => !tenancy.has_pool,
                Wish::Nothing => false,
            };
            if tenancy.is_scarce && may_want {
                return Ok(());
            }
            let what = if tenancy.is_scarce { "it asks for none" } else { "there is room" };
            around.progress.fault(format!("tenant operation {roll}: {what}: {error}"));
            Ok(())
        }
        other => other,
    }
}

/// Where callers wait for each other.
#[derive(Debug)]
pub(super) struct Meeting {
    state: Mutex<Attendance>,
    is_over: Condvar,
}

#[derive(Debug)]
struct Attendance {
    expected: usize,
    present: usize,
    number: u64,
}

/// Operations between two meetings.
const BETWEEN_MEETINGS: usize = 12;

impl Meeting {
    pub(super) fn of(callers: usize) -> Meeting {
        let state = Attendance { expected: callers, present: 0, number: 0 };
        Meeting { state: Mutex::new(state), is_over: Condvar::new() }
    }

    /// Waits for the others. True for the last one, for whom they wait until it says
    /// [`Meeting::end`].
    fn attend(&self) -> bool {
        let mut state = self.state.lock();
        state.present += 1;
        if state.present >= state.expected {
            return true;
        }
        let number = state.number;
        while state.number == number {
            self.is_over.wait(&mut state);
            if state.number == number && state.present >= state.expected {
                // The missing caller has left for good.
                return true;
            }
        }
        false
    }

    fn end(&self) {
        let mut state = self.state.lock();
        state.present = 0;
        state.number += 1;
        self.is_over.notify_all();
    }

    /// The caller comes to no more of them.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.expected -= 1;
        // One of the waiters takes the lead.
        self.is_over.notify_one();
    }
}

/// Meets the other callers after some operations.
pub(super) fn meet(around: &Around, operation: usize) -> Result<(), Error> {
    if operation % BETWEEN_MEETINGS != BETWEEN_MEETINGS - 1 || !around.meeting.attend() {
        return Ok(());
    }
    let synced = around.volume.sync();
    around.meeting.end();
    match synced {
        Err(error) if is_full(&error) && !around.excuses(&error) => {
            around.progress.fault(format!("tenants: what was promised is not there: {error}"));
            Ok(())
        }
        other => other,
    }
}

fn is_full(error: &Error) -> bool {
    *error.kind() == ErrorKind::NoSpace
}

fn unless_full(error: Error) -> Result<(), Error> {
    if is_full(&error) { Ok(()) } else { Err(error) }
}

fn write(file: &OpenFile, at: u64, mark: Id, len: u64) -> Result<(), Error> {
    file.write_at(at, &racer::marked(mark, len)).map(drop)
}

fn collapse(file: &OpenFile, at: u64, len: u64) -> Result<(), Error> {
    match file.allocate(AllocateMode::CollapseRange, at, len) {
        // The file ends before that.
        Err(error) if *error.kind() == ErrorKind::InvalidArgument => Ok(()),
        done => done,
    }
}

fn look(
    around: &Around,
    file: &OpenFile,
    mark: Id,
    len: u64,
    is_direct: bool,
) -> Result<(), Error> {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let count = racer::read(file, &mut bytes, is_direct)?;
    if let Err(fault) = racer::is_marked(mark, 0, &bytes[..count]) {
        around.progress.fault(fault);
    }
    Ok(())
}
