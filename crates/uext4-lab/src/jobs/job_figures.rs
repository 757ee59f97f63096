//! What fio's JSON says of a job file.
//!
//! What: a group of jobs has up to three directions (read, write, trim) and its syncs. Where the
//! job file has one group and one direction metrics have their usual names; with more,
//! `job.direction.` stands before them, whatever had I/O in a run.

use std::collections::HashSet;
use std::sync::Mutex;

use serde_json::Value;

use crate::bench::Figures;
use crate::error::{Error, Result};
use crate::fio;

const DIRECTIONS: [&str; 3] = ["read", "write", "trim"];

/// The figures of all groups, in fio's order. `is_mixed` says whether the jobs go in more than one
/// direction.
///
/// # Errors
/// The JSON is not understood; a job failed, or nothing was done.
pub(crate) fn parse(said: &str, is_mixed: bool) -> Result<Figures> {
    let groups = fio::jobs(said)?;
    let done = |group: &Value, direction: &str| group[direction]["total_ios"] != 0;
    let parts: Vec<(&Value, &str)> = groups
        .iter()
        .flat_map(|group| DIRECTIONS.map(|direction| (group, direction)))
        .filter(|(group, direction)| done(group, direction))
        .collect();
    let mut figures = Figures::new();
    for (group, direction) in &parts {
        let is_one = !is_mixed && groups.len() == 1 && parts.len() == 1;
        let prefix = match is_one {
            true => String::new(),
            false => format!("{}.{direction}.", group["jobname"].as_str().unwrap_or("job")),
        };
        of_direction(&prefix, &group[direction], &mut figures)?;
    }
    for group in &groups {
        let prefix = match groups.len() {
            1 => String::new(),
            _ => format!("{}.", group["jobname"].as_str().unwrap_or("job")),
        };
        if fio::number(&group["sync"]["total_ios"]).unwrap_or(0) != 0 {
            of_latency(&format!("{prefix}sync_"), &group["sync"]["lat_ns"], &mut figures)?;
        }
    }
    if figures.is_empty() { Err(Error::new("fio: nothing was done")) } else { Ok(figures) }
}

/// Whether a job has written.
///
/// # Errors
/// The JSON is not understood; a job failed.
pub(crate) fn has_written(said: &str) -> Result<bool> {
    let writes = |group: &Value| fio::number(&group["write"]["total_ios"]).unwrap_or(0) != 0;
    Ok(fio::jobs(said)?.iter().any(writes))
}

fn of_direction(prefix: &str, part: &Value, figures: &mut Figures) -> Result<()> {
    // fio gives whole milliseconds, 0 for less than one.
    let seconds = fio::number(&part["runtime"])?.max(1) as f64 / 1000.0;
    let mut add = |metric: &str, value: f64| figures.push((name(prefix, metric), value));
    add("iops", fio::number(&part["total_ios"])? as f64 / seconds);
    add("bytes_per_s", fio::number(&part["io_bytes"])? as f64 / seconds);
    // Where fio was told to time nothing, or a part of it, there is less.
    let _ = of_latency(prefix, &part["clat_ns"], figures);
    Ok(())
}

fn of_latency(prefix: &str, of: &Value, figures: &mut Figures) -> Result<()> {
    let latencies = fio::latencies(of)?;
    let p999 = of["percentile"]["99.900000"].as_f64().map(|ns| ns / 1000.0);
    let all = [
        ("latency_p50_us", Some(latencies.p50_us)),
        ("latency_p99_us", Some(latencies.p99_us)),
        ("latency_p999_us", p999),
        ("latency_max_us", Some(latencies.max_us)),
        ("latency_mean_us", Some(latencies.mean_us)),
    ];
    let known = all.into_iter().filter_map(|(metric, value)| Some((metric, value?)));
    figures.extend(known.map(|(metric, value)| (name(prefix, metric), value)));
    Ok(())
}

/// The name of a metric. Figures have names that live as long as the process: a job file has few.
fn name(prefix: &str, metric: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let wanted = format!("{prefix}{metric}");
    let mut names = NAMES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(known) = names.get(wanted.as_str()) {
        return known;
    }
    let name: &'static str = Box::leak(wanted.into_boxed_str());
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direction(ios: u64) -> String {
        format!(
            r#"{{"total_ios":{ios},"io_bytes":{},"runtime":500,"clat_ns":{{"max":9000,"mean":3000.0,
               "percentile":{{"50.000000":2000,"99.000000":8000,"99.900000":9000}}}}}}"#,
            ios * 4096
        )
    }

    fn group(name: &str, reads: u64, writes: u64, syncs: u64) -> String {
        let (read, write) = (direction(reads), direction(writes));
        format!(
            r#"{{"jobname":"{name}","error":0,"read":{read},"write":{write},
               "trim":{{"total_ios":0}},"sync":{{"total_ios":{syncs},
               "lat_ns":{{"max":1000,"mean":1000.0,
               "percentile":{{"50.000000":1000,"99.000000":1000}}}}}}}}"#
        )
    }

    fn find(figures: &Figures, metric: &str) -> Option<f64> {
        figures.iter().find(|(name, _)| *name == metric).map(|(_, value)| *value)
    }

    #[test]
    fn one_direction_has_the_usual_names() {
        let figures =
            parse(&format!(r#"note {{"jobs":[{}]}}"#, group("a", 0, 80, 20)), false).unwrap();
        assert_eq!(find(&figures, "iops"), Some(160.0));
        assert_eq!(find(&figures, "bytes_per_s"), Some(655_360.0));
        assert_eq!(find(&figures, "latency_p999_us"), Some(9.0));
        assert_eq!(find(&figures, "sync_latency_p99_us"), Some(1.0));
    }

    #[test]
    fn several_are_told_apart() {
        let said = format!(r#"{{"jobs":[{},{}]}}"#, group("a", 0, 80, 0), group("b", 10, 20, 5));
        let figures = parse(&said, false).unwrap();
        assert_eq!(find(&figures, "a.write.iops"), Some(160.0));
        assert_eq!(find(&figures, "b.read.iops"), Some(20.0));
        assert_eq!(find(&figures, "b.sync_latency_p50_us"), Some(1.0));
        assert_eq!(find(&figures, "iops"), None);
    }

    /// Fault model: a run in which one direction had no I/O names the other in another way.
    #[test]
    fn names_hang_on_the_job_file_alone() {
        let mixed = |reads, writes| {
            let said = format!(r#"{{"jobs":[{}]}}"#, group("a", reads, writes, 0));
            parse(&said, true).unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let (both, one) = (mixed(9, 9), mixed(0, 9));
        assert!(one.contains(&"a.write.iops"), "{one:?}");
        assert!(one.iter().all(|name| both.contains(name)), "{one:?} {both:?}");
        let said = format!(r#"{{"jobs":[{},{}]}}"#, group("a", 0, 80, 0), group("b", 0, 0, 0));
        assert!(find(&parse(&said, false).unwrap(), "a.write.iops").is_some());
    }

    #[test]
    fn writes_of_any_job_are_seen() {
        let said = |writes| {
            format!(r#"{{"jobs":[{},{}]}}"#, group("a", 9, 0, 0), group("b", 0, writes, 0))
        };
        assert!(has_written(&said(1)).unwrap() && !has_written(&said(0)).unwrap());
    }

    /// Fault model: a job that failed, or that did nothing, must not give figures.
    #[test]
    fn failures_have_no_figures() {
        let failed = group("a", 0, 80, 0).replace("\"error\":0", "\"error\":28");
        assert!(parse(&format!(r#"{{"jobs":[{failed}]}}"#), false).is_err());
        let idle = format!(r#"{{"jobs":[{}]}}"#, group("a", 0, 0, 0));
        assert!(parse(&idle, false).is_err());
        assert!(parse("fio: no such file", false).is_err());
    }
}
