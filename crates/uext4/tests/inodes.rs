//! Where inodes come from: directories are spread, files lie near theirs, threads get different
//! numbers, and tables that mke2fs left uninitialised are honoured.
//!
//! Fault model: a number given to two, a number lost, a directory far from where it belongs, an
//! inode in a part of a table that e2fsck or the kernel would not read or would read as garbage.
//! Not covered: power failures (the crash kit does those).

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::collections::{BTreeMap, HashSet};
use std::process::Command;
use std::sync::{Arc, Mutex};
use uext4::{InodeRef, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::{FileKind, GroupFlags, GroupNo};

/// Small groups, so that there are many: 64 groups of 8 MiB, four of them a flex group.
const MANY_GROUPS: &str = "-b 1024 -g 8192 -N 16384 -G 4 -J size=4";

fn group_of(volume: &Volume, inode: &InodeRef) -> u32 {
    volume.layout().group_of_ino(inode.ino()).expect("a number").0.get()
}

fn mkdir(volume: &Volume, dir: &InodeRef, name: &str) -> InodeRef {
    volume.create(dir, name.as_bytes(), &new(FileKind::Directory, 0o755)).expect(name)
}

fn create(volume: &Volume, dir: &InodeRef, name: &str) -> InodeRef {
    volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).expect(name)
}

#[test]
fn top_directories_are_spread_and_the_rest_stays_near_its_parent() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(512, MANY_GROUPS));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let flexes = volume.layout().group_count / 4;
    let (mut by_flex, mut by_group) = (BTreeMap::new(), BTreeMap::new());
    let tops: Vec<InodeRef> =
        (0..flexes * 8).map(|n| mkdir(&volume, &root, &format!("top{n}"))).collect();
    for top in &tops {
        *by_flex.entry(group_of(&volume, top) / 4).or_insert(0) += 1;
        *by_group.entry(group_of(&volume, top)).or_insert(0) += 1;
    }
    // The first flex group holds the root and the journal: it may be left alone.
    assert!(by_flex.len() >= flexes as usize - 1, "{by_flex:?}");
    assert!(by_flex.values().all(|&count| count <= 10), "{by_flex:?}");
    assert!(by_group.values().all(|&count| count <= 4), "{by_group:?}");

    for top in tops.iter().step_by(5) {
        let home = group_of(&volume, top);
        let (mut near, mut same) = (0, 0);
        let mut below = top.clone();
        for n in 0..12 {
            let sub = mkdir(&volume, if n % 2 == 0 { top } else { &below }, &format!("sub{n}"));
            near += u32::from(group_of(&volume, &sub) / 4 == home / 4);
            let file = create(&volume, &sub, "file");
            same += u32::from(group_of(&volume, &file) == group_of(&volume, &sub));
            below = sub;
        }
        assert_eq!((near, same), (12, 12), "below {home}");
    }
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_full_group_sends_files_to_its_flex_group_first() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(512, MANY_GROUPS));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let dir = mkdir(&volume, &root, "dir");
    let (home, per_group) = (group_of(&volume, &dir), volume.layout().inodes_per_group);
    let mut seen = HashSet::new();
    for n in 0..3 * per_group {
        let file = create(&volume, &dir, &format!("f{n}"));
        assert!(seen.insert(file.ino()), "{} twice", file.ino());
        assert_eq!(group_of(&volume, &file) / 4, home / 4, "file {n}");
    }
    volume.close().unwrap();
    assert_clean(&device);
}

/// Creates and removes in a directory of its own and in one that all share. `live` has the numbers
/// in use: a number is there before anybody else can get it, and goes before it is freed.
fn churn(volume: &Volume, thread: u32, live: &Mutex<HashSet<uext4::Ino>>) {
    let root = volume.root().unwrap();
    let own = mkdir(volume, &root, &format!("own{thread}"));
    let shared = volume.lookup(&root, b"shared").unwrap();
    for round in 0..6 {
        for n in 0..150 {
            let dir = if n % 3 == 0 { &shared } else { &own };
            let name = format!("t{thread}-{round}-{n}");
            let made = match n % 10 {
                9 => mkdir(volume, dir, &name),
                _ => create(volume, dir, &name),
            };
            assert!(live.lock().unwrap().insert(made.ino()), "{} is in use", made.ino());
        }
        for n in (0..150).filter(|n| (n + round) % 4 != 0) {
            let dir = if n % 3 == 0 { &shared } else { &own };
            let name = format!("t{thread}-{round}-{n}");
            let found = volume.lookup(dir, name.as_bytes()).unwrap();
            assert!(live.lock().unwrap().remove(&found.ino()));
            drop(found);
            match n % 10 {
                9 => volume.rmdir(dir, name.as_bytes()).unwrap(),
                _ => volume.unlink(dir, name.as_bytes()).unwrap(),
            }
        }
    }
}

#[test]
fn threads_never_get_the_same_number() {
    if !have("mke2fs") {
        return;
    }
    // One group has few inodes, so that threads meet at its end.
    let device = Arc::new(mke2fs(64, "-b 1024 -g 8192 -N 8192 -G 2 -J size=4"));
    let volume = mount(&device);
    let before = volume.stat_fs().inodes_free;
    mkdir(&volume, &volume.root().unwrap(), "shared");
    let live = Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (volume, live) = (&volume, &live);
            scope.spawn(move || churn(volume, thread, live));
        }
    });
    volume.sync().unwrap();
    let used = before - volume.stat_fs().inodes_free;
    assert_eq!(used, live.lock().unwrap().len() as u64 + 8 + 1, "numbers were lost");
    volume.close().unwrap();
    assert_clean(&device);
}

/// An image whose inode tables hold garbage where mke2fs says that nobody has used them.
fn lazy_image(mib: usize) -> MemoryDevice {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(file.path(), vec![0xa5; mib << 20]).expect("garbage");
    let output = Command::new("/sbin/mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "1024", "-g", "8192", "-N", "4096", "-J", "size=4"])
        .args(["-E", "lazy_itable_init=1,nodiscard"])
        .arg(file.path())
        .output()
        .expect("mke2fs runs");
    assert!(output.status.success(), "{output:?}");
    MemoryDevice::load(file.path()).expect("image")
}

#[test]
fn lazy_tables_are_used_from_their_begin_and_stay_clean() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(lazy_image(64));
    let volume = mount(&device);
    let groups = (0..volume.layout().group_count).map(GroupNo);
    let lazy = groups.clone().filter(|group| {
        let flags = volume.group_desc(*group).flags();
        flags.contains(GroupFlags::INODE_UNINIT) && !flags.contains(GroupFlags::INODE_ZEROED)
    });
    assert!(lazy.count() >= 4, "mke2fs left tables for later");
    let root = volume.root().unwrap();
    // Every group gets a directory and some files, some of which go again.
    for n in 0..volume.layout().group_count * 2 {
        let dir = mkdir(&volume, &root, &format!("d{n}"));
        (0..20 + n % 7).for_each(|f| drop(create(&volume, &dir, &format!("f{f}"))));
        (0..5 * (n % 3))
            .for_each(|f| volume.unlink(&dir, format!("f{f}").as_bytes()).expect("unlink"));
    }
    let per_group = volume.layout().inodes_per_group;
    for group in groups {
        let desc = volume.group_desc(group);
        let used = per_group - desc.free_inodes();
        let touched = per_group - desc.itable_unused();
        // The lowest free numbers are taken: at most those that were freed lie between.
        assert!(touched >= used && touched <= used + 40, "{group}: {used} used, {touched} touched");
    }
    volume.close().unwrap();
    assert_clean(&device);
    // And again, from the device.
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let dir = volume.lookup(&root, b"d3").unwrap();
    (0..300).for_each(|f| drop(create(&volume, &dir, &format!("later{f}"))));
    volume.close().unwrap();
    assert_clean(&device);
}
