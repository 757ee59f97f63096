//! Mounts of type `fuseblk`, whose source is a loop device that stands for the image.
//!
//! Fault model: sync(2) that is not passed on, or passed on and not heeded; an umount(2) that
//! returns before everything is durable; a loop device that stays behind; an image that is not
//! claimed against other writers; a source that nobody knows the image by. Not covered: kernels
//! before 6.18 other than by `fuseblk=off`.

#[macro_use]
mod common;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use common::{
    Mounted, Scratch, assert_clean, at, has, is_mounted, is_root, run, run_fails, run_ok, system,
    wait_until,
};
use rustix::mount::UnmountFlags;
use uext4_fuse::mountinfo::{self, MountPoint};

/// No commit comes but when it is asked for.
const ON: &str = "fuseblk=on,commit=300";
const OFF: &str = "fuseblk=off,commit=300";

/// A fresh image and a place to mount it; skips where no such mount can be had.
macro_rules! ready_for_block {
    ($scratch:expr) => {{
        let (image, dir) = ready!($scratch, 32);
        if let Some(why) = no_block_mounts() {
            skip!("{why}");
        }
        (image, dir)
    }};
}

fn no_block_mounts() -> Option<&'static str> {
    if !is_root() {
        return Some("not root");
    }
    if File::options().read(true).write(true).open("/dev/loop-control").is_err() {
        return Some("no loop devices");
    }
    let types = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    (!types.contains("\tfuseblk\n")).then_some("the kernel has no fuseblk")
}

/// Fault model: data that stays in memory for the usual 30 s, which is longer than this waits.
#[test]
fn a_mount_that_sync_does_not_reach_writes_early() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 32);
    let mount = Mounted::new(&image, &dir, "fuseblk=off,commit=1");
    fs::write(mount.path("file"), [7; 70_000]).unwrap();
    wait_until("all is durable", || level(&mount, "unsynced") == 0);
    let daemon = mount.daemon().to_string();
    assert!(system("kill").args(["-9", &daemon]).status().unwrap().success());
    wait_until("it is gone", || fs::read_dir(&dir).is_err());
    run_ok([OsString::from("umount"), dir.clone().into()]);
    mount.forget();
    assert_eq!(run_ok([OsString::from("cat"), at(&image, "/file")]), [7; 70_000]);
    let mount = Mounted::new(&image, &dir, "");
    mount.end();
    assert_clean(&image);
}

fn level(mount: &Mounted, name: &str) -> u64 {
    let json = run_ok(["stats".as_ref(), "--json".as_ref(), mount.dir.as_os_str()]);
    let stats: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    stats["levels"][name].as_u64().expect("a number")
}

/// Whether the kernel passes sync(2) on.
fn passes_sync_on() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap());
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    version >= (6, 18)
}

fn mount_of(dir: &Path) -> MountPoint {
    mountinfo::find(dir).unwrap().expect("mounted")
}

/// The loop device of a mount.
fn device_of(mount: &Mounted) -> PathBuf {
    let mount = mount_of(&mount.dir);
    assert_eq!(mount.fs_type, "fuseblk.uext4");
    PathBuf::from(mount.shown_source)
}

/// What a loop device is set up on.
fn backing(device: &Path) -> Option<String> {
    let name = device.file_name().unwrap().to_str().unwrap();
    fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()
}

/// Waits until the loop device of a mount of `image` is no more.
fn assert_gone(device: &Path, image: &Path) {
    wait_until("the loop device is gone", || {
        backing(device).is_none_or(|text| !text.contains(image.to_str().unwrap()))
    });
}

/// What a copy of the image, as it is now, has in a file; `None` without the file.
fn in_a_copy(scratch: &Scratch, image: &Path, file: &str) -> Option<Vec<u8>> {
    let copy = scratch.path("copy");
    fs::copy(image, &copy).unwrap();
    let output = run(["cat".into(), at(&copy, file)]);
    output.status.success().then_some(output.stdout)
}

#[test]
fn sync_makes_everything_durable() {
    let scratch = Scratch::new();
    let (image, dir) = ready_for_block!(&scratch);
    if !passes_sync_on() {
        skip!("the kernel does not pass sync(2) on");
    }
    for (options, is_durable) in [(ON, true), (OFF, false), ("commit=300", true)] {
        let mount = Mounted::new(&image, &dir, options);
        let file = format!("/{options}");
        fs::write(mount.path(options), vec![7; 300_000]).unwrap();
        rustix::fs::syncfs(File::open(&dir).unwrap()).unwrap();
        let found = in_a_copy(&scratch, &image, &file);
        assert_eq!(found.is_some_and(|bytes| bytes == vec![7; 300_000]), is_durable, "{options}");
        mount.end();
        assert_clean(&image);
    }
    let mount = Mounted::new(&image, &dir, ON);
    fs::write(mount.path("by sync(1)"), b"x").unwrap();
    rustix::fs::sync();
    assert_eq!(in_a_copy(&scratch, &image, "/by sync(1)"), Some(b"x".to_vec()));
    mount.end();
}

#[test]
fn umount_of_the_kernel_returns_when_everything_is_durable() {
    let scratch = Scratch::new();
    let (image, dir) = ready_for_block!(&scratch);
    let mount = Mounted::new(&image, &dir, ON);
    let device = device_of(&mount);
    let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
    fs::write(mount.path("file"), vec![9; 12 << 20]).unwrap();
    rustix::mount::unmount(&dir, UnmountFlags::empty()).unwrap();
    // It need not come to closing the image. It may have.
    let _ = rustix::process::kill_process(daemon, rustix::process::Signal::KILL);
    wait_until("the image is free", || File::open(&image).unwrap().try_lock().is_ok());
    let found = in_a_copy(&scratch, &image, "/file").expect("the file");
    assert!(found == vec![9; 12 << 20]);
    mount.forget();
    assert_gone(&device, &image);
}

#[test]
fn the_loop_device_stands_for_the_image_and_goes_with_the_mount() {
    let scratch = Scratch::new();
    let (image, dir) = ready_for_block!(&scratch);
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    for is_killed in [false, true] {
        let mount = Mounted::new(&image, &dir, ON);
        let device = device_of(&mount);
        assert_eq!(mount_of(&dir).source, image.as_os_str());
        assert!(backing(&device).unwrap().contains(image.to_str().unwrap()));
        // What it has is not the image: nothing that is written there can harm it.
        assert!(fs::read(&device).unwrap().iter().all(|byte| *byte == 0));
        fs::write(mount.path("file"), b"kept").unwrap();
        run_ok([OsString::from("sync"), dir.clone().into()]);
        run_ok([OsString::from("stats"), dir.clone().into()]);
        run_fails(["mount".into(), image.clone().into_os_string(), other.clone().into()], "in use");
        if is_killed {
            let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
            rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
            wait_until("dead", || File::open(&image).unwrap().try_lock().is_ok());
            // A dead mount keeps its device, but not the image.
            Mounted::new(&image, &other, ON).end();
        }
        mount.end();
        assert!(!is_mounted(&dir));
        assert_gone(&device, &image);
        assert_eq!(run_ok(["cat".into(), at(&image, "/file")]), b"kept");
    }
    assert_clean(&image);
}

#[test]
fn force_and_signals_end_it() {
    let scratch = Scratch::new();
    let (image, dir) = ready_for_block!(&scratch);
    for is_forced in [true, false] {
        let mount = Mounted::new(&image, &dir, ON);
        let device = device_of(&mount);
        let open = File::create(mount.path("open")).unwrap();
        if is_forced {
            run_ok(["umount".as_ref(), "-f".as_ref(), dir.as_os_str()]);
        } else {
            let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
            for _ in 0..2 {
                rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
                wait_until("out of sight", || !is_mounted(&dir));
            }
        }
        wait_until("closed", || File::open(&image).unwrap().try_lock().is_ok());
        assert!(!is_mounted(&dir));
        mount.forget();
        drop(open);
        assert_gone(&device, &image);
        assert_clean(&image);
    }
}

#[test]
fn read_only_and_remounted() {
    let scratch = Scratch::new();
    let (image, dir) = ready_for_block!(&scratch);
    let mount = Mounted::new(&image, &dir, "ro,fuseblk=on");
    device_of(&mount);
    let refused = fs::write(mount.path("x"), b"x").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    mount.end();

    let mount = Mounted::new(&image, &dir, ON);
    fs::write(mount.path("x"), b"x").unwrap();
    let device = device_of(&mount).into_os_string();
    // By the names that mount(8), which reads the table, and fstab(5) give it.
    for name in [device, image.clone().into_os_string()] {
        for (words, is_writable) in [("remount,ro", false), ("remount,rw", true)] {
            run_ok([
                "mount".as_ref(),
                "-o".as_ref(),
                words.as_ref(),
                name.as_os_str(),
                dir.as_os_str(),
            ]);
            assert_eq!(fs::write(mount.path("x"), b"y").is_ok(), is_writable, "{words}");
        }
    }
    let wrong = ["mount", "-o", "remount,ro", "/dev/null", dir.to_str().unwrap()];
    run_fails(wrong, "is mounted there");
    mount.end();
    let mount = Mounted::new(&image, &dir, OFF);
    assert_eq!(mount_of(&dir).fs_type, "fuse.uext4");
    assert_eq!(mount_of(&dir).shown_source, image.as_os_str());
    mount.end();
    assert_clean(&image);
}

/// A partition has a device of its own, and a path that is too long for a name has none.
#[test]
fn parts_and_long_paths() {
    let scratch = Scratch::new();
    let (image, dir) = ready_for_block!(&scratch);
    let disk = scratch.path("disk");
    let mut bytes = vec![0; 1 << 20];
    bytes.extend(fs::read(&image).unwrap());
    fs::write(&disk, bytes).unwrap();
    let mut part = disk.clone().into_os_string();
    part.push("@1048576");
    let mount = Mounted::new(Path::new(&part), &dir, ON);
    assert!(Path::new(&mount_of(&dir).source).starts_with(scratch.dir.path()));
    assert!(mount_of(&dir).source.to_str().unwrap().starts_with(disk.to_str().unwrap()));
    fs::write(mount.path("file"), b"x").unwrap();
    mount.end();
    assert_eq!(run_ok(["cat".into(), at(Path::new(&part), "/file")]), b"x");

    let far = scratch.path("f".repeat(240));
    fs::rename(&image, &far).unwrap();
    let mount = Mounted::new(&far, &dir, "");
    assert_eq!(mount_of(&dir).fs_type, "fuse.uext4");
    mount.end();
    let args = ["mount".as_ref(), "-o".as_ref(), ON.as_ref(), far.as_os_str(), dir.as_os_str()];
    run_fails(args, "fuseblk=on");
    assert!(!is_mounted(&dir));
}

/// A block device as the image is claimed by the daemon itself.
#[test]
fn a_block_device_is_claimed() {
    let scratch = Scratch::new();
    let (image, dir) = ready_for_block!(&scratch);
    if !has("losetup") {
        skip!("no losetup");
    }
    let made = system("losetup").args(["--show", "-f"]).arg(&image).output().unwrap();
    if !made.status.success() {
        skip!("losetup: {}", String::from_utf8_lossy(&made.stderr));
    }
    let disk = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
    let detach = Detach(disk.clone());
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    let mount = Mounted::new(&disk, &dir, ON);
    assert_ne!(device_of(&mount), disk);
    assert_eq!(mount_of(&dir).source, disk.as_os_str());
    let claim = File::options().read(true).custom_flags(libc::O_EXCL).open(&disk);
    assert_eq!(claim.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
    let refused = system("mount").args(["-t", "ext4"]).args([&disk, &other]).output().unwrap();
    assert!(!refused.status.success() && !is_mounted(&other), "{refused:?}");
    run_fails(["mount".into(), disk.clone().into_os_string(), other.into()], "in use");
    fs::write(mount.path("file"), b"x").unwrap();
    mount.end();
    assert_eq!(run_ok(["cat".into(), at(&disk, "/file")]), b"x");
    drop(detach);
    wait_until("detached", || backing(&disk).is_none());
    assert_clean(&image);
}

/// Detaches a loop device of the test.
struct Detach(PathBuf);

impl Drop for Detach {
    fn drop(&mut self) {
        let _ = system("losetup").arg("-d").arg(&self.0).status();
    }
}
