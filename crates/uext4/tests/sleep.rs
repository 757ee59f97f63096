//! The hook that a server registers before a call, on an image in a file.
//!
//! Fault model: a call that answers from memory and says that it sleeps, which would cost the
//! server a thread a call; a call that sleeps and says nothing, with which its queue would stand
//! still. Not covered: requests of queues, whose caller waits when it wants to.

mod common;

use common::{assert_clean, have, mke2fs, new};
use std::cell::Cell;
use std::fs::OpenOptions;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use uext4::{MountOptions, OpenFile, Volume, on_sleep};
use uext4_device::{Access, FileDevice, MemoryDevice};
use uext4_ondisk::FileKind;

/// How often the hook is called for `call`.
fn sleeps<T>(call: impl FnOnce() -> T) -> (T, u32) {
    let calls = Rc::new(Cell::new(0));
    let count = Rc::clone(&calls);
    let hook = on_sleep(move || count.set(count.get() + 1));
    let result = call();
    drop(hook);
    (result, calls.get())
}

fn open(path: &std::path::Path) -> Volume {
    let device = FileDevice::open(path, Access::ReadWrite, 0).unwrap();
    Volume::open(Arc::new(device), MountOptions::default()).unwrap()
}

fn file(volume: &Volume) -> OpenFile {
    let root = volume.root().unwrap();
    let inode = volume.lookup(&root, b"file").unwrap();
    volume.open_file(&inode).unwrap()
}

#[test]
fn the_hook_is_called_before_a_call_sleeps_and_not_otherwise() {
    if !have("mke2fs") {
        return;
    }
    let image = tempfile::NamedTempFile::new().unwrap();
    mke2fs(32, "").save(image.path()).unwrap();
    OpenOptions::new().write(true).open(image.path()).unwrap().sync_all().unwrap();
    let volume = open(image.path());
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let written = volume.open_file(&inode).unwrap();
    written.write_at(0, &[7; 8192]).unwrap();

    // From memory: the pages that were written, attributes, another write.
    let mut buf = [0; 4096];
    assert_eq!(sleeps(|| written.read_at(4096, &mut buf).unwrap()), (4096, 0));
    assert_eq!(sleeps(|| volume.attr(&inode).size), (8192, 0));
    assert_eq!(sleeps(|| written.write_at(100, b"again").unwrap()).1, 0);
    // To the device, by many requests: once.
    assert_eq!(sleeps(|| written.sync(false).unwrap()).1, 1);
    // Nothing is left to be synced.
    assert_eq!(sleeps(|| written.sync(false).unwrap()).1, 0);
    drop((written, inode, root));
    volume.close().unwrap();

    let volume = open(image.path());
    let cold = file(&volume);
    assert_eq!(sleeps(|| cold.read_at(0, &mut buf).unwrap()), (4096, 1), "from the device");
    assert_eq!(sleeps(|| cold.read_at(0, &mut buf).unwrap()), (4096, 0), "cached");
    drop(cold);
    volume.close().unwrap();
    assert_clean(&MemoryDevice::load(image.path()).unwrap());
}

/// Without a call of the hook the holder never lets go.
#[test]
fn a_lock_that_another_thread_holds_calls_the_hook() {
    use uext4::sync::{LockRank, Mutex, RwLock};
    let mutex = Mutex::new(LockRank::File, ());
    let lock = RwLock::new(LockRank::Buffer, ());
    assert_eq!(sleeps(|| drop((mutex.lock(), lock.write()))).1, 0, "free locks");
    assert_eq!(sleeps(|| drop((lock.read(), mutex.try_lock()))).1, 0, "attempts");
    for which in 0..3 {
        let (held, is_held) = channel();
        let (release, released) = channel::<()>();
        std::thread::scope(|scope| {
            let (mutex, lock) = (&mutex, &lock);
            scope.spawn(move || {
                let _guards = (mutex.lock(), lock.write());
                held.send(()).unwrap();
                released.recv().unwrap();
            });
            is_held.recv().unwrap();
            // The holder lets go once the hook has been called.
            let hook = on_sleep(move || release.send(()).unwrap());
            match which {
                0 => drop(mutex.lock()),
                1 => drop(lock.read()),
                _ => drop(lock.write()),
            }
            drop(hook);
        });
    }
}
