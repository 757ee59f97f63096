//! Every kind of queue of a file device against one model.
//!
//! # Fault model
//! Requests that are cut, misplaced, lost, answered twice or with another's buffer; a buffer that
//! is freed while the kernel has it; a file that is shorter than the device thinks. Not covered:
//! loss of power.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uext4_device::{
    Access, Caching, DeviceQueue, FileDevice, FileOptions, IoBuf, IoMemory, QueueOp, QueueOptions,
    QueueRequest, SharedDevice, Submission,
};

const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;
/// Where the device starts in the file: at a multiple of any unit.
const START: u64 = 64 << 10;

fn open(path: &Path, caching: Caching, submission: Submission) -> Arc<FileDevice> {
    let options =
        FileOptions { offset: START, caching, submission, ..FileOptions::new(Access::ReadWrite) };
    Arc::new(FileDevice::open_with(path, &options).unwrap())
}

fn queue(device: &Arc<FileDevice>, options: QueueOptions) -> Box<dyn DeviceQueue> {
    let device: SharedDevice = Arc::clone(device) as _;
    device.queue(options).unwrap()
}

/// What a request in flight is meant to do.
struct Meant {
    op: QueueOp,
    blocks: std::ops::Range<usize>,
    fill: u8,
}

/// Random requests, many in flight, never two on one block.
fn random_requests(queue: &mut dyn DeviceQueue, bufs: Vec<IoBuf>, model: &mut [u8], seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut bufs = bufs;
    let mut meant: HashMap<u64, Meant> = HashMap::new();
    let mut busy = vec![false; BLOCKS];
    let mut done = Vec::new();
    for tag in 0..3000_u64 {
        let len = [1, 1, 1, 2, 4, 16][random.random_range(0..6)];
        let first = random.random_range(0..BLOCKS - len);
        let blocks = first..first + len;
        if let Some(mut buf) = bufs.pop()
            && !busy[blocks.clone()].contains(&true)
        {
            let op = [
                QueueOp::Read,
                QueueOp::Read,
                QueueOp::Write,
                QueueOp::Write,
                QueueOp::Write,
                QueueOp::WriteDurable,
                QueueOp::Flush,
            ][random.random_range(0..7)];
            let fill = random.random();
            buf.set_len(if op == QueueOp::Flush { 0 } else { len * BLOCK });
            buf.fill(fill);
            let request = QueueRequest { op, offset: (first * BLOCK) as u64, buf, tag };
            queue.push(request).unwrap();
            busy[blocks.clone()].fill(true);
            meant.insert(tag, Meant { op, blocks, fill });
        }
        assert_eq!(queue.in_flight(), meant.len());
        match random.random_range(0..8) {
            0 => queue.submit().unwrap(),
            1 => queue.reap(0, &mut done).unwrap(),
            2 => queue.reap(random.random_range(0..80), &mut done).unwrap(),
            _ if bufs.is_empty() => queue.reap(1, &mut done).unwrap(),
            _ => {}
        }
        for answer in done.drain(..) {
            let Meant { op, blocks, fill } = meant.remove(&answer.tag).expect("answered once");
            answer.result.unwrap();
            busy[blocks.clone()].fill(false);
            let bytes = &mut model[blocks.start * BLOCK..blocks.end * BLOCK];
            match op {
                QueueOp::Read => assert!(*answer.buf == *bytes, "seed {seed} tag {}", answer.tag),
                QueueOp::Write | QueueOp::WriteDurable => bytes.fill(fill),
                QueueOp::Flush => {}
            }
            let mut buf = answer.buf;
            buf.set_len(buf.capacity());
            bufs.push(buf);
        }
    }
    queue.reap(usize::MAX, &mut done).unwrap();
    assert_eq!((queue.in_flight(), done.len()), (0, meant.len()));
    for answer in done {
        let Meant { op, blocks, fill } = meant.remove(&answer.tag).expect("answered once");
        answer.result.unwrap();
        if matches!(op, QueueOp::Write | QueueOp::WriteDurable) {
            model[blocks.start * BLOCK..blocks.end * BLOCK].fill(fill);
        }
    }
}

fn every_queue(path: &Path) {
    let mut model = vec![0_u8; BLOCKS * BLOCK];
    for (seed, (caching, submission, polled)) in [
        (Caching::Buffered, Submission::Pread, false),
        (Caching::Buffered, Submission::Uring, false),
        (Caching::Direct, Submission::Uring, false),
        (Caching::Direct, Submission::Uring, true),
        (Caching::Direct, Submission::Pread, false),
    ]
    .into_iter()
    .enumerate()
    {
        let device = open(path, caching, submission);
        for registered in [true, false] {
            let memory = IoMemory::new(64 * 16 * BLOCK).unwrap();
            let registering = if registered { vec![memory.clone()] } else { Vec::new() };
            let options = QueueOptions { depth: 64, polled, memory: registering };
            let mut queue = queue(&device, options);
            let bufs = memory.into_bufs(16 * BLOCK);
            random_requests(&mut *queue, bufs, &mut model, seed as u64);
            println!("{caching:?} {submission:?}, direct {}: {queue:?}", device.is_direct());
        }
        drop(device);
        let path = path.to_owned();
        assert!(fs::read(&path).unwrap()[START as usize..][..model.len()] == model);
    }
}

#[test]
fn random_requests_on_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, vec![0; START as usize + BLOCKS * BLOCK]).unwrap();
    every_queue(&path);
}

/// Needs root and a free loop device; says so where it has none.
#[test]
fn random_requests_on_a_loop_device() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: attaching a loop device needs root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, vec![0; START as usize + BLOCKS * BLOCK]).unwrap();
    let output = match Command::new("losetup").args(["-f", "--show"]).arg(&path).output() {
        Ok(output) if output.status.success() => output,
        other => {
            println!("skipped: {other:?}");
            return;
        }
    };
    let name = String::from_utf8(output.stdout).unwrap();
    let checked = std::panic::catch_unwind(|| every_queue(Path::new(name.trim())));
    assert!(Command::new("losetup").arg("-d").arg(name.trim()).status().unwrap().success());
    checked.unwrap();
}

fn image(folder: &tempfile::TempDir, blocks: usize) -> std::path::PathBuf {
    let path = folder.path().join("image");
    fs::write(&path, vec![0; START as usize + blocks * BLOCK]).unwrap();
    path
}

fn request(op: QueueOp, offset: u64, len: usize, tag: u64) -> QueueRequest {
    let mut buf = IoBuf::new(len).unwrap();
    buf.fill(tag as u8);
    QueueRequest { op, offset, buf, tag }
}

#[test]
fn a_full_queue_gives_the_request_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, 16);
    for submission in [Submission::Pread, Submission::Uring] {
        let device = open(&path, Caching::Buffered, submission);
        let mut queue = queue(&device, QueueOptions::new(3));
        for tag in 0..3 {
            queue.push(request(QueueOp::Write, tag * 512, 512, tag)).unwrap();
        }
        let back = queue.push(request(QueueOp::Write, 0, 100, 9)).unwrap_err();
        assert_eq!((back.tag, back.buf.len(), queue.depth(), queue.in_flight()), (9, 100, 3, 3));
        // Also while answers wait to be reaped.
        queue.submit().unwrap();
        let back = queue.push(back).unwrap_err();
        let mut done = Vec::new();
        queue.reap(3, &mut done).unwrap();
        queue.push(back).unwrap();
        queue.reap(1, &mut done).unwrap();
        assert_eq!(done.len(), 4);
    }
}

/// What was submitted is done when the queue is gone; what was only pushed never starts. The
/// device stays open and taken while a queue of it lives.
#[test]
fn dropped_with_requests_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, 512);
    for caching in [Caching::Buffered, Caching::Direct] {
        for round in 1..=20_u8 {
            let device = open(&path, caching, Submission::Uring);
            let memory = IoMemory::new(256 * BLOCK).unwrap();
            let options = QueueOptions { memory: vec![memory.clone()], ..QueueOptions::new(256) };
            let mut queue = queue(&device, options);
            drop(device);
            for (tag, mut buf) in memory.into_bufs(BLOCK).into_iter().enumerate() {
                let op = if tag % 4 == 0 { QueueOp::Read } else { QueueOp::Write };
                buf.fill(round);
                let offset = (tag * BLOCK) as u64;
                queue.push(QueueRequest { op, offset, buf, tag: tag as u64 }).unwrap();
                if tag == 199 {
                    queue.submit().unwrap();
                }
            }
            let options = FileOptions::new(Access::ReadWrite);
            assert!(FileDevice::open_with(&path, &options).is_err(), "still taken");
            drop(queue);
            let bytes = fs::read(&path).unwrap();
            for (block, bytes) in bytes[START as usize..].chunks(BLOCK).enumerate() {
                let written = block < 200 && block % 4 != 0;
                let want = if written { round } else { 0 };
                assert!(bytes.iter().all(|byte| *byte == want), "block {block}");
            }
        }
        fs::write(&path, vec![0; START as usize + 512 * BLOCK]).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_refused_and_the_rest_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, 16);
    let end = 16 * BLOCK as u64;
    for caching in [Caching::Buffered, Caching::Direct] {
        let device = open(&path, caching, Submission::Uring);
        let mut queue = queue(&device, QueueOptions::new(16));
        let strict = queue.alignment() > 1;
        assert_eq!(strict, device.is_direct());
        let mut odd_address = IoBuf::new(2 * BLOCK).unwrap();
        let _first = odd_address.split_to(1);
        odd_address.set_len(BLOCK);
        let write = QueueOp::Write;
        for refused in [
            request(write, 0, 100, 0),
            request(QueueOp::Read, 3, BLOCK, 1),
            QueueRequest { op: write, offset: 0, buf: odd_address, tag: 2 },
        ] {
            queue.push(refused).unwrap();
        }
        queue.push(request(write, end, BLOCK, 3)).unwrap();
        queue.push(request(QueueOp::Read, u64::MAX - 10, BLOCK, 4)).unwrap();
        queue.push(request(write, 4096, BLOCK, 5)).unwrap();
        let empty = QueueRequest { op: write, offset: end, buf: IoBuf::empty(), tag: 6 };
        queue.push(empty).unwrap();
        let mut done = Vec::new();
        queue.reap(7, &mut done).unwrap();
        done.sort_by_key(|done| done.tag);
        let told: Vec<_> =
            done.iter().map(|done| done.result.as_ref().err().map(|error| error.kind())).collect();
        let odd = strict.then_some(ErrorKind::InvalidInput);
        let (past, eof) = (Some(ErrorKind::InvalidInput), Some(ErrorKind::UnexpectedEof));
        assert_eq!(told, [odd, odd, odd, past, eof, None, None], "{caching:?}");
    }
    let reader =
        FileOptions { submission: Submission::Uring, ..FileOptions::new(Access::ReadOnly) };
    let device = Arc::new(FileDevice::open_with(&path, &reader).unwrap());
    let mut queue = queue(&device, QueueOptions::new(4));
    queue.push(request(QueueOp::Write, 0, 512, 1)).unwrap();
    queue.push(request(QueueOp::Read, 0, 512, 2)).unwrap();
    queue.push(request(QueueOp::Flush, 0, 1, 3)).unwrap();
    let mut done = Vec::new();
    queue.reap(3, &mut done).unwrap();
    done.sort_by_key(|done| done.tag);
    assert_eq!(done[0].result.as_ref().unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert!(done[1].result.is_ok() && done[2].result.is_ok());
}

/// A file that was cut behind our back: an error, the bytes before it are there.
#[test]
fn a_file_that_became_shorter() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(&folder, 16);
    for caching in [Caching::Buffered, Caching::Direct] {
        fs::write(&path, vec![1; START as usize + 16 * BLOCK]).unwrap();
        let device = open(&path, caching, Submission::Uring);
        let mut queue = queue(&device, QueueOptions::new(4));
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_len(START + 2 * BLOCK as u64).unwrap();
        queue.push(request(QueueOp::Read, 0, 4 * BLOCK, 0)).unwrap();
        queue.push(request(QueueOp::Read, 8 * BLOCK as u64, BLOCK, 0)).unwrap();
        let mut done = Vec::new();
        queue.reap(2, &mut done).unwrap();
        for done in &done {
            let error = done.result.as_ref().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{caching:?}");
        }
    }
}
