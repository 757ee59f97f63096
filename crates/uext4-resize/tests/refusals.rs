//! What cannot be grown is refused before anything is written.
//!
//! Fault model: structures that a growth changes disagree with the geometry or with each other, or
//! have no room for the growth. The refusal has the word that helps, and what it names does help.
//! Not covered: damage that a growth does not meet.

mod common;

use common::{assert_clean, grow, have, mke2fs, run, superblock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use uext4::{MountOptions, Volume};
use uext4_device::{Access, FileDevice, SharedDevice};
use uext4_resize::{examine, fitting_blocks};

/// What the room behind the file system holds.
const ROOM: [u8; 4096] = [0xa5; 4096];

fn debugfs(image: &Path, request: &str) -> String {
    let output = std::process::Command::new("/sbin/debugfs")
        .args(["-w", "-R", request])
        .arg(image)
        .output()
        .expect("the tool runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The double indirect block of the resize inode.
fn double_indirect(image: &Path) -> u64 {
    let said = debugfs(image, "stat <7>");
    let (_, rest) = said.split_once("(DIND):").expect("a double indirect block");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Says in the bitmap that a free block is in use.
fn take_block(image: &Path, from: u64) {
    let free = debugfs(image, &format!("ffb 1 {from}"));
    let free = free.split_whitespace().last().expect("a free block");
    debugfs(image, &format!("setb {free}"));
}

fn write(image: &Path, block: u64, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(image).expect("an image");
    file.write_all_at(bytes, block * 1024 + at).expect("written");
}

/// The first number that is not zero in a block, and where it is.
fn first_entry(image: &Path, block: u64) -> (u64, u64) {
    let mut bytes = [0; 1024];
    File::open(image).and_then(|file| file.read_exact_at(&mut bytes, block * 1024)).expect("read");
    let numbers = bytes.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let (index, number) = numbers.enumerate().find(|(_, number)| *number != 0).expect("an entry");
    (index as u64 * 4, number)
}

/// Asserts that an image is refused, by a volume that is open to read as well, and that nothing has
/// changed.
fn assert_refused(image: &Path, kib: u64, want: &str) {
    let old = superblock(image);
    let file = File::options().read(true).write(true).open(image).expect("an image");
    file.set_len(kib << 10).expect("room");
    file.write_all_at(&ROOM, old.blocks_count() * 1024).expect("written");
    let device = FileDevice::open(image, Access::ReadOnly, 0).expect("an image");
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let volume = Volume::open(Arc::new(device) as SharedDevice, options).expect("opens");
    let blocks = fitting_blocks(&old, kib).expect("a size");
    let read = examine(&volume, blocks).expect_err("is refused").to_string();
    drop(volume);
    let error = grow(image, kib).expect_err("is refused").to_string();
    assert!(error.contains(want) && read == error, "{want}: {error} and {read}");
    let mut behind = [0; ROOM.len()];
    file.read_exact_at(&mut behind, old.blocks_count() * 1024).expect("read");
    assert!(behind == ROOM, "{want}: written behind the end");
    let now = superblock(image);
    assert_eq!((now.blocks_count(), now.s_state), (old.blocks_count(), old.s_state), "{want}");
}

#[test]
fn damage_is_refused_before_anything_is_written() {
    if !["mke2fs", "e2fsck", "debugfs"].iter().all(|tool| have(tool)) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let image = dir.path().join("image");
    // The second one has used all its reserved blocks: it turns to meta_bg.
    for (words, first) in [("-b 1024", None), ("-b 1024 -E resize=200000", Some(256 << 10))] {
        let fresh = || {
            mke2fs(&image, 20 << 10, words);
            if let Some(kib) = first {
                grow(&image, kib).expect("grows");
            }
            double_indirect(&image)
        };
        let check = |damage: &str, want: &str| {
            assert_refused(&image, 400 << 10, want);
            let (status, said) = run("e2fsck", "-fy", &image);
            assert!(status <= 1, "{damage}: {said}");
            grow(&image, 400 << 10).unwrap_or_else(|error| panic!("{damage}: {error}"));
            assert_clean(&image, damage);
        };
        let top = fresh();
        // The count stays right.
        take_block(&image, 3000);
        debugfs(&image, &format!("freeb {top}"));
        check("a free double indirect block", "is free already): repair it first (e2fsck -f)");
        fresh();
        take_block(&image, 3000);
        check("a wrong count of its group", "free count of the group descriptor");
        let top = fresh();
        if first.is_some() {
            continue;
        }
        let (at, reserved) = first_entry(&image, top);
        write(&image, top, at, &[0; 4]);
        check("no name of a reserved block", "does not name the reserved descriptor blocks");
        fresh();
        let (at, _) = first_entry(&image, reserved);
        write(&image, reserved, at, &[0; 4]);
        check("no name of a copy", "does not name the copies of reserved descriptor blocks");
        fresh();
        take_block(&image, 17_000);
        check("a wrong count of the last group", "free count of the group descriptor");
    }
}

#[test]
fn a_log_that_is_too_small_is_refused_or_takes_more_steps() {
    if !["mke2fs", "e2fsck", "tune2fs"].iter().all(|tool| have(tool)) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let image = dir.path().join("image");
    // With a new backup all reserved blocks change in one transaction.
    let reserve = "-b 1024 -J size=1 -N 200 -E resize=40G";
    mke2fs(&image, 20 << 10, reserve);
    assert_refused(&image, 60 << 10, "has too small a journal to grow");
    run("tune2fs", "-O ^has_journal", &image);
    run("tune2fs", "-J size=2", &image);
    grow(&image, 60 << 10).expect("grows, as the refusal says");
    assert_clean(&image, reserve);
    // Without one only the descriptors do, in several steps.
    mke2fs(&image, 20 << 10, &format!("{reserve} -O sparse_super2"));
    let report = grow(&image, 32 << 20).expect("grows");
    println!("{:?}", report.steps);
    assert_eq!((report.steps.len(), report.last().blocks), (2, 32 << 20));
    assert_clean(&image, "more steps");
}
