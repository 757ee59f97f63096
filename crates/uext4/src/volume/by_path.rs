//! Operations by path that fail as the kernel's calls of the same names do.
//!
//! What: a path may end with a slash, with `.`, `..` or `/`, or with a symbolic link, and each call
//! has rules of its own for these. Here they are once, for whatever has no kernel above it: the C
//! interface and the Python package. `crates/uext4-capi/tests/paths.txt` compares them with the
//! kernel's.
//! Invariants: where more than one thing is wrong the kernel's first error is told. That a name
//! exists comes before a volume that is read-only, and before all else that keeps it from being
//! made; that there is none to remove, behind it.
//! Locking: none between finding the directory and the change in it, which looks at the name again.
//! What the end of a path asks of its file is asked before that, so a file that other threads
//! exchange meanwhile may be one that it does not ask for.

use super::Volume;
use super::path::{Last, LastLink, Walk};
use crate::error::{Error, ErrorKind, Result};
use crate::inode::InodeRef;
use crate::vfs::{NewInode, Owner, Privs, RenameMode};
use uext4_ondisk::FileKind;

/// Bytes of the longest path and of the longest target of a symbolic link that the kernel's calls
/// take (`PATH_MAX` counts a zero byte as well). [`Volume::resolve`] takes longer ones.
const PATH_BYTES_MAX: usize = 4095;

impl Volume {
    /// The inode that a path leads to, as stat(2) and lstat(2) find it. The path begins at `from`,
    /// as that of [`Volume::resolve`].
    ///
    /// # Errors
    /// `NotFound` also for an empty path; `NameTooLong` also for a path of 4096 bytes or more;
    /// those of [`Volume::resolve`].
    pub fn find_at(&self, from: &InodeRef, path: &[u8], last: LastLink) -> Result<InodeRef> {
        check_length(path)?;
        match path.is_empty() {
            true => Err(Error::new(ErrorKind::NotFound, "an empty path")),
            false => Ok(self.resolve(from, path, last)?.inode().clone()),
        }
    }

    /// Creates an inode that is not a symbolic link, as mkdir(2) and mknod(2). The path begins at
    /// `from`, as that of [`Volume::resolve`].
    ///
    /// # Errors
    /// `Exists`; `NotFound` also for a slash behind the new name of what is no directory; those of
    /// [`Volume::resolve`] and [`Volume::create`].
    pub fn create_at(&self, from: &InodeRef, path: &[u8], new: &NewInode) -> Result<InodeRef> {
        let is_directory = new.kind == FileKind::Directory;
        self.make_at(from, path, is_directory, |dir, name| self.create(dir, name, new))
    }

    /// Creates a symbolic link, as symlink(2).
    ///
    /// # Errors
    /// Those of [`Volume::create_at`] and [`Volume::symlink`].
    pub fn symlink_at(
        &self,
        from: &InodeRef,
        path: &[u8],
        target: &[u8],
        owner: Owner,
    ) -> Result<InodeRef> {
        if target.is_empty() {
            return Err(ErrorKind::NotFound.into());
        }
        check_length(target)?;
        self.make_at(from, path, false, |dir, name| self.symlink(dir, name, target, owner))
    }

    /// Creates a hard link at `path`, as link(2).
    ///
    /// # Errors
    /// Those of [`Volume::create_at`] and [`Volume::link`].
    pub fn link_at(&self, inode: &InodeRef, from: &InodeRef, path: &[u8]) -> Result<()> {
        self.make_at(from, path, false, |dir, name| self.link(inode, dir, name))
    }

    fn make_at<T>(
        &self,
        from: &InodeRef,
        path: &[u8],
        is_directory: bool,
        make: impl FnOnce(&InodeRef, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let mut walk = walk(self, from, path)?;
        let Last::Name(name) = walk.last()? else { return Err(ErrorKind::Exists.into()) };
        if walk.wants_directory && !is_directory {
            self.lookup(walk.here(), &name)?;
            return Err(ErrorKind::Exists.into());
        }
        make(walk.here(), &name).map_err(|error| match walk.look_up(&name) {
            Ok(Some(_)) => ErrorKind::Exists.into(),
            Ok(None) => self.expect_writable().err().unwrap_or(error),
            Err(first) => first,
        })
    }

    /// The file at `path`, which is made if it is not there, as open(2) with `O_CREAT`: a symbolic
    /// link at the end is followed, also to a name that nothing has. With `exclusive` (`O_EXCL`)
    /// the file is made, or the call fails.
    ///
    /// # Errors
    /// `IsADirectory` for a directory, and for a slash behind any name; `Exists`;
    /// `TooManySymlinks` also for a link that `last` does not follow; those of [`Volume::resolve`]
    /// and [`Volume::create`].
    pub fn find_or_create_at(
        &self,
        from: &InodeRef,
        path: &[u8],
        last: LastLink,
        exclusive: bool,
        new: &NewInode,
    ) -> Result<InodeRef> {
        let mut walk = walk(self, from, path)?;
        loop {
            let name = match walk.last()? {
                Last::Name(_) if walk.wants_directory => return Err(ErrorKind::IsADirectory.into()),
                Last::Name(name) => name,
                _ if exclusive => return Err(ErrorKind::Exists.into()),
                _ => return Err(ErrorKind::IsADirectory.into()),
            };
            match walk.look_up(&name)? {
                Some(_) if exclusive => return Err(ErrorKind::Exists.into()),
                Some(found) => match (found.kind(), last) {
                    (FileKind::Symlink, LastLink::Follow) => walk.follow(&found)?,
                    (FileKind::Symlink, LastLink::Keep) => {
                        return Err(ErrorKind::TooManySymlinks.into());
                    }
                    (FileKind::Directory, _) => return Err(ErrorKind::IsADirectory.into()),
                    _ => return Ok(found),
                },
                None => match self.create(walk.here(), &name, new) {
                    // Another thread has made it in between.
                    Err(error) if *error.kind() == ErrorKind::Exists && !exclusive => {
                        walk.again(name);
                    }
                    made => return made,
                },
            }
        }
    }

    /// Removes a name of an inode that is not a directory, as unlink(2).
    ///
    /// # Errors
    /// `IsADirectory`; `NotADirectory` for a slash behind another name; those of
    /// [`Volume::resolve`] and [`Volume::unlink`].
    pub fn unlink_at(&self, from: &InodeRef, path: &[u8]) -> Result<()> {
        let mut walk = walk(self, from, path)?;
        let Last::Name(name) = walk.last()? else { return Err(ErrorKind::IsADirectory.into()) };
        if !walk.wants_directory {
            return self.unlink(walk.here(), &name);
        }
        self.expect_writable()?;
        Err(match self.lookup(walk.here(), &name)?.kind() {
            FileKind::Directory => ErrorKind::IsADirectory,
            _ => ErrorKind::NotADirectory,
        }
        .into())
    }

    /// Removes an empty directory, as rmdir(2).
    ///
    /// # Errors
    /// `InUse` for the root, `InvalidArgument` for `.`, `NotEmpty` for `..`; those of
    /// [`Volume::resolve`] and [`Volume::rmdir`].
    pub fn rmdir_at(&self, from: &InodeRef, path: &[u8]) -> Result<()> {
        let mut walk = walk(self, from, path)?;
        match walk.last()? {
            Last::Name(name) => self.rmdir(walk.here(), &name),
            Last::Root => Err(Error::new(ErrorKind::InUse, "the root directory")),
            Last::Dot => Err(Error::new(ErrorKind::InvalidArgument, "needs a name at its end")),
            Last::DotDot => Err(ErrorKind::NotEmpty.into()),
        }
    }

    /// Renames `path`, which begins at `from`, to `new_path`, which begins at `new_from`, as
    /// renameat2(2).
    ///
    /// # Errors
    /// `InUse` for a path that ends with no name, but with `/`, `.` or `..`; `NotADirectory` for a
    /// slash behind the name, old or new, of what is no directory; those of [`Volume::resolve`] and
    /// [`Volume::rename`].
    pub fn rename_at(
        &self,
        from: &InodeRef,
        path: &[u8],
        new_from: &InodeRef,
        new_path: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let mut old = walk(self, from, path)?;
        let last = old.last()?;
        let mut new = walk(self, new_from, new_path)?;
        let (name, new_name) = match (last, new.last()?, mode) {
            (Last::Name(name), Last::Name(new_name), _) => (name, new_name),
            (Last::Name(_), _, RenameMode::NoReplace | RenameMode::WhiteoutNoReplace(_)) => {
                return Err(ErrorKind::Exists.into());
            }
            _ => return Err(Error::new(ErrorKind::InUse, "needs a name at its end")),
        };
        if old.wants_directory || new.wants_directory {
            self.check_slashes((&old, &name), (&new, &new_name), mode)?;
        }
        self.rename(old.here(), &name, new.here(), &new_name, mode)
    }

    /// Whether the slashes behind the names of a rename are behind directories.
    fn check_slashes(
        &self,
        (old, name): (&Walk<'_>, &[u8]),
        (new, new_name): (&Walk<'_>, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.expect_writable()?;
        let is_directory = |inode: &InodeRef| inode.kind() == FileKind::Directory;
        let source = self.lookup(old.here(), name)?;
        let target = new.look_up(new_name)?;
        // What gets the new name, and in an exchange the old one, is a directory if a slash asks.
        let fits = match (mode, &target) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace(_), Some(_)) => {
                return Err(ErrorKind::Exists.into());
            }
            (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound.into()),
            (RenameMode::Exchange, Some(target)) => {
                (!new.wants_directory || is_directory(target))
                    && (!old.wants_directory || is_directory(&source))
            }
            _ => is_directory(&source),
        };
        if fits { Ok(()) } else { Err(ErrorKind::NotADirectory.into()) }
    }

    /// The rights that a change of content or owner removes from a file where the caller is of
    /// `group`, and has no `CAP_FSETID`.
    #[must_use]
    pub fn privs_for(&self, inode: &InodeRef, group: u32) -> Privs {
        match self.bare_set_gid(inode) {
            Some(of_file) if of_file != group => Privs::AllOutsideGroup,
            _ => Privs::All,
        }
    }

    fn expect_writable(&self) -> Result<()> {
        if self.read_only() { Err(ErrorKind::ReadOnly.into()) } else { Ok(()) }
    }
}

/// A path of a length that the kernel takes, at its start.
fn walk<'a>(volume: &'a Volume, from: &InodeRef, path: &[u8]) -> Result<Walk<'a>> {
    check_length(path)?;
    Walk::new(volume, from, path)
}

fn check_length(path: &[u8]) -> Result<()> {
    if path.len() <= PATH_BYTES_MAX {
        return Ok(());
    }
    let context = format!("{} bytes, and a path has at most {PATH_BYTES_MAX}", path.len());
    Err(Error::new(ErrorKind::NameTooLong, context))
}
