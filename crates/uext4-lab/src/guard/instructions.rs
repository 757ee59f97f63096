//! Instructions that an operation takes, by callgrind.
//!
//! A process performs it [`TIMES`](super::TIMES) times, another one twice as often, from the same
//! preparation: half of what the second one executes more belongs to the operations, with what
//! the engine's own threads do for them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::operation::Operation;
use crate::error::{Doing, Error, Result};

/// Runs of an operation that the preparation is for, in those of a counted run.
pub(super) const PREPARED: u32 = 2;

/// Instructions of each operation.
pub(super) fn of(
    command: &Path,
    operations: &[Operation],
    times: u32,
) -> Result<Vec<(Operation, f64)>> {
    let cost = |operation: Operation| {
        let [once, twice] = thread::scope(|scope| {
            [times, PREPARED * times]
                .map(|times| scope.spawn(move || executed(command, operation, times)))
                .map(|run| run.join().unwrap_or_else(|_| Err(Error::new("callgrind: a panic"))))
        });
        let more = twice?.checked_sub(once?).ok_or_else(|| Error::new("callgrind: fewer"))?;
        Ok((operation, more as f64 / f64::from(times)))
    };
    operations.iter().copied().map(cost).collect()
}

/// Instructions of a process that performs the operation so often.
fn executed(command: &Path, operation: Operation, times: u32) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--"])
        .arg(command)
        .args(["lab", "worker", "guard", operation.name(), &times.to_string()])
        .stdin(Stdio::null())
        .output()
        .doing("valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(Error::new(format!("callgrind: {}", text.lines().last().unwrap_or_default())));
    }
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    collected
        .and_then(|(_, count)| count.trim().parse().ok())
        .ok_or_else(|| Error::new("callgrind tells no number of instructions"))
}
