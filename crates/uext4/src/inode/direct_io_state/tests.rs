use super::*;
use std::sync::Arc;
use uext4_ondisk::extent::Extent;

fn extent(first: u32, len: u32, start: u64, unwritten: bool) -> Extent {
    Extent { first: FileBlock(first), len, start: BlockNo(start), unwritten }
}

fn leaf(first: u32, end: u32, extents: &[Extent]) -> WrittenLeaf {
    WrittenLeaf::new(FileBlock(first), FileBlock(end), extents)
}

fn found(of: &DirectIoState, at: u32) -> Option<(u64, u32)> {
    of.find(FileBlock(at)).map(|(block, len)| (block.get(), len))
}

#[test]
fn runs_are_found_and_forgotten_leaf_by_leaf() {
    let of = DirectIoState::new(true);
    let extents = [
        extent(2, 3, 100, false),
        extent(5, 2, 103, false),
        extent(7, 4, 105, true),
        extent(11, 1, 300, false),
    ];
    of.learn(of.version(), Some(leaf(0, 20, &extents)), 20);
    of.learn(of.version(), Some(leaf(20, 40, &[extent(30, 5, 500, false)])), 40);
    let all: Vec<_> = [1, 2, 4, 6, 7, 11, 12, 29, 30, 34, 35].map(|at| found(&of, at)).into();
    let none = None;
    let (a, b, c) = (Some((100, 5)), Some((102, 3)), Some((104, 1)));
    let (d, e, f) = (Some((300, 1)), Some((500, 5)), Some((504, 1)));
    assert_eq!(all, [none, a, b, c, none, d, none, none, e, f, none]);
    let drained =
        ExclusiveGuard::new(Some(&of), FileBlock(25), FileBlock(26), &Waits::default()).unwrap();
    assert!(of.read_lock_counted().is_none() && of.size() == 0);
    drop(drained);
    assert_eq!((found(&of, 2), found(&of, 30)), (a, none));
}

#[test]
fn a_leaf_read_before_an_exclusion_is_not_learnt_after_it() {
    let of = DirectIoState::new(true);
    let version = of.version();
    drop(ExclusiveGuard::new(Some(&of), FileBlock(0), FileBlock::END, &Waits::default()).unwrap());
    of.learn(version, Some(leaf(0, 9, &[extent(0, 9, 100, false)])), 9);
    assert_eq!((found(&of, 0), of.size()), (None, 0));
}

#[test]
fn cached_pages_disable_the_fast_path() {
    let of = DirectIoState::new(true);
    assert!(of.read_lock_counted().is_none());
    of.enable_without_pages();
    drop(of.read_lock_counted().unwrap());
    of.disable_for_pages(&Waits::default());
    assert!(of.read_lock_counted().is_none() && of.is_cached());
}

/// The grace period ends when the token has come back, from any thread, and both guards are gone.
#[test]
fn an_exclusion_waits_for_readers() {
    let of = Arc::new(DirectIoState::new(true));
    of.enable_without_pages();
    let token = of.read_lock_counted().unwrap().into_token();
    let (slotted, counted) = (of.read_lock().unwrap(), of.read_lock().unwrap());
    assert!(matches!(slotted, ReadGuard::Slot(_)));
    assert!(matches!(counted, ReadGuard::Counted(_)));
    let waiter = std::thread::spawn({
        let of = Arc::clone(&of);
        move || {
            drop(
                ExclusiveGuard::new(Some(&of), FileBlock(0), FileBlock(1), &Waits::default())
                    .unwrap(),
            )
        }
    });
    while of.read_lock_counted().is_some() {
        std::thread::yield_now();
    }
    assert!(!waiter.is_finished() && of.read_lock().is_none());
    for guard in [Some(slotted), Some(counted)] {
        drop(guard);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!waiter.is_finished());
    }
    of.read_unlock(token);
    waiter.join().unwrap();
    assert!(of.read_lock_counted().is_some());
}
