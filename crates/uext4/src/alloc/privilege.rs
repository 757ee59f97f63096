//! The right to use the blocks that are reserved for root (`s_r_blocks_count`).
//!
//! What: a mark of the calling thread, as the kernel's credentials are. A thread has the right
//! unless it works for a user without it ([`as_user`]). Programs that use the library, the flusher
//! and recovery have it. The mark is read when nothing else is free, and where a limit of quota is
//! exceeded, which does not bind a thread with the right.
//! Kernel counterpart: `ext4_has_free_clusters` in `fs/ext4/balloc.c`.

use crate::sync::with_mark;
use std::cell::Cell;

thread_local! {
    static FOR_USER: Cell<bool> = const { Cell::new(false) };
}

/// Does `work` on behalf of a user without the right to the blocks reserved for root: it fails with
/// `NoSpace` when only these are left.
pub fn as_user<T>(work: impl FnOnce() -> T) -> T {
    with_mark(&FOR_USER, work)
}

/// Whether this thread may use the root reserve.
pub(crate) fn may_use_root_reserve() -> bool {
    !FOR_USER.get()
}
