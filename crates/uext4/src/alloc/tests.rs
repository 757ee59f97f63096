//! The criteria in situations that allocations build up, and many threads at once.
//!
//! Fault model: a criterion that takes from the wrong place or is left out; sums and indexes that
//! disagree with the bitmaps; blocks with two owners; counts that drift. Not covered: crashes (the
//! crash kit), single interleavings (the schedules).

use super::available::Use;
use super::free_map::{FreeMap, ORDERS, order_of};
use super::{
    AllocStats, Allocation, Count, Criterion, Need, Preallocation, Reservation, Space, as_user,
};
use crate::cache::Cache;
use crate::config::MountOptions;
use crate::config::{AllocAblation, AllocOptions, FreeMode, StreamGoal};
use crate::error::Result;
use crate::journal::{Handle, Journal, LeftLog, LogLocation, recover};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4_device::{Device, MemoryDevice, SharedDevice};
use uext4_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use uext4_ondisk::{BlockNo, GroupNo, Incompat, Layout, RawSuperblock};

/// Space and journal of an image in memory.
struct Harness {
    space: Arc<Space>,
    journal: Arc<Journal>,
    device: Arc<MemoryDevice>,
    superblock: RawSuperblock,
}

/// Runs a tool of e2fsprogs. `None`, with a message, when it is not installed.
fn tool(name: &str, args: &[&str]) -> Option<bool> {
    let path = format!("/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default());
    match Command::new(name).args(args).env("PATH", path).output() {
        Ok(output) => Some(output.status.success()),
        Err(error) => {
            eprintln!("skipped: {name}: {error}");
            None
        }
    }
}

/// The default options without some mechanisms.
fn without(ablation: AllocAblation) -> AllocOptions {
    AllocOptions { ablation, ..AllocOptions::default() }
}

/// Eight groups of 8,192 blocks of 1 KiB; the journal is in the first half of group 2, other
/// metadata in group 0 and in the first 258 blocks of odd ones.
fn harness(options: AllocOptions) -> Option<Harness> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let image = path.to_str().unwrap();
    assert!(tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", image, "64M"])?);
    let device = Arc::new(MemoryDevice::load(&path).unwrap());
    let shared: SharedDevice = device.clone();
    let mut bytes = [0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    let superblock = RawSuperblock::read(&bytes).unwrap();
    let layout = Arc::new(Layout::new(&superblock, Some(device.len())).unwrap());
    assert_eq!(layout.group_count, 8);
    let location = LogLocation::find(&*device, &layout, &superblock).unwrap();
    let runs: Vec<_> = location.runs.iter().map(|&(_, start, len)| (start, len)).collect();
    let recovered = recover(&shared, &layout, location, LeftLog::Wipe).unwrap();
    let cache = Arc::new(Cache::new(shared, Arc::clone(&layout), 64 << 20));
    let journal = recovered.prepare(&cache, &MountOptions::default(), 4096).unwrap();
    journal.begin().unwrap();
    let space = Space::open(cache, Arc::clone(&journal), &superblock, &runs, options).unwrap();
    Some(Harness { space, journal, device, superblock })
}

impl Harness {
    fn run<T>(
        &self,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'_>) -> Result<T>,
    ) -> Result<T> {
        self.journal.run(credits, operation)
    }

    /// Closes the journal; e2fsck must find nothing wrong with the image.
    fn close_and_check(self) {
        self.journal.close().unwrap();
        let mut superblock = self.superblock;
        let blocks = self.space.shared.journaled_blocks.sum();
        superblock.set_free_blocks_count(u64::try_from(blocks).unwrap());
        let recover = superblock.s_feature_incompat.get() & !Incompat::RECOVER.bits();
        superblock.s_feature_incompat.set(recover);
        superblock.seal();
        self.device.write_at(SUPERBLOCK_OFFSET, superblock.bytes()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        self.device.save(&path).unwrap();
        assert_ne!(tool("e2fsck", &["-fn", path.to_str().unwrap()]), Some(false));
    }
}

fn block(space: &Space, group: u32, bit: u32) -> BlockNo {
    space.layout().group_first_block(GroupNo(group)).plus(u64::from(bit))
}

/// Allocates all that is free in the groups, but for `holes` (group, bit, length).
fn fill(space: &Space, groups: std::ops::Range<u32>, holes: &[(u32, u32, u32)]) -> Vec<Allocation> {
    for number in groups.clone() {
        let group = &space.groups[number as usize];
        group.map(&mut group.lock(), &space.cache).unwrap();
    }
    let mut allocations = Vec::new();
    for number in groups {
        let mut bit = 0;
        while bit < space.layout().blocks_in_group(GroupNo(number)) {
            let hole = holes.iter().find(|hole| hole.0 == number && hole.1 == bit);
            if let Some(&(_, _, len)) = hole {
                bit += len;
                continue;
            }
            let group = &space.groups[number as usize];
            let next = holes.iter().filter(|hole| hole.0 == number && hole.1 > bit);
            let most = next.map(|hole| hole.1 - bit).min().unwrap_or(u32::MAX / 2);
            let len = group.lock().map.as_ref().unwrap().free_at(bit, most);
            if len == 0 {
                bit += 1;
                continue;
            }
            assert_eq!(
                space.shared.available.reserve(len.into(), len.into(), Use::Nodes),
                i64::from(len)
            );
            let allocation = space.allocate_in(group, group.lock(), bit, len).unwrap();
            allocations.push(allocation);
            bit += len;
        }
    }
    allocations
}

/// Sums, indexes and counts agree with the bitmaps; No other thread may use the allocator.
fn verify(space: &Space) {
    let mut free = 0;
    for group in &space.groups {
        let number = group.number;
        let state = group.lock();
        free += i64::from(group.free_blocks());
        let blocks = space.layout().blocks_in_group(number);
        let (mut longest, mut average) = (group.free_blocks(), group.free_blocks());
        if let Some(map) = &state.map {
            let fresh = FreeMap::new(map.allocated().into(), blocks);
            let sums = |map: &FreeMap| (map.free(), map.fragments(), map.longest());
            assert_eq!(sums(map), sums(&fresh), "group {number}");
            assert_eq!((group.free_blocks(), group.longest_run()), (fresh.free(), fresh.longest()));
            longest = fresh.longest();
            average = fresh.free().checked_div(fresh.fragments()).unwrap_or(0);
        }
        let at = number.get();
        for order in 0..ORDERS as u32 {
            let expected = |run: u32| (run > 0 && order_of(run) == order).then_some(at);
            assert_eq!(space.shared.by_longest.next(order, at, at + 1), expected(longest));
            assert_eq!(space.shared.by_average.next(order, at, at + 1), expected(average));
        }
    }
    assert_eq!(space.shared.available.total(), free);
}

fn hits(stats: &AllocStats, criterion: Criterion) -> u64 {
    stats.criterion(criterion).hits
}

/// Checks where a request is served from, and by which criterion (`None`: at the goal).
#[track_caller]
fn expect(
    space: &Space,
    goal: (u32, u32),
    want: u32,
    by: Option<Criterion>,
    found: (u32, u32, u32),
) -> Allocation {
    let before = space.alloc_stats();
    // A reserved request is not cut to the available blocks.
    let allocation = space.allocate_reserved(block(space, goal.0, goal.1), want).unwrap();
    let (group, bit) = space.layout().group_of(allocation.start()).unwrap();
    assert_eq!((group.get(), bit, allocation.len()), found);
    let after = space.alloc_stats();
    let used: Vec<_> =
        Criterion::ALL.into_iter().filter(|&c| hits(&after, c) > hits(&before, c)).collect();
    assert_eq!(used, by.into_iter().collect::<Vec<_>>());
    assert_eq!(
        after.count(Count::GoalHits) - before.count(Count::GoalHits),
        u64::from(by.is_none())
    );
    allocation
}

#[test]
fn blocks_are_taken_at_the_goal() {
    let Some(harness) = harness(AllocOptions::default()) else { return };
    let space = &harness.space;
    let _filled = fill(space, 5..6, &[(5, 1000, 100)]);
    // Behind a block in use a shorter run is taken, if it is at least an eighth.
    let first = expect(space, (5, 1000), 60, None, (5, 1000, 60));
    let second = expect(space, (5, 1060), 64, None, (5, 1060, 40));
    drop((first, second));
    // In the middle of free blocks no block in use precedes.
    let allocation = space.allocate(block(space, 5, 1050), 64).unwrap();
    assert_ne!(allocation.start(), block(space, 5, 1050));
    drop(allocation);
    verify(space);
}

#[test]
fn powers_of_two_are_aligned() {
    let Some(harness) = harness(AllocOptions::default()) else { return };
    let space = &harness.space;
    let _filled = fill(space, 3..5, &[(3, 1003, 20), (4, 1003, 8), (4, 2008, 8)]);
    let by = Some(Criterion::PowerOfTwoAligned);
    let _first = expect(space, (3, 0), 8, by, (3, 1008, 8));
    let _second = expect(space, (4, 0), 8, by, (4, 2008, 8));
    // Requests below 2^mb_order2_req are not aligned.
    let _third = expect(space, (3, 0), 2, Some(Criterion::GoalLengthFast), (3, 1003, 2));
    verify(space);
}

#[test]
fn goal_length_takes_the_best_of_the_first_runs() {
    let Some(harness) = harness(AllocOptions::default()) else { return };
    let space = &harness.space;
    let holes = [(3, 100, 60), (3, 200, 5), (3, 300, 12), (3, 400, 11), (3, 500, 90)];
    let _filled = fill(space, 3..4, &holes);
    let by = Some(Criterion::GoalLengthFast);
    let first = expect(space, (3, 0), 11, by, (3, 400, 11));
    let second = expect(space, (3, 0), 11, by, (3, 300, 11));
    drop((first, second));
    verify(space);
}

#[test]
fn the_best_available_run_is_taken_and_then_any() {
    let Some(harness) = harness(AllocOptions::default()) else { return };
    let space = &harness.space;
    // The shorter run is in the goal's group; 300 trimmed by three orders is 32.
    let holes = [(2, 5100, 40), (6, 100, 200), (7, 1010, 20)];
    let _filled = fill(space, 0..8, &holes);
    let first = expect(space, (2, 0), 300, Some(Criterion::BestAvailable), (6, 100, 200));
    let second = expect(space, (2, 0), 300, Some(Criterion::BestAvailable), (2, 5100, 40));
    let third = expect(space, (2, 0), 300, Some(Criterion::AnyFree), (7, 1010, 20));
    assert!(space.allocate(block(space, 2, 0), 1).is_err(), "nothing is left");
    drop((first, second, third));
    verify(space);
}

#[test]
fn without_the_index_all_groups_are_scanned() {
    let options = without(AllocAblation { optimize_scan: false, ..AllocAblation::default() });
    let Some(harness) = harness(options) else { return };
    let space = &harness.space;
    // Group 5 has the run, but its average run is shorter.
    let holes = [(1, 1100, 40), (5, 1100, 50), (5, 1200, 1), (5, 1300, 1)];
    let _filled = fill(space, 0..8, &holes);
    let by = Some(Criterion::GoalLengthSlow);
    let first = expect(space, (6, 0), 50, by, (5, 1100, 50));
    // Best available is not tried: the first group with a free block.
    let second = expect(space, (0, 0), 45, Some(Criterion::AnyFree), (1, 1100, 40));
    drop((first, second));
    verify(space);
}

#[test]
fn groups_are_tried_from_the_goal_on_and_wrap_around() {
    for max_linear_groups in [0, 4] {
        let options = AllocOptions { max_linear_groups, ..AllocOptions::default() };
        let Some(harness) = harness(options) else { return };
        let space = &harness.space;
        let holes: Vec<_> = [1, 2, 4, 6, 7].map(|group| (group, 5120, 64)).into();
        let _filled = fill(space, 0..8, &holes);
        let mut allocations = Vec::new();
        for group in [4, 6, 7, 1, 2] {
            let by = Some(Criterion::PowerOfTwoAligned);
            allocations.push(expect(space, (3, 9), 64, by, (group, 5120, 64)));
        }
        drop(allocations);
        verify(space);
    }
}

#[test]
fn a_locked_group_is_skipped_or_waited_for() {
    for trylock in [true, false] {
        let options = without(AllocAblation { trylock, ..AllocAblation::default() });
        let Some(harness) = harness(options) else { return };
        let space = &harness.space;
        let _filled = fill(space, 3..5, &[(3, 512, 64), (4, 512, 64)]);
        let held = space.groups[3].lock();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let allocator = scope.spawn(|| {
                let allocation = space.allocate(block(space, 3, 0), 64).unwrap();
                done.store(true, Ordering::SeqCst);
                allocation.start()
            });
            if !trylock {
                std::thread::sleep(std::time::Duration::from_millis(100));
                assert!(!done.load(Ordering::SeqCst), "it waits");
                drop(held);
                assert_eq!(allocator.join().unwrap(), block(space, 3, 512));
                return;
            }
            assert_eq!(allocator.join().unwrap(), block(space, 4, 512));
            drop(held);
        });
        let stats = space.alloc_stats();
        let is_counted = |count| stats.count(count) > 0;
        let counted = (is_counted(Count::BusySkips), is_counted(Count::Contended));
        assert_eq!(counted, (trylock, !trylock), "{stats:?}");
    }
}

#[test]
fn streams_can_share_a_goal() {
    let options =
        without(AllocAblation { stream_goal: StreamGoal::Global, ..AllocAblation::default() });
    let Some(harness) = harness(options) else { return };
    let space = &harness.space;
    let _filled = fill(space, 2..3, &[]);
    let first = space.allocate(block(space, 6, 0), 32).unwrap();
    // Nothing is free at its goal: it continues where the last stream ended.
    let second = space.allocate(block(space, 2, 700), 32).unwrap();
    assert_eq!(second.start(), first.start().plus(32));
    // A request that is no stream stays near its goal.
    let third = space.allocate(block(space, 5, 0), 2).unwrap();
    assert_eq!(space.layout().group_of(third.start()).unwrap().0, GroupNo(5));
}

#[test]
fn long_requests_are_aligned_to_the_stripe() {
    let options = AllocOptions { stripe: 48, ..AllocOptions::default() };
    let Some(harness) = harness(options) else { return };
    let space = &harness.space;
    let _filled = fill(space, 4..5, &[(4, 1001, 600)]);
    let allocation = space.allocate(block(space, 4, 0), 100).unwrap();
    assert_eq!(space.layout().group_of(allocation.start()).unwrap().0, GroupNo(4));
    assert_eq!(allocation.start().get() % 48, 0);
    let short = space.allocate(block(space, 4, 0), 47).unwrap();
    assert_ne!(short.start().get() % 48, 0);
}

/// When no map can be evicted, a search does not consider all of them for each group it tries.
#[test]
fn maps_that_cannot_be_evicted_are_considered_one_at_a_time() {
    let Some(harness) = harness(AllocOptions::default()) else { return };
    let space = &harness.space;
    let allocations: Vec<Allocation> =
        (0..8).map(|group| space.allocate(block(space, group, 6000), 1).unwrap()).collect();
    assert_eq!(space.group_maps().0, 8);
    space.shared.maps.max.store(2, Ordering::Relaxed);
    space.evict_maps();
    assert_eq!((space.evict_maps(), space.evict_maps()), (1, 1));
    drop(allocations);
    space.evict_maps();
    assert_eq!(space.group_maps().0, 2);
}

#[test]
fn the_root_reserve_is_not_preallocated() {
    let Some(harness) = harness(AllocOptions::default()) else { return };
    let space = &harness.space;
    let preallocation = Arc::new(Preallocation::default());
    preallocation.open();
    let reserve = i64::try_from(harness.superblock.reserved_blocks_count()).unwrap();
    assert!(reserve > 1000);
    let available = &space.shared.available;
    let left = 20;
    let taken = as_user(|| available.reserve(1 << 20, 1, Use::Any)) - left;
    available.release(left);
    let need = Need { key: 0, want: 10, ahead: 200, goal: block(space, 5, 1000), reserved: false };
    let allocation = space.allocate_from(&preallocation, need, true).unwrap();
    assert_eq!((allocation.len(), i64::from(preallocation.blocks())), (10, left - 10));
    // A privileged caller gets blocks of it that it needs.
    let more = Need { key: 500, want: 30, ..need };
    let second = space.allocate_from(&preallocation, more, true).unwrap();
    assert_eq!((second.len(), preallocation.blocks()), (30, 0));
    drop((allocation, second));
    preallocation.close(space);
    available.release(taken);
    verify(space);
}

/// Threads allocate blocks, mark them used, free, release and reserve. Each block has at most one
/// owner, from its allocation until it is released or its freeing is durable.
#[test]
fn no_block_has_two_owners() {
    let good = AllocOptions::default();
    let bad = without(AllocAblation {
        optimize_scan: false,
        trylock: false,
        stream_goal: StreamGoal::Global,
        free: FreeMode::Global,
        ..AllocAblation::default()
    });
    for (options, seed) in [(good, 1), (bad, 2)] {
        let Some(harness) = harness(options) else { return };
        let blocks = usize::try_from(harness.space.layout().blocks_count).unwrap();
        let owned: Vec<AtomicBool> = (0..blocks).map(|_| AtomicBool::new(false)).collect();
        let before = harness.space.free_counts();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (harness, owned) = (&harness, &owned);
                scope.spawn(move || {
                    stress(harness, owned, StdRng::seed_from_u64(seed << 8 | thread))
                });
            }
        });
        harness.journal.commit_all().unwrap();
        // The committer releases frees after it has woken this thread.
        while harness.space.shared.pending_blocks.sum() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(harness.space.free_counts(), before);
        verify(&harness.space);
        harness.close_and_check();
    }
}

fn stress(harness: &Harness, owned: &[AtomicBool], mut rng: StdRng) {
    let space = &harness.space;
    let set = |start: BlockNo, len: u32, to: bool| {
        for at in start.get()..start.get() + u64::from(len) {
            let was = owned[usize::try_from(at).unwrap()].swap(to, Ordering::SeqCst);
            assert_ne!(was, to, "block {at}");
        }
    };
    let mut allocations: Vec<Allocation> = Vec::new();
    let mut taken: Vec<(BlockNo, u32)> = Vec::new();
    for _ in 0..1_500 {
        match rng.random_range(0..10) {
            // Mostly small; now and then nearly everything.
            0..=3 => {
                let want = 1 + (rng.random::<u32>() >> rng.random_range(18..32));
                let goal = BlockNo(rng.random_range(1..owned.len() as u64));
                let Ok(allocation) = space.allocate(goal, want) else { continue };
                assert!(allocation.len() <= want);
                set(allocation.start(), allocation.len(), true);
                allocations.push(allocation);
            }
            4 => {
                for allocation in allocations.drain(..allocations.len() / 2) {
                    set(allocation.start(), allocation.len(), false);
                }
            }
            5 | 6 => {
                let Some(mut allocation) = allocations.pop() else { continue };
                let len = rng.random_range(1..=allocation.len());
                let start =
                    harness.run(4, |handle| space.mark_used(handle, &mut allocation, len)).unwrap();
                taken.push((start, len));
                if allocation.len() > 0 {
                    allocations.push(allocation.split_front(allocation.len()));
                }
            }
            7 | 8 => {
                let Some((start, len)) = taken.pop() else { continue };
                let _pins = space.pin_run(start, len).unwrap();
                // Another thread may get it as soon as the freeing is durable.
                set(start, len, false);
                harness.run(4, |handle| space.free(handle, start, len)).unwrap();
            }
            _ => {
                let mut reservation = Reservation::empty(space);
                let _ = reservation.try_resize(rng.random_range(1..5_000));
            }
        }
        // The mark is removed before the allocation is dropped.
        while allocations.len() > 40 {
            let allocation = allocations.swap_remove(rng.random_range(0..allocations.len()));
            set(allocation.start(), allocation.len(), false);
        }
    }
    for allocation in allocations {
        set(allocation.start(), allocation.len(), false);
    }
    for (start, len) in taken {
        set(start, len, false);
        harness.run(4, |handle| space.free(handle, start, len)).unwrap();
    }
}
