//! Ablation options of the journal: what jbd2 does instead, to measure what that costs.
//!
//! What: `journal_join=herd` ([`herd`]), `journal_credits=worst` ([`worst_credits`]) and
//! `checkpoint=inline` ([`inline_checkpoint`]). Each is chosen at mount. The default paths of the
//! journal know them only as a [`WaitPolicy`], as two methods of [`CreditMode`], and as a
//! [`Delegation`] that is `None`.
//! Invariants: no option changes the rules J1 to J13 of `docs/journal.md`.

mod herd;
mod inline_checkpoint;
mod worst_credits;

pub(super) use inline_checkpoint::Delegation;

use super::join::{Fifo, WaitPolicy};
#[cfg(doc)]
use crate::config::CreditMode;
use crate::config::JoinMode;
use crate::stats::Waits;
use herd::Herd;
use std::sync::Arc;

/// The wait policy that the mount option `journal_join` names.
pub(super) fn wait_policy(mode: JoinMode, waits: &Arc<Waits>) -> Box<dyn WaitPolicy> {
    match mode {
        JoinMode::Fifo => Box::new(Fifo),
        JoinMode::Herd => Box::new(Herd::new(Arc::clone(waits))),
    }
}

#[cfg(test)]
mod tests;
