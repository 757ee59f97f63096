//! Requests by io_uring: a queue for each processor, with threads pinned to it.
//!
//! What: the kernel gives a program's request to the queue of the processor that the program runs
//! on. Each thread of a queue offers one entry ([`FuseRing`]): it serves a request in place, and
//! its next call into the kernel gives the answer and waits for the next request. While it serves,
//! its queue's other entries are free for others. A thread whose request is about to sleep, and
//! that leaves fewer than [`SPARE`] entries free, starts another thread first.
//!
//! Invariants: requests wait in the kernel only while all entries of their queue are taken, and
//! each of their threads runs, or has started another one before it slept.
//!
//! The kernel gives waiting requests out when an answer is given, not when an entry is registered.
//! So a thread that was started has the kernel send it a request of no meaning, a NOTIFY_REPLY;
//! after its answer come those that wait. The kernel wants a regular file for that, which it knows:
//! that of the request that sleeps, or the last one seen. Where there is none (all sleep over
//! names), those that wait are served when one of the sleepers is done, or with the next request
//! that comes.
//!
//! A thread keeps its entry until the session ends: the kernel has no call that takes one back.
//!
//! A thread that panics beside its handler has a request that nobody will answer, and an entry that
//! will never be free: the session fails then, as it does where a ring fails whose connection
//! lives.
//!
//! Locking: the mutex of the threads, for starting and joining them, and below it the company's. A
//! request that leaves enough entries free takes none.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::CpuSet;
use uext4_device::{FuseRing, Unregistered, on_sleep};
use zerocopy::IntoBytes;

use crate::abi::{InHeader, OutHeader};
use crate::affinity::{Answers, Programs};
use crate::company::{Company, Member};
use crate::device_queue::DeviceQueue;
use crate::dispatch::{self, Request, parse};
use crate::handler::{Answer, Handler};
use crate::rings::FirstThread;
use crate::session::Core;

/// So many entries are free when a thread goes to sleep. With one, a burst of requests would more
/// often have to wait for a thread to start.
const SPARE: usize = 2;
/// Where answers are put that are not put down in place: values of attributes at most.
const SCRATCH: usize = 80 << 10;

/// The queue of a processor, and its threads.
pub(crate) struct Queue<H> {
    core: Arc<Core<H>>,
    programs: Arc<Programs>,
    answers: Answers,
    /// Processor, and number of the queue.
    processor: u16,
    payload: usize,
    /// Entries that are free, or being started.
    free: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    threads_max: usize,
    company: Arc<Company>,
    /// A regular file that the kernel knew lately; 0 is none.
    last_file: AtomicU64,
    has_ended: AtomicBool,
    /// The queue beside it, which knows how a session fails; there before requests come.
    device: OnceLock<Weak<DeviceQueue<H>>>,
}

impl<H: Handler> Queue<H> {
    /// A queue without threads, with entries of `payload` bytes.
    pub(crate) fn new(
        core: &Arc<Core<H>>,
        programs: &Arc<Programs>,
        processor: u16,
        payload: usize,
        threads_max: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            core: Arc::clone(core),
            programs: Arc::clone(programs),
            answers: Answers::new(processor),
            processor,
            // The kernel wants room for its smallest read.
            payload: payload.max(8192),
            free: AtomicUsize::new(1),
            threads: Mutex::default(),
            threads_max,
            company: Arc::default(),
            last_file: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            device: OnceLock::new(),
        })
    }

    /// Requests are about to come. Where a thread cannot go on, `device` fails.
    pub(crate) fn begin(&self, device: &Arc<DeviceQueue<H>>) {
        // Called once.
        let _ = self.device.set(Arc::downgrade(device));
    }

    /// Waits for all threads, whose session has ended.
    pub(crate) fn join(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        loop {
            // A thread may start another one at its last request.
            let Some(thread) = self.threads.lock().pop() else { break };
            // A panic was told when it happened.
            let _ = thread.join();
        }
    }

    /// Threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.threads.lock().len()
    }

    /// Starts a thread; it is counted in `free` already.
    pub(crate) fn start_thread(self: &Arc<Self>, first: Option<FirstThread>) -> io::Result<()> {
        let queue = Arc::clone(self);
        let name = format!("fuse-ring-{}", self.processor);
        // Held over the start, so that `join` finds the thread.
        let mut threads = self.threads.lock();
        // Those that found no descriptor or no memory: they neither count nor keep their stacks.
        threads.retain(|thread| !thread.is_finished());
        if threads.len() >= self.threads_max {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let member = self.company.expect_one();
        let run = move || queue.run(first, member);
        threads.push(thread::Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    /// A thread is about to sleep over a request.
    fn make_way(self: &Arc<Self>) {
        let one_more = |free| (free < SPARE).then_some(free + 1);
        let is_needed = self.free.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        if is_needed.is_err() {
            return;
        }
        let is_over = self.has_ended.load(Ordering::SeqCst);
        if is_over || self.start_thread(None).is_err() {
            // Without another thread: requests wait until a sleeper is back.
            self.free.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn run(self: Arc<Self>, first: Option<FirstThread>, mut member: Member) {
        let work = AssertUnwindSafe(|| self.offer(first, &mut member));
        let ended = catch_unwind(work);
        // Its entry, which was free, is none any more.
        self.free.fetch_sub(1, Ordering::SeqCst);
        let why = match ended {
            Err(_) => io::Error::other("a thread that serves panicked"),
            Ok(Err(error)) if self.core.notifier.connection.is_alive() => {
                io::Error::new(error.kind(), format!("requests by io_uring: {error}"))
            }
            Ok(_) => return,
        };
        if let Some(device) = self.device.get().and_then(Weak::upgrade) {
            device.fail(why);
        }
    }

    /// Offers an entry and serves it; returns where there can be none.
    fn offer(self: &Arc<Self>, first: Option<FirstThread>, member: &mut Member) -> io::Result<()> {
        let mut processors = CpuSet::new();
        processors.set(self.processor.into());
        // One that is not there has no clients either.
        let _ = rustix::thread::sched_setaffinity(None, &processors);
        let connection = Arc::clone(&self.core.notifier.connection);
        let mut ring = match FuseRing::open(connection.as_fd(), self.processor, self.payload) {
            Ok(ring) => ring,
            Err(error) => {
                let error = Err(Unregistered::Failed(error));
                let _ = first.is_some_and(|first| first.goes_on(error));
                return Ok(());
            }
        };
        let is_registered = match &first {
            Some(first) => first.goes_on(Ok(())) && first.goes_on(ring.register()),
            // The kernel refuses one that it has no memory for; others serve.
            None => ring.register().is_ok(),
        };
        if !is_registered {
            return Ok(());
        }
        self.serve(&mut ring, first.is_some(), member)
    }

    /// Serves until the ring ends, as it does when the file system is unmounted.
    fn serve(
        self: &Arc<Self>,
        ring: &mut FuseRing,
        is_first: bool,
        member: &mut Member,
    ) -> io::Result<()> {
        let mut scratch = vec![0; SCRATCH];
        member.begin();
        let file = self.last_file.load(Ordering::Relaxed);
        if !is_first && file != 0 {
            self.ask_for_a_request(file);
        }
        ring.wait()?;
        loop {
            self.free.fetch_sub(1, Ordering::SeqCst);
            if let Ok(header) = parse::<InHeader>(ring.header()) {
                self.answers.note(&self.programs, header.pid);
                if let Some(file) = dispatch::regular_file(&header) {
                    self.last_file.store(file, Ordering::Relaxed);
                }
            }
            let queue = Arc::clone(self);
            let hook = on_sleep(move || queue.make_way());
            let (unique, answer) = self.answer(ring, &mut scratch);
            drop(hook);
            let (error, len) = match answer {
                Ok(len) => (0, len),
                Err(errno) => (-errno.raw_os_error(), 0),
            };
            // At most the payload, which is a mebibyte.
            let len = len as u32;
            let header = OutHeader { len: size_of::<OutHeader>() as u32 + len, error, unique };
            ring.set_answer(header.as_bytes(), len);
            self.free.fetch_add(1, Ordering::SeqCst);
            if let Some(policy) = self.answers.policy() {
                ring.give()?;
                // The next request may be long in coming, and the processor be wanted by then.
                drop(policy);
                ring.wait()?;
            } else {
                ring.commit()?;
            }
        }
    }

    /// Has the kernel give out the requests that wait. By a thread that has no entry, on this
    /// processor: the call may wait for the file, and that for a request which this thread's entry
    /// has been given.
    fn ask_for_a_request(&self, file: u64) {
        let notifier = self.core.notifier.clone();
        // An error: the kernel has forgotten the file, or there is no thread to be had. Those that
        // wait are served when a sleeper is back.
        let ask = move || notifier.ask_for_a_request(file);
        let _ = thread::Builder::new().name("fuse-ask".to_owned()).spawn(ask);
    }

    /// Serves the request that the ring has; the answer's bytes are in its payload.
    fn answer(&self, ring: &mut FuseRing, scratch: &mut [u8]) -> (u64, Answer<usize>) {
        let Ok(header) = parse::<InHeader>(ring.header()) else { return (0, Err(Errno::IO)) };
        let unique = header.unique;
        // Behind it lies what the request before had there.
        let size = self.core.size_of_op(&header);
        let answer = if dispatch::answers_in_place(header.opcode) {
            let (op, payload) = ring.op_and_payload();
            self.core.serve(&Request { header, op: &op[..size], data: &[] }, payload)
        } else {
            let request = Request { header, op: &ring.op()[..size], data: ring.data() };
            let answer = self.core.serve(&request, scratch);
            if let Some(Ok(len)) = answer {
                ring.op_and_payload().1[..len].copy_from_slice(&scratch[..len]);
            }
            answer
        };
        (unique, answer.unwrap_or(Ok(0)))
    }
}
