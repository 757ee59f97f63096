//! Writeback: how writers are slowed down, and what writeback passes cost.
//!
//! Fault model: a device that is slow; one that fails for good; many writers at once. Not covered:
//! fairness between writers, and times, which are the machine's.

mod common;

use common::{assert_clean, have, mke2fs, new};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use uext4::{AllocateMode, FileKind, MountOptions, OpenFile, Volume};
use uext4_device::{
    Fault, FaultDevice, FaultPlan, HookedDevice, MeteredDevice, Operation, SharedDevice, Times,
};

/// Bytes that a slow device writes in a millisecond.
const BYTES_PER_MS: u64 = 40 << 10;

/// A device whose writes take time for each byte while `is_slow`.
fn slow(inner: SharedDevice, is_slow: &Arc<AtomicBool>) -> SharedDevice {
    let is_slow = Arc::clone(is_slow);
    Arc::new(HookedDevice::new(inner, move |request| {
        if is_slow.load(Ordering::Relaxed) {
            let micros = request.bytes_written() as u64 * 1000 / BYTES_PER_MS;
            std::thread::sleep(Duration::from_micros(micros));
        }
    }))
}

fn options() -> MountOptions {
    MountOptions { cache_bytes: MountOptions::CACHE_BYTES_MIN, ..MountOptions::default() }
}

fn file(volume: &Volume, name: &str) -> OpenFile {
    let root = volume.root().unwrap();
    let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644)).unwrap();
    volume.open_file(&inode).unwrap()
}

/// Four writers write many times the cache, each in files of its own, in small and in large pieces.
/// What is dirty stays under the hard limit and what each may add before it looks; none is left
/// behind, and none writes back what others wrote.
#[test]
fn writers_on_a_slow_device_stay_below_the_limit_and_all_go_on() {
    if !have("mke2fs") {
        return;
    }
    // Room for what was removed and is not committed yet, too.
    let inner = Arc::new(mke2fs(256, "-b 4096"));
    let is_slow = Arc::new(AtomicBool::new(false));
    let volume = Volume::open(slow(inner.clone(), &is_slow), options()).unwrap();
    is_slow.store(true, Ordering::Relaxed);
    let budget = volume.page_budget();
    let (hard, background) = (budget.hard_limit(), budget.background_limit());
    let done = AtomicBool::new(false);
    let written = [0; 4].map(AtomicU64::new);
    let (most, fewest) = std::thread::scope(|scope| {
        let writers: Vec<_> = written
            .iter()
            .enumerate()
            .map(|(n, written)| {
                let volume = &volume;
                scope.spawn(move || {
                    let piece = vec![n as u8; if n % 2 == 0 { 8 << 10 } else { 256 << 10 }];
                    let until = Instant::now() + Duration::from_secs(3);
                    for round in 0_u64.. {
                        let file = file(volume, &format!("w{n}-{round}"));
                        for at in (0..512 << 10).step_by(piece.len()) {
                            if Instant::now() >= until {
                                return;
                            }
                            file.write_at(at as u64, &piece).unwrap();
                            written.fetch_add(piece.len() as u64, Ordering::Relaxed);
                        }
                        if round >= 6 {
                            volume
                                .unlink(
                                    &volume.root().unwrap(),
                                    format!("w{n}-{}", round - 6).as_bytes(),
                                )
                                .unwrap();
                        }
                    }
                })
            })
            .collect();
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(budget.unclean());
                std::thread::sleep(Duration::from_micros(200));
            }
            most
        });
        let ends: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "a writer failed");
        let fewest = written.iter().map(|w| w.load(Ordering::Relaxed)).min().unwrap();
        (watch.join().unwrap(), fewest)
    });
    let total: u64 = written.iter().map(|w| w.load(Ordering::Relaxed)).sum();
    println!("dirty at most {most} of {hard} pages; {total} bytes, at least {fewest} each");
    assert!(most > background, "the load was too small to be slowed down");
    // Each writer may add one piece before it looks.
    assert!(most <= hard + 2 * (2 + 64), "{most} pages dirty, hard limit {hard}");
    assert!(fewest > 512 << 10, "a writer was left behind: {fewest} bytes");
    is_slow.store(false, Ordering::Relaxed);
    volume.close().unwrap();
    assert_clean(&inner);
}

/// Writeback that fails, and a volume that is aborted: writers are told, or go on; nobody hangs.
#[test]
fn nobody_waits_for_a_device_that_fails() {
    if !have("mke2fs") {
        return;
    }
    let faulty = Arc::new(FaultDevice::new(Arc::new(mke2fs(64, "-b 4096"))));
    let volume = Volume::open(faulty.clone() as SharedDevice, options()).unwrap();
    let files: Vec<OpenFile> = (0..4).map(|n| file(&volume, &format!("f{n}"))).collect();
    volume.sync().unwrap();
    faulty.reset();
    let (operation, times, fault) = (Operation::Write, Times::Onwards, Fault::Io);
    faulty.arm(FaultPlan { operation, nth: 1, times, fault });
    let began = Instant::now();
    let accepted: Vec<usize> = std::thread::scope(|scope| {
        let write = |file: &OpenFile| {
            let mut pieces = (0..64).map(|at| file.write_at(at << 17, &[1; 128 << 10]));
            pieces.position(|piece| piece.is_err()).unwrap_or(64)
        };
        let writers: Vec<_> = files.iter().map(|file| scope.spawn(move || write(file))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert!(began.elapsed() < Duration::from_secs(20), "writers hung: {:?}", began.elapsed());
    // A writer that came late may have been refused from its first piece on: nothing of it is lost.
    assert!(accepted.iter().any(|pieces| *pieces > 0));
    for (file, pieces) in files.iter().zip(accepted).filter(|(_, pieces)| *pieces > 0) {
        assert!(file.sync(false).is_err(), "{pieces} pieces are lost, and that was not told");
    }
    volume.abandon();
}

/// Data of many small files reaches the device in few writes, and their mappings in few handles.
#[test]
fn small_files_share_writes_and_handles() {
    if !have("mke2fs") {
        return;
    }
    let memory = Arc::new(mke2fs(64, "-b 4096"));
    let device = Arc::new(MeteredDevice::new(memory.clone()));
    let volume = Volume::open(device.clone() as SharedDevice, MountOptions::default()).unwrap();
    for n in 0..600 {
        file(&volume, &format!("small{n}")).write_at(0, &[n as u8; 9_000]).unwrap();
    }
    let handles = || volume.space().journal().stats().handles.load(Ordering::Relaxed);
    let (before, handles_before) = (device.read_meter(), handles());
    volume.sync().unwrap();
    let (writes, handles) = (device.read_meter().since(&before).writes, handles() - handles_before);
    println!("600 files: {writes} writes, {handles} handles");
    assert!(writes < 40 && handles < 40, "{writes} writes, {handles} handles");
    let root = volume.root().unwrap();
    for n in 0..600 {
        let inode = volume.lookup(&root, format!("small{n}").as_bytes()).unwrap();
        let mut back = vec![0; 9_001];
        assert_eq!(volume.open_file(&inode).unwrap().read_at(0, &mut back).unwrap(), 9_000);
        assert!(back[..9_000].iter().all(|&byte| byte == n as u8));
    }
    drop(root);
    volume.close().unwrap();
    assert_clean(&memory);
}

/// Random writes into an allocated file leave no unwritten piece that is small, so the number of
/// extents is bounded by the size of the file over that of a piece; what was not written reads as
/// zeroes, also where it was converted with a neighbour.
#[test]
fn small_unwritten_neighbours_are_zeroed() {
    if !have("mke2fs") {
        return;
    }
    const BYTES: u64 = 8 << 20;
    let extents = |zeroout_kib: u32| {
        let memory = Arc::new(mke2fs(64, "-b 4096"));
        let mut options = MountOptions::default();
        options.parse(&format!("extent_max_zeroout_kb={zeroout_kib}")).unwrap();
        let volume = Volume::open(memory.clone() as SharedDevice, options).unwrap();
        // What is free holds something else.
        let junk = file(&volume, "junk");
        junk.write_at(0, &vec![0xee; 24 << 20]).unwrap();
        junk.sync(false).unwrap();
        volume.unlink(&volume.root().unwrap(), b"junk").unwrap();
        drop(junk);
        volume.sync().unwrap();
        let allocated = file(&volume, "allocated");
        allocated.allocate(AllocateMode::Allocate { keep_size: false }, 0, BYTES).unwrap();
        let mut model = vec![0; BYTES as usize];
        let mut seed = 77_u64;
        for round in 0..120_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(round | 1);
            let at = (seed >> 33) % (BYTES / 4096 - 2) * 4096;
            allocated.write_at(at, &[round as u8 + 1; 8192]).unwrap();
            model[at as usize..at as usize + 8192].fill(round as u8 + 1);
            allocated.sync(true).unwrap();
        }
        let name = b"allocated";
        volume.close().unwrap();
        assert_clean(&memory);
        let volume = Volume::open(memory as SharedDevice, MountOptions::default()).unwrap();
        let inode = volume.lookup(&volume.root().unwrap(), name).unwrap();
        let mut back = vec![1; BYTES as usize];
        volume.open_file(&inode).unwrap().read_at(0, &mut back).unwrap();
        assert!(back == model, "content differs with {zeroout_kib} KiB");
        let attr = volume.attr(&inode);
        assert!(attr.blocks_512 >= BYTES / 512);
        let (mut at, mut count) = (0, 0);
        while let Ok(data) = volume.open_file(&inode).unwrap().seek_data(at) {
            count += 1;
            at = volume.open_file(&inode).unwrap().seek_hole(data).unwrap();
        }
        count
    };
    let (split, zeroed) = (extents(0), extents(64));
    println!("written pieces: {split} without, {zeroed} with zeroing");
    assert!(zeroed * 3 < split * 2, "{zeroed} pieces with zeroing, {split} without");
}
