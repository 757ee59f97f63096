//! What a run leaves if it is killed: a process of its own ends and removes that.
//!
//! What: a run that ends by itself, in success, failure or by a signal that can be caught, has
//! nothing left. For one that cannot do anything any more [`watch`] is there: it waits until the
//! pipe from the run is closed, and then kills the run's processes, unmounts what is mounted in its
//! folders, takes their loop devices away and removes them.
//!
//! Invariants: processes of a run are known by a word in their environment, which is the run's
//! alone; mounts and loop devices by folders that the run has made. Nothing else is touched.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::command;
use crate::error::{Doing, Error, Result};
use crate::mount_table;
use crate::stage::FOLDER_PREFIX;

/// The variable by which processes of a run are known.
const VARIABLE: &str = "UEXT4_LAB_RUN";
/// Ends a folder's name in the pipe: no name has it.
const END: u8 = 0;
/// What the run says last, if it can: an empty name.
const ALL_IS_WELL: &[u8] = &[END];
/// How long it is tried again: a killed process takes a moment to go, on a loaded machine longer.
const PATIENCE: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(50);

/// The watching process, while there is one.
static WATCHING: Mutex<Option<Watching>> = Mutex::new(None);

struct Watching {
    /// Runs of this process that go on.
    runs: usize,
    child: Child,
    pipe: ChildStdin,
}

fn lock() -> MutexGuard<'static, Option<Watching>> {
    WATCHING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The word of this process.
fn token() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
        format!("{}-{}", std::process::id(), id.trim())
    })
}

/// Makes a process of the run known as such.
pub(crate) fn mark(command: &mut Command) -> &mut Command {
    command.env(VARIABLE, token())
}

/// A folder of the run: it goes if the run is killed.
pub(crate) fn add(folder: &Path) {
    if let Some(watching) = &mut *lock() {
        use std::os::unix::ffi::OsStrExt;
        // A watching process that was killed: the run itself still ends well.
        let _ = watching.pipe.write_all(&[folder.as_os_str().as_bytes(), &[END]].concat());
    }
}

/// Keeps the watching process, which ends with the last of these.
pub(crate) struct Watch;

impl Watch {
    /// Starts it, by the uext4 command `program`, if there is none yet.
    pub(crate) fn start(program: &Path) -> Result<Self> {
        let mut watching = lock();
        if let Some(watching) = &mut *watching {
            watching.runs += 1;
            return Ok(Self);
        }
        let mut child = Command::new(program)
            .args(["lab", "worker", "watch", token()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .doing("starting what cleans up")?;
        let pipe = child.stdin.take();
        *watching = pipe.map(|pipe| Watching { runs: 1, child, pipe });
        Ok(Self)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watching = lock();
        let is_last = watching.as_mut().is_none_or(|watching| {
            watching.runs -= 1;
            watching.runs == 0
        });
        if let Some(Watching { mut child, mut pipe, .. }) = watching.take_if(|_| is_last) {
            // Each run has cleaned up itself: folders that are still there are of others.
            let _ = pipe.write_all(ALL_IS_WELL);
            drop(pipe);
            let _ = child.wait();
        }
    }
}

/// The watching process: until its input ends, and then until nothing is left.
///
/// # Errors
/// Wrong arguments; what could not be taken away.
pub(crate) fn watch(args: &[OsString]) -> Result<()> {
    let [token] = args else { return Err(Error::new("watch: wrong arguments")) };
    // Signals of the terminal are for the run.
    let _ = rustix::process::setsid();
    let Some(folders) = folders_of(io::stdin().lock()).doing("watch: input")? else {
        return Ok(());
    };
    clean_within(PATIENCE, || clean(token, &folders))
}

/// Tries until nothing is left, or that long; the error is what is left then.
fn clean_within(patience: Duration, mut clean: impl FnMut() -> Left) -> Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        let left = clean();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::new(format!("a run that was killed has left {left}")));
        }
        thread::sleep(STEP);
    }
}

/// What there was of a run.
#[derive(Debug, Default)]
struct Left {
    processes: Vec<Pid>,
    mounts: Vec<PathBuf>,
    loops: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Left {
    fn is_empty(&self) -> bool {
        let Self { processes, mounts, loops, folders } = self;
        processes.is_empty() && mounts.is_empty() && loops.is_empty() && folders.is_empty()
    }
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let processes: Vec<_> =
            self.processes.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        let paths = |paths: &[PathBuf]| -> Vec<String> {
            paths.iter().map(|path| path.display().to_string()).collect()
        };
        let all = [
            ("process", processes),
            ("mount", paths(&self.mounts)),
            ("loop device", paths(&self.loops)),
            ("folder", paths(&self.folders)),
        ];
        let all = all.iter().filter(|(_, names)| !names.is_empty());
        let words: Vec<_> =
            all.map(|(what, names)| format!("{what} {}", names.join(" "))).collect();
        f.write_str(&words.join(", "))
    }
}

/// The folders that a run has named, when it has ended; `None`: it has ended well. What no run
/// makes is left out, and so is a name that was not written to its end.
fn folders_of(mut pipe: impl BufRead) -> io::Result<Option<Vec<PathBuf>>> {
    let (mut folders, mut name) = (Vec::new(), Vec::new());
    while pipe.read_until(END, &mut name)? != 0 && name.pop() == Some(END) {
        use std::os::unix::ffi::OsStringExt;
        if name.is_empty() {
            return Ok(None);
        }
        let folder = PathBuf::from(OsString::from_vec(std::mem::take(&mut name)));
        let last = folder.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        if folder.is_absolute() && last.starts_with(FOLDER_PREFIX) {
            folders.push(folder);
        }
    }
    Ok(Some(folders))
}

/// Takes away what is there, and says what that was.
fn clean(token: &OsStr, folders: &[PathBuf]) -> Left {
    let processes = processes(token);
    for pid in &processes {
        let _ = kill_process(*pid, Signal::KILL);
    }
    // Looked for first: one over a file of a mount is not recognised when that is gone.
    let loops = loops_of(folders);
    let mounts = mounts_in(folders);
    for dir in mounts.iter().rev() {
        if rustix::process::geteuid().is_root() {
            let _ = unmount(dir, UnmountFlags::DETACH);
        } else {
            let _ = command::status("fusermount3", &["-uz".as_ref(), dir.as_os_str()]);
        }
    }
    for device in &loops {
        let _ = command::status("losetup", &["--detach".as_ref(), device.as_os_str()]);
    }
    let there: Vec<_> = folders.iter().filter(|folder| folder.exists()).cloned().collect();
    if processes.is_empty() && mounts.is_empty() {
        for folder in folders {
            let _ = fs::remove_dir_all(folder);
        }
    }
    Left { processes, mounts, loops, folders: there }
}

/// Processes with that word in their environment.
fn processes(token: &OsStr) -> Vec<Pid> {
    let wanted = format!("{VARIABLE}={}", token.to_string_lossy());
    let is_ours = |pid: &str| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(io::Result::ok);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let numbers = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let ours = numbers.filter(|pid| is_ours(pid));
    ours.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Mounts in those folders, in the order in which they were made.
fn mounts_in(folders: &[PathBuf]) -> Vec<PathBuf> {
    let table = fs::read_to_string(mount_table::FILE).unwrap_or_default();
    let dirs = mount_table::dirs(&table);
    dirs.filter(|dir| folders.iter().any(|folder| dir.starts_with(folder))).collect()
}

/// Loop devices over files in those folders.
fn loops_of(folders: &[PathBuf]) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().filter_map(io::Result::ok);
    let is_ours =
        |backing: &str| folders.iter().any(|folder| Path::new(backing).starts_with(folder));
    let devices = entries.filter_map(|entry| {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        is_ours(&backing).then(|| Path::new("/dev").join(entry.file_name()))
    });
    devices.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a name that is taken apart, or cut off, names a folder of somebody else.
    #[test]
    fn only_folders_of_runs_are_taken() {
        let folders = |pipe: &[u8]| folders_of(pipe).unwrap();
        let own = PathBuf::from("/a/b\n/uext4-lab-1-x");
        assert_eq!(folders(b"/a/b\n/uext4-lab-1-x\0"), Some(vec![own]));
        assert_eq!(folders(b"/home\0uext4-lab-1\0/a/uext4-lab-1"), Some(vec![]));
        assert_eq!(folders(b"/a/uext4-lab-1-x\0\0"), None);
    }

    /// Fault model: what does not go is left without a word.
    #[test]
    fn what_is_left_in_the_end_is_told() {
        let left = || Left {
            processes: vec![Pid::from_raw(7).unwrap()],
            folders: vec!["/a/uext4-lab-1-x".into()],
            ..Left::default()
        };
        let error = clean_within(Duration::ZERO, left).unwrap_err().to_string();
        assert!(error.ends_with("has left process 7, folder /a/uext4-lab-1-x"), "{error}");
        // It goes on until nothing is there.
        let mut tries = [Left::default(), left(), left()].into_iter().collect::<Vec<_>>();
        clean_within(PATIENCE, || tries.pop().unwrap()).unwrap();
        assert!(tries.is_empty());
    }
}
