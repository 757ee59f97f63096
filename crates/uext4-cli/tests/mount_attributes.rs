//! Read-only mounts of images without extended attributes: the kernel is told to ask for none.
//!
//! Fault model: an attribute of any inode that such a mount hides; a command that asks the mount
//! about itself and gets no answer any more; questions that go on. Not covered: images so large
//! that the look at their inodes is given up.

#[macro_use]
mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;

use common::transport::on_both;
use common::{Mounted, Scratch, is_root, run, run_fails, run_ok, shell, wait_until};
use rustix::fs::{FlockOperation, XattrFlags, flock, getxattr, setxattr};
use rustix::io::Errno;
use serde_json::Value;

const FILES: u64 = 50;

fn fill(image: &Path, dir: &Path) {
    let mount = Mounted::new(image, dir, "");
    fs::create_dir(mount.path("d")).unwrap();
    for n in 0..FILES {
        fs::write(mount.path(format!("d/{n}")), b"data").unwrap();
    }
    mount.end();
}

fn asked(dir: &Path) -> u64 {
    let json = run_ok([OsStr::new("stats"), OsStr::new("--json"), dir.as_os_str()]);
    let stats: Value = serde_json::from_slice(&json).unwrap();
    stats.pointer("/requests/getxattr").unwrap().as_u64().unwrap()
}

fn ask_of_all(dir: &Path) -> Vec<Errno> {
    let ask = |n: u64| getxattr(dir.join(format!("d/{n}")), "user.none", &mut [0; 8][..]);
    (0..FILES).map(|n| ask(n).unwrap_err()).collect()
}

#[test]
fn the_kernel_asks_once_and_commands_are_answered() {
    on_both("the_kernel_asks_once", |option| {
        let scratch = Scratch::new();
        let (image, dir) = ready!(&scratch, 16);
        fill(&image, &dir);
        // Writable: an attribute may come any time.
        let mount = Mounted::new(&image, &dir, option);
        assert_eq!(ask_of_all(&dir), vec![Errno::NODATA; FILES as usize]);
        assert!(asked(&dir) >= FILES);
        mount.end();
        let mount = Mounted::new(&image, &dir, &format!("ro,{option}"));
        assert_eq!(ask_of_all(&dir), vec![Errno::OPNOTSUPP; FILES as usize]);
        shell("ls -lR; find . -type f -exec cat {} +", &dir);
        assert_eq!(asked(&dir), 1, "by the first file");
        // Long, and in parts: the same as by the attribute.
        assert!(asked(&mount.path("d")) == 1, "of any directory");
        if is_root() {
            let remount = ["mount", "-o", "remount,rw"].map(OsStr::new);
            let args = remount.into_iter().chain([image.as_os_str(), dir.as_os_str()]);
            run_fails(args, "read-only file system");
        }
        run_ok([OsStr::new("sync"), dir.as_os_str()]);
        mount.end();
        // umount has waited for the daemon.
        let image = File::open(&image).unwrap();
        assert_eq!(flock(&image, FlockOperation::NonBlockingLockExclusive), Ok(()));
    });
}

#[test]
fn an_attribute_anywhere_is_seen() {
    let kinds: [(&str, &[&str], &str, usize); 4] = [
        ("in an inode", &[], "d/7", 8),
        ("in a block", &[], "d/33", 600),
        ("of a small inode", &["-I", "128"], "d/33", 8),
        ("of the root", &[], ".", 8),
    ];
    for (what, extra, name, len) in kinds {
        let scratch = Scratch::new();
        if let Some(why) = common::no_mount() {
            skip!("{why}");
        }
        let Some(image) = scratch.image("image", 16, extra) else { skip!("no mke2fs") };
        let dir = scratch.path("mnt");
        fill(&image, &dir);
        let mount = Mounted::new(&image, &dir, "");
        setxattr(mount.path(name), "user.a", &vec![7; len], XattrFlags::empty()).unwrap();
        mount.end();
        let mount = Mounted::new(&image, &dir, "ro");
        assert_eq!(ask_of_all(&dir), vec![Errno::NODATA; FILES as usize], "{what}");
        let mut value = vec![0; 1000];
        assert_eq!(getxattr(mount.path(name), "user.a", &mut value[..]), Ok(len), "{what}");
        mount.end();
    }
}

/// Fault model: a bitmap that is wrong about an inode that can be reached, and has attributes.
#[test]
fn a_file_system_with_errors_is_not_taken_at_its_word() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    if !common::has("debugfs") {
        skip!("no debugfs");
    }
    fill(&image, &dir);
    shell("debugfs -w -R 'ssv state 2' image 2>&1", scratch.dir.path());
    let mount = Mounted::new(&image, &dir, "ro");
    assert_eq!(ask_of_all(&dir), vec![Errno::NODATA; FILES as usize]);
    mount.end();
}

/// A mount whose daemon is gone is told from others, also where no question for an attribute
/// would reach it.
#[test]
fn a_dead_mount_is_told() {
    let scratch = Scratch::new();
    let (image, dir) = ready!(&scratch, 16);
    fill(&image, &dir);
    let mount = Mounted::new(&image, &dir, "ro");
    ask_of_all(&dir);
    let daemon = rustix::process::Pid::from_raw(mount.daemon()).unwrap();
    rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    // A killed daemon answers for a while yet, and what it is asked meanwhile may fail by itself.
    wait_until("the daemon is gone", || {
        let gone = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
        let asked = uext4_fuse::ask(&dir, uext4_fuse::PID_XATTR);
        asked.is_err_and(|error| gone.contains(&error.raw_os_error()))
    });
    let said = run([OsStr::new("mount"), image.as_os_str(), dir.as_os_str()]);
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("its daemon is gone"), "{said}");
    run_ok([OsStr::new("umount"), dir.as_os_str()]);
    mount.forget();
}
