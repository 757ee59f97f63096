//! Loads by stress-ng's file system class.

use crate::daemon_mount::{output, within};
use crate::programs::Bench;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest time that programs may take to end, after they were told to or their mount was killed.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// The class, less what works on other file systems (bind-mount, binderfs, eventfd, procfs, ...)
/// and `io` and `iomix`, whose sync(2) waits for every mount of the machine.
const STRESSORS: &[&str] = &[
    "access",
    "chattr",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "fallocate",
    "fcntl",
    "fiemap",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inode-flags",
    "inotify",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "open",
    "rename",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "verity",
    "xattr",
];

/// How many run at a time.
const TOGETHER: usize = 6;

pub(super) fn choose(rng: &mut StdRng) -> Vec<&'static str> {
    STRESSORS.choose_multiple(rng, TOGETHER).copied().collect()
}

/// Runs stressors on a mount until their time is over and all have ended, and removes what they
/// leave.
pub(super) fn period(
    bench: &Bench,
    stressors: &[&'static str],
    time: Duration,
) -> Result<(), String> {
    let folder = bench.point().join("stress");
    let mut child = start(bench, &folder, stressors, time)?;
    let status = wait(bench, &mut child, time + PATIENCE)?;
    // 3 and 4: no resources, not implemented here.
    if !matches!(status.code(), Some(0 | 3 | 4)) {
        let said = fs::read_to_string(said(bench)).unwrap_or_default();
        return Err(format!("stress-ng with {}: {status}\n{said}", stressors.join(" ")));
    }
    remove(&folder)
}

/// As [`period`], but the daemon is killed in the midst of it.
pub(super) fn killed(
    bench: &Bench,
    stressors: &[&'static str],
    moment: Duration,
) -> Result<(), String> {
    let folder = bench.point().join("stress");
    let mut child = start(bench, &folder, stressors, Duration::from_secs(3600))?;
    std::thread::sleep(moment);
    bench.kill()?;
    // Stressors that see their files gone end, or go on without: they are told to end.
    std::thread::sleep(moment / 2);
    let id = rustix::process::Pid::from_child(&child);
    let _ = rustix::process::kill_process(id, rustix::process::Signal::INT);
    wait(bench, &mut child, PATIENCE).map(drop)
}

fn said(bench: &Bench) -> std::path::PathBuf {
    bench.outside().join("stress-ng")
}

fn start(
    bench: &Bench,
    folder: &Path,
    stressors: &[&'static str],
    time: Duration,
) -> Result<Child, String> {
    // What a killed mount left.
    remove(folder)?;
    fs::create_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let log = fs::File::create(said(bench)).map_err(|error| error.to_string())?;
    let log_too = log.try_clone().map_err(|error| error.to_string())?;
    let mut command = Command::new("stress-ng");
    // One of them leaves a file where it stands.
    command.current_dir(bench.outside());
    command.arg("--temp-path").arg(folder).args(["--timeout", &format!("{}s", time.as_secs())]);
    // Some fill the image by default, and then fail on any file system.
    for size in ["--hdd-bytes", "--fallocate-bytes", "--sync-file-bytes"] {
        command.args([size, "16m"]);
    }
    command.args(["--copy-file-bytes", "128m", "--oom-avoid"]);
    for stressor in stressors {
        command.args([&format!("--{stressor}"), "1"]);
    }
    command.stdin(Stdio::null()).stdout(log_too).stderr(log);
    command.spawn().map_err(|error| format!("stress-ng: {error}"))
}

/// Waits for a program. If it hangs its mount is killed, which lets it go.
pub(super) fn wait(bench: &Bench, child: &mut Child, time: Duration) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + time;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => {
                let _ = bench.kill();
                let _ = child.kill();
                let said = fs::read_to_string(said(bench)).unwrap_or_default();
                return Err(format!("a program hangs for {} s: {said}", time.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Removes a folder, in which files may be immutable.
fn remove(folder: &Path) -> Result<(), String> {
    let script = "chattr -R -f -i -a \"$0\"; rm -rf \"$0\"";
    output(within(PATIENCE, "sh").args(["-c", script]).arg(folder)).map(drop)
}
