//! Small valid images with one of everything, to be damaged.

use crate::common::{mke2fs, mount_with, new};
use std::sync::Arc;
use uext4::{AllocateMode, InodeRef, MountOptions, Owner, SetAttr, Volume, XattrMode};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;

/// Shapes: what mke2fs is told, and the size in MiB.
pub(crate) const SHAPES: [(&str, u64); 5] = [
    ("-b 1024 -g 2048 -N 512 -O orphan_file,metadata_csum_seed", 10),
    ("-b 1024 -N 256 -O ^metadata_csum,uninit_bg", 8),
    ("-b 1024 -I 128 -N 256 -O ^metadata_csum,^uninit_bg,^64bit,^flex_bg", 8),
    ("-b 4096 -N 256", 16),
    ("-b 2048 -I 512 -N 256 -O orphan_file,^resize_inode,sparse_super2", 12),
];

/// An image, and how it came to be.
pub(crate) struct Base {
    pub(crate) name: String,
    pub(crate) device: MemoryDevice,
}

/// Each shape closed cleanly, and left by a crash with orphans and a journal to replay.
pub(crate) fn bases() -> Vec<Base> {
    let mut bases = Vec::new();
    for (shape, mib) in SHAPES {
        let device = Arc::new(mke2fs(mib, shape));
        let volume = mount(&device);
        fill(&volume);
        volume.close().expect("close");
        bases.push(Base { name: format!("clean {shape}"), device: device.snapshot() });
        let volume = mount(&device);
        crash(volume);
        bases.push(Base { name: format!("dirty {shape}"), device: device.snapshot() });
    }
    bases
}

fn mount(device: &Arc<MemoryDevice>) -> Volume {
    mount_with(device, MountOptions { cache_bytes: 32 << 20, ..MountOptions::default() })
}

fn file(volume: &Volume, dir: &InodeRef, name: &str, bytes: usize) -> InodeRef {
    let inode = volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).expect(name);
    let file = volume.open_file(&inode).expect("open");
    file.write_at(0, &vec![b'd'; bytes]).expect("write");
    inode
}

fn fill(volume: &Volume) {
    let root = volume.root().expect("root");
    let dir = |parent: &InodeRef, name: &str| {
        volume.create(parent, name.as_bytes(), &new(FileKind::Directory, 0o755)).expect(name)
    };
    let names = dir(&root, "names");
    let deep = dir(&dir(&dir(&root, "a"), "b"), "c");
    file(volume, &deep, "leaf", 5000);
    // Names fill a hash tree of two levels without an inode each.
    let target = file(volume, &root, "target", 10);
    let long = "n".repeat(170);
    for n in 0..450 {
        volume.link(&target, &names, format!("{n}-{long}").as_bytes()).expect("link");
    }
    for n in 0..12 {
        file(volume, &dir(&root, &format!("dir{n}")), "file", n * 700);
    }
    extents(volume, &root);
    attributes(volume, &root);
    let owner = Owner::default();
    volume.symlink(&root, b"fast", b"target", owner).expect("symlink");
    volume.symlink(&root, b"slow", &[b'a'; 300], owner).expect("symlink");
    for (name, kind) in [("fifo", FileKind::Fifo), ("device", FileKind::BlockDevice)] {
        volume.create(&root, name.as_bytes(), &new(kind, 0o600)).expect(name);
    }
}

/// A tree of depth 2 with 1 KiB blocks, unwritten extents, a sparse file.
fn extents(volume: &Volume, root: &InodeRef) {
    let inode = file(volume, root, "fragments", 0);
    let fragments = volume.open_file(&inode).expect("open");
    let block = u64::from(volume.layout().block_size);
    let count = if block == 1024 { 460 } else { 90 };
    for n in 0..count {
        fragments.write_at(n * 2 * block, &[n as u8; 100]).expect("write");
    }
    fragments.sync(false).expect("sync");
    let inode = file(volume, root, "unwritten", 3000);
    let unwritten = volume.open_file(&inode).expect("open");
    let mode = AllocateMode::Allocate { keep_size: false };
    unwritten.allocate(mode, 100_000, 200_000).expect("allocate");
    unwritten.write_at(150_000, b"data").expect("write");
    let inode = file(volume, root, "sparse", 100);
    volume.open_file(&inode).expect("open").write_at(1 << 40, b"end").expect("write");
}

fn attributes(volume: &Volume, root: &InodeRef) {
    let inode = file(volume, root, "attributes", 100);
    let mut acl = vec![2, 0, 0, 0];
    for (tag, permissions, id) in [
        (1_u16, 6_u16, u32::MAX),
        (2, 7, 1000),
        (4, 4, u32::MAX),
        (16, 7, u32::MAX),
        (32, 4, u32::MAX),
    ] {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    let values: [(&[u8], &[u8]); 4] = [
        (b"user.small", b"1"),
        (b"user.large", &[8; 300]),
        (b"security.label", &[9; 150]),
        (b"system.posix_acl_access", &acl),
    ];
    for (name, value) in values {
        volume.xattr_set(&inode, name, value, XattrMode::Any).expect("xattr");
    }
}

/// Leaves what a crash leaves: orphans of both sorts, and transactions that are not at home.
fn crash(volume: Volume) {
    let root = volume.root().expect("root");
    let mut open = Vec::new();
    for n in 0..4 {
        let name = format!("orphan{n}");
        let inode = file(&volume, &root, &name, 20_000);
        volume.open_file(&inode).expect("open").sync(false).expect("sync");
        volume.unlink(&root, name.as_bytes()).expect("unlink");
        open.push(inode);
    }
    let cut = volume.lookup(&root, b"fragments").expect("lookup");
    let change = SetAttr { size: Some(300_001), ..SetAttr::default() };
    volume.set_attr(&cut, &change).expect("cut");
    volume.rename(&root, b"dir3", &root, b"moved", uext4::RenameMode::Replace).expect("rename");
    volume.unlink(&root, b"slow").expect("unlink");
    volume.sync().expect("sync");
    volume.clone().abandon();
    drop((open, root, cut));
}
