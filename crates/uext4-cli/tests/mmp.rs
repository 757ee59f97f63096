//! Two hosts, which are processes with loop devices of their own on one image (`mmp`).
//!
//! Fault model: a second host that comes while the first has the image mounted, and one that comes
//! after the first was killed; the kernel as the other host. Needs root, loop devices and
//! /dev/fuse; says so and passes where they are missing. The races of the protocol are in uext4-sim
//! (`mmp.rs`).

#[macro_use]
mod common;

use common::{Mounted, Scratch, assert_clean, at, has, is_root, no_mount, run, run_fails, system};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A loop device, which a host takes for a disk of its own.
struct Loop(PathBuf);

impl Loop {
    fn new(image: &Path) -> Option<Loop> {
        let made = system("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        let name = String::from_utf8(made.stdout).ok()?;
        made.status.success().then(|| Loop(PathBuf::from(name.trim())))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = system("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn words(words: &[&str], last: OsString) -> Vec<OsString> {
    words.iter().map(OsString::from).chain([last]).collect()
}

/// A second host is refused, by name, while the first lives, and gets in after its death within
/// twice the check interval (5 seconds here) and 3 seconds.
#[test]
fn two_hosts() {
    if !is_root() || !has("losetup") || no_mount().is_some() {
        skip!("not root, or no loop devices or mounts");
    }
    let scratch = Scratch::new();
    let options = ["-O", "mmp", "-E", "mmp_update_interval=1"];
    let Some(image) = scratch.image("image", 32, &options) else { skip!("no mke2fs") };
    let Some((one, two)) = Loop::new(&image).zip(Loop::new(&image)) else { skip!("no loop") };
    let dir = scratch.path("one");
    fs::create_dir_all(&dir).unwrap();
    let mounted = Mounted::new(&one.0, &dir, "mmp_node=first");
    fs::write(mounted.path("file"), "kept").unwrap();
    fs::File::open(mounted.path("file")).unwrap().sync_all().unwrap();

    run_fails(words(&["mkdir"], at(&two.0, "/new")), "node 'first', device 'loop");

    let daemon = rustix::process::Pid::from_raw(mounted.daemon()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    let _ = system("umount").arg("-l").arg(&dir).status();
    mounted.forget();
    let start = Instant::now();
    let got = run(words(&["mkdir"], at(&two.0, "/new")));
    let took = start.elapsed();
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    assert!(took < Duration::from_secs(2 * 5 + 3 + 2), "{took:?}");
    assert!(took > Duration::from_secs(2 * 5), "{took:?}");
    drop((one, two));
    assert_eq!(common::run_ok(words(&["cat"], at(&image, "/file"))), b"kept");
    assert_clean(&image);
}

/// The kernel as the first host.
#[test]
fn what_the_kernel_has_is_refused() {
    if !is_root() || !has("losetup") {
        skip!("not root, or no loop devices");
    }
    let scratch = Scratch::new();
    let options = ["-O", "mmp", "-E", "mmp_update_interval=1"];
    let Some(image) = scratch.image("image", 32, &options) else { skip!("no mke2fs") };
    let Some((first, other)) = Loop::new(&image).zip(Loop::new(&image)) else { skip!("no loop") };
    let dir = scratch.path("kernel");
    fs::create_dir_all(&dir).unwrap();
    let mounted = system("mount").args(["-t", "ext4"]).arg(&first.0).arg(&dir).status().unwrap();
    if !mounted.success() {
        skip!("no kernel mount");
    }
    let refused = std::panic::catch_unwind(|| {
        let mkdir = words(&["mkdir"], at(&other.0, "/new"));
        run_fails(mkdir, "multiple mount protection: another host");
        fs::write(dir.join("file"), "by the kernel").unwrap();
    });
    assert!(system("umount").arg(&dir).status().unwrap().success());
    refused.unwrap();
    common::run_ok(words(&["mkdir"], at(&other.0, "/new")));
    drop((first, other));
    assert_eq!(common::run_ok(words(&["cat"], at(&image, "/file"))), b"by the kernel");
    assert_clean(&image);
}

/// A check that was killed has the image until somebody says that it is dead.
#[test]
fn the_claim_of_a_dead_check_is_cleared() {
    let scratch = Scratch::new();
    let options = ["-b", "1024", "-O", "mmp,^metadata_csum"];
    let Some(image) = scratch.image("image", 16, &options) else { skip!("no mke2fs") };
    let mut bytes = fs::read(&image).unwrap();
    let free = [0x50, 0x4d, 0x4d, 0, 0x50, 0x4d, 0x4d, 0xff];
    let at_block = (0..bytes.len()).step_by(1024).find(|&at| bytes[at..].starts_with(&free));
    bytes[at_block.unwrap() + 7] = 0xe2;
    fs::write(&image, bytes).unwrap();
    let mkdir = || words(&["mkdir"], at(&image, "/new"));
    run_fails(mkdir(), "uext4 tune --clear-mmp");
    common::run_ok(words(&["ls"], at(&image, "/")));
    let inside = words(&["tune", "--clear-mmp"], at(&image, "/new"));
    run_fails(inside, "is of an image, not of a file in it");
    let cleared = common::run_ok(words(&["tune", "--clear-mmp"], image.clone().into()));
    assert!(String::from_utf8_lossy(&cleared).contains("last seen"), "{cleared:?}");
    common::run_ok(mkdir());
    assert_clean(&image);
}
