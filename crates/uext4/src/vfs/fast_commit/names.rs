//! The names of fast commits: entries go and come, and links are counted.

use super::outcome::Outcome;
use super::{Repetition, corrupt, not_repeatable};
use crate::dir::{self, Insertion};
use crate::error::{ErrorKind, Result};
use crate::extent::allocate_growth;
use crate::inode::{Attributes, InodeRef};
use crate::vfs::{Vfs, add_subdirectory, drop_subdirectory, pin};
use uext4_ondisk::{FileKind, Ino, InodeFlags};

impl Repetition<'_> {
    /// Repeats the changes of names. The inodes that they name are there.
    pub(super) fn repeat_names(&self, outcome: &Outcome<'_>) -> Result<()> {
        self.make_directories(outcome)?;
        for (&(parent, name), &named) in &outcome.names {
            if outcome.inodes.get(&parent).is_none_or(|parent| parent.lives()) {
                self.remove_name(outcome, parent, name, named)?;
            }
        }
        for (&(parent, name), &named) in &outcome.names {
            if let Some(ino) = named
                && outcome.inodes.get(&parent).is_none_or(|parent| parent.lives())
            {
                self.add_name(parent, name, ino)?;
            }
        }
        let orphans = &self.vfs.files.context.orphans;
        let waiting = orphans.waiting(&self.vfs.files.context.table)?;
        for (&ino, inode) in outcome.inodes.iter().filter(|(_, inode)| inode.is_named) {
            let is_directory = inode.kind == Some(FileKind::Directory);
            if inode.lives() && !is_directory {
                let file = self.inode(ino)?;
                let _pin = file.table_block()?;
                self.space.journal().run(1, |handle| {
                    file.update(handle, |attributes| attributes.links = inode.links)
                })?;
            } else if !inode.lives() && inode.before.is_some() {
                if waiting.contains(&ino) {
                    return Err(not_repeatable(ino, "which was an orphan before"));
                }
                self.delete(ino)?;
            }
        }
        Ok(())
    }

    /// Gives every new directory its first block.
    fn make_directories(&self, outcome: &Outcome<'_>) -> Result<()> {
        for (&(parent, _), &named) in &outcome.names {
            let Some(ino) = named else { continue };
            let Some(inode) = outcome.inodes.get(&ino) else { continue };
            if inode.kind != Some(FileKind::Directory) || !inode.lives() || !inode.is_new() {
                continue;
            }
            let made = self.inode(ino)?;
            if made.size() != 0 {
                return Err(corrupt(ino, "gives a directory two names"));
            }
            let _exclusive = made.lock().write();
            let mut growth = allocate_growth(&made, 1)?;
            let credits = dir::init_credits(&made) + 1;
            self.space
                .journal()
                .run(credits, |handle| dir::init(handle, &made, &mut growth, parent))?;
        }
        Ok(())
    }

    fn directory(&self, ino: Ino) -> Result<InodeRef> {
        let dir = self.inode(ino)?;
        let flags = dir.attributes().flags;
        if flags.contains(InodeFlags::ENCRYPT) {
            return Err(not_repeatable(ino, "an encrypted directory"));
        }
        // Records may name one entry by two spellings.
        if flags.contains(InodeFlags::CASEFOLD) {
            return Err(not_repeatable(ino, "a directory that folds case"));
        }
        if dir.kind() == FileKind::Directory {
            return Ok(dir);
        }
        Err(corrupt(ino, "has names in what is no directory"))
    }

    /// Takes a name away that stands for another inode than it will.
    fn remove_name(
        &self,
        outcome: &Outcome<'_>,
        parent: Ino,
        name: &[u8],
        named: Option<Ino>,
    ) -> Result<()> {
        Vfs::check_name(name).map_err(|_| corrupt(parent, "has a name that no entry can have"))?;
        let dir = self.directory(parent)?;
        let _exclusive = dir.lock().write();
        let Some(entry) = dir::lookup(&dir, name)? else { return Ok(()) };
        let known = outcome.inodes.get(&entry.ino);
        // An entry of before names the file of before, even if another has its number.
        if Some(entry.ino) == named && known.is_none_or(|inode| !inode.is_new()) {
            return Ok(());
        }
        let kind = match known {
            Some(inode) => match inode.before {
                Some(before) => before.kind,
                None => return Err(corrupt(entry.ino, "makes an inode that had a name")),
            },
            None => self.vfs.files.context.table.read(entry.ino)?.kind(),
        };
        let is_directory = kind == FileKind::Directory;
        let _pins = pin(&[&dir])?;
        self.space.journal().run(2, |handle| {
            entry.remove(handle, &dir)?;
            dir.update(handle, |attributes| {
                if is_directory {
                    drop_subdirectory(attributes);
                }
                attributes.touch_content();
            })
        })
    }

    fn add_name(&self, parent: Ino, name: &[u8], ino: Ino) -> Result<()> {
        let dir = self.directory(parent)?;
        let free = |_| corrupt(parent, "names an inode that is free");
        let child = self.inode(ino).map_err(|error| match error.kind() {
            ErrorKind::NotFound => free(error),
            _ => error,
        })?;
        if child.ino() == dir.ino() {
            return Err(corrupt(parent, "names a directory in itself"));
        }
        let _exclusive = dir.lock().write();
        if dir::lookup(&dir, name)?.is_some() {
            return Ok(());
        }
        let is_directory = child.kind() == FileKind::Directory;
        let insertion = Insertion::plan(&dir, name)?;
        let _pins = pin(&[&dir])?;
        self.space.journal().run(insertion.credits() + 1, |handle| {
            insertion.apply(handle, ino, child.kind())?;
            let change = |attributes: &mut Attributes| {
                if is_directory {
                    add_subdirectory(attributes);
                }
                attributes.touch_content();
            };
            dir.update(handle, change)
        })
    }

    /// Deletes an inode that has lost its last name.
    fn delete(&self, ino: Ino) -> Result<()> {
        let inode = self.inode(ino)?;
        let _pins = pin(&[&inode])?;
        let credits = self.space.credits().orphan + 1;
        self.space.journal().run(credits, |handle| {
            inode.update(handle, |attributes| attributes.links = 0)?;
            self.vfs.files.context.orphans.add(handle, &inode)
        })?;
        drop(inode);
        self.vfs.files.deletion.delete_unlinked()
    }
}
