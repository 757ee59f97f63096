//! Queues of direct requests: what is started together, and which calls wait for which.
//!
//! Fault model: requests that get a handle each, or come back without their buffer; a thread that
//! waits for itself; requests that nobody reaps. Not covered: content (`direct.rs`), races
//! (`direct_races.rs`), crashes (uext4-sim, category `direct`).

mod common;
#[path = "common/direct.rs"]
mod way;

use common::{assert_clean, have, mke2fs, mount, mount_with};
use std::sync::Arc;
use uext4::{
    AllocateMode, DirectOp, DirectOptions, DirectRequest, ErrorKind, MountOptions, OpenFile, Volume,
};
use uext4_device::{Access, FileDevice, FileOptions, MemoryDevice};
use way::{buf, close, file, number, queue, read};

const BLOCK: usize = 4096;

/// A file without a name is deleted once the queue lets it go, which it does with nothing of it
/// under way; its number may be another's then, but not for its holder.
#[test]
fn a_file_that_is_let_go_can_be_deleted() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096"));
    let volume = mount(&device);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    b.write_direct_at(0, &[7; BLOCK]).unwrap();
    volume.sync().unwrap();
    let free = volume.stat_fs().blocks_free;
    let mut queue = queue(&volume, 4);
    let request = |file, op| DirectRequest { file, op, offset: 0, buf: buf(1, BLOCK), tag: 0 };
    let known = queue.register(a.inode()).unwrap();
    let mut done = Vec::new();
    for round in 0..3 {
        // It waits for the reap, for it needs a block; then it is on the device; then pushed only.
        queue.push(request(known, DirectOp::Write)).unwrap();
        if round < 2 {
            queue.submit().unwrap();
        }
        let refused = queue.unregister(known).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::InvalidArgument);
        queue.reap(1, &mut done).unwrap();
        assert_eq!(done.pop().unwrap().result.unwrap(), BLOCK);
    }
    // Known twice, and let go once: a waiter for its requests still drives them.
    let twice = queue.register(a.inode()).unwrap();
    queue.unregister(twice).unwrap();
    queue.push(request(known, DirectOp::Write)).unwrap();
    queue.submit().unwrap();
    a.allocate(AllocateMode::ZeroRange { keep_size: true }, 0, BLOCK as u64).unwrap();
    queue.reap(1, &mut done).unwrap();
    assert_eq!(done.pop().unwrap().result.unwrap(), BLOCK);
    volume.sync().unwrap();
    volume.unlink(&volume.root().unwrap(), b"a").unwrap();
    drop(a);
    volume.delete_unlinked().unwrap();
    assert_eq!(volume.stat_fs().blocks_free, free - 1, "the queue holds it");

    queue.unregister(known).unwrap();
    volume.delete_unlinked().unwrap();
    assert_eq!(volume.stat_fs().blocks_free, free);
    let other = queue.register(b.inode()).unwrap();
    queue.push(request(known, DirectOp::Write)).unwrap();
    queue.reap(1, &mut done).unwrap();
    assert!(done.pop().unwrap().result.is_err(), "an old number");
    assert!(queue.unregister(known).is_err());
    queue.push(request(other, DirectOp::Read)).unwrap();
    queue.reap(1, &mut done).unwrap();
    assert_eq!(done.pop().unwrap().buf[..], [7; BLOCK]);
    drop((queue, b));
    close(volume, &device);
}

/// What goes together shares handles; what is refused comes back with its buffer.
#[test]
fn a_queue_gathers_what_the_device_cannot_do_alone() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(64, "-b 4096"));
    let volume = mount(&device);
    let files: Vec<OpenFile> = (0..32).map(|n| file(&volume, &format!("f{n}"))).collect();
    let mut queue = queue(&volume, 64);
    let direct: Vec<_> = files.iter().map(|f| queue.register(f.inode()).unwrap()).collect();
    volume.sync().unwrap();
    let handles = number(&volume, "handles");
    for (tag, file) in (0..).zip(&direct) {
        let op = DirectOp::Write;
        let request = DirectRequest { file: *file, op, offset: 0, buf: buf(tag as u8, BLOCK), tag };
        queue.push(request).unwrap();
    }
    let mut done = Vec::new();
    queue.reap(32, &mut done).unwrap();
    assert_eq!(done.len(), 32);
    assert!(done.iter().all(|one| one.result.as_ref().is_ok_and(|&len| len == BLOCK)));
    let taken = number(&volume, "handles") - handles;
    assert!(taken <= 4, "{taken} handles for 32 files");
    assert_eq!(number(&volume, "direct_groups"), 1);
    assert_eq!(number(&volume, "direct_writes_extending"), 32);
    for (n, file) in files.iter().enumerate() {
        assert_eq!(read(file, 0, BLOCK), [n as u8; BLOCK]);
    }
    // A full queue gives requests back; a bad one is answered.
    let mut small = self::queue(&volume, 1);
    let known = small.register(files[0].inode()).unwrap();
    let request = |file, offset| DirectRequest {
        file,
        op: DirectOp::Write,
        offset,
        buf: buf(1, 512),
        tag: 9,
    };
    small.push(request(known, 3)).unwrap();
    let back = small.push(request(known, 0)).unwrap_err();
    assert_eq!(back.buf.len(), 512);
    done.clear();
    small.reap(1, &mut done).unwrap();
    let error = done.pop().unwrap().result.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
    for file in [direct[0], direct[31]] {
        small.push(request(file, 0)).unwrap();
        small.reap(1, &mut done).unwrap();
        assert!(done.pop().unwrap().result.is_err(), "a file of another queue");
    }
    assert!(small.register(&volume.root().unwrap()).is_err());
    assert!(
        volume.direct_queue(DirectOptions { depth: 0, polled: false, memory: vec![] }).is_err()
    );
    drop((small, queue, files));
    close(volume, &device);
}

/// One thread has requests on the device, or not even started, and cuts, punches or reads the file
/// through the cache: it completes those that are started on its way, and finds all when it reaps.
#[test]
fn a_thread_that_waits_for_its_own_requests_goes_on() {
    if !have("mke2fs") {
        return;
    }
    for words in ["", "dio_completion=deferred"] {
        let device = Arc::new(mke2fs(16, "-b 4096"));
        let mut options = MountOptions::default();
        words.split(',').filter(|w| !w.is_empty()).for_each(|w| options.parse(w).unwrap());
        let volume = mount_with(&device, options);
        let a = file(&volume, "a");
        a.write_direct_at(0, &[1; 16 * BLOCK]).unwrap();
        let mut queue = queue(&volume, 16);
        let direct = queue.register(a.inode()).unwrap();
        let mut done = Vec::new();
        for round in 0..6_u64 {
            // Learns the mapping again.
            read(&a, 0, BLOCK);
            a.write_direct_at(0, &[1; 8 * BLOCK]).unwrap();
            a.write_direct_at(0, &[1; 8 * BLOCK]).unwrap();
            for tag in 0..8 {
                let (op, offset) = (DirectOp::Write, tag * BLOCK as u64);
                let request = DirectRequest { file: direct, op, offset, buf: buf(2, BLOCK), tag };
                queue.push(request).unwrap();
            }
            let started = if round % 2 == 0 { 8 } else { 0 };
            if started > 0 {
                queue.submit().unwrap();
            }
            let helped = number(&volume, "direct_completions_helped");
            match round / 2 {
                0 => {
                    let change = uext4::SetAttr { size: Some(512), ..Default::default() };
                    volume.set_attr(a.inode(), &change).unwrap();
                }
                1 => a.allocate(AllocateMode::PunchHole, 0, 1 << 20).unwrap(),
                _ => assert_eq!(a.read_at(0, &mut [0; 100]).unwrap(), 100),
            }
            let helped = number(&volume, "direct_completions_helped") - helped;
            assert_eq!(helped, started, "round {round}");
            queue.reap(8, &mut done).unwrap();
            assert_eq!(done.len(), 8);
            assert!(done.drain(..).all(|one| one.result.unwrap() == BLOCK));
        }
        drop((queue, a));
        close(volume, &device);
    }
}

/// On a real file, by rings where the system has them: a thread leaves its requests on the device
/// and does something else. Who takes their blocks away completes them; they are told to their
/// owner when it comes back.
#[test]
fn requests_that_nobody_reaps_hold_nobody_up() {
    if !have("mke2fs") {
        return;
    }
    let image = tempfile::NamedTempFile::new().unwrap();
    mke2fs(32, "-b 4096").save(image.path()).unwrap();
    for way in ["io=auto", "io=pread"] {
        let mut options = FileOptions::auto(Access::ReadWrite);
        assert_eq!(options.parse(way), Ok(true));
        let device = Arc::new(FileDevice::open_with(image.path(), &options).unwrap());
        println!("rings: {}, past the cache: {}", device.uses_uring(), device.is_direct());
        let volume = Volume::open(device, MountOptions::default()).unwrap();
        let a = file(&volume, way);
        a.write_direct_at(0, &[1; 64 * BLOCK]).unwrap();
        a.write_direct_at(0, &[1; 64 * BLOCK]).unwrap();
        let mut queue = queue(&volume, 64);
        let direct = queue.register(a.inode()).unwrap();
        for tag in 0..64 {
            let (op, offset) = (DirectOp::Write, tag * BLOCK as u64);
            let request = DirectRequest { file: direct, op, offset, buf: buf(2, BLOCK), tag };
            queue.push(request).unwrap();
        }
        queue.submit().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| a.allocate(AllocateMode::PunchHole, 0, 32 * BLOCK as u64).unwrap());
        });
        let mut done = Vec::new();
        queue.reap(64, &mut done).unwrap();
        assert!(done.iter().all(|one| one.result.as_ref().is_ok_and(|&len| len == BLOCK)));
        assert_eq!(done.len(), 64);
        assert!(read(&a, 0, 32 * BLOCK).iter().all(|&byte| byte == 0));
        assert!(read(&a, 32 * BLOCK as u64, 32 * BLOCK).iter().all(|&byte| byte == 2));
        // It goes on as before.
        let request = DirectRequest {
            file: direct,
            op: DirectOp::WriteDurable,
            offset: 40 * BLOCK as u64,
            buf: buf(3, BLOCK),
            tag: 1,
        };
        queue.push(request).unwrap();
        queue.reap(1, &mut done).unwrap();
        assert_eq!(read(&a, 40 * BLOCK as u64, BLOCK), [3; BLOCK]);
        drop((queue, a));
        volume.close().unwrap();
        assert_clean(&MemoryDevice::load(image.path()).unwrap());
    }
}
