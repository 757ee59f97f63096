//! Orphans: those that a failed truncation leaves, and those that a crash leaves and that cannot be
//! cleaned up.
//!
//! Fault model: reads that fail in the middle of a truncation; orphans left by a kernel whose
//! inodes, checksums or numbers are wrong, whose blocks cannot be read, or whose file has a block
//! map. Checked: nothing synced is lost, no old byte comes back, and a volume with such an orphan
//! can be changed. Not covered: orphans in images that are damaged elsewhere (`damage.rs`).

mod common;

use common::{
    arm, assert_clean, cut, debugfs, e2fsck, have, mke2fs, mount, mount_with, new, scatter,
};
use std::process::Command;
use std::sync::Arc;
use uext4::{InodeRef, MountOptions, SetAttr, SetTime, Volume};
use uext4_device::{Device, FaultDevice, MemoryDevice, Operation, SharedDevice, Times};
use uext4_ondisk::superblock::{STATE_ERROR, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{FileKind, RawSuperblock, Timestamp};

const BLOCK: usize = 1024;

fn forgetful() -> MountOptions {
    MountOptions { cache_bytes: 1 << 20, commit_interval_ms: 900_000, ..MountOptions::default() }
}

/// A volume with a file of many extents, and files enough to drive all else out of memory.
fn populated() -> MemoryDevice {
    let device = Arc::new(mke2fs(32, "-b 1024 -g 2048 -N 8000 -I 256 -O ^orphan_file"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let file = volume.create(&root, b"scattered", &new(FileKind::Regular, 0o644)).unwrap();
    scatter(&volume, &file, 400);
    volume.create(&root, b"neighbour", &new(FileKind::Regular, 0o644)).unwrap();
    for dir in 0..15 {
        let name = format!("fill{dir}");
        let dir = volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
        for n in 0..300 {
            volume.create(&dir, format!("{n}").as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        }
    }
    drop((root, file));
    volume.close().unwrap();
    device.snapshot()
}

/// Looks at every file, so that whatever nobody holds leaves memory.
fn forget_all(volume: &Volume) {
    let root = volume.root().unwrap();
    for _ in 0..2 {
        for dir in 0..15 {
            let dir = volume.lookup(&root, format!("fill{dir}").as_bytes()).unwrap();
            for n in 0..300 {
                volume.lookup(&dir, format!("{n}").as_bytes()).unwrap();
            }
        }
    }
}

/// Cuts the file to nothing on a device whose `nth` read fails from then on, which must fail after
/// the size was set; `None` if it fails before.
fn half_cut(image: &MemoryDevice, nth: u64) -> Option<(Arc<MemoryDevice>, Volume)> {
    let memory = Arc::new(image.snapshot());
    let shared: SharedDevice = memory.clone();
    let device = Arc::new(FaultDevice::new(shared));
    let shared: SharedDevice = device.clone();
    let volume = Volume::open(shared, forgetful()).unwrap();
    let root = volume.root().unwrap();
    // An orphan that stands behind the file in the list.
    let neighbour = volume.lookup(&root, b"neighbour").unwrap();
    volume.unlink(&root, b"neighbour").unwrap();
    let file = volume.lookup(&root, b"scattered").unwrap();
    forget_all(&volume);
    arm(&device, Operation::Read, nth, Times::Onwards);
    let result = volume.set_attr(&file, &cut(100));
    device.reset();
    if result.is_ok() || volume.attr(&file).size != 100 {
        return None;
    }
    drop(file);
    forget_all(&volume);
    let file = volume.lookup(&root, b"scattered").unwrap();
    assert_eq!(volume.attr(&file).size, 100);
    let open = volume.open_file(&file).unwrap();
    open.write_at(100, &[7; 50 << 10]).unwrap();
    open.sync(false).unwrap();
    drop((open, file));
    forget_all(&volume);
    // It leaves the list, which changes its predecessor.
    drop(neighbour);
    volume.delete_unlinked().unwrap();
    drop(root);
    Some((memory, volume))
}

fn check_half_cut(volume: &Volume) {
    let root = volume.root().unwrap();
    let file = volume.lookup(&root, b"scattered").unwrap();
    assert_eq!(volume.attr(&file).size, 100 + (50 << 10), "what was appended and synced is gone");
    let mut bytes = vec![0; 100 + (50 << 10)];
    volume.open_file(&file).unwrap().read_at(0, &mut bytes).unwrap();
    assert!(bytes[..100].iter().all(|&byte| byte == 0), "the begin of the file");
    assert!(bytes[100..].iter().all(|&byte| byte == 7), "what was appended");
}

#[test]
fn a_truncation_that_failed_half_way_loses_nothing_that_comes_later() {
    if !have("mke2fs") {
        return;
    }
    let image = populated();
    let mut found = 0;
    for nth in 1..12 {
        let Some((memory, volume)) = half_cut(&image, nth) else { continue };
        found += 1;
        volume.sync().unwrap();
        check_half_cut(&volume);
        let crashed = Arc::new(memory.snapshot());
        volume.close().unwrap();
        for memory in [memory, crashed] {
            let volume = mount(&memory);
            check_half_cut(&volume);
            volume.close().unwrap();
            assert_clean(&memory);
        }
    }
    assert!(found > 0, "no truncation failed half-way");
}

/// Truncates the file on a device whose `nth` read fails from then on; `None` unless it fails after
/// the size was set.
fn fails_half_way(
    image: &MemoryDevice,
    nth: u64,
    size: u64,
) -> Option<(Arc<MemoryDevice>, Volume, InodeRef)> {
    let memory = Arc::new(image.snapshot());
    let device = Arc::new(FaultDevice::new(memory.clone() as SharedDevice));
    let volume = Volume::open(device.clone() as SharedDevice, forgetful()).unwrap();
    let file = volume.lookup(&volume.root().unwrap(), b"scattered").unwrap();
    forget_all(&volume);
    arm(&device, Operation::Read, nth, Times::Onwards);
    let result = volume.set_attr(&file, &cut(size));
    device.reset();
    if result.is_ok() || volume.attr(&file).size != size {
        volume.abandon();
        return None;
    }
    Some((memory, volume, file))
}

/// A time that was set behind such a truncation stays, although recovery completes it.
#[test]
fn a_truncation_that_is_completed_by_recovery_changes_no_time() {
    if !have("mke2fs") {
        return;
    }
    let image = populated();
    let time = Timestamp { secs: 1_000_000_000, nanos: 7 };
    let mut found = 0;
    for nth in 1..12 {
        let Some((memory, volume, file)) = fails_half_way(&image, nth, 100) else { continue };
        found += 1;
        let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
        volume.set_attr(&file, &set).unwrap();
        volume.sync().unwrap();
        let crashed = Arc::new(memory.snapshot());
        volume.abandon();
        let volume = mount(&crashed);
        let file = volume.lookup(&volume.root().unwrap(), b"scattered").unwrap();
        assert_eq!(volume.attr(&file).mtime, time);
        drop(file);
        volume.close().unwrap();
        assert_clean(&crashed);
    }
    assert!(found > 0, "no truncation failed half-way");
}

/// Growing such a file completes the truncation: its old bytes do not come back.
#[test]
fn a_truncation_that_failed_half_way_brings_no_old_bytes_back() {
    if !have("mke2fs") {
        return;
    }
    let image = populated();
    let mut found = 0;
    for nth in 1..12 {
        let Some((memory, volume, file)) = fails_half_way(&image, nth, 0) else { continue };
        found += 1;
        volume.set_attr(&file, &cut(800 * BLOCK as u64)).unwrap();
        let mut bytes = vec![1; 800 * BLOCK];
        volume.open_file(&file).unwrap().read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0), "old bytes behind the cut");
        drop(file);
        volume.close().unwrap();
        assert_clean(&memory);
    }
    assert!(found > 0, "no truncation failed half-way");
}

/// Sets a field of an inode to an orphan's: no links, and the next one of the list.
fn orphaned(ino: u32, next: u32) -> Vec<String> {
    vec![
        format!("set_inode_field <{ino}> links_count 0"),
        format!("set_inode_field <{ino}> dtime @{next}"),
    ]
}

struct Case {
    name: &'static str,
    image: MemoryDevice,
    problems: usize,
    cleaned: usize,
}

/// A volume with files whose names go, and their numbers.
fn with_files(options: &str) -> (MemoryDevice, Vec<u32>) {
    let device = Arc::new(mke2fs(32, &format!("-b 1024 -N 2000 -O ^orphan_file {options}")));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let mut numbers = Vec::new();
    for n in 0..4 {
        let name = format!("f{n}");
        let file = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        scatter(&volume, &file, 60);
        numbers.push(file.ino().get());
    }
    drop(root);
    volume.close().unwrap();
    (device.snapshot(), numbers)
}

fn cases() -> Vec<Case> {
    let (image, files) = with_files("");
    let unlink = |n: usize| format!("unlink f{n}");
    let list = |head: u32, numbers: &[usize], end: u32| {
        let mut commands = vec![format!("set_super_value last_orphan {head}")];
        for (at, &n) in numbers.iter().enumerate() {
            let next = numbers.get(at + 1).map_or(end, |&next| files[next]);
            commands.push(unlink(n));
            commands.extend(orphaned(files[n], next));
        }
        commands
    };
    let mut cases = Vec::new();
    let mut add = |name, commands: Vec<String>, problems, cleaned| {
        cases.push(Case { name, image: debugfs(&image, &commands), problems, cleaned });
    };
    add("a reserved number at the head", list(5, &[], 0), 1, 0);
    add("a reserved number behind good ones", list(files[0], &[0, 1], 5), 1, 2);
    add("a number twice", list(files[0], &[0, 1], files[0]), 1, 2);
    add("a free inode", list(files[3] + 1, &[], 0), 1, 0);
    let mut wrong = list(files[0], &[0, 1], 0);
    wrong.push(format!("set_inode_field <{}> checksum 0x12345678", files[1]));
    add("a wrong checksum", wrong, 1, 1);
    let mut errors = list(files[0], &[0], 0);
    errors.push("set_super_value state 2".into());
    add("a file system with errors", errors, 1, 0);
    cases
}

fn state(image: &MemoryDevice) -> u16 {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    image.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    RawSuperblock::read(&bytes).unwrap().s_state.get()
}

/// The state after a mount and an unmount by the kernel; `None`: it mounts nothing here.
fn state_by_kernel(image: &MemoryDevice) -> Option<u16> {
    let (file, dir) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
    image.save(file.path()).unwrap();
    let mount =
        Command::new("mount").args(["-o", "loop"]).arg(file.path()).arg(dir.path()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: the kernel mounts nothing here");
        return None;
    }
    assert!(Command::new("umount").arg(dir.path()).status().unwrap().success());
    Some(state(&MemoryDevice::load(file.path()).unwrap()))
}

#[test]
fn a_bad_orphan_does_not_keep_a_volume_from_being_changed() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    for Case { name, image, problems, cleaned } in cases() {
        println!("{name}");
        let (before, by_kernel) = (state(&image), state_by_kernel(&image));
        let memory = Arc::new(image);
        let volume = mount(&memory);
        assert_eq!(volume.orphan_problems().len(), problems, "{:?}", volume.orphan_problems());
        assert_eq!(volume.recovery().orphans, cleaned);
        let root = volume.root().unwrap();
        let made = volume.create(&root, b"new", &new(FileKind::Regular, 0o644)).unwrap();
        volume.open_file(&made).unwrap().write_at(0, b"bytes").unwrap();
        // Orphans come and go as before.
        volume.unlink(&root, b"f3").unwrap();
        volume.delete_unlinked().unwrap();
        drop((made, root));
        volume.close().unwrap();
        // "clean with errors" if it was clean.
        assert_eq!(state(&memory), before | STATE_ERROR, "{name}");
        assert!(by_kernel.is_none_or(|state| state == before | STATE_ERROR), "{by_kernel:?}");
        // What was not cleaned up is e2fsck's, which is told by the error state.
        let volume = mount(&memory);
        let root = volume.root().unwrap();
        volume.lookup(&root, b"new").unwrap();
        drop(root);
        volume.close().unwrap();
        let (_, text) = e2fsck(&memory, "-fy");
        println!("{text}");
        let image = tempfile::NamedTempFile::new().unwrap();
        memory.save(image.path()).unwrap();
        let repaired = Command::new("/sbin/e2fsck").arg("-fy").arg(image.path()).output().unwrap();
        assert!(repaired.status.code().is_some_and(|code| code <= 1), "{name}: {repaired:?}");
        assert_clean(&MemoryDevice::load(image.path()).unwrap());
    }
}

/// A file with a block map among those with extents, as a kernel leaves it.
#[test]
fn an_orphan_with_a_block_map_is_cleaned_up() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let plain = mke2fs(32, "-b 1024 -N 2000 -O ^orphan_file,^extent,^64bit");
    let content = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(content.path(), vec![7; 300 << 10]).unwrap();
    let write = |name: &str| format!("write {} {name}", content.path().display());
    let image = debugfs(&plain, &[write("mapped"), "feature extent".into(), write("extents")]);
    let volume = mount_with(&Arc::new(image.snapshot()), MountOptions::default());
    let root = volume.root().unwrap();
    let numbers = [b"mapped".as_slice(), b"extents"]
        .map(|name| volume.lookup(&root, name).unwrap().ino().get());
    drop(root);
    volume.abandon();
    let mut commands = vec![format!("set_super_value last_orphan {}", numbers[0])];
    commands.extend(["unlink mapped".to_owned(), "unlink extents".to_owned()]);
    commands.extend(orphaned(numbers[0], numbers[1]));
    commands.extend(orphaned(numbers[1], 0));
    let memory = Arc::new(debugfs(&image, &commands));
    for cleaned in [2, 0] {
        let volume = mount(&memory);
        assert!(volume.orphan_problems().is_empty(), "{:?}", volume.orphan_problems());
        assert_eq!(volume.recovery().orphans, cleaned);
        volume.close().unwrap();
    }
    assert_clean(&memory);
}

/// An orphan whose leaf cannot be read stays one until it can.
#[test]
fn an_orphan_that_cannot_be_read_waits_for_the_next_mount() {
    if !have("mke2fs") {
        return;
    }
    let (image, _) = with_files("");
    let memory = Arc::new(image);
    let volume = mount(&memory);
    let root = volume.root().unwrap();
    let held = volume.lookup(&root, b"f0").unwrap();
    volume.unlink(&root, b"f0").unwrap();
    volume.sync().unwrap();
    let crashed = memory.snapshot();
    drop((held, root));
    volume.abandon();
    let mut met = 0;
    for nth in 1..200 {
        let memory = Arc::new(crashed.snapshot());
        let device = Arc::new(FaultDevice::new(memory.clone() as SharedDevice));
        arm(&device, Operation::Read, nth, Times::Once);
        let Ok(volume) = Volume::open(device.clone() as SharedDevice, MountOptions::default())
        else {
            continue;
        };
        device.reset();
        let is_left = !volume.orphan_problems().is_empty();
        met += usize::from(is_left);
        volume.close().unwrap();
        let volume = mount(&memory);
        assert_eq!(volume.recovery().orphans, usize::from(is_left), "read {nth}");
        assert!(volume.orphan_problems().is_empty());
        volume.close().unwrap();
        assert_clean(&memory);
        if !is_left && nth > 100 {
            break;
        }
    }
    assert!(met > 0, "no orphan met a failing read");
}

/// With clusters a block map says nothing of which clusters are its own.
#[test]
fn a_block_map_among_clusters_frees_nothing() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let options = "-b 1024 -C 4096 -N 2000 -O bigalloc,^orphan_file,^metadata_csum";
    let device = Arc::new(mke2fs(32, options));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let mut files = Vec::new();
    for name in [&b"orphan"[..], b"truncated", b"neighbour"] {
        let file = volume.create(&root, name, &new(FileKind::Regular, 0o644)).unwrap();
        volume.open_file(&file).unwrap().write_at(0, &[7; 4 * BLOCK]).unwrap();
        volume.open_file(&file).unwrap().sync(false).unwrap();
        files.push(file);
    }
    let mut place = 0;
    let mut note = |extent: uext4::Extent| {
        place = extent.start.get();
        true
    };
    volume.extents(&files[2], uext4::FileBlock(0), &mut note).unwrap();
    let (orphan, truncated) = (files[0].ino().get(), files[1].ino().get());
    drop((root, files));
    volume.close().unwrap();
    let mut commands = vec!["unlink orphan".to_owned()];
    commands.extend(orphaned(orphan, truncated));
    commands.push(format!("set_super_value last_orphan {orphan}"));
    commands.push(format!("set_inode_field <{truncated}> size 0"));
    for ino in [orphan, truncated] {
        commands.push(format!("set_inode_field <{ino}> flags 0"));
        commands.push(format!("set_inode_field <{ino}> block[0] {place}"));
        commands.extend((1..12).map(|n| format!("set_inode_field <{ino}> block[{n}] 0")));
    }
    let memory = Arc::new(debugfs(&device, &commands));
    let volume = mount(&memory);
    let problems = volume.orphan_problems();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.to_string().contains("clusters")));
    volume.sync().unwrap();
    let group = uext4_ondisk::GroupNo(0);
    let runs = volume.free_runs(group).unwrap();
    let is_free = runs
        .iter()
        .any(|run| (run.start.get()..run.start.get() + u64::from(run.len)).contains(&place));
    assert!(!is_free, "the neighbour's cluster was freed");
    volume.abandon();
}
