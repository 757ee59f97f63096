//! Does a file back a loop device?
//!
//! # What
//! The kernel writes to a loop device's backing file without taking any lock on it, so the only
//! way to know is to look at `/sys/block/loopN/loop/backing_file`. The path there is compared by
//! device and inode number, because one file has many names.
//!
//! # Not covered
//! A loop device whose backing path does not lead to the file in this process's mount namespace
//! (or was unlinked), and one that is set up after the look.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The loop device whose backing file has this device and inode number, if there is one. `sysfs`
/// is `/sys/block`; a missing one means that there are no loop devices to see.
pub(crate) fn loop_device_of(sysfs: &Path, dev: u64, ino: u64) -> Option<PathBuf> {
    for entry in fs::read_dir(sysfs).ok()?.flatten() {
        let name = entry.file_name();
        if !name.as_bytes().starts_with(b"loop") {
            continue;
        }
        let Ok(text) = fs::read(entry.path().join("loop/backing_file")) else { continue };
        let path = text.strip_suffix(b"\n").unwrap_or(&text);
        let Ok(found) = fs::metadata(Path::new(std::ffi::OsStr::from_bytes(path))) else {
            continue;
        };
        if (found.dev(), found.ino()) == (dev, ino) {
            return Some(Path::new("/dev").join(name));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_backing_file_by_identity_and_survives_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image with space");
        let alias = folder.path().join("alias");
        fs::write(&image, b"x").unwrap();
        fs::hard_link(&image, &alias).unwrap();
        let sysfs = folder.path().join("sys");
        for (name, backing) in [("loop0", None), ("loop1", Some("/gone (deleted)"))] {
            fs::create_dir_all(sysfs.join(name).join("loop")).unwrap();
            if let Some(backing) = backing {
                fs::write(sysfs.join(name).join("loop/backing_file"), backing).unwrap();
            }
        }
        fs::create_dir_all(sysfs.join("sda/loop")).unwrap();
        let identity = fs::metadata(&image).unwrap();
        assert_eq!(loop_device_of(&sysfs, identity.dev(), identity.ino()), None);

        fs::create_dir_all(sysfs.join("loop7/loop")).unwrap();
        let line = format!("{}\n", alias.display());
        fs::write(sysfs.join("loop7/loop/backing_file"), line).unwrap();
        assert_eq!(
            loop_device_of(&sysfs, identity.dev(), identity.ino()),
            Some(PathBuf::from("/dev/loop7"))
        );
        assert_eq!(loop_device_of(&sysfs, identity.dev(), identity.ino() + 1), None);
        assert_eq!(loop_device_of(Path::new("/no/such/sysfs"), 1, 1), None);
    }
}
