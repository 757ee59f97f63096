//! Projects of inodes, with the feature `project` and without its quota.
//!
//! Fault model: none but remounts; e2fsck and debugfs as other readers.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::process::Command;
use std::sync::Arc;
use uext4::{InodeRef, Owner, RenameMode, Result, Volume, XattrMode};
use uext4_device::MemoryDevice;
use uext4_ondisk::{FileKind, InodeFlags};

const EXTENTS: u32 = InodeFlags::EXTENTS.bits();
const INHERIT: u32 = InodeFlags::PROJINHERIT.bits();

#[track_caller]
fn fails<T>(result: Result<T>, errno: i32) {
    assert_eq!(result.map_err(|error| error.errno()).err(), Some(errno));
}

fn make(volume: &Volume, dir: &InodeRef, name: &str, kind: FileKind) -> InodeRef {
    volume.create(dir, name.as_bytes(), &new(kind, 0o755)).unwrap()
}

fn debugfs(device: &MemoryDevice, request: &str) -> String {
    let image = tempfile::NamedTempFile::new().unwrap();
    device.save(image.path()).unwrap();
    let output =
        Command::new("/sbin/debugfs").args(["-R", request]).arg(image.path()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn children_of_a_directory_with_projinherit() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -O project"));
    let volume = mount(&device);
    assert!(!volume.read_only(), "{:?}", volume.read_only_reason());
    let root = volume.root().unwrap();
    let dir = make(&volume, &root, "dir", FileKind::Directory);
    volume.set_project_id(&dir, 70_007).unwrap();
    assert_eq!(volume.project_id(&make(&volume, &dir, "before", FileKind::Regular)), 0);
    volume.set_flags(&dir, EXTENTS | INHERIT).unwrap();
    let project = |inode: &InodeRef| volume.project_id(inode);
    let file = make(&volume, &dir, "file", FileKind::Regular);
    let sub = make(&volume, &dir, "sub", FileKind::Directory);
    let link = volume.symlink(&dir, b"link", b"target", Owner::default()).unwrap();
    let nameless = volume.create_unlinked(&dir, &new(FileKind::Regular, 0o600)).unwrap();
    for inode in [&file, &sub, &link, &nameless] {
        assert_eq!(project(inode), 70_007);
    }
    assert_eq!(volume.flags(&sub) & INHERIT, INHERIT);
    assert_eq!(volume.flags(&file) & INHERIT, 0);

    let stranger = make(&volume, &root, "stranger", FileKind::Regular);
    fails(volume.link(&stranger, &dir, b"x"), libc::EXDEV);
    // By path the name is looked at first, as by link(2).
    fails(volume.link_at(&stranger, &dir, b"x"), libc::EXDEV);
    fails(volume.link_at(&stranger, &dir, b"file"), libc::EEXIST);
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    fails(volume.rename(&root, b"stranger", &dir, b"x", replace), libc::EXDEV);
    fails(volume.rename(&root, b"stranger", &dir, b"file", exchange), libc::EXDEV);
    fails(volume.rename(&dir, b"file", &root, b"stranger", exchange), libc::EXDEV);
    fails(volume.rename(&dir, b"before", &dir, b"x", replace), libc::EXDEV);
    volume.link(&nameless, &dir, b"named").unwrap();
    volume.rename(&dir, b"file", &sub, b"moved", replace).unwrap();
    volume.set_project_id(&stranger, 70_007).unwrap();
    volume.rename(&root, b"stranger", &dir, b"x", replace).unwrap();
    volume.rename(&sub, b"moved", &root, b"out", replace).unwrap();
    drop((root, dir, file, sub, link, nameless, stranger));
    volume.close().unwrap();
    assert_clean(&device);
    let volume = mount(&device);
    let out = volume.lookup(&volume.root().unwrap(), b"out").unwrap();
    assert_eq!(volume.project_id(&out), 70_007);
    let text = debugfs(&device, "stat /out");
    assert!(text.contains("70007"), "{text}");
}

#[test]
fn without_the_feature_there_is_one_project() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let dir = make(&volume, &root, "dir", FileKind::Directory);
    volume.set_flags(&dir, EXTENTS | INHERIT).unwrap();
    fails(volume.set_project_id(&dir, 5), libc::EOPNOTSUPP);
    volume.set_project_id(&dir, 0).unwrap();
    let file = make(&volume, &root, "file", FileKind::Regular);
    volume.link(&file, &dir, b"file").unwrap();
    assert_eq!(volume.project_id(&file), 0);
}

#[test]
fn what_has_no_room_and_what_is_immutable() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -O project"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let file = make(&volume, &root, "file", FileKind::Regular);
    volume.set_flags(&file, EXTENTS | InodeFlags::IMMUTABLE.bits()).unwrap();
    fails(volume.set_project_id(&file, 5), libc::EPERM);
    volume.set_project_id(&file, 0).unwrap();
    volume.set_flags(&file, EXTENTS).unwrap();
    volume.xattr_set(&file, b"user.a", b"b", XattrMode::Any).unwrap();
    volume.set_project_id(&file, 5).unwrap();
    assert_eq!(volume.xattr_get(&file, b"user.a").unwrap(), b"b");
    drop((root, file));
    volume.close().unwrap();
    assert_clean(&device);
}
