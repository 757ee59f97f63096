//! Schedules of allocations, frees and reservations of blocks.

use super::{IMAGE, create, expect_clean, explore, open, small};
#[cfg(feature = "injected-faults")]
use super::{expect_failure, explore_now};
use shuttle::thread;
use std::sync::{Arc, LazyLock};
#[cfg(feature = "injected-faults")]
use uext4::injected_faults::{Fault, inject};
use uext4::{AllocateMode, SetAttr, Volume};
use uext4_device::MemoryDevice;

/// Blocks are allocated, freed and allocated again by several threads: none twice.
#[test]
fn allocator() {
    explore(|| {
        let device = Arc::new(IMAGE.snapshot());
        let volume = open(device.clone());
        let root = volume.root().unwrap();
        let threads: Vec<_> = (0..3)
            .map(|n: u8| {
                let (volume, root) = (volume.clone(), root.clone());
                thread::spawn(move || {
                    let inode = create(&volume, &root, &format!("x{n}")).unwrap();
                    let file = volume.open_file(&inode).unwrap();
                    file.write_at(0, &vec![n + 1; 9_000]).unwrap();
                    file.sync(false).unwrap();
                    let cut = SetAttr { size: Some(1_000), ..SetAttr::default() };
                    volume.set_attr(&inode, &cut).unwrap();
                    file.write_at(20_000, &vec![n + 1; 5_000]).unwrap();
                    file.sync(true).unwrap();
                    let mut back = vec![0; 1_000];
                    file.read_at(0, &mut back).unwrap();
                    assert!(back.iter().all(|&byte| byte == n + 1));
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        volume.close().unwrap();
        expect_clean(&device);
    });
}

/// An image with 14 free blocks.
pub(crate) static FULL: LazyLock<MemoryDevice> = LazyLock::new(|| fill(IMAGE.snapshot()));

/// An image with 14 free blocks, of which none is root's: what is released goes to root's reserve
/// first, and past the cells.
pub(crate) static BARE: LazyLock<MemoryDevice> = LazyLock::new(|| {
    let device = MemoryDevice::new(4 << 20);
    let options = uext4_mkfs::Options {
        block_size: Some(1024),
        journal_mib: Some(1),
        reserved_percent: Some(0.0),
        discard: Some(false),
        ..uext4_mkfs::Options::default()
    };
    uext4_mkfs::format(&device, &options).expect("an image");
    fill(device)
});

fn fill(device: MemoryDevice) -> MemoryDevice {
    let device = Arc::new(device);
    let volume = open(device.clone());
    let root = volume.root().unwrap();
    for name in ["w0", "w1", "taker"] {
        create(&volume, &root, name).unwrap();
    }
    let fill = create(&volume, &root, "fill").unwrap();
    volume.sync().unwrap();
    let blocks = volume.stat_fs().blocks_free - 14;
    let file = volume.open_file(&fill).unwrap();
    file.allocate(AllocateMode::Allocate { keep_size: false }, 0, blocks * 1024).unwrap();
    drop((fill, root, file));
    volume.close().unwrap();
    device.snapshot()
}

/// On a nearly full volume: a write that was acknowledged finds its blocks, even if other threads
/// allocate the rest meanwhile.
#[test]
fn reservations() {
    explore(|| {
        let device = Arc::new(FULL.snapshot());
        let volume = open(device.clone());
        let root = volume.root().unwrap();
        let mut threads: Vec<_> = (0..2)
            .map(|n| {
                let inode = volume.lookup(&root, format!("w{n}").as_bytes()).unwrap();
                let volume = volume.clone();
                thread::spawn(move || {
                    let file = volume.open_file(&inode).unwrap();
                    if file.write_at(0, &[5; 3_000]).is_ok() {
                        file.sync(false).expect("space was reserved");
                    }
                })
            })
            .collect();
        let inode = volume.lookup(&root, b"taker").unwrap();
        let taker = volume.clone();
        threads.push(thread::spawn(move || {
            let file = taker.open_file(&inode).unwrap();
            for n in 0..4 {
                // Refused when it is full.
                let mode = AllocateMode::Allocate { keep_size: false };
                let _ = file.allocate(mode, n * 3 * 1024, 2 * 1024);
            }
        }));
        for thread in threads {
            thread.join().unwrap();
        }
        volume.close().unwrap();
        expect_clean(&device);
    });
}

/// On a nearly full volume that is used by one file at a time: what is freed comes back with a
/// commit, and that may be another thread's, at any moment. No write says that there is no space.
fn coming_back() {
    let device = Arc::new(FULL.snapshot());
    let volume = open(device.clone());
    let inode = volume.lookup(&volume.root().unwrap(), b"w0").unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.allocate(AllocateMode::Allocate { keep_size: false }, 0, 12 * 1024).unwrap();
    // What a later transaction frees is not the file's own to take again.
    volume.sync().unwrap();
    volume.set_attr(&inode, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    let committer = thread::spawn({
        let volume = volume.clone();
        move || volume.space().journal().commit_all().unwrap()
    });
    file.write_at(0, &[5; 1_000]).expect("there is space");
    committer.join().unwrap();
    drop((file, inode));
    volume.close().unwrap();
    expect_clean(&device);
}

#[test]
fn space_that_comes_back() {
    explore(coming_back);
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_release_that_is_overlooked_is_found() {
    expect_failure("space::a_release_that_is_overlooked_is_found", "there is space", || {
        inject(Some(Fault::OverlookedRelease));
        explore_now(coming_back, 12_000);
    });
}

/// On a nearly full volume: allocations, frees that the next allocation needs back, reservations
/// and commits. What was reserved is there, a volume is full only if it is, and the counts do not
/// drift.
fn little_space(words: &'static str) {
    let device = Arc::new(FULL.snapshot());
    let mut options = small();
    words.split(',').for_each(|word| options.parse(word).expect("a mount option"));
    let volume = Volume::open(device.clone(), options).expect("the image opens");
    let root = volume.root().unwrap();
    let file_of = |name: &str| {
        let inode = volume.lookup(&root, name.as_bytes()).unwrap();
        (volume.clone(), inode)
    };
    let mut threads = Vec::new();
    let (of, inode) = file_of("w0");
    threads.push(thread::spawn(move || {
        let file = of.open_file(&inode).unwrap();
        for _ in 0..2 {
            // Others have at most eleven of the fourteen: reservations of six and two, and three
            // that are allocated for a reservation that still stands. What is freed comes back.
            let mode = AllocateMode::Allocate { keep_size: false };
            file.allocate(mode, 0, 3 * 1024).expect("there is space");
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            of.set_attr(&inode, &cut).unwrap();
        }
    }));
    let (of, inode) = file_of("w1");
    threads.push(thread::spawn(move || {
        let file = of.open_file(&inode).unwrap();
        if file.write_at(0, &[5; 1_000]).is_ok() {
            file.sync(false).expect("space was reserved");
        }
    }));
    let of = volume.clone();
    threads.push(thread::spawn(move || {
        let mut reservation = uext4::alloc::Reservation::empty(of.space());
        let is_reserved = reservation.try_resize(2).is_ok();
        of.space().journal().commit_all().unwrap();
        if is_reserved {
            reservation.try_resize(1).expect("less than before");
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    // Not before: the committer releases freed blocks after it has woken the waiters.
    volume.clone().close().unwrap();
    let free = volume.stat_fs().blocks_free;
    expect_clean(&device);
    let volume = open(device);
    assert_eq!(volume.stat_fs().blocks_free, free);
    volume.close().unwrap();
}

#[test]
fn allocate_free_reserve_and_commit() {
    explore(|| little_space("mb_free=sharded"));
}

#[test]
fn allocate_free_reserve_and_commit_by_the_ablation() {
    explore(|| {
        little_space("mb_free=global,mb_trylock=0,mb_optimize_scan=0,mb_stream_goal=global")
    });
}
