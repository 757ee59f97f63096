//! What the threads of a life share.

use super::life_judge::Moment;
use super::medium::Medium;
use super::plan::{End, LifePlan, SeedPlan};
use super::tenant::Meeting;
use super::{Coverage, Report};
use crate::operation::Operation;
use crate::target::{Clock, Refusal};
use crate::volume_target::Excuse;
use parking_lot::Mutex;
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use uext4::{Error, ErrorKind, Volume};

/// What a run has come to so far: readable also when it cannot go on.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<Mutex<Report>>);

impl Progress {
    pub(super) fn report(&self) -> Report {
        self.0.lock().clone()
    }

    /// As [`Progress::operation`], of a thread that never ends by itself.
    pub(super) fn iteration(&self) {
        self.0.lock().operations += 1;
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Report)) {
        change(&mut self.0.lock());
    }

    /// An operation has ended.
    pub(super) fn operation(&self) {
        self.0.lock().operations += 1;
        uext4_schedule::progress();
    }

    pub(super) fn fault(&self, fault: String) {
        self.0.lock().faults.push(fault);
    }

    pub(super) fn cover(&self, cover: impl FnOnce(&mut Coverage)) {
        cover(&mut self.0.lock().coverage);
    }
}

/// What the threads of a life share. None of it is a point of the schedule.
#[derive(Debug)]
pub(super) struct Around {
    pub(super) plan: Arc<SeedPlan>,
    pub(super) life: LifePlan,
    pub(super) number: usize,
    /// Numbers of the callers.
    pub(super) threads: Vec<u32>,
    pub(super) volume: Volume,
    pub(super) medium: Arc<Medium>,
    pub(super) clock: Clock,
    pub(super) progress: Progress,
    /// The volume is being closed, or is.
    pub(super) closing: AtomicBool,
    /// Neighbours have done enough.
    pub(super) enough: AtomicBool,
    /// Files that racers have made.
    pub(super) marks: AtomicU32,
    /// Syncs of callers that have returned.
    pub(super) syncs: AtomicU32,
    /// Where callers of the same files wait for each other.
    pub(super) meeting: Meeting,
    pub(super) moments: Mutex<Moments>,
}

/// Moments at which the power might have failed.
#[derive(Debug)]
pub(super) struct Moments {
    pub(super) rng: StdRng,
    pub(super) taken: Vec<Moment>,
}

impl Around {
    /// A sync of a caller has returned: what it says is true from this moment on.
    pub(super) fn synced(&self) {
        let number = self.syncs.fetch_add(1, Ordering::Relaxed) + 1;
        if self.life.end == (End::CutAtSync { number }) {
            self.medium.cut_now();
        }
    }

    /// An operation of a caller has returned: perhaps it is judged what a loss of power would leave
    /// now.
    pub(super) fn may_end_here(&self, is_sync: bool) {
        let of = self.life.moments;
        let mut moments = self.moments.lock();
        let is_one = (is_sync || !of.of_syncs) && moments.rng.random_ratio(1, of.one_of);
        if !is_one || moments.taken.len() >= of.most || self.medium.is_off() {
            return;
        }
        let has_failed = self.medium.has_failed() || self.medium.has_troubled();
        let image = self.medium.at_this_moment();
        moments.taken.push(Moment { image, time: self.clock.tick(), has_failed });
    }

    /// Whether operations may fail from now on.
    pub(super) fn is_over(&self) -> bool {
        self.medium.is_off()
            || self.medium.has_failed()
            || self.medium.has_troubled() && self.volume.space().journal().is_aborted()
    }

    /// Whether a failure is what a closed volume answers.
    pub(super) fn is_refusal(&self, error: &Error) -> bool {
        self.closing.load(Ordering::Relaxed)
            && matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::Aborted)
    }

    /// Whether a failure needs no other reason.
    pub(super) fn excuses(&self, error: &Error) -> bool {
        self.is_over() || self.is_refusal(error)
    }
}

impl Excuse for Around {
    fn for_failure(&self, operation: Option<&Operation>, error: &Error) -> Option<Refusal> {
        if self.excuses(error) {
            return Some(Refusal::Gone);
        }
        if !self.medium.has_struck() {
            // A sync tells of the data that a cut could not write, once.
            let is_late = self.medium.has_troubled() && *error.kind() == ErrorKind::Io;
            return is_late.then_some(Refusal::Harmless);
        }
        match operation.and_then(Operation::content_of) {
            Some(_) => Some(Refusal::NoSpace),
            None => Some(Refusal::Harmless),
        }
    }
}
