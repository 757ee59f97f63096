//! `journal_credits=worst`: handles reserve for the worst case and return nothing.

use crate::config::CreditMode;

/// Blocks that a handle of the kernel asks for on top of an exact need (ext4's `meta_trans_blocks`
/// for one chunk): one more level of the extent tree (two nodes, each with its bitmap and
/// descriptor), the bitmap and descriptor of the data, inode and superblock once more, and two for
/// attributes or quota.
const WORST_EXTRA: u32 = 12;

impl CreditMode {
    /// The credits that a handle takes which needs `credits`, at most `most`.
    pub(in crate::journal) fn need(self, credits: u32, most: u32) -> u32 {
        match self {
            Self::Exact => credits,
            Self::Worst => credits.saturating_add(WORST_EXTRA).min(most),
        }
    }

    /// The part of `unused` credits that returns to the transaction before it commits.
    pub(in crate::journal) const fn returned(self, unused: u32) -> u32 {
        match self {
            Self::Exact => unused,
            Self::Worst => 0,
        }
    }
}
