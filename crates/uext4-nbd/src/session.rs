//! Requests on their way, and the connections they go by.
//!
//! # What
//! A request is entered in a table, then sent by one of the connections. The thread that reads that
//! connection finds it there when the answer comes. When a connection fails, all of them are given
//! up, requests wait, and the keeper (`keeper.rs`) connects again.
//!
//! # Invariants
//! - A request is sent by a connection only if it was entered while that connection was in use, so
//!   one that is entered is sent by its connection or by the keeper, and never by both: what was
//!   entered before the loss is the keeper's.
//! - A connection that is given up gets no further request, and what it answers still counts. New
//!   ones are made when the server has ended it, or did not within a while.
//! - While the keeper replays, nothing else is sent.
//!
//! # Locking
//! `state` is held to look and to change, never during I/O.

mod replay;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use uext4_device::Lease;

use crate::answer::{Content, Sink, Ticket};
use crate::export::Export;
use crate::identity::Identity;
use crate::link::Link;
use crate::options::NbdOptions;
use crate::request::{Action, Request};
use crate::stream::Place;
use crate::unflushed::Unflushed;

/// How often a request is sent that no server answers before it is the request, once the timeout is
/// over.
const TRIES_MAX: u32 = 8;
/// The same of a request that is as old as two timeouts.
const TRIES_OF_OLD: u32 = 3;

/// The shared state of a device.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) place: Place,
    pub(crate) options: NbdOptions,
    /// As it was when it was opened.
    pub(crate) export: Export,
    state: Mutex<State>,
    /// The phase has changed.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    links: Vec<Used>,
    /// Connections that were given up, and the threads that read them and those in use.
    left: Vec<Arc<Link>>,
    readers: Vec<JoinHandle<()>>,
    /// Requests that were entered and not answered, by their cookies.
    pending: BTreeMap<u64, Pending>,
    next_cookie: u64,
    next_link: u64,
    unflushed: Unflushed,
    /// The server may hold changes that somebody made before: no flush has ended well yet.
    may_hold_others: bool,
    /// How many requests were answered, replays aside.
    answers: u64,
    /// Which disk it is.
    identity: Identity,
    /// Under which changes are made, if the disk is shared.
    lease: Option<Arc<Lease>>,
}

/// A connection in use.
#[derive(Debug)]
struct Used {
    link: Arc<Link>,
    /// Requests that it owes an answer.
    owes: usize,
    /// When it answered last, or began to owe.
    progress: Instant,
}

#[derive(Debug)]
enum Phase {
    Up,
    /// The connection is lost: why, and when the server was there last.
    Down {
        why: String,
        since: Instant,
    },
    /// It is given up.
    Over(Arc<str>),
    Closed,
}

#[derive(Debug)]
struct Pending {
    request: Request,
    sink: Sink,
    /// The number of the connection that it was sent by.
    link: u64,
    tries: u32,
    entered: Instant,
    sent: Instant,
    /// Whether it is a change that is made once more, which goes with its connection.
    is_replay: bool,
}

/// What the keeper is woken for.
pub(crate) enum Call {
    /// The connection is lost: why, and when the server was there last.
    Lost {
        why: String,
        since: Instant,
    },
    Closed,
}

/// What a reader has to know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// That many bytes from an offset.
    Bytes {
        offset: u64,
        len: u32,
    },
    Extents,
    Nothing,
}

impl Session {
    /// A device without a connection.
    pub(crate) fn new(place: Place, options: NbdOptions, export: Export) -> Self {
        let state = State {
            phase: Phase::Down { why: String::new(), since: Instant::now() },
            links: Vec::new(),
            left: Vec::new(),
            readers: Vec::new(),
            pending: BTreeMap::new(),
            next_cookie: 1,
            next_link: 0,
            unflushed: Unflushed::new(),
            may_hold_others: true,
            answers: 0,
            identity: Identity::default(),
            lease: None,
        };
        Self { place, options, export, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// From now on nothing is sent again when this is over.
    pub(crate) fn set_lease(&self, lease: Option<Arc<Lease>>) {
        self.state.lock().lease = lease;
    }

    /// # Errors
    /// Another host may have the disk: nothing may be sent again.
    pub(crate) fn require_lease(&self) -> Result<(), String> {
        self.state.lock().require_lease()
    }

    /// Memory that changes since the last flush take, in bytes.
    pub(crate) fn unflushed_bytes(&self) -> usize {
        self.state.lock().unflushed.bytes()
    }

    /// How many requests were answered, replays aside.
    pub(crate) fn answers(&self) -> u64 {
        self.state.lock().answers
    }

    /// Sends a request.
    pub(crate) fn ask(&self, action: Action, offset: u64, len: u32) -> io::Result<Ticket> {
        self.submit(|_| Request { action, offset, len })
    }

    /// Sends a flush of what is complete now. `None`: the server has no flush, or there is
    /// nothing to flush.
    pub(crate) fn flush(&self) -> io::Result<Option<Ticket>> {
        if !self.export.flushes() {
            let mut state = self.up()?;
            let flush = state.unflushed.begin_flush();
            state.unflushed.flushed(flush);
            return Ok(None);
        }
        // A request that is not complete yet is none that a flush covers. What a client wrote that
        // was killed is: a replay of its log must not begin before the log is durable.
        {
            let state = self.up()?;
            if state.unflushed.is_empty() && !state.may_hold_others {
                return Ok(None);
            }
        }
        let flush = |state: &mut State| {
            let epoch = state.unflushed.begin_flush();
            Request { action: Action::Flush { epoch }, offset: 0, len: 0 }
        };
        self.submit(flush).map(Some)
    }

    /// The state, once there is a connection.
    fn up(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        loop {
            match &state.phase {
                Phase::Up => return Ok(state),
                Phase::Down { .. } => self.changed.wait(&mut state),
                Phase::Over(why) => return Err(io::Error::other(why.to_string())),
                Phase::Closed => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }

    /// Why it was given up, if it was.
    pub(crate) fn failure(&self) -> Option<io::Error> {
        match &self.state.lock().phase {
            Phase::Over(why) => Some(io::Error::other(why.to_string())),
            _ => None,
        }
    }

    fn submit(&self, make: impl FnOnce(&mut State) -> Request) -> io::Result<Ticket> {
        let mut state = self.up()?;
        let request = make(&mut state);
        state.identity.forget_changed(&request);
        let (cookie, link, ticket) = state.enter(request.clone(), false);
        drop(state);
        self.send(&link, cookie, &request);
        Ok(ticket)
    }

    fn send(&self, link: &Link, cookie: u64, request: &Request) {
        match link.send(&request.header(cookie), request.data()) {
            Err(error) => self.lost(link.number, &error.to_string()),
            // It may have waited for others that are sent by the same connection.
            Ok(()) => {
                if let Some(pending) = self.state.lock().pending.get_mut(&cookie) {
                    pending.sent = Instant::now();
                }
            }
        }
    }

    /// What an answer must bring; `None` for a cookie that this connection was not asked with.
    pub(crate) fn expected(&self, link: u64, cookie: u64) -> Option<Expected> {
        let state = self.state.lock();
        let pending = state.pending.get(&cookie).filter(|pending| pending.link == link)?;
        let Request { action, offset, len } = &pending.request;
        Some(match action {
            Action::Read => Expected::Bytes { offset: *offset, len: *len },
            Action::Status => Expected::Extents,
            Action::Change { .. } | Action::Flush { .. } => Expected::Nothing,
        })
    }

    /// The answer to a request that is [`Self::expected`].
    pub(crate) fn answered(&self, cookie: u64, result: io::Result<Content>) {
        let mut state = self.state.lock();
        let Some(pending) = state.pending.remove(&cookie) else { return };
        let Pending { request: Request { action, offset, len }, sink, link, is_replay, .. } =
            pending;
        if let Some(used) = state.links.iter_mut().find(|used| used.link.number == link) {
            used.owes = used.owes.saturating_sub(1);
            used.progress = Instant::now();
        }
        // What is made once more is known already.
        state.answers += u64::from(!is_replay);
        match (&action, &result) {
            (Action::Change { durable: true, .. }, Ok(_)) if !is_replay => {
                state.unflushed.complete_durably(offset, len.into());
            }
            (Action::Change { change, .. }, Ok(_)) if !is_replay => {
                state.unflushed.complete(offset, len.into(), change);
            }
            (Action::Flush { epoch }, Ok(_)) => {
                state.unflushed.flushed(*epoch);
                state.may_hold_others = false;
            }
            _ => {}
        }
        drop(state);
        sink.put(result);
    }

    /// A connection has failed.
    pub(crate) fn lost(&self, link: u64, why: &str) {
        let mut state = self.state.lock();
        if state.links.iter().any(|used| used.link.number == link) {
            state.lose(why);
            self.changed.notify_all();
        }
    }

    /// Gives the connections in use up.
    pub(crate) fn lose(&self, why: &str) {
        self.state.lock().lose(why);
        self.changed.notify_all();
    }

    /// Waits until there is something for the keeper to do. It looks at times at what is owed, so
    /// that no request has to wake it.
    pub(crate) fn call(&self) -> Call {
        let look = self.options.patience() / 4;
        let mut state = self.state.lock();
        loop {
            match &state.phase {
                Phase::Down { why, since } => {
                    return Call::Lost { why: why.clone(), since: *since };
                }
                Phase::Over(_) | Phase::Closed => return Call::Closed,
                Phase::Up => match state.owed(&self.options) {
                    Some(why) => state.lose(&why),
                    None => drop(self.changed.wait_for(&mut state, look)),
                },
            }
        }
    }

    /// Waits until the connections that were given up have ended, or for that long; then they are
    /// cut off. The threads that read them are gone afterwards.
    pub(crate) fn drain(&self, time: Duration) {
        let (left, readers) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.left), std::mem::take(&mut state.readers))
        };
        let end = Instant::now() + time;
        while !readers.iter().all(JoinHandle::is_finished) && Instant::now() < end {
            if self.closed_by(end.min(Instant::now() + STEP)) {
                break;
            }
        }
        left.iter().for_each(|link| link.cut_off());
        for reader in readers {
            // It tells what it has to tell before it ends.
            let _ = reader.join();
        }
    }

    /// A number for a new connection.
    pub(crate) fn next_link(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_link += 1;
        state.next_link
    }

    /// Takes new connections into use, for replays only.
    pub(crate) fn install(&self, links: Vec<Arc<Link>>) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Closed) {
            links.iter().for_each(|link| link.shut_down());
        }
        let progress = Instant::now();
        state.links = links.into_iter().map(|link| Used { link, owes: 0, progress }).collect();
    }

    /// Keeps the thread that reads a connection.
    pub(crate) fn add_reader(&self, reader: JoinHandle<()>) {
        self.state.lock().readers.push(reader);
    }

    /// Sends what waits, and lets new requests come. False: the connection is lost again.
    ///
    /// # Errors
    /// A request that was sent too often.
    pub(crate) fn resume(&self) -> Result<bool, String> {
        let mut state = self.state.lock();
        if state.links.is_empty() {
            return Ok(false);
        }
        state.require_lease()?;
        let timeout = self.options.timeout;
        let hopeless = |pending: &&Pending| {
            let (tries, age) = (pending.tries, pending.entered.elapsed());
            tries >= TRIES_MAX && age > timeout || tries >= TRIES_OF_OLD && age > 2 * timeout
        };
        if let Some(pending) = state.pending.values().find(hopeless) {
            return Err(format!("a request was not answered {} times", pending.tries));
        }
        let cookies: Vec<u64> = state.pending.keys().copied().collect();
        let again: Vec<_> = cookies.into_iter().map(|cookie| state.send_again(cookie)).collect();
        if let Phase::Down { .. } = state.phase {
            state.phase = Phase::Up;
        }
        self.changed.notify_all();
        drop(state);
        for (link, cookie, request) in again.into_iter().flatten() {
            self.send(&link, cookie, &request);
        }
        Ok(true)
    }

    /// Gives up: every request fails, also later ones.
    pub(crate) fn give_up(&self, why: &str) {
        let mut state = self.state.lock();
        state.lose(why);
        if !matches!(state.phase, Phase::Closed) {
            state.phase = Phase::Over(why.into());
        }
        let pending = std::mem::take(&mut state.pending);
        self.changed.notify_all();
        drop(state);
        for (_, pending) in pending {
            pending.sink.put(Err(io::Error::other(why.to_owned())));
        }
    }

    /// Waits until the device is closed, or that time.
    pub(crate) fn closed_by(&self, time: Instant) -> bool {
        let mut state = self.state.lock();
        while !matches!(state.phase, Phase::Closed) {
            if self.changed.wait_until(&mut state, time).timed_out() {
                return matches!(state.phase, Phase::Closed);
            }
        }
        true
    }

    /// Says goodbye to the server, if it is there, and ends all connections.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        let is_up = matches!(state.phase, Phase::Up);
        state.phase = Phase::Closed;
        let links = std::mem::take(&mut state.links);
        state.pending.clear();
        self.changed.notify_all();
        drop(state);
        for used in links {
            if is_up {
                used.link.say_goodbye();
            }
            used.link.shut_down();
        }
    }
}

/// Between two looks at connections that end.
const STEP: Duration = Duration::from_millis(5);

impl State {
    fn require_lease(&self) -> Result<(), String> {
        match &self.lease {
            Some(lease) if lease.is_over() => {
                let why =
                    "the server was gone for longer than other hosts wait (mmp): one may have it";
                Err(why.to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Enters a request and chooses its connection.
    fn enter(&mut self, request: Request, is_replay: bool) -> (u64, Arc<Link>, Ticket) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let link = self.charge(cookie);
        let (sink, ticket) = Ticket::new();
        let now = Instant::now();
        let pending = Pending {
            request,
            sink,
            link: link.number,
            tries: 1,
            entered: now,
            sent: now,
            is_replay,
        };
        self.pending.insert(cookie, pending);
        (cookie, link, ticket)
    }

    /// The connection for a cookie, which owes one more answer.
    fn charge(&mut self, cookie: u64) -> Arc<Link> {
        let count = self.links.len() as u64;
        let turn = usize::try_from(cookie % count).unwrap_or(0);
        let used = &mut self.links[turn];
        if used.owes == 0 {
            used.progress = Instant::now();
        }
        used.owes += 1;
        Arc::clone(&used.link)
    }

    fn send_again(&mut self, cookie: u64) -> Option<(Arc<Link>, u64, Request)> {
        let link = self.charge(cookie);
        let pending = self.pending.get_mut(&cookie)?;
        pending.link = link.number;
        pending.tries += 1;
        pending.sent = Instant::now();
        Some((link, cookie, pending.request.clone()))
    }

    /// What is owed for too long: by a connection, or of one request.
    fn owed(&self, options: &NbdOptions) -> Option<String> {
        let patience = options.patience();
        let is_silent = |used: &Used| used.owes > 0 && used.progress.elapsed() > patience;
        let is_silent = self.links.iter().any(is_silent);
        // Cookies rise, so an old request is the first, or was sent again since.
        let oldest = self.pending.values().map(|pending| pending.sent).min();
        let is_old = oldest.is_some_and(|sent| sent.elapsed() > options.timeout);
        (is_silent || is_old).then(|| {
            let limit = if is_silent { patience } else { options.timeout };
            format!("the server has not answered for {:.0} s", limit.as_secs_f64())
        })
    }

    /// Gives the connections in use up.
    fn lose(&mut self, why: &str) {
        if let Phase::Up = self.phase {
            let since = self.links.iter().filter(|used| used.owes > 0).map(|used| used.progress);
            let since = since.min().unwrap_or_else(Instant::now);
            self.phase = Phase::Down { why: why.to_owned(), since };
        }
        for used in self.links.drain(..) {
            used.link.finish();
            self.left.push(used.link);
        }
        // Their senders go, so that the keeper, which waits for them, learns of it.
        self.pending.retain(|_, pending| !pending.is_replay);
    }
}
