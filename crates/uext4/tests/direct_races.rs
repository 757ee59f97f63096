//! Direct overwrites against those who take the blocks away.
//!
//! Fault model: threads that overwrite files, by calls and by queues, while others cut, punch,
//! zero, collapse, allocate and delete them, on a volume so full that freed blocks are soon
//! another file's, over a device that sits on writes; and the same in DAX mode, by ordinary writes
//! and leases. Each file has a mark of its own; a block with a foreign one is a write that came too
//! late, or a block that was never written. Not covered: schedules one by one (uext4-sim,
//! schedules.rs).

mod common;

use common::{assert_clean, have, mke2fs, new};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uext4::{
    AllocateMode, DirectOp, DirectOptions, DirectRequest, FileKind, IoBuf, Lease, MountOptions,
    OpenFile, SetAttr, Volume,
};
use uext4_device::{AddressableDevice, Device, MemoryDevice, SharedDevice};

const BLOCK: usize = 1024;
const FILES: u64 = 6;
const FILE_BLOCKS: u64 = 320;

/// Sits on every few writes of at most a block before it makes them; gathered ones go at once.
#[derive(Debug)]
struct LazyDevice {
    inner: Arc<MemoryDevice>,
    count: AtomicU64,
}

impl Device for LazyDevice {
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
        if buf.len() <= BLOCK && self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            std::thread::sleep(Duration::from_millis(4));
        }
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
}

fn mark(file: u64) -> Vec<u8> {
    format!("{:<16}", format!("mark of {file}")).into_bytes().repeat(BLOCK / 16)
}

/// Reads a file both ways: zeroes and its own mark are all there may be.
fn foreign(file: &OpenFile, number: u64) -> Option<String> {
    let own = mark(number);
    let mut all = vec![0; FILE_BLOCKS as usize * BLOCK];
    for direct in [true, false] {
        let count = match direct {
            true => file.read_direct_at(0, &mut all).unwrap(),
            false => file.read_at(0, &mut all).unwrap(),
        };
        for (at, block) in all[..count].chunks(BLOCK).enumerate() {
            // In DAX mode what is written and what is not share blocks.
            let is_own = |(part, own): (&[u8], &[u8])| {
                part == &own[..part.len()] || part.iter().all(|&byte| byte == 0)
            };
            if let Some(part) = block.chunks(16).zip(own.chunks(16)).find(|&pair| !is_own(pair)) {
                let found = String::from_utf8_lossy(part.0).into_owned();
                return Some(format!("block {at} of file {number} says '{found}'"));
            }
        }
    }
    None
}

struct Stress {
    volume: Volume,
    files: Vec<OpenFile>,
    over: AtomicBool,
    /// Ordinary writes, at any alignment, and leases, in place of direct ones.
    is_dax: bool,
}

impl Stress {
    fn any(&self, rng: &mut StdRng) -> (u64, &OpenFile) {
        let number = rng.random_range(0..FILES);
        (number, &self.files[number as usize])
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn overwrite(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let (number, file) = self.any(&mut rng);
            let offset = rng.random_range(0..FILE_BLOCKS) * BLOCK as u64;
            // Nothing but overwrites: the refiller's part is to extend.
            if offset < file.inode().size() {
                // What cannot be written finds no space.
                let _ = file.write_direct_at(offset, &mark(number));
            }
        }
    }

    /// Not in whole blocks, and through leases.
    fn overwrite_in_place(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut leases: Vec<Option<Lease>> = (0..FILES).map(|_| None).collect();
        while self.goes_on() {
            let (number, file) = self.any(&mut rng);
            let offset = rng.random_range(0..FILE_BLOCKS - 2) * BLOCK as u64;
            let at = rng.random_range(0..BLOCK / 16) * 16;
            let data = &mark(number).repeat(2)[..rng.random_range(1..BLOCK / 8) * 16];
            if offset + 3 * BLOCK as u64 > file.inode().size() {
                continue;
            }
            let lease = &mut leases[number as usize];
            if rng.random_range(0..32) == 0 {
                *lease = file.map(0, file.inode().size().max(1)).ok();
            }
            // What cannot be written finds no space, or the end of the file.
            let _ = match lease {
                Some(lease) if rng.random() => lease.write(offset + at as u64, data),
                _ => file.write_at(offset + at as u64, data).map(drop),
            };
        }
    }

    fn overwrite_queued(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let options = DirectOptions { depth: 8, polled: false, memory: Vec::new() };
        let mut queue = self.volume.direct_queue(options).unwrap();
        let known: Vec<_> = self.files.iter().map(|f| queue.register(f.inode()).unwrap()).collect();
        let mut done = Vec::new();
        while self.goes_on() {
            for tag in 0..8 {
                let (number, file) = self.any(&mut rng);
                let offset = rng.random_range(0..FILE_BLOCKS) * BLOCK as u64;
                let mut buf = IoBuf::new(BLOCK).unwrap();
                buf.copy_from_slice(&mark(number));
                let (file, op) = (
                    known[number as usize],
                    match offset < file.inode().size() {
                        true => DirectOp::Write,
                        false => DirectOp::Read,
                    },
                );
                queue.push(DirectRequest { file, op, offset, buf, tag }).unwrap();
            }
            queue.submit().unwrap();
            queue.reap(8, &mut done).unwrap();
            done.clear();
        }
    }

    fn take_away(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let (_, file) = self.any(&mut rng);
            let offset = rng.random_range(0..FILE_BLOCKS) * BLOCK as u64;
            let len = rng.random_range(1..FILE_BLOCKS) * BLOCK as u64;
            let mode = match rng.random_range(0..8) {
                0 => Some(AllocateMode::PunchHole),
                1 => Some(AllocateMode::ZeroRange { keep_size: true }),
                2 => Some(AllocateMode::CollapseRange),
                // Unwritten blocks over what others left there.
                3 => Some(AllocateMode::Allocate { keep_size: true }),
                _ => None,
            };
            // Ranges that do not fit the file, and space, are refused.
            let _ = match mode {
                Some(mode) => file.allocate(mode, offset, len),
                None => {
                    let size = file.inode().size().min(offset);
                    let change = SetAttr { size: Some(size), ..SetAttr::default() };
                    self.volume.set_attr(file.inode(), &change).map(drop)
                }
            };
            if rng.random_range(0..8) == 0 {
                self.volume.sync().unwrap();
            }
        }
    }

    fn refill(&self, seed: u64) -> Option<String> {
        let mut rng = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let (number, file) = self.any(&mut rng);
            let data = mark(number).repeat(FILE_BLOCKS as usize);
            let _ = match rng.random() {
                true => file.write_direct_at(0, &data),
                false => file.write_at(0, &data),
            };
            if rng.random_range(0..4) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut all = self.files.iter().zip(0..);
            if let Some(found) = all.find_map(|(file, number)| foreign(file, number)) {
                self.over.store(true, Ordering::Relaxed);
                return Some(found);
            }
        }
        None
    }
}

/// What was found that must not be, within `time`.
fn stress(seed: u64, time: Duration, is_dax: bool) -> Option<String> {
    let memory = Arc::new(mke2fs(3, "-b 1024 -m 0 -J size=1 -N 32"));
    let device: SharedDevice =
        Arc::new(LazyDevice { inner: memory.clone(), count: AtomicU64::new(0) });
    let volume = open(device, is_dax);
    let root = volume.root().unwrap();
    let file = |number: u64| {
        let name = format!("f{number}").into_bytes();
        let inode = volume.create(&root, &name, &new(FileKind::Regular, 0o644)).unwrap();
        volume.open_file(&inode).unwrap()
    };
    let files = (0..FILES).map(file).collect();
    let over = AtomicBool::new(false);
    let stress = Arc::new(Stress { volume: volume.clone(), files, over, is_dax });
    let found = std::thread::scope(|scope| {
        for n in 0..2 {
            let stress = &stress;
            scope.spawn(move || match stress.is_dax {
                true => stress.overwrite_in_place(seed + n),
                false => stress.overwrite(seed + n),
            });
            scope.spawn(move || stress.overwrite_queued(seed + 10 + n));
        }
        scope.spawn(|| stress.take_away(seed + 20));
        let refiller = scope.spawn(|| stress.refill(seed + 30));
        let start = Instant::now();
        while stress.goes_on() && start.elapsed() < time {
            std::thread::sleep(Duration::from_millis(5));
        }
        stress.over.store(true, Ordering::Relaxed);
        refiller.join().unwrap()
    });
    let files = || stress.files.iter().zip(0..);
    let found = found.or_else(|| files().find_map(|(file, number)| foreign(file, number)));
    let overwrites = if is_dax { "dax_overwrites" } else { "direct_overwrites" };
    let overwrites = volume.stats().number(overwrites).unwrap();
    let in_place = volume.stats().number("direct_writes_in_place").unwrap();
    println!("{overwrites} overwrites, {in_place} into unwritten blocks; {found:?}");
    assert!(found.is_some() || overwrites > 100, "only {overwrites} overwrites went the fast way");
    drop(stress);
    volume.close().unwrap();
    assert_clean(&memory);
    found
}

fn open(device: SharedDevice, is_dax: bool) -> Volume {
    let mut options = MountOptions::default();
    if !is_dax {
        return Volume::open(device, options).unwrap();
    }
    options.parse("dax=always").unwrap();
    Volume::open(Arc::new(AddressableDevice::new(device)), options).unwrap()
}

/// A fault is planted in the whole process: tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn no_overwrite_lands_in_a_block_that_another_file_has_taken() {
    let _turn = turn();
    if have("mke2fs") {
        for seed in 0..2 {
            assert_eq!(stress(seed * 100, Duration::from_millis(2500), false), None);
        }
    }
}

#[test]
fn nor_does_a_store_or_a_lease() {
    let _turn = turn();
    if have("mke2fs") {
        for seed in 0..2 {
            assert_eq!(stress(seed * 100, Duration::from_millis(2500), true), None);
        }
    }
}

/// The stress finds who does not wait.
#[test]
#[cfg(feature = "plant")]
fn and_the_stress_would_find_it() {
    let _turn = turn();
    if have("mke2fs") {
        uext4::plant::set(Some(uext4::plant::Fault::LateEpoch));
        for is_dax in [false, true] {
            let time = Duration::from_millis(4000);
            let found = (0..8).find_map(|seed| stress(seed, time, is_dax));
            assert!(found.is_some(), "dax: {is_dax}");
        }
        uext4::plant::set(None);
    }
}
