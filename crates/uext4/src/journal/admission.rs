//! Admission to the running transaction: the ways in, and out.
//!
//! What: [`Journal::start`] joins on the word's fast path or by way of the queue; [`Reserved`]
//! holds credits for a handle that starts later; a handle that ends gives back what it did not use.
//! Contrast (`journal_credits=worst`): a handle asks for more, and nothing comes back before the
//! transaction commits. Contrast (`checkpoint=inline`): joiners make room in the log.
//! Invariants: a whole need is granted before the handle starts, so no two handles wait for each
//! other. Whoever has reserved starts its handle without any check of the size, so that what a
//! commit or a writer waits for ends whatever else is full.
//! Kernel counterpart: `start_this_handle`, reserved handles in `fs/jbd2/transaction.c`.

use super::durable::Urgency;
use super::join::{Ask, Entered, Grant, Request, Want};
use super::packed_state::{HANDLES_MAX, RunningState};
use super::{Handle, Journal};
use crate::config::CreditMode;
use crate::error::{Error, ErrorKind, Result};
use crate::plant::{self, Fault};
use crate::sync::atomic::Ordering;
use crate::sync::time::Instant;
use crate::sync::{LockRank, RankGuard};

/// What a handle of the kernel asks for beside what one here does (ext4's `meta_trans_blocks` for
/// one chunk): a level more of the extent tree (two nodes, each with its bitmap and descriptor),
/// the data's bitmap and descriptor, inode and superblock anew, and two for attributes or quota.
const WORST_EXTRA: u32 = 12;

/// Credits for one handle that starts later. They are counted in the running transaction and, as
/// long as the handle has not started, in each that follows. Dropping it gives them back.
///
/// It is no handle: while one is held, others may be started, and data may be waited for. But
/// reservations are limited, so a thread that holds one waits for nothing that somebody may hold
/// who waits for one, and makes no second one unless others end the first.
#[derive(Debug)]
pub struct Reserved<'j> {
    journal: &'j Journal,
    credits: u32,
}

impl Journal {
    /// Starts a handle that brings at most `credits` blocks into the running transaction. Waits
    /// while that transaction is closing or full.
    ///
    /// # Errors
    /// The journal is aborted, or the need is larger than any transaction.
    pub fn start(&self, credits: u32) -> Result<Handle<'_>> {
        let rank = RankGuard::enter(LockRank::Handle);
        let need = self.need(credits, self.credits_max)?;
        if self.is_aborted() {
            return Err(self.aborted_error());
        }
        let joined = match self.running_state.join(need, self.credits_max) {
            Ok(joined) => joined,
            Err(_) => {
                self.stats.joins_waited.fetch_add(1, Ordering::Relaxed);
                let began = Instant::now();
                let joined = self.joined(self.enter(Request { want: Want::Join, need })?)?;
                self.times(joined.tid).note_wait(began.elapsed());
                joined
            }
        };
        self.note_joined(&joined);
        Ok(Handle::joined(self, joined.tid, need, rank))
    }

    /// Reserves `credits` for a handle that starts later. Waits while too many are reserved
    /// ([`Journal::reserved_max`]) or the running transaction is full. No handle is open in this
    /// thread.
    ///
    /// # Errors
    /// The journal is aborted, or the need is larger than what can be reserved.
    pub fn reserve(&self, credits: u32) -> Result<Reserved<'_>> {
        // One must not wait for it with a handle open.
        let _rank = RankGuard::enter(LockRank::Handle);
        let need = self.need(credits, self.reserved_max())?;
        if self.is_aborted() {
            return Err(self.aborted_error());
        }
        match self.enter(Request { want: Want::Reserve, need })? {
            Grant::Reserved => Ok(Reserved { journal: self, credits: need }),
            _ => Err(self.aborted_error()),
        }
    }

    /// Most credits that can be reserved at a time, by all together: half of the largest
    /// transaction.
    #[must_use]
    pub fn reserved_max(&self) -> u32 {
        self.queue.reserved_max()
    }

    /// Credits to ask for.
    fn need(&self, credits: u32, most: u32) -> Result<u32> {
        if credits > most {
            let context = format!("a handle of {credits} blocks, at most {most}");
            return Err(Error::new(ErrorKind::Internal, context));
        }
        Ok(match self.config.credits {
            CreditMode::Exact => credits,
            CreditMode::Worst => credits.saturating_add(WORST_EXTRA).min(most),
        })
    }

    fn note_joined(&self, joined: &RunningState) {
        self.times(joined.tid).note_start(&self.clock);
        self.stats.handles.fetch_add(1, Ordering::Relaxed);
        self.stats.admission.note_credits(joined.credits);
    }

    fn joined(&self, grant: Grant) -> Result<RunningState> {
        match grant {
            Grant::Joined(running) => Ok(running),
            _ => Err(self.aborted_error()),
        }
    }

    /// Gets what is asked for, at once or after waiting.
    fn enter(&self, request: Request) -> Result<Grant> {
        loop {
            let (entered, ask) = self.queue.enter(&self.running_state, request);
            self.ask(ask);
            let grant = match entered {
                Entered::Granted(grant) => grant,
                Entered::Again => continue,
                Entered::InLine(waiter, cause) => {
                    let began = Instant::now();
                    let wait = self.waits.begin(cause);
                    let (grant, cause) = waiter.wait();
                    drop(wait);
                    let stats = &self.stats.admission;
                    stats.wake_ups.fetch_add(1, Ordering::Relaxed);
                    stats.waited.of(cause).add_since(began);
                    grant
                }
            };
            if grant != Grant::MakeRoom {
                return Ok(grant);
            }
            if let Some(grant) = self.make_room(request)? {
                return Ok(grant);
            }
        }
    }

    pub(super) fn ask(&self, ask: Ask) {
        if let Some(tid) = ask {
            self.request(tid, Urgency::AtOnce);
        }
    }

    pub(super) fn extend(&self, more: u32) -> bool {
        self.running_state.extend(more, self.credits_max)
    }

    /// A handle ends.
    pub(super) fn stop(&self, unused: u32) {
        let unused = match self.config.credits {
            CreditMode::Exact => unused,
            CreditMode::Worst => 0,
        };
        let after = self.running_state.leave(unused);
        if after.closed {
            if after.handles == 0 && !plant::is(Fault::LostWakeUp) {
                let _state = self.state.lock();
                self.commit_wake.notify_one();
            }
        } else if (unused > 0 || after.handles + 1 == HANDLES_MAX) && !self.queue.is_empty() {
            self.ask(self.queue.look_again(&self.running_state));
        }
    }
}

impl<'j> Reserved<'j> {
    /// Credits that are reserved.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Starts the handle, whatever the size of the running transaction; waits only while it is
    /// closed.
    ///
    /// # Errors
    /// The journal is aborted.
    pub fn start(mut self) -> Result<Handle<'j>> {
        let rank = RankGuard::enter(LockRank::Handle);
        let journal = self.journal;
        if journal.is_aborted() {
            return Err(journal.aborted_error());
        }
        let request = Request { want: Want::StartReserved, need: self.credits };
        let joined = journal.joined(journal.enter(request)?)?;
        journal.note_joined(&joined);
        let credits = std::mem::take(&mut self.credits);
        Ok(Handle::joined(journal, joined.tid, credits, rank))
    }

    /// Runs `operation` in the handle, as [`Journal::run`].
    ///
    /// # Errors
    /// Those of [`Reserved::start`] and of `operation`.
    pub fn run<T>(self, operation: impl FnOnce(&mut Handle<'_>) -> Result<T>) -> Result<T> {
        let journal = self.journal;
        journal.run_in(self.start()?, operation)
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.credits > 0 {
            let keeps = self.journal.config.credits == CreditMode::Worst;
            let ask =
                self.journal.queue.unreserve(&self.journal.running_state, self.credits, keeps);
            self.journal.ask(ask);
        }
    }
}
