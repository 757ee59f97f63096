//! The load by fio(1), with the job of the report and libaio.

use std::path::Path;

use serde_json::Value;

use crate::error::{Doing, Error, Result};
use crate::fio::call;
use crate::queued::generator::{Job, Outcome};
use crate::queued::ring::Op;
use crate::queued::shape::DEPTH;

/// Runs the load on a file of a mount.
///
/// # Errors
/// fio fails, is stopped, or says something that is not understood.
pub(crate) fn run(file: &Path, job: &Job<'_>, log: &Path) -> Result<Outcome> {
    parse(&call(&words(file, job), log, job.stop)?, job.op)
}

fn words(file: &Path, job: &Job<'_>) -> Vec<String> {
    let kind = if job.op == Op::Read { "randread" } else { "randwrite" };
    vec![
        "--name=aio-dio".into(),
        format!("--filename={}", file.display()),
        "--ioengine=libaio".into(),
        format!("--size={}", job.file_bytes),
        "--direct=1".into(),
        format!("--iodepth={DEPTH}"),
        "--time_based=1".into(),
        "--thread=1".into(),
        "--overwrite=1".into(),
        format!("--bs={}", job.bytes),
        format!("--rw={kind}"),
        format!("--runtime={}ms", job.time.as_millis().max(1)),
        "--output-format=json".into(),
    ]
}

fn parse(said: &str, op: Op) -> Result<Outcome> {
    let strange = || Error::new("fio: its JSON is not understood");
    let json = said.find('{').and_then(|start| said.get(start..)).ok_or_else(strange)?;
    let json: Value = serde_json::from_str(json).doing("fio")?;
    let job = &json["jobs"][0];
    if job["error"] != 0 {
        return Err(Error::new(format!("fio: error {}", job["error"])));
    }
    let figures = &job[if op == Op::Read { "read" } else { "write" }];
    let percentile = |name: &str| figures["clat_ns"]["percentile"][name].as_f64();
    let us = |name: &str| percentile(name).map(|ns| ns / 1000.0).ok_or_else(strange);
    Ok(Outcome {
        operations: figures["total_ios"].as_u64().ok_or_else(strange)?,
        seconds: figures["runtime"].as_f64().ok_or_else(strange)?.max(1.0) / 1000.0,
        p50_us: us("50.000000")?,
        p99_us: us("99.000000")?,
        last: Vec::new(),
        context_switches: job["ctx"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_found() {
        let said = r#"note { "jobs" : [ { "error" : 0, "ctx" : 7, "write" : { "total_ios" : 80,
            "runtime" : 2000, "clat_ns" : { "percentile" : { "50.000000" : 2448,
            "99.000000" : 9152 } } } } ] }"#;
        let said = said.replacen("note ", "", 1);
        let outcome = parse(&said, Op::Write).unwrap();
        assert_eq!((outcome.operations, outcome.seconds), (80, 2.0));
        assert_eq!((outcome.p50_us, outcome.p99_us), (2.448, 9.152));
        assert_eq!(outcome.context_switches, Some(7));
        assert!(parse(&said, Op::Read).is_err() && parse("fio: no file", Op::Read).is_err());
    }
}
