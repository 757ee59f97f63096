//! What a run leaves if it is killed: a process of its own ends and removes that.
//!
//! What: a run that ends by itself, in success, failure or by a signal that can be caught, has
//! nothing left. For one that cannot do anything any more, or whose own cleaning has failed,
//! [`watch`] is there: it waits until the pipe from the run is closed, and then kills the run's
//! processes, takes the loop devices of its folders away, unmounts what is mounted in them and
//! removes them.
//!
//! Invariants: processes of a run are known by a word in their environment, which is the run's
//! alone; mounts and loop devices by folders that the run has made. Nothing else is touched: that a
//! number or a device is still the run's is looked at when it is taken away, because the system
//! gives both to others.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

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

static STATE: Mutex<State> = Mutex::new(State { runs: 0, watching: None });

struct State {
    /// Runs of this process that go on: what there is of one is nothing that another has left.
    runs: usize,
    /// The watching process, while there is one.
    watching: Option<Watching>,
}

struct Watching {
    child: Child,
    pipe: ChildStdin,
    folders: Vec<PathBuf>,
}

fn lock() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
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
    if let Some(watching) = &mut lock().watching {
        use std::os::unix::ffi::OsStrExt;
        // A watching process that was killed: the run itself still ends well.
        let _ = watching.pipe.write_all(&[folder.as_os_str().as_bytes(), &[END]].concat());
        watching.folders.push(folder.to_owned());
    }
}

/// A run that goes on. The watching process ends with the last of these.
pub(crate) struct Watch;

impl Watch {
    /// Begins a run. The watching process is started by the uext4 command `program`, if that is
    /// known and there is none yet.
    pub(crate) fn start(program: Option<&Path>) -> Result<Self> {
        let mut state = lock();
        if let (Some(program), None) = (program, &state.watching) {
            state.watching = Watching::start(program)?;
        }
        state.runs += 1;
        Ok(Self)
    }
}

impl Watching {
    fn start(program: &Path) -> Result<Option<Self>> {
        let mut child = Command::new(program)
            .args(["lab", "worker", "watch", token()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Signals of the terminal are for the run.
            .process_group(0)
            .spawn()
            .doing("starting what cleans up")?;
        let pipe = child.stdin.take();
        Ok(pipe.map(|pipe| Self { child, pipe, folders: Vec::new() }))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut state = lock();
        state.runs -= 1;
        let is_last = state.runs == 0;
        if let Some(Watching { mut child, mut pipe, folders }) = state.watching.take_if(|_| is_last)
        {
            // Each run has cleaned up itself. What it could not take away is for the other process.
            if what_is_left(OsStr::new(token()), &folders).is_empty() {
                let _ = pipe.write_all(ALL_IS_WELL);
            }
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
            return Err(Error::new(format!("a run has left {left}")));
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

/// What there is of a run.
fn what_is_left(token: &OsStr, folders: &[PathBuf]) -> Left {
    Left {
        processes: processes(token),
        mounts: mounts_in(folders),
        loops: loops_of(folders),
        folders: folders.iter().filter(|folder| folder.exists()).cloned().collect(),
    }
}

/// Takes away what is there, and says what that was.
fn clean(token: &OsStr, folders: &[PathBuf]) -> Left {
    let left = what_is_left(token, folders);
    for pid in &left.processes {
        kill(*pid, token);
    }
    // Before the mounts: what lies over a file of a mount is not recognised when that is gone. One
    // that is mounted goes with its mount.
    for device in &left.loops {
        if backing_of(device).is_some_and(|backing| lies_in(&backing, folders)) {
            let _ = command::status("losetup", &["--detach".as_ref(), device.as_os_str()]);
        }
    }
    for dir in left.mounts.iter().rev() {
        if rustix::process::geteuid().is_root() {
            let _ = unmount(dir, UnmountFlags::DETACH);
        } else {
            let _ = command::status("fusermount3", &["-uz".as_ref(), dir.as_os_str()]);
        }
    }
    if left.processes.is_empty() && left.mounts.is_empty() {
        for folder in folders {
            let _ = fs::remove_dir_all(folder);
        }
    }
    left
}

/// Kills a process if it has that word: its number may be another's by now.
fn kill(pid: Pid, token: &OsStr) {
    match pidfd_open(pid, PidfdFlags::empty()) {
        // From here on the number stands for this process.
        Ok(process) if has_token(pid, token) => {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
        // Before Linux 5.3.
        Err(Errno::NOSYS) if has_token(pid, token) => {
            let _ = kill_process(pid, Signal::KILL);
        }
        _ => {}
    }
}

/// Whether a process has that word in its environment.
fn has_token(pid: Pid, token: &OsStr) -> bool {
    let wanted = format!("{VARIABLE}={}", token.to_string_lossy());
    let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
    environment.unwrap_or_default().split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
}

/// Processes with that word in their environment.
fn processes(token: &OsStr) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(io::Result::ok);
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pids = names.filter_map(|name| Pid::from_raw(name.parse().ok()?));
    pids.filter(|pid| has_token(*pid, token)).collect()
}

/// Mounts in those folders, in the order in which they were made.
fn mounts_in(folders: &[PathBuf]) -> Vec<PathBuf> {
    mounts_of(fs::read(mount_table::FILE), folders)
}

/// Where the table cannot be read each folder counts as a mount: what lies in one is not removed.
fn mounts_of(table: io::Result<Vec<u8>>, folders: &[PathBuf]) -> Vec<PathBuf> {
    let Ok(table) = table else { return folders.to_vec() };
    let dirs = mount_table::dirs(&table);
    dirs.filter(|dir| folders.iter().any(|folder| dir.starts_with(folder))).collect()
}

/// Loop devices over files in those folders.
fn loops_of(folders: &[PathBuf]) -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().filter_map(io::Result::ok);
    let devices = entries.map(|entry| Path::new("/dev").join(entry.file_name()));
    let is_ours =
        |device: &PathBuf| backing_of(device).is_some_and(|backing| lies_in(&backing, folders));
    devices.filter(is_ours).collect()
}

/// The file that a loop device is over.
fn backing_of(device: &Path) -> Option<PathBuf> {
    let file = Path::new("/sys/block").join(device.file_name()?).join("loop/backing_file");
    Some(PathBuf::from(fs::read_to_string(file).ok()?))
}

fn lies_in(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
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

    /// Fault model: a mount that is not seen, and whose files go with the folder: the table cannot
    /// be read, or another mount has a name that is no text.
    #[test]
    fn what_cannot_be_read_counts_as_a_mount() {
        let folders = [PathBuf::from("/a/uext4-lab-1-x")];
        assert_eq!(mounts_of(Err(io::ErrorKind::OutOfMemory.into()), &folders), folders);
        let table = b"1 1 0:1 / /\xff rw - x y z\n2 1 0:2 / /a/uext4-lab-1-x/mnt rw - x y z\n";
        assert_eq!(mounts_of(Ok(table.to_vec()), &folders), [folders[0].join("mnt")]);
        assert!(mounts_of(Ok(Vec::new()), &folders).is_empty());
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

    /// Fault model: cleaning that has failed is told to be well; a process that is killed by a
    /// number that is another's by now.
    #[test]
    fn what_is_of_a_run_is_seen_and_what_is_not_is_left_alone() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join(format!("{FOLDER_PREFIX}1-x"));
        fs::create_dir(&folder).unwrap();
        let (token, folders) = (OsString::from(format!("{}-test", token())), vec![folder]);
        let sleep = |word: &OsStr| {
            let mut command = Command::new("sleep");
            command.arg("1000").env(VARIABLE, word).spawn().unwrap()
        };
        let (mut ours, mut others) = (sleep(&token), sleep("another".as_ref()));
        let pid = |child: &Child| Pid::from_child(child);
        // The environment of a process that has just begun is its parent's.
        while !has_token(pid(&ours), &token) || !has_token(pid(&others), "another".as_ref()) {
            thread::sleep(Duration::from_millis(1));
        }
        let left = what_is_left(&token, &folders);
        assert_eq!((&left.processes, &left.folders), (&vec![pid(&ours)], &folders));
        kill(pid(&others), &token);
        assert!(others.try_wait().unwrap().is_none(), "another's process was killed");
        clean(&token, &folders);
        assert!(!ours.wait().unwrap().success());
        clean(&token, &folders);
        assert!(what_is_left(&token, &folders).is_empty() && !folders[0].exists());
        others.kill().unwrap();
        others.wait().unwrap();
    }
}
