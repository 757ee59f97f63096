//! The files of an explained run: profile, waits, latencies.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Doing, Result};
use crate::explain::sampler::{PartSeen, Tally};
use crate::explain::tasks::Part;
use crate::explain::timeline::Timeline;
use crate::explain::watch::Seen;

/// Stacks of a cause that are told.
const STACKS: usize = 5;
/// Causes of the engine of which it times each wait.
const TIMED: &[(&str, &str)] = &[
    ("journal: transaction locked", "join_wait_locked"),
    ("journal: credits", "join_wait_full"),
    ("journal: log space", "join_wait_log_space"),
    ("journal: reserved credits", "join_wait_reserved"),
    ("journal: commit", "sync_wait"),
];

/// Writes what was seen of a run into the folders `profile` and `latency`.
pub(super) fn write(
    folder: &Path,
    key: &str,
    seen: &Seen,
    timelines: &[Timeline],
    operations: u64,
) -> Result<()> {
    let [profile, latency] = ["profile", "latency"].map(|name| folder.join(name));
    for folder in [&profile, &latency] {
        fs::create_dir_all(folder).doing(format_args!("making {}", folder.display()))?;
    }
    let put = |path: &Path, text: String| {
        fs::write(path, text).doing(format_args!("writing {}", path.display()))
    };
    if let Some(folded) = &seen.profile {
        put(&profile.join(format!("{key}.folded")), folded.clone())?;
    }
    let text = format!("{:#}\n", waits(seen, operations));
    put(&profile.join(format!("{key}.waits.json")), text)?;
    let engine = seen.counts.histograms.iter().map(|(name, reading)| {
        // The load's own phases have the plain names.
        let mut timeline = Timeline::new(&format!("engine: {name}"));
        reading.steps().for_each(|(ns, count)| timeline.add_many(ns, count));
        timeline
    });
    let all: Vec<Timeline> = timelines.iter().cloned().chain(engine).collect();
    let lines = all.iter().flat_map(Timeline::lines).map(|line| format!("{line}\n"));
    put(&latency.join(format!("{key}.jsonl")), lines.collect())
}

/// The wait profile.
fn waits(seen: &Seen, operations: u64) -> Value {
    let sampled = &seen.sampled;
    let part = |part: Part| sampled.parts.get(&part).cloned().unwrap_or_default();
    let (load, server, kernel) = (part(Part::Load), part(Part::Server), part(Part::Kernel));
    let looked = [&load, &server, &kernel].into_iter().flat_map(|part| &part.locks);
    let looked = looked.map(|(name, lock)| (name, lock.looks as f64, lock.ms));
    let counted = seen.counts.locks.iter().map(|(name, (waits, ms))| (name, *waits, *ms));
    let mut locks: Vec<(&String, f64, f64)> = counted.chain(looked).collect();
    locks.sort_by(|a, b| b.2.total_cmp(&a.2));
    let locks: Vec<Value> = locks
        .into_iter()
        .map(|(name, waits, ms)| json!({"name": name, "waits": waits, "total_ms": round(ms)}))
        .collect();
    let phases = seen.counts.phases.iter();
    let phases: Vec<Value> =
        phases.map(|(phase, us)| json!({"phase": phase, "mean_us": round(*us)})).collect();
    let per_op = |count: f64| count / operations.max(1) as f64;
    let switches = seen.counts.counts.get("context_switches");
    json!({
        "seconds": round(sampled.seconds),
        "threads": load.threads,
        "running_ms": round(load.running_ms),
        "waits": causes(&load, seen),
        "servers": {"threads": server.threads, "running_ms": round(server.running_ms),
            "waits": causes(&server, seen)},
        "kernel_threads": {"threads": kernel.threads, "running_ms": round(kernel.running_ms),
            "waits": causes(&kernel, seen)},
        "locks": locks,
        "commit_phases": phases,
        "context_switches_per_op": switches.map(|count| per_op(*count)),
        "wakeups_per_op": per_op(sampled.sleeps),
        "preemptions_per_op": per_op(sampled.preemptions),
    })
}

/// The causes, the longest first.
fn causes(part: &PartSeen, seen: &Seen) -> Vec<Value> {
    let mut all: Vec<(&String, &Tally)> = part.waits.iter().collect();
    all.sort_by(|a, b| b.1.ms.total_cmp(&a.1.ms));
    all.into_iter().map(|(name, tally)| cause(name, tally, seen)).collect()
}

/// A cause. Where the engine times its waits it is known how many they were and how long; else how
/// often it was seen.
fn cause(name: &str, tally: &Tally, seen: &Seen) -> Value {
    let mut stacks: Vec<(&Vec<String>, &u64)> = tally.stacks.iter().collect();
    stacks.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
    let stacks: Vec<Value> =
        stacks.into_iter().take(STACKS).map(|(stack, count)| json!([stack, count])).collect();
    let histogram = TIMED.iter().find(|(cause, _)| *cause == name);
    let timed = histogram.and_then(|(_, histogram)| seen.counts.histograms.get(*histogram));
    let us = |ns: u64| round(ns as f64 / 1000.0);
    let mut cause = json!({
        "cause": name,
        "count": timed.map_or(tally.looks, |reading| reading.count),
        "total_ms": round(tally.ms),
        "samples": tally.looks,
        "stacks": stacks,
    });
    if let Some(reading) = timed {
        cause["mean_us"] = us(reading.mean_ns()).into();
        cause["p99_us"] = us(reading.quantile_ns(0.99)).into();
    }
    cause
}

/// With three digits after the point.
pub(super) fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}
