//! A device that says that it is far: fewer requests one after the other.
//!
//! Fault model: a sync that takes a round trip more than it has to; a block that is read ahead
//! while it changes, and comes back old; a walk whose directories are read one by one.

mod common;

use common::{assert_clean, mke2fs, new};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4::{FileKind, InodeRef, MountOptions, Volume};
use uext4_device::{Device, MemoryDevice, ReadRun, WriteRun, last_tick};

/// Memory that is far: it counts requests, and what is not durable.
#[derive(Debug)]
struct Far {
    memory: MemoryDevice,
    has_fua: bool,
    /// Calls that read.
    reads: AtomicU64,
    durable: AtomicU64,
    volatile: AtomicU64,
    /// Flushes that had something to flush.
    flushes: AtomicU64,
    is_dirty: AtomicBool,
}

impl Far {
    fn over(memory: MemoryDevice, has_fua: bool) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let (reads, durable, volatile, flushes) = (zero(), zero(), zero(), zero());
        let is_dirty = AtomicBool::new(false);
        Arc::new(Self { memory, has_fua, reads, durable, volatile, flushes, is_dirty })
    }

    /// Durable writes, others, and flushes since the last call.
    fn take_counts(&self) -> [u64; 3] {
        [&self.durable, &self.volatile, &self.flushes].map(|count| count.swap(0, Ordering::SeqCst))
    }

    fn take_reads(&self) -> u64 {
        self.reads.swap(0, Ordering::SeqCst)
    }
}

impl Device for Far {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.memory.read_at(offset, buf)
    }

    fn read_many(&self, reads: &mut [ReadRun<'_>]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        reads.iter_mut().try_for_each(|run| self.memory.read_at(run.offset, run.buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_many(&[WriteRun { offset, bufs: &[buf] }])
    }

    fn write_many(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        self.volatile.fetch_add(1, Ordering::SeqCst);
        self.memory.write_many(writes)?;
        self.is_dirty.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn write_fua(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write_many_fua(&[WriteRun { offset, bufs: &[buf] }])
    }

    fn write_many_fua(&self, writes: &[WriteRun<'_>]) -> io::Result<()> {
        if !self.has_fua {
            self.write_many(writes)?;
            return self.flush();
        }
        self.durable.fetch_add(1, Ordering::SeqCst);
        self.memory.write_many(writes)
    }

    fn flush(&self) -> io::Result<()> {
        let is_needed = self.is_dirty.swap(false, Ordering::SeqCst);
        self.flushes.fetch_add(is_needed.into(), Ordering::SeqCst);
        Ok(())
    }

    fn punch(&self, _: u64, _: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn is_far(&self) -> bool {
        true
    }

    fn writes_through(&self) -> bool {
        self.has_fua
    }
}

fn open(device: &Arc<Far>) -> Volume {
    Volume::open(device.clone(), MountOptions::default()).unwrap()
}

fn make(volume: &Volume, dir: &InodeRef, name: &str, kind: FileKind) -> InodeRef {
    volume.create(dir, name.as_bytes(), &new(kind, 0o755)).unwrap()
}

fn make_file(volume: &Volume) -> uext4::OpenFile {
    let root = volume.root().unwrap();
    volume.open_file(&make(volume, &root, "file", FileKind::Regular)).unwrap()
}

/// Waits until a change has another time than those before.
fn tick() {
    let now = last_tick();
    while last_tick() == now {
        std::thread::yield_now();
    }
}

#[test]
fn syncs_take_the_requests_that_they_need() {
    let device = Far::over(mke2fs(64, ""), true);
    let volume = open(&device);
    let file = make_file(&volume);
    file.write_at(0, &[1; 8192]).unwrap();
    file.sync(false).unwrap();
    device.take_counts();
    for round in 0..4 {
        tick();
        // Data, log and commit block; data and log do not wait for each other.
        file.write_at(0, &[round; 4096]).unwrap();
        file.sync(false).unwrap();
        assert_eq!(device.take_counts(), [3, 0, 0], "overwrite and fsync");
        file.write_at(4096, &[round; 4096]).unwrap();
        file.sync(true).unwrap();
        assert_eq!(device.take_counts(), [1, 0, 0], "overwrite and fdatasync");
        file.write_at(8192 + u64::from(round) * 4096, &[round; 4096]).unwrap();
        file.sync(false).unwrap();
        assert_eq!(device.take_counts(), [3, 0, 0], "append and fsync");
    }
    // More than a few pages are not made durable one by one.
    file.write_at(1 << 20, &vec![7; 4 << 20]).unwrap();
    file.sync(false).unwrap();
    let [durable, volatile, flushes] = device.take_counts();
    assert!(durable == 2 && volatile > 0 && flushes == 1, "{durable} {volatile} {flushes}");
    volume.close().unwrap();
    assert_clean(&device.memory);
}

#[test]
fn without_fua_flushes_are_shared_as_elsewhere() {
    let device = Far::over(mke2fs(64, ""), false);
    let volume = open(&device);
    let file = make_file(&volume);
    file.write_at(0, &[1; 4096]).unwrap();
    file.sync(false).unwrap();
    device.take_counts();
    tick();
    file.write_at(0, &[2; 4096]).unwrap();
    file.sync(false).unwrap();
    // Data and log; a flush; the commit block and a flush.
    assert_eq!(device.take_counts(), [0, 3, 2]);
    volume.close().unwrap();
    assert_clean(&device.memory);
}

/// Lists all directories below one; returns how many names there are.
fn walk(volume: &Volume, dir: &InodeRef) -> usize {
    let mut found = Vec::new();
    volume
        .read_dir(dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                found.push((entry.ino, entry.kind));
            }
            true
        })
        .unwrap();
    let below = found.iter().map(|(ino, kind)| {
        let inode = volume.inode(*ino).unwrap();
        if *kind == Some(FileKind::Directory) { walk(volume, &inode) } else { 0 }
    });
    below.sum::<usize>() + found.len()
}

#[test]
fn a_walk_reads_many_blocks_by_few_calls() {
    let memory = mke2fs(64, "-N 8192");
    let device = Far::over(memory, true);
    let volume = open(&device);
    let root = volume.root().unwrap();
    for at in 0..40 {
        let dir = make(&volume, &root, &format!("dir{at}"), FileKind::Directory);
        for file in 0..60 {
            make(&volume, &dir, &format!("a name {file:0150}"), FileKind::Regular);
        }
    }
    volume.close().unwrap();
    let volume = open(&device);
    device.take_reads();
    assert_eq!(walk(&volume, &volume.root().unwrap()), 40 * 61 + 1);
    // 2,440 inodes are in more than 150 blocks, and each directory has three blocks or more.
    let (calls, blocks) = (device.take_reads(), 150 + 40 * 3);
    assert!(calls < blocks * 2 / 3, "{calls} calls for more than {blocks} blocks");
    volume.close().unwrap();
    assert_clean(&device.memory);
}

#[test]
fn sequential_readers_of_one_file_see_its_bytes() {
    let device = Far::over(mke2fs(128, ""), true);
    let bytes: Vec<u8> = (0..24_u32 << 20).map(|at| (at / 4096 + at % 251) as u8).collect();
    let volume = open(&device);
    let file = make_file(&volume);
    file.write_at(0, &bytes).unwrap();
    volume.close().unwrap();
    let volume = open(&device);
    let inode = volume.lookup(&volume.root().unwrap(), b"file").unwrap();
    let file = volume.open_file(&inode).unwrap();
    device.take_reads();
    let read = |step: usize| {
        let mut buf = vec![0; step];
        for at in (0..bytes.len()).step_by(step) {
            let count = file.read_at(at as u64, &mut buf).unwrap();
            assert!(buf[..count] == bytes[at..at + count], "at {at}");
        }
    };
    std::thread::scope(|scope| {
        for step in [100_000, 128 << 10, 65_537] {
            scope.spawn(move || read(step));
        }
    });
    // Three readers of about 200 pieces or more each.
    let calls = device.take_reads();
    assert!(calls < 100, "{calls} calls");
    volume.close().unwrap();
}

/// The files of a tree, in the order of their listing.
fn list(volume: &Volume, dir: &InodeRef) -> Vec<InodeRef> {
    let mut inos = Vec::new();
    volume
        .read_dir(dir, 0, &mut |entry| {
            inos.extend((entry.kind == Some(FileKind::Regular)).then_some(entry.ino));
            true
        })
        .unwrap();
    inos.into_iter().map(|ino| volume.inode(ino).unwrap()).collect()
}

/// The content of a file, through a buffer that is larger than it.
fn content(volume: &Volume, inode: &InodeRef) -> Vec<u8> {
    let mut buf = vec![0; 8192];
    let count = volume.open_file(inode).unwrap().read_at(0, &mut buf).unwrap();
    buf.truncate(count);
    buf
}

/// Fault model: a reader of a tree waits for each file; or gets old bytes of one that was read
/// ahead and then written.
#[test]
fn files_of_a_tree_are_read_before_they_are_asked_for() {
    const FILES: usize = 30;
    let device = Far::over(mke2fs(64, ""), true);
    {
        let volume = open(&device);
        let root = volume.root().unwrap();
        for at in 0..FILES {
            let inode = make(&volume, &root, &format!("file{at}"), FileKind::Regular);
            let bytes = [u8::try_from(at).unwrap(); 5000];
            volume.open_file(&inode).unwrap().write_at(0, &bytes).unwrap();
        }
        volume.close().unwrap();
    }
    let volume = open(&device);
    let files = list(&volume, &volume.root().unwrap());
    assert_eq!(files.len(), FILES);
    device.take_reads();
    let first: Vec<_> = files[..2].iter().map(|file| content(&volume, file)).collect();
    // The threads ask for all others, each by a request of its own.
    let mut reads = 0;
    while reads < FILES as u64 {
        reads += device.take_reads();
        std::thread::yield_now();
    }
    let last = &files[FILES - 1];
    volume.open_file(last).unwrap().write_at(0, &[0xEE; 5000]).unwrap();
    // Once they have put in what they asked for, no reader asks the device.
    let read_others = |_| {
        device.take_reads();
        let others: Vec<_> = files[2..].iter().map(|file| content(&volume, file)).collect();
        std::thread::yield_now();
        (device.take_reads() == 0).then_some(others)
    };
    let others = (0..100_000).find_map(read_others).expect("readers still ask the device");
    let mut seen: Vec<u8> = first.iter().chain(&others).map(|bytes| bytes[0]).collect();
    assert!(first.iter().chain(&others).all(|bytes| *bytes == vec![bytes[0]; 5000]));
    assert_eq!(seen.pop(), Some(0xEE));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), FILES - 1);
    drop((files, others));
    volume.close().unwrap();
    assert_clean(&device.memory);
}
