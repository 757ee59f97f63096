//! What an operation asks of device, journal, locks and the scheduler.

use uext4::sync::locks_taken;
use uext4_device::MeterReading;

use super::operation::{Operation, Prepared};
use crate::error::Result;

/// What has been counted at a moment.
struct Counted {
    meter: MeterReading,
    handles: u64,
    transactions: u64,
    locks: Option<u64>,
    sleeps: u64,
}

impl Counted {
    fn now(on: &Prepared) -> Self {
        let stats = on.volume.stats();
        let number = |name| stats.number(name).unwrap_or(0);
        Self {
            meter: on.meter.read_meter(),
            handles: number("handles"),
            transactions: number("transactions"),
            locks: locks_taken(),
            sleeps: sleeps(),
        }
    }
}

/// Costs of an operation that is performed so many times, by name.
pub(super) fn of(operation: Operation, times: u32) -> Result<Vec<(&'static str, f64)>> {
    let on = Prepared::new(operation, times)?;
    let before = Counted::now(&on);
    (0..times).try_for_each(|n| on.perform(n))?;
    let after = Counted::now(&on);
    let meter = after.meter.since(&before.meter);
    let counts = [
        ("reads", Some(meter.reads)),
        ("writes", Some(meter.writes)),
        ("submissions", Some(meter.submissions)),
        ("flushes", Some(meter.flushes)),
        ("handles", Some(after.handles - before.handles)),
        ("transactions", Some(after.transactions - before.transactions)),
        ("locks", after.locks.zip(before.locks).map(|(after, before)| after - before)),
        ("sleeps", Some(after.sleeps - before.sleeps)),
    ];
    on.volume.abandon();
    let each = |count: u64| count as f64 / f64::from(times);
    Ok(counts.into_iter().filter_map(|(what, count)| Some((what, each(count?)))).collect())
}

/// How often this thread gave its processor up to wait (`voluntary_ctxt_switches`, proc(5)).
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}
