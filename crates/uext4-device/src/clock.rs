//! The system's clocks.
//!
//! Uses the C library, which reads the clock without a system call, or with one if the kernel's
//! shared page is hidden (valgrind).

use std::time::Duration;

/// Time since the system started, with the time that it was suspended (`CLOCK_BOOTTIME`).
#[must_use]
pub fn since_boot() -> Duration {
    let now = read(libc::CLOCK_BOOTTIME);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Seconds and nanoseconds since 1970, a few milliseconds old at most (`CLOCK_REALTIME_COARSE`,
/// clock_gettime(2)).
#[must_use]
pub fn last_tick() -> (i64, u32) {
    let now = read(libc::CLOCK_REALTIME_COARSE);
    (now.tv_sec, u32::try_from(now.tv_nsec).unwrap_or(0))
}

fn read(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a timespec of ours that the call may fill.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut now) };
    debug_assert_eq!(failed, 0, "every Linux has this clock");
    now
}
