//! The memory that states take, told before the first one is made.

use std::fs;

use crate::error::{Error, Result};

/// What the images and the trace of a test take.
pub(super) struct Room {
    /// Bytes of the image.
    pub(super) image: u64,
    /// Bytes of it that were stored before the program and after it.
    pub(super) stored: u64,
    /// Bytes that the program wrote.
    pub(super) written: u64,
    /// States at a time.
    pub(super) jobs: usize,
}

impl Room {
    /// Refuses what does not fit into the memory that is free.
    pub(super) fn check(&self) -> Result<()> {
        available().map_or(Ok(()), |free| self.fits(free))
    }

    fn fits(&self, free: u64) -> Result<()> {
        // A state may lie beside what it was made from, which shares little with it at worst.
        let state = self.image.min(self.stored + self.written);
        let states = self.jobs as u64 + 1;
        // What was written is kept for the trace, and in images after parts of it.
        let needed = state.saturating_mul(states) + 2 * self.written;
        if needed <= free {
            return Ok(());
        }
        let [needed, state, free] = [needed, state, free].map(|bytes| bytes >> 20);
        Err(Error::new(format!(
            "states: {states} of up to {state} MiB side by side and the data of the program need \
             {needed} MiB of memory, and {free} MiB are free: take fewer --jobs, or a smaller run"
        )))
    }
}

/// Bytes of memory that are free, for this process's group of processes where that is limited.
fn available() -> Option<u64> {
    let table = fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10;
    let group = |name| fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok();
    let number = |name| group(name)?.trim().parse::<u64>().ok();
    let group = number("max").zip(number("current"));
    Some(group.map_or(machine, |(most, now)| machine.min(most.saturating_sub(now))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_do_not_fit_are_refused_in_one_line() {
        let room = Room { image: 256 << 20, stored: 100 << 20, written: 500 << 20, jobs: 2 };
        assert!(room.fits(1768 << 20).is_ok());
        let error = room.fits(1767 << 20).unwrap_err().to_string();
        assert!(error.contains("3 of up to 256 MiB") && error.contains("need 1768 MiB"), "{error}");
        assert_eq!(error.lines().count(), 1);
        let small = Room { written: 1 << 20, ..room };
        assert!(small.fits(305 << 20).is_ok(), "a sparse image takes what is in it");
        assert!(available().is_none_or(|free| free > 0));
    }
}
