//! Schedules of shifts, of inode numbers, of look-ups by number and of the cells of free blocks;
//! of calls beside the end of the volume.

use super::space::BARE;
use super::{IMAGE, create, expect_clean, explore, new, open};
#[cfg(feature = "injected-faults")]
use super::{expect_failure, explore_now};
use shuttle::thread;
use std::sync::Arc;
use uext4::alloc::{Reservation, Space};
#[cfg(feature = "injected-faults")]
use uext4::injected_faults::{Fault, inject};
use uext4::{AllocateMode, FileKind, Ino, InodeRef, SetAttr, SetTime, Timestamp, Volume};

/// Ranges are taken out and put in while the file is written back and read: each block is where
/// the shifts put it, in memory and on the device.
fn shifting() {
    let device = Arc::new(IMAGE.snapshot());
    let volume = open(device.clone());
    let inode = create(&volume, &volume.root().unwrap(), "s").unwrap();
    let file = Arc::new(volume.open_file(&inode).unwrap());
    let blocks = |numbers: &[u8]| numbers.iter().flat_map(|&n| [n; 1024]).collect::<Vec<u8>>();
    file.write_at(0, &blocks(&[1, 2, 3, 4])).unwrap();
    let writer = thread::spawn({
        let (file, last) = (file.clone(), blocks(&[5]));
        move || {
            file.sync(true).unwrap();
            file.append(&last).unwrap();
            file.sync(false).unwrap();
        }
    });
    let reader = thread::spawn({
        let file = file.clone();
        move || {
            let mut first = [0; 2048];
            file.read_at(0, &mut first).unwrap();
            let second = if first[0] == 1 { [2, 0].contains(&first[1024]) } else { false };
            assert!(second || first[..] == [[1; 1024], [3; 1024]].concat(), "half of a shift");
        }
    });
    file.allocate(AllocateMode::CollapseRange, 1024, 1024).unwrap();
    file.allocate(AllocateMode::InsertRange, 1024, 2048).unwrap();
    writer.join().unwrap();
    reader.join().unwrap();
    let expected = blocks(&[1, 0, 0, 3, 4, 5]);
    let mut found = vec![0; expected.len() + 1];
    assert_eq!(file.read_at(0, &mut found).unwrap(), expected.len());
    assert!(found[..expected.len()] == expected, "a block is in a wrong place");
    drop((file, inode));
    volume.close().unwrap();
    expect_clean(&device);
    let volume = open(device);
    let inode = volume.lookup(&volume.root().unwrap(), b"s").unwrap();
    assert_eq!(volume.open_file(&inode).unwrap().read_at(0, &mut found).unwrap(), expected.len());
    assert!(found[..expected.len()] == expected, "a block is in a wrong place on the device");
    drop(inode);
    volume.close().unwrap();
}

#[test]
fn shifts_beside_writeback() {
    explore(shifting);
}

/// The blocks of a reservation are allocated and the reservation is released, while others take all
/// there is: a reservation that stands is kept.
fn cells() {
    let device = Arc::new(BARE.snapshot());
    let volume = open(device.clone());
    let space = volume.space().clone();
    let goal = uext4::BlockNo(space.layout().blocks_count / 2);
    let reservation = |blocks| {
        let mut reservation = Reservation::empty(&space);
        reservation.try_resize(blocks).expect("there is space");
        reservation
    };
    // Of fourteen blocks the takers may have three.
    let (kept, used) = (reservation(6), reservation(5));
    let allocate_all = move |space: &Arc<Space>, mut reservation: Reservation, blocks: u32| {
        let (mut allocations, mut left) = (Vec::new(), blocks);
        while left > 0 {
            let allocation = space.allocate_reserved(goal, left).expect("space was reserved");
            left -= allocation.len();
            allocations.push(allocation);
            reservation.try_resize(left).expect("less than before");
        }
        allocations
    };
    let owner = thread::spawn({
        let space = space.clone();
        move || allocate_all(&space, used, 5)
    });
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let space = space.clone();
            thread::spawn(move || {
                (0..2).filter_map(|_| space.allocate(goal, 2).ok()).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut allocations = owner.join().unwrap();
    takers.into_iter().for_each(|taker| allocations.extend(taker.join().unwrap()));
    allocations.extend(allocate_all(&space, kept, 6));
    drop(allocations);
    volume.close().unwrap();
    expect_clean(&device);
}

#[test]
fn reservations_and_cells() {
    explore(cells);
}

/// Inodes are made by several threads, each in a directory of its own: no number twice.
fn numbering() {
    let device = Arc::new(IMAGE.snapshot());
    let volume = open(device.clone());
    let root = volume.root().unwrap();
    let threads: Vec<_> = (0..3)
        .map(|n| {
            let volume = volume.clone();
            let name = format!("d{n}");
            let dir = volume.create(&root, name.as_bytes(), &new(FileKind::Directory)).unwrap();
            thread::spawn(move || create(&volume, &dir, "n").map(|inode| inode.ino().get()))
        })
        .collect();
    let results: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    let mut numbers: Vec<_> = results.into_iter().map(|one| one.expect("it is made")).collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "twice one number: {numbers:?}");
    volume.close().unwrap();
    expect_clean(&device);
}

#[test]
fn inode_numbers() {
    explore(numbering);
}

/// A directory is asked for by its number while it is made: it is not there, or whole.
fn looking_up() {
    let device = Arc::new(IMAGE.snapshot());
    let volume = open(device.clone());
    let root = volume.root().unwrap();
    // The lowest free number goes first.
    let next = Ino(create(&volume, &root, "before").unwrap().ino().get() + 1);
    let reader = thread::spawn({
        let volume = volume.clone();
        move || {
            for _ in 0..12 {
                if let Ok(inode) = volume.inode(next) {
                    assert!(volume.attr(&inode).size > 0, "half of a directory");
                }
            }
        }
    });
    let made = volume.create(&root, b"d", &new(FileKind::Directory)).expect("there is room");
    assert_eq!(made.ino(), next);
    drop(made);
    reader.join().unwrap();
    let found = volume.inode(next).expect("it was made");
    create(&volume, &found, "inside").expect("the directory is whole");
    drop((found, root));
    volume.close().unwrap();
    expect_clean(&device);
}

#[test]
fn looking_up_by_number() {
    explore(looking_up);
}

/// Names are made, and bytes synced, while the volume is closed: what is acknowledged is there.
fn closing() {
    let device = Arc::new(IMAGE.snapshot());
    let volume = open(device.clone());
    let root = volume.root().unwrap();
    let file = volume.open_file(&create(&volume, &root, "file").unwrap()).unwrap();
    let creator = thread::spawn({
        let (volume, root) = (volume.clone(), root.clone());
        move || create(&volume, &root, "made").map(drop)
    });
    let writer = thread::spawn(move || file.write_at(0, &[7; 1024]).and_then(|_| file.sync(false)));
    volume.close().unwrap();
    let (made, written) = (creator.join().unwrap(), writer.join().unwrap());
    drop(root);
    expect_clean(&device);
    let volume = open(device);
    let root = volume.root().unwrap();
    if made.is_ok() {
        volume.lookup(&root, b"made").expect("an acknowledged name");
    }
    if written.is_ok() {
        let inode = volume.lookup(&root, b"file").unwrap();
        assert_eq!(volume.attr(&inode).size, 1024, "an acknowledged sync");
    }
    drop(root);
    volume.close().unwrap();
}

#[test]
fn calls_beside_a_close() {
    explore(closing);
}

/// A file is read, and looked at, while the volume is closed: the times that memory shows then are
/// those of the image, and that of a write that was acknowledged before is among them.
fn reading_beside_a_close() {
    const OLD: Timestamp = Timestamp { secs: 1, nanos: 0 };
    let device = Arc::new(IMAGE.snapshot());
    let volume = open(device.clone());
    let inode = create(&volume, &volume.root().unwrap(), "file").unwrap();
    let file = volume.open_file(&inode).unwrap();
    file.write_at(0, &[7; 2048]).unwrap();
    file.sync(false).unwrap();
    // The second one goes past all locks, and its time waits to be put into the inode.
    for _ in 0..2 {
        let time = Some(SetTime::At(OLD));
        let old = SetAttr { atime: time, mtime: time, ctime: Some(OLD), ..SetAttr::default() };
        volume.set_attr(&inode, &old).unwrap();
        file.write_direct_at(0, &[8; 1024]).unwrap();
    }
    let readers = [true, false].map(|reads| {
        let (volume, file) = (volume.clone(), volume.open_file(&inode).unwrap());
        thread::spawn(move || {
            if reads {
                file.read_at(0, &mut [0; 16]).unwrap();
            }
            drop(volume.attr(file.inode()));
        })
    });
    let kept = volume.clone();
    volume.close().unwrap();
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let times = |volume: &Volume, inode: &InodeRef| {
        let attr = volume.attr(inode);
        [attr.atime, attr.mtime, attr.ctime].map(|time| (time.secs, time.nanos))
    };
    let shown = times(&kept, &inode);
    drop((file, inode, kept));
    let volume = open(device);
    let inode = volume.lookup(&volume.root().unwrap(), b"file").unwrap();
    let found = times(&volume, &inode);
    assert!(found == shown, "memory shows times {shown:?}, the image has {found:?}");
    assert!(found[1] != (OLD.secs, OLD.nanos), "the time of an acknowledged write is lost");
    drop(inode);
    volume.close().unwrap();
}

#[test]
fn readers_beside_a_close() {
    explore(reading_beside_a_close);
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_half_made_inode_is_found() {
    expect_failure("races::a_half_made_inode_is_found", "errors were noted", || {
        inject(Some(Fault::VisibleCreation));
        explore_now(looking_up, 2_000);
    });
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_close_that_stops_nobody_is_found() {
    // What it does while the volume ends is not durable, or not counted.
    expect_failure("races::a_close_that_stops_nobody_is_found", "acknowledged|free blocks", || {
        inject(Some(Fault::OpenDoor));
        explore_now(closing, 2_000);
    });
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_reader_that_changes_times_late_is_found() {
    expect_failure("races::a_reader_that_changes_times_late_is_found", "memory shows", || {
        inject(Some(Fault::LateReader));
        explore_now(reading_beside_a_close, 2_000);
    });
}

#[cfg(feature = "injected-faults")]
#[test]
fn a_shift_beside_writeback_is_found() {
    expect_failure(
        "races::a_shift_beside_writeback_is_found",
        "under writeback is not discarded",
        || {
            inject(Some(Fault::UnlockedShift));
            explore_now(shifting, 2_000);
        },
    );
}

#[cfg(feature = "injected-faults")]
#[test]
fn an_inode_number_that_is_given_twice_is_found() {
    expect_failure("races::an_inode_number_that_is_given_twice_is_found", "twice", || {
        inject(Some(Fault::LooseNumber));
        explore_now(numbering, 2_000);
    });
}

#[cfg(feature = "injected-faults")]
#[test]
fn an_unchecked_cell_is_found() {
    expect_failure("races::an_unchecked_cell_is_found", "space was reserved", || {
        inject(Some(Fault::UncheckedCell));
        explore_now(cells, 12_000);
    });
}
