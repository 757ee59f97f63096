//! The machine: what results depend on beside the code.

use std::fs;

use uext4::Owner;

use crate::command;

/// Processors, memory, kernel and the versions of what takes part, a line each.
#[must_use]
pub fn describe() -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let model = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into());
    let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let system = read("/etc/os-release");
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let mut lines = vec![
        format!("processor: {processors} x {model}"),
        format!("memory: {memory}"),
        format!("kernel: Linux {kernel}"),
        format!("system: {}", system.unwrap_or("unknown").trim_matches('"')),
    ];
    for (program, flag) in
        [("e2fsck", "-V"), ("mke2fs", "-V"), ("fuse2fs", "-V"), ("tar", "--version"), ("fio", "-v")]
    {
        let first = command::status(program, &[flag])
            .ok()
            .and_then(|(_, text)| text.lines().find(|l| l.contains(program)).map(str::to_owned));
        lines.push(first.unwrap_or_else(|| format!("{program}: not installed")));
    }
    lines
}

/// Whose files of a load are: an ordinary user could not change those of root on a mount.
pub(crate) fn caller() -> Owner {
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    Owner { uid: uid.as_raw(), gid: gid.as_raw() }
}

/// Processor time that the whole system has used since it started, in seconds.
pub(crate) fn processor_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|t| t.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq.
    let [user, nice, system, _, _, irq, softirq, ..] = ticks[..] else { return None };
    let busy = user + nice + system + irq + softirq;
    Some(busy as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Switches of context of all threads that this process has now; those of threads that have ended
/// are forgotten.
pub(crate) fn own_context_switches() -> Option<u64> {
    let mut switches = 0;
    for task in fs::read_dir("/proc/self/task").ok()? {
        // It may end meanwhile.
        let status = fs::read_to_string(task.ok()?.path().join("status")).unwrap_or_default();
        let counts = status.lines().filter(|line| line.contains("ctxt_switches:"));
        let count = |line: &str| line.split_whitespace().nth(1)?.parse::<u64>().ok();
        switches += counts.filter_map(count).sum::<u64>();
    }
    Some(switches)
}

/// Forgets the most memory that this process has used so far.
pub(crate) fn reset_peak_rss() {
    // Where that is not allowed the figure is that of the run that used most, which is no less.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Most memory that this process has used since, in KiB.
pub(crate) fn peak_rss_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Drops what the kernel has cached, where that is allowed.
pub(crate) fn drop_caches() {
    rustix::fs::sync();
    // Without root the targets start as warm as the copy of their image left them, all alike.
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}
