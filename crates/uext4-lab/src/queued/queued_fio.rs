//! The load by fio(1), with the job of the report and libaio.

use std::path::Path;

use crate::error::Result;
use crate::fio::{call, latencies, number, only_job};
use crate::fio_timelines::{self, timeline};
use crate::queued::queued_shape::DEPTH;
use crate::queued::ring::Op;
use crate::queued::submitter::{LastWrites, QueuedJob, QueuedOutcome};

/// Runs the load on a file of a mount.
///
/// # Errors
/// fio fails, is stopped, or says something that is not understood.
pub(crate) fn run(file: &Path, job: &QueuedJob<'_>, log: &Path) -> Result<QueuedOutcome> {
    let mut args = words(file, job);
    if job.timelines {
        args.extend(fio_timelines::words(log));
    }
    let said = call(&args, log, job.stop)?;
    let mut outcome = parse(&said, job.op)?;
    if job.timelines {
        let job = &only_job(&said)?[direction(job.op)];
        outcome.timelines = vec![timeline("request", &job["clat_ns"], Some(log))];
    }
    Ok(outcome)
}

fn words(file: &Path, job: &QueuedJob<'_>) -> Vec<String> {
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

/// How fio calls what the requests do.
const fn direction(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
    }
}

fn parse(said: &str, op: Op) -> Result<QueuedOutcome> {
    let job = only_job(said)?;
    let figures = &job[direction(op)];
    Ok(QueuedOutcome {
        operations: number(&figures["total_ios"])?,
        // fio gives whole milliseconds, 0 for less than one.
        seconds: number(&figures["runtime"])?.max(1) as f64 / 1000.0,
        latency: latencies(&figures["clat_ns"])?,
        timelines: Vec::new(),
        more: LastWrites { by_block: Vec::new(), context_switches: job["ctx"].as_u64() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_found() {
        let said = r#"note { "jobs" : [ { "error" : 0, "ctx" : 7, "write" : { "total_ios" : 80,
            "runtime" : 2000, "clat_ns" : { "max" : 9194, "mean" : 2639.2,
            "percentile" : { "50.000000" : 2448,
            "99.000000" : 9152 } } } } ] }"#;
        let said = said.replacen("note ", "", 1);
        let outcome = parse(&said, Op::Write).unwrap();
        assert_eq!((outcome.operations, outcome.seconds), (80, 2.0));
        assert_eq!((outcome.latency.p50_us, outcome.latency.p99_us), (2.448, 9.152));
        assert_eq!(outcome.more.context_switches, Some(7));
        assert!(parse(&said, Op::Read).is_err() && parse("fio: no file", Op::Read).is_err());
    }
}
