//! What a volume tells of itself while its device does not answer.
//!
//! Fault model: a flush that does not return. Not covered: a read or write that does not return.

mod common;

use common::{gated, have, mke2fs, new, wait_until};
use std::sync::Arc;
use std::time::Duration;
use uext4::stats::{SAMPLE, WaitFor};
use uext4::{FileKind, MountOptions, Volume};
use uext4_device::Gate;

#[test]
fn who_waits_in_fsync_is_seen_until_the_device_answers() {
    if !have("mke2fs") {
        return;
    }
    let gate = Arc::new(Gate::default());
    let device = gated(Arc::new(mke2fs(64, "-b 4096")), &gate, |request| request.is_durable());
    let volume = Volume::open(device, MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    volume.sync().unwrap();
    assert!(volume.stats().blocked.is_empty());
    std::thread::scope(|scope| {
        let opened = gate.close();
        file.write_at(0, &[1; 8192]).unwrap();
        let syncer = std::thread::Builder::new().name("syncer".to_owned());
        syncer.spawn_scoped(scope, || file.sync(false).unwrap()).unwrap();
        let waiting = || {
            let mut blocked = volume.stats().blocked.into_iter();
            blocked.rfind(|thread| thread.name == "syncer")
        };
        let for_commit = || waiting().filter(|thread| thread.wait_for == WaitFor::Commit);
        wait_until("the syncer waits for the commit", || for_commit().is_some());
        let first = for_commit().unwrap();
        assert!(first.thread > 0);
        std::thread::sleep(Duration::from_millis(20));
        let later = for_commit().expect("still");
        assert!(later.waited >= first.waited + Duration::from_millis(20), "{first:?} {later:?}");
        assert_eq!(volume.stats().histogram("fsync").unwrap().count, 0, "not yet over");
        drop(opened);
        wait_until("the syncer is done", || waiting().is_none());
    });
    let stats = volume.stats();
    let fsync = stats.histogram("fsync").unwrap();
    assert_eq!(fsync.count, 1);
    assert!(fsync.quantile_ns(1.0) >= 20_000_000, "{fsync:?}");
    volume.close().unwrap();
}

#[test]
fn calls_are_counted() {
    if !have("mke2fs") {
        return;
    }
    let volume = Volume::open(Arc::new(mke2fs(64, "-b 4096")), MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    let mut page = [0; 4096];
    for at in 0..2000_u64 {
        file.write_at(at % 100 * 4096, &[1; 4096]).unwrap();
        file.read_at(at % 100 * 4096, &mut page).unwrap();
    }
    file.append(&[1]).unwrap();
    volume.sync().unwrap();
    let stats = volume.stats();
    let calls = |name| stats.histograms.iter().find(|h| h.0 == name).unwrap().1.calls;
    assert_eq!((calls("open"), calls("read"), calls("write"), calls("fsync")), (1, 2000, 2001, 0));
    let timed = stats.histogram("write").unwrap().count;
    assert!(timed.abs_diff(2001 / u64::from(SAMPLE)) < 60, "{timed}");
    assert_eq!(stats.number("transactions"), Some(stats.journal.transactions));
    assert!(stats.number("handles").unwrap() > 0 && stats.number("pages").unwrap() >= 100);
    assert_eq!(stats.number("pages_dirty"), Some(0));
    assert!(stats.log.free < stats.log.blocks && stats.log.head != stats.log.tail);
    volume.close().unwrap();
}
