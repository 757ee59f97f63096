//! Fault model: the commit is cut off at any write of store or base; what was written by then is
//! there, of the base the last one by half. The header is a sector, so it is there or not.

use std::sync::Arc;

use super::super::superblock::{reseal, sealed};
use super::super::{StoredOverlay, create};
use super::*;
use crate::device::SharedDevice;
use crate::fault::{Fault, FaultDevice, FaultPlan, Operation, Times};
use crate::memory::MemoryDevice;

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
