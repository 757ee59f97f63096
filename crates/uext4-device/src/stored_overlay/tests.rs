//! Fault model of the crash test: that of [`RecordingDevice`], with whole writes; torn ones are in
//! the crash kit (`cargo xtask crash --format overlay`). Old bytes of the store are junk.

use std::sync::Arc;

use super::*;
use crate::fault::{Fault, FaultDevice, FaultPlan, Operation, Times};
use crate::memory::MemoryDevice;
use crate::recording::Recording;
use crate::recording_device::RecordingDevice;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Not a multiple of anything.
const LEN: u64 = 3 * REGION_BYTES + 5 * BLOCK_BYTES + 700;
const JUNK: u8 = 0xee;

fn base() -> MemoryDevice {
    let base = MemoryDevice::new(LEN);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 100 % 90) as u8).collect();
    base.write_at(0, &bytes).unwrap();
    base.write_at(1024, &superblock::sealed(1)).unwrap();
    base
}

/// A store over a base whose blocks hold junk.
fn store(base: &MemoryDevice) -> MemoryDevice {
    let layout = Layout::new(base.len()).unwrap();
    let store = MemoryDevice::new(layout.store_len());
    store.write_at(layout.data_offset(), &vec![JUNK; base.len() as usize]).unwrap();
    create(&store, base, b"base.img").unwrap();
    store
}

fn all(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn range(rng: &mut StdRng) -> Range<u64> {
    let start = rng.random_range(0..LEN);
    let longest = [600, 9_000, 2_100_000][rng.random_range(0..3)];
    let end = (start + rng.random_range(0..longest)).min(LEN);
    match rng.random_bool(0.3) {
        true => start / BLOCK_BYTES * BLOCK_BYTES..end.max(start / BLOCK_BYTES * BLOCK_BYTES),
        false => start..end,
    }
}

/// Whatever is asked of it, it is as a device in memory, and the base stays as it was.
#[test]
fn it_is_a_device_and_the_base_stays() {
    let mut rng = StdRng::seed_from_u64(7);
    let base = Arc::new(base());
    let (before, model) = (all(&*base), base.snapshot());
    let store: SharedDevice = Arc::new(store(&base));
    let mut overlay = StoredOverlay::open(store.clone(), base.clone()).unwrap();
    for _ in 0..300 {
        let bytes = range(&mut rng);
        let len = (bytes.end - bytes.start) as usize;
        let data = vec![rng.random(); len];
        let (one, two) = data.split_at(len / 3);
        match rng.random_range(0..10) {
            0..=2 => {
                overlay.write_at(bytes.start, &data).unwrap();
                model.write_at(bytes.start, &data).unwrap();
            }
            3 => {
                overlay.write_vectored_at(bytes.start, &[one, two]).unwrap();
                model.write_vectored_at(bytes.start, &[one, two]).unwrap();
            }
            // Two runs with a part of one block each.
            4 if two.len() > 20 => {
                let (first, second) = ([one], [&two[10..]]);
                let at = bytes.start + one.len() as u64 + 10;
                let runs = [
                    WriteRun { offset: bytes.start, bufs: &first },
                    WriteRun { offset: at, bufs: &second },
                ];
                overlay.write_many(&runs).unwrap();
                model.write_many(&runs).unwrap();
            }
            4 | 5 => {
                overlay.write_fua(bytes.start, &data).unwrap();
                model.write_fua(bytes.start, &data).unwrap();
            }
            6 => {
                if overlay.punch(bytes.start, len as u64).unwrap() {
                    model.punch(bytes.start, len as u64).unwrap();
                }
            }
            7 => overlay.flush().unwrap(),
            8 => {
                overlay.flush().unwrap();
                overlay = StoredOverlay::open(store.clone(), base.clone()).unwrap();
            }
            _ => {
                let (mut got, mut want) = (vec![1; len], vec![2; len]);
                let (one, two) = got.split_at_mut(len / 2);
                overlay.read_vectored_at(bytes.start, &mut [one, two]).unwrap();
                model.read_at(bytes.start, &mut want).unwrap();
                assert!(got == want, "{bytes:?}");
            }
        }
    }
    assert!(all(&overlay) == all(&model));
    assert!(all(&*base) == before, "the base has changed");
    assert!(overlay.read_at(LEN, &mut [0]).is_err() && overlay.write_at(LEN, &[0]).is_err());
    assert!(overlay.write_at(u64::MAX, &[0; 2]).is_err() && overlay.read_at(LEN, &mut []).is_ok());
}

#[test]
fn parallel_writes_to_one_block_all_survive() {
    let base = Arc::new(MemoryDevice::new(LEN));
    base.write_at(0, &vec![7; LEN as usize]).unwrap();
    let overlay = StoredOverlay::open(Arc::new(store(&base)), base).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let overlay = &overlay;
            scope.spawn(move || {
                for at in (thread * 8..256 << 10).step_by(64) {
                    overlay.write_at(at, &[thread as u8; 4]).unwrap();
                }
            });
        }
    });
    let mut bytes = vec![0; 256 << 10];
    overlay.read_at(0, &mut bytes).unwrap();
    for (index, eight) in bytes.chunks(8).enumerate() {
        let four = if index % 8 < 4 { (index % 8) as u8 } else { 7 };
        assert_eq!(eight, [four, four, four, four, 7, 7, 7, 7]);
    }
}

/// The bytes that the crash test is about.
fn start(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; 8 * BLOCK_BYTES as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// What a write held at the last flush, and what it may hold since: by byte.
struct Epoch {
    synced: Vec<u8>,
    written: Vec<(Range<u64>, Option<u8>)>,
}

/// Writes and flushes over a recorded store. Marks are the numbers of epochs that have begun.
fn record(base: &Arc<MemoryDevice>, seed: u64) -> (Recording, Vec<Epoch>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let recorder = Arc::new(RecordingDevice::over(store(base)));
    let overlay = StoredOverlay::open(recorder.clone(), base.clone()).unwrap();
    let model = base.snapshot();
    let mut epochs = vec![Epoch { synced: start(&model), written: Vec::new() }];
    for step in 0..40 {
        for _ in 0..rng.random_range(1..4) {
            // Few blocks, so that the same are written again.
            let start = rng.random_range(0..6 * BLOCK_BYTES);
            let end = start + rng.random_range(1..6_000);
            let is_punch = rng.random_ratio(1, 8);
            let written = &mut epochs.last_mut().unwrap().written;
            if is_punch && overlay.punch(start, end - start).unwrap() {
                model.punch(start, end - start).unwrap();
                written.push((start..end, None));
            } else {
                let data = vec![100 + step; (end - start) as usize];
                overlay.write_at(start, &data).unwrap();
                model.write_at(start, &data).unwrap();
                written.push((start..end, Some(100 + step)));
            }
        }
        overlay.flush().unwrap();
        recorder.mark(epochs.len() as u64);
        epochs.push(Epoch { synced: start(&model), written: Vec::new() });
    }
    (recorder.recording(), epochs)
}

/// What is wrong with a state in which an epoch had begun.
fn fault(state: MemoryDevice, base: &Arc<MemoryDevice>, epoch: &Epoch) -> Option<String> {
    let overlay = StoredOverlay::open(Arc::new(state), base.clone()).unwrap();
    let bytes = start(&overlay);
    let bad = bytes.iter().zip(&epoch.synced).enumerate().find(|(at, (is, synced))| {
        let written = |(range, value): &(Range<u64>, Option<u8>)| {
            range.contains(&(*at as u64)) && value.unwrap_or(0) == **is
        };
        is != synced && !epoch.written.iter().any(written)
    });
    bad.map(|(at, (is, synced))| format!("byte {at} is {is}, was {synced} when flushed"))
}

/// Every crash state of the store: what was flushed is there, and nothing is that never was.
#[test]
fn no_crash_loses_what_was_flushed() {
    let base = Arc::new(base());
    let mut states = 0;
    for seed in 0..2 {
        let (recording, epochs) = record(&base, seed);
        let flushes: Vec<Option<usize>> =
            std::iter::once(None).chain((0..recording.flush_count()).map(Some)).collect();
        let mut rng = StdRng::seed_from_u64(seed);
        for flush in flushes {
            let waiting = recording.unflushed_after(flush);
            let Some(&last) = waiting.last() else { continue };
            let first = waiting[0];
            let begun = recording.marks_before(last).last().unwrap_or(0) as usize;
            for _ in 0..12 {
                let mut chosen = waiting.clone();
                let odds = [0.2, 0.5, 0.8][rng.random_range(0..3)];
                chosen.retain(|_| rng.random_bool(odds));
                let state = recording.state_with(first, &chosen);
                let found = fault(state, &base, &epochs[begun]);
                assert_eq!(found, None, "seed {seed}, after {flush:?}, {chosen:?} of {waiting:?}");
                states += 1;
            }
        }
    }
    assert!(states > 1000, "{states}");
}

/// A write or a flush of the store that fails is told, and what was flushed before stays.
#[test]
fn a_store_that_fails_loses_nothing_that_was_flushed() {
    let base = Arc::new(base());
    for operation in [Operation::Write, Operation::Flush] {
        for nth in 1..8 {
            let memory = Arc::new(store(&base));
            let faulty = Arc::new(FaultDevice::new(memory.clone()));
            let plan = FaultPlan { operation, nth, times: Times::Once, fault: Fault::Short };
            let overlay = StoredOverlay::open(faulty.clone(), base.clone()).unwrap();
            faulty.arm(plan);
            let mut synced = 0;
            for step in 1..6_u8 {
                let at = u64::from(step) * 6000;
                let done = overlay.write_at(at, &[step; 5000]).and_then(|()| overlay.flush());
                if done.is_err() {
                    break;
                }
                synced = step;
            }
            assert_eq!(faulty.struck(), 1, "{operation:?} {nth}");
            // The fault is over: another flush makes up for it.
            overlay.flush().unwrap();
            let again = StoredOverlay::open(memory, base.clone()).unwrap();
            for step in 1..=synced {
                let mut bytes = [0; 5000];
                again.read_at(u64::from(step) * 6000, &mut bytes).unwrap();
                assert_eq!(bytes, [step; 5000], "{operation:?} {nth}: {step} of {synced}");
            }
        }
    }
}

#[test]
fn a_discard_of_all_needs_no_room() {
    let base = Arc::new(base());
    let memory = MemoryDevice::new(Layout::new(LEN).unwrap().store_len());
    create(&memory, &*base, b"").unwrap();
    let store = Arc::new(memory);
    let overlay = StoredOverlay::open(store.clone(), base.clone()).unwrap();
    overlay.write_at(0, &[9; 3 * BLOCK_BYTES as usize]).unwrap();
    let held = store.stored_bytes();
    assert!(overlay.discard(0, LEN).unwrap());
    assert!(store.stored_bytes() < held);
    let mut bytes = vec![0; 100];
    overlay.read_at(8 * BLOCK_BYTES, &mut bytes).unwrap();
    let mut want = vec![0; 100];
    base.read_at(8 * BLOCK_BYTES, &mut want).unwrap();
    assert_eq!(bytes, want, "what the base alone has reads as before");
}

#[test]
fn another_base_is_refused() {
    let base = Arc::new(base());
    let store = Arc::new(store(&base));
    let open = |base: MemoryDevice| {
        let refused = StoredOverlay::open(store.clone(), Arc::new(base)).unwrap_err();
        let line = refused.to_string();
        assert!(!line.contains('\n'));
        line
    };
    assert!(StoredOverlay::open(store.clone(), base.clone()).is_ok());
    assert!(open(MemoryDevice::new(LEN - 1)).contains("and the image has"));
    let changed = base.snapshot();
    changed.write_at(60_000, &[0xaa]).unwrap();
    assert!(open(changed).contains("its image has changed"));
}

/// Random bytes in a header that says it is sound, in its bitmap, and in every place of the header.
#[test]
fn hostile_stores_are_refused_or_read() {
    let mut rng = StdRng::seed_from_u64(3);
    let base = Arc::new(base());
    let sound = store(&base);
    for round in 0..150 {
        let hostile = sound.snapshot();
        for _ in 0..rng.random_range(1..5) {
            let at = rng.random_range(0..if round % 2 == 0 { 600 } else { 9000 });
            hostile.write_at(at, &[rng.random()]).unwrap();
        }
        super::header::reseal(&hostile, round % 3 == 0);
        let hostile = Arc::new(hostile);
        if let Ok(overlay) = StoredOverlay::open(hostile.clone(), base.clone()) {
            all(&overlay);
            overlay.write_at(1, &[1; 9000]).unwrap();
            overlay.flush().unwrap();
        }
        let _ = Header::read(&*hostile).and_then(|header| header.held_bytes(&*hostile));
        let _ = commit(&*hostile, &base.snapshot(), &mut |_| ());
    }
    for (device, want) in [
        (MemoryDevice::new(100), "is not an overlay of uext4"),
        (MemoryDevice::new(10_000), "is not an overlay of uext4"),
    ] {
        assert_eq!(Header::read(&device).unwrap_err().to_string(), want);
    }
}
