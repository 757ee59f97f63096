//! Journals on a device of their own, by the command: made, mounted, checked, refused.
//!
//! Fault model: a verb that does not take the journal it was given, that changes a device although
//! it refuses, or whose refusal does not say what is wrong; a daemon that is killed. The kernel's
//! logs: `kernel_tree.rs`; losses of power: the crash kit.

#[macro_use]
mod common;

use common::{Mounted, Scratch, at, has, no_mount, run, run_fails, run_ok, system, wait_until};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Pair {
    log: PathBuf,
    image: PathBuf,
}

/// Arguments of the command.
fn words<const N: usize>(words: [&dyn AsRef<OsStr>; N]) -> Vec<OsString> {
    words.iter().map(|word| word.as_ref().to_owned()).collect()
}

impl Pair {
    fn new(scratch: &Scratch) -> Pair {
        let [log, image] = ["log", "image"].map(|name| scratch.path(name));
        run_ok(words([&"mkfs", &"-q", &"-b", &"1024", &"-O", &"journal_dev", &log, &"8M"]));
        let device = format!("device={}", log.display());
        run_ok(words([&"mkfs", &"-q", &"-J", &device, &image, &"32M"]));
        Pair { log, image }
    }

    fn bytes(&self) -> [Vec<u8>; 2] {
        [&self.log, &self.image].map(|path| fs::read(path).unwrap())
    }

    /// The words of a verb on the image, with its journal.
    fn with(&self, verb: &str) -> Vec<OsString> {
        words([&"--journal-device", &self.log, &verb])
    }

    fn assert_clean(&self) {
        let own = run(words([&"fsck", &"-j", &self.log, &self.image]));
        assert_eq!(own.status.code(), Some(0), "{own:?}");
        if has("e2fsck") {
            let theirs = self.e2fsck("-fn");
            assert_eq!(theirs.status.code(), Some(0), "{theirs:?}");
        }
    }

    fn e2fsck(&self, flags: &str) -> Output {
        let mut command = system("e2fsck");
        command.arg(flags).arg("-j").arg(&self.log).arg(&self.image).output().unwrap()
    }

    fn mount(&self, dir: &Path) -> Mounted {
        Mounted::new(&self.image, dir, &format!("journal_path={}", self.log.display()))
    }
}

#[test]
fn verbs_take_the_journal() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let file = scratch.path("file");
    fs::write(&file, "of the host").unwrap();
    let mut copy = pair.with("cp");
    copy.extend([file.clone().into(), at(&pair.image, "/file")]);
    run_ok(copy);
    pair.assert_clean();
    let mut cat = pair.with("cat");
    cat.push(at(&pair.image, "/file"));
    assert_eq!(run_ok(cat), b"of the host");
    // The log is empty, so that it is not needed to read.
    assert_eq!(run_ok(words([&"cat", &at(&pair.image, "/file")])), b"of the host");
    let reason = "can only be read: its journal ";
    run_fails(words([&"rm", &at(&pair.image, "/file")]), reason);
    let mut stats = pair.with("stats");
    stats.push(pair.image.clone().into());
    assert!(String::from_utf8(run_ok(stats)).unwrap().contains("Log blocks:"));
    run_fails(words([&"stats", &pair.image]), "is on another device: name it (--journal-device)");
    let told = String::from_utf8(run_ok(words([&"info", &pair.log]))).unwrap();
    assert!(told.contains("journal_dev") && told.contains("Journal users: "), "{told}");
    let told = String::from_utf8(run_ok(words([&"info", &"--json", &pair.log]))).unwrap();
    assert!(told.contains("\"journal_users\""), "{told}");
    let told = String::from_utf8(run_ok(words([&"info", &"-h", &pair.image]))).unwrap();
    assert!(told.contains("Journal UUID: "), "{told}");
}

/// Each is one line, and neither device changes.
#[test]
fn what_is_wrong_with_a_journal_is_told() {
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let others = Scratch::new();
    let other = Pair::new(&others);
    let absent = scratch.path("absent");
    let before = pair.bytes();
    let ls = |journal: &Path| words([&"--journal-device", &journal, &"ls", &at(&pair.image, "/")]);
    run_fails(ls(&other.log), "journal device: is the journal ");
    run_fails(ls(&other.image), "journal device: holds a file system, not a journal");
    run_fails(ls(&pair.image), "its journal needs a file or device of its own");
    run_fails(ls(&absent), "no such file");
    run_fails(words([&"ls", &at(&pair.log, "/")]), "of the file system ");
    let device = format!("device={}", pair.log.display());
    let again = scratch.path("again");
    run_fails(words([&"mkfs", &"-J", &device, &again, &"16M"]), "in use by the file system ");
    let mkfs: [(&[&str], &str); 3] = [
        (&["-J", &device, "-O", "journal_dev"], "a journal device, which has no other"),
        (&["-J", &device, "-O", "^has_journal"], "exclude each other"),
        (&["-O", "journal_dev", "-d", "."], "a journal device, which holds no files"),
    ];
    for (contradiction, want) in mkfs {
        let mut mkfs = words([&"mkfs", &again, &"16M"]);
        mkfs.extend(contradiction.iter().map(OsString::from));
        run_fails(mkfs, want);
    }
    let mut mkfs = pair.with("mkfs");
    mkfs.extend(words([&again, &"16M"]));
    run_fails(mkfs, "a new one has -J device=");
    assert!(!again.exists());
    for bad in ["journal_path=", "journal_dev=x"] {
        run_fails(words([&"mount", &"-o", &bad, &pair.image, &scratch.path("")]), bad);
    }
    let refused = run(words([&"fsck", &pair.image]));
    assert_eq!(refused.status.code(), Some(8), "{refused:?}");
    let wrong = run(words([&"fsck", &"-j", &other.log, &pair.image]));
    assert_eq!(wrong.status.code(), Some(4), "{wrong:?}");
    assert!(pair.bytes() == before, "a refusal has written");
}

/// The daemon is killed in the middle: the log is replayed by uext4, or by e2fsck.
#[test]
fn a_mount_is_written_killed_and_recovered() {
    if let Some(why) = no_mount() {
        skip!("{why}");
    }
    let scratch = Scratch::new();
    let pair = Pair::new(&scratch);
    let dir = scratch.path("mnt");
    let mount = pair.mount(&dir);
    fs::write(mount.path("closed"), "a").unwrap();
    run_fails(words([&"--journal-device", &pair.log, &"ls", &at(&pair.image, "/")]), "in use");
    mount.end();
    pair.assert_clean();

    let mount = pair.mount(&dir);
    let file = fs::File::create(mount.path("synced")).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let daemon = mount.daemon();
    Command::new("kill").args(["-9", &daemon.to_string()]).status().unwrap();
    drop(mount);
    wait_until("the image is free", || run(words([&"info", &pair.image])).status.success());
    let dirty = Pair { log: scratch.path("log2"), image: scratch.path("image2") };
    fs::copy(&pair.log, &dirty.log).unwrap();
    fs::copy(&pair.image, &dirty.image).unwrap();
    run_fails(words([&"ls", &at(&pair.image, "/")]), "is on another device and needs recovery");
    for recovered in [&pair, &dirty] {
        if recovered.image == pair.image {
            pair.mount(&dir).end();
        } else if has("e2fsck") {
            let done = recovered.e2fsck("-fy");
            assert!(matches!(done.status.code(), Some(0 | 1)), "{done:?}");
        } else {
            continue;
        }
        recovered.assert_clean();
        let mut ls = recovered.with("ls");
        ls.push(at(&recovered.image, "/"));
        let listed = String::from_utf8(run_ok(ls)).unwrap();
        assert!(listed.contains("closed") && listed.contains("synced"), "{listed}");
    }
}
