//! CPU profiles: stacks of perf(1), folded.
//!
//! What: `perf record` takes the stack that each processor runs, by the clock: a virtual machine
//! has no counters of the hardware. What belongs to the run is kept: its processes, and threads of
//! the kernel that work for the file system. A line of the result is a stack, its functions from
//! the thread down separated by `;`, and how often it was seen.
//! Invariants: perf has ended when [`Recorder::end`] returns, and when it is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::command;
use crate::error::{Doing, Error, Result};
use crate::explain::sampler::processor_seconds;
use crate::explain::tasks::{self, OBSERVER};
use crate::leftovers;

/// Stacks of a processor in a second: not a divisor of the timers' frequency.
const HERTZ: &str = "199";
/// How long perf may take until it records, and until it has ended.
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(5);
/// Bytes of a stack that perf keeps, to find the callers in code without frame pointers.
const STACK_BYTES: u32 = 8192;
/// Functions by which it is seen that a thread of the kernel works for a file system or its device.
const WORK: &[&str] =
    &["ext4_", "jbd2_", "loop_", "lo_rw_aio", "wb_workfn", "iomap_dio", "fuse_", "blk_mq_run_work"];

/// A perf(1) that records.
pub(super) struct Recorder {
    child: Child,
    data: PathBuf,
    /// Whether all processors are looked at.
    sees_all: bool,
}

/// Two pipes by which perf is told to begin, and tells that it has: it reads all of /proc first.
struct Control {
    words: PathBuf,
    answers: PathBuf,
    /// Open, as long as perf may open its ends.
    _words: fs::File,
    answer: fs::File,
}

impl Control {
    fn new(folder: &Path) -> Result<Self> {
        let pipe = |name: &str| {
            let path = folder.join(name);
            let mode = Mode::RUSR | Mode::WUSR;
            mknodat(CWD, &path, FileType::Fifo, mode, 0).doing("making a pipe for perf")?;
            // Both ends are open, so neither waits for the other.
            let mut options = OpenOptions::new();
            options.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
            let open = options.open(&path).doing("opening a pipe for perf")?;
            Ok::<_, Error>((path, open))
        };
        let ((words, mut word), (answers, answer)) = (pipe("perf.words")?, pipe("perf.answers")?);
        word.write_all(b"enable\n").doing("telling perf to begin")?;
        Ok(Self { words, answers, _words: word, answer })
    }

    fn option(&self) -> OsString {
        let mut option = OsString::from("--control=fifo:");
        option.push(&self.words);
        option.push(",");
        option.push(&self.answers);
        option
    }

    fn has_enabled(&mut self) -> Result<bool> {
        let mut said = [0; 16];
        match self.answer.read(&mut said) {
            Ok(len) => Ok(len > 0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error).doing("waiting for perf"),
        }
    }
}

/// Whose stacks are kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Keep {
    pub(super) processes: BTreeSet<i32>,
    pub(super) device: Option<String>,
}

impl Recorder {
    /// Begins to record into a file of this folder.
    ///
    /// # Errors
    /// perf is not installed, or may not do that.
    pub(super) fn begin(folder: &Path) -> Result<Self> {
        let program = command::find("perf").ok_or_else(|| Error::new("perf is not installed"))?;
        let data = folder.join("perf.data");
        let sees_all = rustix::process::geteuid().is_root();
        let mut perf = Command::new(program);
        leftovers::mark(&mut perf);
        perf.args(["record", "-q", "-F", HERTZ, "-o"]).arg(&data);
        perf.arg(format!("--call-graph=dwarf,{STACK_BYTES}"));
        let mut control = Control::new(folder)?;
        perf.args(["-D", "-1"]).arg(control.option());
        if sees_all {
            perf.args(["-a", "-e", "cpu-clock"]);
        } else {
            let own = std::process::id().to_string();
            perf.args(["-e", "cpu-clock:u", "-p", &own]);
        }
        let log = folder.join("perf.log");
        let said = fs::File::create(&log).doing("making a log")?;
        let child = perf.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn();
        let mut recorder = Self { child: child.doing("starting perf")?, data, sees_all };
        let deadline = Instant::now() + PATIENCE;
        while !control.has_enabled()? {
            if let Some(status) = recorder.child.try_wait().doing("waiting for perf")? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().find(|line| !line.trim().is_empty());
                let last = last.map_or_else(|| status.to_string(), str::to_owned);
                return Err(Error::new(format!("perf: {}", last.trim())));
            }
            if Instant::now() > deadline {
                return Err(Error::new("perf does not begin"));
            }
            thread::sleep(STEP);
        }
        Ok(recorder)
    }

    /// Its process.
    pub(super) fn process(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// How it looks.
    pub(super) fn by(&self) -> String {
        let (event, scope) = if self.sees_all {
            ("cpu-clock", "system-wide")
        } else {
            ("cpu-clock:u", "this process")
        };
        format!("perf, {event}, {HERTZ} Hz, {scope}")
    }

    /// Ends it. What it has seen can be folded then. Returns the processor time that it took.
    pub(super) fn end(&mut self) -> Result<f64> {
        let cpu_s = processor_seconds(&format!("/proc/{}/schedstat", self.process()));
        if let Some(process) = Pid::from_raw(self.process()) {
            kill_process(process, Signal::INT).doing("ending perf")?;
        }
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().doing("waiting for perf")?.is_none() {
            if Instant::now() > deadline {
                return Err(Error::new("perf does not end"));
            }
            thread::sleep(STEP);
        }
        Ok(cpu_s)
    }

    /// The stacks that are to be kept, folded.
    pub(super) fn folded(&self, keep: &Keep) -> Result<String> {
        let program = command::find("perf").ok_or_else(|| Error::new("perf is not installed"))?;
        let mut perf = Command::new(program);
        leftovers::mark(&mut perf);
        perf.args(["script", "-F", "comm,pid,tid,ip,sym", "--no-inline", "--full-source-path"]);
        // The callers of others are not looked for: that takes long.
        perf.arg(format!("--pid={}", once_each(&keep.processes, tasks::workers())));
        let said = perf.arg("-i").arg(&self.data).output().doing("perf script")?;
        let complaint = String::from_utf8_lossy(&said.stderr);
        let complaint = complaint.lines().find(|line| !line.trim().is_empty());
        if !said.status.success() {
            let complaint = complaint.unwrap_or_default();
            return Err(Error::new(format!("perf script: {}: {complaint}", said.status)));
        }
        // What it does not understand it may say with a status of 0.
        if let (true, Some(complaint)) = (said.stdout.is_empty(), complaint) {
            return Err(Error::new(format!("perf script: {complaint}")));
        }
        Ok(fold(&String::from_utf8_lossy(&said.stdout), keep))
    }
}

/// A list for perf script, which shows nothing at all where a number stands twice.
fn once_each(processes: &BTreeSet<i32>, workers: Vec<i32>) -> String {
    let all: BTreeSet<i32> = processes.iter().copied().chain(workers).collect();
    all.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Stacks and how often each was seen.
#[derive(Debug, Default)]
pub(super) struct Counted(BTreeMap<String, u64>);

impl Counted {
    /// Adds a stack that was seen so often.
    pub(super) fn add(&mut self, stack: String, count: u64) {
        *self.0.entry(stack).or_default() += count;
    }

    /// A line of each.
    pub(super) fn folded(&self) -> String {
        self.0.iter().map(|(stack, count)| format!("{stack} {count}\n")).collect()
    }
}

/// Folds what `perf script` says.
fn fold(said: &str, keep: &Keep) -> String {
    let mut counted = Counted::default();
    said.split("\n\n").filter_map(|sample| stack(sample, keep)).for_each(|stack| {
        counted.add(stack, 1);
    });
    counted.folded()
}

/// The stack of a sample, if it is to be kept.
fn stack(sample: &str, keep: &Keep) -> Option<String> {
    let mut lines = sample.trim_matches('\n').lines();
    let (name, ids) = lines.next()?.trim().rsplit_once(' ')?;
    let (process, _) = ids.split_once('/')?;
    let name = name.trim();
    let functions: Vec<String> = lines.filter_map(function).collect();
    let is_own = process.parse().is_ok_and(|id| keep.processes.contains(&id));
    if name == OBSERVER || functions.is_empty() || !(is_own || works_for_it(name, &functions, keep))
    {
        return None;
    }
    let functions = functions.iter().rev().map(String::as_str);
    let words: Vec<&str> = std::iter::once(group(name)).chain(functions).collect();
    Some(words.join(";"))
}

/// Whether a thread of the kernel works for the file system.
fn works_for_it(name: &str, functions: &[String], keep: &Keep) -> bool {
    let Some(device) = &keep.device else { return false };
    if name.starts_with("jbd2/") {
        return name.starts_with(&format!("jbd2/{device}"));
    }
    let works = |function: &String| WORK.iter().any(|work| function.starts_with(work));
    name.starts_with("kworker/") && functions.iter().any(works)
}

/// The function of a line: an address, a name. Unknown ones of one program are one function.
fn function(line: &str) -> Option<String> {
    named(line.trim().split_once(' ')?.1)
}

/// The name of a function as a word of a folded stack.
pub(super) fn named(name: &str) -> Option<String> {
    let name = name.trim();
    // What the compiler adds to tell functions of one name apart.
    let name = match name.rsplit_once("::h") {
        Some((path, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            path
        }
        _ => name,
    };
    (!name.is_empty()).then(|| name.replace(';', ":").replace(' ', "_"))
}

/// The name of a thread without what tells it from its like.
pub(super) fn group(name: &str) -> &str {
    if let Some((kind, _)) = name.split_once('/') {
        return kind;
    }
    match name.rsplit_once('-') {
        Some((kind, number)) if number.bytes().all(|b| b.is_ascii_digit()) => kind,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: threads of the kernel that work for the run, and are in both lists, take the
    /// profile of every run on the kernel with them.
    #[test]
    fn a_process_of_two_lists_is_named_once() {
        assert_eq!(once_each(&BTreeSet::from([15040, 7]), vec![9, 15040]), "7,9,15040");
    }

    const SAID: &str = "\
load-17  100/117 
\tffffffff82203249 _raw_spin_unlock_irqrestore
\t           d4ad7 uext4::journal::join::h0123456789abcdef
\t          149d33 [unknown]

load-3   100/103 
\tffffffff82203249 _raw_spin_unlock_irqrestore
\t           d4ad7 uext4::journal::join::h0123456789abcdef
\t          149d33 [unknown]

explain  100/104 
\tffffffff82203249 read

kworker/u8:1-lo     50/50    
\tffffffff82203249 memcpy
\tffffffff82203249 loop_process_work

kworker/u8:2     51/51    
\tffffffff82203249 memcpy

jbd2/loop1-8    77/77    
\tffffffff82203249 crc32c

jbd2/vda-8    78/78    
\tffffffff82203249 crc32c

other program  999/999 
\t      1 main
";

    #[test]
    fn stacks_of_the_run_are_folded_and_no_others() {
        let keep = Keep { processes: BTreeSet::from([100]), device: Some("loop1".into()) };
        let expected = "\
jbd2;crc32c 1
kworker;loop_process_work;memcpy 1
load;[unknown];uext4::journal::join;_raw_spin_unlock_irqrestore 2
";
        assert_eq!(fold(SAID, &keep), expected);
        assert_eq!(fold("", &keep), "");
        assert_eq!(fold("load-1 100/1\n", &keep), "");
    }
}
