//! Free memory of the C library's heap, and giving it back to the system.
//!
//! # What
//! A process with a cache frees and allocates buffers of all sizes on all threads. glibc keeps what
//! was freed for later and gives back only what lies at the end of an arena, so the process stays
//! as large as it ever was at once, and its free memory comes to lie in ever smaller pieces.
//! [`trim`] gives back every whole page that is free; [`free_bytes`] says whether that is worth it.
//! Other C libraries keep less, or have no such call: there nothing is known and nothing done.

/// Bytes that were freed and are kept for later, in memory or given back; `None`: unknown.
#[must_use]
pub fn free_bytes() -> Option<usize> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: no preconditions; takes the lock of each arena in turn.
        let info = unsafe { libc::mallinfo2() };
        Some(info.fordblks)
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    None
}

/// Gives free pages back to the system. Others wait for an arena's lock meanwhile, for a
/// millisecond or so for 100 MiB.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: no preconditions; touches nothing but free memory, under each arena's lock.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}
