//! The loads by fio(1), with the job that EXPERIMENTS of the project name, and what fio says.
//!
//! Invariants: numbers of a group are taken from fio's JSON; fio counts a write when it is done and
//! makes one sync fewer than writes in each thread, as it ends after the last write.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::bench::Limits;
use crate::error::Result;
use crate::fio::{call, latencies, number, only_job};
use crate::fio_timelines::{self, timeline};
use crate::storm::storm_shape::{OWN_JOB, StormKind, StormShape};
use crate::storm::syncers::{StormOutcome, Synced};

/// What fio is called with, but for limits.
pub(crate) fn job(shape: &StormShape, dir: &Path) -> Vec<String> {
    let threads = shape.threads;
    let words: Vec<String> = if shape.kind == StormKind::Shared {
        let file = dir.join(shape.name(0));
        vec![
            "--name=fsync-batch".into(),
            format!("--filename={}", file.display()),
            "--rw=randwrite".into(),
            "--ioengine=psync".into(),
            "--fsync=1".into(),
            "--bs=16k".into(),
            format!("--numjobs={threads}"),
            "--thread".into(),
            "--size=1M".into(),
        ]
    } else {
        vec![
            format!("--name={OWN_JOB}"),
            format!("--directory={}", dir.display()),
            "--rw=randwrite".into(),
            "--ioengine=sync".into(),
            "--fdatasync=1".into(),
            "--buffered=1".into(),
            "--bs=16k".into(),
            format!("--max-jobs={threads}"),
            format!("--numjobs={threads}"),
            "--thread".into(),
            format!("--filesize={}", shape.file_bytes),
            "--fsync=1".into(),
        ]
    };
    words.into_iter().chain(["--group_reporting".to_owned()]).collect()
}

/// Allocates the files, as the first of the two runs of E0 does.
///
/// # Errors
/// fio fails, or is stopped.
pub(crate) fn lay_out(shape: &StormShape, dir: &Path, log: &Path, stop: &AtomicBool) -> Result<()> {
    let mut args = job(shape, dir);
    args.push("--create_only=1".into());
    call(&args, log, stop).map(|_| ())
}

/// Runs the load.
///
/// # Errors
/// fio fails, is stopped, or says something that is not understood.
pub(crate) fn run(
    shape: &StormShape,
    dir: &Path,
    limits: Limits<'_>,
    log: &Path,
) -> Result<StormOutcome> {
    let mut args = job(shape, dir);
    args.push(format!("--runtime={}ms", limits.time.as_millis().max(1)));
    match limits.operations {
        Some(count) => args.push(format!("--number_ios={count}")),
        None => args.push("--time_based".into()),
    }
    args.push("--output-format=json".into());
    if limits.timelines {
        args.extend(fio_timelines::words(log));
    }
    let said = call(&args, log, limits.stop)?;
    let mut outcome = parse(&said, shape, limits.operations)?;
    if limits.timelines {
        let job = only_job(&said)?;
        outcome.timelines = vec![
            timeline("fsync", &job["sync"]["lat_ns"], None),
            timeline("write", &job["write"]["clat_ns"], Some(log)),
        ];
    }
    Ok(outcome)
}

fn parse(said: &str, shape: &StormShape, operations: Option<u32>) -> Result<StormOutcome> {
    let job = only_job(said)?;
    let (write, sync) = (&job["write"], &job["sync"]);
    let done = number(&write["total_ios"])?;
    let wanted = operations.map_or(0, |each| u64::from(each) * u64::from(shape.threads));
    Ok(StormOutcome {
        operations: done,
        // fio gives whole milliseconds, 0 for less than one.
        seconds: number(&write["runtime"])?.max(1) as f64 / 1000.0,
        latency: latencies(&sync["lat_ns"]).unwrap_or_default(),
        timelines: Vec::new(),
        more: Synced {
            syncs: number(&sync["total_ios"])?,
            write: latencies(&write["clat_ns"]).unwrap_or_default(),
            cut_off: done < wanted,
            writes: Vec::new(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Latencies;

    const SAID: &str = r#"note: both iodepth >= 1 and synchronous I/O engine are selected
{ "fio version" : "fio-3.33", "jobs" : [ { "jobname" : "x", "error" : 0,
  "write" : { "io_bytes" : 1310720, "iops" : 40.0, "runtime" : 2000, "total_ios" : 80,
    "clat_ns" : { "min" : 1873, "max" : 9194, "mean" : 2639.2, "stddev" : 8.1, "N" : 80,
      "percentile" : { "50.000000" : 2448, "99.000000" : 9152 } } },
  "sync" : { "total_ios" : 76, "lat_ns" : { "min" : 220, "max" : 1312000, "mean" : 251600.0,
      "N" : 76, "percentile" : { "50.000000" : 241000, "99.000000" : 1300000 } } } } ] }
"#;

    fn shape(kind: StormKind) -> StormShape {
        StormShape { kind, threads: 4, journal_mib: 128, file_bytes: 28_800_000 }
    }

    #[test]
    fn its_figures_are_found() {
        let outcome = parse(SAID, &shape(StormKind::Own), Some(20)).unwrap();
        assert_eq!((outcome.operations, outcome.more.syncs, outcome.seconds), (80, 76, 2.0));
        let (p50_us, p99_us, max_us, mean_us) = (241.0, 1300.0, 1312.0, 251.6);
        let sync = Latencies { p50_us, p99_us, max_us, mean_us, ..Latencies::default() };
        assert_eq!((outcome.latency, outcome.more.write.p50_us), (sync, 2.448));
        assert!(
            !outcome.more.cut_off
                && parse(SAID, &shape(StormKind::Own), Some(21)).unwrap().more.cut_off
        );
        assert!(parse("fio: no such file", &shape(StormKind::Own), None).is_err());
        assert!(parse("{\"jobs\":[{\"error\":5}]}", &shape(StormKind::Own), None).is_err());
    }

    #[test]
    fn the_jobs_are_the_documented_ones() {
        let own = job(&shape(StormKind::Own), Path::new("/mnt")).join(" ");
        assert_eq!(
            own,
            "--name=16kb_rand_write_only_2048_jobs --directory=/mnt --rw=randwrite \
             --ioengine=sync --fdatasync=1 --buffered=1 --bs=16k --max-jobs=4 --numjobs=4 \
             --thread --filesize=28800000 --fsync=1 --group_reporting"
        );
        let shared = job(&shape(StormKind::Shared), Path::new("/mnt")).join(" ");
        assert_eq!(
            shared,
            "--name=fsync-batch --filename=/mnt/one_file --rw=randwrite --ioengine=psync \
             --fsync=1 --bs=16k --numjobs=4 --thread --size=1M --group_reporting"
        );
    }
}
