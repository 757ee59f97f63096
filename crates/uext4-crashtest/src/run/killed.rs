//! A check that somebody has killed: that says nothing of the state.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use super::command::Ended;

/// How a shell tells by its own status that SIGKILL has ended what it ran.
const KILLED: i32 = 128 + 9;

/// Processes that the kernel has killed for want of memory, up to some moment.
pub(super) struct Kills(Option<u64>);

impl Kills {
    /// Up to now.
    pub(super) fn now() -> Self {
        Self(fs::read_to_string("/proc/vmstat").ok().and_then(|table| count(&table)))
    }

    /// Why the end of a command that began at this moment is none of its own, if so.
    pub(super) fn reason(&self, ended: &Ended) -> Option<&'static str> {
        // Its child may be the one, and the command only tells of a connection that was lost.
        let kills = self.0.zip(Self::now().0);
        if kills.is_some_and(|(before, now)| before < now) {
            return Some("the kernel has killed a process for want of memory");
        }
        let Ended::With(status) = ended else { return None };
        let is_killed =
            status.signal() == Some(Signal::KILL.as_raw()) || status.code() == Some(KILLED);
        is_killed.then_some("ended by signal 9, which comes from outside")
    }
}

/// proc_vmstat(5): of all of the machine, and of every control group in it.
fn count(table: &str) -> Option<u64> {
    table.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_kill_from_outside_is_no_end_of_its_own() {
        let killed = |wait| Kills(None).reason(&Ended::With(ExitStatus::from_raw(wait))).is_some();
        // wait(2): the signal is in the low byte, the status in the next one.
        let kept = [(9, true), (137 << 8, true), (1 << 8, false), (0, false), (11, false)];
        assert_eq!(kept.map(|(wait, _)| (wait, killed(wait))), kept);
        assert!(Kills(None).reason(&Ended::TooLong).is_none());
    }

    #[test]
    fn a_kill_for_want_of_memory_is_seen_wherever_it_was() {
        assert_eq!(count("oom_reaper 1\noom_kill 7\nother 2\n"), Some(7));
        assert_eq!(count("nr_free_pages 3\n"), None);
        let now = Kills::now();
        let exit = Ended::With(ExitStatus::from_raw(1 << 8));
        if let Some(kills) = now.0.filter(|kills| *kills > 0) {
            assert!(Kills(Some(kills - 1)).reason(&exit).is_some());
        }
    }
}
