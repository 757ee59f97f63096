//! Requests by `/dev/fuse`: threads that read and serve, and threads that stand by.
//!
//! What: a thread that has a *turn* reads a request, serves it in place and reads the next. One
//! thread has a turn, or a few ([`crate::placement`]). A thread whose request is about to sleep
//! passes its turn on to one that stands by, or to a new one. When its request is answered it
//! stands by itself.
//!
//! Invariants: while the session lasts, as many threads as wanted have a turn or are on their way
//! to it; only a system without memory for another thread leaves the queue alone, until a sleeper
//! is back. A thread without a turn does not read.
//!
//! Locking: the mutex of the state, for passing and standing by, and below it the company's, where
//! a thread is started. A request that does not sleep takes none.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use uext4_device::{IdlePolicy, on_sleep};

use crate::abi::InHeader;
use crate::affinity::Binding;
use crate::company::{Company, Member};
use crate::connection::{Connection, Read};
use crate::dispatch::{self, Request, parse};
use crate::handler::Handler;
use crate::negotiation::REQUEST_MAX;
use crate::placement::{Advice, Placement};
use crate::session::Core;
use crate::whereabouts::Whereabouts;

/// A thread that stands by ends after this time, where more stand by than are to be kept.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most threads. Each stands for a thread of a program that waits for us.
const THREADS_MAX: usize = 4096;
/// Threads with a descriptor of their own; others share the first.
const CLONES_MAX: usize = 16;
/// Bytes of a thread's buffers: more than a request needs, so that the C library's allocator maps
/// them, and what is never used takes no memory.
const BUFFER: usize = 5 << 20;

/// The queue of a session, and its threads.
pub(crate) struct DeviceQueue<H> {
    core: Arc<Core<H>>,
    connection: Arc<Connection>,
    /// Threads to keep.
    kept: usize,
    wanted: AtomicU32,
    /// More threads have a turn than are wanted.
    has_surplus: AtomicBool,
    placement: Placement,
    places: Whereabouts,
    /// Processors that threads may use, for them to follow their programs; `None`: they may not.
    home: Option<CpuSet>,
    company: Arc<Company>,
    state: Mutex<State>,
    called: Condvar,
    all_gone: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads with a turn, or called to it.
    readers: u32,
    threads: usize,
    standing_by: usize,
    /// Of these, called and not awake yet.
    called: usize,
    has_ended: bool,
    /// Not to be waited for any longer.
    has_failed: bool,
    error: Option<io::Error>,
}

impl<H: Handler> DeviceQueue<H> {
    pub(crate) fn start(
        core: &Arc<Core<H>>,
        connection: Arc<Connection>,
        kept: usize,
    ) -> io::Result<Arc<Self>> {
        // An error: where they run is left to the scheduler.
        let home = || rustix::thread::sched_getaffinity(None).ok();
        let queue = Arc::new(Self {
            core: Arc::clone(core),
            connection,
            kept,
            wanted: AtomicU32::new(1),
            has_surplus: AtomicBool::new(false),
            placement: Placement::new(),
            places: Whereabouts::new(),
            home: IdlePolicy::can_be_left().then(home).flatten(),
            company: Arc::default(),
            state: Mutex::default(),
            called: Condvar::new(),
            all_gone: Condvar::new(),
        });
        let mut state = queue.state.lock();
        queue.start_thread(&mut state)?;
        drop(state);
        Ok(queue)
    }

    /// Returns when the file system is unmounted and all threads have ended, or with an error when
    /// the session has failed.
    pub(crate) fn join(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.threads > 0 && !state.has_failed {
            self.all_gone.wait(&mut state);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    /// Threads there are.
    pub(crate) fn threads(&self) -> usize {
        self.state.lock().threads
    }

    fn start_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let queue = Arc::clone(self);
        let is_cloned = (1..CLONES_MAX).contains(&state.threads);
        let mut member: Member = self.company.expect_one();
        thread::Builder::new().name("fuse".to_owned()).spawn(move || {
            let gone = Gone(Arc::clone(&queue));
            // It has the processors of the thread that started it, which may be bound to one.
            let binding = Binding::new(queue.home);
            member.begin();
            queue.run(is_cloned, &binding);
            drop(gone);
        })?;
        state.threads += 1;
        state.readers += 1;
        Ok(())
    }

    /// Lets another thread have the turn of one that is about to sleep.
    fn pass_on(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.readers -= 1;
        self.fill(&mut state);
    }

    /// Calls threads until as many have a turn as are wanted.
    fn fill(self: &Arc<Self>, state: &mut State) {
        while !state.has_ended && state.readers < self.wanted.load(Ordering::Relaxed) {
            if state.standing_by > state.called {
                state.called += 1;
                state.readers += 1;
                self.called.notify_one();
            } else if state.threads >= THREADS_MAX || self.start_thread(state).is_err() {
                return;
            }
        }
    }

    /// Whether this thread, which has passed its turn on or is to many, has a turn again; else its
    /// time is over.
    fn stand_by(&self) -> bool {
        let mut state = self.state.lock();
        if state.has_ended {
            return false;
        }
        if state.readers < self.wanted.load(Ordering::Relaxed) {
            state.readers += 1;
            return true;
        }
        state.standing_by += 1;
        loop {
            let timed_out = self.called.wait_for(&mut state, PATIENCE).timed_out();
            let is_free = state.standing_by > state.called;
            if state.called > 0 && !state.has_ended {
                state.called -= 1;
                state.standing_by -= 1;
                return true;
            }
            if state.has_ended || (timed_out && is_free && state.threads > self.kept) {
                state.standing_by -= 1;
                return false;
            }
        }
    }

    fn end(&self, error: Option<io::Error>) {
        let mut state = self.state.lock();
        state.has_ended = true;
        if let Some(error) = error {
            state.error.get_or_insert(error);
        }
        self.called.notify_all();
    }

    /// The session cannot go on: requests may be left without an answer.
    pub(crate) fn fail(&self, why: io::Error) {
        self.end(Some(why));
        self.state.lock().has_failed = true;
        self.all_gone.notify_all();
    }

    fn run(self: &Arc<Self>, is_cloned: bool, binding: &Binding) {
        let own = if is_cloned { self.connection.another().ok() } else { None };
        let connection = own.map_or_else(|| Arc::clone(&self.connection), Arc::new);
        let mut buffer = vec![0; BUFFER];
        let mut out = vec![0; BUFFER];
        let has_turn = Rc::new(Cell::new(true));
        loop {
            let len = match connection.read(&mut buffer[..REQUEST_MAX as usize + 8192]) {
                Ok(Read::Request(len)) => len,
                Ok(Read::End) => return self.end(None),
                Err(error) => return self.end(Some(error)),
            };
            self.serve(&connection, &buffer[..len], &mut out, &has_turn, binding);
            if !has_turn.get() {
                binding.end();
                if !self.stand_by() {
                    return;
                }
                has_turn.set(true);
            }
        }
    }

    fn serve(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        bytes: &[u8],
        out: &mut [u8],
        has_turn: &Rc<Cell<bool>>,
        binding: &Binding,
    ) {
        let Ok(header) = parse::<InHeader>(bytes) else { return };
        let rest = &bytes[size_of::<InHeader>()..];
        let op = self.core.size_of_op(&header);
        let Some((op, data)) = rest.split_at_checked(op) else {
            return connection.answer(header.unique, Err(Errno::INVAL));
        };
        let request = Request { header, op, data };
        self.advise(&request, connection, has_turn, binding);
        let (queue, turn) = (Arc::clone(self), Rc::clone(has_turn));
        let hook = on_sleep(move || {
            if turn.replace(false) {
                queue.pass_on();
            }
        });
        let answer = self.core.serve(&request, out);
        drop(hook);
        if let Some(answer) = answer {
            let policy = binding.policy();
            connection.answer(header.unique, answer.map(|len| &out[..len]));
            drop(policy);
        }
    }

    /// Changes the number of readers, and passes the turn on where the request is long.
    fn advise(
        self: &Arc<Self>,
        request: &Request<'_>,
        connection: &Connection,
        has_turn: &Rc<Cell<bool>>,
        binding: &Binding,
    ) {
        binding.note(request.header.pid, &self.places);
        let readers = self.wanted.load(Ordering::Relaxed);
        let is_waiting = || connection.has_request();
        match self.placement.look(request.header.pid, readers, &self.places, is_waiting) {
            Advice::Stay => {}
            Advice::Apart(processor) if binding.bind(processor) => {}
            Advice::Apart(_) | Advice::More => {
                binding.end();
                let mut state = self.state.lock();
                self.wanted.store(readers + 1, Ordering::Relaxed);
                self.fill(&mut state);
            }
            Advice::Fewer => {
                let _state = self.state.lock();
                self.wanted.store(readers - 1, Ordering::Relaxed);
                self.has_surplus.store(true, Ordering::Relaxed);
            }
        }
        if self.has_surplus.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            if state.readers > self.wanted.load(Ordering::Relaxed) {
                // After this request it stands by.
                state.readers -= 1;
                has_turn.set(false);
            }
            let is_over = state.readers <= self.wanted.load(Ordering::Relaxed);
            self.has_surplus.store(!is_over, Ordering::Relaxed);
        }
        if has_turn.get() && dispatch::is_long(request) && connection.has_request() {
            has_turn.set(false);
            self.pass_on();
        }
    }
}

/// Counts a thread out.
struct Gone<H: Handler>(Arc<DeviceQueue<H>>);

impl<H: Handler> Drop for Gone<H> {
    fn drop(&mut self) {
        if thread::panicking() {
            // Its request has no answer.
            self.0.fail(io::Error::other("a thread that serves panicked"));
        }
        let mut state = self.0.state.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.0.all_gone.notify_all();
        }
    }
}
