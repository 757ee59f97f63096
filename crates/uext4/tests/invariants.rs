//! Broken invariants: what they do to the volume.
//!
//! Fault model: a mistake of the engine damages its own state in memory (the feature of injected
//! faults). Checked, for each check: with `strict-invariants` it panics; without, the journal is
//! aborted and the volume refuses changes; either way nothing of the bad state reaches the device:
//! what was synced before is there after a reopening, and e2fsck finds nothing. Not covered: states
//! that no fault here makes.

#![cfg(feature = "injected-faults")]

mod common;

use common::{assert_clean, cut, have, mke2fs, mount, new};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use uext4::injected_faults::{Fault, inject};
use uext4::{AllocateMode, ErrorKind, Result, Volume};
use uext4_device::MemoryDevice;
use uext4_ondisk::FileKind;
use uext4_ondisk::superblock::STATE_ERROR;

/// Broken invariants that panicked, on any thread.
static PANICS: AtomicU32 = AtomicU32::new(0);

/// A fault is injected into the whole process: tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            println!("{info}");
            let message = info.payload_as_str().unwrap_or_default();
            if message.starts_with("broken invariant") {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
        }));
    });
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(volume: &Volume, name: &[u8], bytes: &[u8]) -> Result<()> {
    let inode = volume.create(&volume.root()?, name, &new(FileKind::Regular, 0o644))?;
    let file = volume.open_file(&inode)?;
    file.write_at(0, bytes)?;
    file.sync(false)
}

/// Two files, the second of which is removed.
fn write_and_remove(volume: &Volume) -> Result<()> {
    write(volume, b"lost", &[2; 50_000])?;
    write(volume, b"gone", &[3; 50_000])?;
    volume.unlink(&volume.root()?, b"gone").map(drop)
}

fn write_and_cut(volume: &Volume) -> Result<()> {
    write(volume, b"lost", &[2; 50_000])?;
    volume.set_attr(&volume.lookup(&volume.root()?, b"lost")?, &cut(0)).map(drop)
}

/// Allocates blocks for files until none are left; nothing is committed for that.
fn fill(volume: &Volume) -> Result<()> {
    let root = volume.root()?;
    for n in 0..64 {
        let name = format!("full{n}");
        let inode = volume.create(&root, name.as_bytes(), &new(FileKind::Regular, 0o644))?;
        volume.open_file(&inode)?.allocate(
            AllocateMode::Allocate { keep_size: false },
            0,
            1 << 20,
        )?;
    }
    Ok(())
}

/// Breaks an invariant by `fault` under a load, and looks at what is left.
fn must_stop(fault: Fault, load: fn(&Volume) -> Result<()>) {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let _turn = turn();
    let device = Arc::new(mke2fs(32, "-b 1024"));
    let volume = mount(&device);
    write(&volume, b"kept", &[1; 50_000]).unwrap();
    let before = PANICS.load(Ordering::SeqCst);
    inject(Some(fault));
    // The load ends, or fails, or panics; the end of the volume meets what it left.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let loaded = load(&volume);
        println!("{fault:?}: {loaded:?}");
        volume.remount_read_only()
    }));
    inject(None);
    let panics = PANICS.load(Ordering::SeqCst) - before;
    if cfg!(feature = "strict-invariants") {
        assert!(panics > 0 && !matches!(ended, Ok(Ok(()))), "{fault:?}: {ended:?}");
    } else {
        let error = ended.expect("a library does not panic").unwrap_err();
        assert!(error.to_string().contains("broken invariant"), "{fault:?}: {error}");
        assert!(panics == 0 && volume.stats().number("invariants_broken") > Some(0));
        assert!(volume.read_only() && volume.read_only_reason().unwrap().contains("invariant"));
        assert!(matches!(
            write(&volume, b"late", b"late").unwrap_err().kind(),
            ErrorKind::Aborted | ErrorKind::ReadOnly
        ));
    }
    drop(volume);
    check(&device);
}

/// The last committed state is there, and the error is recorded.
fn check(device: &Arc<MemoryDevice>) {
    let volume = mount(device);
    assert_ne!(volume.superblock().s_state.get() & STATE_ERROR, 0, "the abort is recorded");
    let inode = volume.lookup(&volume.root().unwrap(), b"kept").unwrap();
    let mut bytes = vec![0; 50_000];
    assert_eq!(volume.open_file(&inode).unwrap().read_at(0, &mut bytes).unwrap(), 50_000);
    assert!(bytes.iter().all(|&byte| byte == 1));
    assert!(volume.lookup(&volume.root().unwrap(), b"late").is_err());
    drop(inode);
    volume.close().unwrap();
    assert_clean(device);
}

#[test]
fn allocated_blocks_that_the_in_memory_bitmap_forgot() {
    must_stop(Fault::ForgottenAllocation, write_and_remove);
}

/// A commit would make blocks durable that the allocator could give away. Without the feature that
/// is noticed when they would be given away, as below.
#[cfg(feature = "strict-invariants")]
#[test]
fn used_blocks_that_the_in_memory_bitmap_forgot() {
    must_stop(Fault::LostBits, write_and_remove);
}

/// The allocator gives them away before a commit.
#[test]
fn used_blocks_are_not_allocated_again() {
    must_stop(Fault::LostBits, fill);
}

#[test]
fn a_sum_of_free_blocks_that_is_too_large() {
    must_stop(Fault::SurplusRelease, write_and_remove);
}

#[test]
fn a_ring_with_more_free_blocks_than_it_has() {
    must_stop(Fault::ExtraLogBlock, write_and_remove);
}

#[test]
fn a_handle_that_ends_twice() {
    must_stop(Fault::SecondStop, write_and_remove);
}

#[test]
fn blocks_without_credits() {
    must_stop(Fault::FreeRide, write_and_remove);
}

#[test]
fn a_mapping_of_data_that_was_not_written() {
    must_stop(Fault::SkippedData, write_and_remove);
}

#[test]
fn a_page_that_stays_under_writeback() {
    must_stop(Fault::EndlessWriteback, write_and_cut);
}
