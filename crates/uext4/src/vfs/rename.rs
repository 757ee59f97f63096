//! Renaming.
//!
//! Locking: the data of a file that replaces another is written first, with no lock held. Then, if
//! two directories take part, the rename lock, so that no other thread moves a directory meanwhile.
//! Then both directories, ancestors first, else by number. Then the inodes that move or go:
//! directories by number (see `attempt`), then files by number.

use super::attempt::{Attempt, ContentLock, Done};
use super::create::{InheritedLists, Prepared};
use super::{Device, NewInode, Owner, Vfs, add_subdirectory, drop_subdirectory, expect_directory};
use crate::dir::{self, FoundEntry, Insertion};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::{Attributes, Inode, InodeRef};
use std::sync::Arc;
use uext4_ondisk::{CorruptKind, FileKind, Ino, Place};

/// What happens to an inode that has the new name already, and what the old name leads to. If the
/// names are two spellings in a directory that folds case, the first mode changes the spelling.
///
/// A whiteout is a character device 0:0 without permissions. An overlay takes it for a name that is
/// removed. It is made in the handle of the rename, with this owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It is replaced.
    Replace,
    /// The rename fails.
    NoReplace,
    /// It gets the old name.
    Exchange,
    /// It is replaced; a whiteout gets the old name.
    Whiteout(Owner),
    /// The rename fails; otherwise a whiteout gets the old name.
    WhiteoutNoReplace(Owner),
}

impl RenameMode {
    /// Whether an inode may lose the new name.
    fn replaces(self) -> bool {
        matches!(self, Self::Replace | Self::Whiteout(_))
    }

    /// The owner of the whiteout.
    fn whiteout(self) -> Option<Owner> {
        match self {
            Self::Whiteout(owner) | Self::WhiteoutNoReplace(owner) => Some(owner),
            Self::Replace | Self::NoReplace | Self::Exchange => None,
        }
    }
}

/// A whiteout that can be written.
struct Whiteout {
    prepared: Prepared,
    inode: Arc<Inode>,
    lists: InheritedLists,
}

/// One side of a rename.
struct Side<'a> {
    dir: &'a InodeRef,
    entry: FoundEntry,
    inode: InodeRef,
}

impl Side<'_> {
    fn is_directory(&self) -> bool {
        self.inode.kind() == FileKind::Directory
    }
}

impl Vfs {
    /// Renames `name` in `dir` to `new_name` in `new_dir`.
    ///
    /// # Errors
    /// `NotFound`, `Exists`, `NotEmpty`, `IsADirectory`, `NotADirectory`, `InvalidArgument` (a
    /// directory into itself), `CrossesProjects`, `NoSpace`, `TooManyLinks`, `ReadOnly`; a device
    /// failure.
    pub fn rename(
        &self,
        dir: &InodeRef,
        name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        Self::check_name(name)?;
        Self::check_name(new_name)?;
        expect_directory(dir)?;
        expect_directory(new_dir)?;
        if mode.replaces() {
            self.write_ahead(dir, name, new_dir, new_name);
        }
        let crosses = dir.ino() != new_dir.ino();
        let renamed = self
            .attempt(crosses, |attempt| {
                self.try_rename(attempt, dir, name, new_dir, new_name, mode)
            })
            .and_then(|()| self.files.syncs.honour_dirsync_flags(&[dir, new_dir]));
        // Even if the rename has failed: another thread may have removed the last name of an inode
        // that it looked at, and left the deletion to the last user.
        let deleted = self.files.context.watch(self.files.deletion.delete_unlinked());
        renamed.and(deleted)
    }

    /// Writes the data of a file that is about to replace another (`auto_da_alloc`). This is done
    /// before anything is locked, because it may take long. Data that becomes dirty afterwards, or
    /// fails to be written here, is written again under the locks, so that errors of the names are
    /// reported first.
    fn write_ahead(&self, dir: &InodeRef, name: &[u8], new_dir: &InodeRef, new_name: &[u8]) {
        if self.files.context.options.auto_da_alloc
            && let Ok(from) = self.lookup(dir, name)
            && from.kind() == FileKind::Regular
            && from.pages().map.dirty() > 0
            && self.lookup(new_dir, new_name).is_ok_and(|to| to.ino() != from.ino())
        {
            let _ = self.files.context.watch(self.files.syncs.write_back(&from));
        }
    }

    fn try_rename(
        &self,
        attempt: Attempt<'_>,
        dir: &InodeRef,
        name: &[u8],
        new_dir: &InodeRef,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<Done> {
        let crosses = dir.ino() != new_dir.ino();
        let new_dir_first = crosses && self.goes_first(new_dir, dir)?;
        let (first, second) = if new_dir_first { (new_dir, dir) } else { (dir, new_dir) };
        let _first = first.lock().write();
        let _second = crosses.then(|| second.lock().write());
        self.check_loser(dir)?;
        self.check_parent(new_dir)?;
        let from = self.side(dir, name)?.ok_or(ErrorKind::NotFound)?;
        let to = self.side(new_dir, new_name)?;
        // Names that are shown without the key are not names to give.
        dir.check_key()?;
        new_dir.check_key()?;
        if to.is_some() {
            self.files.context.check_not_append_only(new_dir)?;
        }
        // Two entries may have names that were not the same to the kernel that made them.
        let is_one = to.as_ref().is_some_and(|to| to.entry.is_at(&from.entry));
        if mode == RenameMode::Replace
            && !crosses
            && is_one
            && dir::is_respelling(dir, name, new_name)?
        {
            return self.respell(attempt, &from, new_name);
        }
        match (mode, to) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace(_), Some(_)) => {
                Err(ErrorKind::Exists.into())
            }
            (RenameMode::Exchange, None) => Err(ErrorKind::NotFound.into()),
            (_, Some(to)) if to.inode.ino() == from.inode.ino() => Ok(Done::Yes),
            (RenameMode::Exchange, Some(to)) => self.exchange(attempt, &from, &to),
            (_, to) => {
                self.replace(attempt, &from, new_dir, new_name, to.as_ref(), mode.whiteout())
            }
        }
    }

    fn side<'a>(&self, dir: &'a InodeRef, name: &[u8]) -> Result<Option<Side<'a>>> {
        let Some(entry) = dir::lookup(dir, name)? else { return Ok(None) };
        let inode = self.linked(dir, entry.ino)?;
        self.check_removable(&inode)?;
        Ok(Some(Side { dir, entry, inode }))
    }

    /// Whether `a` is locked before `b`: it is an ancestor of `b`, or neither is an ancestor of the
    /// other and its number is lower. The rename lock is held.
    fn goes_first(&self, a: &InodeRef, b: &InodeRef) -> Result<bool> {
        if self.is_ancestor(a.ino(), b)? {
            return Ok(true);
        }
        Ok(!self.is_ancestor(b.ino(), a)? && a.ino() < b.ino())
    }

    /// Whether directory `ancestor` is `dir` or is above it. The rename lock is held, so `..`
    /// entries of linked directories stay.
    fn is_ancestor(&self, ancestor: Ino, dir: &InodeRef) -> Result<bool> {
        let mut at = dir.clone();
        // In a loop the walk comes back to the place where it was after 1, 2, 4, .. steps.
        let (mut mark, mut steps, mut next_mark) = (None, 0_u32, 1_u32);
        loop {
            if at.ino() == ancestor {
                return Ok(true);
            }
            if at.ino() == Ino::ROOT {
                return Ok(false);
            }
            if mark == Some(at.ino()) {
                let kind = CorruptKind::Rule { what: "directory", why: "lies below itself" };
                return Err(kind.at(Place::Inode(at.ino())).into());
            }
            steps = steps.saturating_add(1);
            if steps == next_mark {
                (mark, next_mark) = (Some(at.ino()), next_mark.saturating_mul(2));
            }
            let parent = dir::parent_entry(&at)?.ino;
            at = self.linked(&at, parent)?;
        }
    }

    fn replace(
        &self,
        attempt: Attempt<'_>,
        from: &Side<'_>,
        new_dir: &InodeRef,
        new_name: &[u8],
        to: Option<&Side<'_>>,
        whiteout: Option<Owner>,
    ) -> Result<Done> {
        self.check_project(new_dir, &from.inode)?;
        let crosses = from.dir.ino() != new_dir.ino();
        if crosses {
            self.check_policy(new_dir, &from.inode)?;
        }
        if from.is_directory() && crosses && self.is_ancestor(from.inode.ino(), new_dir)? {
            return Err(Error::new(ErrorKind::InvalidArgument, "a directory into itself"));
        }
        if let Some(to) = to {
            // Before the kinds, as the kernel tells them.
            if to.is_directory() && crosses && self.is_ancestor(to.inode.ino(), from.dir)? {
                return Err(ErrorKind::NotEmpty.into());
            }
            check_kinds(from, to)?;
        }
        let moves_dir = from.is_directory() && crosses;
        if moves_dir && to.is_none() {
            self.check_links(new_dir)?;
        }
        if self.files.context.options.auto_da_alloc
            && to.is_some()
            && from.inode.kind() == FileKind::Regular
        {
            // A program that replaces a file expects one of the two after a crash. Most of the data
            // has been written by `write_ahead`.
            self.files.syncs.write_back(&from.inode)?;
        }
        let Some(_locks) = lock_moving(attempt, &from.inode, to.map(|to| &to.inode)) else {
            return Ok(Done::NotYet);
        };
        if let Some(to) = to
            && to.is_directory()
            && !dir::is_empty(&to.inode)?
        {
            return Err(ErrorKind::NotEmpty.into());
        }
        let insertion = to.is_none().then(|| Insertion::plan(new_dir, new_name)).transpose()?;
        let whiteout = whiteout.map(|owner| self.whiteout(from.dir, owner)).transpose()?;
        self.apply_replace(from, new_dir, to, insertion, moves_dir, whiteout)?;
        Ok(Done::Yes)
    }

    /// Gives an entry of a directory that folds case another spelling.
    fn respell(&self, attempt: Attempt<'_>, from: &Side<'_>, new_name: &[u8]) -> Result<Done> {
        let Some(_locks) = lock_moving(attempt, &from.inode, None) else {
            return Ok(Done::NotYet);
        };
        let insertion = Insertion::plan_respelling(from.dir, new_name)?;
        self.apply_replace(from, from.dir, None, Some(insertion), false, None)?;
        Ok(Done::Yes)
    }

    fn whiteout(&self, dir: &InodeRef, owner: Owner) -> Result<Whiteout> {
        let (kind, rdev) = (FileKind::CharDevice, Device::default());
        let (attributes, lists) = self.inherit(dir, &NewInode { kind, mode: 0, owner, rdev })?;
        let prepared = self.prepare(self.allocate_child(dir, kind)?, kind, attributes, 0)?;
        Ok(Whiteout { inode: Arc::clone(&prepared.inode), prepared, lists })
    }

    fn apply_replace(
        &self,
        from: &Side<'_>,
        new_dir: &InodeRef,
        to: Option<&Side<'_>>,
        insertion: Option<Insertion<'_>>,
        moves_dir: bool,
        mut whiteout: Option<Whiteout>,
    ) -> Result<()> {
        let space = &self.files.context.space;
        let dotdot = moves_dir.then(|| dir::parent_entry(&from.inode)).transpose()?;
        let mut changed: Vec<&Inode> = vec![&from.inode, from.dir, new_dir];
        changed.extend(to.map(|to| &**to.inode));
        let _pins = super::pin(&changed)?;
        let insertion_credits = insertion.as_ref().map_or(1, Insertion::credits);
        let whiteout_inode = whiteout.as_ref().map(|of| Arc::clone(&of.inode));
        let lists = match (&whiteout, &whiteout_inode) {
            (Some(of), Some(inode)) => of.lists.plan(inode)?,
            _ => None,
        };
        let whiteout_credits =
            whiteout.as_ref().map_or(0, |of| of.prepared.credits(lists.as_ref()));
        let credits = insertion_credits + space.credits().orphan + whiteout_credits + 6;
        space.journal().run(credits, |handle| {
            let (ino, kind) = (from.inode.ino(), from.inode.kind());
            match &mut whiteout {
                Some(of) => {
                    of.prepared.write(handle, lists, |_, _, _| Ok(()))?;
                    from.entry.set_ino(handle, from.dir, of.inode.ino(), of.inode.kind())?;
                }
                None => from.entry.remove(handle, from.dir)?,
            }
            if let Some(to) = to {
                to.entry.set_ino(handle, to.dir, ino, kind)?;
                self.drop_link(handle, &to.inode)?;
            }
            if let Some(insertion) = insertion {
                insertion.apply(handle, ino, kind)?;
            }
            from.inode.update(handle, Attributes::touch)?;
            if let Some(dotdot) = dotdot {
                dotdot.set_ino(handle, &from.inode, new_dir.ino(), FileKind::Directory)?;
            }
            let leaves = moves_dir || (from.is_directory() && to.is_some());
            from.dir.update(handle, |attributes| {
                if leaves {
                    drop_subdirectory(attributes);
                }
                attributes.touch_content();
            })?;
            new_dir.update(handle, |attributes| {
                // A directory that replaces another one leaves the count as it is.
                if moves_dir && to.is_none() {
                    add_subdirectory(attributes);
                }
                attributes.touch_content();
            })
        })?;
        drop(whiteout.map(|of| of.prepared.finish()));
        Ok(())
    }

    fn exchange(&self, attempt: Attempt<'_>, from: &Side<'_>, to: &Side<'_>) -> Result<Done> {
        self.check_project(to.dir, &from.inode)?;
        self.check_project(from.dir, &to.inode)?;
        let crosses = from.dir.ino() != to.dir.ino();
        if crosses {
            self.check_policy(to.dir, &from.inode)?;
            self.check_policy(from.dir, &to.inode)?;
            for (side, other) in [(from, to), (to, from)] {
                if side.is_directory() && self.is_ancestor(side.inode.ino(), other.dir)? {
                    return Err(Error::new(ErrorKind::InvalidArgument, "a directory into itself"));
                }
            }
        }
        let Some(_locks) = lock_moving(attempt, &from.inode, Some(&to.inode)) else {
            return Ok(Done::NotYet);
        };
        let space = &self.files.context.space;
        let moves = |side: &Side<'_>| crosses && side.is_directory();
        let dotdot = |side| moves(side).then(|| dir::parent_entry(&side.inode)).transpose();
        let (from_dotdot, to_dotdot) = (dotdot(from)?, dotdot(to)?);
        let _pins = super::pin(&[&from.inode, &to.inode, from.dir, to.dir])?;
        space.journal().run(8, |handle| {
            from.entry.set_ino(handle, from.dir, to.inode.ino(), to.inode.kind())?;
            to.entry.set_ino(handle, to.dir, from.inode.ino(), from.inode.kind())?;
            if let Some(entry) = from_dotdot {
                entry.set_ino(handle, &from.inode, to.dir.ino(), FileKind::Directory)?;
            }
            if let Some(entry) = to_dotdot {
                entry.set_ino(handle, &to.inode, from.dir.ino(), FileKind::Directory)?;
            }
            from.inode.update(handle, Attributes::touch)?;
            to.inode.update(handle, Attributes::touch)?;
            let change = |attributes: &mut Attributes, gains: bool, loses: bool| {
                match (crosses && gains, crosses && loses) {
                    (true, false) => add_subdirectory(attributes),
                    (false, true) => drop_subdirectory(attributes),
                    _ => {}
                }
                attributes.touch_content();
            };
            let (from_is, to_is) = (from.is_directory(), to.is_directory());
            from.dir.update(handle, |attributes| change(attributes, to_is, from_is))?;
            to.dir.update(handle, |attributes| change(attributes, from_is, to_is))
        })?;
        Ok(Done::Yes)
    }
}

/// A directory replaces only a directory, a file only a file.
fn check_kinds(from: &Side<'_>, to: &Side<'_>) -> Result<()> {
    match (from.is_directory(), to.is_directory()) {
        (true, false) => Err(ErrorKind::NotADirectory.into()),
        (false, true) => Err(ErrorKind::IsADirectory.into()),
        _ => Ok(()),
    }
}

/// Locks the inodes that move or go: directories before files, then by number. `None` if one is
/// busy.
fn lock_moving<'a>(
    attempt: Attempt<'_>,
    a: &'a InodeRef,
    b: Option<&'a InodeRef>,
) -> Option<Vec<ContentLock<'a>>> {
    let mut inodes: Vec<&Inode> = vec![a];
    inodes.extend(b.map(|b| &***b));
    inodes.sort_by_key(|inode| (inode.kind() != FileKind::Directory, inode.ino()));
    inodes.into_iter().map(|inode| attempt.lock(inode)).collect()
}
