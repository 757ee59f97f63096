//! Who waits to join a transaction.
//!
//! What: joining without waiting is one compare-and-swap on the transaction's word. Whoever that
//! refuses comes here with a known [`Request`]: a handle with its need, a handle whose credits are
//! reserved, or a reservation.
//! Order (`journal_join=fifo`): each kind of request has a line. Handles that end, reservations
//! that end and transactions that open grant from the heads of the lines, as long as the heads fit:
//! a waiter is woken exactly when it has what it asked for, or when the journal is aborted. Who
//! does not wait yet may overtake handles that do: the fast path takes what fits without a look at
//! the lines. Overtaking ends when the transaction is full or closed; while somebody waits, a
//! commit is asked for, and each transaction that opens grants from the heads.
//! Contrast (`journal_join=herd`): all wait on one condition, all are woken at each opportunity,
//! and each makes the whole attempt again, as with jbd2.
//! Invariants: `reserved` and the openings of the word change under the queue's lock only, and a
//! word that is open counts all that is reserved. A handle whose need does not fit beside what is
//! reserved holds nobody up: whoever has reserved may stand behind it.
//! Locking: the queue's lock is a leaf but for the waiters' own; nothing is waited for under it.
//! Kernel counterpart: `add_transaction_credits` and its waits in `fs/jbd2/transaction.c`.

mod herd;
mod request;

pub(super) use request::{Ask, Entered, Grant, Request, Waiter, Want};

use super::counters::AdmissionStats;
use super::packed_state::{PackedState, Refusal};
use crate::config::JoinMode;
use crate::plant::{self, Fault};
use crate::stats::{WaitFor, Waits};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, LockRank, Mutex};
use request::LINES;
use std::collections::VecDeque;
use std::sync::Arc;
use uext4_ondisk::Tid;

/// Why no transaction is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortage {
    /// One is, or a commit is about to open it.
    None,
    /// The log has no room for the next one.
    Room,
    /// Nor will it have before joiners make some; this is the next one.
    RoomByJoiners(Tid),
}

#[derive(Debug)]
pub(super) struct JoinQueue {
    mode: JoinMode,
    credits_max: u32,
    inner: Mutex<Inner>,
    /// Waiters, so that a leaving handle need not take the lock to see that there are none.
    len: AtomicUsize,
    /// What all wait on in mode `herd`.
    opportunity: Condvar,
    stats: Arc<AdmissionStats>,
    waits: Arc<Waits>,
}

#[derive(Debug)]
struct Inner {
    /// Waiters of mode `fifo` by [`Want`].
    lines: [VecDeque<Arc<Waiter>>; 3],
    gate: Gate,
    /// In mode `fifo`: somebody has been told to make room.
    has_worker: bool,
}

/// What an attempt looks at besides the word.
#[derive(Debug)]
struct Gate {
    /// Credits reserved and not started.
    reserved: u32,
    /// How often the word was opened: a transaction that is found empty opens again.
    openings: u64,
    /// The opening whose commit somebody has asked for.
    asked: Option<u64>,
    /// The latest opening that had to wait for room in the log.
    was_short: u64,
    shortage: Shortage,
    aborted: bool,
}

impl JoinQueue {
    pub(super) fn new(
        mode: JoinMode,
        credits_max: u32,
        stats: Arc<AdmissionStats>,
        waits: Arc<Waits>,
    ) -> Self {
        let gate = Gate {
            reserved: 0,
            openings: 0,
            asked: None,
            was_short: 0,
            shortage: Shortage::None,
            aborted: false,
        };
        let inner = Inner { lines: Default::default(), gate, has_worker: false };
        Self {
            mode,
            credits_max,
            inner: Mutex::new(LockRank::Journal, inner),
            len: AtomicUsize::new(0),
            opportunity: Condvar::new(),
            stats,
            waits,
        }
    }

    /// Most credits that can be reserved: half of the largest transaction, so that handles of their
    /// own go on beside them.
    pub(super) const fn reserved_max(&self) -> u32 {
        self.credits_max / 2
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// Whether joiners are to make room.
    pub(super) fn is_short(&self) -> bool {
        self.inner.lock().gate.is_left_to_joiners()
    }

    /// Grants if it fits now and nobody is before us; else the caller waits. The attempt and the
    /// beginning of the wait are one under the queue's lock, so no opening is missed.
    pub(super) fn enter(&self, running: &PackedState, request: Request) -> (Entered, Ask) {
        match self.mode {
            JoinMode::Fifo => self.stand_in_line(running, request),
            JoinMode::Herd => self.run_with_herd(running, request),
        }
    }

    fn stand_in_line(&self, running: &PackedState, request: Request) -> (Entered, Ask) {
        let mut inner = self.inner.lock();
        let line = request.want as usize;
        let is_held_up = inner.lines[line].iter().any(|w| self.holds_up(&inner.gate, w.request));
        let cause = if is_held_up {
            let why = if running.load().closed { Refusal::Closed } else { Refusal::Full };
            inner.gate.cause(why)
        } else {
            match self.attempt(&mut inner.gate, running, request) {
                Ok(grant) => {
                    let started = request.want == Want::StartReserved;
                    let ask = if started { self.serve(&mut inner, running) } else { None };
                    return (Entered::Granted(grant), ask);
                }
                Err(cause) => cause,
            }
        };
        self.stats.refused.of(cause).fetch_add(1, Ordering::Relaxed);
        if inner.gate.is_left_to_joiners() && !inner.has_worker {
            inner.has_worker = true;
            return (Entered::Granted(Grant::MakeRoom), None);
        }
        let waiter = Arc::new(Waiter::new(request, cause));
        inner.lines[line].push_back(Arc::clone(&waiter));
        self.count(&inner);
        let ask = inner.gate.ask(cause, running);
        (Entered::InLine(waiter, cause), ask)
    }

    /// Whether those behind `request` in its line wait for it.
    fn holds_up(&self, gate: &Gate, request: Request) -> bool {
        request.want != Want::Join || gate.reserved + request.need <= self.credits_max
    }

    fn attempt(
        &self,
        gate: &mut Gate,
        running: &PackedState,
        request: Request,
    ) -> Result<Grant, WaitFor> {
        if gate.aborted {
            return Ok(Grant::Aborted);
        }
        let Request { want, need } = request;
        match want {
            Want::Join => match running.join(need, self.credits_max) {
                Ok(moment) => Ok(Grant::Joined(moment)),
                Err(_) if !self.holds_up(gate, request) => Err(WaitFor::ReservedCredits),
                Err(why) => Err(gate.cause(why)),
            },
            // No check of the size: what is reserved is counted already.
            Want::StartReserved => {
                let moment = running.join(0, self.credits_max).map_err(|why| gate.cause(why))?;
                gate.reserved -= need;
                self.stats.note_reserved(gate.reserved);
                Ok(Grant::Joined(moment))
            }
            Want::Reserve => {
                if gate.reserved + need > self.reserved_max() {
                    return Err(WaitFor::ReservedCredits);
                }
                match running.reserve(need, self.credits_max) {
                    Ok(moment) => self.stats.note_credits(moment.credits),
                    // The next one to open counts them.
                    Err(Refusal::Closed) => {}
                    Err(why) => return Err(gate.cause(why)),
                }
                gate.reserved += need;
                self.stats.note_reserved(gate.reserved);
                Ok(Grant::Reserved)
            }
        }
    }

    /// Grants from the heads of the lines while they fit.
    fn serve(&self, inner: &mut Inner, running: &PackedState) -> Ask {
        let mut ask = None;
        for want in LINES {
            let mut at = 0;
            while let Some(waiter) = inner.lines[want as usize].get(at) {
                match self.attempt(&mut inner.gate, running, waiter.request) {
                    Ok(grant) => {
                        waiter.grant(grant);
                        inner.lines[want as usize].remove(at);
                    }
                    Err(_) if !self.holds_up(&inner.gate, waiter.request) => at += 1,
                    Err(cause) => {
                        ask = ask.or(inner.gate.ask(cause, running));
                        break;
                    }
                }
            }
        }
        self.count(inner);
        ask
    }

    fn count(&self, inner: &Inner) {
        let len = inner.lines.iter().map(VecDeque::len).sum();
        self.len.store(len, Ordering::Release);
    }

    /// There may be room that there was not: credits came back, or a handle ended.
    pub(super) fn look_again(&self, running: &PackedState) -> Ask {
        let mut inner = self.inner.lock();
        self.offer(&mut inner, running)
    }

    fn offer(&self, inner: &mut Inner, running: &PackedState) -> Ask {
        match self.mode {
            JoinMode::Fifo => self.serve(inner, running),
            JoinMode::Herd => {
                self.opportunity.notify_all();
                None
            }
        }
    }

    /// Opens transaction `tid`: the next one, or the same again if it was empty.
    pub(super) fn open(&self, running: &PackedState, tid: Tid) -> Ask {
        let mut inner = self.inner.lock();
        self.open_locked(&mut inner, running, tid, None).1
    }

    /// Opens the transaction that joiners made room for, unless another one has done it. Whoever
    /// made room is served first.
    pub(super) fn open_with_room(
        &self,
        running: &PackedState,
        request: Request,
    ) -> (Option<Grant>, Ask) {
        let mut inner = self.inner.lock();
        let Shortage::RoomByJoiners(tid) = inner.gate.shortage else { return (None, None) };
        self.open_locked(&mut inner, running, tid, Some(request))
    }

    fn open_locked(
        &self,
        inner: &mut Inner,
        running: &PackedState,
        tid: Tid,
        first: Option<Request>,
    ) -> (Option<Grant>, Ask) {
        running.open(tid, inner.gate.reserved);
        inner.gate.openings += 1;
        if inner.gate.shortage != Shortage::None {
            inner.gate.was_short = inner.gate.openings;
        }
        inner.gate.shortage = Shortage::None;
        inner.has_worker = false;
        let granted = first.and_then(|r| self.attempt(&mut inner.gate, running, r).ok());
        (granted, self.offer(inner, running))
    }

    /// The log has no room for the next transaction. Those who wait, wait for that from now on.
    pub(super) fn note_shortage(&self) {
        let mut inner = self.inner.lock();
        inner.gate.shortage = Shortage::Room;
        for waiter in inner.lines.iter().flatten() {
            waiter.state.lock().cause = WaitFor::LogSpace;
            self.stats.refused.log_space.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Transaction `tid` opens when joiners have made room for it: one of those in line is sent, or
    /// the next who comes; in mode `herd` everybody.
    pub(super) fn leave_to_joiners(&self, tid: Tid) {
        let mut inner = self.inner.lock();
        inner.gate.shortage = Shortage::RoomByJoiners(tid);
        if self.mode == JoinMode::Herd {
            self.opportunity.notify_all();
        } else if plant::is(Fault::UnsentJoiner) {
            // The next who comes would be sent, if somebody came.
        } else if let Some(waiter) = inner.lines.iter_mut().find_map(VecDeque::pop_front) {
            waiter.grant(Grant::MakeRoom);
            inner.has_worker = true;
            self.count(&inner);
        }
    }

    /// Reserved credits that no handle will use. `keeps` leaves them with the transaction that
    /// counts them.
    pub(super) fn unreserve(&self, running: &PackedState, credits: u32, keeps: bool) -> Ask {
        let mut inner = self.inner.lock();
        if !keeps {
            running.unreserve(credits);
        }
        inner.gate.reserved -= credits;
        self.stats.note_reserved(inner.gate.reserved);
        self.offer(&mut inner, running)
    }

    /// Ends every wait: the journal is aborted.
    pub(super) fn abort(&self) {
        let mut inner = self.inner.lock();
        inner.gate.aborted = true;
        for line in &mut inner.lines {
            for waiter in line.drain(..) {
                waiter.grant(Grant::Aborted);
            }
        }
        self.opportunity.notify_all();
        self.count(&inner);
    }
}

impl Gate {
    fn is_left_to_joiners(&self) -> bool {
        matches!(self.shortage, Shortage::RoomByJoiners(_))
    }

    const fn cause(&self, why: Refusal) -> WaitFor {
        match (why, self.shortage) {
            (Refusal::Full, _) => WaitFor::TransactionFull,
            (Refusal::Closed, Shortage::None) => WaitFor::TransactionLocked,
            (Refusal::Closed, _) => WaitFor::LogSpace,
        }
    }

    /// A full transaction makes room by being committed. One that is closed grants when the next
    /// opens.
    fn ask(&mut self, cause: WaitFor, running: &PackedState) -> Ask {
        let asks = cause == WaitFor::TransactionFull && self.asked != Some(self.openings);
        asks.then(|| {
            self.asked = Some(self.openings);
            running.load().tid
        })
    }
}

#[cfg(test)]
mod tests;
