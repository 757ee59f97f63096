//! Fault model: the commit is cut off at any write of store or base; what was written by then is
//! there, of the base the last one by half. The header is a sector, so it is there or not. Or: any
//! of the writes since a flush is there.

use std::sync::Arc;

use super::super::superblock::{reseal, sealed};
use super::super::{StoredOverlay, create};
use super::*;
use crate::device::SharedDevice;
use crate::fault::{Fault, FaultDevice, FaultPlan, Operation, Times};
use crate::memory::MemoryDevice;
use crate::recording_device::RecordingDevice;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const LEN: u64 = (1 << 20) + 1500;

const SUPERBLOCK_OFFSET: u64 = 1024;

fn all(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// A base and an overlay of it that has another UUID, data in many places, and a hole.
fn pair() -> (MemoryDevice, MemoryDevice, Vec<u8>) {
    let base = Arc::new(MemoryDevice::new(LEN));
    base.write_at(0, &vec![3; LEN as usize]).unwrap();
    base.write_at(SUPERBLOCK_OFFSET, &sealed(1)).unwrap();
    let store = Arc::new(MemoryDevice::new(Layout::new(LEN).unwrap().store_len()));
    create(&*store, &*base, b"base").unwrap();
    let overlay = StoredOverlay::open(store.clone(), base.clone()).unwrap();
    overlay.write_at(SUPERBLOCK_OFFSET, &sealed(2)).unwrap();
    for at in (0..LEN - 10).step_by(100_000) {
        overlay.write_at(at + 50_000.min(LEN - 10 - at), &[4; 10]).unwrap();
    }
    assert!(overlay.punch(500_000, 20_000).unwrap());
    overlay.write_at(LEN - 3, &[5; 3]).unwrap();
    overlay.flush().unwrap();
    let merged = all(&overlay);
    (base.snapshot(), store.snapshot(), merged)
}

#[test]
fn the_base_becomes_what_the_overlay_shows() {
    let (base, store, merged) = pair();
    assert_eq!(uuid(&all(&base)), [1; 16]);
    let held = Header::read(&store).unwrap().held_bytes(&store).unwrap();
    let mut copied = 0;
    let done = commit(&store, &base, &mut |bytes| copied += bytes).unwrap();
    assert_eq!(done, Committed { bytes: held, resumed: false });
    assert_eq!(copied, held);
    assert!(all(&base) == merged);
}

/// Cut off at every write, and resumed: the base is the same, and nothing but a commit is let at
/// the overlay meanwhile.
#[test]
fn a_commit_that_was_cut_off_is_resumed() {
    let (base, store, merged) = pair();
    let mut cuts = 0;
    for of_base in [false, true] {
        for nth in 1.. {
            let (base, store) = (Arc::new(base.snapshot()), Arc::new(store.snapshot()));
            let plan = FaultPlan {
                operation: Operation::Write,
                nth,
                times: Times::Onwards,
                fault: if of_base { Fault::Short } else { Fault::Io },
            };
            let inner: SharedDevice = if of_base { base.clone() } else { store.clone() };
            let faulty = FaultDevice::new(inner);
            faulty.arm(plan);
            let done = match of_base {
                true => commit(&*store, &faulty, &mut |_| ()),
                false => commit(&faulty, &*base, &mut |_| ()),
            };
            if done.is_ok() {
                break;
            }
            cuts += 1;
            if of_base {
                let refused = StoredOverlay::open(store.clone(), base.clone()).unwrap_err();
                assert!(matches!(refused, OverlayError::Committing), "{nth}: {refused}");
                let other = MemoryDevice::new(LEN);
                assert!(commit(&*store, &other, &mut |_| ()).is_err(), "{nth}");
            }
            let resumed = commit(&*store, &*base, &mut |_| ()).unwrap().resumed;
            assert_eq!(resumed, of_base, "{nth}");
            assert!(
                all(&*base) == merged,
                "write {nth} of {}",
                if of_base { "base" } else { "store" }
            );
            // The store was not emptied yet: once more.
            assert!(commit(&*store, &*base, &mut |_| ()).unwrap().resumed);
            assert!(all(&*base) == merged);
        }
    }
    assert!(cuts > 10, "{cuts}");
}

#[test]
fn a_base_that_has_changed_is_refused_and_left() {
    let (base, store, _) = pair();
    base.write_at(20_000, &[9]).unwrap();
    let (before, held) = (all(&base), all(&store));
    assert!(matches!(commit(&store, &base, &mut |_| ()), Err(OverlayError::Changed)));
    base.write_at(SUPERBLOCK_OFFSET, &sealed(7)).unwrap();
    let refused = commit(&store, &base, &mut |_| ()).unwrap_err().to_string();
    assert!(refused.contains("of the file system 01010101-"), "{refused}");
    base.write_at(SUPERBLOCK_OFFSET, &sealed(1)).unwrap();
    assert!(all(&base) == before && all(&store) == held);
}

/// A superblock ends in a CRC-32C of itself, so that no CRC-32C over both depends on it.
#[test]
fn a_superblock_alone_that_has_changed_is_seen() {
    let (base, store, _) = pair();
    let mut mounted = sealed(1);
    mounted[0x34] += 1;
    reseal(&mut mounted);
    base.write_at(SUPERBLOCK_OFFSET, &mounted).unwrap();
    let (before, held) = (all(&base), all(&store));
    assert!(matches!(commit(&store, &base, &mut |_| ()), Err(OverlayError::Changed)));
    let (base, store) = (Arc::new(base), Arc::new(store));
    let refused = StoredOverlay::open(store.clone(), base.clone()).unwrap_err();
    assert!(matches!(refused, OverlayError::Changed), "{refused}");
    assert!(all(&*base) == before && all(&*store) == held);
}

/// A store in which a commit has begun, and the base as any cut of that may have left it.
fn half_committed() -> (MemoryDevice, Vec<MemoryDevice>, [Vec<u8>; 2]) {
    let (base, store, merged) = pair();
    let before = all(&base);
    let recorder = RecordingDevice::over(base);
    commit(&store, &recorder, &mut |_| ()).unwrap();
    let recording = recorder.recording();
    let mut rng = StdRng::seed_from_u64(5);
    let mut states = Vec::new();
    for flush in std::iter::once(None).chain((0..recording.flush_count()).map(Some)) {
        let waiting = recording.unflushed_after(flush);
        let Some(&first) = waiting.first() else { continue };
        for round in 0..20 {
            let mut chosen = waiting.clone();
            chosen.retain(|_| round == 0 || rng.random_bool(0.5));
            states.push(recording.state_with(first, &chosen));
        }
    }
    states.push(recorder.recording().state_at_flush(recording.flush_count() - 1).unwrap());
    (store, states, [before, merged])
}

/// No state of a base that is half written can be taken for a file system, and each is finished.
#[test]
fn a_base_that_is_half_written_is_barred() {
    let (store, states, [before, merged]) = half_committed();
    let (mut barred, mut whole) = (0, 0);
    for (at, base) in states.iter().enumerate() {
        let bytes = all(base);
        match is_barred(&bytes) {
            true => barred += 1,
            false => {
                assert!(bytes == before || bytes == merged, "state {at} can be used");
                whole += 1;
            }
        }
        // The checksum is right: e2fsck keeps off, and takes no copy of the superblock.
        let want = if is_barred(&bytes) { super::barred(&bytes) } else { unbarred(&bytes) };
        assert!(bytes == want, "state {at}: the checksum of the superblock");
        assert!(commit(&store.snapshot(), base, &mut |_| ()).unwrap().resumed, "state {at}");
        assert!(all(base) == merged, "state {at}");
    }
    assert!(barred > 50 && whole > 2, "{barred} {whole}");
}

/// What was written to the base between a cut and the next commit is not overwritten.
#[test]
fn a_base_that_was_used_since_is_refused_and_left() {
    let (store, states, _) = half_committed();
    for (at, base) in states.iter().enumerate() {
        let mut superblock = [0; 1024];
        base.read_at(SUPERBLOCK_OFFSET, &mut superblock).unwrap();
        // A mount counts itself; whatever is forced to use a barred one takes the bar away.
        superblock[0x34] += 1;
        for mask in [0xff, 0x7f] {
            superblock[0x63] &= mask;
            reseal(&mut superblock);
            base.write_at(SUPERBLOCK_OFFSET, &superblock).unwrap();
            let (before, held) = (all(base), all(&store));
            let refused = commit(&store, base, &mut |_| ()).unwrap_err();
            assert!(matches!(refused, OverlayError::UsedHalfCommitted), "state {at}: {refused}");
            assert!(all(base) == before && all(&store) == held, "state {at}");
        }
    }
}

/// Nor is it another overlay's.
#[test]
fn a_barred_base_has_no_other_overlay() {
    let (_, states, _) = half_committed();
    let (_, other, _) = pair();
    let base = states.into_iter().find(|base| is_barred(&all(base))).unwrap();
    let refused = commit(&other, &base, &mut |_| ()).unwrap_err();
    assert!(matches!(refused, OverlayError::BaseHalfCommitted), "{refused}");
    let store = MemoryDevice::new(Layout::new(LEN).unwrap().store_len());
    let refused = create(&store, &base, b"").unwrap_err();
    assert!(matches!(refused, OverlayError::BaseHalfCommitted), "{refused}");
    assert!(all(&store).iter().all(|byte| *byte == 0));
}
