//! Calls of fio(1).
//!
//! Invariants: fio and its threads have ended when [`call`] returns.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::bench::Latencies;
use crate::command;
use crate::error::{Doing, Error, Result};
use crate::leftovers;

/// How often it is looked whether fio has ended.
const STEP: Duration = Duration::from_millis(10);
/// How long fio may take to end its jobs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether fio is installed.
pub(crate) fn is_installed() -> bool {
    command::find("fio").is_some()
}

/// Calls fio and returns what it said, by way of `log`, if it ended well.
///
/// # Errors
/// fio fails, or is stopped.
pub(crate) fn call(args: &[String], log: &Path, stop: &AtomicBool) -> Result<String> {
    let mut child = start(args, log)?;
    let status = loop {
        if let Some(status) = child.try_wait().doing("waiting for fio")? {
            break status;
        }
        if stop.load(Ordering::Relaxed) {
            end(&mut child);
            return Err(Error::new("interrupted"));
        }
        thread::sleep(STEP);
    };
    finish(status.success(), log)
}

/// Ends fio and its jobs, which are processes with sessions of their own: fio ends them when it is
/// asked to end, and leaves them behind when it is killed.
fn end(child: &mut Child) {
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let deadline = Instant::now() + PATIENCE;
    while let Ok(None) = child.try_wait() {
        if Instant::now() > deadline {
            let _ = child.kill();
        }
        thread::sleep(STEP);
    }
}

fn start(args: &[String], log: &Path) -> Result<Child> {
    let program = command::find("fio").ok_or_else(|| Error::new("fio is not installed"))?;
    let output = File::create(log).doing("making a log")?;
    let errors = output.try_clone().doing("making a log")?;
    // What fio leaves beside its output goes with the run.
    let folder = log.parent().unwrap_or(Path::new("."));
    leftovers::mark(&mut Command::new(program))
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .doing("starting fio")
}

/// What fio said, if it ended well.
fn finish(success: bool, log: &Path) -> Result<String> {
    let said = std::fs::read_to_string(log).doing("reading what fio said")?;
    if success {
        return Ok(said);
    }
    let line = said.lines().find(|line| line.contains("fio:")).or_else(|| said.lines().last());
    Err(Error::new(format!("fio: {}", line.unwrap_or("no message").trim())))
}

fn strange() -> Error {
    Error::new("fio: its JSON is not understood")
}

/// The jobs, or groups, of the JSON that fio said. fio may put notes before it.
///
/// # Errors
/// That is not there, or says that one has failed.
pub(crate) fn jobs(said: &str) -> Result<Vec<Value>> {
    let json = said.find('{').and_then(|start| said.get(start..)).ok_or_else(strange)?;
    let mut json: Value = serde_json::from_str(json).doing("fio")?;
    let Value::Array(jobs) = json["jobs"].take() else { return Err(strange()) };
    match jobs.iter().find(|job| job["error"] != 0) {
        Some(failed) => Err(Error::new(format!("fio: error {}", failed["error"]))),
        None => Ok(jobs),
    }
}

/// The only one of [`jobs`].
///
/// # Errors
/// Those of [`jobs`]; there is none.
pub(crate) fn only_job(said: &str) -> Result<Value> {
    jobs(said)?.into_iter().next().ok_or_else(strange)
}

/// Has fio read a job file, and run nothing.
///
/// # Errors
/// fio is missing, or rejects the file: its line says why.
pub(crate) fn parse_only(file: &Path) -> Result<()> {
    let (code, said) = command::status("fio", &["--parse-only".as_ref(), file.as_os_str()])?;
    if code == Some(0) {
        return Ok(());
    }
    Err(Error::new(reason(&said)))
}

/// The line of fio's that says what is wrong.
fn reason(said: &str) -> &str {
    let mut lines = said.lines().map(str::trim);
    let first =
        lines.clone().find(|line| line.starts_with("Bad option") || line.starts_with("fio:"));
    first.or_else(|| lines.rfind(|line| !line.is_empty())).unwrap_or("fio: no message")
}

/// A number of the JSON.
pub(crate) fn number(value: &Value) -> Result<u64> {
    value.as_u64().ok_or_else(strange)
}

/// The latencies of one kind, in nanoseconds.
pub(crate) fn latencies(value: &Value) -> Result<Latencies> {
    let us = |value: &Value| value.as_f64().map(|ns| ns / 1000.0).ok_or_else(strange);
    let percentile = |name: &str| us(&value["percentile"][name]);
    Ok(Latencies {
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        max_us: us(&value["max"])?,
        mean_us: us(&value["mean"])?,
        ..Latencies::default()
    })
}
