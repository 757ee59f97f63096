//! What a load does and uses while it runs.

use crate::bench::counters::Counters;
use crate::bench::latencies::Latencies;
use crate::error::{Error, Result};
use crate::explain::Timeline;
use crate::machine;

/// What a run measured, with what only its load knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome<More> {
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    /// Of operations, or of those that were timed.
    pub(crate) latency: Latencies,
    /// Latencies over time, of a run that is looked at.
    pub(crate) timelines: Vec<Timeline>,
    pub(crate) more: More,
}

impl<More> Outcome<More> {
    /// Operations in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// A count by the operations.
    pub(crate) fn each(&self, count: Option<u64>) -> Option<f64> {
        count.map(|count| count as f64 / self.operations as f64)
    }
}

/// What was used and counted from the start of a load to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) counted: Counters,
    /// Processor time of the whole system, in seconds.
    pub(crate) cpu_s: Option<f64>,
}

/// Does the work; the most memory that this process has used is that of the work afterwards.
///
/// # Errors
/// Those of the work; nothing was done in the time.
pub(crate) fn measure<More>(
    count: impl Fn() -> Counters,
    work: impl FnOnce() -> Result<Outcome<More>>,
) -> Result<(Outcome<More>, Usage)> {
    machine::reset_peak_rss();
    let (before, cpu) = (count(), machine::processor_seconds());
    let outcome = work()?;
    let cpu_s = cpu.zip(machine::processor_seconds()).map(|(then, now)| now - then);
    let usage = Usage { counted: count().since(before), cpu_s };
    if outcome.operations == 0 {
        return Err(Error::new("nothing was done in the time"));
    }
    Ok((outcome, usage))
}
