//! Multiple mount protection on a store that is slow from the first write of the MMP block on.
//!
//! Fault model: a write of the block that takes longer than the check interval, as part of the
//! claim or as its first renewal; a host that goes on after that, or that is told nothing.
//! Demanded: no change of the device that begins after the lease. Sleeps are longer than what they
//! wait for, so a slow machine fails no test. A second is 50 ms long.
//! Not covered: later renewals, and hosts that take the device over (`mmp.rs`).

#![cfg(not(any(feature = "shuttle", feature = "simulate")))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use uext4::{Error, ErrorKind, FileKind, MountOptions, NewInode, Owner, Volume};
use uext4_device::{Gate, HookedDevice, HookedRequest, MemoryDevice, SharedDevice};
use uext4_ondisk::RawMmp;
use uext4_ondisk::mmp::MMP_MAGIC;

const SECOND: Duration = Duration::from_millis(50);
/// The check interval, the shortest there is, and a bit.
const TOO_LONG: Duration = Duration::from_millis(50 * 5 + 10);

fn made() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let options = uext4_mkfs::Options {
        features: "mmp".to_owned(),
        mmp_update_interval: Some(2),
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&*device, &options).unwrap();
    device
}

fn open(device: SharedDevice) -> Result<Volume, Error> {
    let options = MountOptions {
        mmp_node: Some("one".to_owned()),
        mmp_second: SECOND,
        commit_interval_ms: 5,
        ..MountOptions::default()
    };
    Volume::open(device, options)
}

fn create(volume: &Volume, name: &str) -> Result<(), Error> {
    let (kind, owner) = (FileKind::Regular, Owner::default());
    let new = NewInode { kind, mode: 0o644, owner, rdev: Default::default() };
    volume.create(&volume.root()?, name.as_bytes(), &new).map(drop)
}

fn is_mmp(request: &HookedRequest<'_>) -> bool {
    request.writes_any(|bytes| {
        RawMmp::from_prefix(bytes).is_some_and(|raw| raw.mmp_magic.get() == MMP_MAGIC)
    })
}

/// A device whose writes of the MMP block call `hook` with their number, and a count of its other
/// writes.
fn watched(
    memory: Arc<MemoryDevice>,
    hook: impl Fn(u32) + Send + Sync + 'static,
) -> (SharedDevice, Arc<AtomicU32>) {
    let others = Arc::new(AtomicU32::new(0));
    let (count, writes) = (Arc::clone(&others), AtomicU32::new(0));
    let device = HookedDevice::new(memory, move |request| {
        if is_mmp(&request) {
            hook(writes.fetch_add(1, Ordering::SeqCst));
        } else if request.bytes_written() > 0 {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (Arc::new(device), others)
}

#[test]
fn a_first_renewal_that_lasts_longer_than_the_lease_ends_the_volume() {
    let memory = made();
    let gate = Arc::new(Gate::default());
    let renewal = Arc::clone(&gate);
    let (device, others) = watched(Arc::clone(&memory), move |number| {
        if number == 1 {
            renewal.pass();
        }
    });
    // The gate opens before the volume is dropped, which waits for the renewal.
    let volume;
    let opens = gate.close();
    volume = open(device).unwrap();
    let start = Instant::now();
    // The lease was counted from the claim: it is over one check interval behind, at the latest.
    std::thread::sleep(TOO_LONG);
    let before = others.load(Ordering::SeqCst);
    create(&volume, "late").and_then(|()| volume.sync()).unwrap_err();
    assert_eq!(others.load(Ordering::SeqCst), before, "changed {:?} too late", start.elapsed());
    drop(opens);
    volume.close().unwrap_err();
    assert_eq!(others.load(Ordering::SeqCst), before, "changed by closing");
}

/// Nothing but the block is changed if the claim needs as long as others would wait.
#[test]
fn a_claim_that_lasts_longer_than_the_lease_is_none() {
    let (device, others) = watched(made(), |_| std::thread::sleep(TOO_LONG));
    let error = open(device).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::InUse, "{error}");
    assert!(error.to_string().contains("too late"), "{error}");
    assert_eq!(others.load(Ordering::SeqCst), 0);
}
