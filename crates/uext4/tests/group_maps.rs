//! Eviction of the maps of groups: their memory is bounded, and nothing is lost.
//!
//! Fault model: a map is evicted although it knows more than the journaled bitmap (an allocation, a
//! free that is not durable). Blocks would then have two owners or be lost, which contents, counts
//! and e2fsck show. The limit is checked when nothing is in progress. Not covered: a crash (the
//! crash kit).

mod common;

use common::{assert_clean, have, mke2fs, mount_with, new};
use std::sync::Arc;
use uext4::alloc::Count;
use uext4::{ErrorKind, InodeRef, MountOptions, Volume};
use uext4_ondisk::FileKind;

const GROUPS: usize = 256;
const THREADS: u64 = 4;
const ROUNDS: u64 = 3;
const FILES: u64 = 60;

fn content(thread: u64, n: u64) -> Vec<u8> {
    let len = 1000 + (thread * 7919 + n * 104_729) % 300_000;
    (0..len).map(|at| (at / 509 + n * 31 + thread) as u8).collect()
}

fn name(thread: u64, n: u64) -> Vec<u8> {
    format!("t{thread}-{n}").into_bytes()
}

/// Files come, grow alternately, and go; each third one stays.
fn churn(volume: &Volume, root: &InodeRef, thread: u64, round: u64) {
    for n in round * FILES..(round + 1) * FILES {
        let inode = volume.create(root, &name(thread, n), &new(FileKind::Regular, 0o644)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        for (at, part) in (0_u64..).zip(content(thread, n).chunks(64 << 10)) {
            file.write_at(at << 16, part).unwrap();
            if n % 4 == thread {
                file.sync(true).unwrap();
            }
        }
        drop((file, inode));
        if n % 3 != 0 {
            volume.unlink(root, &name(thread, n)).unwrap();
        }
    }
}

fn check(volume: &Volume, root: &InodeRef) {
    for (thread, n) in (0..THREADS).flat_map(|t| (0..ROUNDS * FILES).map(move |n| (t, n))) {
        let Ok(inode) = volume.lookup(root, &name(thread, n)) else {
            assert_ne!(n % 3, 0, "file {n} of thread {thread} is gone");
            continue;
        };
        let want = content(thread, n);
        let mut read = vec![0; want.len() + 1];
        let len = volume.open_file(&inode).unwrap().read_at(0, &mut read).unwrap();
        assert!(read[..len] == want[..], "content of file {n} of thread {thread}");
    }
}

#[test]
fn maps_of_many_groups_stay_within_the_budget() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(128, "-b 1024 -g 512 -m 0 -N 4096 -J size=4"));
    let mut options = MountOptions { cache_bytes: 1 << 20, ..MountOptions::default() };
    // Nothing is held ahead, so that nothing is under way between two rounds.
    options.parse("mb_reserve=off").unwrap();
    let volume = mount_with(&device, options);
    assert_eq!(volume.layout().group_count as usize, GROUPS);
    let root = volume.root().unwrap();
    let (_, max) = volume.space().group_maps();
    assert!(max * 3 < GROUPS, "{max} maps are no small budget");
    for round in 0..ROUNDS {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (volume, root) = (&volume, &root);
                scope.spawn(move || churn(volume, root, thread, round));
            }
            scope.spawn(|| volume.trim(0, u64::MAX, 0).unwrap());
        });
        volume.sync().unwrap();
        volume.trim(0, u64::MAX, 0).unwrap();
        let (count, _) = volume.space().group_maps();
        let loaded = volume.space().alloc_stats().count(Count::Loaded);
        println!("{count} maps of at most {max}, {loaded} were made");
        assert!(count <= max, "{count} maps, {max} may be");
        assert!(loaded as usize > GROUPS, "no group was needed twice");
    }
    check(&volume, &root);
    // To the last block, in all groups.
    let full = volume.create(&root, b"full", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&full).unwrap();
    let error = loop {
        if let Err(error) = file.append(&[7; 1 << 16]) {
            break error;
        }
    };
    assert_eq!(*error.kind(), ErrorKind::NoSpace);
    file.sync(false).unwrap();
    drop((file, full));
    check(&volume, &root);
    volume.unlink(&root, b"full").unwrap();
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}
