//! Quota of values in inodes of their own (quota with ea_inode).
//!
//! Fault model: a value that counts for nobody, twice or for its former owner: after it is set,
//! shared, replaced or removed, after its file changes owners, is deleted or is an orphan, and
//! after a change that fails half way; a limit that a value passes; usage in the log that is not
//! that of the inodes in the log. The judge is e2fsck, which counts anew, and the usage that the
//! kernel's rules give. Not covered: crashes between the steps of a change (the crash kit,
//! `--format ea_inode_quota`).

mod common;

use common::{assert_clean, e2fsck, have, mke2fs, mount, new};
use std::collections::BTreeSet;
use std::sync::Arc;
use uext4::quota::{Counted, QuotaEntry, QuotaKind};
use uext4::{InodeRef, MountOptions, NewInode, Owner, SetAttr, Volume, XattrMode, as_user};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;

fn create(volume: &Volume, name: &str, uid: u32) -> InodeRef {
    let owner = Owner { uid, gid: uid };
    let new = NewInode { owner, ..new(FileKind::Regular, 0o644) };
    volume.create(&volume.root().unwrap(), name.as_bytes(), &new).unwrap()
}

fn unlink(volume: &Volume, name: &str) {
    volume.unlink(&volume.root().unwrap(), name.as_bytes()).unwrap();
}

/// The number of the error, or 0.
fn set(volume: &Volume, inode: &InodeRef, name: &str, value: &[u8]) -> i32 {
    let result = volume.xattr_set(inode, name.as_bytes(), value, XattrMode::Any);
    result.map_err(|error| error.errno()).err().unwrap_or(0)
}

fn give(volume: &Volume, inode: &InodeRef, uid: u32) -> i32 {
    let change = SetAttr { uid: Some(uid), gid: Some(uid), ..SetAttr::default() };
    volume.set_attr(inode, &change).map_err(|error| error.errno()).err().unwrap_or(0)
}

/// Space, in KiB, and inodes of an owner.
fn used(volume: &Volume, kind: QuotaKind, id: u32) -> (u64, u64) {
    let (_, entries) = volume.quota(kind).unwrap().unwrap();
    let entry = entries.into_iter().find(|entry| entry.id == id).unwrap_or_default();
    (entry.space.used / 1024, entry.inodes.used)
}

fn user(volume: &Volume, id: u32) -> (u64, u64) {
    used(volume, QuotaKind::User, id)
}

fn limited(device: &Arc<MemoryDevice>) -> Volume {
    let options = MountOptions { quota_limits: [true, true, false], ..MountOptions::default() };
    Volume::open(device.clone(), options).unwrap()
}

fn limit(volume: &Volume, id: u32, space: u64, inodes: u64) {
    let hard = |hard| Counted { hard, ..Counted::default() };
    let entry = QuotaEntry { id, space: hard(space), inodes: hard(inodes) };
    volume.set_quota_limits(QuotaKind::User, &entry).unwrap();
}

#[test]
fn each_reference_counts_for_the_owners_of_the_file() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -O ea_inode,quota,project"));
    let volume = mount(&device);
    assert!(!volume.read_only(), "{:?}", volume.read_only_reason());
    let (one, two) = (create(&volume, "one", 1), create(&volume, "two", 2));
    assert_eq!(set(&volume, &one, "user.a", &[1; 3000]), 0);
    assert_eq!((user(&volume, 1), user(&volume, 2)), ((3, 2), (0, 1)));
    // Shared by another owner, and by a second attribute.
    for name in ["user.a", "user.b"] {
        assert_eq!(set(&volume, &two, name, &[1; 3000]), 0);
    }
    assert_eq!((user(&volume, 1), user(&volume, 2)), ((3, 2), (6, 3)));
    assert_eq!(give(&volume, &two, 3), 0);
    assert_eq!((user(&volume, 2), user(&volume, 3)), ((0, 0), (6, 3)));
    volume.set_project_id(&two, 9).unwrap();
    assert_eq!(used(&volume, QuotaKind::Project, 9), (6, 3));
    // The value began with the first owner, and its last references are another's.
    drop(one);
    unlink(&volume, "one");
    assert_eq!(user(&volume, 1), (0, 0));
    assert_eq!(set(&volume, &two, "user.b", &[2; 5000]), 0);
    assert_eq!(user(&volume, 3), (8, 3));
    volume.xattr_remove(&two, b"user.a").unwrap();
    assert_eq!((user(&volume, 1), user(&volume, 3)), ((0, 0), (5, 2)));
    drop(two);
    volume.close().unwrap();
    assert_clean(&device);
    // From the device: what a file has is counted before its owner changes.
    let volume = mount(&device);
    let two = volume.lookup(&volume.root().unwrap(), b"two").unwrap();
    assert_eq!(give(&volume, &two, 4), 0);
    assert_eq!((user(&volume, 3), user(&volume, 4)), ((0, 0), (5, 2)));
    drop(two);
    unlink(&volume, "two");
    assert_eq!((user(&volume, 4), used(&volume, QuotaKind::Project, 9)), ((0, 0), (0, 0)));
    volume.close().unwrap();
    assert_clean(&device);
}

#[test]
fn limits_refuse_values_before_anything_changes() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -O ea_inode,quota"));
    let volume = limited(&device);
    limit(&volume, 1, 20 << 10, 4);
    limit(&volume, 3, 0, 2);
    let (one, two) = (create(&volume, "one", 1), create(&volume, "two", 2));
    as_user(|| {
        for (name, byte) in [("user.a", 1), ("user.b", 2)] {
            assert_eq!(set(&volume, &one, name, &[byte; 5000]), 0);
        }
        assert_eq!(user(&volume, 1), (10, 3));
        let free = volume.stat_fs().inodes_free;
        // Too much space; a value of another owner, too; an inode too many.
        assert_eq!(set(&volume, &two, "user.a", &[3; 12_000]), 0);
        for byte in [3, 4] {
            assert_eq!(set(&volume, &one, "user.c", &[byte; 12_000]), libc::EDQUOT);
        }
        assert_eq!(set(&volume, &one, "user.c", &[1; 5000]), 0);
        assert_eq!(set(&volume, &one, "user.d", &[1; 2000]), libc::EDQUOT);
        assert_eq!(user(&volume, 1), (15, 4));
        assert_eq!(volume.stat_fs().inodes_free, free - 1, "inodes of no value");
        // A file with three values has four inodes.
        assert_eq!(give(&volume, &one, 3), libc::EDQUOT);
        assert_eq!(give(&volume, &two, 3), 0);
        assert_eq!((user(&volume, 2), user(&volume, 3)), ((0, 0), (12, 2)));
        volume.xattr_remove(&one, b"user.a").unwrap();
        assert_eq!(set(&volume, &one, "user.d", &[1; 2000]), 0);
    });
    // Root is not limited.
    assert_eq!(set(&volume, &one, "user.e", &[6; 9000]), 0);
    assert_eq!(user(&volume, 1), (21, 5));
    drop((one, two));
    volume.close().unwrap();
    assert_clean(&device);
}

/// Of a file without a name that is no longer in use, and that no call has deleted yet.
#[test]
fn room_of_what_is_to_be_deleted_is_free() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 1024 -O ea_inode,quota"));
    let volume = limited(&device);
    limit(&volume, 1, 20 << 10, 0);
    let (one, old) = (create(&volume, "one", 1), create(&volume, "old", 1));
    as_user(|| {
        assert_eq!(set(&volume, &old, "user.a", &[1; 15_000]), 0);
        unlink(&volume, "old");
        assert_eq!(set(&volume, &one, "user.a", &[2; 12_000]), libc::EDQUOT, "it is in use");
        drop(old);
        assert_eq!(set(&volume, &one, "user.a", &[2; 12_000]), 0);
    });
    assert_eq!(user(&volume, 1), (12, 2));
    drop(one);
    volume.close().unwrap();
    assert_clean(&device);
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// One random change of files with values.
fn change(volume: &Volume, state: &mut u64, files: &mut BTreeSet<String>, projects: bool) {
    let (name, uid) = (format!("f{}", random(state) % 12), random(state) as u32 % 4 + 1);
    if !files.contains(&name) {
        create(volume, &name, uid);
        files.insert(name);
        return;
    }
    let inode = volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap();
    let attribute = format!("user.n{}", random(state) % 5);
    match random(state) % 12 {
        0 => {
            drop(inode);
            unlink(volume, &name);
            files.remove(&name);
        }
        1 | 2 => assert_eq!(give(volume, &inode, uid), 0),
        3 if projects => volume.set_project_id(&inode, uid + 10).unwrap(),
        4 | 5 => _ = volume.xattr_remove(&inode, attribute.as_bytes()),
        6 => _ = volume.open_file(&inode).unwrap().write_at(0, &[7; 3000]).unwrap(),
        _ => {
            const LENGTHS: [usize; 6] = [30, 700, 969, 5000, 12_345, 33_000];
            let value = vec![uid as u8; LENGTHS[random(state) as usize % LENGTHS.len()]];
            assert!([0, libc::ENOSPC].contains(&set(volume, &inode, &attribute, &value)));
        }
    }
}

/// A crash after a sync: what the log has is repeated, and orphans are deleted.
fn assert_clean_after_crash(device: &MemoryDevice, what: &str) {
    let crashed = Arc::new(device.snapshot());
    mount(&crashed).close().unwrap();
    let (code, text) = e2fsck(&crashed, "-fn");
    assert_eq!(code, 0, "{what}:\n{text}");
}

#[test]
fn usage_is_what_e2fsck_counts() {
    if !have("mke2fs") {
        return;
    }
    let shapes = [
        "-b 1024 -O ea_inode,quota,project",
        "-b 4096 -I 1024 -O ea_inode,quota,project,inline_data",
        "-b 1024 -I 128 -O ea_inode,quota,^extent,^64bit,^metadata_csum,^orphan_file",
        "-b 1024 -C 8192 -O ea_inode,quota,project,bigalloc",
    ];
    for (seed, shape) in (1_u64..).zip(shapes) {
        let device = Arc::new(mke2fs(48, shape));
        let (mut state, mut files) = (seed * 0x9e37_79b9, BTreeSet::new());
        let mut volume = mount(&device);
        for step in 1..=300 {
            change(&volume, &mut state, &mut files, shape.contains("project"));
            if step % 100 == 0 {
                let name = files.pop_first().unwrap();
                let inode = volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap();
                _ = set(&volume, &inode, "user.n0", &[8; 6000]);
                unlink(&volume, &name);
                volume.sync().unwrap();
                assert_clean_after_crash(&device, shape);
                drop(inode);
                volume.close().unwrap();
                volume = mount(&device);
            }
        }
        volume.close().unwrap();
        assert_clean(&device);
        let volume = mount(&device);
        files.iter().for_each(|name| unlink(&volume, name));
        for id in (1..5).chain(11..15) {
            assert_eq!(user(&volume, id), (0, 0), "{shape}");
        }
        volume.close().unwrap();
        assert_clean(&device);
    }
}
