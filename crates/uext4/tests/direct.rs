//! Direct I/O: what it does to files, and what it costs.
//!
//! Fault model: alignments and places that ext4 refuses or treats on their own; buffered and direct
//! access alternately, against bytes in memory; a device without space. Not covered: queues by
//! themselves (`direct_queue.rs`), crashes (uext4-sim, category `direct`), threads that race
//! (`direct_races.rs`).

mod common;
#[path = "common/direct.rs"]
mod way;

use common::{Model, assert_clean, have, mke2fs, mount, mount_with};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use uext4::{
    AllocateMode, DirectDone, DirectOp, DirectQueue, DirectRequest, ErrorKind, MountOptions,
    OpenFile, Volume,
};
use uext4_device::{MeteredDevice, SharedDevice};
use way::{buf, close, file, number, queue, read};

const BLOCK: usize = 4096;

#[test]
fn the_table_of_semantics() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(32, "-b 4096"));
    let volume = mount(&device);
    let a = file(&volume, "a");
    // Alignment.
    for (offset, len) in [(1, 512), (0, 513), (256, 512), (512, 100)] {
        let error = a.write_direct_at(offset, &vec![0; len]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
        let error = a.read_direct_at(offset, &mut vec![0; len]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!((a.write_direct_at(0, &[]).unwrap(), a.inode().size()), (0, 0));
    // Nothing there, nothing read.
    assert_eq!(read(&a, 0, 512), []);
    // Extending, not from the start: a hole before.
    assert_eq!(a.write_direct_at(2 * BLOCK as u64 + 512, &[7; 1024]).unwrap(), 1024);
    assert_eq!(a.inode().size(), 2 * BLOCK as u64 + 1536);
    let all = read(&a, 0, 4 * BLOCK);
    assert_eq!(all.len(), 2 * BLOCK + 1536);
    assert!(all[..2 * BLOCK + 512].iter().all(|&byte| byte == 0));
    assert!(all[2 * BLOCK + 512..].iter().all(|&byte| byte == 7));
    // Into the hole, into a part of a block.
    assert_eq!(a.write_direct_at(512, &[8; 512]).unwrap(), 512);
    let first = read(&a, 0, BLOCK);
    assert!(first[..512].iter().chain(&first[1024..]).all(|&byte| byte == 0));
    assert!(first[512..1024].iter().all(|&byte| byte == 8));
    // A tail that is no sector: read short; a buffered write made it.
    a.write_at(2 * BLOCK as u64 + 1536, &[9; 100]).unwrap();
    assert_eq!(read(&a, 2 * BLOCK as u64 + 1024, BLOCK).len(), 612);
    assert_eq!(read(&a, 2 * BLOCK as u64 + 1536, 512), [9; 100]);
    assert_eq!(read(&a, 1 << 30, 512), []);
    // Unwritten blocks read as zeroes and are converted by what is written.
    a.allocate(AllocateMode::Allocate { keep_size: false }, 0, 64 * BLOCK as u64).unwrap();
    assert!(read(&a, 40 * BLOCK as u64, BLOCK).iter().all(|&byte| byte == 0));
    a.write_direct_at(40 * BLOCK as u64, &[5; BLOCK]).unwrap();
    assert_eq!(read(&a, 40 * BLOCK as u64, BLOCK), [5; BLOCK]);
    assert!(read(&a, 41 * BLOCK as u64, BLOCK).iter().all(|&byte| byte == 0));
    // Past the largest file.
    let far = u64::from(u32::MAX) * BLOCK as u64;
    let error = a.write_direct_at(far, &[0; 2 * BLOCK]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::FileTooBig);
    // A directory is none.
    let root = volume.open_file(&volume.root().unwrap()).unwrap();
    assert_eq!(*root.read_direct_at(0, &mut [0; 512]).unwrap_err().kind(), ErrorKind::IsADirectory);
    close(volume, &device);
}

/// Overwrites and reads of what is written start no handle, take no slow way, and are the only
/// device requests.
#[test]
fn a_pure_overwrite_is_one_request_of_the_device() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(64, "-b 4096"));
    let meter = Arc::new(MeteredDevice::new(memory.clone()));
    let shared: SharedDevice = meter.clone();
    let volume = Volume::open(shared, MountOptions::default()).unwrap();
    let a = file(&volume, "a");
    a.allocate(AllocateMode::Allocate { keep_size: false }, 0, 512 * BLOCK as u64).unwrap();
    for at in 0..16 {
        a.write_direct_at(at * 32 * BLOCK as u64, &[1; 32 * BLOCK]).unwrap();
    }
    a.sync(false).unwrap();
    a.write_direct_at(0, &[2; BLOCK]).unwrap();
    let handles = number(&volume, "handles");
    let overwrites = number(&volume, "direct_overwrites");
    let before = meter.read_meter();
    let mut rng = StdRng::seed_from_u64(7);
    for _ in 0..1000 {
        let at = rng.random_range(0..512_u64) * BLOCK as u64;
        a.write_direct_at(at, &[3; BLOCK]).unwrap();
        assert_eq!(read(&a, at, BLOCK), [3; BLOCK]);
    }
    let after = meter.read_meter();
    assert_eq!(number(&volume, "handles"), handles);
    assert_eq!(number(&volume, "direct_overwrites") - overwrites, 1000);
    assert_eq!((after.writes - before.writes, after.reads - before.reads), (1000, 1000));
    // A sync of overwrites flushes once, each time.
    for _ in 0..3 {
        a.write_direct_at(0, &[4; BLOCK]).unwrap();
        let flushes = meter.read_meter().flushes;
        a.sync(true).unwrap();
        assert_eq!(meter.read_meter().flushes, flushes + 1);
        a.sync(true).unwrap();
        assert_eq!(meter.read_meter().flushes, flushes + 1);
    }
    // Times follow.
    let before = volume.attr(a.inode());
    std::thread::sleep(std::time::Duration::from_millis(30));
    a.write_direct_at(0, &[4; BLOCK]).unwrap();
    let after = volume.attr(a.inode());
    let at = |time: uext4::Timestamp| (time.secs, time.nanos);
    assert!(at(after.mtime) > at(before.mtime) && at(after.ctime) > at(before.ctime));
    drop(a);
    close(volume, &memory);
}

#[test]
fn flags_of_the_inode_and_of_the_volume() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096"));
    let volume = mount_with(&device, MountOptions::default());
    file(&volume, "a").write_direct_at(0, &[1; BLOCK]).unwrap();
    volume.close().unwrap();
    // Journaled data falls back to the cache, and to the log.
    let mut options = MountOptions::default();
    options.parse("data=journal").unwrap();
    let volume = mount_with(&device, options);
    let root = volume.root().unwrap();
    let a = volume.open_file(&volume.lookup(&root, b"a").unwrap()).unwrap();
    assert_eq!(a.write_direct_at(512, &[2; 1024]).unwrap(), 1024);
    assert_eq!(read(&a, 0, 2048), [[1; 512].as_slice(), &[2; 1024], &[1; 512]].concat());
    assert_eq!(number(&volume, "direct_overwrites"), 0);
    drop((a, root));
    close(volume, &device);
    let mut options = MountOptions::default();
    options.parse("ro").unwrap();
    let volume = mount_with(&device, options);
    let inode = volume.lookup(&volume.root().unwrap(), b"a").unwrap();
    let a = volume.open_file(&inode).unwrap();
    assert_eq!(read(&a, 512, 512), [2; 512]);
    assert_eq!(read(&a, 512, 512), [2; 512]);
    assert_eq!(*a.write_direct_at(0, &[0; 512]).unwrap_err().kind(), ErrorKind::ReadOnly);
}

/// A write that has space for its front only is short, and what it wrote is there.
#[test]
fn no_space_makes_writes_short() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096 -m 0"));
    let volume = mount(&device);
    let a = file(&volume, "a");
    let data = vec![6; 32 << 20];
    let count = a.write_direct_at(0, &data).unwrap();
    assert!(count > 4 << 20 && count < 16 << 20 && count.is_multiple_of(BLOCK), "{count}");
    assert_eq!(a.inode().size(), count as u64);
    assert!(read(&a, 0, count) == data[..count]);
    // Reservations are worst cases: a few blocks may be left for smaller ones.
    let mut end = count;
    let error = loop {
        match a.write_direct_at(end as u64, &data[..16 << 20]) {
            Ok(more) => end += more,
            Err(error) => break error,
        }
    };
    assert_eq!(*error.kind(), ErrorKind::NoSpace);
    assert_eq!(a.inode().size(), end as u64);
    // Overwriting needs none.
    a.write_direct_at(0, &[7; BLOCK]).unwrap();
    a.sync(false).unwrap();
    drop(a);
    close(volume, &device);
}

const SIZE_MAX: usize = 40 * BLOCK;

/// One step of everything that reads and changes files, by the cache, directly, and by a queue.
fn step(rng: &mut StdRng, file: &OpenFile, queue: &mut DirectQueue, model: &mut Model) {
    let fill = rng.random_range(1..=255);
    let offset = rng.random_range(0..SIZE_MAX);
    let len = rng.random_range(1..4 * BLOCK);
    let (sector, sectors) = (offset / 512 * 512, len.next_multiple_of(512));
    let (block, blocks) = (offset / BLOCK * BLOCK, len.next_multiple_of(BLOCK));
    match rng.random_range(0..20) {
        0..=2 => {
            file.write_at(offset as u64, &vec![fill; len]).unwrap();
            model.write(offset, &vec![fill; len]);
        }
        3..=7 => {
            file.write_direct_at(sector as u64, &vec![fill; sectors]).unwrap();
            model.write(sector, &vec![fill; sectors]);
        }
        8..=9 => {
            file.write_direct_at(block as u64, &vec![fill; blocks]).unwrap();
            model.write(block, &vec![fill; blocks]);
        }
        10..=11 => {
            let mut bytes = vec![0; len];
            let count = file.read_at(offset as u64, &mut bytes).unwrap();
            assert!(bytes[..count] == *model.at(offset, len), "buffered read");
        }
        12 => {
            let size = rng.random_range(0..SIZE_MAX);
            truncate(file, size as u64);
            model.resize(size);
        }
        13 => {
            file.allocate(AllocateMode::PunchHole, offset as u64, len as u64).unwrap();
            model.zero(offset, offset + len);
        }
        14 => {
            let mode = AllocateMode::ZeroRange { keep_size: true };
            file.allocate(mode, offset as u64, len as u64).unwrap();
            model.zero(offset, offset + len);
        }
        15 => {
            let mode = AllocateMode::Allocate { keep_size: rng.random() };
            file.allocate(mode, offset as u64, len as u64).unwrap();
            if mode == (AllocateMode::Allocate { keep_size: false }) {
                model.resize(model.0.len().max(offset + len));
            }
        }
        16 if block + blocks < model.0.len() => {
            file.allocate(AllocateMode::CollapseRange, block as u64, blocks as u64).unwrap();
            model.0.drain(block..block + blocks);
        }
        17 if block < model.0.len() && model.0.len() < SIZE_MAX => {
            file.allocate(AllocateMode::InsertRange, block as u64, blocks as u64).unwrap();
            model.0.splice(block..block, std::iter::repeat_n(0, blocks));
        }
        18 => file.sync(rng.random()).unwrap(),
        _ => queued(rng, file, queue, model),
    }
    let direct = read(file, sector as u64, sectors);
    assert!(direct == model.at(sector, sectors), "direct read of {sectors} at {sector}");
    assert_eq!(file.inode().size(), model.0.len() as u64);
}

fn truncate(file: &OpenFile, size: u64) {
    FILES.with_borrow(|volume| {
        let change = uext4::SetAttr { size: Some(size), ..Default::default() };
        volume.as_ref().unwrap().set_attr(file.inode(), &change).unwrap();
    });
}

thread_local! {
    static FILES: std::cell::RefCell<Option<Volume>> = const { std::cell::RefCell::new(None) };
}

/// Several writes that do not overlap, then reads of them, through the queue.
fn queued(rng: &mut StdRng, file: &OpenFile, queue: &mut DirectQueue, model: &mut Model) {
    let direct = queue.register(file.inode()).unwrap();
    let places: Vec<usize> = (0..4).map(|n| n * SIZE_MAX / 4).collect();
    let mut done: Vec<DirectDone> = Vec::new();
    for (tag, place) in places.iter().enumerate() {
        let offset = place + rng.random_range(0..4) * 512;
        let len = rng.random_range(1..24) * 512;
        let fill = rng.random_range(1..=255);
        let op = if rng.random() { DirectOp::Write } else { DirectOp::WriteDurable };
        let request = DirectRequest {
            file: direct,
            op,
            offset: offset as u64,
            buf: buf(fill, len),
            tag: tag as u64,
        };
        queue.push(request).unwrap();
        model.write(offset, &vec![fill; len]);
    }
    queue.submit().unwrap();
    queue.reap(4, &mut done).unwrap();
    assert_eq!((done.len(), queue.in_flight()), (4, 0));
    assert!(done.iter().all(|one| one.result.as_ref().unwrap() == &one.buf.len()));
    done.clear();
    for (tag, place) in places.iter().enumerate() {
        let (op, offset) = (DirectOp::Read, *place as u64);
        queue
            .push(DirectRequest { file: direct, op, offset, buf: buf(0, 4096), tag: tag as u64 })
            .unwrap();
    }
    queue.reap(4, &mut done).unwrap();
    for one in done {
        let (offset, count) = (places[one.tag as usize], one.result.unwrap());
        assert!(one.buf[..count] == *model.at(offset, 4096), "queued read");
    }
}

#[test]
fn buffered_and_direct_access_agree_with_bytes_in_memory() {
    if !have("mke2fs") {
        return;
    }
    for (seed, words) in (1..).zip([
        "",
        "",
        "",
        "",
        "dio_completion=deferred",
        "writeback=ordered",
        "writeback=unwritten",
        "nodelalloc",
        "data=journal",
        "extent_max_zeroout_kb=0",
    ]) {
        for block_size in [1024, 4096] {
            let device = Arc::new(mke2fs(24, &format!("-b {block_size}")));
            let mut options = MountOptions::default();
            words.split(',').filter(|w| !w.is_empty()).for_each(|w| options.parse(w).unwrap());
            let volume = mount_with(&device, options.clone());
            FILES.set(Some(volume.clone()));
            let (mut rng, mut model) = (StdRng::seed_from_u64(seed), Model::default());
            let (a, mut queue) = (file(&volume, "a"), queue(&volume, 8));
            for n in 0..600 {
                let mut next = rng.clone();
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    step(&mut next, &a, &mut queue, &mut model);
                }));
                assert!(result.is_ok(), "seed {seed} ({words}, blocks of {block_size}), step {n}");
                rng = next;
            }
            FILES.set(None);
            drop((a, queue));
            volume.close().unwrap();
            assert_clean(&device);
            let volume = mount_with(&device, options);
            let inode = volume.lookup(&volume.root().unwrap(), b"a").unwrap();
            let mut all = vec![0; model.0.len()];
            let a = volume.open_file(&inode).unwrap();
            assert_eq!(a.read_at(0, &mut all).unwrap(), all.len());
            assert!(all == model.0, "seed {seed} ({words}): after a mount");
        }
    }
}
