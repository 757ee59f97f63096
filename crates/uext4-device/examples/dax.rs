//! Random stores and loads on a mapped device: what its memory gives.
//!
//! `cargo run --release -p uext4-device --example dax -- FILE [SECONDS [THREADS]]`: for several
//! sizes, stores and loads a second, over all of FILE, which is overwritten.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use uext4_device::{Access, DaxDevice, DaxMemory};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = words.first() else {
        eprintln!("usage: dax FILE [SECONDS [THREADS]]");
        std::process::exit(2);
    };
    let number = |at: usize, default| words.get(at).map_or(default, |word| word.parse().unwrap());
    let (seconds, threads) = (number(1, 2), number(2, 1));
    let device = DaxDevice::open(Path::new(path), 0, Access::ReadWrite).unwrap();
    // Every page is there before anything is measured.
    let len = uext4_device::Device::len(&device);
    for at in (0..len).step_by(4096) {
        device.store(at, &[0; 8]).unwrap();
    }
    for size in [64, 256, 512, 1024, 2048, 4096, 16384, 65536] {
        let rate = |storing| measure(&device, size, storing, threads, Duration::from_secs(seconds));
        println!("{size:6} bytes: {:9.0} stores/s, {:9.0} loads/s", rate(true), rate(false));
    }
}

fn measure(device: &DaxDevice, size: usize, storing: bool, threads: u64, time: Duration) -> f64 {
    let places = uext4_device::Device::len(device) / size as u64;
    let (start, total) = (Instant::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let total = &total;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                let (mut bytes, mut count) = (vec![1; size], 0);
                while start.elapsed() < time {
                    for _ in 0..64 {
                        let at = random.random_range(0..places) * size as u64;
                        if storing {
                            device.store(at, &bytes).unwrap();
                        } else {
                            device.load(at, &mut bytes).unwrap();
                        }
                    }
                    count += 64;
                }
                total.fetch_add(count, Ordering::Relaxed);
            });
        }
    });
    total.into_inner() as f64 / start.elapsed().as_secs_f64()
}
