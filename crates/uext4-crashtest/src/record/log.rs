//! What has been recorded so far.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use uext4_device::about_to_sleep;
use uext4_fuse_server::Caller;

use super::process;
use crate::trace::{Call, FileId, Step, Trace};

/// Node id of the root directory in the FUSE protocol.
const ROOT_NODE: u64 = 1;

/// What a step costs in memory beside its data, here and in the model.
const STEP_BYTES: usize = 256;

/// A recording under way; the mount's handler and the runner share it.
pub struct Recording {
    log: Mutex<Log>,
    begun: Instant,
    /// Most bytes that are kept: of data, and [`STEP_BYTES`] for each step.
    limit: usize,
}

/// A recording that has ended.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The calls.
    pub trace: Trace,
    /// The programs behind the process ids of the steps.
    pub processes: BTreeMap<u32, String>,
    /// What the program did that the trace does not have, a line each.
    pub remarks: BTreeSet<&'static str>,
    /// It wrote to mappings: states in which that reached the disk before the kernel wrote it back
    /// here are missing.
    pub has_mapped_writes: bool,
}

/// What the lock guards. The holder of the lock may call the adapter and note what was done.
pub(super) struct Log {
    /// `None` is a sync that has not returned, or failed.
    steps: Vec<Option<Step>>,
    files: HashMap<u64, FileId>,
    before: Vec<(FileId, u32)>,
    next: u32,
    output: Output,
    /// Threads in a write that syncs, as the last that was heard of them, and its node.
    writers: HashMap<u32, u64>,
    echo: Option<Sender<Arc<[u8]>>>,
    bytes: usize,
    processes: BTreeMap<u32, String>,
    remarks: BTreeSet<&'static str>,
    pub(super) has_mapped_writes: bool,
    has_ended: bool,
}

/// Which file is the program's standard output.
enum Output {
    None,
    /// The next file that is made without a name.
    Expected,
    Node(u64),
}

/// A call that has begun.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    started: Duration,
    pid: u32,
}

/// A sync that has begun; its place among the steps.
pub(super) struct Pending {
    at: usize,
    begun: Begun,
    call: Call,
}

impl Recording {
    /// An empty one, for at most `limit` bytes. What the program prints goes to `echo`.
    #[must_use]
    pub fn new(limit: usize, echo: Option<Sender<Arc<[u8]>>>) -> Arc<Self> {
        let log = Log {
            steps: Vec::new(),
            files: HashMap::from([(ROOT_NODE, FileId::ROOT)]),
            before: Vec::new(),
            next: FileId::ROOT.0 + 1,
            output: Output::None,
            writers: HashMap::new(),
            echo,
            bytes: 0,
            processes: BTreeMap::new(),
            remarks: BTreeSet::new(),
            has_mapped_writes: false,
            has_ended: false,
        };
        Arc::new(Self { log: Mutex::new(log), begun: Instant::now(), limit })
    }

    /// The next file that is made without a name is the program's standard output.
    pub fn expect_output(&self) {
        self.lock().output = Output::Expected;
    }

    /// Notes something that the trace cannot have.
    pub fn remark(&self, what: &'static str) {
        self.lock().remark(what);
    }

    /// Whether the program has done more than is kept: the rest is not recorded.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.lock().bytes > self.limit
    }

    /// Ends it; what comes later is not recorded. A sync that is still under way has not returned
    /// for the program, and is not in the trace.
    #[must_use]
    pub fn end(&self) -> Recorded {
        let mut log = self.lock();
        log.has_ended = true;
        log.echo = None;
        let steps = std::mem::take(&mut log.steps).into_iter().flatten().collect();
        Recorded {
            trace: Trace { steps, before: std::mem::take(&mut log.before) },
            processes: std::mem::take(&mut log.processes),
            remarks: std::mem::take(&mut log.remarks),
            has_mapped_writes: log.has_mapped_writes,
        }
    }

    /// Notes when a call began. Before the lock: a wait for it is time of the call.
    pub(super) fn begin(&self, caller: Caller) -> Begun {
        Begun { started: self.begun.elapsed(), pid: caller.pid }
    }

    /// The lock. The thread may serve a queue, which others take over while it waits.
    pub(super) fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.try_lock().unwrap_or_else(|| {
            about_to_sleep();
            self.log.lock()
        })
    }

    /// Records a call that has been made under the lock.
    pub(super) fn add(&self, log: &mut Log, begun: Begun, call: Call) {
        if log.has_ended || log.bytes > self.limit {
            return;
        }
        log.bytes += STEP_BYTES + call.bytes();
        if let (Call::Output(data), Some(echo)) = (&call, &log.echo) {
            // A receiver that is gone: the program prints for the trace alone.
            let _ = echo.send(Arc::clone(data));
        }
        log.writers.remove(&begun.pid);
        log.know(begun.pid);
        log.steps.push(Some(self.step(begun, call)));
    }

    /// Gives a sync that begins its place.
    pub(super) fn place(&self, log: &mut Log, begun: Begun, call: Call) -> Pending {
        log.bytes += STEP_BYTES;
        log.know(begun.pid);
        log.steps.push(None);
        Pending { at: log.steps.len() - 1, begun, call }
    }

    /// A sync has returned.
    pub(super) fn returned(&self, pending: Pending) {
        let mut log = self.lock();
        let step = self.step(pending.begun, pending.call);
        if !log.has_ended {
            log.steps[pending.at] = Some(step);
        }
    }

    fn step(&self, Begun { started, pid }: Begun, call: Call) -> Step {
        Step { started, returned: self.begun.elapsed(), pid, call }
    }
}

impl Log {
    /// The file of a node that the kernel names.
    pub(super) fn file(&mut self, node: u64) -> FileId {
        if let Some(file) = self.files.get(&node) {
            return *file;
        }
        let file = self.new_file(node);
        // Numbers of inodes have 32 bits.
        self.before.push((file, node as u32));
        file
    }

    /// Whether the trace has a file of this node.
    pub(super) fn is_known(&self, node: u64) -> bool {
        self.files.contains_key(&node)
    }

    /// The file of a node that was just made. Whatever had its number before is gone.
    pub(super) fn new_file(&mut self, node: u64) -> FileId {
        let file = FileId(self.next);
        self.next += 1;
        self.files.insert(node, file);
        file
    }

    /// Whether `node` is the program's standard output.
    pub(super) fn is_output(&self, node: u64) -> bool {
        matches!(self.output, Output::Node(output) if output == node)
    }

    /// Whether `node`, a new file without a name, is the standard output.
    pub(super) fn takes_as_output(&mut self, node: u64) -> bool {
        let is_it = matches!(self.output, Output::Expected);
        if is_it {
            self.output = Output::Node(node);
        }
        is_it
    }

    /// A write of a thread has synced its range.
    pub(super) fn synced_write(&mut self, pid: u32, node: u64) {
        self.writers.insert(pid, node);
    }

    /// Whether the FSYNC of a thread is the kernel's own for the write before it, whose range has
    /// been synced already. The kernel sends it before that write(2) returns; it has no range.
    pub(super) fn ends_write(&mut self, pid: u32, node: u64) -> bool {
        self.writers.remove(&pid) == Some(node)
    }

    /// Notes something that the trace does not have.
    pub(super) fn remark(&mut self, what: &'static str) {
        if !self.has_ended {
            self.remarks.insert(what);
        }
    }

    /// Learns the name of the program behind a process id. By the next call it may be another: a
    /// shell's child becomes the program that the shell was told to run.
    fn know(&mut self, pid: u32) {
        if pid == 0 || self.has_ended {
            return;
        }
        if let Some(name) = process::name(pid) {
            self.processes.insert(pid, name);
        }
    }
}
