//! What a direct overwrite takes from the allocator of memory: nothing.
//!
//! Fault model: an allocation on the way of a pure overwrite or a read, by a call or by a queue
//! that serves requests itself, in one piece or in several. Not covered: rings (uext4-device).

mod common;

use common::{have, mke2fs, mount, new};
use std::sync::Arc;
use uext4::{AllocateMode, DirectOp, DirectOptions, DirectRequest, FileKind, IoBuf};

const BLOCK: usize = 4096;

#[test]
fn an_overwrite_allocates_nothing() {
    if !have("mke2fs") {
        return;
    }
    let device = Arc::new(mke2fs(16, "-b 4096"));
    let volume = mount(&device);
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"a", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    let mut data = [1; BLOCK];
    for at in 0..64 {
        file.write_direct_at(at * BLOCK as u64, &data).unwrap();
    }
    file.sync(false).unwrap();
    let mut round = || {
        for at in 0..64 {
            file.write_direct_at(at * BLOCK as u64, &data).unwrap();
            file.read_direct_at(at * BLOCK as u64, &mut data).unwrap();
        }
    };
    // Memory of the device, of the thread, and what is learnt once.
    round();
    let taken = allocation_counter::measure(round);
    assert_eq!(taken.count_total, 0, "{taken:?}");

    let options = DirectOptions { depth: 16, polled: false, memory: Vec::new() };
    let mut queue = volume.direct_queue(options).unwrap();
    let known = queue.register(&inode).unwrap();
    let mut bufs: Vec<IoBuf> = (0..16).map(|_| IoBuf::new(3 * BLOCK).unwrap()).collect();
    // Block 6 and the one before it are apart.
    file.allocate(AllocateMode::CollapseRange, 6 * BLOCK as u64, BLOCK as u64).unwrap();
    let mut done = Vec::with_capacity(16);
    let mut round = || {
        for (tag, buf) in (0..).zip(bufs.drain(..)) {
            let op = if tag % 4 < 2 { DirectOp::Write } else { DirectOp::Read };
            let offset = if tag % 2 == 0 { tag * BLOCK as u64 } else { 5 * BLOCK as u64 };
            queue.push(DirectRequest { file: known, op, offset, buf, tag }).unwrap();
        }
        queue.submit().unwrap();
        queue.reap(16, &mut done).unwrap();
        bufs.extend(done.drain(..).map(|one| {
            assert_eq!(one.result.unwrap(), 3 * BLOCK);
            one.buf
        }));
    };
    round();
    let taken = allocation_counter::measure(|| (0..8).for_each(|_| round()));
    assert_eq!(taken.count_total, 0, "{taken:?}");
}
