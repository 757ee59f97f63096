//! The whole lab at a hundredth of its size.
//!
//! Fault model: a load that does not do what it says, a figure that is missing or not in the
//! documented form, something left behind. Not covered: whether figures mean anything at this size.

mod common;

use std::path::PathBuf;

use common::{assert_empty, built_command, measure};
use uext4_lab::{Form, LOADS, Load, Measurement, Plan, Target};

fn plan(targets: &[Target], folder: PathBuf, command: Option<PathBuf>) -> Plan {
    Plan {
        loads: LOADS.iter().filter(|load| !load.takes_variants()).collect(),
        targets: targets.to_vec(),
        folder: Some(folder),
        rounds: 1,
        scale: 0.01,
        command,
        ..Plan::default()
    }
}

/// Every load gave its figures on `target`.
fn assert_complete(figures: &[Measurement], target: Target) {
    for load in LOADS.iter().filter(|load| !load.takes_variants() && target.takes(load)) {
        for &threads in load.threads {
            let found = figures.iter().any(|figure| {
                let place = (figure.experiment, figure.target, figure.threads, figure.metric);
                let wanted = (load.id, target.name(), threads, load.metric);
                place == wanted && figure.variant == "default" && figure.value > 0.0
            });
            assert!(found, "{} on {} x{threads}", load.id, target.name());
        }
    }
}

#[test]
fn the_library_runs_every_load() {
    let folder = tempfile::tempdir().unwrap();
    let figures = measure(&plan(&[Target::Uext4], folder.path().to_path_buf(), None)).figures;
    assert_complete(&figures, Target::Uext4);
    for figure in &figures {
        let line: serde_json::Value = serde_json::from_str(&figure.to_json()).unwrap();
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        let mut documented = [
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
        documented.sort_unstable();
        assert_eq!(keys, documented, "{line}");
        assert_eq!((line["store"].as_str(), line["path"].as_str()), (Some("ram"), Some("natural")));
    }
    assert_empty(folder.path());
}

/// Every target that this machine has; those that mount need root.
#[test]
fn peers_run_where_they_are_installed() {
    let Some(command) = built_command() else {
        println!("skipped: UEXT4 names no uext4 command and none is built");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&Target::ALL, folder.path().to_path_buf(), Some(command));
    let figures = measure(&plan).figures;
    for target in Target::ALL.into_iter().filter(|target| target.obstacle(&plan).is_none()) {
        assert_complete(&figures, target);
    }
    assert_empty(folder.path());
}

/// Fault model: a form that the load does not have, or that is built from the other tree.
#[test]
fn images_are_built_from_one_directory_too() {
    let folder = tempfile::tempdir().unwrap();
    let targets = [Target::Uext4, Target::Mke2fs];
    let mut plan = plan(&targets, folder.path().to_path_buf(), None);
    plan.loads = Load::find("M7").into_iter().collect();
    plan.forms = vec![Form::Own, Form::Shared];
    // From the second round on images are compared with those of the first.
    plan.rounds = 2;
    let figures = measure(&plan).figures;
    for target in targets.into_iter().filter(|target| target.obstacle(&plan).is_none()) {
        for form in [None, Some("shared")] {
            let is_it = |figure: &&Measurement| {
                (figure.target, figure.form, figure.metric) == (target.name(), form, "wall_s")
            };
            assert_eq!(figures.iter().filter(is_it).count(), 2, "{} {form:?}", target.name());
        }
    }
    assert_empty(folder.path());
}
