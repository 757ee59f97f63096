//! What a keeper promises itself while it tells others something else.
//!
//! Fault model: the block says that others need not wait long, and this host goes on as if they
//! did, because the write that tells them has not returned; a lease that is extended before the
//! block says so. Sleeps are longer than what they wait for, so a slow machine fails no test.

use super::*;
use uext4_device::{HookedDevice, MemoryDevice};
use uext4_ondisk::ChecksumKind;

const SECOND: Duration = Duration::from_millis(5);

/// A keeper on a slow store. Its block has the check interval `old`, and its lease is as long.
fn keeper(old: u16) -> Keeper {
    let checksums = Checksums { kind: ChecksumKind::None, seed: 0, uuid: [0; 16] };
    let memory = Arc::new(MemoryDevice::new(4096));
    let mut own = RawMmp::clean(old);
    own.mmp_seq.set(1);
    let device: SharedDevice = Arc::clone(&memory) as SharedDevice;
    MmpBlock { device, at: BlockNo(1), offset: 0, checksums }.write(&mut own).unwrap();
    let lease = Arc::new(Lease::until(since_boot() + SECOND * u32::from(old)));
    let seen = Arc::clone(&lease);
    let slow = HookedDevice::new(memory, move |request| {
        if request.bytes_written() > 0 {
            std::thread::sleep(SECOND * 6);
            assert!(seen.is_over(), "the lease is longer than what others were told");
        }
    });
    Keeper {
        block: MmpBlock { device: Arc::new(slow), at: BlockNo(1), offset: 0, checksums },
        pace: Pace { update: 1, second: SECOND },
        claimed: since_boot(),
        lease,
        state: Mutex::new(LockRank::Leaf, State { own, stops: false, lost: None, on_loss: None }),
        wake: Condvar::new(),
    }
}

/// While the block is written, others go by the old interval or by the new one.
#[test]
fn a_lease_is_the_shorter_of_what_the_block_says_before_and_after() {
    for (old, new) in [(300, 5), (5, 300)] {
        let keeper = keeper(old);
        let mut state = keeper.state.lock();
        let written = keeper.write_next(&mut state, |own, _| own.mmp_check_interval.set(new));
        assert_eq!(*written.unwrap_err().kind(), ErrorKind::InUse, "{old} to {new}");
    }
}

/// Others may begin as soon as the device has the block, which is before the write returns.
#[test]
fn a_release_ends_the_lease_before_others_are_told() {
    let keeper = keeper(300);
    keeper.write_clean(&mut keeper.state.lock()).unwrap();
}
