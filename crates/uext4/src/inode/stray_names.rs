//! Whether a directory that folds case has names that are not where their hash says.
//!
//! What: such names are there since a kernel that hashed otherwise has added them
//! (`dir/strays.rs`). It is asked of the blocks once, because no change of this engine makes
//! another one.

use super::Inode;
use crate::sync::state::{AtomicU32, Ordering};

const UNKNOWN: u32 = 0;
const NONE: u32 = 1;
const SOME: u32 = 2;

/// What is known of a directory.
#[derive(Debug)]
pub(super) struct StrayNames(AtomicU32);

impl StrayNames {
    pub(super) fn unknown() -> Self {
        Self(AtomicU32::new(UNKNOWN))
    }
}

impl Inode {
    /// Whether the directory has such names, if that is known.
    pub(crate) fn has_stray_names(&self) -> Option<bool> {
        match self.stray_names.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            state => Some(state == SOME),
        }
    }

    /// Called with the directory's lock held.
    pub(crate) fn note_stray_names(&self, has_some: bool) {
        let state = if has_some { SOME } else { NONE };
        self.stray_names.0.store(state, Ordering::Relaxed);
    }
}
