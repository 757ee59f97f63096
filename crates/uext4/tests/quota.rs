//! Usage of users, groups and projects, and their limits.
//!
//! Fault model: usage that is not the sum of the inodes, after any operation and after a crash; a
//! limit that threads exceed together; a transfer that fails half-way. The judge is e2fsck, which
//! counts anew.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use uext4::config::DataMode;
use uext4::quota::{Counted, QuotaEntry, QuotaKind};
use uext4::{AllocateMode, InodeRef, MountOptions, NewInode, Owner, SetAttr, Volume, as_user};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;

fn owned(uid: u32, gid: u32) -> NewInode {
    NewInode { owner: Owner { uid, gid }, ..new(FileKind::Regular, 0o644) }
}

fn limited(device: &Arc<MemoryDevice>, projects: bool) -> Volume {
    let options = MountOptions { quota_limits: [true, true, projects], ..MountOptions::default() };
    Volume::open(device.clone(), options).unwrap()
}

fn limits(id: u32, soft: u64, hard: u64, inodes: u64) -> QuotaEntry {
    QuotaEntry {
        id,
        space: Counted { soft, hard, ..Counted::default() },
        inodes: Counted { hard: inodes, ..Counted::default() },
    }
}

fn write(volume: &Volume, file: &InodeRef, at: u64, bytes: &[u8]) -> uext4::Result<usize> {
    volume.open_file(file)?.write_at(at, bytes)
}

fn entry(volume: &Volume, kind: QuotaKind, id: u32) -> QuotaEntry {
    let (_, entries) = volume.quota(kind).unwrap().unwrap();
    entries.into_iter().find(|entry| entry.id == id).unwrap_or_default()
}

fn errno<T>(result: uext4::Result<T>) -> i32 {
    result.map_err(|error| error.errno()).err().unwrap_or(0)
}

#[test]
fn usage_is_the_sum_of_the_inodes() {
    if !have("mke2fs") {
        return;
    }
    for options in ["-b 1024 -O quota,project", "-b 4096 -O quota,^extent,^64bit"] {
        let device = Arc::new(mke2fs(32, options));
        let volume = mount(&device);
        assert!(!volume.read_only(), "{:?}", volume.read_only_reason());
        let root = volume.root().unwrap();
        let mut files: Vec<InodeRef> = Vec::new();
        for n in 0..40_u32 {
            let uid = n % 7 * 0x0101_0101;
            let name = format!("f{n}");
            let file = volume.create(&root, name.as_bytes(), &owned(uid, n % 3 * 500)).unwrap();
            write(&volume, &file, u64::from(n % 5) * 70_000, &vec![7; 3000 * n as usize]).unwrap();
            files.push(file);
        }
        volume.symlink(&root, b"slow", &[b'x'; 300], Owner { uid: 9, gid: 9 }).unwrap();
        let directory =
            NewInode { owner: Owner { uid: 9, gid: 8 }, ..new(FileKind::Directory, 0o755) };
        let dir = volume.create(&root, b"dir", &directory).unwrap();
        for n in 0..300 {
            volume
                .create(&dir, format!("a rather long name {n}").as_bytes(), &owned(5, 5))
                .unwrap();
        }
        let value = vec![3; 700];
        volume.xattr_set(&files[3], b"user.long", &value, uext4::XattrMode::Any).unwrap();
        for file in &files[..20] {
            volume.set_attr(file, &SetAttr { uid: Some(77), ..SetAttr::default() }).unwrap();
        }
        volume.sync().unwrap();
        for file in &files[10..30] {
            volume.set_attr(file, &SetAttr { gid: Some(99), ..SetAttr::default() }).unwrap();
        }
        for n in (0..40).step_by(3) {
            volume.unlink(&root, format!("f{n}").as_bytes()).unwrap();
        }
        for file in files.iter().step_by(4) {
            let size = Some(5000);
            volume.set_attr(file, &SetAttr { size, ..SetAttr::default() }).unwrap();
        }
        drop((files, root, dir));
        volume.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn threads_do_not_exceed_limits_together() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096 -O quota"));
    let volume = limited(&device, false);
    let (space, inodes) = (2 << 20, 40);
    for uid in [1000, 1001] {
        volume.set_quota_limits(QuotaKind::User, &limits(uid, 0, space, inodes)).unwrap();
    }
    let root = volume.root().unwrap();
    let all_refused = &AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..16_u32 {
            let (volume, root) = (&volume, &root);
            scope.spawn(move || {
                as_user(|| {
                    let uid = 1000 + thread % 2;
                    let (mut refused, mut bytes) = (0, 0);
                    for n in 0..12 {
                        let name = format!("t{thread} {n}");
                        let file = match volume.create(root, name.as_bytes(), &owned(uid, 100)) {
                            Ok(file) => file,
                            Err(error) => {
                                assert_eq!(error.errno(), libc::EDQUOT);
                                refused += 1;
                                continue;
                            }
                        };
                        // Five runs at most, so that no file has a node, which is not limited.
                        for at in 0..3 {
                            match write(volume, &file, at * 65536, &[1; 30_000]) {
                                Ok(_) => bytes += 30_000,
                                Err(error) => {
                                    assert_eq!(error.errno(), libc::EDQUOT);
                                    refused += 1;
                                    let mode = AllocateMode::Allocate { keep_size: false };
                                    let more = volume.open_file(&file).unwrap().allocate(
                                        mode,
                                        1 << 20,
                                        900_000,
                                    );
                                    assert!([0, libc::EDQUOT].contains(&errno(more)));
                                }
                            }
                        }
                        volume.open_file(&file).unwrap().sync(false).unwrap();
                    }
                    assert!(bytes > 0 || refused > 0);
                    all_refused.fetch_add(refused, Ordering::Relaxed);
                });
            });
        }
    });
    assert!(all_refused.load(Ordering::Relaxed) > 0);
    for uid in [1000, 1001] {
        let entry = entry(&volume, QuotaKind::User, uid);
        assert!(entry.space.used <= space && entry.inodes.used <= inodes, "{entry:?}");
        assert!(entry.space.used > space / 2, "{entry:?}");
    }
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn limits_hold_for_transfers_and_end_with_grace() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -O quota,project"));
    let volume = limited(&device, true);
    let root = volume.root().unwrap();
    let file = volume.create(&root, b"file", &owned(1, 1)).unwrap();
    write(&volume, &file, 0, &[5; 100_000]).unwrap();
    volume.set_quota_limits(QuotaKind::User, &limits(2, 0, 50_000, 0)).unwrap();
    volume.set_quota_limits(QuotaKind::Project, &limits(6, 0, 0, 1)).unwrap();
    volume.set_quota_limits(QuotaKind::User, &limits(3, 10_240, 0, 0)).unwrap();
    let give =
        |uid| errno(volume.set_attr(&file, &SetAttr { uid: Some(uid), ..SetAttr::default() }));
    as_user(|| {
        assert_eq!(give(2), libc::EDQUOT);
        volume.open_file(&file).unwrap().sync(false).unwrap();
        assert_eq!(give(2), libc::EDQUOT);
        let other = volume.create(&root, b"other", &owned(3, 1)).unwrap();
        assert_eq!(errno(volume.set_project_id(&other, 6)), 0);
        assert_eq!(errno(volume.set_project_id(&file, 6)), libc::EDQUOT);
        write(&volume, &other, 0, &[5; 30_000]).unwrap();
        volume.open_file(&other).unwrap().sync(false).unwrap();
        assert!(entry(&volume, QuotaKind::User, 3).space.deadline > 0);
        write(&volume, &other, 40_000, &[5; 3000]).unwrap();
    });
    // Root is not limited.
    assert_eq!(give(2), 0);
    assert_eq!(entry(&volume, QuotaKind::User, 1).inodes.used, 0);
    volume.set_quota_grace(QuotaKind::User, 0, 0).unwrap();
    volume.set_quota_limits(QuotaKind::User, &limits(4, 10_240, 0, 0)).unwrap();
    as_user(|| {
        let third = volume.create(&root, b"third", &owned(4, 1)).unwrap();
        let written = write(&volume, &third, 0, &[5; 30_000]).unwrap();
        assert!((5_000..=10_240).contains(&written), "{written}");
        let rest = vec![5; 10_240 - written];
        assert_eq!(write(&volume, &third, written as u64, &rest).unwrap(), rest.len());
        assert_eq!(errno(write(&volume, &third, 10_240, &[5])), libc::EDQUOT);
    });
    drop((root, file));
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_damaged_quota_file_is_refused_and_changes_nothing() {
    use uext4_device::Device;
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -O quota"));
    let mut before = vec![0; 16 << 20];
    device.read_at(0, &mut before).unwrap();
    let magic = 0xd9c0_1f11_u32.to_le_bytes();
    let at = before.windows(4).position(|word| word == magic).unwrap();
    device.write_at(at as u64, &[0]).unwrap();
    device.read_at(0, &mut before).unwrap();
    let error = Volume::open(device.clone(), MountOptions::default()).unwrap_err().to_string();
    assert!(error.contains("quota file"), "{error}");
    let mut after = vec![0; 16 << 20];
    device.read_at(0, &mut after).unwrap();
    assert!(before == after);
    Volume::open(device, MountOptions { read_only: true, ..MountOptions::default() }).unwrap();
}

#[test]
fn the_quota_file_is_no_file_of_a_user() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 1024 -O quota,^metadata_csum"));
    let volume = mount(&device);
    let file = volume.create(&volume.root().unwrap(), b"file", &owned(1, 1)).unwrap();
    let ino = file.ino().get();
    drop(file);
    volume.close().unwrap();
    let users_at = 1024 + std::mem::offset_of!(uext4_ondisk::RawSuperblock, s_usr_quota_inum);
    uext4_device::Device::write_at(&*device, users_at as u64, &ino.to_le_bytes()).unwrap();
    let error = Volume::open(device, MountOptions::default()).unwrap_err().to_string();
    assert!(error.contains("not an inode of the file system's own"), "{error}");
}

/// A mapping that is being inserted must not count twice: as what is held for it, and as usage.
#[test]
fn blocks_do_not_count_twice_while_they_are_mapped() {
    if !have("mke2fs") {
        return;
    }
    // With the bytes of what a node of an extent tree takes.
    let shapes = [("-b 4096 -O quota", 4096), ("-b 4096 -C 16384 -O quota,bigalloc", 16384)];
    let ways = |shape| (0..4).map(move |way| (shape, way));
    for ((shape, node), way) in shapes.into_iter().flat_map(ways) {
        let device = Arc::new(mke2fs(64, shape));
        let data_mode = if way == 1 { DataMode::Journal } else { DataMode::Ordered };
        let quota_limits = [true, true, false];
        let options = MountOptions { quota_limits, data_mode, ..MountOptions::default() };
        let volume = Volume::open(device.clone(), options).unwrap();
        // The large file may come to lie in many pieces, whose tree has a node.
        let all = (1 << 20) + 4 * 16384 + node;
        volume.set_quota_limits(QuotaKind::User, &limits(1000, 0, all, 0)).unwrap();
        map_beside_others(&volume, way);
        volume.close().unwrap();
        assert_clean(&device);
    }
}

/// Writes a file of 1 MiB again and again, and beside it four of 16 KiB.
fn map_beside_others(volume: &Volume, way: u32) {
    let root = volume.root().unwrap();
    let file = volume.create(&root, b"large", &owned(1000, 1000)).unwrap();
    let others: Vec<_> = (0..4)
        .map(|n| volume.create(&root, format!("{n}").as_bytes(), &owned(1000, 1000)).unwrap())
        .collect();
    let empty = |file: &InodeRef| {
        volume.set_attr(file, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    };
    let (is_over, empty) = (&AtomicBool::new(false), &empty);
    std::thread::scope(|scope| {
        let file = &file;
        scope.spawn(move || {
            let open = volume.open_file(file).unwrap();
            let written = (0..100).try_for_each(|round| {
                let bytes = vec![round; 1 << 20];
                as_user(|| match way {
                    2 => open.write_direct_at(0, &bytes).map(drop),
                    3 => open.allocate(AllocateMode::Allocate { keep_size: false }, 0, 1 << 20),
                    _ => open.write_at(0, &bytes).map(drop),
                })?;
                open.sync(false)?;
                empty(file);
                Ok::<_, uext4::Error>(())
            });
            is_over.store(true, Ordering::Relaxed);
            written.unwrap();
        });
        for other in &others {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let written = as_user(|| write(volume, other, 0, &[1; 16384]));
                    empty(other);
                    if written.is_err() {
                        is_over.store(true, Ordering::Relaxed);
                    }
                    written.unwrap();
                }
            });
        }
    });
}

#[test]
fn more_owners_than_stay_in_memory_keep_their_limits() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096 -N 16000 -O quota"));
    let volume = limited(&device, false);
    volume.set_quota_limits(QuotaKind::User, &limits(7, 0, 1 << 16, 0)).unwrap();
    let root = volume.root().unwrap();
    let file = volume.create(&root, b"file", &owned(7, 7)).unwrap();
    write(&volume, &file, 0, &[1; 1 << 15]).unwrap();
    for uid in 0..9_000 {
        let other = volume.create(&root, b"other", &owned(100 + uid, 0)).unwrap();
        drop(other);
        volume.unlink(&root, b"other").unwrap();
    }
    assert_eq!(errno(as_user(|| write(&volume, &file, 1 << 15, &[1; 1 << 15]))), 0);
    assert_eq!(errno(as_user(|| write(&volume, &file, 1 << 16, &[1; 4096]))), 122);
    drop((root, file));
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn a_write_that_meets_a_limit_is_short() {
    if !have("mke2fs") {
        return;
    }
    let room = 256 << 10;
    for direct in [false, true] {
        let device = Arc::new(mke2fs(64, "-b 4096 -O quota"));
        let volume = limited(&device, false);
        volume.set_quota_limits(QuotaKind::User, &limits(1000, 0, room, 0)).unwrap();
        let root = volume.root().unwrap();
        let inode = volume.create(&root, b"file", &owned(1000, 1000)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        let bytes = vec![7; 1 << 20];
        let mut at = 0;
        let refused = as_user(|| {
            loop {
                let written = match direct {
                    true => file.write_direct_at(at, &bytes),
                    false => file.write_at(at, &bytes),
                };
                match written {
                    Ok(written) => at += written as u64,
                    Err(error) => break error,
                }
            }
        });
        assert_eq!((refused.errno(), at), (libc::EDQUOT, room), "{direct}");
        file.sync(false).unwrap();
        drop((file, inode, root));
        volume.close().unwrap();
        assert_clean(&device);
    }
}
