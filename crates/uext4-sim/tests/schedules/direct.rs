//! Schedules of direct accesses against removals, pages and conversions.

use super::space::FULL;
use super::{WITH_VERITY, expect_clean, explore, open};
#[cfg(feature = "injected-faults")]
use super::{expect_failure, explore_now};
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(feature = "injected-faults")]
use uext4::injected_faults::{Fault, inject};
use uext4::{
    AllocateMode, DirectOp, DirectOptions, DirectRequest, InodeRef, IoBuf, OpenFile, Volume,
};
use uext4_device::{Device, MemoryDevice};

/// Lets others run before each overwrite, in some schedules long enough for a removal, a commit,
/// and the next user of the block.
#[derive(Debug)]
struct Yielding(Arc<MemoryDevice>, usize);

impl Yielding {
    fn new(inner: Arc<MemoryDevice>) -> Yielding {
        static SCHEDULE: AtomicUsize = AtomicUsize::new(0);
        let number = SCHEDULE.fetch_add(1, Ordering::Relaxed);
        Yielding(inner, [2, 20, 60, 1500][number % 4])
    }
}

impl Device for Yielding {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(offset, buf)?;
        thread::yield_now();
        Ok(())
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> std::io::Result<()> {
        // What was left free on the full image lies at its end, the log in its front.
        if offset > self.len() / 2 {
            (0..self.1).for_each(|_| thread::yield_now());
        }
        self.0.write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> std::io::Result<()> {
        self.0.write_vectored_at(offset, bufs)
    }
    fn flush(&self) -> std::io::Result<()> {
        self.0.flush()
    }
    fn punch(&self, offset: u64, len: u64) -> std::io::Result<bool> {
        self.0.punch(offset, len)
    }
}

/// The image with 14 free blocks, of which file `w0` has taken four, and written them.
fn with_a_direct_file() -> (Arc<MemoryDevice>, Volume, OpenFile) {
    let device = Arc::new(FULL.snapshot());
    let volume = open(Arc::new(Yielding::new(device.clone())));
    let inode = volume.lookup(&volume.root().unwrap(), b"w0").unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_direct_at(0, &[1; 4096]).unwrap();
    // What a later transaction frees is not the file's own to take again.
    volume.sync().unwrap();
    // Known from here on.
    file.write_direct_at(0, &[1; 4096]).unwrap();
    (device, volume, file)
}

/// Direct overwrites, by a call and by a queue, while the blocks go and another file takes them:
/// what lands there is that file's.
fn overwriting() {
    let (device, volume, file) = with_a_direct_file();
    let before: Vec<u64> = blocks(&volume, file.inode()).collect();
    let file = Arc::new(file);
    let by_call = thread::spawn({
        let file = file.clone();
        move || drop(file.write_direct_at(1024, &[2; 1024]))
    });
    let by_queue = thread::spawn({
        let (volume, file) = (volume.clone(), file.clone());
        move || {
            let options = DirectOptions { depth: 2, polled: false, memory: Vec::new() };
            let mut queue = volume.direct_queue(options).unwrap();
            let known = queue.register(file.inode()).unwrap();
            let mut buf = IoBuf::new(1024).unwrap();
            buf.fill(2);
            let (op, offset) = (DirectOp::Write, 2048);
            queue.push(DirectRequest { file: known, op, offset, buf, tag: 0 }).unwrap();
            queue.submit().unwrap();
            // Its own request stands in its way.
            file.allocate(AllocateMode::PunchHole, 3072, 1024).unwrap();
            queue.reap(1, &mut Vec::new()).unwrap();
        }
    });
    let taker = thread::spawn({
        let (volume, file) = (volume.clone(), file.clone());
        move || {
            file.allocate(AllocateMode::PunchHole, 0, 3072).unwrap();
            volume.sync().unwrap();
            let inode = volume.lookup(&volume.root().unwrap(), b"w1").unwrap();
            let other = volume.open_file(&inode).unwrap();
            let mut count = 0;
            // All there is.
            while let Ok(more) = other.write_direct_at(count as u64, &[3; 2 * 1024]) {
                count += more;
            }
            (other, count)
        }
    });
    by_call.join().unwrap();
    by_queue.join().unwrap();
    let (other, count) = taker.join().unwrap();
    let took_some = blocks(&volume, other.inode()).any(|block| before.contains(&block));
    TAKEN.fetch_add(u64::from(took_some), Ordering::Relaxed);
    let mut back = vec![0; count];
    assert_eq!(other.read_direct_at(0, &mut back).unwrap(), count);
    assert!(back.iter().all(|&byte| byte == 3), "a block of another file was overwritten");
    drop((file, other));
    volume.close().unwrap();
    expect_clean(&device);
}

/// Schedules in which the blocks became the other file's.
static TAKEN: AtomicU64 = AtomicU64::new(0);

fn blocks(volume: &Volume, inode: &InodeRef) -> impl Iterator<Item = u64> {
    let mut blocks = Vec::new();
    let mut add = |extent: uext4::Extent| {
        blocks.extend((0..u64::from(extent.len)).map(|n| extent.start.get() + n));
        true
    };
    volume.extents(inode, uext4::FileBlock(0), &mut add).unwrap();
    blocks.into_iter()
}

#[test]
fn direct_overwrites_and_removals() {
    explore(overwriting);
    let taken = TAKEN.load(Ordering::Relaxed);
    assert!(taken > 1_000, "the blocks were taken in {taken} schedules only");
}

/// A direct overwrite that has returned is what a buffered read shows, while others read through
/// the cache or truncate the file.
fn caching() {
    let (device, volume, file) = with_a_direct_file();
    let file = Arc::new(file);
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let file = file.clone();
            thread::spawn(move || {
                let mut back = [0; 1024];
                file.read_at(0, &mut back).unwrap();
                assert!(back.iter().all(|&byte| byte == back[0]));
            })
        })
        .collect();
    file.write_direct_at(0, &[2; 1024]).unwrap();
    let mut back = [0; 1024];
    file.read_at(0, &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 2), "an old page: it says {}", back[0]);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    drop(file);
    volume.close().unwrap();
    expect_clean(&device);
}

#[test]
fn direct_overwrites_and_pages() {
    explore(caching);
}

/// Whole unwritten blocks are written directly, by a call and by a queue, while parts of them are
/// written through the cache, and directly, and the file is synced: of what was written whole
/// nothing is lost but those parts.
fn converting() {
    let (device, volume, file) = with_a_direct_file();
    file.allocate(AllocateMode::ZeroRange { keep_size: true }, 0, 4096).unwrap();
    // Known from here on.
    file.write_direct_at(3072, &[1; 1024]).unwrap();
    let file = Arc::new(file);
    let by_call = thread::spawn({
        let file = file.clone();
        move || assert_eq!(file.write_direct_at(0, &[2; 1024]).unwrap(), 1024)
    });
    let by_queue = thread::spawn({
        let (volume, file) = (volume.clone(), file.clone());
        move || {
            let options = DirectOptions { depth: 2, polled: false, memory: Vec::new() };
            let mut queue = volume.direct_queue(options).unwrap();
            let known = queue.register(file.inode()).unwrap();
            let mut buf = IoBuf::new(1024).unwrap();
            buf.fill(2);
            let (op, offset) = (DirectOp::Write, 1024);
            queue.push(DirectRequest { file: known, op, offset, buf, tag: 0 }).unwrap();
            queue.submit().unwrap();
            // Its own request stands in its way.
            file.write_direct_at(1024 + 512, &[4; 512]).unwrap();
            let mut done = Vec::new();
            queue.reap(1, &mut done).unwrap();
            assert_eq!(done.pop().unwrap().result.unwrap(), 1024);
        }
    });
    file.write_direct_at(512, &[4; 512]).unwrap();
    for block in 0..2 {
        file.write_at(block * 1024 + 100, &[3; 100]).unwrap();
    }
    volume.sync().unwrap();
    by_call.join().unwrap();
    by_queue.join().unwrap();
    let mut back = [0; 2048];
    assert_eq!(file.read_at(0, &mut back).unwrap(), 2048);
    for (block, bytes) in back.chunks(1024).enumerate() {
        let is_right = |at: usize| match at {
            100..200 => [2, 3].contains(&bytes[at]),
            0..512 => bytes[at] == 2,
            _ => [2, 4].contains(&bytes[at]),
        };
        let wrong = (0..1024).find(|&at| !is_right(at));
        assert_eq!(wrong, None, "what was written to block {block} is lost");
    }
    IN_PLACE.fetch_add(volume.stats().number("direct_writes_in_place").unwrap(), Ordering::Relaxed);
    drop(file);
    volume.close().unwrap();
    expect_clean(&device);
}

/// Writes that went in place and were converted, in all schedules: one is the first of each.
static IN_PLACE: AtomicU64 = AtomicU64::new(0);

#[test]
fn direct_writes_to_unwritten_blocks() {
    explore(converting);
    let in_place = IN_PLACE.load(Ordering::Relaxed);
    println!("{in_place} in place");
    assert!(in_place > 1_000, "{in_place} in place only");
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_blind_conversion_is_found() {
    expect_failure("direct::a_blind_conversion_is_found", "is lost", || {
        inject(Some(Fault::BlindConversion));
        explore_now(converting, 2_000);
    });
}

/// The remover of mappings does not wait for accesses under way.
#[cfg(feature = "injected-faults")]
#[test]
fn a_removal_that_does_not_wait_is_found() {
    expect_failure("direct::a_removal_that_does_not_wait_is_found", "of another file", || {
        inject(Some(Fault::LateEpoch));
        explore_now(overwriting, 2_000);
    });
}

/// A remover that waits, but does not see all readers.
#[cfg(feature = "injected-faults")]
#[test]
fn a_removal_without_a_fence_is_found() {
    expect_failure("direct::a_removal_without_a_fence_is_found", "of another file", || {
        inject(Some(Fault::MissingFence));
        explore_now(overwriting, 2_000);
    });
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_page_without_a_fence_is_found() {
    expect_failure("direct::a_page_without_a_fence_is_found", "an old page", || {
        inject(Some(Fault::MissingFence));
        explore_now(caching, 2_000);
    });
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_page_that_does_not_wait_is_found() {
    expect_failure("direct::a_page_that_does_not_wait_is_found", "an old page", || {
        inject(Some(Fault::LateEpoch));
        explore_now(caching, 2_000);
    });
}

/// A file is sealed beside a direct read that learns its blocks: no read after that goes past the
/// tree.
fn sealing() {
    let device = Arc::new(WITH_VERITY.snapshot());
    let volume = open(device.clone());
    let inode = super::create(&volume, &volume.root().unwrap(), "s").unwrap();
    let file = Arc::new(volume.open_file(&inode).unwrap());
    file.write_at(0, &[1; 1024]).unwrap();
    file.sync(false).unwrap();
    file.drop_cached().unwrap();
    // Both threads would make the state of direct I/O, and the explorer knows no such wait.
    file.read_direct_at(0, &mut [0; 1024]).unwrap();
    let reader = thread::spawn({
        let file = file.clone();
        move || {
            for _ in 0..3 {
                file.read_direct_at(0, &mut [0; 1024]).unwrap();
            }
        }
    });
    let algorithm = uext4_ondisk::verity::Algorithm::Sha256;
    let parameters = uext4::VerityParameters { algorithm, block_size: 1024, salt: Vec::new() };
    volume.enable_verity(&inode, parameters).unwrap();
    reader.join().unwrap();
    file.drop_cached().unwrap();
    let block = blocks(&volume, &inode).next().unwrap();
    device.write_at(block * 1024, &[2; 1024]).unwrap();
    let read = file.read_direct_at(0, &mut [0; 1024]);
    assert!(read.is_err(), "a block was shown that nobody has verified");
    drop((file, inode));
    volume.abandon();
}

#[test]
fn direct_reads_beside_sealing() {
    explore(sealing);
}
