//! Many threads in one volume, on journals of the smallest size, so that transactions fill, wrap
//! and are checkpointed under load. A debug build asserts the lock order all the while.
//!
//! Fault model: none but the schedule. Not covered: chosen schedules (a schedule explorer's task).

mod common;

use common::{assert_clean, have, mke2fs, mount_with, new};
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, MountOptions, RenameMode, SetAttr, Volume};
use uext4_ondisk::FileKind;

const THREADS: u64 = 8;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// One thread's work in a directory of its own and one that all share.
fn work(volume: &Volume, id: u64, rounds: u64) {
    let root = volume.root().unwrap();
    let own_name = format!("own{id}");
    let own = volume.create(&root, own_name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap();
    let shared = volume.lookup(&root, b"shared").unwrap();
    let mut seed = id * 7919 + 1;
    for round in 0..rounds {
        let name = format!("f{}-{id}", random(&mut seed) % 20);
        let dir = if random(&mut seed).is_multiple_of(3) { &shared } else { &own };
        let inode = match volume.lookup(dir, name.as_bytes()) {
            Ok(inode) => inode,
            Err(_) => match volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)) {
                Ok(inode) => inode,
                Err(error) if *error.kind() == ErrorKind::Exists => continue,
                Err(error) => panic!("create {name}: {error}"),
            },
        };
        let file = volume.open_file(&inode).unwrap();
        let offset = random(&mut seed) % 300_000;
        let data = vec![id as u8 + 1; (random(&mut seed) % 40_000) as usize];
        match random(&mut seed) % 10 {
            0 => file.sync(random(&mut seed).is_multiple_of(2)).unwrap(),
            1 => volume.unlink(dir, name.as_bytes()).unwrap(),
            2 => {
                let size = Some(random(&mut seed) % 200_000);
                volume.set_attr(&inode, &SetAttr { size, ..SetAttr::default() }).unwrap();
            }
            3 => file.allocate(AllocateMode::PunchHole, offset, 30_000).unwrap(),
            4 => {
                let mode = AllocateMode::Allocate { keep_size: round % 2 == 0 };
                file.allocate(mode, offset, 60_000).unwrap();
            }
            5 => {
                let other = if std::ptr::eq(dir, &own) { &shared } else { &own };
                volume
                    .rename(dir, name.as_bytes(), other, name.as_bytes(), RenameMode::Replace)
                    .unwrap();
            }
            6 => {
                let mut bytes = vec![0; 50_000];
                let read = file.read_at(offset, &mut bytes).unwrap();
                let foreign = bytes[..read].iter().find(|&&b| u64::from(b) > THREADS);
                assert_eq!(foreign, None, "bytes nobody wrote");
            }
            _ => assert_eq!(file.write_at(offset, &data).unwrap(), data.len()),
        }
    }
}

fn check(mib: u64, shape: &str, cache_mib: u64, rounds: u64) {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(mib, shape));
    let options = MountOptions { cache_bytes: cache_mib << 20, ..MountOptions::default() };
    let volume = mount_with(&device, options);
    let root = volume.root().unwrap();
    volume.create(&root, b"shared", &new(FileKind::Directory, 0o755)).unwrap();
    drop(root);
    std::thread::scope(|scope| {
        for id in 0..THREADS {
            let volume = &volume;
            scope.spawn(move || work(volume, id, rounds));
        }
    });
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn threads_on_the_smallest_journal() {
    check(128, "-b 4096 -J size=4", 64, 400);
}

#[test]
fn threads_on_small_blocks() {
    check(128, "-b 1024 -J size=1 -O orphan_file,metadata_csum_seed", 64, 300);
}

#[test]
fn threads_with_little_memory() {
    check(128, "-b 4096 -O orphan_file", 8, 300);
}
