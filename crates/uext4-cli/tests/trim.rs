//! `uext4 trim`, fstrim(8) and `-o discard`: an image file takes less space after them.
//!
//! Fault model: data given back that a file still needs (every file is read again from a fresh
//! mount, e2fsck checks); space that is not given back. Besides: what a mount's kernel lets through
//! of fallocate(2). Not covered here: crashes and races (uext4-sim, `trim.rs`).

#[macro_use]
mod common;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::{
    Mounted, Scratch, assert_clean, at, has, is_root, run_fails, run_ok, system, wait_until,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

const KEPT: usize = 6 << 20;

fn used(image: &Path) -> u64 {
    fs::metadata(image).unwrap().blocks() * 512
}

fn content(seed: u8) -> Vec<u8> {
    (0..KEPT).map(|at| (at / 300) as u8 ^ seed | 1).collect()
}

/// Two files of which one is removed again, all of it in the image.
fn fill(mount: &Mounted) {
    fs::write(mount.path("kept"), content(1)).unwrap();
    fs::write(mount.path("gone"), content(2)).unwrap();
    sync(mount);
    fs::remove_file(mount.path("gone")).unwrap();
    sync(mount);
}

fn sync(mount: &Mounted) {
    File::open(&mount.dir).unwrap().sync_all().unwrap();
}

fn assert_kept(image: &Path) {
    assert!(run_ok(["cat".into(), at(image, "/kept")]) == content(1), "the file that stays");
    assert_clean(image);
}

/// The number in `DIR: 1.2 MiB (N bytes) trimmed`.
fn trimmed(output: &[u8], place: &Path) -> u64 {
    let line = std::str::from_utf8(output).unwrap();
    let rest = line.strip_prefix(&format!("{}: ", place.display())).unwrap_or_else(|| {
        panic!("begins with the place: {line}");
    });
    let (_, rest) = rest.split_once(" (").unwrap();
    rest.strip_suffix(" bytes) trimmed\n").unwrap().parse().unwrap()
}

#[test]
fn an_image_shrinks_after_rm_and_trim() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let mount = Mounted::new(&image, &dir, "");
    fill(&mount);
    mount.end();
    let before = used(&image);
    let place = image.as_os_str();
    let long = run_ok(["trim".as_ref(), "--min".as_ref(), "4M".as_ref(), place]);
    let half = run_ok(["trim".as_ref(), "-l".as_ref(), "32M".as_ref(), place]);
    let all = trimmed(&run_ok(["trim".as_ref(), place]), &image);
    assert!(trimmed(&long, &image) < all && trimmed(&half, &image) < all);
    assert!(all > 40 << 20);
    let after = used(&image);
    assert!(after + (KEPT as u64) * 3 / 4 < before, "{before} bytes used before, {after} after");
    assert_kept(&image);
    run_fails(["trim".as_ref(), "--start".as_ref(), "64M".as_ref(), place], "nothing to trim");
}

#[test]
fn a_mount_is_trimmed_by_fstrim_and_by_us() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let mount = Mounted::new(&image, &dir, "");
    fill(&mount);
    let before = used(&image);
    let mut ours = Vec::new();
    // A removed file's blocks are free when the kernel has forgotten it and that is durable.
    wait_until("the image to shrink", || {
        sync(&mount);
        ours = run_ok(["trim".as_ref(), mount.dir.as_os_str()]);
        used(&image) + (KEPT as u64) * 3 / 4 < before
    });
    let bytes = trimmed(&ours, &mount.dir);
    if has("fstrim") {
        let theirs = system("fstrim").arg("-v").arg(&mount.dir).output().unwrap();
        let said = String::from_utf8_lossy(&theirs.stderr);
        assert!(theirs.status.success(), "fstrim: {said}");
        assert_eq!(trimmed(&theirs.stdout, &mount.dir), bytes, "the same words and the same bytes");
        assert_eq!(theirs.stdout, ours);
    } else {
        eprintln!("skipped: the comparison with fstrim(8), which is not installed");
    }
    mount.end();
    assert_kept(&image);
    let read_only = Mounted::new(&image, &dir, "ro");
    run_fails(["trim".as_ref(), read_only.dir.as_os_str()], "read-only");
    read_only.end();
}

#[test]
fn with_discard_freed_blocks_go_by_themselves() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let mount = Mounted::new(&image, &dir, "discard");
    fs::write(mount.path("kept"), content(1)).unwrap();
    fs::write(mount.path("gone"), content(2)).unwrap();
    sync(&mount);
    let before = used(&image);
    fs::remove_file(mount.path("gone")).unwrap();
    wait_until("the image to shrink", || {
        sync(&mount);
        used(&image) + (KEPT as u64) * 3 / 4 < before
    });
    mount.end();
    assert_kept(&image);
}

/// The kernel's FUSE client knows three flags of fallocate(2). Should this fail, a newer kernel
/// lets the others through, which the mount then serves: docs/mount.md has to say so.
#[test]
fn what_the_kernel_lets_through_of_fallocate() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 64);
    let mount = Mounted::new(&image, &dir, "");
    let path = mount.path("f");
    fs::write(&path, content(3)).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    for flags in [
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
    ] {
        assert_eq!(fallocate(&file, flags, 4096, 8192), Err(Errno::OPNOTSUPP), "{flags:?}");
    }
    assert!(fs::read(&path).unwrap() == content(3));
    drop(file);
    mount.end();
    assert_clean(&image);
}

/// A directory that is no uext4 mount: its host's free blocks are not ours to discard.
#[test]
fn other_file_systems_are_refused() {
    let scratch = Scratch::new();
    run_fails(["trim".as_ref(), scratch.dir.path().as_os_str()], "not on a uext4 mount");
    run_fails(["trim", "/proc"], "not on a uext4 mount");
    if !is_root() || !Path::new("/dev/loop-control").exists() {
        skip!("not root, or no loop devices");
    }
    let Some(image) = scratch.image("image", 64, &[]) else { skip!("no mke2fs") };
    let dir = scratch.path("mnt");
    fs::create_dir(&dir).unwrap();
    let mounted = system("mount").args(["-o", "loop"]).arg(&image).arg(&dir).status().unwrap();
    if !mounted.success() {
        skip!("the kernel does not mount it");
    }
    let output = common::run(["trim".as_ref(), dir.as_os_str()]);
    let ended = system("umount").arg(&dir).status().unwrap();
    assert!(ended.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("not on a uext4 mount"), "{said}");
}
