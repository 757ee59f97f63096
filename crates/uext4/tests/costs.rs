//! What each call costs the device in flushes and FUA writes: the table of docs/durability.md.
//!
//! One caller, nothing else running: the commit interval is long, the log far from full.

mod common;

use common::{have, mke2fs, new};
use std::sync::Arc;
use uext4::{FileKind, MountOptions, Volume};
use uext4_device::{MeteredDevice, SharedDevice};

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
    let write = |byte: u8| {
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
