//! Every kind of operation on images by mke2fs, checked by e2fsck and read back after a remount.
//!
//! Fault model: none; these are the plain paths. Crashes are the business of `uext4-sim`.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::sync::Arc;
use uext4::{AllocateMode, RenameMode, SetAttr, SetTime, Volume, XattrMode};
use uext4_ondisk::{FileKind, Timestamp};

/// Shapes of file systems that every test runs on.
const SHAPES: [&str; 5] = [
    "-b 4096",
    "-b 4096 -O orphan_file,metadata_csum_seed",
    "-b 1024 -I 128",
    "-b 2048 -O ^metadata_csum,uninit_bg,^64bit",
    "-b 4096 -I 512 -O ^metadata_csum,^flex_bg,^resize_inode,sparse_super2",
];

fn on_every_shape(mib: u64, test: impl Fn(&Arc<uext4_device::MemoryDevice>)) {
    if !have("mke2fs") {
        return;
    }
    for shape in SHAPES {
        println!("shape {shape}");
        let device = Arc::new(mke2fs(mib, shape));
        test(&device);
        assert_clean(&device);
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed * 7 + i / 251) % 256) as u8).collect()
}

fn names(volume: &Volume, dir: &uext4::InodeRef) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    volume
        .read_dir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
    names.sort();
    names
}

#[test]
fn mount_and_close_change_nothing_that_e2fsck_sees() {
    on_every_shape(16, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let expect: [&[u8]; 3] = [b".", b"..", b"lost+found"];
        assert_eq!(names(&volume, &root), expect);
        drop(root);
        volume.close().unwrap();
    });
}

#[test]
fn files_read_back_after_a_remount() {
    on_every_shape(32, |device| {
        let sizes = [0, 1, 100, 4095, 4096, 4097, 70_000, 3_000_000];
        let volume = mount(device);
        let root = volume.root().unwrap();
        for (i, &size) in sizes.iter().enumerate() {
            let name = format!("file{i}");
            let inode =
                volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
            let file = volume.open_file(&inode).unwrap();
            let data = pattern(size, i);
            for (k, part) in data.chunks(10_000).enumerate() {
                assert_eq!(file.write_at(k as u64 * 10_000, part).unwrap(), part.len());
            }
            if i % 2 == 0 {
                file.sync(false).unwrap();
            }
        }
        drop(root);
        volume.close().unwrap();
        assert_clean(device);
        let volume = mount(device);
        let root = volume.root().unwrap();
        for (i, &size) in sizes.iter().enumerate() {
            let inode = volume.lookup(&root, format!("file{i}").as_bytes()).unwrap();
            assert_eq!(volume.attr(&inode).size, size as u64);
            let mut data = vec![0; size + 10];
            let read = volume.open_file(&inode).unwrap().read_at(0, &mut data).unwrap();
            assert_eq!(read, size);
            assert!(data[..size] == pattern(size, i)[..], "content of file{i}");
        }
        drop(root);
        volume.close().unwrap();
    });
}

#[test]
fn sparse_files_truncation_and_ranges() {
    on_every_shape(32, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let inode = volume.create(&root, b"sparse", &new(FileKind::Regular, 0o600)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        let mut model = vec![0_u8; 1_000_000];
        let mut write = |at: usize, len: usize, seed: usize| {
            let data = pattern(len, seed);
            model[at..at + len].copy_from_slice(&data);
            file.write_at(at as u64, &data).unwrap();
        };
        write(999_000, 1000, 1);
        write(50_000, 5000, 2);
        write(300_123, 77_777, 3);
        file.sync(true).unwrap();
        assert_eq!(file.seek_data(0).unwrap() / 4096, 50_000 / 4096);
        let size =
            |size| volume.set_attr(&inode, &SetAttr { size: Some(size), ..SetAttr::default() });
        size(310_001).unwrap();
        size(1_000_000).unwrap();
        model[310_001..].fill(0);
        file.allocate(AllocateMode::PunchHole, 51_111, 2222).unwrap();
        model[51_111..53_333].fill(0);
        file.allocate(AllocateMode::Allocate { keep_size: false }, 400_000, 200_000).unwrap();
        file.write_at(450_007, &pattern(10_000, 4)).unwrap();
        model[450_007..460_007].copy_from_slice(&pattern(10_000, 4));
        file.sync(false).unwrap();
        file.allocate(AllocateMode::ZeroRange { keep_size: true }, 305_000, 150_000).unwrap();
        model[305_000..455_000].fill(0);
        let check = |volume: &Volume| {
            let inode = volume.lookup(&volume.root().unwrap(), b"sparse").unwrap();
            let mut data = vec![1; 1_000_001];
            let read = volume.open_file(&inode).unwrap().read_at(0, &mut data).unwrap();
            assert_eq!(read, model.len());
            if let Some(at) = (0..read).find(|&i| data[i] != model[i]) {
                panic!("byte {at} is {}, want {}", data[at], model[at]);
            }
        };
        check(&volume);
        drop((file, inode, root));
        volume.close().unwrap();
        let volume = mount(device);
        check(&volume);
        volume.close().unwrap();
    });
}

#[test]
fn names_links_and_renames() {
    on_every_shape(32, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let dir =
            |name: &[u8]| volume.create(&root, name, &new(FileKind::Directory, 0o755)).unwrap();
        let (a, b) = (dir(b"a"), dir(b"b"));
        let file = volume.create(&a, b"file", &new(FileKind::Regular, 0o644)).unwrap();
        volume.link(&file, &b, b"hard").unwrap();
        assert_eq!(volume.attr(&file).links, 2);
        let owner = uext4::Owner::default();
        let fast = volume.symlink(&a, b"fast", b"target", owner).unwrap();
        let long = vec![b'x'; 900];
        let slow = volume.symlink(&a, b"slow", &long, owner).unwrap();
        assert_eq!(volume.read_link(&fast).unwrap(), b"target");
        assert_eq!(volume.read_link(&slow).unwrap(), long);
        volume.rename(&a, b"file", &b, b"moved", RenameMode::Replace).unwrap();
        volume.rename(&b, b"hard", &b, b"moved", RenameMode::Replace).unwrap();
        let sub = volume.create(&a, b"sub", &new(FileKind::Directory, 0o755)).unwrap();
        volume.rename(&a, b"sub", &b, b"sub", RenameMode::NoReplace).unwrap();
        assert_eq!((volume.attr(&a).links, volume.attr(&b).links), (2, 3));
        assert_eq!(volume.lookup(&sub, b"..").unwrap().ino(), b.ino());
        let into_itself = volume.rename(&root, b"b", &sub, b"x", RenameMode::Replace);
        assert_eq!(into_itself.unwrap_err().errno(), libc::EINVAL);
        volume.rename(&b, b"sub", &a, b"fast", RenameMode::Exchange).unwrap();
        assert_eq!((volume.attr(&a).links, volume.attr(&b).links), (3, 2));
        assert_eq!(volume.rmdir(&root, b"a").unwrap_err().errno(), libc::ENOTEMPTY);
        volume.rmdir(&a, b"fast").unwrap();
        volume.unlink(&a, b"slow").unwrap();
        volume.rmdir(&root, b"a").unwrap();
        for (i, kind) in [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice].iter().enumerate()
        {
            let mut special = new(*kind, 0o600);
            special.rdev = uext4::Device { major: 259, minor: 70_000 };
            let inode = volume.create(&b, format!("s{i}").as_bytes(), &special).unwrap();
            if *kind == FileKind::CharDevice {
                assert_eq!(volume.attr(&inode).rdev, special.rdev);
            }
        }
        drop((a, b, file, fast, slow, sub, root));
        volume.close().unwrap();
    });
}

#[test]
fn a_large_directory_grows_and_empties() {
    on_every_shape(64, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let dir = volume.create(&root, b"many", &new(FileKind::Directory, 0o755)).unwrap();
        let name = |i: u32| format!("entry-{i:06}-with-a-name-of-some-length").into_bytes();
        for i in 0..3000 {
            volume.create(&dir, &name(i), &new(FileKind::Regular, 0o644)).unwrap();
        }
        assert_eq!(names(&volume, &dir).len(), 3002);
        for i in (0..3000).filter(|i| i % 3 != 0) {
            volume.unlink(&dir, &name(i)).unwrap();
        }
        for i in 0..3000 {
            assert_eq!(volume.lookup(&dir, &name(i)).is_ok(), i % 3 == 0, "entry {i}");
        }
        drop(dir);
        drop(root);
        volume.close().unwrap();
        assert_clean(device);
        let volume = mount(device);
        let root = volume.root().unwrap();
        let dir = volume.lookup(&root, b"many").unwrap();
        for i in (0..3000).filter(|i| i % 3 == 0) {
            volume.unlink(&dir, &name(i)).unwrap();
        }
        drop(dir);
        volume.rmdir(&root, b"many").unwrap();
        drop(root);
        volume.close().unwrap();
    });
}

#[test]
fn attributes_and_times() {
    on_every_shape(16, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let inode = volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
        let after_2038 = Timestamp { secs: 5_000_000_000, nanos: 123_456_789 };
        let change = SetAttr {
            mode: Some(0o4751),
            uid: Some(100_000),
            gid: Some(70_000),
            mtime: Some(SetTime::At(after_2038)),
            ..SetAttr::default()
        };
        volume.set_attr(&inode, &change).unwrap();
        let large = volume.layout().inode_size > 128;
        volume.xattr_set(&inode, b"user.small", b"value", XattrMode::Create).unwrap();
        let block_sized = pattern(volume.layout().block_size as usize / 2, 1);
        volume.xattr_set(&inode, b"user.block", &block_sized, XattrMode::Any).unwrap();
        drop((inode, root));
        volume.close().unwrap();
        let volume = mount(device);
        let root = volume.root().unwrap();
        let inode = volume.lookup(&root, b"f").unwrap();
        let attr = volume.attr(&inode);
        assert_eq!((attr.mode, attr.uid, attr.gid), (0o4751, 100_000, 70_000));
        if large {
            assert_eq!(attr.mtime, after_2038);
        }
        assert_eq!(volume.xattr_get(&inode, b"user.small").unwrap(), b"value");
        assert_eq!(volume.xattr_get(&inode, b"user.block").unwrap(), block_sized);
        volume.xattr_remove(&inode, b"user.block").unwrap();
        assert_eq!(volume.xattr_list(&inode).unwrap(), [b"user.small".to_vec()]);
        drop((inode, root));
        volume.close().unwrap();
    });
}

#[test]
fn a_file_unlinked_while_open_lives_until_it_is_closed() {
    on_every_shape(16, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let free = volume.stat_fs().blocks_free;
        let inode = volume.create(&root, b"f", &new(FileKind::Regular, 0o644)).unwrap();
        let file = volume.open_file(&inode).unwrap();
        let data = pattern(500_000, 9);
        file.write_at(0, &data).unwrap();
        file.sync(false).unwrap();
        volume.unlink(&root, b"f").unwrap();
        let mut read = vec![0; data.len()];
        assert_eq!(file.read_at(0, &mut read).unwrap(), data.len());
        assert!(read == data && volume.stat_fs().blocks_free < free);
        drop((file, inode));
        volume.delete_unlinked().unwrap();
        volume.sync().unwrap();
        assert_eq!(volume.stat_fs().blocks_free, free);
        drop(root);
        volume.close().unwrap();
    });
}

#[test]
fn a_crash_with_orphans_is_cleaned_at_the_next_mount() {
    on_every_shape(16, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let mut open = Vec::new();
        for i in 0..5 {
            let name = format!("f{i}");
            let inode =
                volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
            let file = volume.open_file(&inode).unwrap();
            file.write_at(0, &pattern(100_000, i)).unwrap();
            volume.unlink(&root, name.as_bytes()).unwrap();
            open.push((file, inode));
        }
        volume.sync().unwrap();
        volume.clone().abandon();
        drop((open, root, volume));
        let volume = mount(device);
        assert_eq!(volume.recovery().orphans, 5);
        assert!(volume.recovery().transactions > 0);
        volume.close().unwrap();
    });
}

/// The access list of xattr(7): version 2, then tag, permissions, id.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for &(tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn default_access_lists_are_inherited() {
    on_every_shape(16, |device| {
        let volume = mount(device);
        let root = volume.root().unwrap();
        let dir = volume.create(&root, b"d", &new(FileKind::Directory, 0o755)).unwrap();
        let all = u32::MAX;
        let list = acl(&[(1, 7, all), (2, 5, 1234), (4, 5, all), (0x10, 7, all), (0x20, 0, all)]);
        volume.xattr_set(&dir, b"system.posix_acl_default", &list, XattrMode::Any).unwrap();
        let file = volume.create(&dir, b"f", &new(FileKind::Regular, 0o664)).unwrap();
        assert_eq!(volume.attr(&file).mode, 0o660);
        let access = volume.xattr_get(&file, b"system.posix_acl_access").unwrap();
        let granted = [(1, 6, all), (2, 5, 1234), (4, 5, all), (0x10, 6, all), (0x20, 0, all)];
        assert_eq!(access, acl(&granted));
        let child = volume.create(&dir, b"c", &new(FileKind::Directory, 0o777)).unwrap();
        assert_eq!(volume.xattr_get(&child, b"system.posix_acl_default").unwrap(), list);
        drop((root, dir, file, child));
        volume.close().unwrap();
    });
}
