//! A clock that goes on while the host is suspended.

use std::time::Duration;

/// Time since the host was started, with that during which it was suspended (`CLOCK_BOOTTIME`). A
/// cluster counts that time; `Instant` does not.
pub(crate) fn since_boot() -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place lives during the call. The clock is there since Linux 2.6.39, so nothing
    // fails.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut now) };
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}
