//! What each call costs the device in flushes and FUA writes: the table of docs/durability.md.
//!
//! One caller, nothing else running: the commit interval is long, the log far from full.

mod common;

use common::{have, mke2fs, new};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use uext4::{FileKind, MountOptions, OpenFile, Volume};
use uext4_device::{HookedDevice, HookedRequest, MemoryDevice, MeteredDevice, SharedDevice};

#[test]
fn flushes_and_fua_writes_of_each_call() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(MeteredDevice::new(Arc::new(mke2fs(64, "-b 4096"))));
    let options = MountOptions {
        commit_interval_ms: 900_000,
        dirty_expire_ms: 900_000,
        ..MountOptions::default()
    };
    let volume = Volume::open(device.clone() as SharedDevice, options).unwrap();
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    volume.sync().unwrap();

    let cost = |what: &str, flushes: u64, fua: u64, call: &dyn Fn()| {
        let before = device.read_meter();
        call();
        let spent = device.read_meter().since(&before);
        assert_eq!((spent.flushes, spent.fua_writes), (flushes, fua), "{what}: {spent:?}");
        spent
    };
    // Times are those of the clock's last tick: the next write has new ones.
    let new_tick = || std::thread::sleep(Duration::from_millis(30));
    let write = |byte: u8| {
        new_tick();
        file.write_at(0, &[byte; 8192]).unwrap();
    };
    let nothing = cost("write, create, rename, unlink", 0, 0, &|| {
        write(1);
        volume.create(&root, b"other", &new(FileKind::Regular, 0o644)).unwrap();
        volume.rename(&root, b"other", &root, b"third", uext4::RenameMode::Replace).unwrap();
        volume.unlink(&root, b"third").unwrap();
    });
    assert_eq!(nothing.writes, 0, "{nothing:?}");
    cost("fsync after a write that allocates", 1, 1, &|| file.sync(false).unwrap());
    cost("fsync after an overwrite", 1, 1, &|| {
        write(2);
        file.sync(false).unwrap();
    });
    cost("fdatasync after an overwrite", 1, 0, &|| {
        write(3);
        file.sync(true).unwrap();
    });
    let mtime = || volume.attr(&inode).mtime;
    let in_one_tick = (0..1000).any(|_| {
        write(4);
        file.sync(false).unwrap();
        let before = mtime();
        file.write_at(0, &[5; 8192]).unwrap();
        let is_same = mtime() == before;
        if is_same {
            cost("fsync after an overwrite in the same tick", 1, 0, &|| file.sync(false).unwrap());
        }
        is_same
    });
    assert!(in_one_tick, "two writes never met in a tick");
    write(3);
    file.sync(true).unwrap();
    // The times of that overwrite are not durable yet.
    cost("fsync of times alone", 1, 1, &|| file.sync(false).unwrap());
    let nothing = cost("fsync and fdatasync of what is durable", 0, 0, &|| {
        file.sync(false).unwrap();
        file.sync(true).unwrap();
    });
    assert_eq!(nothing.writes, 0, "{nothing:?}");
    drop((file, inode, root));
    volume.close().unwrap();
}

/// A device whose flushes and data writes take so long that all threads about to sync arrive
/// meanwhile.
fn slow(inner: SharedDevice) -> SharedDevice {
    Arc::new(HookedDevice::new(inner, |request| match request {
        HookedRequest::WriteMany(_) => std::thread::sleep(Duration::from_millis(50)),
        HookedRequest::Flush => std::thread::sleep(Duration::from_millis(100)),
        _ => {}
    }))
}

const SYNCERS: usize = 24;

fn open(words: &[&str]) -> Option<(Arc<MeteredDevice>, Volume, Vec<OpenFile>)> {
    if !have("mke2fs") {
        return None;
    }
    let mut options = MountOptions {
        commit_interval_ms: 900_000,
        dirty_expire_ms: 900_000,
        ..MountOptions::default()
    };
    words.iter().for_each(|word| options.parse(word).unwrap());
    let device = Arc::new(MeteredDevice::new(slow(Arc::new(mke2fs(64, "-b 4096")))));
    let volume = Volume::open(device.clone() as SharedDevice, options).unwrap();
    let root = volume.root().unwrap();
    let files = (0..SYNCERS)
        .map(|n| {
            let name = format!("f{n}");
            let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644));
            let file = volume.open_file(&inode.unwrap()).unwrap();
            file.write_at(0, &[1; 4096]).unwrap();
            file
        })
        .collect();
    volume.sync().unwrap();
    Some((device, volume, files))
}

/// All files are overwritten and synced at the same time; returns flushes and FUA writes.
fn sync_together(device: &MeteredDevice, files: &[OpenFile], data_only: bool) -> (u64, u64) {
    let before = device.read_meter();
    let together = Barrier::new(files.len());
    std::thread::scope(|scope| {
        for file in files {
            scope.spawn(|| {
                file.write_at(0, &[2; 4096]).unwrap();
                together.wait();
                file.sync(data_only).unwrap();
            });
        }
    });
    let spent = device.read_meter().since(&before);
    (spent.flushes, spent.fua_writes)
}

/// Who arrives together shares: at most the commit, or flush, that the first began, and one more.
#[test]
fn syncs_that_arrive_together_share_flushes_and_commits() {
    let Some((device, volume, files)) = open(&[]) else { return };
    let (flushes, fua) = sync_together(&device, &files, true);
    assert!((1..=2).contains(&flushes) && fua == 0, "fdatasync: {flushes} flushes, {fua} FUA");
    // Their times are in no transaction yet.
    let (flushes, fua) = sync_together(&device, &files, false);
    assert!((1..=2).contains(&flushes) && fua == flushes, "fsync: {flushes} flushes, {fua} FUA");
    // The second time the committer knows how many come.
    let (flushes, fua) = sync_together(&device, &files, false);
    assert!((1..=2).contains(&flushes) && fua == flushes, "fsync: {flushes} flushes, {fua} FUA");
    let info = volume.space().journal().info();
    assert!(info.requested > 0 && info.requested <= info.transactions, "{info:?}");
    assert!(info.average_commit >= Duration::from_millis(50), "{info:?}");
    assert!(volume.space().journal().waits().blocked().is_empty());
    drop(files);
    volume.close().unwrap();
}

/// One file each: as many writeback passes as processors go alone, the others together. Fault
/// model: each sync submits its own data, or a member of a group is left out.
#[test]
fn syncs_of_many_files_share_submissions_and_handles() {
    let Some((device, volume, files)) = open(&[]) else { return };
    let alone = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    let handles = || volume.stats().number("handles").unwrap();
    let (before, handles_before) = (device.read_meter(), handles());
    sync_together(&device, &files, false);
    let spent = device.read_meter().since(&before);
    // Beside the data: the log, twice at most, with its commit block.
    let most = alone + 8;
    if most < SYNCERS {
        assert!(spent.submissions <= most as u64, "{spent:?}");
        assert!(handles() - handles_before <= 2 * most as u64, "{} handles", handles());
    }
    drop(files);
    volume.abandon();
    let volume = Volume::open(device as SharedDevice, MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    for n in 0..SYNCERS {
        let inode = volume.lookup(&root, format!("f{n}").as_bytes()).unwrap();
        let mut data = [0; 4096];
        assert_eq!(volume.open_file(&inode).unwrap().read_at(0, &mut data).unwrap(), 4096);
        assert_eq!(data, [2; 4096], "file {n}");
    }
    volume.close().unwrap();
}

#[test]
fn options_that_save_flushes() {
    let Some((device, volume, files)) = open(&["journal_async_commit", "data=writeback"]) else {
        return;
    };
    assert_eq!(sync_together(&device, &files[..1], false), (1, 0));
    drop(files);
    volume.close().unwrap();
    let Some((device, volume, files)) = open(&["barrier=0"]) else { return };
    assert_eq!(sync_together(&device, &files, false), (0, 0));
    assert_eq!(sync_together(&device, &files, true), (0, 0));
    drop(files);
    volume.close().unwrap();
}

#[test]
fn an_asynchronous_commit_is_refused_with_ordered_data() {
    let options = MountOptions { journal_async_commit: true, ..MountOptions::default() };
    let error = Volume::open(Arc::new(MemoryDevice::new(1 << 20)), options).unwrap_err();
    assert!(matches!(error.kind(), uext4::ErrorKind::InvalidArgument), "{error:?}");
    assert!(error.to_string().contains("journal_async_commit"), "{error}");
}
