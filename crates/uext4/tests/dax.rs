//! Files in DAX mode: what ordinary reads and writes do to them, and what it costs.
//!
//! Fault model: any alignment and place, cuts, punches and shifts between, against bytes in memory;
//! options and flags that do not fit; a volume without space. Not covered: crashes (uext4-sim,
//! category `dax`), threads that race (`direct_races.rs`).

mod common;

use common::{Model, assert_clean, have, mke2fs, new};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use uext4::{AllocateMode, ErrorKind, FileKind, MountOptions, OpenFile, SetAttr, Volume};
use uext4_device::{AddressableDevice, MemoryDevice, SharedDevice};

const BLOCK: usize = 4096;

fn options(words: &str) -> MountOptions {
    let mut options = MountOptions::default();
    words.split(',').filter(|word| !word.is_empty()).for_each(|w| options.parse(w).unwrap());
    options
}

fn open(device: &Arc<MemoryDevice>, words: &str) -> Volume {
    let shared: SharedDevice = device.clone();
    Volume::open(Arc::new(AddressableDevice::new(shared)), options(words)).unwrap()
}

fn file(volume: &Volume, name: &str) -> OpenFile {
    let root = volume.root().unwrap();
    let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

fn find(volume: &Volume, name: &str) -> OpenFile {
    let inode = volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap();
    volume.open_file(&inode).unwrap()
}

fn read(file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xee; len];
    let count = file.read_at(offset, &mut buf).unwrap();
    buf.truncate(count);
    buf
}

fn cut(volume: &Volume, file: &OpenFile, size: u64) {
    let change = SetAttr { size: Some(size), ..SetAttr::default() };
    volume.set_attr(file.inode(), &change).unwrap();
}

fn number(volume: &Volume, name: &str) -> u64 {
    volume.stats().number(name).unwrap()
}

/// An overwrite starts no handle, and one with `dax_overwrite=journal` starts one.
#[test]
fn what_an_overwrite_takes() {
    if !have("mke2fs") {
        return;
    }
    for (words, per_write) in [("dax=always", 0), ("dax,dax_overwrite=journal", 1)] {
        let device = Arc::new(mke2fs(32, "-b 4096"));
        let volume = open(&device, words);
        let a = file(&volume, "a");
        a.write_at(0, &vec![1; 256 * BLOCK]).unwrap();
        a.sync(false).unwrap();
        // What is learnt once.
        a.write_at(0, &[2]).unwrap();
        let (handles, fast) = (number(&volume, "handles"), number(&volume, "dax_overwrites"));
        let mut rng = StdRng::seed_from_u64(3);
        for _ in 0..500 {
            let len = rng.random_range(1..3 * BLOCK);
            let at = rng.random_range(0..(256 * BLOCK - len) as u64);
            a.write_at(at, &vec![7; len]).unwrap();
            assert_eq!(read(&a, at, len), vec![7; len]);
        }
        assert_eq!(number(&volume, "handles") - handles, 500 * per_write, "{words}");
        assert_eq!(number(&volume, "dax_overwrite_handles"), 501 * per_write, "{words}");
        assert_eq!(number(&volume, "dax_overwrites") - fast, 500);
        assert_eq!(number(&volume, "pages"), 0);
        drop(a);
        volume.close().unwrap();
        assert_clean(&device);
    }
}

#[test]
fn an_overwrite_allocates_nothing() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096"));
    let volume = open(&device, "dax=always");
    let a = file(&volume, "a");
    let mut data = [1; BLOCK];
    a.write_at(0, &[1; 64 * BLOCK]).unwrap();
    a.sync(false).unwrap();
    let mut round = || {
        for at in 0..63 {
            a.write_at(at * BLOCK as u64 + 100, &data).unwrap();
            a.read_at(at * BLOCK as u64 + 100, &mut data).unwrap();
        }
    };
    // Memory of the device, of the thread, and what is learnt once.
    round();
    let taken = allocation_counter::measure(round);
    assert_eq!(taken.count_total, 0, "{taken:?}");
}

#[test]
fn options_and_flags() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096"));
    let shared: SharedDevice = device.clone();
    let error = Volume::open(shared.clone(), options("dax=always")).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("not byte-addressable"), "{error}");
    assert!(!error.to_string().contains('\n'));
    // Without the device's help the flag is a flag.
    let volume = Volume::open(shared, options("dax=inode")).unwrap();
    let a = file(&volume, "a");
    a.write_at(0, &[1; BLOCK]).unwrap();
    assert!(!a.inode().is_dax());
    drop(a);
    volume.close().unwrap();
    for (words, by_flag, without) in [
        ("", true, false),
        ("dax=inode", true, false),
        ("dax=never", false, false),
        ("dax=always", true, true),
        ("data=journal", false, false),
    ] {
        let image = tempfile::NamedTempFile::new().unwrap();
        device.save(image.path()).unwrap();
        let flags = ["-w", "-R", "sif a flags 0x2080000"];
        let mut debugfs = std::process::Command::new("/sbin/debugfs");
        assert!(debugfs.args(flags).arg(image.path()).output().unwrap().status.success());
        let flagged = Arc::new(MemoryDevice::load(image.path()).unwrap());
        let volume = open(&flagged, words);
        let (a, b) = (find(&volume, "a"), file(&volume, "b"));
        assert_eq!((a.inode().is_dax(), b.inode().is_dax()), (by_flag, without), "'{words}'");
        a.write_at(BLOCK as u64 - 1, &[2; 2]).unwrap();
        b.write_at(BLOCK as u64 - 1, &[3; 2]).unwrap();
        assert_eq!(read(&a, 4000, 200).last(), Some(&2));
        drop((a, b));
        volume.close().unwrap();
    }
}

const SIZE_MAX: usize = 40 * BLOCK;

fn step(rng: &mut StdRng, volume: &Volume, file: &OpenFile, model: &mut Model) {
    let fill = rng.random_range(1..=255);
    let offset = rng.random_range(0..SIZE_MAX);
    let len = rng.random_range(1..4 * BLOCK);
    let (block, blocks) = (offset / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
    match rng.random_range(0..17) {
        0..=5 => {
            file.write_at(offset as u64, &vec![fill; len]).unwrap();
            model.write(offset, &vec![fill; len]);
        }
        6 => {
            let (at, count) = file.append(&vec![fill; len]).unwrap();
            assert_eq!((at, count), (model.0.len() as u64, len));
            model.write(at as usize, &vec![fill; len]);
        }
        7 => {
            file.write_direct_at(block as u64, &vec![fill; blocks]).unwrap();
            model.write(block, &vec![fill; blocks]);
        }
        8..=9 => {
            let size = rng.random_range(0..SIZE_MAX);
            cut(volume, file, size as u64);
            model.0.resize(size, 0);
        }
        10..=11 => {
            file.allocate(AllocateMode::PunchHole, offset as u64, len as u64).unwrap();
            model.zero(offset, offset + len);
        }
        12 => {
            let mode = AllocateMode::ZeroRange { keep_size: true };
            file.allocate(mode, offset as u64, len as u64).unwrap();
            model.zero(offset, offset + len);
        }
        13 => {
            let mode = AllocateMode::Allocate { keep_size: true };
            file.allocate(mode, offset as u64, len as u64).unwrap();
        }
        14 if block + blocks < model.0.len() => {
            file.allocate(AllocateMode::CollapseRange, block as u64, blocks as u64).unwrap();
            model.0.drain(block..block + blocks);
        }
        15 if block < model.0.len() && model.0.len() < SIZE_MAX => {
            file.allocate(AllocateMode::InsertRange, block as u64, blocks as u64).unwrap();
            model.0.splice(block..block, std::iter::repeat_n(0, blocks));
        }
        _ => file.sync(rng.random()).unwrap(),
    }
    assert!(read(file, offset as u64, len) == model.at(offset, len), "read of {len} at {offset}");
    assert_eq!(file.inode().size(), model.0.len() as u64);
    assert_eq!(number(volume, "pages"), 0);
}

#[test]
fn ordinary_access_agrees_with_bytes_in_memory() {
    if !have("mke2fs") {
        return;
    }
    for (seed, words) in (1..).zip([
        "",
        "",
        "",
        "dax_overwrite=journal",
        "writeback=ordered",
        "writeback=unwritten",
        "nodelalloc",
        "extent_max_zeroout_kb=0",
    ]) {
        for block_size in [1024, 4096] {
            let device = Arc::new(mke2fs(24, &format!("-b {block_size}")));
            let words = format!("dax=always,{words}");
            let volume = open(&device, &words);
            let (mut rng, mut model) = (StdRng::seed_from_u64(seed), Model::default());
            let a = file(&volume, "a");
            for n in 0..600 {
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    step(&mut rng, &volume, &a, &mut model);
                }));
                assert!(result.is_ok(), "seed {seed} ({words}, blocks of {block_size}), step {n}");
            }
            drop(a);
            volume.close().unwrap();
            assert_clean(&device);
            // As a mount without DAX sees it.
            let volume = open(&device, "dax=never");
            let a = find(&volume, "a");
            assert!(!a.inode().is_dax());
            assert!(read(&a, 0, model.0.len()) == model.0, "seed {seed} ({words}): after a mount");
        }
    }
}

#[test]
fn no_space_makes_writes_short() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096 -m 0"));
    let volume = open(&device, "dax=always");
    let (a, data) = (file(&volume, "a"), vec![6; 1 << 20]);
    let mut end = 3;
    let error = loop {
        match a.write_at(end, &data) {
            Ok(count) => end += count as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(*error.kind(), ErrorKind::NoSpace);
    assert_eq!(a.inode().size(), end);
    assert!(read(&a, 3, end as usize).iter().all(|&byte| byte == 6));
    // Overwriting needs none.
    a.write_at(1, &[7; BLOCK]).unwrap();
    drop(a);
    volume.close().unwrap();
    assert_clean(&device);
}

/// Stores into a device that hosts share could not be stopped when the claim is lost.
#[test]
fn a_file_system_with_mmp_has_no_dax_mode() {
    if !have("mke2fs") {
        return;
    }
    let device: SharedDevice = Arc::new(mke2fs(16, "-b 4096 -O mmp"));
    let open = |words: &str| {
        let mut options = options(words);
        options.mmp_second = std::time::Duration::from_millis(20);
        Volume::open(Arc::new(AddressableDevice::new(device.clone())), options)
    };
    let error = open("dax=always").unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("mmp"), "{error}");
    open("dax=inode").unwrap().close().unwrap();
}
