//! Commits: which calls wait for one, what must fit in one, what the last one must have.
//!
//! Fault model: a joiner that nobody wakes, a handle that is larger than the journal, a change that
//! a sync has missed. Not covered: schedules (uext4-sim, `schedules.rs`), crashes in a commit.

mod common;

use common::{assert_clean, cut, have, mke2fs, mount_with, new};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use uext4::config::Atime;
use uext4::{AllocateMode, BlockNo, InodeRef, MountOptions};
use uext4_ondisk::FileKind;

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
