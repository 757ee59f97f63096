//! E4 with a small file and little time, on every target that the machine has.
//!
//! Fault model: a target that does not run where it can; requests that are lost, torn or go
//! elsewhere (the run reads back and fails the run); an image that is not clean or whose file has
//! moved; a figure that is missing or not in the documented form; something left behind. Not
//! covered: whether figures mean anything at this size.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{assert_empty, measure};
use uext4_lab::{Load, Measurement, Plan, Route, Target};

const SIZES: [u32; 2] = [4096, 12288];
const METRICS: [&str; 7] = [
    "iops",
    "bytes_per_s",
    "latency_p50_us",
    "latency_p99_us",
    "context_switches_per_op",
    "system_context_switches_per_op",
    "operations",
];

fn plan(folder: &Path, targets: &[Target], route: Route) -> Plan {
    Plan {
        loads: vec![Load::find("e4").expect("the load")],
        targets: targets.to_vec(),
        folder: Some(folder.to_path_buf()),
        route,
        rounds: 2,
        scale: 0.001,
        blocks: SIZES.to_vec(),
        duration: Duration::from_millis(100),
        variants: vec!["noatime".into()],
        ..Plan::default()
    }
}

/// Every target has every figure of every form and size; returns how many runs there were.
fn assert_complete(figures: &[Measurement], candidates: &[(&str, &str)]) {
    for form in ["read", "write"] {
        for bs in SIZES {
            let of = |candidate: (&str, &str), metric: &str| {
                let is_it = |m: &&Measurement| {
                    (m.form, m.bs, m.metric) == (Some(form), bs, metric)
                        && (m.target, m.variant.as_str()) == candidate
                };
                figures.iter().filter(is_it).map(|m| m.value).collect::<Vec<f64>>()
            };
            for candidate in candidates {
                for metric in METRICS {
                    let values = of(*candidate, metric);
                    assert_eq!(values.len(), 2, "{form} {bs} {candidate:?} {metric}");
                    let rate = metric == "iops" || metric == "latency_p50_us";
                    assert!(
                        !rate || values.iter().all(|value| *value > 0.0),
                        "{form} {candidate:?}"
                    );
                }
            }
            // Overwrites start no transaction, and only the ablation hands completions over.
            let own = ("uext4", "default");
            assert!(of(own, "transactions").iter().all(|count| *count <= 1.0), "{form} {bs}");
            assert_eq!(of(own, "deferred_per_op"), [0.0, 0.0]);
            let deferred = of(("uext4", "dio_completion=deferred"), "deferred_per_op");
            assert!(form == "read" || deferred.iter().all(|share| *share > 0.9), "{deferred:?}");
            assert_eq!(of(own, "iops_ratio_raw").len(), 1);
            assert_eq!(of(own, "iops_ratio_raw_lower").len(), 1);
        }
    }
    for figure in figures {
        let line: serde_json::Value = serde_json::from_str(&figure.to_json()).unwrap();
        let is_ratio = figure.metric.contains("_ratio_");
        assert_eq!((line["threads"].as_u64(), figure.round == 0), (Some(1), is_ratio), "{line}");
        assert_eq!((&line["experiment"], line["value"].is_f64()), (&"E4".into(), true), "{line}");
    }
}

const OWN: [(&str, &str); 4] = [
    ("uext4", "default"),
    ("uext4", "dio_completion=deferred"),
    ("uext4", "noatime"),
    ("raw", "default"),
];

#[test]
fn the_library_and_the_baseline_run_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let figures =
        measure(&plan(folder.path(), &[Target::Uext4, Target::Raw], Route::Natural)).figures;
    assert_complete(&figures, &OWN);
    assert_empty(folder.path());
}

/// With root and loop devices nothing is left out; without fio, libaio.
#[test]
fn the_kernel_runs_on_the_same_device() {
    let folder = tempfile::tempdir().unwrap();
    let targets = [Target::Uext4, Target::Kernel, Target::Raw];
    let plan = plan(folder.path(), &targets, Route::Device);
    if let Some(reason) = Target::Kernel.obstacle(&plan) {
        println!("skipped: {reason}");
        return;
    }
    let figures = measure(&plan).figures;
    let mut candidates = OWN.to_vec();
    candidates.push(("kernel", "io_uring"));
    if std::process::Command::new("fio").arg("--version").output().is_ok() {
        candidates.push(("kernel", "libaio"));
    } else {
        println!("skipped: libaio: fio is not installed");
    }
    assert_complete(&figures, &candidates);
    assert_empty(folder.path());
}
