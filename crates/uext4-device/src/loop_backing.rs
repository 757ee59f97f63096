//! Does a file back a loop device?
//!
//! # What
//! The kernel writes to the backing file of a loop device without taking a lock on it, so the only
//! way to know is `/sys/block/loopN/loop/backing_file`. The path there is compared by device and
//! inode number, because a file may have many names. If a device is detached while another process
//! has it open (udev, `losetup --find`), it disappears when the last one closes it. Until then it
//! has `loop/autoclear`, and a wait is worthwhile.
//!
//! # Not covered
//! A loop device whose backing path does not lead to the file in this process's mount namespace
//! (or was unlinked), and one that is set up after the check.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Checks of a device that is being detached.
const LOOKS: u32 = 20;

/// A loop device with the backing file.
struct Backed {
    device: PathBuf,
    /// It disappears when its last user closes it.
    going: bool,
}

/// The loop device whose backing file has this device and inode number, if there is one and it does
/// not disappear within some pauses. `sysfs` is `/sys/block`. If it is missing, no loop device is
/// found.
pub(crate) fn loop_device_of(
    sysfs: &Path,
    dev: u64,
    ino: u64,
    mut pause: impl FnMut(),
) -> Option<PathBuf> {
    let mut backed = find(sysfs, dev, ino)?;
    for _ in 1..LOOKS {
        if !backed.going {
            break;
        }
        pause();
        backed = find(sysfs, dev, ino)?;
    }
    Some(backed.device)
}

fn find(sysfs: &Path, dev: u64, ino: u64) -> Option<Backed> {
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
            let autoclear = fs::read(entry.path().join("loop/autoclear"));
            let going = autoclear.is_ok_and(|flag| flag.starts_with(b"1"));
            return Some(Backed { device: Path::new("/dev").join(name), going });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(sysfs: &Path, name: &str, backing: &str, autoclear: &str) {
        let folder = sysfs.join(name).join("loop");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("backing_file"), backing).unwrap();
        fs::write(folder.join("autoclear"), autoclear).unwrap();
    }

    fn never() {
        panic!("waits for a device that stays");
    }

    #[test]
    fn finds_a_backing_file_by_identity_and_survives_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image with space");
        let alias = folder.path().join("alias");
        fs::write(&image, b"x").unwrap();
        fs::hard_link(&image, &alias).unwrap();
        let sysfs = folder.path().join("sys");
        fs::create_dir_all(sysfs.join("loop0")).unwrap();
        attach(&sysfs, "loop1", "/gone (deleted)\n", "1\n");
        fs::create_dir_all(sysfs.join("sda/loop")).unwrap();
        let identity = fs::metadata(&image).unwrap();
        let of = |sysfs: &Path, ino| loop_device_of(sysfs, identity.dev(), ino, never);
        assert_eq!(of(&sysfs, identity.ino()), None);

        attach(&sysfs, "loop7", &format!("{}\n", alias.display()), "0\n");
        assert_eq!(of(&sysfs, identity.ino()), Some(PathBuf::from("/dev/loop7")));
        assert_eq!(of(&sysfs, identity.ino() + 1), None);
        assert_eq!(of(Path::new("/no/such/sysfs"), 1), None);
    }

    #[test]
    fn waits_for_one_that_is_going_but_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        fs::write(&image, b"x").unwrap();
        let sysfs = folder.path().join("sys");
        attach(&sysfs, "loop3", &format!("{}\n", image.display()), "1\n");
        let identity = fs::metadata(&image).unwrap();
        let mut pauses = 0;
        let mounted = loop_device_of(&sysfs, identity.dev(), identity.ino(), || pauses += 1);
        assert_eq!((mounted, pauses), (Some(PathBuf::from("/dev/loop3")), LOOKS - 1));

        let gone = loop_device_of(&sysfs, identity.dev(), identity.ino(), || {
            fs::remove_dir_all(sysfs.join("loop3/loop")).unwrap();
        });
        assert_eq!(gone, None);
    }
}
