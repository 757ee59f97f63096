//! Saves of editors: those that are installed, and one that saves without an end until the daemon
//! is killed.

use super::{Bench, Size};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const SAVER: (&str, &str) = ("saver.py", include_str!("scripts/saver.py"));

pub(super) fn work(bench: &mut Bench, size: Size) -> Result<(), String> {
    bench.script("editors.sh", include_str!("scripts/editors.sh"), 0)?;
    for _ in 0..size.of(1, 5) {
        let acknowledged = saves_until_killed(bench, size.of(5, 60))?;
        bench.recover()?;
        let mut check = bench.script_command(SAVER.0, SAVER.1)?;
        crate::daemon_mount::output(check.args(["check", &acknowledged.to_string()]))?;
    }
    Ok(())
}

/// Number of the last save that was durable.
fn saves_until_killed(bench: &Bench, count: u64) -> Result<u64, String> {
    let mut saver = bench.script_command(SAVER.0, SAVER.1)?;
    let saver = saver.arg("save").stdout(Stdio::piped()).stderr(Stdio::null());
    let mut saver = saver.spawn().map_err(|error| format!("saver: {error}"))?;
    let answers = saver.stdout.take().ok_or("no pipe")?;
    let mut acknowledged = 0;
    for line in BufReader::new(answers).lines() {
        let line = line.map_err(|error| error.to_string())?;
        acknowledged = line.parse().map_err(|_| format!("the saver said {line}"))?;
        if acknowledged == count {
            bench.kill()?;
        }
    }
    saver.wait().map_err(|error| error.to_string())?;
    if acknowledged < count {
        Err("the saver failed before the kill".into())
    } else {
        Ok(acknowledged)
    }
}
