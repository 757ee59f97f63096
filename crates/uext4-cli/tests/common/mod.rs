//! What the tests of the built command share. A test whose tools are missing says so and passes.

#![allow(dead_code)] // every test file uses a part

pub(crate) mod dirty;
pub(crate) mod document;
pub(crate) mod kernel;
pub(crate) mod nbd;
pub(crate) mod transport;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub(crate) const UEXT4: &str = env!("CARGO_BIN_EXE_uext4");

/// Skips a test with a reason.
#[macro_export]
macro_rules! skip {
    ($($why:tt)*) => {{
        eprintln!("skipped: {}", format!($($why)*));
        return;
    }};
}

/// A fresh image of so many MiB and a place to mount it; skips the test where that cannot be had.
#[macro_export]
macro_rules! ready {
    ($scratch:expr, $megabytes:expr) => {
        match $crate::common::ready($scratch, $megabytes) {
            Ok(ready) => ready,
            Err(why) => skip!("{why}"),
        }
    };
}

/// Whether a program of the system can be run.
pub(crate) fn has(program: &str) -> bool {
    let found = Command::new("sh")
        .args(["-c", "PATH=$PATH:/sbin:/usr/sbin; command -v \"$1\" >/dev/null", "sh", program])
        .status();
    found.is_ok_and(|status| status.success())
}

/// A program of the system, also of /sbin.
pub(crate) fn system(program: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("env");
    command.env("PATH", format!("{path}:/sbin:/usr/sbin")).env("LC_ALL", "C").arg(program);
    command
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder for one test, removed after it.
pub(crate) struct Scratch {
    pub(crate) dir: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("temporary folder") }
    }

    /// The same in memory, where there is any: for large files that are written again and again.
    pub(crate) fn in_memory() -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self { dir: dir.expect("temporary folder") }
    }

    pub(crate) fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.path().join(name.as_ref())
    }

    /// An image by mke2fs with extra arguments; `None` without mke2fs.
    pub(crate) fn image(&self, name: &str, megabytes: u64, extra: &[&str]) -> Option<PathBuf> {
        if !has("mke2fs") {
            return None;
        }
        let path = self.path(name);
        File::create(&path).unwrap().set_len(megabytes << 20).unwrap();
        let made = system("mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .args(extra)
            .arg(&path)
            .output()
            .unwrap();
        assert!(made.status.success(), "mke2fs: {}", String::from_utf8_lossy(&made.stderr));
        Some(path)
    }
}

/// `IMAGE:/path`.
pub(crate) fn at(image: &Path, path: &str) -> std::ffi::OsString {
    let mut name = image.as_os_str().to_owned();
    name.push(":");
    name.push(path);
    name
}

/// Names the command for the child of [`as_nobody`].
const COPIED: &str = "UEXT4_COPIED";

/// Runs one test of this program again, as a user without rights.
pub(crate) fn as_nobody(test: &str) {
    let scratch = Scratch::new();
    let open = |path: &Path| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    };
    open(scratch.dir.path());
    // Where cargo builds need not be open to others.
    let (tests, command) = (scratch.path("tests"), scratch.path("uext4"));
    copy_program(&std::env::current_exe().unwrap(), &tests);
    copy_program(Path::new(UEXT4), &command);
    let output = Command::new(&tests)
        .args(["--exact", test])
        .env("TMPDIR", scratch.dir.path())
        .env(COPIED, &command)
        .current_dir(scratch.dir.path())
        .uid(65_534)
        .gid(65_534)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

/// Copies a program by another process: a test of this one that starts a program meanwhile would
/// inherit the copy, open for writing, for a moment, and the copy could not be run (`ETXTBSY`).
pub(crate) fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().expect("cp").success());
}

/// Runs the command; fails the test if it hangs for a minute.
pub(crate) fn run<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Output {
    let command = std::env::var_os(COPIED).unwrap_or_else(|| UEXT4.into());
    let child = Command::new("timeout")
        .args(["-k", "5", "60"])
        .arg(command)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) of coreutils");
    assert_ne!(child.status.code(), Some(124), "the command hangs");
    assert_ne!(child.status.code(), Some(137), "the command hangs");
    child
}

/// What `umount` says of a mount whose daemon is gone, which tests kill.
const DEAD: &str = "its daemon had been killed";

/// Runs the command, which must succeed and say nothing on standard error, but that a mount which
/// it ended was dead.
pub(crate) fn run_ok<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>) -> Vec<u8> {
    let args: Vec<I> = args.into_iter().collect();
    let shown: Vec<_> = args.iter().map(|a| a.as_ref().to_owned()).collect();
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{shown:?}: {:?}: {stderr}", output.status);
    assert!(stderr.is_empty() || stderr.contains(DEAD), "{shown:?}: {stderr}");
    output.stdout
}

/// Runs the command, which must fail with status 1 and one line that contains `want`.
pub(crate) fn run_fails<I: AsRef<OsStr>>(args: impl IntoIterator<Item = I>, want: &str) {
    let args: Vec<I> = args.into_iter().collect();
    let shown: Vec<_> = args.iter().map(|a| a.as_ref().to_owned()).collect();
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{shown:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{shown:?}: not one line: {stderr}");
    assert!(stderr.starts_with("uext4: "), "{shown:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{shown:?}: {stderr}");
    assert!(
        stderr.to_lowercase().contains(&want.to_lowercase()),
        "{shown:?}: no '{want}' in: {stderr}"
    );
}

/// e2fsck must find nothing to repair.
pub(crate) fn assert_clean(image: &Path) {
    if !has("e2fsck") {
        return;
    }
    let check = system("e2fsck").args(["-fn"]).arg(image).output().unwrap();
    assert!(
        check.status.success(),
        "e2fsck -fn {}: {}{}",
        image.display(),
        String::from_utf8_lossy(&check.stdout),
        String::from_utf8_lossy(&check.stderr)
    );
}

/// Why mounting cannot be tested here, if so.
pub(crate) fn no_mount() -> Option<&'static str> {
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return Some("/dev/fuse is missing or not ours to open");
    }
    if !is_root() && !has("fusermount3") {
        return Some("fusermount3 is missing");
    }
    None
}

/// A fresh image and a place to mount it, or the reason why not.
pub(crate) fn ready(scratch: &Scratch, megabytes: u64) -> Result<(PathBuf, PathBuf), String> {
    if let Some(why) = no_mount() {
        return Err(why.to_owned());
    }
    let image = scratch.image("image", megabytes, &[]).ok_or("no mke2fs")?;
    Ok((image, scratch.path("mnt")))
}

/// Runs a script of the shell in a directory; it must succeed.
pub(crate) fn shell(script: &str, dir: &Path) {
    let output = Command::new("sh").args(["-ec", script]).current_dir(dir).output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A mount that is ended when the test is done with it.
pub(crate) struct Mounted {
    pub(crate) dir: PathBuf,
    ended: bool,
}

impl Mounted {
    pub(crate) fn new(image: &Path, dir: &Path, options: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let mut args = vec![OsStr::new("mount")];
        if !options.is_empty() {
            args.extend([OsStr::new("-o"), OsStr::new(options)]);
        }
        args.extend([image.as_os_str(), dir.as_os_str()]);
        run_ok(args);
        Self { dir: dir.to_owned(), ended: false }
    }

    /// What has been mounted on `dir` by other means.
    pub(crate) fn of(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), ended: false }
    }

    /// As [`Mounted::new`] of an image that its host has no room for, which the mount says.
    pub(crate) fn of_shortage(image: &Path, dir: &Path, options: &str) -> Self {
        fs::create_dir_all(dir).unwrap();
        let args = ["mount".as_ref(), "-o".as_ref(), options.as_ref(), image.as_os_str()];
        let output = run(args.into_iter().chain([dir.as_os_str()]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("sparse"), "{said}");
        Self { dir: dir.to_owned(), ended: false }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Ends the mount by `uext4 umount`. A program that another test of this process is about to
    /// start has all files open, for a moment, that were open here: busy for so long is no fault.
    pub(crate) fn end(mut self) {
        self.ended = true;
        let umount = [OsStr::new("umount"), self.dir.as_os_str()];
        wait_until("the mount is free", || {
            let output = run(umount);
            let said = String::from_utf8_lossy(&output.stderr);
            let is_busy = said.contains("resource busy");
            let is_quiet = said.is_empty() || said.contains(DEAD);
            assert!(is_busy || output.status.success() && is_quiet, "{umount:?}: {said}");
            !is_busy
        });
    }

    /// The mount has been ended by other means.
    pub(crate) fn forget(mut self) {
        self.ended = true;
    }

    /// Process that serves the mount.
    pub(crate) fn daemon(&self) -> i32 {
        let pid = uext4_fuse::ask(&self.dir, uext4_fuse::PID_XATTR).unwrap();
        std::str::from_utf8(&pid).unwrap().parse().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.ended {
            // A failed test must not leave a mount behind.
            let _ = Command::new(UEXT4).args(["umount", "-l"]).arg(&self.dir).output();
        }
    }
}

/// Waits for a condition, at most 20 seconds.
pub(crate) fn wait_until(what: &str, done: impl FnMut() -> bool) {
    wait_within(Duration::from_secs(20), what, done);
}

/// Waits for a condition, at most that long.
pub(crate) fn wait_within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    const POLL: Duration = Duration::from_millis(50);
    for _ in 0..limit.as_millis() / POLL.as_millis() {
        if done() {
            return;
        }
        std::thread::sleep(POLL);
    }
    panic!("timed out: {what}");
}

pub(crate) fn is_mounted(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
}
