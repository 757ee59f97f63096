//! Returning free memory of the C library's heap to the system.
//!
//! # What
//! A process with a cache frees and allocates buffers of all sizes on all threads. glibc keeps
//! freed memory and returns only the end of an arena to the system. So the process stays as large
//! as it ever was, and its free memory becomes ever more fragmented. [`trim`] returns every whole
//! free page. [`free_bytes`] says whether that is worth it. Other C libraries keep less, or have no
//! such call; there these functions do nothing.

/// Free bytes of the heap, in memory or returned to the system. `None` if unknown.
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

/// Returns free pages to the system. Other threads wait for an arena's lock meanwhile, about a
/// millisecond for 100 MiB.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: no preconditions; touches nothing but free memory, under each arena's lock.
        let _ = unsafe { libc::malloc_trim(0) };
    }
}
