//! A device that fails once: what that does to the operation that meets it, and to nothing else.
//!
//! Fault model: the Nth read, write or flush fails once. Checked: a read that fails is an error of
//! its caller and of nobody else; what an operation that failed has not done is still there. Not
//! covered: several failures together; damage (`damage.rs`).

mod common;

use common::{arm, assert_clean, cut, have, mke2fs, mount_with, new, scatter};
use std::sync::Arc;
use uext4::{
    AllocateMode, InodeRef, MountOptions, Owner, RenameMode, Result, SetAttr, Volume, XattrMode,
};
use uext4_device::{FaultDevice, MemoryDevice, Operation, SharedDevice, Times};
use uext4_ondisk::{FileKind, Ino};

const BLOCK: u64 = 1024;

/// Small enough for few blocks to stay in memory.
fn forgetful() -> MountOptions {
    MountOptions { cache_bytes: 1 << 20, commit_interval_ms: 900_000, ..MountOptions::default() }
}

const FILLERS: u32 = 4500;

/// A volume with something for each operation, and inodes enough to drive all else out of memory.
fn populated() -> MemoryDevice {
    let device = Arc::new(mke2fs(32, "-b 1024 -g 2048 -N 8000 -I 256 -O ^orphan_file"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    for name in [&b"dir"[..], b"other", b"empty"] {
        volume.create(&root, name, &new(FileKind::Directory, 0o755)).unwrap();
    }
    for name in [&b"scattered"[..], b"doomed", b"plain"] {
        let inode = volume.create(&root, name, &new(FileKind::Regular, 0o644)).unwrap();
        if name == b"plain" {
            let file = volume.open_file(&inode).unwrap();
            file.write_at(0, &[7; 64 << 10]).unwrap();
            file.sync(false).unwrap();
        } else {
            scatter(&volume, &inode, 400);
        }
    }
    let mut dir = volume.lookup(&root, b"dir").unwrap();
    for n in 0..FILLERS {
        if n % 300 == 0 {
            let name = format!("fill{n}");
            dir = volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
        }
        volume.create(&dir, format!("{n}").as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    }
    let plain = volume.lookup(&root, b"plain").unwrap();
    volume.xattr_set(&plain, b"user.big", &[3; 700], XattrMode::Any).unwrap();
    drop((root, dir, plain));
    volume.close().unwrap();
    device.snapshot()
}

/// The inodes an operation works on; they stay in memory, their blocks do not.
struct Cast {
    root: InodeRef,
    dir: InodeRef,
    other: InodeRef,
    scattered: InodeRef,
    plain: InodeRef,
}

impl Cast {
    fn of(volume: &Volume) -> Self {
        let root = volume.root().unwrap();
        let find = |name: &[u8]| volume.lookup(&root, name).unwrap();
        let (dir, other) = (find(b"dir"), find(b"other"));
        let (scattered, plain) = (find(b"scattered"), find(b"plain"));
        // In memory as well, though nobody holds them.
        let _ = (find(b"doomed"), find(b"empty"));
        Self { root, dir, other, scattered, plain }
    }
}

/// Reads so many inodes that nothing else stays in the cache.
fn forget_blocks(volume: &Volume) {
    for _ in 0..2 {
        for ino in 20..=volume.layout().inodes_count {
            let _ = volume.inode(Ino(ino));
        }
    }
}

type Act = fn(&Volume, &Cast) -> Result<()>;

const ACTS: &[(&str, Act)] = &[
    ("write and sync", |v, c| {
        let file = v.open_file(&c.scattered)?;
        file.write_at(101 * BLOCK, &[9; 6 * BLOCK as usize])?;
        file.sync(false)
    }),
    ("overwrite and sync", |v, c| {
        let file = v.open_file(&c.plain)?;
        file.write_at(100, &[9; 100])?;
        file.sync(false)
    }),
    ("cut", |v, c| v.set_attr(&c.scattered, &cut(300 * BLOCK + 17)).map(|_| ())),
    ("extend", |v, c| v.set_attr(&c.plain, &cut(1 << 20)).map(|_| ())),
    ("punch", |v, c| {
        v.open_file(&c.scattered)?.allocate(AllocateMode::PunchHole, 20 * BLOCK, 300 * BLOCK)
    }),
    ("zero", |v, c| {
        let mode = AllocateMode::ZeroRange { keep_size: true };
        v.open_file(&c.scattered)?.allocate(mode, 100 * BLOCK, 9 * BLOCK)
    }),
    ("allocate", |v, c| {
        let mode = AllocateMode::Allocate { keep_size: false };
        v.open_file(&c.plain)?.allocate(mode, 60 * BLOCK, 3000 * BLOCK)
    }),
    ("create", |v, c| v.create(&c.dir, b"new", &new(FileKind::Regular, 0o644)).map(|_| ())),
    ("mkdir", |v, c| v.create(&c.dir, b"new", &new(FileKind::Directory, 0o755)).map(|_| ())),
    ("symlink", |v, c| v.symlink(&c.dir, b"s", &[b's'; 200], Owner::default()).map(|_| ())),
    ("link", |v, c| v.link(&c.plain, &c.dir, b"hard")),
    ("chmod", |v, c| {
        v.set_attr(&c.plain, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).map(|_| ())
    }),
    ("set xattr", |v, c| v.xattr_set(&c.dir, b"user.x", &[5; 800], XattrMode::Any)),
    ("remove xattr", |v, c| v.xattr_remove(&c.plain, b"user.big")),
    ("rename", |v, c| v.rename(&c.root, b"plain", &c.other, b"p", RenameMode::Replace)),
    ("replace", |v, c| v.rename(&c.root, b"plain", &c.root, b"doomed", RenameMode::Replace)),
    ("exchange", |v, c| v.rename(&c.root, b"plain", &c.root, b"empty", RenameMode::Exchange)),
    ("move directory", |v, c| v.rename(&c.root, b"empty", &c.dir, b"e", RenameMode::Replace)),
    ("rmdir", |v, c| v.rmdir(&c.root, b"empty")),
    ("unlink", |v, c| v.unlink(&c.root, b"doomed")),
];

/// Returns whether the act came to its end without the planned failure.
fn act_with_failing_read(base: &MemoryDevice, name: &str, act: Act, nth: u64) -> bool {
    let medium = Arc::new(base.snapshot());
    let device = Arc::new(FaultDevice::new(medium.clone()));
    let volume = Volume::open(device.clone(), forgetful()).unwrap();
    let cast = Cast::of(&volume);
    forget_blocks(&volume);
    arm(&device, Operation::Read, nth, Times::Once);
    let result = act(&volume, &cast).and_then(|()| volume.delete_unlinked());
    let struck = device.struck() > 0;
    device.reset();
    let journal = volume.space().journal();
    assert!(!journal.is_aborted(), "{name}, read {nth}: {}", journal.aborted_error());
    assert!(result.is_ok() || struck, "{name}: {:?}", result.err());
    // The volume goes on.
    let root = volume.root().unwrap();
    volume.create(&root, b"after", &new(FileKind::Regular, 0o644)).unwrap();
    drop((root, cast));
    volume.close().unwrap_or_else(|error| panic!("{name}, read {nth}: close: {error}"));
    // Before the next mount, which deletes what could not be deleted now.
    drop(Volume::open(medium.clone() as SharedDevice, MountOptions::default()).unwrap());
    assert_clean(&medium);
    !struck
}

#[test]
fn a_failing_read_fails_its_operation_and_nothing_else() {
    if !have("mke2fs") {
        return;
    }
    let base = populated();
    for (name, act) in ACTS {
        let mut nth = 1;
        while !act_with_failing_read(&base, name, *act, nth) {
            nth += 1;
        }
        println!("{name}: {} reads", nth - 1);
        assert!(nth > 1, "{name} finds everything in memory");
    }
}

/// A range that could not be punched has what was written to it and is only in memory.
#[test]
fn a_failed_punch_or_cut_loses_no_cached_data() {
    if !have("mke2fs") {
        return;
    }
    let base = populated();
    for is_cut in [false, true] {
        for nth in 1.. {
            let medium = Arc::new(base.snapshot());
            let device = Arc::new(FaultDevice::new(medium));
            let volume = Volume::open(device.clone(), forgetful()).unwrap();
            let cast = Cast::of(&volume);
            let file = volume.open_file(&cast.plain).unwrap();
            file.write_at(0, &[42; 64 << 10]).unwrap();
            forget_blocks(&volume);
            arm(&device, Operation::Read, nth, Times::Once);
            let result = match is_cut {
                true => volume.set_attr(&cast.plain, &cut(8 << 10)).map(|_| ()),
                false => file.allocate(AllocateMode::PunchHole, 8 << 10, 32 << 10),
            };
            let struck = device.struck() > 0;
            device.reset();
            let mut read = vec![0; 64 << 10];
            let size = file.read_at(0, &mut read).unwrap();
            let gone = size < read.len() || read[8 << 10..40 << 10].iter().all(|&b| b == 0);
            let whole = size == read.len() && read.iter().all(|&byte| byte == 42);
            assert!(gone || whole, "read {nth}: half of it is lost");
            assert!(result.is_err() || gone);
            assert!(nth > 1 || !struck || whole, "the first read comes before anything is lost");
            if !struck {
                break;
            }
        }
    }
}

/// Threads that were started hold the device.
#[test]
fn an_open_that_fails_leaves_no_thread() {
    if !have("mke2fs") {
        return;
    }
    let base = Arc::new(mke2fs(16, "-b 1024 -O orphan_file"));
    let volume = mount_with(&base, MountOptions::default());
    let root = volume.root().unwrap();
    let mut held = Vec::new();
    for n in 0..5 {
        let name = format!("f{n}");
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        scatter(&volume, &inode, 150);
        volume.unlink(&root, name.as_bytes()).unwrap();
        held.push(inode);
    }
    volume.sync().unwrap();
    volume.abandon();
    drop((root, held));
    for operation in [Operation::Read, Operation::Write, Operation::Flush] {
        let mut failed = 0;
        for nth in 1.. {
            let device = Arc::new(FaultDevice::new(Arc::new(base.snapshot())));
            arm(&device, operation, nth, Times::Once);
            match Volume::open(device.clone(), MountOptions::default()) {
                Ok(volume) => volume.abandon(),
                Err(_) => failed += 1,
            }
            assert_eq!(Arc::strong_count(&device), 1, "{operation:?} {nth}: somebody is left");
            if device.struck() == 0 {
                break;
            }
        }
        assert!(failed > 0);
    }
}
