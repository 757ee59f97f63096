//! Files that are made without a name (`O_TMPFILE`), and their first link.
//!
//! Fault model: a crash at once after the operation and a sync, and a close while the file is in
//! use; with an orphan file and with the orphan list. The crash test's category `overlay` cuts
//! these operations anywhere.

mod common;

use common::{assert_clean, cut, have, mke2fs, mount, new};
use std::sync::Arc;
use uext4::{ErrorKind, InodeRef, Owner, Result, SetAttr, Volume, XattrMode};
use uext4_device::MemoryDevice;
use uext4_ondisk::{FileKind, InodeFlags};

const SHAPES: &[&str] = &["-b 1024 -O orphan_file", "-b 1024 -O ^orphan_file"];

fn each_shape(test: impl Fn(Arc<MemoryDevice>)) {
    if have("mke2fs") {
        SHAPES.iter().for_each(|shape| test(Arc::new(mke2fs(16, shape))));
    }
}

#[track_caller]
fn fails<T>(result: Result<T>, errno: i32) {
    assert_eq!(result.map_err(|error| error.errno()).err(), Some(errno));
}

fn make(volume: &Volume) -> InodeRef {
    volume.create_unlinked(&volume.root().unwrap(), &new(FileKind::Regular, 0o640)).unwrap()
}

fn free(volume: &Volume) -> (u64, u64) {
    volume.sync().unwrap();
    let stat = volume.stat_fs();
    (stat.blocks_free, stat.inodes_free)
}

#[test]
fn a_file_without_a_name_goes_with_its_last_user() {
    each_shape(|device| {
        let volume = mount(&device);
        let before = free(&volume);
        let file = make(&volume);
        let attr = volume.attr(&file);
        assert_eq!((attr.links, attr.mode, attr.uid), (0, 0o640, 1000));
        assert_eq!(volume.unlinked().held, 1);
        let open = volume.open_file(&file).unwrap();
        open.write_at(0, &[7; 9000]).unwrap();
        volume.xattr_set(&file, b"user.a", &[1; 300], XattrMode::Any).unwrap();
        open.sync(false).unwrap();
        volume.set_attr(&file, &cut(100)).unwrap();
        let mut bytes = [0; 200];
        assert_eq!(open.read_at(0, &mut bytes).unwrap(), 100);
        assert_eq!(volume.unlinked().held, 1, "a truncate does not take it off the orphans");
        fails(volume.inode(file.ino()), libc::ENOENT);
        assert_eq!(volume.inode_again(file.ino(), attr.generation).unwrap().ino(), file.ino());
        assert_ne!(free(&volume), before);
        drop((open, file));
        volume.delete_unlinked().unwrap();
        assert_eq!((free(&volume), volume.unlinked().held), (before, 0));
        volume.close().unwrap();
        assert_clean(&device);
    });
}

#[test]
fn closing_and_recovery_delete_it() {
    each_shape(|device| {
        let volume = mount(&device);
        let before = free(&volume);
        let file = make(&volume);
        volume.open_file(&file).unwrap().write_at(0, &[7; 9000]).unwrap();
        volume.sync().unwrap();
        let crashed = Arc::new(device.snapshot());
        volume.close().unwrap();
        drop(file);
        assert_clean(&device);
        let recovered = mount(&crashed);
        assert_eq!(recovered.recovery().orphans, 1);
        for volume in [recovered, mount(&device)] {
            assert_eq!(free(&volume), before);
            volume.close().unwrap();
        }
        assert_clean(&crashed);
    });
}

#[test]
fn a_link_gives_it_its_first_name() {
    each_shape(|device| {
        let volume = mount(&device);
        let root = volume.root().unwrap();
        // Neighbours on the list, before and behind.
        let before = make(&volume);
        let file = make(&volume);
        let behind = make(&volume);
        volume.open_file(&file).unwrap().write_at(0, b"content").unwrap();
        volume.link(&file, &root, b"first").unwrap();
        volume.link(&file, &root, b"second").unwrap();
        assert_eq!((volume.attr(&file).links, volume.unlinked().held), (2, 2));
        drop((before, behind));
        volume.delete_unlinked().unwrap();
        volume.sync().unwrap();
        let crashed = Arc::new(device.snapshot());
        drop((file, root));
        volume.close().unwrap();
        for device in [device, crashed] {
            let volume = mount(&device);
            assert_eq!(volume.recovery().orphans, 0);
            let found = volume.lookup(&volume.root().unwrap(), b"second").unwrap();
            let mut bytes = [0; 9];
            assert_eq!(volume.open_file(&found).unwrap().read_at(0, &mut bytes).unwrap(), 7);
            assert_eq!((&bytes[..7], volume.attr(&found).links), (&b"content"[..], 2));
            drop(found);
            volume.close().unwrap();
            assert_clean(&device);
        }
    });
}

#[test]
fn a_file_that_has_lost_its_last_name_gets_no_other() {
    each_shape(|device| {
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let made = make(&volume);
        let plain = volume.create(&root, b"plain", &new(FileKind::Regular, 0o644)).unwrap();
        fails(volume.link(&made, &root, b"plain"), libc::EEXIST);
        volume.link(&made, &root, b"made").unwrap();
        for (file, name) in [(made, "made"), (plain, "plain")] {
            volume.unlink(&root, name.as_bytes()).unwrap();
            fails(volume.link(&file, &root, b"again"), libc::ENOENT);
        }
        drop(root);
        volume.close().unwrap();
        assert_clean(&device);
    });
}

#[test]
fn it_inherits_what_a_created_file_inherits() {
    each_shape(|device| {
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let dir = volume.create(&root, b"dir", &new(FileKind::Directory, 0o2755)).unwrap();
        volume
            .set_attr(&dir, &SetAttr { gid: Some(77), mode: Some(0o2755), ..SetAttr::default() })
            .unwrap();
        // Owner rwx, user 5 rw, group rx, mask rwx, others r.
        let entry = |tag: u16, rights: u16, id: u32| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let list = [
            2_u32.to_le_bytes().to_vec(),
            entry(1, 7, none),
            entry(2, 6, 5),
            entry(4, 5, none),
            entry(0x10, 7, none),
            entry(0x20, 4, none),
        ]
        .concat();
        volume.xattr_set(&dir, b"system.posix_acl_default", &list, XattrMode::Any).unwrap();
        let description =
            uext4::NewInode { owner: Owner { uid: 9, gid: 9 }, ..new(FileKind::Regular, 0o666) };
        let linked = volume.create(&dir, b"linked", &description).unwrap();
        let made = volume.create_unlinked(&dir, &description).unwrap();
        let (of_linked, of_made) = (volume.attr(&linked), volume.attr(&made));
        assert_eq!((of_made.mode, of_made.gid, of_made.uid), (of_linked.mode, 77, 9));
        assert_eq!(of_made.flags & InodeFlags::EXTENTS, InodeFlags::EXTENTS);
        let acl = |inode| volume.xattr_get(inode, b"system.posix_acl_access").unwrap();
        assert_eq!(acl(&made), acl(&linked));
        volume.link(&made, &dir, b"made").unwrap();
        drop((root, dir, linked, made));
        volume.close().unwrap();
        assert_clean(&device);
    });
}

#[test]
fn only_regular_files_in_directories_that_exist() {
    each_shape(|device| {
        let volume = mount(&device);
        let root = volume.root().unwrap();
        for kind in [FileKind::Directory, FileKind::Symlink, FileKind::Fifo] {
            fails(volume.create_unlinked(&root, &new(kind, 0o644)), libc::EINVAL);
        }
        let regular = new(FileKind::Regular, 0o644);
        let dir = volume.create(&root, b"dir", &new(FileKind::Directory, 0o755)).unwrap();
        volume.rmdir(&root, b"dir").unwrap();
        fails(volume.create_unlinked(&dir, &regular), libc::EPERM);
        let file = volume.create(&root, b"file", &regular).unwrap();
        let refused = volume.create_unlinked(&file, &regular).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::NotADirectory);
    });
}
