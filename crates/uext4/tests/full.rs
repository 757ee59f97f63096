//! A full file system: nothing acknowledged is lost, and after deleting something work goes on.
//!
//! Fault model: no free block, no free inode, and the loss of all that was not synced. Not
//! covered: a device that itself has no space (see `faults`).

mod common;

use common::{assert_clean, gated, have, mke2fs, mount_with, new};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use uext4::{
    AllocateMode, ErrorKind, InodeRef, MountOptions, Owner, RenameMode, Result, SetAttr, Volume,
    XattrMode,
};
use uext4_device::{Device, Gate, MemoryDevice};
use uext4_ondisk::FileKind;

const SHAPES: [(&str, u64); 3] = [
    ("-b 1024 -O orphan_file", 12),
    ("-b 4096 -m 0", 24),
    ("-b 2048 -O ^metadata_csum,uninit_bg", 12),
];
const THREADS: u64 = 4;

fn mount(device: &Arc<MemoryDevice>) -> Volume {
    mount_with(device, MountOptions { cache_bytes: 8 << 20, ..MountOptions::default() })
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i * 7 + seed * 31 + i / 509) as u8).collect()
}

/// Whether the volume said that it is full; any other error fails.
fn is_full<T>(result: &Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) if *error.kind() == ErrorKind::NoSpace => true,
        Err(error) => panic!("{error} ({:?})", error.kind()),
    }
}

/// Files that were synced: name, seed and length of their content.
type Synced = BTreeMap<String, (u64, usize)>;

/// Writes files until the volume is full, three times over, because reservations are worst cases
/// and release space when they turn into what is needed.
fn fill(volume: &Volume, thread: u64) -> Synced {
    let root = volume.root().unwrap();
    let mut synced = Synced::new();
    let mut seed = thread * 977 + 1;
    let mut refusals = 0;
    for n in 0_u64.. {
        let name = format!("t{thread}-{n}");
        let (written, len) = write_file(volume, &root, &name, &mut seed, n);
        if is_full(&written) {
            refusals += 1;
            if refusals == 3 {
                break;
            }
        } else if n % 2 == 0 {
            synced.insert(name, (n + thread, len));
        }
    }
    synced
}

fn write_file(
    volume: &Volume,
    root: &InodeRef,
    name: &str,
    seed: &mut u64,
    n: u64,
) -> (Result<()>, usize) {
    let thread: u64 = name[1..2].parse().unwrap();
    let len = (random(seed) % 120_000) as usize;
    let data = pattern(n + thread, len);
    let write = || {
        let inode = volume.create(root, name.as_bytes(), &new(FileKind::Regular, 0o644))?;
        let file = volume.open_file(&inode)?;
        for (k, part) in data.chunks(9_999).enumerate() {
            let done = file.write_at(k as u64 * 9_999, part)?;
            if done < part.len() {
                return Err(uext4::Error::new(ErrorKind::NoSpace, "a short write"));
            }
        }
        if n.is_multiple_of(2) { file.sync(n.is_multiple_of(4)) } else { Ok(()) }
    };
    (write(), len)
}

fn check(volume: &Volume, synced: &Synced) {
    let root = volume.root().unwrap();
    for (name, &(seed, len)) in synced {
        let inode = volume.lookup(&root, name.as_bytes()).unwrap();
        let mut data = vec![0; len + 1];
        let read = volume.open_file(&inode).unwrap().read_at(0, &mut data).unwrap();
        assert!(read == len && data[..len] == pattern(seed, len)[..], "content of {name}");
    }
}

#[test]
fn what_was_synced_on_a_full_volume_survives_a_crash() {
    if !have("mke2fs") {
        return;
    }
    for (shape, mib) in SHAPES {
        println!("shape {shape}");
        let device = Arc::new(mke2fs(mib, shape));
        let volume = mount(&device);
        let synced: Synced = std::thread::scope(|scope| {
            let volume = &volume;
            let threads: Vec<_> =
                (0..THREADS).map(|thread| scope.spawn(move || fill(volume, thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert!(synced.len() > 10, "{} files", synced.len());
        let free = volume.stat_fs().blocks_free * u64::from(volume.stat_fs().block_size);
        assert!(free < mib << 18, "{free} bytes are free on a full volume");
        // What writes acknowledged has its space.
        volume.sync().unwrap();
        check(&volume, &synced);
        volume.clone().abandon();
        drop(volume);
        let volume = mount(&device);
        check(&volume, &synced);
        delete_and_go_on(&volume, &synced);
        volume.close().unwrap();
        assert_clean(&device);
    }
}

/// Deletes most of the files; the rest of the space can be used at once.
fn delete_and_go_on(volume: &Volume, synced: &Synced) {
    let root = volume.root().unwrap();
    let mut names = Vec::new();
    volume
        .read_dir(&root, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
    let mut bytes = 0;
    for name in names.iter().filter(|name| name.starts_with(b"t")).skip(3) {
        let inode = volume.lookup(&root, name).unwrap();
        bytes += volume.attr(&inode).size;
        drop(inode);
        volume.unlink(&root, name).unwrap();
    }
    assert!(synced.len() > 3 && bytes > 2 << 20);
    let inode = volume.create(&root, b"after", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    let data = pattern(5, bytes as usize / 2);
    assert_eq!(file.write_at(0, &data).unwrap(), data.len());
    file.sync(false).unwrap();
}

#[test]
fn every_operation_on_a_full_volume_works_or_says_so() {
    if !have("mke2fs") {
        return;
    }
    for (shape, mib) in SHAPES {
        println!("shape {shape}");
        let device = Arc::new(mke2fs(mib, shape));
        let volume = mount(&device);
        let root = volume.root().unwrap();
        let dir = volume.create(&root, b"dir", &new(FileKind::Directory, 0o755)).unwrap();
        let holes = volume.create(&dir, b"holes", &new(FileKind::Regular, 0o644)).unwrap();
        let holes = volume.open_file(&holes).unwrap();
        holes.allocate(AllocateMode::Allocate { keep_size: false }, 0, 2 << 20).unwrap();
        let big = volume.create(&dir, b"big", &new(FileKind::Regular, 0o644)).unwrap();
        let big = volume.open_file(&big).unwrap();
        let chunk = vec![3; 1 << 16];
        while !is_full(&big.append(&chunk)) {}
        while !is_full(&big.append(&chunk[..100])) {}
        volume.sync().unwrap();
        for n in 0..300 {
            operate(&volume, &root, &dir, n);
            // Conversion of unwritten extents needs room in the tree.
            is_full(&holes.write_at(n * 2 * 4096, &[n as u8; 3000]));
            is_full(&holes.allocate(AllocateMode::PunchHole, n * 4096 * 3, 4096));
            is_full(&big.append(&chunk));
            if n % 50 == 0 {
                volume.sync().unwrap();
            }
        }
        assert!(!volume.read_only(), "{:?}", volume.read_only_reason());
        drop((root, dir, holes, big));
        volume.close().unwrap();
        assert_clean(&device);
    }
}

fn operate(volume: &Volume, root: &InodeRef, dir: &InodeRef, n: u64) {
    let name = format!("name-{n}-{}", "long".repeat(20)).into_bytes();
    let other = format!("other-{n}").into_bytes();
    let kind = if n.is_multiple_of(3) { FileKind::Directory } else { FileKind::Regular };
    let created = volume.create(dir, &name, &new(kind, 0o600));
    if is_full(&created) {
        return;
    }
    let inode = created.unwrap();
    is_full(&volume.xattr_set(&inode, b"user.large", &[1; 600], XattrMode::Any));
    is_full(&volume.symlink(dir, &other, &[b'l'; 500], Owner::default()));
    if kind == FileKind::Regular {
        is_full(&volume.link(&inode, root, &other));
        let size = Some(n * 10_000);
        is_full(&volume.set_attr(&inode, &SetAttr { size, ..SetAttr::default() }));
    }
    is_full(&volume.rename(dir, &name, root, &name, RenameMode::Replace));
    if n % 7 == 5 {
        let _ = volume.unlink(dir, &other);
    }
}

#[test]
fn a_volume_without_free_inodes_takes_names_and_data() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(8, "-b 1024 -N 128"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let mut made = Vec::new();
    loop {
        let name = format!("f{}", made.len());
        let created = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644));
        if is_full(&created) {
            break;
        }
        made.push((name, created.unwrap()));
    }
    assert_eq!(volume.stat_fs().inodes_free, 0);
    assert!(is_full(&volume.symlink(&root, b"s", b"target", Owner::default())));
    assert!(is_full(&volume.create(&root, b"d", &new(FileKind::Directory, 0o755))));
    volume.link(&made[0].1, &root, b"link").unwrap();
    volume.open_file(&made[1].1).unwrap().append(&pattern(1, 30_000)).unwrap();
    let (name, inode) = made.pop().unwrap();
    volume.unlink(&root, name.as_bytes()).unwrap();
    assert!(is_full(&volume.create(&root, b"g", &new(FileKind::Regular, 0o644))), "still open");
    drop(inode);
    volume.delete_unlinked().unwrap();
    volume.create(&root, b"g", &new(FileKind::Regular, 0o644)).unwrap();
    drop((made, root));
    volume.close().unwrap();
    assert_clean(&device);
}

/// Writers that use a good half of a volume at a time and remove as they go, so that what is
/// not used waits for a commit, their own or that of another: no write may say that it is full.
#[test]
fn space_that_comes_back_with_another_threads_commit_is_found() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096 -m 0 -J size=4"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, root) = (&volume, &root);
            scope.spawn(move || {
                let data = pattern(thread, 512 << 10);
                for n in 0..1200 {
                    let name = |n: u64| format!("t{thread}-{n}");
                    let inode = volume
                        .create(root, name(n).as_bytes(), &new(FileKind::Regular, 0o644))
                        .unwrap();
                    let file = volume.open_file(&inode).unwrap();
                    for at in 0..4 {
                        file.write_at(at * data.len() as u64 / 4, &data[..data.len() / 4]).unwrap();
                    }
                    if n % 8 == thread {
                        file.sync(false).unwrap();
                    }
                    drop((file, inode));
                    if n >= 3 {
                        volume.unlink(root, name(n - 3).as_bytes()).unwrap();
                    }
                }
            });
        }
    });
    drop(root);
    volume.close().unwrap();
    assert_clean(&device);
}

/// While a direct write of half of the free space waits for the device, another file can have most
/// of the other half.
#[test]
fn a_direct_write_on_its_way_counts_its_blocks_once() {
    if !have("mke2fs") {
        return;
    }
    for shape in ["-b 4096 -m 0", "-b 4096 -m 0 -C 16384 -O bigalloc"] {
        let memory = Arc::new(mke2fs(24, shape));
        let gate = Arc::new(Gate::default());
        let device = gated(memory.clone(), &gate, |request| {
            request.writes_any(|bytes| bytes.iter().all(|&byte| byte == 0xd1))
        });
        let volume = Volume::open(device, MountOptions::default()).unwrap();
        let root = volume.root().unwrap();
        let create = |name: &str| {
            let made = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644));
            volume.open_file(&made.unwrap()).unwrap()
        };
        let [filler, direct, other] = ["filler", "direct", "other"].map(create);
        let mut end = 0;
        while filler.allocate(AllocateMode::Allocate { keep_size: false }, end, 1 << 16).is_ok() {
            end += 1 << 16;
        }
        filler.allocate(AllocateMode::PunchHole, 0, 2 << 20).unwrap();
        volume.sync().unwrap();
        let opens = gate.close();
        std::thread::scope(|scope| {
            let written = scope.spawn(|| direct.write_direct_at(0, &[0xd1; 1 << 20]));
            common::wait_until("the direct write is on its way", || gate.is_met());
            let beside = other.write_at(0, &vec![7; 700 << 10]);
            drop(opens);
            assert_eq!(beside.unwrap(), 700 << 10, "{shape}");
            assert_eq!(written.join().unwrap().unwrap(), 1 << 20, "{shape}");
        });
        drop((filler, direct, other, root));
        volume.close().unwrap();
        assert_clean(&memory);
    }
}

/// A device that refuses blocks of `0xee` and counts them.
#[derive(Debug)]
struct Refusing {
    memory: Arc<MemoryDevice>,
    refused: AtomicU32,
}

impl Device for Refusing {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        if buf.iter().all(|&byte| byte == 0xee) {
            self.refused.fetch_add(1, Ordering::SeqCst);
            return Err(std::io::Error::from_raw_os_error(5));
        }
        self.memory.write_at(offset, buf)
    }

    fn flush(&self) -> std::io::Result<()> {
        self.memory.flush()
    }

    fn punch(&self, offset: u64, len: u64) -> std::io::Result<bool> {
        self.memory.punch(offset, len)
    }
}

/// A write that finds no space is halved again and again. Each attempt to reclaim space would write
/// back the file whose page cannot be written.
#[test]
fn a_write_reclaims_space_once() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(24, "-b 4096 -m 0"));
    let device = Arc::new(Refusing { memory, refused: AtomicU32::new(0) });
    let volume = Volume::open(device.clone(), MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let create = |name: &str| {
        let made = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644));
        volume.open_file(&made.unwrap()).unwrap()
    };
    let [filler, stuck, other] = ["filler", "stuck", "other"].map(create);
    stuck.write_at(0, &[0xee; 4096]).unwrap();
    for size in [1 << 20, 1 << 16, 1 << 12] {
        let mut end = 64 << 20;
        while filler.allocate(AllocateMode::Allocate { keep_size: true }, end, size).is_ok() {
            end += size;
        }
    }
    device.refused.store(0, Ordering::SeqCst);
    let written = other.write_at(0, &vec![7; 1 << 20]);
    assert!(is_full(&written), "{written:?}");
    // One attempt: together with others, and alone.
    assert_eq!(device.refused.load(Ordering::SeqCst), 2, "requests of one attempt");
}
