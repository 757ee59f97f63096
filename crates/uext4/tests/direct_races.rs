//! Direct overwrites against threads that remove the mappings.
//!
//! Fault model: threads that overwrite files, by calls and by queues, while others cut, punch,
//! zero, collapse, allocate, unlink and delete them, on a volume so full that freed blocks are soon
//! another file's, over a device that sits on writes; and the same in DAX mode, by ordinary writes.
//! Files lose their name while they are written, and their last user in any order with
//! the writes: it may be a queue that is dropped with requests under way.
//! Each file has a mark of its own; a block with a foreign one is a write that came too late, or a
//! block that was never written. Not covered: schedules one by one (uext4-sim, schedules.rs).

mod common;

use common::{assert_clean, have, mke2fs, new};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};
#[cfg(feature = "injected-faults")]
use uext4::injected_faults::{Fault, inject};
use uext4::{
    AllocateMode, DirectFile, DirectOp, DirectOptions, DirectQueue, DirectRequest, FileKind, IoBuf,
    MountOptions, OpenFile, SetAttr, Volume,
};
use uext4_device::{AddressableDevice, HookedDevice, HookedRequest, SharedDevice};

const BLOCK: usize = 1024;
const FILES: usize = 6;
const FILE_BLOCKS: u64 = 320;

/// A device that sits on every few writes of at most a block before it makes them; gathered ones go
/// at once.
fn lazy(inner: SharedDevice) -> SharedDevice {
    let count = AtomicU64::new(0);
    Arc::new(HookedDevice::new(inner, move |request| {
        let (HookedRequest::Write(buf) | HookedRequest::WriteFua(buf)) = request else { return };
        if buf.len() <= BLOCK && count.fetch_add(1, Ordering::Relaxed).is_multiple_of(4) {
            std::thread::sleep(Duration::from_millis(4));
        }
    }))
}

fn mark(file: u64) -> Vec<u8> {
    format!("{:<16}", format!("mark of {file}")).into_bytes().repeat(BLOCK / 16)
}

/// A file, and the number of its mark, which no other file ever had.
struct Owned {
    number: u64,
    file: OpenFile,
}

impl Owned {
    fn name(&self) -> Vec<u8> {
        format!("f{}", self.number).into_bytes()
    }

    /// Reads it both ways: zeroes and its own mark are all there may be.
    fn foreign(&self) -> Option<String> {
        let own = mark(self.number);
        let mut all = vec![0; FILE_BLOCKS as usize * BLOCK];
        for direct in [true, false] {
            let count = match direct {
                true => self.file.read_direct_at(0, &mut all).unwrap(),
                false => self.file.read_at(0, &mut all).unwrap(),
            };
            for (at, block) in all[..count].chunks(BLOCK).enumerate() {
                // In DAX mode what is written and what is not share blocks.
                let is_own = |(part, own): (&[u8], &[u8])| {
                    part == &own[..part.len()] || part.iter().all(|&byte| byte == 0)
                };
                let mut parts = block.chunks(16).zip(own.chunks(16));
                if let Some(part) = parts.find(|&pair| !is_own(pair)) {
                    let found = String::from_utf8_lossy(part.0).into_owned();
                    return Some(format!("block {at} of file {} says '{found}'", self.number));
                }
            }
        }
        None
    }
}

/// What takes blocks away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removals {
    /// Cutting, punching, zeroing, collapsing.
    OfRanges,
    /// Unlinking and the last close.
    OfFiles,
    Both,
}

/// A queue with its files, which hold none of them: it may be the last that does.
struct Queued {
    queue: DirectQueue,
    known: Vec<Known>,
}

type Known = (u64, DirectFile, Weak<Owned>);

struct Stress {
    volume: Volume,
    /// What has a name, or just lost it.
    files: Vec<RwLock<Arc<Owned>>>,
    next_number: AtomicU64,
    over: AtomicBool,
    /// Ordinary writes, at any alignment, in place of direct ones.
    is_dax: bool,
    removals: Removals,
}

impl Stress {
    fn new(volume: Volume, is_dax: bool, removals: Removals) -> Self {
        let (next_number, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut stress = Self { volume, files: Vec::new(), next_number, over, is_dax, removals };
        let files = (0..FILES).map(|_| RwLock::new(Arc::new(stress.create().unwrap())));
        stress.files = files.collect();
        stress
    }

    fn create(&self) -> uext4::Result<Owned> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let root = self.volume.root()?;
        let name = format!("f{number}").into_bytes();
        let inode = self.volume.create(&root, &name, &new(FileKind::Regular, 0o644))?;
        Ok(Owned { number, file: self.volume.open_file(&inode)? })
    }

    fn file(&self, slot: usize) -> Arc<Owned> {
        self.files[slot].read().unwrap().clone()
    }

    fn any(&self, rng: &mut StdRng) -> (usize, Arc<Owned>) {
        let slot = rng.random_range(0..FILES);
        (slot, self.file(slot))
    }

    fn goes_on(&self) -> bool {
        !self.over.load(Ordering::Relaxed)
    }

    fn foreign(&self) -> Option<String> {
        (0..FILES).find_map(|slot| self.file(slot).foreign())
    }

    fn overwrite(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let (_, owned) = self.any(&mut rng);
            let offset = rng.random_range(0..FILE_BLOCKS) * BLOCK as u64;
            // Nothing but overwrites: the refiller's part is to extend.
            if offset < owned.file.inode().size() {
                // What cannot be written finds no space.
                let _ = owned.file.write_direct_at(offset, &mark(owned.number));
            }
        }
    }

    /// Not in whole blocks.
    fn overwrite_in_place(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let (_, owned) = self.any(&mut rng);
            let offset = rng.random_range(0..FILE_BLOCKS - 2) * BLOCK as u64;
            let at = offset + rng.random_range(0..BLOCK as u64 / 16) * 16;
            let count = rng.random_range(1..BLOCK / 8) * 16;
            let file = &owned.file;
            if offset + 3 * BLOCK as u64 > file.inode().size() {
                continue;
            }
            // What cannot be written finds no space.
            let _ = file.write_at(at, &mark(owned.number).repeat(2)[..count]);
        }
    }

    fn queue(&self) -> Queued {
        let options = DirectOptions { depth: 8, polled: false, memory: Vec::new() };
        let mut queue = self.volume.direct_queue(options).unwrap();
        let known = (0..FILES).map(|slot| self.register(&mut queue, slot)).collect();
        Queued { queue, known }
    }

    fn register(&self, queue: &mut DirectQueue, slot: usize) -> Known {
        let owned = self.file(slot);
        let file = queue.register(owned.file.inode()).unwrap();
        (owned.number, file, Arc::downgrade(&owned))
    }

    fn overwrite_queued(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut queued = self.queue();
        let mut done = Vec::new();
        while self.goes_on() {
            let Queued { queue, known } = &mut queued;
            for tag in 0..8 {
                let (number, file, owned) = &known[rng.random_range(0..FILES)];
                let offset = rng.random_range(0..FILE_BLOCKS) * BLOCK as u64;
                let mut buf = IoBuf::new(BLOCK).unwrap();
                buf.copy_from_slice(&mark(*number));
                // Files that nobody else holds only shrink.
                let size = owned.upgrade().map(|owned| owned.file.inode().size());
                let (file, op) = match size.is_none_or(|size| offset < size) {
                    true => (*file, DirectOp::Write),
                    false => (*file, DirectOp::Read),
                };
                queue.push(DirectRequest { file, op, offset, buf, tag }).unwrap();
            }
            queue.submit().unwrap();
            if self.removals != Removals::OfRanges && rng.random_range(0..8) == 0 {
                // With all requests under way, and perhaps the last user of some file.
                queued = self.queue();
                continue;
            }
            queue.reap(8, &mut done).unwrap();
            done.clear();
            let slot = rng.random_range(0..FILES);
            if known[slot].2.strong_count() == 0 {
                // Perhaps its last user lets it go.
                queue.unregister(known[slot].1).unwrap();
                known[slot] = self.register(queue, slot);
            }
        }
    }

    fn take_away(&self, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let (_, owned) = self.any(&mut rng);
            let file = &owned.file;
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

    /// Unlinks one file after the other and puts another into its place. What was foreign in one
    /// without a name.
    fn unlink(&self, seed: u64) -> Option<String> {
        let mut rng = StdRng::seed_from_u64(seed);
        let root = self.volume.root().unwrap();
        while self.goes_on() {
            let (slot, owned) = self.any(&mut rng);
            self.volume.unlink(&root, &owned.name()).unwrap();
            if rng.random() {
                // An orphan that is written.
                std::thread::sleep(Duration::from_millis(rng.random_range(0..8)));
            }
            // Orphans have numbers and blocks, of which there may be no more.
            let fresh = loop {
                match self.create() {
                    Ok(fresh) => break fresh,
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
                if !self.goes_on() {
                    return None;
                }
            };
            *self.files[slot].write().unwrap() = Arc::new(fresh);
            let found = if rng.random() { owned.foreign() } else { None };
            drop(owned);
            if found.is_some() {
                self.over.store(true, Ordering::Relaxed);
                return found;
            }
            match rng.random_range(0..4) {
                0 => self.volume.sync().unwrap(),
                1 => std::thread::sleep(Duration::from_millis(5)),
                _ => {}
            }
        }
        None
    }

    fn refill(&self, seed: u64) -> Option<String> {
        let mut rng = StdRng::seed_from_u64(seed);
        while self.goes_on() {
            let (_, owned) = self.any(&mut rng);
            let data = mark(owned.number).repeat(FILE_BLOCKS as usize);
            let _ = match rng.random() {
                true => owned.file.write_direct_at(0, &data),
                false => owned.file.write_at(0, &data),
            };
            drop(owned);
            if rng.random_range(0..4) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(found) = self.foreign() {
                self.over.store(true, Ordering::Relaxed);
                return Some(found);
            }
        }
        None
    }

    /// Overwrites on the fast path, and files.
    fn done(&self) -> (u64, u64) {
        let overwrites = if self.is_dax { "dax_overwrites" } else { "direct_overwrites" };
        let overwrites = self.volume.stats().number(overwrites).unwrap();
        (overwrites, self.next_number.load(Ordering::Relaxed))
    }

    fn has_done_enough(&self) -> bool {
        let least = if self.removals == Removals::OfRanges { FILES as u64 } else { 30 };
        let (overwrites, files) = self.done();
        overwrites > 100 && files >= least
    }

    /// Does everything at once, for `time` or until something is found.
    fn run(&self, seed: u64, time: Duration) -> Option<String> {
        std::thread::scope(|scope| {
            for n in 0..2 {
                scope.spawn(move || match self.is_dax {
                    true => self.overwrite_in_place(seed + n),
                    false => self.overwrite(seed + n),
                });
                scope.spawn(move || self.overwrite_queued(seed + 10 + n));
            }
            if self.removals != Removals::OfFiles {
                scope.spawn(|| self.take_away(seed + 20));
            }
            let unlinker = (self.removals != Removals::OfRanges)
                .then(|| scope.spawn(|| self.unlink(seed + 40)));
            let refiller = scope.spawn(|| self.refill(seed + 30));
            let start = Instant::now();
            // A loaded machine is given longer to do as much.
            let goes_on = |so_far| so_far < time || so_far < 20 * time && !self.has_done_enough();
            while self.goes_on() && goes_on(start.elapsed()) {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.over.store(true, Ordering::Relaxed);
            let in_orphans = unlinker.and_then(|unlinker| unlinker.join().unwrap());
            refiller.join().unwrap().or(in_orphans)
        })
    }
}

/// What was found that must not be, within `time`.
fn stress(seed: u64, time: Duration, is_dax: bool, removals: Removals) -> Option<String> {
    let memory = Arc::new(mke2fs(3, "-b 1024 -m 0 -J size=1 -N 48"));
    let volume = open(lazy(memory.clone()), is_dax);
    let stress = Stress::new(volume.clone(), is_dax, removals);
    let found = stress.run(seed, time).or_else(|| stress.foreign());
    let (overwrites, files) = stress.done();
    let in_place = volume.stats().number("direct_writes_in_place").unwrap();
    println!(
        "dax {is_dax}, {removals:?}: {overwrites} overwrites of {files} files, {in_place} into \
         unwritten blocks; {found:?}"
    );
    assert!(found.is_some() || stress.has_done_enough(), "too little was done");
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

/// A fault is injected into the whole process: tests run one after the other.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn expect_nothing(is_dax: bool) {
    let _alone = one_at_a_time();
    if have("mke2fs") {
        for (seed, removals) in (0..).zip([Removals::OfRanges, Removals::Both, Removals::OfFiles]) {
            let time = Duration::from_millis(2500);
            assert_eq!(stress(seed * 100, time, is_dax, removals), None);
        }
    }
}

#[test]
fn no_overwrite_lands_in_a_block_that_another_file_has_taken() {
    expect_nothing(false);
}

#[test]
fn nor_does_a_store() {
    expect_nothing(true);
}

#[cfg(feature = "injected-faults")]
fn expect_found(fault: Fault, removals: Removals) {
    let _alone = one_at_a_time();
    if have("mke2fs") {
        inject(Some(fault));
        for is_dax in [false, true] {
            let time = Duration::from_millis(4000);
            let found = (0..8).find_map(|seed| stress(seed, time, is_dax, removals));
            assert!(found.is_some(), "{fault:?} in {removals:?}, dax: {is_dax}");
        }
        inject(None);
    }
}

/// The stress finds a remover that does not wait.
#[test]
#[cfg(feature = "injected-faults")]
fn and_the_stress_would_find_it() {
    expect_found(Fault::LateEpoch, Removals::OfRanges);
}

/// And one that frees the blocks of files without a name while they are held. (To wait for no
/// access when it deletes a file that nobody holds does no harm: accesses hold their file.)
#[test]
#[cfg(feature = "injected-faults")]
fn and_files_deleted_too_early() {
    expect_found(Fault::HastyDelete, Removals::OfFiles);
}
