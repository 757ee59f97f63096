//! A rename over a file while its data is on the way to the device.
//!
//! Fault model: a device that sits on data writes; other threads use both directories meanwhile.
//! That the data is durable no later than the new name (D16) is for the crash states to show.

mod common;

use common::{gated, have, mke2fs, new, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::{FileKind, MountOptions, RenameMode, Volume};
use uext4_device::Gate;

/// The first bytes of each block of data.
const MARK: [u8; 16] = [0xd7; 16];

#[test]
fn directories_are_free_while_a_replacing_file_is_written() {
    if !have("mke2fs") {
        return;
    }
    for crosses in [false, true] {
        let gate = Arc::new(Gate::default());
        let device = gated(Arc::new(mke2fs(64, "-b 4096")), &gate, |request| {
            request.writes_any(|bytes| bytes.starts_with(&MARK))
        });
        let volume = Volume::open(device, MountOptions::default()).unwrap();
        let root = volume.root().unwrap();
        let regular = new(FileKind::Regular, 0o644);
        let from = volume.create(&root, b"from", &new(FileKind::Directory, 0o755)).unwrap();
        let to = match crosses {
            true => volume.create(&root, b"to", &new(FileKind::Directory, 0o755)).unwrap(),
            false => from.clone(),
        };
        let old = volume.create(&to, b"old", &regular).unwrap().ino();
        let inode = volume.create(&from, b"new", &regular).unwrap();
        let file = volume.open_file(&inode).unwrap();
        file.write_at(0, &[MARK[0]; 1 << 20]).unwrap();
        let others_are_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let opened = gate.close();
            let rename = scope
                .spawn(|| volume.rename(&from, b"new", &to, b"old", RenameMode::Replace).unwrap());
            wait_until("the data is on its way", || gate.is_met());
            scope.spawn(|| {
                for dir in [&from, &to] {
                    drop(volume.create(dir, b"another", &regular).unwrap());
                    volume.lookup(dir, b"another").unwrap();
                    volume.unlink(dir, b"another").unwrap();
                }
                // Nor is the right to move between directories held.
                drop(volume.create(&from, b"moves", &regular).unwrap());
                volume.rename(&from, b"moves", &to, b"moved", RenameMode::Replace).unwrap();
                others_are_done.store(true, Ordering::SeqCst);
            });
            wait_until("others go on", || others_are_done.load(Ordering::SeqCst));
            // Nothing leads to data that is not there.
            assert_eq!(volume.lookup(&to, b"old").unwrap().ino(), old);
            drop(opened);
            rename.join().unwrap();
        });
        assert_eq!(volume.lookup(&to, b"old").unwrap().ino(), inode.ino());
        assert!(volume.lookup(&from, b"new").is_err());
        assert_eq!(volume.stats().number("pages_dirty"), Some(0), "written before the name");
        volume.close().unwrap();
    }
}
