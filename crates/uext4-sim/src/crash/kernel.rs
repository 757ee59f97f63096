//! The kernel as the judge of a crash state.
//!
//! # What
//! The kernel mounts the image over a loop device, which replays the journal and cleans up orphans.
//! What its mount shows is read through system calls and compared with the model. Needs root.
//! A mount that fails is the state's fault only on a machine that can mount: no loop device may be
//! left, or no memory. A sound image tells.

use crate::content::FileBytes;
use crate::format::ORDINARY;
use crate::host_target::read_data;
use crate::model::{History, Mark};
use crate::mount::KernelMount;
use crate::operation::{FLAGS, Id, Kind, Place, ROOT};
use crate::oracle::{self, image_folder};
use crate::run::{Shape, make};
use crate::view::{Seen, View};
use rustix::fs::{ioctl_getflags, lgetxattr, llistxattr};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use uext4_device::{Device, MemoryDevice};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{Features, Incompat, Ino, RawSuperblock, RoCompat};

/// Has the kernel recover a state; what is wrong with what it then shows.
///
/// # Errors
/// The machinery failed.
pub fn judge(
    image: &MemoryDevice,
    history: &History,
    marks: &[Mark],
) -> Result<Vec<String>, String> {
    if may_be_refused(image) {
        return Ok(Vec::new());
    }
    let folder = image_folder().map_err(|error| format!("no folder for images: {error}"))?;
    let point = folder.path().join("mnt");
    let mount = || {
        let path = folder.path().join("kernel.img");
        oracle::save(image, &path).map_err(|error| format!("{}: {error}", path.display()))?;
        KernelMount::start(&path, &point, false)
    };
    let mounted = match mount() {
        Ok(mounted) => Ok(mounted),
        Err(_) => {
            check_machine(folder.path())?;
            mount()
        }
    };
    let mount = match mounted {
        Ok(mount) => mount,
        Err(error) => return Ok(vec![format!("the kernel's recovery: {error}")]),
    };
    let view = read(&point);
    mount.unmount()?;
    Ok(match view {
        Ok(view) => {
            let found = history.check(marks, &view);
            found.into_iter().map(|what| format!("the kernel's recovery: {what}")).collect()
        }
        Err(error) => vec![format!("the kernel's recovery: {error}")],
    })
}

/// Whether an image has quota or projects, or folds case, which a kernel that is built without
/// quota or Unicode does not recover.
fn may_be_refused(image: &MemoryDevice) -> bool {
    let quota = RoCompat::QUOTA | RoCompat::PROJECT;
    features(image).is_some_and(|features| {
        features.ro_compat.intersects(quota) || features.incompat.contains(Incompat::CASEFOLD)
    })
}

/// Whether the load's directories may be encrypted. The kernel is not given the key.
pub(crate) fn lacks_key(image: &MemoryDevice) -> bool {
    features(image).is_some_and(|features| features.incompat.contains(Incompat::ENCRYPT))
}

fn features(image: &MemoryDevice) -> Option<Features> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    image.read_at(SUPERBLOCK_OFFSET, &mut bytes).ok()?;
    RawSuperblock::read(&bytes).ok().map(|raw| Features::of(&raw))
}

/// That the kernel can mount an image here at all.
fn check_machine(folder: &Path) -> Result<(), String> {
    let shape =
        Shape { block_size: 1024, journal_mib: 1, image_mib: 8, features: "", format: &ORDINARY };
    let path = folder.join("sound.img");
    make(&shape, 1)?.save(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mounted = KernelMount::start(&path, &folder.join("sound"), false);
    mounted.and_then(KernelMount::unmount).map_err(|error| format!("no mount here: {error}"))
}

/// Reads a mounted volume through system calls.
///
/// # Errors
/// The first failure, with its path.
pub fn read(root: &Path) -> Result<View, String> {
    let mut view = View::default();
    read_directory(&mut view, root, ROOT)?;
    Ok(view)
}

fn read_directory(view: &mut View, path: &Path, id: Id) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().as_bytes().to_vec();
        if id == ROOT && name == b"lost+found" {
            continue;
        }
        let path = entry.path();
        let seen = read_node(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (ino, uid, is_directory) = (seen.ino, seen.uid, seen.kind == Some(Kind::Directory));
        view.entries.insert(Place { dir: id, name }, ino);
        view.nodes.entry(ino).or_insert(seen);
        if is_directory {
            read_directory(view, &path, uid)?;
        }
    }
    Ok(())
}

fn read_node(path: &Path) -> std::io::Result<Seen> {
    let meta = fs::symlink_metadata(path)?;
    let kind = match meta.file_type() {
        kind if kind.is_file() => Some(Kind::File),
        kind if kind.is_dir() => Some(Kind::Directory),
        kind if kind.is_symlink() => Some(Kind::Symlink),
        kind if kind.is_fifo() => Some(Kind::Fifo),
        kind if kind.is_char_device() && meta.rdev() == 0 => Some(Kind::Whiteout),
        _ => None,
    };
    let target = match kind {
        Some(Kind::Symlink) => fs::read_link(path)?.as_os_str().as_bytes().to_vec(),
        _ => Vec::new(),
    };
    let (content, flags) = match kind {
        Some(Kind::File) => {
            let file = File::open(path)?;
            (read_data(&file, meta.len())?, ioctl_getflags(&file)?.bits() & FLAGS)
        }
        _ => (FileBytes::default(), 0),
    };
    Ok(Seen {
        ino: Ino(u32::try_from(meta.ino()).unwrap_or(u32::MAX)),
        uid: meta.uid(),
        kind,
        mode: (meta.mode() & 0o7777) as u16,
        gid: meta.gid(),
        flags,
        links: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        mtime: (meta.mtime(), u32::try_from(meta.mtime_nsec()).unwrap_or(0)),
        target,
        xattrs: read_xattrs(path)?,
        content,
    })
}

fn read_xattrs(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let count = llistxattr(path, &mut names[..])?;
    let mut xattrs = BTreeMap::new();
    for name in names[..count].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let count = lgetxattr(path, OsStr::from_bytes(name), &mut value[..])?;
        value.truncate(count);
        xattrs.insert(name.to_vec(), value);
    }
    Ok(xattrs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::why_no_loop;
    use std::process::Command;

    const ROLE: &str = "UEXT4_SIM_NO_MOUNT";

    /// In a process that finds no mount(8).
    #[test]
    fn a_machine_that_cannot_mount_is_no_fault_of_the_state() {
        let shape = Shape {
            block_size: 1024,
            journal_mib: 1,
            image_mib: 8,
            features: "",
            format: &ORDINARY,
        };
        let sound = make(&shape, 2).unwrap();
        if std::env::var_os(ROLE).is_some() {
            let judged = judge(&sound, &History::default(), &[]);
            assert!(judged.is_err_and(|why| why.starts_with("no mount here")));
            return;
        }
        if let Some(why) = why_no_loop() {
            eprintln!("skipped: {why}");
            return;
        }
        let name = "crash::kernel::tests::a_machine_that_cannot_mount_is_no_fault_of_the_state";
        let program = std::env::current_exe().unwrap();
        let mut child = Command::new(program);
        child.args(["--exact", name]).env(ROLE, "1").env("PATH", "/nonexistent");
        assert!(child.status().unwrap().success());
        assert_eq!(judge(&sound, &History::default(), &[]).unwrap(), [""; 0]);
        let broken = MemoryDevice::new(8 << 20);
        assert_eq!(judge(&broken, &History::default(), &[]).unwrap().len(), 1, "it is the state's");
    }
}
