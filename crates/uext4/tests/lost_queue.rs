//! A queue that is given up with requests under way, which may be done at any time, or never.
//!
//! Fault model: a device whose queue takes requests and answers no more, while it keeps their
//! buffers: the kernel may still write to their blocks. Demanded: nobody waits for it for ever, the
//! blocks of its files are not freed, everything else goes on and reaches the image, and the end of
//! the volume is an error. What another queue has under way in such a file is waited for as ever.
//! Not covered: a kernel that never returns from a wait.

mod common;
#[path = "common/direct.rs"]
mod way;

use common::{assert_clean, cut, have, mke2fs, mount};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uext4::{DirectOp, DirectQueue, DirectRequest, ErrorKind, MountOptions, OpenFile, Volume};
use uext4_device::{
    Device, DeviceQueue, MemoryDevice, QueueDone, QueueOptions, QueueRequest, SharedDevice,
};
use way::{buf, file, queue, read};

const BLOCK: usize = 4096;

/// A device whose first queue ends like that.
#[derive(Debug)]
struct Losing {
    inner: Arc<MemoryDevice>,
    lost: Arc<Mutex<Vec<QueueRequest>>>,
    queues: AtomicUsize,
}

#[derive(Debug)]
struct LosingQueue {
    lost: Arc<Mutex<Vec<QueueRequest>>>,
    in_flight: usize,
}

/// The others: what they were asked is on its way until somebody waits for it.
#[derive(Debug)]
struct LateQueue {
    device: Arc<Losing>,
    under_way: Vec<QueueRequest>,
}

impl Device for Losing {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.inner.write_vectored_at(offset, bufs)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.inner.punch(offset, len)
    }
    fn own_queue(
        self: Arc<Self>,
        _options: &QueueOptions,
    ) -> io::Result<Option<Box<dyn DeviceQueue>>> {
        if self.queues.fetch_add(1, Ordering::SeqCst) > 0 {
            return Ok(Some(Box::new(LateQueue { device: self, under_way: Vec::new() })));
        }
        Ok(Some(Box::new(LosingQueue { lost: Arc::clone(&self.lost), in_flight: 0 })))
    }
}

impl DeviceQueue for LateQueue {
    fn depth(&self) -> usize {
        QueueOptions::DEPTH_MAX
    }
    fn in_flight(&self) -> usize {
        self.under_way.len()
    }
    fn push(&mut self, request: QueueRequest) -> Result<(), QueueRequest> {
        self.under_way.push(request);
        Ok(())
    }
    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn reap(&mut self, _at_least: usize, done: &mut Vec<QueueDone>) -> io::Result<()> {
        for QueueRequest { offset, buf, tag, .. } in self.under_way.drain(..) {
            let result = self.device.inner.write_at(offset, &buf);
            done.push(QueueDone { tag, buf, result });
        }
        Ok(())
    }
}

impl DeviceQueue for LosingQueue {
    fn depth(&self) -> usize {
        QueueOptions::DEPTH_MAX
    }
    fn in_flight(&self) -> usize {
        self.in_flight
    }
    fn push(&mut self, request: QueueRequest) -> Result<(), QueueRequest> {
        self.in_flight += 1;
        self.lost.lock().unwrap().push(request);
        Ok(())
    }
    fn submit(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn reap(&mut self, _at_least: usize, _done: &mut Vec<QueueDone>) -> io::Result<()> {
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Does something that must not wait for ever.
fn in_time<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || sender.send(act()));
    answer.recv_timeout(Duration::from_secs(30)).unwrap_or_else(|_| panic!("hangs: {what}"))
}

fn is_io<T>(result: &uext4::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| *error.kind() == ErrorKind::Io)
}

/// A volume on a device whose first queue is lost, and the requests that it never answers.
fn losing_volume(memory: &Arc<MemoryDevice>) -> (Volume, Arc<Mutex<Vec<QueueRequest>>>) {
    let (inner, lost) = (Arc::clone(memory), Arc::<Mutex<Vec<QueueRequest>>>::default());
    let queues = AtomicUsize::new(0);
    let device: SharedDevice = Arc::new(Losing { inner, lost: Arc::clone(&lost), queues });
    (Volume::open(device, MountOptions::default()).unwrap(), lost)
}

/// Starts a write of one block by a queue of its own.
fn start_write(volume: &Volume, file: &OpenFile, offset: u64, fill: u8) -> DirectQueue {
    let mut queue = queue(volume, 4);
    let file = queue.register(file.inode()).unwrap();
    let buf = buf(fill, BLOCK);
    queue.push(DirectRequest { file, op: DirectOp::Write, offset, buf, tag: 0 }).unwrap();
    queue.submit().unwrap();
    queue
}

/// `is_dropped`: the queue is gone before the file is; else it is there to the end.
fn lose(is_dropped: bool) {
    let memory = Arc::new(mke2fs(64, "-b 4096"));
    let (volume, lost) = losing_volume(&memory);
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    for file in [&a, &b] {
        file.write_direct_at(0, &[7; 2 * BLOCK]).unwrap();
    }
    volume.sync().unwrap();
    // Now it is known where their blocks are, as the queue wants it.
    for file in [&a, &b] {
        file.write_direct_at(0, &[7; 2 * BLOCK]).unwrap();
    }
    let free = volume.stat_fs().blocks_free;
    let queue = start_write(&volume, &a, 0, 1);
    assert_eq!(lost.lock().unwrap().len(), 1, "it is on the device");

    // A thread that waits for it finds out, the queue's owner or one in its place.
    let mut queue = Some(queue);
    if is_dropped {
        queue = in_time("dropping the queue", move || {
            drop(queue);
            None
        });
    }
    let (other, inode) = (volume.clone(), a.inode().clone());
    let sized = in_time("a truncation", move || other.set_attr(&inode, &cut(0)));
    assert!(is_io(&sized), "{sized:?}");
    assert_eq!(read(&a, 0, BLOCK), [7; BLOCK]);
    volume.unlink(&volume.root().unwrap(), b"a").unwrap();
    drop(a);
    let other = volume.clone();
    in_time("a deletion", move || other.delete_unlinked()).unwrap();
    // Everything else goes on.
    b.write_at(0, &[9; BLOCK]).unwrap();
    drop(b);
    assert_eq!(volume.stat_fs().blocks_free, free, "blocks that may still be written to");
    let closed = in_time("the end of the volume", move || volume.close());
    assert!(is_io(&closed), "{closed:?}");
    drop(queue);

    // The kernel does it now.
    for request in lost.lock().unwrap().drain(..) {
        memory.write_at(request.offset, &request.buf).unwrap();
    }
    let volume = mount(&memory);
    assert_eq!(volume.recovery().orphans, 1);
    let inode = volume.lookup(&volume.root().unwrap(), b"b").unwrap();
    let b = volume.open_file(&inode).unwrap();
    assert_eq!(read(&b, 0, BLOCK), [9; BLOCK], "what was written before the end");
    drop((inode, b));
    volume.close().unwrap();
    assert_clean(&memory);
}

#[test]
fn a_queue_that_is_given_up_keeps_nobody_waiting() {
    if have("mke2fs") {
        lose(true);
        lose(false);
    }
}

fn bytes_of(memory: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; memory.len() as usize];
    memory.read_at(0, &mut bytes).unwrap();
    bytes
}

/// A file of three blocks, one request of it in a queue that is given up, and one in another.
fn with_two_queues(memory: &Arc<MemoryDevice>) -> (Volume, OpenFile, [DirectQueue; 2]) {
    let (volume, lost) = losing_volume(memory);
    let file = file(&volume, "a");
    for _ in 0..2 {
        file.write_direct_at(0, &[7; 3 * BLOCK]).unwrap();
        volume.sync().unwrap();
    }
    let mut given_up = start_write(&volume, &file, 0, 1);
    let other = start_write(&volume, &file, BLOCK as u64, 2);
    assert_eq!(lost.lock().unwrap().len(), 1, "the other queue has the other request");
    assert!(is_io(&given_up.reap(1, &mut Vec::new())));
    (volume, file, [given_up, other])
}

#[test]
fn a_write_of_another_queue_is_waited_for_before_its_block_is_cached() {
    if have("mke2fs") {
        let memory = Arc::new(mke2fs(64, "-b 4096"));
        let (volume, file, [given_up, mut other]) = with_two_queues(&memory);
        let mut buf = [0; BLOCK];
        file.read_at(BLOCK as u64, &mut buf).unwrap();
        let mut done = Vec::new();
        other.reap(1, &mut done).unwrap();
        assert!(done[0].result.is_ok());
        file.read_at(BLOCK as u64, &mut buf).unwrap();
        assert!(buf == [2; BLOCK], "an old page hides what was acknowledged");
        drop((given_up, other, file));
        assert!(is_io(&volume.close()));
    }
}

#[test]
fn a_write_of_another_queue_is_waited_for_at_the_end_of_the_volume() {
    if have("mke2fs") {
        let memory = Arc::new(mke2fs(64, "-b 4096"));
        let (volume, file, queues) = with_two_queues(&memory);
        assert!(is_io(&volume.close()));
        // Nothing of this process but what was given up changes the image any more.
        let bytes = bytes_of(&memory);
        drop((queues, file));
        assert!(bytes_of(&memory) == bytes, "a write after the end of the volume");
    }
}
