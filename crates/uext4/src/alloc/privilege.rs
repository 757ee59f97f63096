//! Who may use the blocks that are reserved for root (`s_r_blocks_count`).
//!
//! What: a mark of the calling thread, as the kernel's credentials are one. Threads have the right
//! unless they work for somebody who has not ([`as_user`]): programs that use the library, the
//! flusher and recovery have it. It is looked at only when nothing else is free.
//! Kernel counterpart: `ext4_has_free_clusters` in `fs/ext4/balloc.c`.

use std::cell::Cell;

thread_local! {
    static FOR_USER: Cell<bool> = const { Cell::new(false) };
}

/// Does `work` on behalf of a user who has no right to the blocks reserved for root: it meets
/// `NoSpace` when only these are left.
pub fn as_user<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            FOR_USER.set(self.0);
        }
    }
    let _before = Before(FOR_USER.replace(true));
    work()
}

/// Whether this thread may use the reserved blocks.
pub(super) fn may_use_root_reserve() -> bool {
    !FOR_USER.get()
}
