//! Direct requests in several pieces on the device, and direct writes to unwritten blocks.
//!
//! Fault model: a request of a queue that is split and put together wrongly, or not split where it
//! could be; a failing piece; data written in place under a mapping that changes before it is
//! converted; a crash of the order of data and mapping is `uext4-sim crash direct`.

mod common;

use common::{assert_clean, have, mke2fs, mount, new};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uext4::{
    AllocateMode, DirectDone, DirectFile, DirectOp, DirectOptions, DirectQueue, DirectRequest,
    FileKind, IoBuf, MountOptions, OpenFile, SetAttr, Volume,
};
use uext4_device::{
    Access, FaultDevice, FaultPlan, FileDevice, FileOptions, MemoryDevice, MeteredDevice,
    Operation, SharedDevice, Times,
};

const BLOCK: usize = 4096;

/// A fault is injected into the whole process: tests run one after the other.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file(volume: &Volume, name: &str) -> OpenFile {
    let root = volume.root().unwrap();
    let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

fn number(volume: &Volume, name: &str) -> u64 {
    volume.stats().number(name).unwrap()
}

fn queue(volume: &Volume, depth: usize) -> DirectQueue {
    let options = DirectOptions { depth, polled: false, memory: Vec::new() };
    volume.direct_queue(options).unwrap()
}

/// Bytes that tell where they are, and which writing they are of.
fn bytes(offset: u64, len: usize, round: u8) -> Vec<u8> {
    (0..len as u64).map(|at| ((offset + at) / 512 % 251) as u8 ^ round).collect()
}

fn request(file: DirectFile, op: DirectOp, offset: u64, data: &[u8]) -> DirectRequest {
    let mut buf = IoBuf::new(data.len()).unwrap();
    buf.copy_from_slice(data);
    DirectRequest { file, op, offset, buf, tag: offset }
}

fn read(file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let mut all = vec![9; len];
    let count = file.read_direct_at(offset, &mut all).unwrap();
    all.truncate(count);
    all
}

fn done(queue: &mut DirectQueue, count: usize) -> Vec<DirectDone> {
    let mut done = Vec::new();
    queue.reap(count, &mut done).unwrap();
    assert_eq!(done.len(), count);
    done.sort_by_key(|one| one.tag);
    done
}

/// A file of 64 blocks whose blocks 4, 8, 12, .. and those after them are apart on the device: 16
/// extents.
fn in_fragments(volume: &Volume, name: &str) -> OpenFile {
    let a = file(volume, name);
    a.write_direct_at(0, &vec![1; 79 * BLOCK]).unwrap();
    for n in 1..=15 {
        a.allocate(AllocateMode::CollapseRange, n * 4 * BLOCK as u64, BLOCK as u64).unwrap();
    }
    assert_eq!(a.inode().size(), 64 * BLOCK as u64);
    a.write_direct_at(0, &bytes(0, 64 * BLOCK, 0)).unwrap();
    a
}

/// One request of the device for each piece, when it is submitted; and what lies in too many goes
/// all the same.
#[test]
fn a_request_goes_to_the_device_piece_by_piece() {
    if !have("mke2fs") {
        return;
    }
    let _alone = one_at_a_time();
    let memory = Arc::new(mke2fs(64, "-b 4096"));
    let meter = Arc::new(MeteredDevice::new(memory.clone()));
    let shared: SharedDevice = meter.clone();
    let volume = Volume::open(shared, MountOptions::default()).unwrap();
    let a = in_fragments(&volume, "a");
    volume.sync().unwrap();
    let mut queue = queue(&volume, 8);
    let known = queue.register(a.inode()).unwrap();
    // Blocks, and pieces that they lie in.
    for (round, (first, blocks, pieces)) in
        (1..).zip([(0, 4, 1), (2, 4, 2), (3, 9, 3), (0, 32, 8), (1, 32, 9)])
    {
        let (offset, len) = (first * BLOCK as u64, blocks * BLOCK);
        for op in [DirectOp::Write, DirectOp::WriteDurable, DirectOp::Read] {
            let data = bytes(offset, len, round);
            let filler = vec![0; len];
            let given = if op == DirectOp::Read { &filler } else { &data };
            let before = meter.read_meter();
            queue.push(request(known, op, offset, given)).unwrap();
            queue.submit().unwrap();
            let after = meter.read_meter();
            let seen = match op {
                DirectOp::Read => after.reads - before.reads,
                _ => after.writes - before.writes,
            };
            assert_eq!(seen, if pieces > 8 { 0 } else { pieces }, "{op:?} in {pieces}");
            let one = done(&mut queue, 1).remove(0);
            assert_eq!(one.result.unwrap(), len);
            assert!(one.buf[..] == data[..], "{op:?} in {pieces}");
            assert_eq!(read(&a, offset, len), data);
        }
    }
    assert_eq!(number(&volume, "direct_writes_held"), 0);
    // The end of the file is as it is for what lies in one piece.
    let filler = vec![0; 8 * BLOCK];
    queue.push(request(known, DirectOp::Read, 60 * BLOCK as u64, &filler)).unwrap();
    assert_eq!(done(&mut queue, 1)[0].result.as_ref().unwrap(), &(4 * BLOCK));
    // A full queue of requests in pieces: as many as the device takes, the others by calls.
    for tag in 0..8 {
        let offset = tag * 8 * BLOCK as u64;
        queue.push(request(known, DirectOp::Write, offset, &bytes(offset, 8 * BLOCK, 77))).unwrap();
    }
    let all = done(&mut queue, 8);
    assert!(all.iter().all(|one| one.result.as_ref().is_ok_and(|&len| len == 8 * BLOCK)));
    assert_eq!(read(&a, 0, 64 * BLOCK), bytes(0, 64 * BLOCK, 77));
    drop((queue, a));
    volume.close().unwrap();
    assert_clean(&memory);
}

/// The request fails if a piece does, comes back whole, and holds nobody up.
#[test]
fn a_piece_that_fails_is_the_requests_failure() {
    if !have("mke2fs") {
        return;
    }
    let _alone = one_at_a_time();
    let memory = Arc::new(mke2fs(64, "-b 4096"));
    let faulty = Arc::new(FaultDevice::new(memory.clone()));
    let shared: SharedDevice = faulty.clone();
    let volume = Volume::open(shared, MountOptions::default()).unwrap();
    let a = in_fragments(&volume, "a");
    let mut queue = queue(&volume, 8);
    let known = queue.register(a.inode()).unwrap();
    for nth in 1..=3 {
        // Nothing else is written meanwhile.
        volume.sync().unwrap();
        read(&a, 0, 64 * BLOCK);
        let (offset, len) = (2 * BLOCK as u64, 8 * BLOCK);
        let fault = uext4_device::Fault::Io;
        faulty.reset();
        faulty.arm(FaultPlan { operation: Operation::Write, nth, times: Times::Once, fault });
        queue.push(request(known, DirectOp::Write, offset, &bytes(offset, len, 5))).unwrap();
        let one = done(&mut queue, 1).remove(0);
        assert!(one.result.is_err(), "piece {nth}");
        assert!(one.buf[..] == bytes(offset, len, 5)[..]);
        a.allocate(AllocateMode::PunchHole, 0, BLOCK as u64).unwrap();
        a.write_direct_at(0, &bytes(0, 64 * BLOCK, 0)).unwrap();
    }
    drop((queue, a));
    volume.close().unwrap();
    assert_clean(&memory);
}

/// On a real file, by rings where the system has them; the queue moves to another thread with its
/// requests, and a removal completes what nobody reaps.
#[test]
fn pieces_on_a_ring_move_and_are_helped() {
    if !have("mke2fs") {
        return;
    }
    let _alone = one_at_a_time();
    let image = tempfile::NamedTempFile::new().unwrap();
    mke2fs(32, "-b 4096").save(image.path()).unwrap();
    let options = FileOptions::auto(Access::ReadWrite);
    let device = Arc::new(FileDevice::open_with(image.path(), &options).unwrap());
    println!("rings: {}", device.uses_uring());
    let volume = Volume::open(device, MountOptions::default()).unwrap();
    let a = in_fragments(&volume, "a");
    read(&a, 0, 64 * BLOCK);
    let mut queue = queue(&volume, 16);
    let known = queue.register(a.inode()).unwrap();
    let push_all = |queue: &mut DirectQueue, round: u8| {
        for n in 0..8 {
            let offset = n * 8 * BLOCK as u64;
            let data = bytes(offset, 8 * BLOCK, round);
            queue.push(request(known, DirectOp::Write, offset, &data)).unwrap();
        }
        queue.submit().unwrap();
    };
    for round in 1..20 {
        push_all(&mut queue, round);
        let (back, all) = std::thread::spawn(move || {
            let all = done(&mut queue, 8);
            (queue, all)
        })
        .join()
        .unwrap();
        queue = back;
        assert!(all.iter().all(|one| one.buf[..] == bytes(one.tag, 8 * BLOCK, round)[..]));
        assert!(all.iter().all(|one| one.result.as_ref().is_ok_and(|&len| len == 8 * BLOCK)));
        assert_eq!(read(&a, 0, 64 * BLOCK), bytes(0, 64 * BLOCK, round));
    }
    push_all(&mut queue, 33);
    std::thread::scope(|scope| {
        scope.spawn(|| a.allocate(AllocateMode::PunchHole, 0, 32 * BLOCK as u64).unwrap());
    });
    assert!(done(&mut queue, 8).iter().all(|one| one.result.is_ok()));
    assert_eq!(read(&a, 32 * BLOCK as u64, 32 * BLOCK), bytes(32 * BLOCK as u64, 32 * BLOCK, 33));
    assert!(read(&a, 0, 32 * BLOCK).iter().all(|&byte| byte == 0));
    // Dropped with requests on the device.
    a.write_direct_at(0, &bytes(0, 64 * BLOCK, 0)).unwrap();
    read(&a, 0, 64 * BLOCK);
    push_all(&mut queue, 44);
    drop(queue);
    a.allocate(AllocateMode::PunchHole, 0, BLOCK as u64).unwrap();
    drop(a);
    volume.close().unwrap();
    assert_clean(&MemoryDevice::load(image.path()).unwrap());
}

const BLOCKS: u64 = 256;

/// A file of unwritten blocks whose places on the device held something before.
fn preallocated(volume: &Volume, name: &str) -> OpenFile {
    let old = file(volume, "old");
    old.write_direct_at(0, &vec![0xee; BLOCKS as usize * BLOCK]).unwrap();
    volume.sync().unwrap();
    drop(old);
    volume.unlink(&volume.root().unwrap(), b"old").unwrap();
    volume.sync().unwrap();
    let a = file(volume, name);
    let mode = AllocateMode::Allocate { keep_size: false };
    a.allocate(mode, 0, BLOCKS * BLOCK as u64).unwrap();
    a
}

/// Writes to unwritten blocks, by a queue and by calls, take no lock for their data and share
/// handles for their mappings; parts of blocks go as they went, with zeroes around.
#[test]
fn writes_to_unwritten_blocks_go_there_and_are_converted_together() {
    if !have("mke2fs") {
        return;
    }
    let _alone = one_at_a_time();
    let device = Arc::new(mke2fs(64, "-b 4096"));
    let volume = mount(&device);
    let a = preallocated(&volume, "a");
    let mut queue = queue(&volume, 32);
    let known = queue.register(a.inode()).unwrap();
    let mut model = vec![0; BLOCKS as usize * BLOCK];
    let groups = number(&volume, "direct_groups");
    let mut write = |model: &mut Vec<u8>, blocks: &mut dyn Iterator<Item = u64>, op| {
        let (mut count, handles) = (0, number(&volume, "handles"));
        for block in blocks {
            let offset = block * BLOCK as u64;
            let data = bytes(offset, 2 * BLOCK, 3);
            model[offset as usize..][..data.len()].copy_from_slice(&data);
            queue.push(request(known, op, offset, &data)).unwrap();
            count += 1;
        }
        let all = done(&mut queue, count);
        assert!(all.iter().all(|one| one.result.as_ref().is_ok_and(|&len| len == 2 * BLOCK)));
        number(&volume, "handles") - handles
    };
    // The first ones teach the queue.
    write(&mut model, &mut [0].into_iter(), DirectOp::Write);
    let taken = write(&mut model, &mut (1..25).map(|n| n * 8 % BLOCKS), DirectOp::Write);
    assert_eq!(taken, 1);
    assert_eq!(number(&volume, "direct_writes_in_place"), 25);
    assert_eq!(number(&volume, "direct_writes_into_unwritten"), 25);
    assert_eq!(number(&volume, "direct_groups"), groups);
    // Half written, half not; and the same once more, which is learnt: then it is an overwrite.
    let taken = write(&mut model, &mut (1..25).map(|n| n * 8 + 1), DirectOp::WriteDurable);
    assert!(taken <= 2, "{taken} handles");
    write(&mut model, &mut (1..25).map(|n| n * 8 + 1), DirectOp::Write);
    let in_place = number(&volume, "direct_writes_in_place");
    write(&mut model, &mut (1..25).map(|n| n * 8 + 1), DirectOp::Write);
    assert_eq!(number(&volume, "direct_writes_in_place"), in_place);
    assert_eq!(number(&volume, "direct_groups"), groups);
    // By calls, also durable ones.
    for (n, durable) in [(210, false), (220, true)] {
        let offset = n * BLOCK as u64;
        let data = bytes(offset, BLOCK, 8);
        match durable {
            true => a.write_direct_durably_at(offset, &data).unwrap(),
            false => a.write_direct_at(offset, &data).unwrap(),
        };
        model[offset as usize..][..BLOCK].copy_from_slice(&data);
    }
    assert_eq!(number(&volume, "direct_writes_in_place"), in_place + 2);
    // Parts of blocks.
    let offset = 230 * BLOCK as u64 + 512;
    a.write_direct_at(offset, &[7; 1024]).unwrap();
    model[offset as usize..][..1024].fill(7);
    assert_eq!(number(&volume, "direct_writes_in_place"), in_place + 2);
    assert!(read(&a, 0, model.len()) == model);
    drop((queue, a));
    volume.close().unwrap();
    assert_clean(&device);
    let volume = mount(&device);
    let inode = volume.lookup(&volume.root().unwrap(), b"a").unwrap();
    let a = volume.open_file(&inode).unwrap();
    assert!(read(&a, 0, model.len()) == model, "after a mount");
}

/// What is dirty is written back first; the next read asks the device.
#[test]
fn dropped_pages_are_read_again() {
    if !have("mke2fs") {
        return;
    }
    let _alone = one_at_a_time();
    let memory = Arc::new(mke2fs(16, "-b 4096"));
    let meter = Arc::new(MeteredDevice::new(memory.clone()));
    let shared: SharedDevice = meter.clone();
    let volume = Volume::open(shared, MountOptions::default()).unwrap();
    let a = file(&volume, "a");
    let data = bytes(0, 8 * BLOCK, 1);
    assert_eq!(a.write_at(0, &data).unwrap(), data.len());
    let mut back = vec![0; data.len()];
    for reads_device in [false, true] {
        if reads_device {
            a.drop_cached().unwrap();
        }
        let before = meter.read_meter().reads;
        a.read_at(0, &mut back).unwrap();
        assert_eq!(meter.read_meter().reads > before, reads_device);
        assert!(back == data);
    }
    drop(a);
    volume.close().unwrap();
    assert_clean(&memory);
}

/// What stands between the writing of data in place and its conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Punch,
    Reallocate,
    Cut,
    Buffered,
    Part,
}

/// Two blocks are written in place; then something happens to them; then they are reaped. The
/// result is as if the request had been made after that. What was found else.
fn interrupted(between: Between) -> Option<String> {
    let device = Arc::new(mke2fs(16, "-b 4096"));
    let volume = mount(&device);
    let a = preallocated(&volume, "a");
    let mut queue = queue(&volume, 8);
    let known = queue.register(a.inode()).unwrap();
    let all = BLOCKS * BLOCK as u64;
    queue.push(request(known, DirectOp::Write, 0, &[1; BLOCK])).unwrap();
    done(&mut queue, 1);
    let offset = 100 * BLOCK as u64;
    queue.push(request(known, DirectOp::Write, offset, &[2; 2 * BLOCK])).unwrap();
    queue.submit().unwrap();
    let mut other = None;
    match between {
        Between::Punch | Between::Reallocate => {
            a.allocate(AllocateMode::PunchHole, 0, all).unwrap();
            volume.sync().unwrap();
            let b = file(&volume, "b");
            while b.write_direct_at(b.inode().size(), &[0xbb; 64 * BLOCK]).is_ok() {}
            if between == Between::Reallocate {
                // The same blocks, perhaps, with what the other file left there.
                let change = SetAttr { size: Some(0), ..SetAttr::default() };
                volume.set_attr(b.inode(), &change).unwrap();
                volume.sync().unwrap();
                let mode = AllocateMode::Allocate { keep_size: false };
                a.allocate(mode, 0, all).unwrap();
            } else {
                let change = SetAttr { size: Some(b.inode().size() / 2), ..SetAttr::default() };
                volume.set_attr(b.inode(), &change).unwrap();
                volume.sync().unwrap();
                other = Some(b);
            }
        }
        Between::Cut => {
            for size in [0, all] {
                let change = SetAttr { size: Some(size), ..SetAttr::default() };
                volume.set_attr(a.inode(), &change).unwrap();
            }
        }
        Between::Buffered => {
            a.write_at(offset + 100, &[3; 100]).unwrap();
            // No page is left to tell of it.
            a.drop_cached().unwrap();
        }
        Between::Part => {
            a.write_direct_at(offset, &[3; 512]).unwrap();
        }
    }
    let one = done(&mut queue, 1).remove(0);
    if one.result.as_ref().ok() != Some(&(2 * BLOCK)) {
        return Some(format!("{:?}", one.result));
    }
    let back = read(&a, offset, 2 * BLOCK);
    if back != [2; 2 * BLOCK] {
        let at = back.iter().position(|&byte| byte != 2);
        return Some(format!("{} bytes, other than written from {at:?}", back.len()));
    }
    let foreign = read(&a, 0, all as usize).iter().position(|&b| b == 0xbb || b == 0xee);
    if let Some(at) = foreign {
        return Some(format!("another file's byte at {at}"));
    }
    if let Some(b) = &other
        && read(b, 0, b.inode().size() as usize).iter().any(|&byte| byte != 0xbb)
    {
        return Some("the other file was overwritten".to_owned());
    }
    drop((queue, a, other));
    volume.close().unwrap();
    assert_clean(&device);
    None
}

const ALL: [Between; 5] =
    [Between::Punch, Between::Reallocate, Between::Cut, Between::Buffered, Between::Part];

#[test]
fn what_has_lost_its_blocks_since_is_written_again() {
    let _alone = one_at_a_time();
    if have("mke2fs") {
        for between in ALL {
            assert_eq!(interrupted(between), None, "{between:?}");
        }
    }
}

/// These are found where nobody looks whether something has happened. With the others a block has
/// gone, and that is seen.
#[test]
#[cfg(feature = "injected-faults")]
fn and_that_would_be_found() {
    use uext4::injected_faults::{Fault, inject};
    let _alone = one_at_a_time();
    if have("mke2fs") {
        for between in [Between::Reallocate, Between::Buffered, Between::Part] {
            inject(Some(Fault::BlindConversion));
            let found = std::panic::catch_unwind(|| interrupted(between));
            inject(None);
            println!("{between:?}: {found:?}");
            assert!(!matches!(found, Ok(None)), "{between:?}");
        }
    }
}
