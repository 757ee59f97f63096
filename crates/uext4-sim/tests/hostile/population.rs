//! Small valid images with one of everything, to be damaged.

use crate::common::{mke2fs, mount_with, new};
use std::sync::Arc;
use uext4::{AllocateMode, InodeRef, MountOptions, Owner, SetAttr, Volume, XattrMode};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;

/// What an image is made of.
pub(crate) struct Shape {
    /// What mke2fs is told.
    options: &'static str,
    mib: u64,
    /// Names of the hashed directory, and the length of each.
    names: (usize, usize),
    /// Extents of the file that has many.
    fragments: u64,
    /// Ordinary directories with a file each.
    dirs: usize,
}

/// Shapes that have all there is of each structure, trees of two levels with 1 KiB blocks.
pub(crate) const SHAPES: [Shape; 5] = [
    shape("-b 1024 -g 2048 -N 512 -O orphan_file,metadata_csum_seed", 10, 460),
    shape("-b 1024 -N 256 -O ^metadata_csum,uninit_bg", 8, 460),
    shape("-b 1024 -I 128 -N 256 -O ^metadata_csum,^uninit_bg,^64bit,^flex_bg", 8, 460),
    shape("-b 4096 -N 256", 16, 90),
    shape("-b 2048 -I 512 -N 256 -O orphan_file,^resize_inode,sparse_super2", 12, 90),
];

const fn shape(options: &'static str, mib: u64, fragments: u64) -> Shape {
    Shape { options, mib, names: (450, 174), fragments, dirs: 12 }
}

/// Shapes that can be walked thousands of times a second: the first has the directory of two
/// levels, the second the extents of two.
pub(crate) const TINY: [Shape; 5] = [
    tiny("-b 1024 -g 2048 -N 64 -J size=1 -O orphan_file,metadata_csum_seed", 4, (250, 250), 8),
    tiny("-b 1024 -N 64 -J size=1 -O ^metadata_csum,uninit_bg", 3, (12, 200), 345),
    tiny(
        "-b 1024 -I 128 -N 64 -J size=1 -O ^metadata_csum,^uninit_bg,^64bit,^flex_bg",
        3,
        (12, 200),
        8,
    ),
    tiny("-b 4096 -N 64 -J size=4", 12, (40, 250), 8),
    tiny("-b 2048 -I 512 -N 64 -J size=2 -O orphan_file,^resize_inode", 5, (20, 250), 8),
];

const fn tiny(options: &'static str, mib: u64, names: (usize, usize), fragments: u64) -> Shape {
    Shape { options, mib, names, fragments, dirs: 2 }
}

/// Fixed where mke2fs would draw lots, so that an input means the same in every run.
const FIXED: &str = "-U 6b1d9fe4-0c2c-4c8e-9a57-3f1e2d3c4b5a -E lazy_itable_init=0,\
                     lazy_journal_init=0,orphan_file_size=8k,\
                     hash_seed=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

/// An image, and how it came to be.
pub(crate) struct Base {
    pub(crate) name: String,
    pub(crate) device: MemoryDevice,
}

/// Each shape closed cleanly, and left by a crash with orphans and a journal to replay.
pub(crate) fn bases(shapes: &[Shape]) -> Vec<Base> {
    let mut bases = Vec::new();
    for shape in shapes {
        let options = shape.options;
        let device = Arc::new(mke2fs(shape.mib, &format!("{FIXED} {options}")));
        let volume = mount(&device);
        fill(&volume, shape);
        volume.close().expect("close");
        bases.push(Base { name: format!("clean {options}"), device: device.snapshot() });
        let volume = mount(&device);
        crash(volume);
        bases.push(Base { name: format!("dirty {options}"), device: device.snapshot() });
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

fn fill(volume: &Volume, shape: &Shape) {
    let root = volume.root().expect("root");
    let dir = |parent: &InodeRef, name: &str| {
        volume.create(parent, name.as_bytes(), &new(FileKind::Directory, 0o755)).expect(name)
    };
    let names = dir(&root, "names");
    let deep = dir(&dir(&dir(&root, "a"), "b"), "c");
    file(volume, &deep, "leaf", 5000);
    // Names fill a hash tree without an inode each.
    let target = file(volume, &root, "target", 10);
    let (count, len) = shape.names;
    for n in 0..count {
        volume.link(&target, &names, format!("{n:n<len$}").as_bytes()).expect("link");
    }
    for n in 0..shape.dirs {
        file(volume, &dir(&root, &format!("dir{n}")), "file", n * 700);
    }
    extents(volume, &root, shape.fragments);
    attributes(volume, &root);
    let owner = Owner::default();
    volume.symlink(&root, b"fast", b"target", owner).expect("symlink");
    volume.symlink(&root, b"slow", &[b'a'; 300], owner).expect("symlink");
    for (name, kind) in [("fifo", FileKind::Fifo), ("device", FileKind::BlockDevice)] {
        volume.create(&root, name.as_bytes(), &new(kind, 0o600)).expect(name);
    }
}

/// A tree of extents, unwritten ones, a sparse file.
fn extents(volume: &Volume, root: &InodeRef, count: u64) {
    let inode = file(volume, root, "fragments", 0);
    let fragments = volume.open_file(&inode).expect("open");
    let block = u64::from(volume.layout().block_size);
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

/// Leaves what a crash leaves: orphans of both sorts, and transactions that are not checkpointed.
fn crash(volume: Volume) {
    let root = volume.root().expect("root");
    let mut open = Vec::new();
    for n in 0..3 {
        let name = format!("orphan{n}");
        let inode = file(&volume, &root, &name, 20_000);
        volume.open_file(&inode).expect("open").sync(false).expect("sync");
        volume.unlink(&root, name.as_bytes()).expect("unlink");
        open.push(inode);
    }
    let cut = volume.lookup(&root, b"fragments").expect("lookup");
    let change = SetAttr { size: Some(300_001), ..SetAttr::default() };
    volume.set_attr(&cut, &change).expect("cut");
    volume.rename(&root, b"dir1", &root, b"moved", uext4::RenameMode::Replace).expect("rename");
    volume.unlink(&root, b"slow").expect("unlink");
    volume.sync().expect("sync");
    volume.clone().abandon();
    drop((open, root, cut));
}
