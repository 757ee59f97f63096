//! A volume that is closed while others call it.
//!
//! Fault model: any moment of the end of the volume beside calls that are about to begin, inside,
//! or about to return; a device that is slow at flushes, or at reads. Checked: what a call has
//! acknowledged is in the image, what is refused is an error, the image is clean. Not covered:
//! calls of other processes, which is the mount's to stop.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::sync::Arc;
use std::time::Duration;
use uext4::{ErrorKind, MountOptions, Result, Volume};
use uext4_device::{Device, HookedDevice, HookedRequest, MemoryDevice, SharedDevice};
use uext4_ondisk::FileKind;

const THREADS: usize = 6;

/// Has several threads do `call` with growing numbers until it fails, ends the volume by `end`
/// meanwhile, and returns the numbers that were acknowledged, by thread.
fn acknowledged(
    volume: &Volume,
    call: impl Fn(&Volume, usize, usize) -> Result<()> + Sync,
    end: impl FnOnce(Volume) -> Result<()>,
) -> Vec<usize> {
    std::thread::scope(|scope| {
        let call = &call;
        let callers: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    for number in 0.. {
                        match call(volume, thread, number) {
                            Ok(()) => {}
                            Err(error) => {
                                assert_eq!(*error.kind(), ErrorKind::ReadOnly, "{error}");
                                return number;
                            }
                        }
                    }
                    unreachable!("numbers end")
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        end(volume.clone()).unwrap();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    })
}

fn open(memory: &Arc<MemoryDevice>, read_us: u64, flush_us: u64) -> Volume {
    let slow = HookedDevice::new(memory.clone(), move |request| match request {
        HookedRequest::Read(_) => std::thread::sleep(Duration::from_micros(read_us)),
        request if request.is_durable() => std::thread::sleep(Duration::from_micros(flush_us)),
        _ => {}
    });
    let slow: SharedDevice = Arc::new(slow);
    Volume::open(slow, MountOptions { cache_bytes: 1 << 20, ..MountOptions::default() }).unwrap()
}

/// Each thread writes a block and syncs it, over and over.
fn synced_bytes_are_there(end: impl Fn(Volume) -> Result<()>) {
    for round in 0..6_u64 {
        let memory = Arc::new(mke2fs(64, "-b 1024"));
        let volume = open(&memory, 0, 10_000);
        let root = volume.root().unwrap();
        let files: Vec<_> = (0..THREADS)
            .map(|n| {
                let name = format!("f{n}");
                let made = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644));
                volume.open_file(&made.unwrap()).unwrap()
            })
            .collect();
        let write_and_sync = |_: &Volume, thread: usize, number: usize| {
            files[thread].write_at(number as u64 * 512, &[number as u8 | 1; 512])?;
            std::thread::sleep(Duration::from_micros(
                (number as u64 * 7919 + round * 1301) % 40_000,
            ));
            files[thread].sync(number.is_multiple_of(2))
        };
        let counts = acknowledged(&volume, write_and_sync, &end);
        drop((files, root, volume));
        assert_clean(&memory);
        let volume = mount(&memory);
        let root = volume.root().unwrap();
        for (n, count) in counts.into_iter().enumerate() {
            let inode = volume.lookup(&root, format!("f{n}").as_bytes()).unwrap();
            let mut bytes = vec![0; count * 512];
            let file = volume.open_file(&inode).unwrap();
            assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len(), "file {n}");
            let lost =
                bytes.chunks(512).zip(0..).filter(|(b, i): &(_, usize)| b[0] != *i as u8 | 1);
            assert_eq!(lost.count(), 0, "syncs of file {n} that were acknowledged");
        }
    }
}

#[test]
fn what_was_synced_beside_a_close_is_there() {
    if have("mke2fs") {
        synced_bytes_are_there(Volume::close);
    }
}

#[test]
fn what_was_synced_beside_a_remount_read_only_is_there() {
    if have("mke2fs") {
        synced_bytes_are_there(|volume| volume.remount_read_only());
    }
}

#[test]
fn names_that_were_created_beside_a_close_are_there() {
    if !have("mke2fs") {
        return;
    }
    for _ in 0..6 {
        let memory = Arc::new(mke2fs(64, "-b 1024 -N 16000"));
        let volume = open(&memory, 300, 300);
        let root = volume.root().unwrap();
        let dirs: Vec<_> = (0..THREADS)
            .map(|n| {
                let name = format!("d{n}");
                volume.create(&root, name.as_bytes(), &new(FileKind::Directory, 0o755)).unwrap()
            })
            .collect();
        let create = |volume: &Volume, thread: usize, number: usize| {
            let name = format!("a name that is long enough to fill the directory soon {number}");
            let file = new(FileKind::Regular, 0o644);
            volume.create(&dirs[thread], name.as_bytes(), &file).map(drop)
        };
        let counts = acknowledged(&volume, create, Volume::close);
        drop((dirs, root, volume));
        assert_clean(&memory);
        let volume = mount(&memory);
        let root = volume.root().unwrap();
        for (n, count) in counts.into_iter().enumerate() {
            let dir = volume.lookup(&root, format!("d{n}").as_bytes()).unwrap();
            let mut found = 0;
            volume
                .read_dir(&dir, 0, &mut |_| {
                    found += 1;
                    true
                })
                .unwrap();
            assert!(found >= count + 2, "{count} names acknowledged, {} there", found - 2);
        }
    }
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.len()).unwrap()];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// After the end: reads go on, changes are refused, a sync has nothing to do, and another close
/// tells how the first one went.
#[test]
fn after_the_end_there_is_only_reading() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(64, "-b 1024"));
    let volume = mount(&memory);
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, b"bytes").unwrap();
    let gone = volume.create(&root, b"gone", &new(FileKind::Regular, 0o644)).unwrap();
    let held = volume.open_file(&gone).unwrap();
    held.write_at(0, b"held").unwrap();
    volume.unlink(&root, b"gone").unwrap();
    volume.remount_read_only().unwrap();
    let read_only = |result: Result<usize>| {
        assert_eq!(*result.expect_err("refused").kind(), ErrorKind::ReadOnly);
    };
    read_only(file.write_at(0, b"more"));
    read_only(file.write_direct_at(0, &[0; 512]));
    read_only(volume.create(&root, b"new", &new(FileKind::Regular, 0o644)).map(|_| 0));
    read_only(volume.unlink(&root, b"file").map(|()| 0));
    read_only(volume.xattr_set(&inode, b"user.a", b"b", uext4::XattrMode::Any).map(|()| 0));
    file.sync(false).unwrap();
    volume.sync().unwrap();
    let mut bytes = [0; 8];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), 5);
    // A file without a name that is in use stays, as an orphan.
    assert_eq!(held.read_at(0, &mut bytes).unwrap(), 4);
    assert_eq!(&bytes[..4], b"held");
    let before = memory.snapshot();
    volume.clone().close().unwrap();
    drop((file, inode, held, gone, root, volume));
    assert!(bytes_of(&before) == bytes_of(&memory), "something was written after the end");
    let again = mount(&memory);
    assert_eq!(again.recovery().orphans, 1);
    again.close().unwrap();
    assert_clean(&memory);
}
