//! Damage and failing reads: what they do to the volume, and what they must not do.
//!
//! Fault model: metadata blocks with wrong bytes; the Nth read, write or flush of a device that
//! fails once. Checked: `errors=` acts on damage wherever it is met, and records it; a read that
//! fails is an error of its caller and of nobody else; what an operation that failed has not done
//! is still there. Not covered: several failures together.

mod common;

use common::{assert_clean, have, mke2fs, mount_with, new};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uext4::config::{Atime, OnError};
use uext4::{
    AllocateMode, BlockNo, ErrorKind, GroupNo, InodeRef, MountOptions, Owner, RenameMode, Result,
    SetAttr, Volume, XattrMode,
};
use uext4_device::{
    Device, Fault, FaultDevice, FaultPlan, MemoryDevice, Operation, SharedDevice, Times,
};
use uext4_ondisk::{FileKind, Ino, RawSuperblock};

const BLOCK: u64 = 1024;

fn options(errors: OnError) -> MountOptions {
    MountOptions { errors: Some(errors), ..MountOptions::default() }
}

/// A file of many extents on a device whose extent blocks are damaged.
fn with_damaged_extents() -> Arc<MemoryDevice> {
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"victim", &new(FileKind::Regular, 0o644)).unwrap();
    scatter(&volume, &inode, 200);
    drop((root, inode));
    volume.close().unwrap();
    let mut hit = 0;
    for at in (0..device.len()).step_by(BLOCK as usize) {
        let mut head = [0; 2];
        device.read_at(at, &mut head).unwrap();
        if head == [0x0a, 0xf3] {
            device.write_at(at + 100, &[0xee; 8]).unwrap();
            hit += 1;
        }
    }
    assert!(hit > 0);
    device
}

/// Writes `count` blocks with holes between them.
fn scatter(volume: &Volume, inode: &InodeRef, count: u64) {
    let file = volume.open_file(inode).unwrap();
    for n in 0..count {
        file.write_at(2 * n * BLOCK, &[n as u8; BLOCK as usize]).unwrap();
    }
    file.sync(false).unwrap();
}

fn read_victim(volume: &Volume) -> Result<usize> {
    let inode = volume.lookup(&volume.root()?, b"victim")?;
    volume.open_file(&inode)?.read_at(0, &mut [0; 4096])
}

fn check_recorded(superblock: &RawSuperblock) {
    assert_eq!(superblock.s_state.get() & 3, 2, "marked as damaged, not as clean");
    assert!(superblock.s_error_count.get() >= 1);
    assert!(superblock.s_first_error_time.get() > 0 && superblock.s_last_error_time.get() > 0);
    assert!(superblock.s_last_error_ino.get() > 0 || superblock.s_last_error_block.get() > 0);
    assert!(superblock.s_last_error_func.starts_with(b"extent"));
    assert!((4..=5).contains(&superblock.s_first_error_errcode));
}

fn is_corrupt<T>(result: &Result<T>) -> bool {
    matches!(result.as_ref().map_err(|error| error.kind()), Err(ErrorKind::Corrupt(_)))
}

/// G1 of docs/durability.md, as it was.
#[test]
fn errors_continue_records_damage_met_in_an_open_file() {
    if !have("mke2fs") {
        return;
    }
    let device = with_damaged_extents();
    let volume = mount_with(&device, options(OnError::Continue));
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(!volume.read_only());
    let root = volume.root().unwrap();
    volume.create(&root, b"more", &new(FileKind::Regular, 0o644)).unwrap();
    drop(root);
    volume.close().unwrap();
    let volume = mount_with(&device, MountOptions { read_only: true, ..MountOptions::default() });
    check_recorded(&volume.superblock());
    assert_eq!(volume.superblock().s_error_count.get(), 2, "each time once");
}

#[test]
fn errors_remount_ro_ends_changes_and_is_recorded() {
    if !have("mke2fs") {
        return;
    }
    let device = with_damaged_extents();
    let volume = mount_with(&device, options(OnError::RemountReadOnly));
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(volume.read_only() && volume.read_only_reason().unwrap().contains("damage"));
    let root = volume.root().unwrap();
    let late = volume.create(&root, b"late", &new(FileKind::Regular, 0o644));
    assert_eq!(late.unwrap_err().errno(), libc::EROFS);
    drop(root);
    assert!(volume.close().is_err());
    let volume = mount_with(&device, MountOptions::default());
    check_recorded(&volume.superblock());
}

/// The hook of a program ends it; here it counts.
#[test]
fn errors_panic_calls_the_hook_and_leaves_the_image_to_recovery() {
    if !have("mke2fs") {
        return;
    }
    let device = with_damaged_extents();
    let volume = mount_with(&device, options(OnError::Panic));
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let memory = Arc::clone(&device);
    let at_the_end = Arc::new(std::sync::Mutex::new(None));
    let end = Arc::clone(&at_the_end);
    volume.set_panic_hook(move |error| {
        assert!(error.to_string().contains("corrupt"), "{error}");
        counter.fetch_add(1, Ordering::Relaxed);
        end.lock().unwrap().get_or_insert_with(|| memory.snapshot());
    });
    assert!(is_corrupt(&read_victim(&volume)));
    assert!(calls.load(Ordering::Relaxed) >= 1);
    assert!(volume.read_only(), "a hook that returns leaves a volume that refuses changes");
    // What the process would have left behind.
    let image = Arc::new(at_the_end.lock().unwrap().take().unwrap());
    let mut bytes = [0; 1024];
    image.read_at(1024, &mut bytes).unwrap();
    let raw = RawSuperblock::read(&bytes).unwrap();
    assert_ne!(raw.s_feature_incompat.get() & 4, 0, "needs_recovery");
    let volume = mount_with(&image, MountOptions::default());
    check_recorded(&volume.superblock());
}

#[test]
fn errors_panic_ends_the_process_when_the_journal_is_aborted() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(FaultDevice::new(Arc::new(mke2fs(16, "-b 1024"))));
    let volume = Volume::open(device.clone(), options(OnError::Panic)).unwrap();
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    volume.set_panic_hook(move |error| {
        let _ = tell.lock().unwrap().send(error.to_string());
    });
    let root = volume.root().unwrap();
    volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
    arm(&device, Operation::Write, 1, Times::Onwards);
    assert!(volume.sync().is_err());
    assert!(told.recv_timeout(Duration::from_secs(10)).is_ok());
}

#[test]
fn damage_met_in_background_writeback_is_recorded() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let with_expiry = MountOptions { dirty_expire_ms: 1, ..options(OnError::Continue) };
    let volume = mount_with(&device, with_expiry);
    for group in 0..volume.layout().group_count {
        let bitmap = volume.group_desc(GroupNo(group)).block_bitmap();
        device.write_at(bitmap.get() * BLOCK + 700, &[0x5a; 8]).unwrap();
    }
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[1; 4000]).unwrap();
    let mut waited = 0;
    while volume.superblock().s_error_count.get() == 0 {
        assert!(waited < 150, "the flusher has met no damage in 15 seconds");
        waited += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(file.sync(false).is_err(), "and the writer is told");
}

fn arm(device: &FaultDevice, operation: Operation, nth: u64, times: Times) {
    device.reset();
    device.arm(FaultPlan { operation, nth, times, fault: Fault::Io });
}

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

fn cut(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

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

/// The commit that a queued joiner asked for found its transaction empty.
#[test]
fn a_joiner_behind_an_empty_commit_is_not_forgotten() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let long = MountOptions { commit_interval_ms: 900_000, ..MountOptions::default() };
    let volume = mount_with(&device, long);
    let most = volume.space().journal().credits_max();
    for _ in 0..20 {
        volume.sync().unwrap();
        let journal = volume.space().journal();
        let held = journal.start(1).unwrap();
        let (done, finished) = mpsc::channel();
        let mut threads = Vec::new();
        // Neither fits beside the open handle, nor beside the other one.
        for _ in 0..2 {
            let (volume, done) = (volume.clone(), done.clone());
            threads.push(std::thread::spawn(move || {
                let mut handle = volume.space().journal().start(most).unwrap();
                for block in 0..most / 2 + 1 {
                    handle.forget(BlockNo(u64::from(8000 + block))).unwrap();
                }
                drop(handle);
                done.send(()).unwrap();
            }));
        }
        std::thread::sleep(Duration::from_millis(20));
        drop(held);
        for _ in 0..2 {
            finished.recv_timeout(Duration::from_secs(10)).expect("both join");
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Small groups: a run lies in many of them, and a handle changes few.
#[test]
fn removals_through_many_small_groups_fit_the_smallest_journal() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 1024 -g 256 -N 1024 -J size=1 -O ^resize_inode"));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    let mode = AllocateMode::Allocate { keep_size: false };
    for round in 0..3 {
        let inode = volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        file.allocate(mode, 0, 24 << 20).unwrap();
        match round {
            0 => drop(volume.set_attr(&inode, &cut(1 << 20)).unwrap()),
            1 => file.allocate(AllocateMode::PunchHole, 1 << 20, 20 << 20).unwrap(),
            _ => {}
        }
        volume.unlink(&root, b"f").unwrap();
        drop((file, inode));
        volume.delete_unlinked().unwrap();
    }
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}

/// A sync that returns has left nothing dirty that was dirty at its call: writers, readers that
/// change access times, and syncs of all kinds race; then everything must be there after a crash.
#[test]
fn no_dirty_inode_is_missed_by_the_last_sync() {
    if !have("mke2fs") {
        return;
    }
    const FILES: usize = 24;
    let device = Arc::new(mke2fs(64, "-b 1024"));
    let strict = MountOptions {
        atime: Atime::Strict,
        commit_interval_ms: 900_000,
        ..MountOptions::default()
    };
    let volume = mount_with(&device, strict);
    let root = volume.root().unwrap();
    let inodes: Vec<InodeRef> = (0..FILES)
        .map(|n| {
            let name = format!("f{n}");
            volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap()
        })
        .collect();
    for round in 0..30_u8 {
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (volume, inodes) = (&volume, &inodes);
                scope.spawn(move || {
                    for inode in inodes.iter().skip(thread).step_by(4) {
                        let file = volume.open_file(inode).unwrap();
                        file.append(&[round; 700]).unwrap();
                        file.write_at(0, &[round; 300]).unwrap();
                        file.read_at(0, &mut [0; 10]).unwrap();
                    }
                });
            }
            let (volume, inodes) = (&volume, &inodes);
            scope.spawn(move || volume.sync().unwrap());
            scope.spawn(move || {
                for inode in inodes.iter().step_by(3) {
                    volume.open_file(inode).unwrap().sync(round % 2 == 0).unwrap();
                }
            });
        });
        volume.sync().unwrap();
        let image = Arc::new(device.snapshot());
        let crashed = mount_with(&image, MountOptions::default());
        let root = crashed.root().unwrap();
        for (n, inode) in inodes.iter().enumerate() {
            let found = crashed.lookup(&root, format!("f{n}").as_bytes()).unwrap();
            let (want, have) = (volume.attr(inode), crashed.attr(&found));
            assert_eq!(want.size, have.size, "round {round}, file {n}");
            assert_eq!((want.atime, want.mtime), (have.atime, have.mtime), "file {n}");
            let mut bytes = vec![0; have.size as usize];
            crashed.open_file(&found).unwrap().read_at(0, &mut bytes).unwrap();
            assert!(bytes[..300].iter().all(|&byte| byte == round));
            assert!(bytes[bytes.len() - 300..].iter().all(|&byte| byte == round));
        }
    }
}
