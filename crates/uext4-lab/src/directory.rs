//! A directory that is mounted already, as a target: loads through system calls, in a folder of it.
//!
//! What: with `--dir` the target `dir` takes the kernel's place. Each run has a new folder in that
//! directory, which goes with the [`Folder`], also when the run is killed. Nothing is formatted or
//! mounted, so the file system is as old and as full as it is, a run does not begin freshly
//! mounted, and no e2fsck looks at what it left: what the files hold is looked at by itself.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, StatVfsMountFlags, access, statvfs, syncfs};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::check::Expected;
use crate::error::{Doing, Error, Result};
use crate::leftovers;
use crate::plan::Plan;
use crate::stage::{FOLDER_PREFIX, plain};
use crate::target::Target;
use crate::tree::{self, Body, Tree};
use crate::worker::dir_name;

impl Plan {
    /// Refuses a directory that the loads cannot be run in; nothing is touched.
    ///
    /// # Errors
    /// No directory, read-only, not writable, too little room; a target `dir` without one.
    pub fn require_directory(&self) -> Result<()> {
        let Some(dir) = &self.dir else {
            return match self.targets.contains(&Target::Dir) {
                true => Err(Error::new("target dir needs a directory: --dir DIR")),
                false => Ok(()),
            };
        };
        let wrong = |why: &str| Err(Error::new(format!("{}: {why}", dir.display())));
        if !fs::metadata(dir).doing(dir.display())?.is_dir() {
            return wrong("not a directory");
        }
        let found = statvfs(dir).doing(dir.display())?;
        if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return wrong("mounted read-only");
        }
        access(dir, Access::WRITE_OK | Access::EXEC_OK).doing(dir.display())?;
        plain(dir)?;
        let free = found.f_bavail * found.f_frsize;
        let loads = self.loads.iter().filter(|load| Target::Dir.takes(load));
        let needs = loads.flat_map(|load| {
            let plan = self.of(load);
            let forms = plan.forms_of(load);
            let threads = plan.threads_of(load);
            let pairs = forms.into_iter().flat_map(|form| threads.iter().map(move |n| (form, *n)));
            let needs =
                pairs.map(|(form, threads)| ((load.room)(&plan, form, threads, 1), load.id));
            needs.collect::<Vec<_>>()
        });
        match needs.max() {
            Some((need, id)) if need > free => {
                let (need, free) = (need >> 20, free >> 20);
                let advice = self.advice();
                wrong(&format!("{id} needs {need} MiB, it has {free}: use {advice}"))
            }
            _ => Ok(()),
        }
    }
}

/// A run's own folder in the directory.
#[derive(Debug)]
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        let made = tempfile::Builder::new()
            .prefix(&format!("{FOLDER_PREFIX}{}-", std::process::id()))
            .tempdir_in(plain(dir)?)
            .doing(format_args!("making a folder in {}", dir.display()))?;
        leftovers::add(made.path());
        Ok(Self(made))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Brings all of it to where the file system stores it.
    pub(crate) fn sync(&self) -> Result<()> {
        let folder = File::open(self.path()).doing("opening the folder")?;
        syncfs(&folder).doing("syncfs")
    }

    /// Removes it.
    pub(crate) fn remove(self) -> Result<()> {
        self.0.close().doing("removing what the load made")
    }
}

/// Looks whether a folder holds what a load on the tree or on small files leaves: every entry with
/// its size.
///
/// # Errors
/// Says what is missing or too much.
pub(crate) fn check(dir: &Path, expected: Expected, tree: &Tree) -> Result<()> {
    let differs = |what: String| Err(Error::new(what));
    match expected {
        Expected::NoTree => match dir.join(tree::TOP).exists() {
            true => differs("the tree is still there".to_owned()),
            false => Ok(()),
        },
        Expected::Files(files) => (0..files.dirs).try_for_each(|number| {
            let found = fs::read_dir(dir.join(dir_name(number))).doing("reading a directory")?;
            match found.count() {
                count if count == files.per_dir as usize => Ok(()),
                count => differs(format!("{count} small files, not {}", files.per_dir)),
            }
        }),
        Expected::Tree | Expected::UntimedTree => {
            for entry in &tree.entries {
                let found = fs::symlink_metadata(dir.join(&entry.path));
                let found = found.doing(&entry.path)?;
                let is_right = match &entry.body {
                    Body::Directory => found.is_dir(),
                    Body::Link(_) => found.is_symlink(),
                    Body::File(content) => found.is_file() && found.len() == content.len,
                };
                if !is_right {
                    return differs(format!("{}: kind or size differs", entry.path));
                }
            }
            match count(&dir.join(tree::TOP))? {
                count if count == tree.entries.len() => Ok(()),
                _ => differs("entries that are not of the tree".to_owned()),
            }
        }
    }
}

/// Entries below a directory, and itself.
fn count(dir: &Path) -> Result<usize> {
    let (mut dirs, mut sum) = (VecDeque::from([dir.to_owned()]), 1);
    while let Some(dir) = dirs.pop_front() {
        for entry in fs::read_dir(&dir).doing("reading a directory")? {
            let entry = entry.doing("reading a directory")?;
            sum += 1;
            if entry.file_type().doing("reading a directory")?.is_dir() {
                dirs.push_back(entry.path());
            }
        }
    }
    Ok(sum)
}

/// What `env.json` says of the file system of a directory.
pub(crate) fn describe(dir: &Path) -> Value {
    let mount = mount_of(dir);
    let word = |at: usize| mount.as_ref().and_then(|words| words.get(at).cloned());
    let room = statvfs(dir).ok();
    json!({
        "path": dir,
        "mounted_on": word(0),
        "mount_options": word(1),
        "file_system": word(2),
        "device": word(3),
        "file_system_options": word(4),
        "block_bytes": room.as_ref().map(|room| room.f_bsize),
        "bytes": room.as_ref().map(|room| room.f_blocks * room.f_frsize),
        "free_bytes": room.as_ref().map(|room| room.f_bavail * room.f_frsize),
    })
}

/// Mount point, its options, type, device and options of the file system of a directory.
fn mount_of(dir: &Path) -> Option<[String; 5]> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let dir: PathBuf = fs::canonicalize(dir).ok()?;
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(4).map(str::to_owned);
        let mut after = after.split(' ').map(str::to_owned);
        let mount = [before.next()?, before.next()?, after.next()?, after.next()?, after.next()?];
        dir.starts_with(&mount[0]).then_some(mount)
    });
    // Of two mounts on one directory the later one is seen.
    mounts.max_by_key(|mount| mount[0].len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::SmallFiles;

    /// Fault model: a load that leaves an entry out, makes one too many or cuts one off.
    #[test]
    fn a_tree_that_is_not_whole_is_seen() {
        let (dir, tree) = (tempfile::tempdir().unwrap(), Tree::new(0.001));
        for entry in &tree.entries {
            let path = dir.path().join(&entry.path);
            match &entry.body {
                Body::Directory => fs::create_dir(path).unwrap(),
                Body::Link(target) => std::os::unix::fs::symlink(target, path).unwrap(),
                Body::File(content) => File::create(path).unwrap().set_len(content.len).unwrap(),
            }
        }
        let whole = || check(dir.path(), Expected::Tree, &tree);
        whole().unwrap();
        let more = dir.path().join(tree::TOP).join("more");
        fs::write(&more, "").unwrap();
        assert!(whole().is_err());
        fs::remove_file(more).unwrap();
        let file = tree.entries.iter().find(|e| matches!(&e.body, Body::File(c) if c.len > 0));
        let file = dir.path().join(&file.unwrap().path);
        File::create(&file).unwrap();
        assert!(whole().is_err());
        fs::remove_file(&file).unwrap();
        assert!(whole().is_err());
        assert!(check(dir.path(), Expected::NoTree, &tree).is_err());
        fs::create_dir(dir.path().join(dir_name(0))).unwrap();
        let files = |per_dir| Expected::Files(SmallFiles { dirs: 1, per_dir });
        check(dir.path(), files(0), &tree).unwrap();
        assert!(check(dir.path(), files(1), &tree).is_err());
    }
}
