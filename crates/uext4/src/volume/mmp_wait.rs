//! The times of multiple mount protection, and the wait for a block that another host has written.

use super::mmp::MmpBlock;
use crate::error::Result;
use crate::sync::time::SystemTime;
use std::time::{Duration, UNIX_EPOCH};
use uext4_device::since_boot;
use uext4_ondisk::mmp::{CHECK_INTERVAL_MIN, INTERVAL_MAX, RawMmp};

/// The intervals of a claim. On disk they are seconds.
pub(super) struct Pace {
    /// Seconds between two writes of the block.
    pub(super) update: u16,
    /// The length of a second, which tests make shorter.
    pub(super) second: Duration,
}

impl Pace {
    pub(super) fn time(&self, seconds: u16) -> Duration {
        self.second * u32::from(seconds)
    }

    /// The check interval of a host whose writes take no time.
    pub(super) fn check_interval(&self) -> u16 {
        self.update.saturating_mul(2).clamp(CHECK_INTERVAL_MIN, INTERVAL_MAX)
    }

    /// The check interval of a host that needed `took` to read or write the block: as in the
    /// kernel it grows, so that others wait longer.
    pub(super) fn check_interval_after(&self, took: Duration) -> u16 {
        let seconds = took.as_nanos() / self.second.as_nanos().max(1);
        let of_store = u16::try_from(seconds.saturating_mul(2)).unwrap_or(INTERVAL_MAX);
        self.check_interval().max(of_store.min(INTERVAL_MAX))
    }

    /// How long after a write the next one is due: with long intervals twice in a lease.
    pub(super) fn renewal(&self) -> Duration {
        self.time(self.update).min(self.time(self.check_interval()) / 2)
    }

    /// How long after the begin of a write this host may change the device.
    pub(super) fn lease(&self, own: &RawMmp) -> Duration {
        self.time(own.mmp_check_interval.get())
    }

    /// How long a host that found the block free waits before it looks whether it has it.
    pub(super) fn settle(&self) -> Duration {
        self.second
    }

    /// How long a block must stay as it is before another host takes it over: the kernel's time
    /// and one second.
    pub(super) fn takeover(&self, found: &RawMmp) -> Duration {
        let check = found.mmp_check_interval.get().max(self.update).max(CHECK_INTERVAL_MIN);
        let wait = check.saturating_mul(2).saturating_add(1).min(check.saturating_add(60));
        self.time(wait.saturating_add(1))
    }
}

/// What became of a block.
pub(super) enum Watched {
    Unchanged,
    Changed(Box<RawMmp>),
}

/// Waits for the time after which the block may be taken over, or until it changes.
pub(super) fn watch(block: &MmpBlock, pace: &Pace, found: &RawMmp) -> Result<Watched> {
    let end = since_boot() + pace.takeover(found);
    loop {
        let left = end.saturating_sub(since_boot());
        std::thread::sleep(left.min(pace.second));
        let now = block.read()?;
        let is_same = now.mmp_seq == found.mmp_seq && now.mmp_nodename == found.mmp_nodename;
        if !is_same {
            return Ok(Watched::Changed(Box::new(now)));
        }
        if left.is_zero() {
            return Ok(Watched::Unchanged);
        }
    }
}

/// The host that has the file system, for messages.
pub(super) fn claimed_by(found: &RawMmp, what: &str) -> String {
    let time = found.mmp_time.get();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let when = match now.checked_sub(time) {
        Some(ago) => format!("{ago} s ago"),
        None => format!("in the future ({time} s after 1970)"),
    };
    format!(
        "multiple mount protection: {what}: node '{}', device '{}', last seen {when}",
        found.node(),
        found.device()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_long_before_its_end() {
        for update in 1..=INTERVAL_MAX {
            let pace = Pace { update, second: Duration::from_secs(1) };
            let lease = pace.lease(&RawMmp::clean(pace.check_interval()));
            assert!(pace.renewal() * 2 <= lease, "{update} s");
            assert!(pace.renewal() <= pace.time(update), "{update} s");
        }
    }
}
