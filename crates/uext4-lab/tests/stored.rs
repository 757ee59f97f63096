//! E2 with small files and little time.
//!
//! Fault model: writes that are lost or go elsewhere (the run reads back and fails the run); an
//! image that is not clean; a figure that is missing; an overwrite that starts a handle, or an
//! ablation that starts none; something left behind. Not covered: whether figures mean anything at
//! this size.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{Told, assert_empty, measure};
use uext4_lab::{Load, Measurement, Plan, Target, run};

#[test]
fn stores_into_mapped_files() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let plan = Plan {
        loads: vec![Load::find("e2").expect("the load")],
        targets: vec![Target::Uext4, Target::Kernel, Target::Raw],
        folder: Some(folder.path().to_path_buf()),
        rounds: 2,
        scale: 0.001,
        threads: vec![1, 3],
        duration: Duration::from_millis(100),
        ..Plan::default()
    };
    let Told { figures, skipped, .. } = measure(&plan);
    assert!(skipped.iter().any(|why| why.contains("pmem") || why.contains("loop")), "{skipped:?}");
    for threads in [1, 3] {
        let of = |candidate: (&str, &str), metric: &str| {
            let is_it = |m: &&Measurement| {
                (m.threads, m.metric) == (threads, metric)
                    && (m.target, m.variant.as_str()) == candidate
            };
            figures.iter().filter(is_it).map(|m| m.value).collect::<Vec<f64>>()
        };
        let own = ("uext4", "default");
        let ablation = ("uext4", "dax_overwrite=journal");
        for candidate in [own, ablation, ("raw", "default")] {
            for metric in ["iops", "latency_p50_us", "latency_p99_us", "operations"] {
                let values = of(candidate, metric);
                assert!(
                    values.len() == 2 && values.iter().all(|v| *v > 0.0),
                    "{candidate:?} {metric}"
                );
            }
        }
        assert_eq!(of(own, "handles_of_overwrites"), [0.0, 0.0]);
        assert_eq!(of(own, "slow_writes"), [0.0, 0.0]);
        assert_eq!(of(ablation, "handles_of_overwrites"), of(ablation, "writes"));
        assert_eq!(of(own, "iops_ratio_raw").len(), 1);
    }
    assert_empty(folder.path());
    assert!(run(&Plan { folder: Some("/proc".into()), ..plan }, &mut |_| ()).is_err());
}

/// A store that is no memory is refused in one line.
#[test]
fn a_store_that_cannot_be_mapped_is_refused() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if is_memory(folder.path()) {
        println!("skipped: no folder on a disk");
        return;
    }
    let plan = Plan {
        loads: vec![Load::find("e2").expect("the load")],
        targets: vec![Target::Uext4],
        folder: Some(folder.path().to_path_buf()),
        scale: 0.001,
        ..Plan::default()
    };
    let error = run(&plan, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("is not on tmpfs") && !error.contains('\n'), "{error}");
}

fn is_memory(folder: &Path) -> bool {
    let output = std::process::Command::new("stat").args(["-fc", "%T"]).arg(folder).output();
    output.is_ok_and(|output| output.stdout.starts_with(b"tmpfs"))
}
