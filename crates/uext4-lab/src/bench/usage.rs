//! What a load uses while it runs.

use crate::bench::counters::Counters;
use crate::error::Result;
use crate::machine;

/// What was used and counted from the start of a load to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) counted: Counters,
    /// Processor time of the whole system, in seconds.
    pub(crate) cpu_s: Option<f64>,
}

/// Does the work; the most memory that this process has used is that of the work afterwards.
pub(crate) fn watch<T>(
    count: impl Fn() -> Counters,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Usage)> {
    machine::reset_peak_rss();
    let (before, cpu) = (count(), machine::processor_seconds());
    let outcome = work()?;
    let cpu_s = cpu.zip(machine::processor_seconds()).map(|(then, now)| now - then);
    Ok((outcome, Usage { counted: count().since(before), cpu_s }))
}
