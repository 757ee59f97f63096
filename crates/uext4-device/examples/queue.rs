//! Random overwrites through a queue, many in flight: what a device gives to one thread.
//!
//! `cargo run --release -p uext4-device --example queue -- FILE [SECONDS [DEPTH [WAIT [plain]]]]`:
//! for 4, 8, 12 and 16 KiB, writes a second and MiB/s, buffered and direct. FILE, an image of
//! nothing or a block device, is overwritten. WAIT is how many answers to wait for at a time;
//! `plain` registers no memory.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uext4_device::{
    Access, Caching, FileDevice, FileOptions, IoMemory, QueueDone, QueueOp, QueueOptions,
    QueueRequest, SharedDevice, Submission,
};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = words.first() else {
        eprintln!("usage: queue FILE [SECONDS [DEPTH [WAIT [plain]]]]");
        std::process::exit(2);
    };
    let number = |at: usize, default| words.get(at).map_or(default, |word| word.parse().unwrap());
    let (seconds, depth, wait) = (number(1, 3), number(2, 64), number(3, 1));
    let registered = words.get(4).is_none_or(|word| word.as_str() != "plain");
    for caching in [Caching::Buffered, Caching::Direct] {
        for kib in [4, 8, 12, 16] {
            let options = FileOptions {
                caching,
                submission: Submission::Uring,
                ..FileOptions::new(Access::ReadWrite)
            };
            let device = FileDevice::open_with(Path::new(path), &options).unwrap();
            let way = if device.is_direct() { "direct" } else { "buffered" };
            let device: SharedDevice = Arc::new(device);
            let time = Duration::from_secs(seconds as u64);
            let rate = measure(&device, kib << 10, (depth, wait, registered), time);
            println!("{way:8} {kib:2} KiB  {rate:9.0}/s  {:7.0} MiB/s", rate * kib as f64 / 1024.0);
        }
    }
}

/// Writes a second.
fn measure(
    device: &SharedDevice,
    len: usize,
    (depth, wait, registered): (usize, usize, bool),
    time: Duration,
) -> f64 {
    let memory = IoMemory::new(depth * len).unwrap();
    let registering = if registered { vec![memory.clone()] } else { Vec::new() };
    let options = QueueOptions { memory: registering, ..QueueOptions::new(depth) };
    let mut queue = device.queue(options).unwrap();
    let places = device.len() / len as u64;
    let mut random = SmallRng::seed_from_u64(1);
    let mut done: Vec<QueueDone> = Vec::with_capacity(depth);
    for buf in memory.into_bufs(len) {
        done.push(QueueDone { tag: 0, buf, result: Ok(()) });
    }
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed() < time {
        for answer in done.drain(..) {
            answer.result.unwrap();
            let offset = random.random_range(0..places) * len as u64;
            let request = QueueRequest { op: QueueOp::Write, offset, buf: answer.buf, tag: 0 };
            queue.push(request).unwrap();
        }
        queue.reap(wait, &mut done).unwrap();
        count += done.len();
    }
    count as f64 / start.elapsed().as_secs_f64()
}
