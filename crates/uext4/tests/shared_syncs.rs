//! Syncs that share writeback passes: none is served by a pass that began before it came.
//!
//! Fault model: a device whose data writes stop at a gate while other threads sync the same file.
//! Not covered: the commit that a group waits for (the crash kit), and passes that fail
//! (`writeback.rs`).

mod common;

use common::{assert_clean, have, mke2fs, new, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4::stats::WaitFor;
use uext4::{FileKind, MountOptions, Volume};
use uext4_device::{Gate, HookedDevice, HookedRequest};

const BLOCK: u64 = 4096;

/// What the device saw of one mark.
#[derive(Default)]
struct Seen {
    gate: Gate,
    is_written: AtomicBool,
    /// Flushes that began after the mark was written.
    flushes: AtomicU64,
}

/// Thread a runs a pass over a file. Threads b and c sync it meanwhile, so one of them leads the
/// other. While their pass runs, thread d writes and syncs. Its data must be on the device, and a
/// flush behind it, when its sync returns.
#[test]
fn a_sync_that_comes_while_a_pass_runs_waits_for_the_next() {
    if !have("mke2fs") {
        return;
    }
    let inner = Arc::new(mke2fs(16, "-b 4096"));
    let seen: Arc<[Seen; 4]> = Arc::default();
    let hook = {
        let seen = Arc::clone(&seen);
        move |request: HookedRequest<'_>| {
            for (mark, seen) in (b'a'..).zip(seen.iter()) {
                if request.writes_any(|bytes| bytes.len() >= BLOCK as usize && bytes[7] == mark) {
                    seen.gate.pass();
                    seen.is_written.store(true, Ordering::SeqCst);
                } else if matches!(request, HookedRequest::Flush)
                    && seen.is_written.load(Ordering::SeqCst)
                {
                    seen.flushes.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    };
    let device = Arc::new(HookedDevice::new(inner.clone(), hook));
    let volume = Volume::open(device, MountOptions::default()).unwrap();
    let root = volume.root().unwrap();
    let inode = volume.create(&root, b"file", &new(FileKind::Regular, 0o644)).unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[b'-'; 4 * BLOCK as usize]).unwrap();
    file.sync(false).unwrap();
    let waiting = || {
        let blocked = volume.stats().blocked;
        blocked.iter().filter(|blocked| blocked.wait_for == WaitFor::Writeback).count()
    };
    let sync = |index: u64| {
        let mark = b'a' + index as u8;
        file.write_at(index * BLOCK, &[mark; BLOCK as usize]).unwrap();
        file.sync(true).unwrap();
        let seen = &seen[index as usize];
        assert!(seen.is_written.load(Ordering::SeqCst), "{} is not written", mark as char);
        assert!(seen.flushes.load(Ordering::SeqCst) > 0, "{} is not flushed", mark as char);
    };
    std::thread::scope(|scope| {
        let sync = &sync;
        let (first, second) = (seen[0].gate.close(), seen[1].gate.close());
        scope.spawn(move || sync(0));
        wait_until("the first pass is under way", || seen[0].gate.is_met());
        scope.spawn(move || sync(1));
        scope.spawn(move || sync(2));
        wait_until("two syncs wait for the next pass", || waiting() == 2);
        drop(first);
        wait_until("the second pass is under way", || seen[1].gate.is_met());
        assert_eq!(waiting(), 1, "the follower waits for its leader");
        scope.spawn(move || sync(3));
        wait_until("a sync waits for the third pass", || waiting() == 2);
        drop(second);
    });
    drop((file, inode, root));
    volume.close().unwrap();
    assert_clean(&inner);
}
