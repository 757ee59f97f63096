//! Inodes by number, while others create and delete them.
//!
//! Fault model: any schedule of a look-up by number beside a creation of that number. Checked: a
//! look-up finds no inode that is half made, and puts none into memory for others to find. Not
//! covered: look-ups of numbers that a hostile image names.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::{SetAttr, Volume};
use uext4_ondisk::{FileKind, Ino};

const ROUNDS: usize = 4000;

/// Thread A makes and removes directories; thread B asks for the numbers that they have.
#[test]
fn an_inode_that_is_being_created_is_not_found_by_its_number() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(64, "-N 8192"));
    let volume = mount(&memory);
    let root = volume.root().unwrap();
    let first = volume.create(&root, b"first", &new(FileKind::Directory, 0o755)).unwrap().ino();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // The lowest free number goes first, so these are used again and again.
                for step in 1..=3 {
                    if let Ok(inode) = volume.inode(Ino(first.get() + step)) {
                        assert!(volume.attr(&inode).size > 0, "half of inode {}", inode.ino());
                    }
                }
            }
        });
        let wrong = make_and_remove(&volume);
        over.store(true, Ordering::Relaxed);
        assert_eq!(wrong, 0, "directories without content");
    });
    drop(root);
    volume.close().unwrap();
    assert_clean(&memory);
}

/// Returns how many of the new directories are not what was made.
fn make_and_remove(volume: &Volume) -> usize {
    let root = volume.root().unwrap();
    let mut wrong = 0;
    for round in 0..ROUNDS {
        let names = [0, 1, 2].map(|n| format!("d{round}.{n}"));
        for name in &names {
            let made = volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755));
            let ino = made.unwrap().ino();
            let found = volume.inode(ino).expect("it exists");
            let mode = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            let attr = volume.set_attr(&found, &mode).unwrap();
            let mut entries = 0;
            let listed = volume.read_dir(&found, 0, &mut |_| {
                entries += 1;
                true
            });
            wrong += usize::from(attr.size == 0 || listed.is_err() || entries != 2);
        }
        for name in &names {
            volume.rmdir(&root, name.as_bytes()).unwrap();
        }
    }
    wrong
}
