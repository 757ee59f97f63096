//! Removes names from a tree that [`super::build`] made, and rewrites files of it.
//!
//! # Invariants
//! What is done depends on names and sizes only, so that two equal trees are equal afterwards,
//! times included: those of everything that changed are set at the end.

use super::build::{LARGE_DIRECTORY, LARGE_FILE, ORDINARY, SPARSE_FILE};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Timespec, Timestamps};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Changes the tree at `root`; the number of changes.
///
/// # Errors
/// Those of the system calls.
pub fn change(root: &Path) -> io::Result<u64> {
    let mut changes = 0;
    let ordinary = root.join(ORDINARY);
    let mut folders = Vec::new();
    walk(&ordinary, &mut folders, &mut changes)?;

    let large = root.join(LARGE_DIRECTORY);
    for (number, name) in sorted(&large)?.into_iter().enumerate() {
        let path = large.join(name);
        if number % 3 == 0 {
            match fs::symlink_metadata(&path)?.is_dir() {
                true => fs::remove_dir(&path)?,
                false => fs::remove_file(&path)?,
            }
            changes += 1;
        } else if number % 50 == 1 {
            fs::rename(&path, large.join(format!("renamed {number}")))?;
            changes += 1;
        }
    }
    for number in 0..2_000 {
        File::create(large.join(format!("new {number}")))?;
        set_time(&large.join(format!("new {number}")), number)?;
        changes += 1;
    }

    let path = root.join(LARGE_FILE);
    let file = File::options().write(true).open(&path)?;
    let size = file.metadata()?.len();
    file.write_all_at(&vec![0x77; 3 << 20], size / 2 + 1_234)?;
    punch(&file, size / 4 + 100, size / 8)?;
    file.set_len(size / 4 * 3 + 17)?;
    set_time(&path, 1)?;
    let path = root.join(SPARSE_FILE);
    if path.exists() {
        let file = File::options().write(true).open(&path)?;
        let size = file.metadata()?.len();
        file.write_all_at(&[9; 70_000], size / 32 + 3)?;
        punch(&file, size / 2, size / 4)?;
        set_time(&path, 2)?;
    }
    for folder in folders.iter().chain([&large, &ordinary, &root.to_path_buf()]) {
        set_time(folder, 3)?;
    }
    Ok(changes + 2)
}

/// Every third file goes, others are rewritten, cut, extended, renamed; some folders go whole.
fn walk(folder: &Path, folders: &mut Vec<PathBuf>, changes: &mut u64) -> io::Result<()> {
    for (number, name) in sorted(folder)?.into_iter().enumerate() {
        let path = folder.join(&name);
        let metadata = fs::symlink_metadata(&path)?;
        if metadata.is_dir() {
            if number % 7 == 3 {
                fs::remove_dir_all(&path)?;
                *changes += 1;
            } else {
                walk(&path, folders, changes)?;
                folders.push(path);
            }
            continue;
        }
        *changes += 1;
        // By size, so that every name of one file means the same change.
        let kind = if metadata.is_file() { metadata.len() % 7 + 2 } else { 99 };
        match (number % 3, kind) {
            (0, _) => fs::remove_file(&path)?,
            (1, 2 | 3) => {
                let file = File::options().write(true).open(&path)?;
                file.write_all_at(&vec![0x55; 5_000], metadata.len() / 2)?;
                set_time(&path, 4)?;
            }
            (1, 4) => {
                File::options().write(true).open(&path)?.set_len(metadata.len() / 3)?;
                set_time(&path, 5)?;
            }
            (1, 5) => {
                File::options().write(true).open(&path)?.set_len(metadata.len() + 100_000)?;
                set_time(&path, 6)?;
            }
            (1, 6) => {
                let mut new = name.clone();
                new.push(".r");
                if new.len() <= 255 {
                    fs::rename(&path, folder.join(new))?;
                }
            }
            _ => *changes -= 1,
        }
    }
    Ok(())
}

fn sorted(folder: &Path) -> io::Result<Vec<std::ffi::OsString>> {
    let mut names: Vec<_> =
        fs::read_dir(folder)?.map(|e| Ok(e?.file_name())).collect::<io::Result<_>>()?;
    names.sort();
    Ok(names)
}

fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, len)?)
}

fn set_time(path: &Path, number: i64) -> io::Result<()> {
    let time = Timespec { tv_sec: 5_000_000_000 + number, tv_nsec: 987_654_321 };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
