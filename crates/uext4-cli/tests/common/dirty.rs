//! Images whose journals hold what is not at its place yet: copies of an image in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uext4::{Device, FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Access, FileDevice};

use super::{Scratch, run_ok};

const ROOT: Owner = Owner { uid: 0, gid: 0 };

fn new(kind: FileKind, mode: u16) -> NewInode {
    NewInode { kind, mode, owner: ROOT, rdev: Device::default() }
}

/// An image with a tree, and a copy of it from when a writer was cut off: some transactions are
/// committed and not checkpointed, with `/dir/new` in them alone, and with revoked blocks.
pub(crate) fn image_and_dirty(scratch: &Scratch, options: &[&str]) -> (PathBuf, PathBuf) {
    let (image, dirty) = (scratch.path("clean.img"), scratch.path("dirty.img"));
    let words = ["mkfs", "-q", "-b", "1024"].iter().chain(options).map(std::ffi::OsString::from);
    run_ok(words.chain([image.clone().into(), "16M".into()]));
    write(&image, &dirty);
    (image, dirty)
}

fn write(image: &Path, dirty: &Path) {
    let device = FileDevice::open(image, Access::ReadWrite, 0).unwrap();
    let volume = Volume::open(Arc::new(device), MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let dir = volume.create(&root, b"dir", &new(FileKind::Directory, 0o755)).unwrap();
    let file = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&file).unwrap().write_at(0, &[b'x'; 5000]).unwrap();
    volume.symlink(&root, b"link", b"file", ROOT).unwrap();
    let gone = volume.create(&root, b"gone", &new(FileKind::Directory, 0o755)).unwrap();
    volume.sync().unwrap();
    volume.create(&dir, b"new", &new(FileKind::Regular, 0o644)).unwrap();
    volume.sync().unwrap();
    // The block of a directory that is logged and then free is revoked.
    drop(gone);
    volume.rmdir(&root, b"gone").unwrap();
    volume.sync().unwrap();
    fs::copy(image, dirty).unwrap();
    drop((root, dir, file));
    volume.close().unwrap();
}
