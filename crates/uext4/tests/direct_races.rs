//! Direct overwrites against those who take the blocks away.
//!
//! Fault model: threads that overwrite files, by calls and by queues, while others cut, punch,
//! zero, collapse and delete them, on a volume so full that freed blocks are soon another file's,
//! over a device that sits on writes. Each file has a mark of its own; a block with a foreign one
//! is a write that came too late. Not covered: schedules one by one (uext4-sim, schedules.rs).

mod common;

use common::{assert_clean, have, mke2fs, new};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use uext4::{
    AllocateMode, DirectOp, DirectOptions, DirectRequest, FileKind, IoBuf, MountOptions, OpenFile,
    SetAttr, Volume,
};
use uext4_device::{Device, MemoryDevice, SharedDevice};

const BLOCK: usize = 1024;
const FILES: u64 = 6;
const FILE_BLOCKS: u64 = 320;

/// Sits on every few writes of one block before it makes them; gathered ones it makes at once.
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
        if buf.len() == BLOCK && self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
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
            let is_zero = block.iter().all(|&byte| byte == 0);
            if !is_zero && block != &own[..block.len()] {
                let found = String::from_utf8_lossy(&block[..16]).into_owned();
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
            let mode = match rng.random_range(0..6) {
                0 => Some(AllocateMode::PunchHole),
                1 => Some(AllocateMode::ZeroRange { keep_size: true }),
                2 => Some(AllocateMode::CollapseRange),
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
fn stress(seed: u64, time: Duration) -> Option<String> {
    let memory = Arc::new(mke2fs(3, "-b 1024 -m 0 -J size=1 -N 32"));
    let device: SharedDevice =
        Arc::new(LazyDevice { inner: memory.clone(), count: AtomicU64::new(0) });
    let volume = Volume::open(device, MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let file = |number: u64| {
        let name = format!("f{number}").into_bytes();
        let inode = volume.create(&root, &name, &new(FileKind::Regular, 0o644)).unwrap();
        volume.open_file(&inode).unwrap()
    };
    let files = (0..FILES).map(file).collect();
    let stress = Arc::new(Stress { volume: volume.clone(), files, over: AtomicBool::new(false) });
    let found = std::thread::scope(|scope| {
        for n in 0..2 {
            let stress = &stress;
            scope.spawn(move || stress.overwrite(seed + n));
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
    let overwrites = volume.stats().number("direct_overwrites").unwrap();
    println!("{overwrites} overwrites; {found:?}");
    assert!(found.is_some() || overwrites > 100, "only {overwrites} overwrites went the fast way");
    drop(stress);
    volume.close().unwrap();
    assert_clean(&memory);
    found
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
            assert_eq!(stress(seed * 100, Duration::from_millis(2500)), None);
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
        let found = (0..8).find_map(|seed| stress(seed, Duration::from_millis(4000)));
        uext4::plant::set(None);
        assert!(found.is_some());
    }
}
