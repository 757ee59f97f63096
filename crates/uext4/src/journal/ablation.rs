//! Ablation options of the journal: what jbd2 does instead, to measure what that costs.
//!
//! What: `journal_join=herd` ([`herd`]), `journal_credits=worst` ([`worst_credits`]) and
//! `checkpoint=inline` ([`inline_checkpoint`]). Each is chosen at mount. The default paths of the
//! journal know them only as a [`Herd`] and a [`Delegation`] that are `None`, and as two methods of
//! [`CreditMode`].
//! Invariants: no option changes the rules J1 to J13 of `docs/journal.md`.

mod herd;
mod inline_checkpoint;
mod worst_credits;

pub(super) use herd::Herd;
pub(super) use inline_checkpoint::Delegation;

#[cfg(doc)]
use crate::config::CreditMode;

#[cfg(test)]
mod tests;
