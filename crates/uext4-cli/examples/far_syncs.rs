//! Syncs a round trip: threads that write to an image on a network block device and sync.
//!
//! `far_syncs URI THREADS SECONDS overwrite|append|storm`: `overwrite` and `append` give each
//! thread a file of its own; `storm` (E3's shape) has all of them overwrite 16 KiB at random places
//! of one file of 1 MiB. Before and after, one thread reads at places that no cache has, which is a
//! round trip each. Prints both rates and their ratio.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use uext4::{FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::Device;
use uext4_nbd::{NbdDevice, NbdOptions, NbdUri};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [uri, threads, seconds, shape] = args.as_slice() else {
        return Err("far_syncs URI THREADS SECONDS overwrite|append|storm".into());
    };
    let device = Arc::new(NbdDevice::open(&uri.parse::<NbdUri>()?, NbdOptions::new())?);
    let (threads, time) = (threads.parse()?, Duration::from_secs(seconds.parse()?));
    let volume = Volume::open(device.clone(), MountOptions::default())?;
    let before = round_trips(&*device)?;
    let syncs = syncs(&volume, shape, threads, time)?;
    let after = round_trips(&*device)?;
    volume.close()?;
    let trips = f64::midpoint(before, after);
    println!(
        "{shape}, {threads} threads: {syncs:.0} syncs/s, {trips:.0} round trips/s: {:.2} syncs a \
         round trip, {:.2} round trips a sync of a thread",
        syncs / trips,
        trips * f64::from(threads) / syncs,
    );
    Ok(())
}

/// Round trips a second, by reads one after the other.
fn round_trips(device: &dyn Device) -> Outcome<f64> {
    let (count, begun) = (300, Instant::now());
    for at in 0..count {
        device.read_at((at * 7919 % 200) * (1 << 20), &mut [0; 4096])?;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Syncs a second.
fn syncs(volume: &Volume, shape: &str, threads: u32, time: Duration) -> Outcome<f64> {
    let (len, block) = if shape == "storm" { (1 << 20, 16 << 10) } else { (8 << 20, 4 << 10) };
    let root = volume.root()?;
    let (kind, owner) = (FileKind::Regular, Owner { uid: 0, gid: 0 });
    let new = NewInode { kind, mode: 0o644, owner, rdev: uext4::Device::default() };
    let count = if shape == "storm" { 1 } else { threads };
    let process = std::process::id();
    let files = (0..count).map(|at| -> Outcome<_> {
        let name = format!("{shape}-{process}-{at}");
        let inode = volume.create(&root, name.as_bytes(), &new)?;
        let file = volume.open_file(&inode)?;
        if shape != "append" {
            file.write_at(0, &vec![1; len])?;
            file.sync(false)?;
        }
        Ok(file)
    });
    let files = files.collect::<Outcome<Vec<_>>>()?;
    let done = AtomicU64::new(0);
    let begun = Instant::now();
    let run = |thread: u32| -> Outcome<()> {
        let file = &files[thread as usize % files.len()];
        let mut random = u64::from(thread) * 0x9e37_79b9 + 1;
        for step in 0_u64.. {
            if begun.elapsed() > time {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let blocks = (len / block) as u64;
            let at = if shape == "append" { step } else { (random >> 33) % blocks };
            file.write_at(at * block as u64, &vec![thread as u8; block])?;
            file.sync(false)?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|at| scope.spawn(move || run(at))).collect();
        running.into_iter().try_for_each(|one| one.join().expect("no thread panics"))
    })?;
    Ok(done.into_inner() as f64 / begun.elapsed().as_secs_f64())
}
