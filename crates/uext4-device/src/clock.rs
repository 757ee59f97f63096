//! The system's clock as of its last tick.
//!
//! Uses the C library, which reads the clock without a system call, or with one if the kernel's
//! shared page is hidden (valgrind).

/// Seconds and nanoseconds since 1970, a few milliseconds old at most (`CLOCK_REALTIME_COARSE`,
/// clock_gettime(2)).
#[must_use]
pub fn last_tick() -> (i64, u32) {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec of ours that the call may fill.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &raw mut now) };
    debug_assert_eq!(failed, 0, "every Linux has this clock");
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}
