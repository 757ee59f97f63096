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
//! Locking: the mutex of the threads, for starting and joining them, and below it the company's. A
//! request that leaves enough entries free takes none.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::CpuSet;
use uext4_device::{FuseRing, on_sleep};
use zerocopy::IntoBytes;

use crate::abi::{InHeader, OutHeader};
use crate::affinity::{Answers, Programs};
use crate::company::{Company, Member};
use crate::dispatch::{self, Request, parse};
use crate::handler::{Answer, Handler};
use crate::session::Core;

/// So many entries are free when a thread goes to sleep. With one, a burst of requests would more
/// often have to wait for a thread to start.
const SPARE: usize = 2;
/// Most threads of a queue. Each but a few stands for a thread of a program that waits for us.
const THREADS_MAX: usize = 1024;
/// Where answers are put that are not put down in place: values of attributes at most.
const SCRATCH: usize = 80 << 10;

/// All queues of a session.
pub(crate) struct Rings<H> {
    queues: Vec<Arc<Queue<H>>>,
}

/// Threads that have a ring each, and wait to be told that INIT was answered.
pub(crate) struct Prepared<H: Handler> {
    rings: Arc<Rings<H>>,
    go: Vec<Sender<()>>,
}

struct Queue<H> {
    core: Arc<Core<H>>,
    programs: Arc<Programs>,
    answers: Answers,
    /// Processor, and number of the queue.
    processor: u16,
    payload: usize,
    /// Entries that are free, or being started.
    free: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    company: Arc<Company>,
    /// A regular file that the kernel knew lately; 0 is none.
    last_file: AtomicU64,
    has_ended: AtomicBool,
}

/// Every processor that the system could have, and why rings cannot serve them all.
fn processors() -> Result<u16, String> {
    let list = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{name}"))
            .map_err(|error| format!("cannot list processors: {error}"))?;
        parse_list(text.trim()).ok_or_else(|| "cannot list processors".to_owned())
    };
    let (possible, online) = (list("possible")?, list("online")?);
    let allowed = rustix::thread::sched_getaffinity(None)
        .map_err(|error| format!("cannot tell the processors of this process: {error}"))?;
    if online.iter().any(|processor| !allowed.is_set(*processor)) {
        return Err("this process may not use every processor".to_owned());
    }
    let last = possible.last().copied().unwrap_or(0);
    u16::try_from(last + 1).map_err(|_| "too many processors".to_owned())
}

/// `0-3,8` as numbers.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

impl<H: Handler> Rings<H> {
    /// Starts a thread with a ring for each processor. They do nothing yet.
    ///
    /// # Errors
    /// Why there can be no rings, in words.
    pub(crate) fn prepare(core: &Arc<Core<H>>, payload: usize) -> Result<Prepared<H>, String> {
        // The kernel wants room for its smallest read.
        let payload = payload.max(8192);
        let programs = Arc::new(Programs::new());
        let queue = |processor| {
            Arc::new(Queue {
                core: Arc::clone(core),
                programs: Arc::clone(&programs),
                answers: Answers::new(processor),
                processor,
                payload,
                free: AtomicUsize::new(1),
                threads: Mutex::default(),
                company: Arc::default(),
                last_file: AtomicU64::new(0),
                has_ended: AtomicBool::new(false),
            })
        };
        let queues: Vec<_> = (0..processors()?).map(queue).collect();
        let mut go = Vec::with_capacity(queues.len());
        let (opened, all_opened) = mpsc::channel();
        for queue in &queues {
            let (sender, receiver) = mpsc::channel();
            queue.start_thread(Some((opened.clone(), receiver))).map_err(|e| e.to_string())?;
            go.push(sender);
        }
        drop(opened);
        let prepared = Prepared { rings: Arc::new(Self { queues }), go };
        for _ in &prepared.rings.queues {
            // Dropped senders end the threads that have their rings.
            match all_opened.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error.to_string()),
                Err(_) => return Err("a thread ended early".to_owned()),
            }
        }
        Ok(prepared)
    }

    /// Waits for all threads, whose session has ended.
    pub(crate) fn join(&self) {
        for queue in &self.queues {
            queue.has_ended.store(true, Ordering::SeqCst);
            loop {
                // A thread may start another one at its last request.
                let Some(thread) = queue.threads.lock().pop() else { break };
                // A panic was told when it happened.
                let _ = thread.join();
            }
        }
    }

    /// Threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.queues.iter().map(|queue| queue.threads.lock().len()).sum()
    }
}

impl<H: Handler> Prepared<H> {
    /// INIT was answered: the threads offer their entries.
    pub(crate) fn go(self) -> Arc<Rings<H>> {
        for go in &self.go {
            // A thread that has ended was told of by `prepare`.
            let _ = go.send(());
        }
        self.rings
    }
}

/// How a first thread tells that it has a ring, and is told to begin.
type FirstThread = (Sender<io::Result<()>>, Receiver<()>);

impl<H: Handler> Queue<H> {
    /// Starts a thread; it is counted in `free` already.
    fn start_thread(self: &Arc<Self>, first: Option<FirstThread>) -> io::Result<()> {
        let queue = Arc::clone(self);
        let name = format!("fuse-ring-{}", self.processor);
        // Held over the start, so that `join` finds the thread.
        let mut threads = self.threads.lock();
        // Those that found no descriptor or no memory: they neither count nor keep their stacks.
        threads.retain(|thread| !thread.is_finished());
        if threads.len() >= THREADS_MAX {
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
        let mut processors = CpuSet::new();
        processors.set(self.processor.into());
        // One that is not there has no clients either.
        let _ = rustix::thread::sched_setaffinity(None, &processors);
        let connection = Arc::clone(&self.core.notifier.connection);
        let ring = FuseRing::open(connection.as_fd(), self.processor, self.payload);
        let is_first = first.is_some();
        let mut ring = match (ring, first) {
            (Ok(ring), None) => ring,
            (Ok(ring), Some((opened, go))) => {
                let told = opened.send(Ok(()));
                // Nobody awaits them: there are no rings after all.
                if told.is_err() || go.recv().is_err() {
                    return;
                }
                ring
            }
            (Err(error), first) => {
                self.free.fetch_sub(1, Ordering::SeqCst);
                if let Some((opened, _)) = first {
                    // As above.
                    let _ = opened.send(Err(error));
                }
                return;
            }
        };
        // The kernel gives entries back when the file system is unmounted, and refuses one that it
        // has no memory for. Either way this one, which was free, is none any more.
        let _ = self.serve(&mut ring, is_first, &mut member);
        self.free.fetch_sub(1, Ordering::SeqCst);
    }

    fn serve(
        self: &Arc<Self>,
        ring: &mut FuseRing,
        is_first: bool,
        member: &mut Member,
    ) -> io::Result<()> {
        let mut scratch = vec![0; SCRATCH];
        ring.register()?;
        member.begin();
        let file = self.last_file.load(Ordering::Relaxed);
        if !is_first && file != 0 {
            // An error: the kernel has forgotten the file.
            let _ = self.core.notifier.ask_for_a_request(file);
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
            let policy = self.answers.policy();
            ring.commit()?;
            drop(policy);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_numbers_and_ranges() {
        assert_eq!(parse_list("0"), Some(vec![0]));
        assert_eq!(parse_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("a-b"), None);
    }
}
