//! Inode tables that mke2fs has left as they were.
//!
//! Fault model: a device full of inodes of a file system that was there before; numbers that are
//! allocated and not used, since the name exists already or the power fails; thousands of them at a
//! time, with a journal that is small for that. Checked: e2fsck finds nothing, before and after a
//! replay; numbers that were never used are not found. Not covered: tables without group checksums,
//! which mke2fs always writes.

mod common;

use common::{arm, assert_clean, e2fsck, have, mount, new};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uext4::alloc::{Child, InodeAllocation};
use uext4::{ErrorKind, InodeRef, MountOptions, Volume};
use uext4_device::{FaultDevice, MemoryDevice, Operation, Times};
use uext4_ondisk::{FileKind, Ino};

/// A new file system whose inode table holds the files of an old one.
fn over_old_inodes() -> MemoryDevice {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    file.as_file().set_len(96 << 20).expect("size");
    let make = |options: &str, extended: &str| {
        let output = Command::new("/sbin/mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-N", "8192", "-b", "4096"])
            .args(options.split_whitespace())
            .args(["-E", extended])
            .arg(file.path())
            .output()
            .expect("mke2fs runs");
        assert!(output.status.success(), "{output:?}");
    };
    make("", "lazy_itable_init=0,lazy_journal_init=0");
    let old = Arc::new(MemoryDevice::load(file.path()).expect("image"));
    let volume = mount(&old);
    let root = volume.root().unwrap();
    for n in 0..2000 {
        let inode =
            volume.create(&root, format!("old{n}").as_bytes(), &new(FileKind::Regular, 0o644));
        if n % 8 == 0 {
            volume.open_file(&inode.unwrap()).unwrap().write_at(0, &[7; 9000]).unwrap();
        }
    }
    drop(root);
    volume.close().unwrap();
    old.save(file.path()).expect("image");
    // A log that was left as it was would be taken for a damaged one.
    make("", "lazy_itable_init=1,lazy_journal_init=0,nodiscard");
    MemoryDevice::load(file.path()).expect("image")
}

/// Creates names in `dir` until a number is left out, which another thread has allocated.
fn create_past_an_allocated_number(volume: &Volume, dir: &InodeRef, mut last: u32) {
    for n in 0..5000 {
        let name = format!("n{n}");
        let made = volume.create(dir, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
        if made.ino().get() > last + 1 {
            return;
        }
        last = made.ino().get();
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("no thread has allocated a number");
}

/// Runs `work` while another thread has allocated a number for a name that exists.
fn while_a_number_is_allocated(volume: &Volume, work: impl Fn()) {
    let root = volume.root().unwrap();
    let [locked, free] = [b"locked", b"free.."].map(|name| {
        // Their files come from one group: there is no other.
        volume.create(&root, name, &new(FileKind::Directory, 0o755)).unwrap()
    });
    volume.create(&locked, b"name", &new(FileKind::Regular, 0o644)).unwrap();
    // mke2fs writes the first blocks of the first table.
    let mut last = 0;
    for n in 0..40 {
        let name = format!("before{n}");
        let file = new(FileKind::Regular, 0o644);
        last = volume.create(&root, name.as_bytes(), &file).unwrap().ino().get();
    }
    let collisions = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let mut is_first = true;
        // A directory is locked while it is listed.
        let listed = volume.read_dir(&locked, 0, &mut |_| {
            if std::mem::take(&mut is_first) {
                scope.spawn(|| {
                    let made = volume.create(&locked, b"name", &new(FileKind::Regular, 0o644));
                    let error = made.expect_err("the name exists");
                    if *error.kind() == ErrorKind::Exists {
                        collisions.fetch_add(1, Ordering::SeqCst);
                    }
                });
                create_past_an_allocated_number(volume, &free, last);
                work();
            }
            true
        });
        listed.unwrap();
    });
    assert!(collisions.into_inner() <= 1);
}

#[test]
fn an_allocated_number_that_is_not_used_leaves_no_old_inode() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(over_old_inodes());
    let volume = mount(&memory);
    while_a_number_is_allocated(&volume, || ());
    volume.close().unwrap();
    assert_clean(&memory);
}

#[test]
fn a_number_allocated_at_a_power_failure_leaves_no_old_inode() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(over_old_inodes());
    let volume = mount(&memory);
    let copy = std::sync::Mutex::new(None);
    while_a_number_is_allocated(&volume, || {
        volume.sync().unwrap();
        *copy.lock().unwrap() = Some(memory.snapshot());
    });
    volume.abandon();
    let cut = copy.into_inner().unwrap().expect("a copy was taken");
    // The kernel and e2fsck replay; e2fsck then repairs nothing.
    let replayed = Arc::new(cut.snapshot());
    mount(&replayed).close().unwrap();
    assert_clean(&replayed);
    let (code, text) = e2fsck(&cut, "-fy");
    assert!(
        code <= 1 && !text.contains("FILE SYSTEM WAS MODIFIED") || !text.contains("Fix? yes"),
        "e2fsck repaired:\n{text}"
    );
}

/// Allocates numbers as so many concurrent creators do.
fn allocate(volume: &Volume, count: usize) -> Vec<InodeAllocation> {
    let one = |_| volume.space().allocate_inode(Ino::ROOT, Child::File).unwrap();
    (0..count).map(one).collect()
}

/// The slots in front of the last number are more than a transaction of this journal holds.
#[test]
fn thousands_of_concurrent_allocations_fit_a_small_journal() {
    if !have("mke2fs") {
        return;
    }
    let old = over_old_inodes();
    let memory = Arc::new(old.snapshot());
    let volume = mount(&memory);
    let per_block = volume.layout().inodes_per_block() as usize;
    let credits_max = volume.space().journal().credits_max() as usize;
    let count = 7_500;
    assert!(count / per_block > credits_max, "{count} numbers, {credits_max} credits");
    let root = volume.root().unwrap();
    let allocations = allocate(&volume, count);
    let regular = new(FileKind::Regular, 0o644);
    let made = volume.create(&root, b"far", &regular).expect("the journal admits it");
    assert!(made.ino().get() as usize > count);
    volume.open_file(&made).unwrap().write_at(0, b"content").unwrap();
    volume.sync().unwrap();
    let cut = Arc::new(memory.snapshot());
    drop(allocations);
    // The released numbers are allocated again, whatever their slots held.
    let near = volume.create(&root, b"near", &regular).unwrap();
    assert!(near.ino() < made.ino());
    assert!(volume.xattr_list(&near).unwrap().is_empty());
    drop((root, made, near));
    volume.close().unwrap();
    assert_clean(&memory);
    mount(&cut).close().unwrap();
    assert_clean(&cut);

    // The power fails at any write of all that.
    for nth in 1.. {
        let memory = Arc::new(old.snapshot());
        let faulty = Arc::new(FaultDevice::new(memory.clone()));
        let volume = Volume::open(faulty.clone(), MountOptions::default()).unwrap();
        arm(&faulty, Operation::Write, nth * nth, Times::Onwards);
        let allocations: Vec<InodeAllocation> = (0..count)
            .map_while(|_| volume.space().allocate_inode(Ino::ROOT, Child::File).ok())
            .collect();
        let root = volume.root().unwrap();
        let done = volume.create(&root, b"far", &regular).is_ok() && volume.sync().is_ok();
        drop((root, allocations));
        volume.abandon();
        mount(&memory).close().unwrap();
        assert_clean(&memory);
        if done {
            assert!(nth > 2, "nothing was cut");
            break;
        }
    }
}

/// Of slots that were never used the bitmap tells, also where nothing is changed any more.
#[test]
fn a_number_that_was_never_used_is_not_found() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(over_old_inodes());
    let look = |volume: &Volume, when: &str| {
        for number in [200, 1_000, 1_999] {
            let error = volume.inode(Ino(number)).expect_err("it was never used");
            assert_eq!(*error.kind(), ErrorKind::NotFound, "{when}: {error}");
        }
        volume.inode(Ino::ROOT).unwrap();
    };
    let volume = mount(&memory);
    look(&volume, "written");
    let kept = volume.clone();
    volume.close().unwrap();
    look(&kept, "closed");
    drop(kept);
    let read_only = MountOptions { read_only: true, ..MountOptions::default() };
    look(&common::mount_with(&memory, read_only), "read-only");
    assert_clean(&memory);
}
