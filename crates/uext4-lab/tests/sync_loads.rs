//! E0 and E3 with few threads, small files and little time, on every target that the machine has.
//!
//! Fault model: a target that does not run where it can, that does other work than the others, that
//! leaves an image that is not clean or blocks that hold something else (the run judges those and
//! fails the run); a figure that is missing or not in the documented form; something left behind.
//! Not covered: whether figures mean anything at this size.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use common::{assert_empty, built_command, measure};
use uext4_lab::{Load, Measurement, Plan, Route, Target, run};

/// The keys of a line of JSON, in their order.
const KEYS: [&str; 11] = [
    "experiment",
    "target",
    "variant",
    "store",
    "path",
    "threads",
    "bs",
    "metric",
    "value",
    "unit",
    "round",
];

/// Figures that every target has.
const METRICS: [&str; 5] =
    ["iops", "latency_p50_us", "latency_p99_us", "latency_max_us", "context_switches_per_op"];

fn plan(ids: &[&str], folder: &Path, targets: &[Target], route: Route) -> Plan {
    Plan {
        loads: ids.iter().map(|id| Load::find(id).expect("a load")).collect(),
        targets: targets.to_vec(),
        folder: Some(folder.to_path_buf()),
        route,
        rounds: 1,
        scale: 0.02,
        threads: vec![4],
        duration: Duration::from_secs(1),
        variants: vec!["commit=1".into()],
        journals: vec![4],
        command: built_command(),
        ..Plan::default()
    }
}

fn value(figures: &[Measurement], id: &str, candidate: (&str, &str), metric: &str) -> Option<f64> {
    let found = figures.iter().find(|m| {
        (m.experiment, m.target, m.variant.as_str(), m.metric)
            == (id, candidate.0, candidate.1, metric)
    });
    found.map(|m| m.value)
}

fn candidates(figures: &[Measurement], id: &str) -> BTreeSet<(&'static str, String)> {
    let own = figures.iter().filter(|m| m.experiment == id);
    own.map(|m| (m.target, m.variant.clone())).collect()
}

fn assert_documented(figures: &[Measurement]) {
    for figure in figures {
        let line = figure.to_json();
        let places: Vec<Option<usize>> =
            KEYS.iter().map(|key| line.find(&format!("\"{key}\":"))).collect();
        assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{line}");
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object.as_object().unwrap().len(), KEYS.len(), "{line}");
        assert!(object["value"].as_f64().unwrap() >= 0.0 && object["bs"] == 16384, "{line}");
    }
}

#[test]
fn the_library_and_the_baseline_run_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let targets = [Target::Uext4, Target::Raw];
    let figures = measure(&plan(&["E0", "E3"], folder.path(), &targets, Route::Natural)).figures;
    assert_documented(&figures);
    for (id, journal) in [("E0", "journal=4"), ("E3", "default")] {
        for target in ["uext4", "raw"] {
            for metric in METRICS.into_iter().chain(["handles_per_txn", "flushes_per_fsync"]) {
                let found = value(&figures, id, (target, journal), metric);
                assert!(found.is_some_and(|value| value > 0.0), "{id} {target} {metric}");
            }
        }
    }
    // The same number of operations on every target, in every variant.
    let wanted = value(&figures, "E0", ("raw", "journal=4"), "operations");
    for variant in ["journal=4", "commit=1,journal=4"] {
        assert_eq!(value(&figures, "E0", ("uext4", variant), "operations"), wanted);
    }
    // A batch of the baseline takes two flushes where data has to be mapped and one where it has
    // not.
    let per_batch = |id, variant| {
        let get = |metric| value(&figures, id, ("raw", variant), metric).unwrap();
        get("flushes_per_fsync") * get("handles_per_txn")
    };
    assert!((per_batch("E0", "journal=4") - 2.0).abs() < 1e-6);
    assert!((per_batch("E3", "default") - 1.0).abs() < 1e-6);
    assert_empty(folder.path());
}

/// With root, loop devices and FUSE nothing is left out.
#[test]
fn peers_run_on_the_same_device() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&["E0", "E3"], folder.path(), &Target::ALL, Route::Device);
    let able: Vec<Target> =
        Target::ALL.into_iter().filter(|target| target.obstacle(&plan).is_none()).collect();
    let figures = measure(&plan).figures;
    assert_documented(&figures);
    for target in able {
        for (id, variants) in [
            ("E0", &["journal=4", "dioread_lock,journal=4", "commit=1,journal=4"][..]),
            ("E3", &["default", "commit=1"][..]),
        ] {
            let load = Load::find(id).unwrap();
            let found = candidates(&figures, id);
            let has = |variant: &str| found.contains(&(target.name(), variant.to_owned()));
            if !target.takes(load) {
                assert!(!has(variants[0]), "{id} {}", target.name());
                continue;
            }
            assert!(has(variants[0]), "{id} {}", target.name());
            assert_eq!(
                has(variants[variants.len() - 1]),
                target.is_own(),
                "{id} {}",
                target.name()
            );
            if id == "E0" {
                assert_eq!(has(variants[1]), target == Target::Kernel);
            }
            for metric in METRICS.into_iter().chain(["flushes_per_fsync"]) {
                let value = value(&figures, id, (target.name(), variants[0]), metric);
                assert!(value.is_some(), "{id} {} {metric}", target.name());
            }
        }
    }
    if Target::Kernel.obstacle(&plan).is_none() {
        for metric in ["handles_per_txn", "commit_mean_us"] {
            let value = value(&figures, "E0", ("kernel", "journal=4"), metric);
            assert!(value.is_some_and(|value| value > 0.0), "{metric}");
        }
    }
    assert_empty(folder.path());
}

#[test]
fn what_does_not_fit_is_refused_before_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(&["E0"], folder.path(), &[Target::Uext4], Route::Natural);
    // 8,192 files of 28.8 MB: more than any memory that tests run in.
    plan.threads = vec![8192];
    plan.scale = 1.0;
    let free = rustix::fs::statvfs(folder.path()).unwrap();
    if free.f_bavail * free.f_frsize > 230 << 30 {
        println!("skipped: {} has room for it", folder.path().display());
        return;
    }
    let error = run(&plan, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("needs at most") && error.contains("--scale"), "{error}");
    assert_empty(folder.path());
}
