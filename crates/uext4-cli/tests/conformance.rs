//! What pjdfstest cannot ask a FUSE mount, asked here.
//!
//! Fault model: a limit of ext4 that a mount does not have, or reports by another error; a remount
//! that does not do what it says. Not covered: what the suites of others cover.

#[macro_use]
mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Output;

use common::{Mounted, Scratch, UEXT4, assert_clean, no_mount, run_fails, run_ok};
use rustix::io::Errno;

/// Most hard links of a file on ext4.
const LINK_MAX: u64 = 65_000;

#[test]
fn links_end_at_65000() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 64, &[]) else { skip!("no mke2fs") };
    let mount = Mounted::new(&image, &scratch.path("mnt"), "");
    let file = mount.path("file");
    fs::write(&file, b"x").unwrap();
    let dir = mount.path("links");
    fs::create_dir(&dir).unwrap();
    for n in 1..LINK_MAX {
        fs::hard_link(&file, dir.join(n.to_string())).unwrap();
    }
    assert_eq!(file.metadata().unwrap().nlink(), LINK_MAX);
    let error = fs::hard_link(&file, dir.join("one more")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::MLINK.raw_os_error()));
    fs::remove_file(dir.join("1")).unwrap();
    fs::hard_link(&file, dir.join("one more")).unwrap();
    mount.end();
    assert_clean(&image);
}

fn remount(image: &Path, dir: &Path, how: &str) -> Output {
    // The words that mount.fuse(8) gives.
    let options = format!("{how},remount,nosuid,nodev,user_id=0,group_id=0");
    std::process::Command::new(UEXT4).arg(image).arg(dir).args(["-o", &options]).output().unwrap()
}

#[test]
fn a_remount_changes_what_may_be_written() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    if !common::is_root() {
        skip!("a remount needs root");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let mount = Mounted::new(&image, &scratch.path("mnt"), "");
    fs::write(mount.path("before"), b"x").unwrap();
    let open = File::create(mount.path("open")).unwrap();
    let busy = remount(&image, &mount.dir, "ro");
    assert!(String::from_utf8_lossy(&busy.stderr).contains("busy"), "{busy:?}");
    drop(open);
    // close(2) is told to a FUSE server afterwards, and until then the kernel counts a writer.
    common::wait_until("remount", || remount(&image, &mount.dir, "ro").status.success());
    let error = fs::write(mount.path("after"), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()));
    let again = remount(&image, &mount.dir, "rw,cache=64M,noatime,data=journal");
    assert!(again.status.success());
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("cannot change cache=64M,data=journal, ignored"), "{said}");
    fs::write(mount.path("after"), b"x").unwrap();
    // Without `ro` a mount becomes writable.
    assert!(remount(&image, &mount.dir, "ro").status.success());
    assert!(remount(&image, &mount.dir, "noexec").status.success());
    fs::write(mount.path("after"), b"y").unwrap();
    mount.end();
    assert_clean(&image);

    // A volume that was opened read-only stays so.
    let mount = Mounted::new(&image, &scratch.path("mnt"), "ro");
    let refused = remount(&image, &mount.dir, "rw");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Read-only"), "{refused:?}");
    mount.end();
}

#[test]
fn what_a_remount_cannot_change_is_refused() {
    if !common::is_root() {
        skip!("a remount needs root");
    }
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    let other = scratch.path("other");
    fs::copy(&image, &other).unwrap();
    let refuses = |image: &Path, how: &str, want: &str| {
        let output = remount(image, &dir, how);
        let said = String::from_utf8_lossy(&output.stderr);
        let is_one_line = said.lines().count() == 1;
        assert!(!output.status.success() && is_one_line && said.contains(want), "{how}: {said}");
    };
    let mount = Mounted::new(&image, &dir, "");
    for word in ["allow_other", "default_permissions", "dirsync"] {
        refuses(&image, &format!("ro,{word}"), &format!("cannot change {word}"));
    }
    refuses(&other, "ro", "is mounted there, not");
    refuses(Path::new("/no/such/image"), "ro", "is mounted there, not");
    // Nothing of a refused remount has happened.
    fs::write(mount.path("file"), b"x").unwrap();
    mount.end();
    // What is in effect is repeated by mount(8).
    let mount = Mounted::new(&image, &dir, "allow_other,dirsync");
    let repeated = remount(&image, &dir, "ro,allow_other,default_permissions,dirsync");
    assert!(repeated.status.success() && repeated.stderr.is_empty(), "{repeated:?}");
    mount.end();
    // A mount with another name does not tell its image.
    let mount = Mounted::new(&image, &dir, "fsname=/a/name");
    assert!(remount(&image, &dir, "ro").status.success());
    assert!(remount(Path::new("/a/name"), &dir, "rw").status.success());
    mount.end();
}

#[test]
fn mount_fuse_can_call_us() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let Some(image) = scratch.image("image", 16, &[]) else { skip!("no mke2fs") };
    let dir = scratch.path("mnt");
    fs::create_dir(&dir).unwrap();
    let words = |image: &Path| -> Vec<OsString> {
        [image.into(), dir.clone().into(), "-o".into(), "rw,nosuid,nodev".into()].to_vec()
    };
    run_ok(words(&image));
    assert!(dir.join("lost+found").is_dir());
    run_ok(["umount".into(), dir.clone().into_os_string()]);
    assert_clean(&image);
    run_fails(words(Path::new("/no/such/image")), "no such file");
}
