//! A load that a kernel syncs by fast commits.
//!
//! # What
//! Files are made, linked, renamed over each other and removed, written, cut, punched and
//! allocated; directories come and go. What needs a whole transaction (attributes, renames of
//! directories) is left out but for a rare one. Most operations are synced.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::FallocateFlags;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Names in a directory.
const NAMES: u32 = 12;
/// Directories that the load knows, the top one included.
const DIRECTORIES: u32 = 4;
/// Largest file, in bytes.
const FILE_MAX: u64 = 300_000;

struct FastLoad<'a> {
    root: &'a Path,
    rng: StdRng,
}

/// Does `operations` in `root`, most of them synced.
///
/// # Errors
/// Those of the system calls, but for names that are there, missing, or of another type.
pub(super) fn run(root: &Path, seed: u64, operations: u64) -> io::Result<()> {
    let mut load = FastLoad { root, rng: StdRng::seed_from_u64(seed) };
    for _ in 0..operations {
        match load.step() {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::AlreadyExists
                        | io::ErrorKind::DirectoryNotEmpty
                        | io::ErrorKind::IsADirectory
                        | io::ErrorKind::NotADirectory
                        | io::ErrorKind::ResourceBusy
                ) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl FastLoad<'_> {
    fn directory(&mut self) -> PathBuf {
        match self.rng.random_range(0..DIRECTORIES) {
            0 => self.root.to_owned(),
            number => self.root.join(format!("directory {number}")),
        }
    }

    fn file(&mut self) -> PathBuf {
        let name = format!("file {}", self.rng.random_range(0..NAMES));
        self.directory().join(name)
    }

    fn step(&mut self) -> io::Result<()> {
        let path = self.file();
        match self.rng.random_range(0..24) {
            0..=7 => self.write(&path)?,
            8..=9 => {
                let len = self.rng.random_range(0..FILE_MAX);
                File::options().write(true).open(&path)?.set_len(len)?;
            }
            10..=11 => {
                let (at, len) =
                    (self.rng.random_range(0..FILE_MAX), self.rng.random_range(1..60_000));
                let flags = [
                    FallocateFlags::empty(),
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                ][self.rng.random_range(0..4)];
                let file = File::options().write(true).open(&path)?;
                rustix::fs::fallocate(&file, flags, at, len)?;
            }
            12..=13 => fs::hard_link(&path, self.file())?,
            14..=15 => fs::rename(&path, self.file())?,
            16..=18 => fs::remove_file(&path)?,
            19 => std::os::unix::fs::symlink("target", &path)?,
            20 => fs::create_dir(self.directory())?,
            21 => fs::remove_dir(self.directory())?,
            22 => {
                let mode = fs::Permissions::from_mode(self.rng.random_range(0o600..=0o777));
                fs::set_permissions(&path, mode)?;
            }
            _ if self.rng.random_ratio(1, 20) => {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&path, "user.rare", b"value", flags)?;
            }
            _ => {}
        }
        self.sync()
    }

    fn write(&mut self, path: &Path) -> io::Result<()> {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        let mut bytes = vec![0; self.rng.random_range(1..20_000)];
        self.rng.fill(&mut bytes[..]);
        file.write_all_at(&bytes, self.rng.random_range(0..FILE_MAX))
    }

    /// A sync of any file brings all names before it.
    fn sync(&mut self) -> io::Result<()> {
        if self.rng.random_ratio(1, 5) {
            return Ok(());
        }
        let path = self.file();
        if self.rng.random() {
            File::open(&path)?.sync_all()
        } else {
            File::open(&path)?.sync_data()
        }
    }
}
