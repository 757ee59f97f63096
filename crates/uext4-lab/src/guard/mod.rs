//! What operations cost, in counts that do not depend on the machine's mood.
//!
//! What: each [`operation::Operation`] runs on a small volume in memory, by one thread. Counted is
//! what it asks of the device and of the journal, which locks it takes, how often its thread sleeps
//! (`count`), and how many instructions the process executes (`instructions`: callgrind, since
//! virtual machines seldom have performance counters). [`Costs`] of two builds are compared by
//! [`Costs::against`]; a baseline is such a file, committed.
//!
//! Invariants: nothing here reads a clock. Costs are those of one operation, so that what preparing
//! and closing a volume takes is in none of them.

mod costs;
mod count;
mod instructions;
mod operation;

use std::path::Path;

pub use costs::{Change, Compared, Costs, to_json};

use crate::error::Result;
use operation::Operation;

/// Operations of a counted run: few enough for one transaction of the smallest journal, so that no
/// commit comes but those that are asked for.
const TIMES: u32 = 200;

/// Measures all operations. `command` is this program, which callgrind runs once more for each.
///
/// # Errors
/// A failure of the engine; callgrind is missing or fails.
pub fn measure(command: &Path) -> Result<Costs> {
    let mut costs = Costs::default();
    for operation in Operation::ALL {
        for (what, cost) in count::of(operation, TIMES)? {
            costs.add(operation.name(), what, cost);
        }
    }
    for (operation, cost) in instructions::of(command, &Operation::ALL, TIMES)? {
        costs.add(operation.name(), "instructions", cost);
    }
    Ok(costs)
}

/// Performs one operation so many times, after preparing for twice [`TIMES`]: what callgrind looks
/// at. `args` are the operation's name and the number.
///
/// # Errors
/// Wrong arguments; a failure of the engine.
pub(crate) fn serve(args: &[std::ffi::OsString]) -> Result<()> {
    let wrong = || crate::error::Error::new("worker: wrong arguments");
    let [name, times] = args else { return Err(wrong()) };
    let operation = Operation::ALL.into_iter().find(|known| name == known.name());
    let times = times.to_str().and_then(|times| times.parse().ok());
    let (operation, times) = operation.zip(times).ok_or_else(wrong)?;
    let volume = operation::Prepared::new(operation, instructions::PREPARED * TIMES)?;
    (0..times).try_for_each(|n| volume.perform(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: an operation that the suite does not guard, because its baseline has none.
    #[test]
    fn the_committed_baseline_has_every_operation() {
        let text = include_str!("../../guard.json");
        let costs: serde_json::Value = serde_json::from_str(text).unwrap();
        let costs = costs.as_object().unwrap();
        assert_eq!(costs.len(), Operation::ALL.len());
        for operation in Operation::ALL {
            // With what callgrind counts, and what debug builds count.
            assert_eq!(costs[operation.name()].as_object().unwrap().len(), 9, "{operation:?}");
        }
    }
}
