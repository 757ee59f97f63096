//! The memory that states take, told before the first one is made.

use std::fs;
use std::path::Path;

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

/// Bytes of memory that are free: on the machine, and within the limits of the control groups that
/// this process is in.
fn available() -> Option<u64> {
    let table = fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(|line| in_group(line, Path::new("/sys/fs/cgroup")));
    Some(limits.fold(machine, u64::min))
}

/// Files of a control group: its limit, what is used of it, and the line of memory.stat that tells
/// how much of that is page cache which goes when memory is wanted.
const SECOND: [&str; 3] = ["memory.max", "memory.current", "inactive_file "];
const FIRST: [&str; 3] = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "];

/// Bytes that are free in a group and all that it is in, by its line of /proc/self/cgroup
/// (cgroups(7)); `None` if nothing limits them.
fn in_group(line: &str, mounted: &Path) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, Path::new(parts.next()?));
    let (root, files) = match controllers {
        "" => (mounted.to_owned(), SECOND),
        _ if controllers.split(',').any(|it| it == "memory") => (mounted.join("memory"), FIRST),
        _ => return None,
    };
    // Of a container's path the upper part is not there to be seen.
    let relative = path.strip_prefix("/").unwrap_or(path);
    relative.ancestors().filter_map(|group| free(&root.join(group), files)).min()
}

fn free(group: &Path, [limit, used, cache]: [&str; 3]) -> Option<u64> {
    let number = |name| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // "max" is no number.
    let (limit, used) = (number(limit)?, number(used)?);
    let table = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = table.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok());
    Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
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

    #[test]
    fn the_narrowest_group_counts_and_its_page_cache_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let group = |path: &str, files: [(&str, &str); 3]| {
            let group = folder.path().join(path);
            fs::create_dir_all(&group).unwrap();
            for (name, text) in files {
                fs::write(group.join(name), text).unwrap();
            }
        };
        let second = |limit, used, stat| {
            [("memory.max", limit), ("memory.current", used), ("memory.stat", stat)]
        };
        group("a", second("1000\n", "900\n", "anon 200\ninactive_file 700\n"));
        group("a/b", second("max\n", "800\n", "inactive_file 1\n"));
        group("c", second("500\n", "600\n", "anon 5\n"));
        let free = |line| in_group(line, folder.path());
        assert_eq!(free("0::/a/b"), Some(800));
        // A container does not see what is above it.
        assert_eq!(free("0::/host/a"), None);
        assert_eq!(free("0::/c"), Some(0));
        group(
            "memory/d",
            [
                ("memory.limit_in_bytes", "1000"),
                ("memory.usage_in_bytes", "400"),
                ("memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"),
            ],
        );
        assert_eq!(free("4:memory:/d"), Some(900));
        assert_eq!(free("5:cpu,memory:/d/e"), Some(900));
        assert_eq!(free("6:cpuset:/d"), None);
    }
}
