//! What a daemon holds when nothing asks anything of it.

use rustix::process::Pid;
use std::fs;
use std::time::{Duration, Instant};

/// Longest wait for what is given back late: threads that end when they have had nothing to do,
/// pages that go to the allocator after a minute, and from there to the system.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_secs(3);

/// What a daemon holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Resident memory in KiB.
    pub memory_kib: u64,
    /// Threads.
    pub threads: u64,
    /// Open files.
    pub descriptors: u64,
}

/// The most that a quiet daemon may hold, and how much more at the end of its life than at the
/// begin.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// At any quiet point.
    pub most: Level,
    /// Between the medians of the first and of the last third of the quiet points.
    pub growth: Level,
}

impl Bounds {
    /// For `cache=64M`: as much again, and 32 MiB, for the allocator and for buffers.
    pub const DEFAULT: Bounds = Bounds {
        most: Level { memory_kib: 160 << 10, threads: 48, descriptors: 96 },
        growth: Level { memory_kib: 48 << 10, threads: 12, descriptors: 12 },
    };
}

impl Level {
    /// What a process holds now.
    ///
    /// # Errors
    /// There is no such process.
    pub fn of(process: Pid) -> Result<Level, String> {
        let folder = format!("/proc/{}", process.as_raw_nonzero());
        let gone = |error: std::io::Error| format!("the daemon is gone: {error}");
        let status = fs::read_to_string(format!("{folder}/status")).map_err(gone)?;
        let number = |key: &str| -> Result<u64, String> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse().ok()).ok_or_else(|| format!("no {key} in {status}"))
        };
        Ok(Level {
            memory_kib: number("VmRSS:")?,
            threads: number("Threads:")?,
            descriptors: fs::read_dir(format!("{folder}/fd")).map_err(gone)?.count() as u64,
        })
    }

    /// Waits until a quiet daemon is within its bounds and comes down no further; the level then.
    /// Threads that slept with a request end some seconds after it.
    ///
    /// # Errors
    /// It does not come down.
    pub fn quiet(process: Pid, bounds: &Bounds) -> Result<Level, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut level = Level::of(process)?;
        loop {
            std::thread::sleep(POLL);
            let before = std::mem::replace(&mut level, Level::of(process)?);
            let falls = level.threads < before.threads || level.descriptors < before.descriptors;
            match level.above(&bounds.most) {
                None if !falls => return Ok(level),
                Some(what) if Instant::now() > deadline => {
                    return Err(format!("{what} of a quiet daemon: {level:?}"));
                }
                _ => {}
            }
        }
    }

    /// What of it is more than that of another.
    fn above(&self, other: &Level) -> Option<&'static str> {
        let too_much = [
            ("memory", self.memory_kib > other.memory_kib),
            ("threads", self.threads > other.threads),
            ("descriptors", self.descriptors > other.descriptors),
        ];
        too_much.into_iter().find_map(|(what, is_above)| is_above.then_some(what))
    }

    fn map(levels: &[Level], of: impl Fn(Vec<u64>) -> u64) -> Level {
        let all = |get: fn(&Level) -> u64| of(levels.iter().map(get).collect());
        Level {
            memory_kib: all(|level| level.memory_kib),
            threads: all(|level| level.threads),
            descriptors: all(|level| level.descriptors),
        }
    }
}

/// Compares the ends of a life that has had enough quiet points to tell.
pub(super) fn check_growth(levels: &[Level], bounds: &Bounds) -> Result<(), String> {
    let third = levels.len() / 3;
    if third < 2 {
        return Ok(());
    }
    let median = |part: &[Level]| {
        Level::map(part, |mut numbers| {
            numbers.sort_unstable();
            numbers[numbers.len() / 2]
        })
    };
    let (first, last) = (median(&levels[..third]), median(&levels[levels.len() - third..]));
    let allowed = Level {
        memory_kib: first.memory_kib + bounds.growth.memory_kib,
        threads: first.threads + bounds.growth.threads,
        descriptors: first.descriptors + bounds.growth.descriptors,
    };
    match last.above(&allowed) {
        Some(what) => Err(format!("{what} of a quiet daemon grows from {first:?} to {last:?}")),
        None => Ok(()),
    }
}

/// Least and most, for a line of the run.
pub(super) fn range(levels: &[Level]) -> String {
    let least = Level::map(levels, |numbers| numbers.into_iter().min().unwrap_or_default());
    let most = Level::map(levels, |numbers| numbers.into_iter().max().unwrap_or_default());
    let mib = |kib: u64| kib >> 10;
    format!(
        "{} to {} MiB, {} to {} threads, {} to {} descriptors",
        mib(least.memory_kib),
        mib(most.memory_kib),
        least.threads,
        most.threads,
        least.descriptors,
        most.descriptors
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_from_noise() {
        let level =
            |n: u64| Level { memory_kib: 90_000 + n % 3 * 9000, threads: 9, descriptors: 20 };
        let steady: Vec<_> = (0..30).map(level).collect();
        assert_eq!(check_growth(&steady, &Bounds::DEFAULT), Ok(()));
        let leaking: Vec<_> = (0..30).map(|n| Level { descriptors: 20 + n, ..level(n) }).collect();
        let said = check_growth(&leaking, &Bounds::DEFAULT).unwrap_err();
        assert!(said.starts_with("descriptors"), "{said}");
        let fat = |n| Level { memory_kib: 90_000 + 4000 * n, ..level(n) };
        let said = check_growth(&(0..30).map(fat).collect::<Vec<_>>(), &Bounds::DEFAULT);
        assert!(said.unwrap_err().starts_with("memory"));
    }
}
