//! Room that a program has just made on a full mount is there for its next call.
//!
//! Fault model: a file is removed or replaced, and what comes at once finds no room, since the
//! kernel has not let go of the file yet; pages that the kernel writes back find room for a part,
//! and the rest is lost in silence. Not covered: room on the host (full_host.rs).

#[macro_use]
mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use common::{Mounted, Scratch, assert_clean, wait_until};

const MIB: usize = 1 << 20;
const ROUNDS: usize = 12;

/// Fills a file until there is no room.
fn fill(path: &Path) {
    let mut file = File::create(path).expect("a file");
    let data = vec![0x11; MIB];
    let mut chunk = MIB;
    while chunk > 0 {
        match file.write(&data[..chunk]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => chunk /= 4,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn what_a_removed_file_leaves_is_there_at_once() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let mount = Mounted::new(&image, &dir, "");
    let (big, new) = (mount.path("big"), mount.path("new"));
    fs::write(&new, vec![0x22; MIB]).unwrap();
    fill(&big);
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            fs::remove_file(&big).unwrap();
        } else {
            fs::rename(&new, &big).unwrap();
        }
        let mut file =
            OpenOptions::new().create(true).truncate(false).write(true).open(&big).unwrap();
        let written = file.write_all(&vec![0x33; 20 * MIB]);
        assert!(written.is_ok(), "round {round}: {written:?}");
        drop(file);
        fs::write(&new, vec![0x22; MIB]).unwrap();
        fill(&big);
    }
    fs::remove_file(&big).unwrap();
    // statfs(2) waits for leaving files for a twentieth of a second only.
    wait_until("room in statfs", || {
        let free = rustix::fs::statvfs(&dir).unwrap();
        free.f_bavail * free.f_frsize > 20 << 20
    });
    mount.end();
    assert_clean(&image);
}

/// A file that stays open without a name keeps its blocks, and writers that find no room are told.
#[test]
fn a_file_that_stays_open_keeps_its_room() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let mount = Mounted::new(&image, &dir, "");
    let (big, other) = (mount.path("big"), mount.path("other"));
    fill(&big);
    let open = File::open(&big).unwrap();
    fs::remove_file(&big).unwrap();
    let refused = fs::write(&other, vec![1; 2 * MIB]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    drop(open);
    // Nobody waits for the release but the calls that find no room.
    wait_until("room", || fs::write(&other, vec![1; 2 * MIB]).is_ok());
    mount.end();
    assert_clean(&image);
}

/// The kernel's dirty pages are more than there is room for, by a part of a request: the sync says
/// so, or everything is there.
#[test]
fn dirty_pages_without_room_are_told_or_written() {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    let mount = Mounted::new(&image, &dir, "writeback_cache");
    let start = MIB as u64 / 2;
    let (mut refused, mut written) = (0, 0);
    for step in -6..6_i64 {
        let path = mount.path(format!("file{step}"));
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        let room = rustix::fs::statvfs(&dir).unwrap();
        let room = (room.f_bfree * room.f_frsize) as i64;
        let len = (room + step * (MIB as i64 / 4)) as usize;
        let data: Vec<u8> = (0..len).map(|at| (at / 512 % 251) as u8 + 1).collect();
        let accepted = file.write_all_at(&data, start).is_ok();
        if !accepted || file.sync_all().is_err() {
            refused += 1;
        } else {
            written += 1;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut back = vec![0; len];
            file.read_exact_at(&mut back, start).unwrap();
            let lost = back.iter().zip(&data).position(|(is, was)| is != was);
            assert_eq!(lost, None, "step {step}: {len} bytes, lost from there on");
        }
        drop(file);
        fs::remove_file(&path).unwrap();
    }
    println!("{written} written, {refused} refused");
    assert!(refused > 0 && written > 0);
    mount.end();
    assert_clean(&image);
}
