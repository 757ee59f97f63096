//! Discarding free blocks: trim and `-o discard`.
//!
//! Fault model: a device that scribbles over what is discarded, some time after it was asked and
//! before it answers; several threads that write, cut and delete files meanwhile; and a loss of
//! power between any two requests, after which what was discarded is lost. Demanded: no byte of a
//! file is touched, the checker finds nothing, and a file whose removal is not durable is whole.
//! Each of the two harnesses catches its injected fault (feature `injected-faults`).
//! Not covered: devices that lie about what they discard.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uext4::{ErrorKind, FileBlock, FileKind, MountOptions, NewInode, OpenFile, Owner, Volume};
use uext4_device::{Device, MemoryDevice, RecordingDevice, SharedDevice};
use uext4_sim::crash::{Checker, Judge};
use uext4_sim::format::ORDINARY;
use uext4_sim::oracle::JUNK;
use uext4_sim::run::{Shape, make};

const SHAPE: Shape =
    Shape { block_size: 1024, journal_mib: 1, image_mib: 16, features: "", format: &ORDINARY };

/// Bytes that are scribbled over at a time.
const PIECE: usize = 256 << 10;

/// An injected fault is of the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Scribbles over what is discarded, late.
#[derive(Debug)]
struct Scribbler {
    memory: MemoryDevice,
    discarded: AtomicU64,
    can: AtomicBool,
}

impl Scribbler {
    fn new() -> Arc<Self> {
        let memory = make(&SHAPE, 7).unwrap();
        Arc::new(Self { memory, discarded: AtomicU64::new(0), can: AtomicBool::new(true) })
    }
}

impl Device for Scribbler {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.memory.write_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn punch(&self, _offset: u64, _len: u64) -> io::Result<bool> {
        Ok(false)
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        if !self.can.load(Ordering::Relaxed) {
            return Ok(false);
        }
        // In pieces, as a device does it in its own time.
        let junk = vec![JUNK; PIECE];
        for at in (0..len).step_by(PIECE) {
            std::thread::sleep(Duration::from_micros(100));
            let piece = junk.len().min((len - at) as usize);
            self.memory.write_at(offset + at, &junk[..piece])?;
        }
        self.discarded.fetch_add(len, Ordering::Relaxed);
        Ok(true)
    }
}

fn open(device: SharedDevice, word: &str) -> Volume {
    let mut options = MountOptions { cache_bytes: 8 << 20, ..MountOptions::default() };
    options.parse(word).unwrap();
    Volume::open(device, options).unwrap()
}

fn create(volume: &Volume, name: &str) -> OpenFile {
    let owner = Owner::default();
    let rdev = uext4::Device::default();
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, owner, rdev };
    let root = volume.root().unwrap();
    volume.open_file(&volume.create(&root, name.as_bytes(), &new).unwrap()).unwrap()
}

/// Not [`JUNK`], not zero, and told apart by file and place.
fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at / 512 + seed * 31) % 120 + 1) as u8).collect()
}

fn expect(volume: &Volume, name: &str, want: &[u8]) -> Result<(), String> {
    let say = |error: uext4::Error| format!("{name}: {error}");
    let inode = volume.lookup(&volume.root().map_err(say)?, name.as_bytes()).map_err(say)?;
    let mut bytes = vec![0; want.len() + 1];
    let read = volume.open_file(&inode).map_err(say)?.read_at(0, &mut bytes).map_err(say)?;
    match bytes[..read] == *want {
        true => Ok(()),
        false => Err(format!("{name}: content differs")),
    }
}

/// What stands on the device for a file that was synced: the cache knows no better.
fn expect_on(
    memory: &MemoryDevice,
    volume: &Volume,
    name: &str,
    want: &[u8],
) -> Result<(), String> {
    let inode = volume.lookup(&volume.root().unwrap(), name.as_bytes()).unwrap();
    let mut found = Ok(());
    let block = u64::from(SHAPE.block_size);
    volume
        .extents(&inode, FileBlock(0), &mut |extent| {
            let mut bytes = vec![0; extent.len as usize * block as usize];
            memory.read_at(extent.start.get() * block, &mut bytes).unwrap();
            let at = extent.first.get() as usize * block as usize;
            let end = want.len().min(at + bytes.len());
            if bytes[..end - at] != want[at..end] {
                found = Err(format!("{name}: content differs on the device"));
            }
            true
        })
        .unwrap();
    found
}

/// Writers beside trims, then everything is read back past the cache.
fn race(rounds: usize) -> Result<(), String> {
    let device = Scribbler::new();
    let volume = open(device.clone(), "defaults");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trimmer = scope.spawn(|| {
            let mut trimmed = 0;
            while !done.load(Ordering::Relaxed) {
                trimmed += volume.trim(0, u64::MAX, 0).unwrap();
            }
            trimmed
        });
        let writers: Vec<_> = (0..3_usize)
            .map(|thread| {
                let (volume, memory) = (&volume, &device.memory);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let name = format!("{thread}-{}", round % 8);
                        if round >= 8 {
                            let bytes = content(thread + round - 8, 30_000 + 9_000 * thread);
                            expect_on(memory, volume, &name, &bytes)?;
                            volume.unlink(&volume.root().unwrap(), name.as_bytes()).unwrap();
                        }
                        let file = create(volume, &name);
                        let bytes = content(thread + round, 30_000 + 9_000 * thread);
                        assert_eq!(file.write_at(0, &bytes).unwrap(), bytes.len());
                        file.sync(true).unwrap();
                    }
                    Ok(())
                })
            })
            .collect();
        let wrote: Result<Vec<()>, String> =
            writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(trimmer.join().unwrap() > 0, "nothing was trimmed");
        wrote
    })?;
    volume.close().map_err(|error| format!("close: {error}"))?;
    let volume = open(device.clone(), "defaults");
    for thread in 0..3 {
        for round in rounds - 8..rounds {
            let bytes = content(thread + round, 30_000 + 9_000 * thread);
            expect(&volume, &format!("{thread}-{}", round % 8), &bytes)?;
        }
    }
    volume.close().map_err(|error| format!("close: {error}"))?;
    let findings = Checker.findings(&device.memory)?;
    if findings.is_empty() { Ok(()) } else { Err(format!("{findings:?}")) }
}

#[test]
fn a_trim_beside_writers_destroys_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    race(40).unwrap();
}

/// A file is deleted with `-o discard`; the power fails at each request after that.
fn crash_after_unlink() -> Result<usize, String> {
    let device = Arc::new(RecordingDevice::over(make(&SHAPE, 8).unwrap()));
    let volume = open(device.clone(), "discard");
    let bytes = content(5, 200_000);
    create(&volume, "f").write_at(0, &bytes).unwrap();
    create(&volume, "g").write_at(0, &bytes).unwrap();
    volume.sync().unwrap();
    let from = device.recording().events().len();
    volume.unlink(&volume.root().unwrap(), b"f").unwrap();
    volume.delete_unlinked().unwrap();
    volume.sync().unwrap();
    // Waits for the release of what was freed.
    volume.space().journal().commit_all().unwrap();
    let stats = volume.space().discards().stats();
    let recording = device.recording();
    volume.abandon();
    let mut with_file = 0;
    for position in from..=recording.events().len() {
        let state = Arc::new(recording.prefix(position));
        let volume = open(state.clone(), "defaults");
        expect(&volume, "g", &bytes).map_err(|why| format!("at {position}: {why}"))?;
        if volume.lookup(&volume.root().unwrap(), b"f").is_ok() {
            expect(&volume, "f", &bytes).map_err(|why| format!("at {position}: {why}"))?;
            with_file += 1;
        }
        volume.close().map_err(|error| format!("close: {error}"))?;
        let findings = Checker.findings(&state)?;
        if !findings.is_empty() {
            return Err(format!("at {position}: {findings:?}"));
        }
    }
    if stats.bytes < 200_000 {
        return Err(format!("only {} bytes were discarded", stats.bytes));
    }
    Ok(with_file)
}

#[test]
fn nothing_is_discarded_before_its_removal_is_durable() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    assert!(crash_after_unlink().unwrap() > 0, "no state before the removal");
}

#[cfg(feature = "injected-faults")]
#[test]
fn injected_faults_are_caught() {
    use uext4::injected_faults::{Fault, inject};
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let caught = |fault: Fault, harness: &dyn Fn() -> Result<(), String>| {
        inject(Some(fault));
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(harness));
        inject(None);
        println!("{fault:?}: {found:?}");
        !matches!(found, Ok(Ok(())))
    };
    assert!(caught(Fault::UnallocatedTrim, &|| race(40)));
    assert!(caught(Fault::EarlyDiscard, &|| crash_after_unlink().map(drop)));
}

#[test]
fn free_blocks_are_given_back_and_no_others() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let device = Scribbler::new();
    let volume = open(device.clone(), "defaults");
    let bytes = content(1, 3 << 20);
    create(&volume, "kept").write_at(0, &bytes).unwrap();
    create(&volume, "gone").write_at(0, &bytes).unwrap();
    volume.sync().unwrap();
    let free = volume.stat_fs().blocks_free;
    // All, but for what the allocator keeps for files at hand.
    let is_all = |bytes: u64, free: u64| bytes <= free * 1024 && bytes + (2 << 20) >= free * 1024;
    assert!(is_all(volume.trim(0, u64::MAX, 0).unwrap(), free));
    assert_eq!(volume.stat_fs().blocks_free, free);
    volume.unlink(&volume.root().unwrap(), b"gone").unwrap();
    volume.sync().unwrap();
    let free_now = volume.stat_fs().blocks_free;
    assert!(free_now >= free + 3 * 1024);
    let all = volume.trim(0, u64::MAX, 0).unwrap();
    assert!(is_all(all, free_now));
    // Parts add up to the whole; minimum and range are honoured.
    let half = 8 << 20;
    let parts = volume.trim(0, half, 0).unwrap() + volume.trim(half, u64::MAX, 0).unwrap();
    assert_eq!(parts, all);
    assert_eq!(volume.trim(0, u64::MAX, 8 << 20).unwrap(), 0);
    for (start, len, least) in [(16 << 20, 1024, 0), (0, 1023, 0), (0, u64::MAX, 9 << 20)] {
        let error = volume.trim(start, len, least).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument, "{start} {len} {least}");
    }
    volume.close().unwrap();
    let volume = open(device.clone(), "defaults");
    expect(&volume, "kept", &bytes).unwrap();
    volume.close().unwrap();
    assert_eq!(Checker.findings(&device.memory).unwrap(), Vec::<String>::new());
}

#[test]
fn a_device_that_cannot_is_asked_once_and_nobody_suffers() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let device = Scribbler::new();
    device.can.store(false, Ordering::Relaxed);
    let volume = open(device.clone(), "discard");
    let told = Arc::new(AtomicU64::new(0));
    let count = told.clone();
    volume.set_discard_hook(move |why| {
        assert_eq!(why, "the device cannot");
        count.fetch_add(1, Ordering::Relaxed);
    });
    for round in 0..3 {
        create(&volume, "f").write_at(0, &content(round, 50_000)).unwrap();
        volume.sync().unwrap();
        volume.unlink(&volume.root().unwrap(), b"f").unwrap();
        volume.delete_unlinked().unwrap();
        volume.sync().unwrap();
    }
    assert_eq!(*volume.trim(0, u64::MAX, 0).unwrap_err().kind(), ErrorKind::Unsupported);
    volume.close().unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(device.discarded.load(Ordering::Relaxed), 0);
}
