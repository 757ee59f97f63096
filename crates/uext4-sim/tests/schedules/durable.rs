//! Schedules of syncs whose commit fails.

use super::{IMAGE, create, explore, open};
#[cfg(feature = "injected-faults")]
use super::{expect_failure, explore_now};
use shuttle::thread;
use std::sync::Arc;
#[cfg(feature = "injected-faults")]
use uext4::injected_faults::{self, inject};
use uext4_device::{Fault, FaultDevice, FaultPlan, Operation, Times};

/// No write reaches the device any more: a sync that commits says so, though others close the
/// empty transaction behind the one that failed.
fn failing_before_an_empty_one() {
    let faulty = Arc::new(FaultDevice::new(Arc::new(IMAGE.snapshot())));
    let volume = open(faulty.clone());
    volume.sync().unwrap();
    faulty.reset();
    let (operation, times, fault) = (Operation::Write, Times::Onwards, Fault::Io);
    faulty.arm(FaultPlan { operation, nth: 1, times, fault });
    let inode = create(&volume, &volume.root().unwrap(), "x").unwrap();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let volume = volume.clone();
            thread::spawn(move || {
                // It fails if it finds anything to commit.
                let _ = volume.space().journal().commit_all();
            })
        })
        .collect();
    let synced = volume.open_file(&inode).unwrap().sync(false);
    assert!(synced.is_err(), "a sync took an empty transaction for its own");
    for other in others {
        other.join().unwrap();
    }
    drop(inode);
    let _ = volume.close();
}

#[test]
fn commits_that_fail_before_empty_ones() {
    explore(failing_before_an_empty_one);
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_trusted_empty_close_is_found() {
    expect_failure("durable::a_trusted_empty_close_is_found", "empty transaction", || {
        inject(Some(injected_faults::Fault::TrustedEmptyClose));
        explore_now(failing_before_an_empty_one, 2_000);
    });
}
