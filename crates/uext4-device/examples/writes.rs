//! What the ways of writing cost: random 16 KiB writes in batches, each followed by a flush, on a
//! file or block device whose content is lost.
//!
//! `cargo run --release -p uext4-device --example writes -- FILE [SECONDS]`: writes a second for
//! each way and size of batch (`-` for none: single writes without a flush, with their latency).

use std::path::Path;
use std::time::{Duration, Instant};

use uext4_device::{Access, Caching, Device, FileDevice, FileOptions, Submission, WriteRun};

const WRITE: usize = 16 * 1024;
const PAGE: usize = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let path = words.next().ok_or("usage: writes FILE [SECONDS]")?;
    let time = Duration::from_secs_f64(words.next().map_or(Ok(2.0), |word| word.parse())?);
    println!("{:<16} {:>6} {:>10} {:>10} {:>10}", "way", "batch", "writes/s", "p50 us", "p99 us");
    for (name, caching, submission) in [
        ("buffered pwrite", Caching::Buffered, Submission::Pread),
        ("direct pwrite", Caching::Direct, Submission::Pread),
        ("buffered uring", Caching::Buffered, Submission::Uring),
        ("direct uring", Caching::Direct, Submission::Uring),
    ] {
        let options = FileOptions { caching, submission, ..FileOptions::new(Access::ReadWrite) };
        let device = FileDevice::open_with(Path::new(&path), &options)?;
        if let Some(notice) = device.notice() {
            println!("{name}: {notice}");
        }
        for batch in [0, 1, 16, 256, 2048] {
            device.flush()?;
            measure(name, &device, batch, time)?;
        }
    }
    Ok(())
}

/// Runs one way with one size of batch; 0: single writes that no flush follows.
fn measure(name: &str, device: &FileDevice, batch: usize, time: Duration) -> std::io::Result<()> {
    // Pages as a cache has them: each on its own and at no special address.
    let pages: Vec<Vec<u8>> = (0..WRITE / PAGE).map(|page| vec![page as u8; PAGE]).collect();
    let bufs: Vec<&[u8]> = pages.iter().map(|page| &page[..]).collect();
    let places = device.len() / WRITE as u64;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut place = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % places * WRITE as u64
    };
    let (mut latencies, begin) = (Vec::new(), Instant::now());
    while begin.elapsed() < time {
        let mut offsets: Vec<u64> = (0..batch.max(1)).map(|_| place()).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let runs: Vec<_> =
            offsets.iter().map(|offset| WriteRun { offset: *offset, bufs: &bufs }).collect();
        let before = Instant::now();
        device.write_many(&runs)?;
        if batch > 0 {
            device.flush()?;
        }
        latencies.push(before.elapsed());
    }
    let writes = latencies.len() * batch.max(1);
    let rate = writes as f64 / begin.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |part: usize| latencies[latencies.len() * part / 100].as_micros();
    let batch = if batch == 0 { "-".to_owned() } else { batch.to_string() };
    println!("{name:<16} {batch:>6} {rate:>10.0} {:>10} {:>10}", at(50), at(99));
    Ok(())
}
