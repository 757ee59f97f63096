//! Tests of a queue with a ring: what no caller of a device can arrange.
//!
//! # Fault model
//! The kernel answers a request with an error, short, or "again"; a ring breaks with requests in
//! it; a queue changes threads. Not covered: a kernel that answers twice or never.

use super::*;
use crate::device::Device;
use crate::direct::Alignment;
use crate::io_memory::IoBuf;
use crate::options::{Access, Caching, FileOptions, Submission};
use crate::queue::QueueOp;
use crate::queue_table::TRIES_MAX;

/// A queue on a new file of zeroes; `None`, said so, where the system has no io_uring.
fn queue(depth: usize, len: u64) -> Option<(tempfile::TempDir, Arc<FileDevice>, UringQueue)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; len as usize]).unwrap();
    let options = FileOptions {
        caching: Caching::Buffered,
        submission: Submission::Uring,
        ..FileOptions::new(Access::ReadWrite)
    };
    let device = Arc::new(FileDevice::open_with(&path, &options).unwrap());
    match UringQueue::open(Arc::clone(&device), &QueueOptions::new(depth)) {
        Ok(queue) => Some((folder, device, queue)),
        Err(error) => {
            println!("skipped: no io_uring: {error}");
            None
        }
    }
}

fn write(offset: u64, tag: u64) -> QueueRequest {
    let mut buf = IoBuf::new(4096).unwrap();
    buf.fill(tag as u8);
    QueueRequest { op: QueueOp::Write, offset, buf, tag }
}

fn flush(tag: u64) -> QueueRequest {
    QueueRequest { op: QueueOp::Flush, offset: 0, buf: IoBuf::empty(), tag }
}

fn byte(device: &FileDevice, at: u64) -> u8 {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    byte[0]
}

/// Each of these answers of the kernel ends in the answer of the request.
#[test]
fn what_the_kernel_answers_reaches_the_request() {
    let Some((_folder, device, mut queue)) = queue(4, 1 << 16) else { return };
    let table = &mut *queue.table;
    let mut answer = |results: &[i32]| {
        table.push(write(0, 7), None).unwrap();
        let index = table.ready.pop_back().unwrap();
        let mut last = None;
        for result in results {
            last = table.transferred(index, *result);
            table.ready.clear();
        }
        let done = last.expect("answered");
        assert_eq!((done.tag, done.buf.len(), table.in_flight()), (7, 4096, 0));
        done.result.map_err(|error| error.raw_os_error().unwrap_or(0))
    };
    assert_eq!(answer(&[4096]), Ok(()));
    assert_eq!(answer(&[100, -libc::EINTR, 3000, -libc::EAGAIN, 996]), Ok(()));
    assert_eq!(answer(&[-libc::ENODEV]), Err(libc::ENODEV));
    assert_eq!(answer(&[512, -libc::ENOSPC]), Err(libc::ENOSPC));
    assert_eq!(answer(&[512, 0]), Err(0), "nothing more can be written");
    assert_eq!(byte(&device, 0), 0);
    // Turned away again and again: made by an ordinary call.
    assert_eq!(answer(&[-libc::EAGAIN; TRIES_MAX as usize]), Ok(()));
    assert_eq!(byte(&device, 0), 7);
}

/// Requests that take several entries of the ring, so each is a row of short results.
#[test]
fn what_is_cut_is_resumed_where_it_ended() {
    let Some((_folder, device, mut queue)) = queue(8, 1 << 20) else { return };
    queue.table.entry_max = 5000;
    let bytes = |tag: u64| (0..100_000).map(move |at| (at as u64 * tag / 5) as u8);
    let mut done = Vec::new();
    for tag in 1..=8_u64 {
        let mut buf = IoBuf::new(100_000).unwrap();
        buf.iter_mut().zip(bytes(tag)).for_each(|(byte, value)| *byte = value);
        let op = if tag % 2 == 0 { QueueOp::WriteDurable } else { QueueOp::Write };
        queue.push(QueueRequest { op, offset: tag * 100_001, buf, tag }).unwrap();
    }
    queue.reap(8, &mut done).unwrap();
    assert!(done.iter().all(|done| done.result.is_ok() && done.buf.len() == 100_000));
    for mut answer in done.drain(..) {
        let mut back = vec![0; 100_000];
        device.read_at(answer.tag * 100_001, &mut back).unwrap();
        assert!(back.iter().copied().eq(bytes(answer.tag)));
        answer.buf.fill(0);
        let (tag, buf, offset) = (answer.tag, answer.buf, answer.tag * 100_001);
        queue.push(QueueRequest { op: QueueOp::Read, offset, buf, tag }).unwrap();
    }
    queue.reap(8, &mut done).unwrap();
    assert_eq!(done.len(), 8);
    for answer in done {
        answer.result.unwrap();
        assert!(answer.buf.iter().copied().eq(bytes(answer.tag)));
    }
}

/// The rest of a short direct result starts at a unit.
#[test]
fn a_short_direct_result_is_resumed_at_a_unit() {
    let Some((_folder, _device, mut queue)) = queue(1, 1 << 16) else { return };
    let table = &mut *queue.table;
    table.align = Some(Alignment { unit: 512, memory: 512 });
    table.push(write(0, 1), None).unwrap();
    assert!(table.transferred(0, 1000).is_none());
    assert_eq!((table.places[0].moved, table.ready.len()), (512, 2));
    // Less than a unit is no progress.
    assert!(table.transferred(0, 100).is_none());
    assert_eq!((table.places[0].moved, table.places[0].tries), (512, 1));
    assert!(table.transferred(0, 4096 - 512).is_some_and(|done| done.result.is_ok()));
    table.ready.clear();
}

/// One flush serves those that waited, its failure fails them all and every flush after it.
#[test]
fn a_failed_flush_is_not_forgotten() {
    let Some((_folder, device, mut queue)) = queue(8, 1 << 16) else { return };
    queue.push(flush(1)).unwrap();
    queue.push(flush(2)).unwrap();
    {
        let (ring, table) = (queue.ring.as_ref().unwrap(), &mut *queue.table);
        table.start_flush(ring);
        let index = table.ready.pop_back().unwrap();
        table.push(flush(3), None).unwrap();
        table.start_flush(ring);
        assert!(table.ready.is_empty(), "one flush at a time");
        table.flushed(index, -libc::EINTR);
        assert_eq!(table.ready.pop_back(), Some(index));
        table.flushed(index, -libc::EIO);
        assert_eq!(table.answered.len(), 2);
    }
    let mut durable = write(0, 4);
    durable.op = QueueOp::WriteDurable;
    queue.push(durable).unwrap();
    let mut done = Vec::new();
    queue.reap(4, &mut done).unwrap();
    let mut told: Vec<_> = done
        .iter()
        .map(|done| (done.tag, done.result.as_ref().err().and_then(|error| error.raw_os_error())))
        .collect();
    told.sort_unstable();
    let failed = Some(libc::EIO);
    assert_eq!(told, [(1, failed), (2, failed), (3, failed), (4, failed)]);
    assert_eq!(device.flush().unwrap_err().raw_os_error(), failed);
}

/// A file that refuses every request, as a device that is gone would.
#[test]
fn each_request_is_answered_by_a_device_that_is_gone() {
    let Some((folder, _device, mut queue)) = queue(64, 1 << 20) else { return };
    let file = File::open(folder.path().join("image")).unwrap();
    let ring = Ring::open(&file, 64, Users::One { polled: false }, &[]).unwrap();
    drop(queue.ring.replace(ring));
    for tag in 0..64 {
        queue.push(write(tag * 4096, tag)).unwrap();
    }
    let mut done = Vec::new();
    queue.reap(64, &mut done).unwrap();
    assert_eq!((done.len(), queue.in_flight()), (64, 0));
    let gone = |done: &QueueDone| {
        done.result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBADF))
    };
    assert!(done.iter().all(gone), "{done:?}");
}

/// The ring breaks: what the kernel has is waited for, what it has not is made without it.
#[test]
fn a_queue_goes_on_without_its_ring() {
    let Some((_folder, device, mut queue)) = queue(16, 1 << 20) else { return };
    for tag in 1..=8 {
        queue.push(write(tag * 4096, tag)).unwrap();
    }
    queue.submit().unwrap();
    for tag in 9..=12 {
        queue.push(write(tag * 4096, tag)).unwrap();
    }
    queue.push(flush(13)).unwrap();
    let (ring, table) = (queue.ring.as_mut().unwrap(), &mut *queue.table);
    table.fill(ring);
    assert_eq!((table.taken, table.pushed), (8, 4));
    queue.close_ring(false).unwrap();
    assert!(queue.ring.is_none() && queue.table.answered.len() == 8);
    let mut done = Vec::new();
    queue.reap(13, &mut done).unwrap();
    assert_eq!((done.len(), queue.in_flight()), (13, 0));
    assert!(done.iter().all(|done| done.result.is_ok()));
    for tag in 1..=12 {
        assert_eq!(byte(&device, tag * 4096), tag as u8);
    }
}

/// A queue moves when it is idle, with requests that its last thread left in flight, and while that
/// thread lives and does not help. Nothing is lost and nothing hangs.
#[test]
fn a_queue_changes_threads() {
    let Some((_folder, device, mut queue)) = queue(8, 1 << 20) else { return };
    for round in 1..=4_u64 {
        queue = std::thread::spawn(move || {
            let mut done = Vec::new();
            queue.reap(8, &mut done).unwrap();
            assert_eq!(done.len(), if round > 2 { 8 } else { 0 });
            for place in 0..6 {
                queue.push(write(place * 4096, round)).unwrap();
            }
            let mut durable = write(6 * 4096, round);
            durable.op = QueueOp::WriteDurable;
            queue.push(durable).unwrap();
            // Never done at once.
            queue.push(flush(9)).unwrap();
            queue.submit().unwrap();
            if round == 1 {
                queue.reap(8, &mut done).unwrap();
                assert_eq!(done.len(), 8);
            }
            queue
        })
        .join()
        .unwrap();
        assert!(queue.ring.is_some());
    }
    let mut done = Vec::new();
    queue.reap(8, &mut done).unwrap();
    assert_eq!(done.len(), 8);
    assert!(done.iter().all(|done| done.result.is_ok()));
    assert!((0..7).all(|place| byte(&device, place * 4096) == 4));

    queue.push(flush(1)).unwrap();
    queue.submit().unwrap();
    let elsewhere = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut done = Vec::new();
            queue.reap(1, &mut done).unwrap();
            queue.push(flush(2)).unwrap();
            queue.submit().unwrap();
            done.len()
        });
        other.join().unwrap()
    });
    assert_eq!((elsewhere, queue.in_flight()), (1, 1));
    drop(queue);
}

/// Requests that take longer than a wait is prolonged for: it ends without an answer, which is no
/// error of the ring.
#[test]
fn a_wait_that_gathers_nothing_goes_on() {
    const LEN: usize = 4 << 20;
    let Some((_folder, device, mut queue)) = queue(32, (32 * LEN) as u64) else { return };
    for tag in 0..32_u64 {
        let mut buf = IoBuf::new(LEN).unwrap();
        buf.fill(tag as u8 + 1);
        queue
            .push(QueueRequest { op: QueueOp::Write, offset: tag * LEN as u64, buf, tag })
            .unwrap();
    }
    let mut done = Vec::new();
    while done.len() < 32 {
        let before = done.len();
        queue.reap(1, &mut done).unwrap();
        assert!(done.len() > before, "one was waited for");
    }
    assert!(done.iter().all(|done| done.result.is_ok()) && queue.ring.is_some());
    assert!((0..32_u64).all(|tag| byte(&device, tag * LEN as u64 + 1) == tag as u8 + 1));
}
