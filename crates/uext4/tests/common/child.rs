//! Work in a process of its own, so that a hang, an abort or a large allocation hurts nobody.
//!
//! The parent starts its own program again with one test selected and the task in the
//! environment. The child has an address space limit, a watchdog, and a hook that keeps every
//! panic of every thread.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TASK: &str = "UEXT4_HOSTILE_TASK";
/// Address space of a child, in KiB: an allocation far beyond it fails at once. Threads' stacks
/// and arenas count, so this is no bound of resident memory.
const ADDRESS_SPACE_KIB: u64 = 6 << 20;

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The task that this process was started for, if it is the child of test `name`.
pub(crate) fn task(name: &str) -> Option<String> {
    let task = std::env::var(TASK).ok()?;
    let (test, argument) = task.split_once(' ')?;
    (test == name).then(|| argument.to_owned())
}

/// What came of a child.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) success: bool,
    pub(crate) output: String,
}

/// Runs test `name` of this program with `argument` as its task.
pub(crate) fn run(name: &str, argument: &str, bound: Duration) -> Outcome {
    let program = std::env::current_exe().expect("own path");
    let mut child = Command::new("/bin/sh")
        .args(["-c", &format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"")])
        .arg(program)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(TASK, format!("{name} {argument}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("child");
    let mut pipes = (child.stdout.take().expect("pipe"), child.stderr.take().expect("pipe"));
    let readers = std::thread::spawn(move || {
        let stderr = std::thread::spawn(move || read_all(&mut pipes.1));
        let mut output = read_all(&mut pipes.0);
        output.push_str(&stderr.join().expect("reader"));
        output
    });
    let started = Instant::now();
    let success = loop {
        if let Some(status) = child.try_wait().expect("child") {
            break status.success();
        }
        if started.elapsed() > bound {
            child.kill().expect("child");
            child.wait().expect("child");
            break false;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Outcome { success, output: readers.join().expect("reader") }
}

fn read_all(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Keeps panics of all threads for [`take_panics`].
pub(crate) fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("?");
        let what = info.payload_as_str().unwrap_or("?");
        let place = info.location().map_or(String::new(), ToString::to_string);
        PANICS.lock().expect("list").push(format!("thread {name} at {place}: {what}"));
    }));
}

pub(crate) fn take_panics() -> Vec<String> {
    std::mem::take(&mut PANICS.lock().expect("list"))
}

/// Ends the process when a case takes longer than its bound.
pub(crate) struct Watchdog {
    case: Mutex<Option<(Instant, String)>>,
    bound: Duration,
    slowest_ms: AtomicU64,
}

impl Watchdog {
    pub(crate) fn start(bound: Duration) -> &'static Self {
        let slowest_ms = AtomicU64::new(0);
        let dog: &'static Self =
            Box::leak(Box::new(Self { case: Mutex::new(None), bound, slowest_ms }));
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(100));
                let case = dog.case.lock().expect("case");
                if let Some((started, name)) = &*case
                    && started.elapsed() > dog.bound
                {
                    println!("HANG: {name} takes longer than {:?}", dog.bound);
                    std::process::exit(3);
                }
            }
        });
        dog
    }

    pub(crate) fn watch<T>(&self, name: String, case: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        *self.case.lock().expect("case") = Some((started, name));
        let result = case();
        *self.case.lock().expect("case") = None;
        let ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.slowest_ms.fetch_max(ms, Ordering::Relaxed);
        result
    }

    pub(crate) fn slowest_ms(&self) -> u64 {
        self.slowest_ms.load(Ordering::Relaxed)
    }
}

/// A line of /proc/self/status, in KiB.
pub(crate) fn status_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with(field)).expect("field");
    line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("number")
}

/// Starts a new peak of resident memory; returns the resident memory now, in KiB.
pub(crate) fn reset_peak() -> u64 {
    // Where the kernel refuses, the old peak makes the bound stricter, never laxer.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    status_kib("VmRSS:")
}
