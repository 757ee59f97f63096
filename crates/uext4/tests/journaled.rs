//! Data that goes through the journal: `data=journal`, and files with the JOURNAL_DATA flag.
//!
//! Fault model: the process ends at a moment (a copy of the device, with everything that was
//! written by then), after which uext4, e2fsck or both recover the image; volumes that are nearly
//! full, so that freed blocks are used again at once; logs that are gone round many times. Lost and
//! reordered writes are the crash harness's (`cargo xtask crash --ablation data=journal`), which
//! also asks the kernel.

mod common;

use common::{assert_clean, e2fsck, have, mke2fs, mount_with, new};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4::config::DataMode;
use uext4::{AllocateMode, ErrorKind, InodeRef, MountOptions, OpenFile, SetAttr, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::{FileKind, InodeFlags};

/// First bytes of every block of a jbd2 log.
const JOURNAL_MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

fn journaled() -> MountOptions {
    MountOptions {
        data_mode: DataMode::Journal,
        cache_bytes: MountOptions::CACHE_BYTES_MIN,
        ..MountOptions::default()
    }
}

fn ordered() -> MountOptions {
    MountOptions { cache_bytes: MountOptions::CACHE_BYTES_MIN, ..MountOptions::default() }
}

fn create(volume: &Volume, dir: &InodeRef, name: &str) -> OpenFile {
    let inode = volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

fn content(volume: &Volume, dir: &InodeRef, name: &str) -> Vec<u8> {
    let inode = volume.lookup(dir, name.as_bytes()).unwrap();
    let mut bytes = vec![0; volume.attr(&inode).size as usize];
    let read = volume.open_file(&inode).unwrap().read_at(0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

fn set_size(volume: &Volume, file: &OpenFile, size: u64) {
    let change = SetAttr { size: Some(size), ..SetAttr::default() };
    volume.set_attr(file.inode(), &change).unwrap();
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 7 + seed * 31 + i / 509) as u8).collect()
}

/// The device as it is, as if the process had ended.
fn crashed(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(device.snapshot())
}

#[test]
fn the_smallest_journal_takes_large_writes() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -J size=1"));
    let volume = mount_with(&device, journaled());
    let root = volume.root().unwrap();
    let file = create(&volume, &root, "f");
    let mut model = Vec::new();
    for round in 0..8_u64 {
        let bytes = pattern(round, (1 << 20) + 700);
        // The second half of the rounds overwrites.
        let at = (round % 4) * (1 << 20) + 333;
        assert_eq!(file.write_at(at, &bytes).unwrap(), bytes.len());
        model.resize(model.len().max(at as usize + bytes.len()), 0);
        model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        if round % 3 == 0 {
            file.sync(true).unwrap();
        }
    }
    assert_eq!(content(&volume, &root, "f"), model);
    file.sync(false).unwrap();
    let after = crashed(&device);
    drop((file, root));
    volume.close().unwrap();
    assert_clean(&device);
    for image in [after, device] {
        let volume = mount_with(&image, ordered());
        assert_eq!(content(&volume, &volume.root().unwrap(), "f"), model);
        volume.close().unwrap();
        assert_clean(&image);
    }
}

/// Pages that are gone come back from the running transaction and from the log.
#[test]
fn what_is_not_at_home_yet_is_read() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(48, "-b 1024 -J size=4"));
    let volume = mount_with(&device, journaled());
    let root = volume.root().unwrap();
    let other = create(&volume, &root, "other");
    other.write_at(0, &pattern(9, 12 << 20)).unwrap();
    volume.close().unwrap();
    drop((other, root));
    let volume = mount_with(&device, journaled());
    let root = volume.root().unwrap();
    let other = volume.open_file(&volume.lookup(&root, b"other").unwrap()).unwrap();
    let file = create(&volume, &root, "f");
    let mut model = pattern(1, 200 << 10);
    file.write_at(0, &model).unwrap();
    file.sync(false).unwrap();
    file.write_at(70_000, &pattern(2, 30_000)).unwrap();
    model[70_000..100_000].copy_from_slice(&pattern(2, 30_000));
    // Small reads go through the page cache, and fill it.
    let mut buf = [0; 4096];
    for at in (0..12 << 20).step_by(buf.len()) {
        other.read_at(at, &mut buf).unwrap();
    }
    let checkpoints = volume.space().journal().stats().checkpoints.load(Ordering::Relaxed);
    assert_eq!(checkpoints, 0, "the images are checkpointed");
    for at in (0..model.len()).step_by(buf.len()) {
        file.read_at(at as u64, &mut buf).unwrap();
        assert_eq!(buf[..], model[at..at + buf.len()]);
    }
    assert_eq!(content(&volume, &root, "f"), model);
}

/// A write of one handle is there after a crash, or it is not: overwriting, in a hole, over
/// unwritten blocks and past the end at once.
#[test]
fn a_write_is_whole_without_a_sync() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024"));
    let volume = mount_with(&device, journaled());
    let root = volume.root().unwrap();
    let file = create(&volume, &root, "f");
    file.write_at(0, &pattern(1, 3_000)).unwrap();
    let keep_size = true;
    file.allocate(AllocateMode::Allocate { keep_size }, 5_000, 4_000).unwrap();
    file.sync(false).unwrap();
    let before = content(&volume, &root, "f");
    file.write_at(1_500, &pattern(2, 9_000)).unwrap();
    let after = content(&volume, &root, "f");
    assert_eq!((before.len(), after.len()), (3_000, 10_500));
    for (commits, wanted) in [(false, &before), (true, &after)] {
        if commits {
            volume.space().journal().commit_all().unwrap();
        }
        let image = crashed(&device);
        let volume = mount_with(&image, ordered());
        assert_eq!(&content(&volume, &volume.root().unwrap(), "f"), wanted);
        volume.close().unwrap();
        assert_clean(&image);
    }
}

/// File data that looks like blocks of a log is escaped there, and comes back as it was.
#[test]
fn data_that_looks_like_a_log_comes_back() {
    if !have("mke2fs") {
        return;
    }
    for block_size in [1024, 4096_usize] {
        let device = Arc::new(mke2fs(24, &format!("-b {block_size} -J size=4")));
        let volume = mount_with(&device, journaled());
        let root = volume.root().unwrap();
        let file = create(&volume, &root, "nested");
        // Every block begins with the magic number and a block type; some are real commit blocks.
        let mut bytes = pattern(3, 40 * block_size);
        for (n, block) in bytes.chunks_exact_mut(block_size).enumerate() {
            block[..4].copy_from_slice(&JOURNAL_MAGIC);
            block[4..8].copy_from_slice(&(1 + n as u32 % 5).to_be_bytes());
            let tid = volume.space().journal().stats().commits.load(Ordering::Relaxed) as u32;
            block[8..12].copy_from_slice(&(tid + n as u32 % 4).to_be_bytes());
        }
        file.write_at(0, &bytes).unwrap();
        file.sync(false).unwrap();
        assert_eq!(content(&volume, &root, "nested"), bytes);
        let (ours, theirs) = (crashed(&device), crashed(&device));
        let replayed = mount_with(&ours, ordered());
        assert!(replayed.recovery().blocks > 40);
        assert_eq!(content(&replayed, &replayed.root().unwrap(), "nested"), bytes);
        replayed.close().unwrap();
        assert_clean(&ours);

        let path = tempfile::NamedTempFile::new().unwrap();
        theirs.save(path.path()).unwrap();
        let output = Command::new("/sbin/e2fsck").arg("-fy").arg(path.path()).output().unwrap();
        assert!(output.status.code() <= Some(1), "{output:?}");
        let theirs = Arc::new(MemoryDevice::load(path.path()).unwrap());
        assert_clean(&theirs);
        let replayed = mount_with(&theirs, ordered());
        assert_eq!(replayed.recovery().transactions, 0);
        assert_eq!(content(&replayed, &replayed.root().unwrap(), "nested"), bytes);
        replayed.close().unwrap();
        drop((file, root));
        volume.close().unwrap();
        assert_clean(&device);
        let volume = mount_with(&device, journaled());
        assert_eq!(content(&volume, &volume.root().unwrap(), "nested"), bytes);
    }
}

/// More blocks in the log than one handle can revoke; cut, punched and deleted.
#[test]
fn much_journaled_data_is_freed() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -J size=4"));
    let volume = mount_with(&device, journaled());
    let root = volume.root().unwrap();
    let free = volume.stat_fs().blocks_free;
    for round in 0..6_u64 {
        let file = create(&volume, &root, "f");
        file.write_at(0, &pattern(round, 900 << 10)).unwrap();
        match round % 3 {
            0 => set_size(&volume, &file, 1_500),
            1 => file.allocate(AllocateMode::PunchHole, 700, 800 << 10).unwrap(),
            _ => {}
        }
        let mut model = pattern(round, 900 << 10);
        match round % 3 {
            0 => model.truncate(1_500),
            1 => model[700..700 + (800 << 10)].fill(0),
            _ => {}
        }
        assert_eq!(content(&volume, &root, "f"), model);
        file.sync(false).unwrap();
        let image = crashed(&device);
        let replayed = mount_with(&image, ordered());
        assert_eq!(content(&replayed, &replayed.root().unwrap(), "f"), model);
        replayed.close().unwrap();
        assert_clean(&image);
        drop(file);
        volume.unlink(&root, b"f").unwrap();
        volume.delete_unlinked().unwrap();
    }
    volume.sync().unwrap();
    assert_eq!(volume.stat_fs().blocks_free, free);
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_full_volume_refuses_whole_writes_and_takes_them_again() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(8, "-b 1024 -J size=1 -m 0"));
    let volume = mount_with(&device, journaled());
    let root = volume.root().unwrap();
    for round in 0..3_u64 {
        let mut written = Vec::new();
        let full = (0..).find(|n| {
            let file = create(&volume, &root, &format!("f{n}"));
            let bytes = pattern(round + n, 50_000);
            match file.write_at(0, &bytes) {
                Ok(len) => {
                    assert_eq!(len, bytes.len());
                    written.push((format!("f{n}"), bytes));
                    false
                }
                Err(error) => {
                    assert_eq!(*error.kind(), ErrorKind::NoSpace);
                    assert_eq!(volume.attr(file.inode()).size, 0, "a refused write left a part");
                    true
                }
            }
        });
        volume.sync().unwrap();
        let image = crashed(&device);
        let replayed = mount_with(&image, journaled());
        for (name, bytes) in &written {
            assert_eq!(&content(&replayed, &replayed.root().unwrap(), name), bytes);
        }
        replayed.close().unwrap();
        assert_clean(&image);
        for n in 0..=full.unwrap() {
            volume.unlink(&root, format!("f{n}").as_bytes()).unwrap();
        }
    }
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}

/// An image with two directories, one of which has the JOURNAL_DATA flag.
fn mixed_image(mib: u64, options: &str) -> Arc<MemoryDevice> {
    let device = Arc::new(mke2fs(mib, options));
    let volume = mount_with(&device, MountOptions::default());
    let root = volume.root().unwrap();
    for name in ["plain", "journaled"] {
        volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
    }
    drop(root);
    volume.close().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    device.save(file.path()).unwrap();
    let output = Command::new("/sbin/debugfs")
        .args(["-w", "-R", "set_inode_field /journaled flags 0x84000"])
        .arg(file.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    Arc::new(MemoryDevice::load(file.path()).unwrap())
}

fn dir(volume: &Volume, name: &str) -> InodeRef {
    volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap()
}

#[test]
fn the_flag_is_inherited_and_honoured() {
    if !have("mke2fs") {
        return;
    }
    let device = mixed_image(16, "-b 1024");
    let volume = mount_with(&device, ordered());
    for (name, wanted) in [("plain", false), ("journaled", true)] {
        let dir = dir(&volume, name);
        let file = create(&volume, &dir, "f");
        let flags = volume.attr(file.inode()).flags;
        assert_eq!(flags.contains(InodeFlags::JOURNAL_DATA), wanted);
        let journal = volume.space().journal();
        journal.commit_all().unwrap();
        let logged = || journal.stats().blocks_logged.load(Ordering::Relaxed);
        let before = logged();
        file.write_at(0, &pattern(1, 20 * 1024)).unwrap();
        file.sync(false).unwrap();
        assert_eq!(logged() - before >= 20, wanted);
    }
    volume.close().unwrap();
    assert_clean(&device);
}

/// Blocks of a journaled file that is deleted go to a file whose data is written in place. A replay
/// must not put the old images over it.
#[test]
fn freed_data_is_revoked() {
    if !have("mke2fs") {
        return;
    }
    let device = mixed_image(8, "-b 1024 -J size=1 -m 0");
    let volume = mount_with(&device, ordered());
    let (plain, journaled) = (dir(&volume, "plain"), dir(&volume, "journaled"));
    let old = create(&volume, &journaled, "old");
    old.write_at(0, &pattern(1, 40 << 10)).unwrap();
    old.sync(false).unwrap();
    drop(old);
    volume.unlink(&journaled, b"old").unwrap();
    volume.delete_unlinked().unwrap();
    volume.sync().unwrap();
    // All there is: the freed blocks are among them.
    let file = create(&volume, &plain, "new");
    let mut written = Vec::new();
    while let Ok(len) = file.write_at(written.len() as u64, &[2; 4096]) {
        written.resize(written.len() + len, 2);
    }
    assert!(written.len() > 4 << 20);
    file.sync(false).unwrap();
    let image = crashed(&device);
    let replayed = mount_with(&image, ordered());
    assert!(content(&replayed, &dir(&replayed, "plain"), "new") == written);
    replayed.close().unwrap();
    assert_clean(&image);
}

/// Files of both kinds on a nearly full volume with the smallest journal: what was synced is there
/// after a crash, whichever file had its blocks before, and wherever the log begins.
#[test]
fn both_kinds_of_files_use_each_others_blocks() {
    if !have("mke2fs") {
        return;
    }
    let device = mixed_image(6, "-b 1024 -J size=1 -m 0");
    let volume = mount_with(&device, ordered());
    let dirs = [("plain", dir(&volume, "plain")), ("journaled", dir(&volume, "journaled"))];
    let mut state = 0x9e37_79b9_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    // What is durable, and untouched since.
    let mut synced: BTreeMap<(usize, String), Vec<u8>> = BTreeMap::new();
    for step in 0..3_000_u64 {
        let which = random(2) as usize;
        let (_, dir) = &dirs[which];
        let name = format!("f{}", random(8));
        let key = (which, name.clone());
        let there = volume.lookup(dir, name.as_bytes()).ok();
        match random(10) {
            0..=1 => {
                synced.remove(&key);
                if there.is_some() {
                    drop(there);
                    volume.unlink(dir, name.as_bytes()).unwrap();
                    volume.delete_unlinked().unwrap();
                }
            }
            2..=8 => {
                synced.remove(&key);
                let inode = there.unwrap_or_else(|| {
                    volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap()
                });
                let file = volume.open_file(&inode).unwrap();
                set_size(&volume, &file, random(30_000));
                let bytes = pattern(step, 1 + random(150_000) as usize);
                if file.write_at(random(20_000), &bytes).is_err() {
                    continue;
                }
                if random(2) == 0 {
                    file.sync(random(2) == 0).unwrap();
                    synced.insert(key, content(&volume, dir, &name));
                }
            }
            _ => volume.space().journal().commit_all().unwrap(),
        }
        if step % 10 == 0 {
            let image = crashed(&device);
            let replayed = mount_with(&image, ordered());
            for ((which, name), bytes) in &synced {
                let dir = self::dir(&replayed, dirs[*which].0);
                let found = content(&replayed, &dir, name);
                assert!(&found == bytes, "step {step}: {} {name}", dirs[*which].0);
            }
            replayed.close().unwrap();
            if step % 500 == 0 {
                assert_clean(&image);
            }
        }
    }
    let checkpoints = volume.space().journal().stats().checkpoints.load(Ordering::Relaxed);
    assert!(checkpoints > 50, "{checkpoints} checkpoints");
    drop(dirs);
    volume.close().unwrap();
    assert_clean(&device);
    assert_eq!(e2fsck(&device, "-fn").0, 0);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(8, "-b 1024"));
    let mut options = journaled();
    options.parse("delalloc").unwrap();
    let error = Volume::open(device, options).expect_err("both of them");
    assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("data=journal"), "{error}");
}
