//! The path of a request through a queue allocates nothing. Alone in its program: it counts what
//! the whole program allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uext4_device::{
    Access, Caching, FileDevice, FileOptions, IoMemory, QueueDone, QueueOp, QueueOptions,
    QueueRequest, SharedDevice, Submission,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands every call on to the system's allocator, whose promises are the same.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; `at` came from `alloc` above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn nothing_is_allocated_for_a_request() {
    const DEPTH: usize = 64;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    for (caching, submission) in [
        (Caching::Buffered, Submission::Uring),
        (Caching::Direct, Submission::Uring),
        (Caching::Buffered, Submission::Pread),
    ] {
        let options = FileOptions { caching, submission, ..FileOptions::new(Access::ReadWrite) };
        let device: SharedDevice = Arc::new(FileDevice::open_with(&path, &options).unwrap());
        let memory = IoMemory::new(DEPTH * 4096).unwrap();
        let options = QueueOptions { memory: vec![memory.clone()], ..QueueOptions::new(DEPTH) };
        let mut queue = device.queue(options).unwrap();
        let mut done: Vec<QueueDone> = Vec::with_capacity(2 * DEPTH);
        for (index, buf) in memory.into_bufs(4096).into_iter().enumerate() {
            done.push(QueueDone { tag: index as u64, buf, result: Ok(()) });
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for round in 0..200_u64 {
            while let Some(answer) = done.pop() {
                answer.result.unwrap();
                let op = match (round + answer.tag) % 16 {
                    0 => QueueOp::Flush,
                    1 => QueueOp::WriteDurable,
                    2..6 => QueueOp::Read,
                    _ => QueueOp::Write,
                };
                let (tag, buf) = (answer.tag, answer.buf);
                queue.push(QueueRequest { op, offset: tag * 4096, buf, tag }).unwrap();
            }
            if round % 2 == 0 {
                queue.submit().unwrap();
            }
            queue.reap(16, &mut done).unwrap();
            // All of them are asked for in the end, by calls of different sizes.
            if round % 8 == 7 {
                queue.reap(DEPTH, &mut done).unwrap();
            }
        }
        queue.reap(DEPTH, &mut done).unwrap();
        assert_eq!(done.len(), DEPTH);
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(count, 0, "{caching:?} {submission:?} {queue:?}");
    }
}
