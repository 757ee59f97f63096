//! Latencies over time as fio(1) tells them, in a run that is looked at.
//!
//! What: the bins of its JSON for each phase, and its log of histograms for a series of the phase
//! that transfers data. It keeps no log of syncs.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::explain::Timeline;

/// Milliseconds of a step of the series.
const STEP_MS: u64 = 500;
/// Bins that fio adds up in the series, as a power of two: a thread's histogram takes 2 KiB then.
const COARSENESS: u32 = 3;

/// What fio is asked for beside its figures.
pub(crate) fn words(log: &Path) -> Vec<String> {
    vec![
        format!("--write_hist_log={}", log.with_extension("series").display()),
        format!("--log_hist_msec={STEP_MS}"),
        format!("--log_hist_coarseness={COARSENESS}"),
        "--per_job_logs=0".into(),
        "--output-format=json+".into(),
    ]
}

/// The latencies of a phase in a job's JSON, with the series that stands beside `log` if the phase
/// has one.
pub(crate) fn timeline(phase: &str, latencies: &Value, series_beside: Option<&Path>) -> Timeline {
    let mut timeline = Timeline::new(phase);
    let bins = latencies["bins"].as_object().into_iter().flatten();
    let bins = bins.filter_map(|(ns, count)| Some((ns.parse().ok()?, count.as_u64()?)));
    bins.for_each(|(ns, count)| timeline.add_many(ns, count));
    if let Some(log) = series_beside {
        let series = series_of(log);
        add_series(&mut timeline, &fs::read_to_string(&series).unwrap_or_default());
        // It may be long, and lies where images do.
        let _ = fs::remove_file(series);
    }
    timeline
}

fn series_of(log: &Path) -> PathBuf {
    log.with_extension("series_clat_hist.log")
}

/// Lines of a thread's step: time in milliseconds, direction, size, and the counts of its bins.
fn add_series(timeline: &mut Timeline, text: &str) {
    for line in text.lines() {
        let words: Vec<u64> = line.split(',').map_while(|word| word.trim().parse().ok()).collect();
        let [ms, _direction, _bytes, bins @ ..] = &words[..] else { continue };
        // Steps end a little late.
        let end_ms = (ms + STEP_MS / 2) / STEP_MS * STEP_MS;
        let counts = bins.iter().enumerate().filter(|(_, count)| **count > 0);
        for (bin, count) in counts {
            timeline.add_step(end_ms as f64 / 1000.0, bin_ns(bin << COARSENESS), *count);
        }
    }
}

/// Latency of one of fio's bins: 64 to a power of two, those below 128 ns of one nanosecond each.
const fn bin_ns(bin: usize) -> u64 {
    const STEPS: u64 = 64;
    let bin = bin as u64;
    if bin < 2 * STEPS { bin } else { (bin % STEPS + STEPS) << (bin / STEPS - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_bins_are_latencies() {
        // As fio 3.33 has them: a latency of 4,480 to 4,543 ns is in bin 454.
        assert_eq!((bin_ns(454), bin_ns(455)), (4480, 4544));
        assert_eq!((bin_ns(127), bin_ns(128), bin_ns(130)), (127, 128, 132));
    }

    #[test]
    fn bins_and_series_become_one_timeline() {
        let latencies = serde_json::json!({"bins": {"61184": 2, "62720": 1}});
        let mut timeline = timeline("write", &latencies, None);
        let mut bins = vec!["0"; 232];
        bins[56] = "3";
        let text = format!("611, 1, 16384, {0}\n1001, 1, 16384, {0}\n", bins.join(", "));
        add_series(&mut timeline, &text);
        let lines = timeline.lines();
        assert_eq!(lines.len(), 3);
        let ops: Vec<u64> = lines[1..].iter().map(|line| line["ops"].as_u64().unwrap()).collect();
        assert_eq!(ops, [3, 3]);
    }
}
