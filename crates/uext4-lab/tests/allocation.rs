//! E1a and E1b with few threads, small files and little time, on every target that the machine has.
//!
//! Fault model: a target that does not run where it can, that leaves an image that is not clean or
//! files without their blocks (the run judges those and fails the run); a form or a variant that
//! is left out or not named; a figure that is missing or not in the documented form; something left
//! behind. Not covered: whether figures mean anything at this size.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{Told, assert_empty, built_command, measure};
use uext4_lab::{Ageing, Event, Form, Load, Measurement, Plan, Route, Target, run};

fn plan(ids: &[&str], folder: &Path, targets: &[Target], route: Route) -> Plan {
    Plan {
        loads: ids.iter().map(|id| Load::find(id).expect("a load")).collect(),
        targets: targets.to_vec(),
        folder: Some(folder.to_path_buf()),
        route,
        rounds: 1,
        scale: 0.002,
        threads: vec![3],
        duration: Duration::from_millis(300),
        variants: vec!["mb_optimize_scan=0".into()],
        command: built_command(),
        ..Plan::default()
    }
}

/// Value of a figure by experiment, form, target with variant, and metric.
fn value(
    figures: &[Measurement],
    (id, form): (&str, Option<&str>),
    candidate: (&str, &str),
    metric: &str,
) -> Option<f64> {
    let is_it = |m: &&Measurement| {
        (m.experiment, m.form) == (id, form)
            && (m.target, m.variant.as_str(), m.metric) == (candidate.0, candidate.1, metric)
    };
    figures.iter().find(is_it).map(|m| m.value)
}

fn assert_documented(figures: &[Measurement]) {
    for figure in figures {
        let line: serde_json::Value = serde_json::from_str(&figure.to_json()).unwrap();
        let bs = Load::find(figure.experiment).unwrap().block_bytes;
        assert_eq!((&line["bs"], &line["threads"]), (&bs.into(), &3.into()), "{line}");
        assert_eq!(line.get("form").and_then(|form| form.as_str()), figure.form, "{line}");
        assert!(line["value"].as_f64().unwrap() >= 0.0 && line["round"] == 1, "{line}");
    }
}

#[test]
fn the_library_runs_both_forms_and_each_variant_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&["E1a", "E1b"], folder.path(), &[Target::Uext4], Route::Natural);
    let Told { figures, notes, .. } = measure(&plan);
    assert!(notes.iter().any(|note| note.contains("needs at most")), "the space: {notes:?}");
    assert_documented(&figures);
    for variant in ["default", "mb_optimize_scan=0"] {
        let candidate = ("uext4", variant);
        for form in [Some("own"), Some("foreign")] {
            for metric in ["ops_per_s", "context_switches_per_op", "peak_rss_kib"] {
                let found = value(&figures, ("E1a", form), candidate, metric);
                assert!(found.is_some_and(|value| value > 0.0), "{form:?} {variant} {metric}");
            }
        }
        for metric in ["bytes_per_s", "extents_per_file", "free_extent_mean_kib", "runs_per_file"] {
            let found = value(&figures, ("E1b", None), candidate, metric);
            assert!(found.is_some_and(|value| value > 0.0), "{variant} {metric}");
        }
        let contended = value(&figures, ("E1a", Some("own")), candidate, "contended_per_kop");
        assert!(contended.is_some(), "{variant}");
        // As many appends as the files have blocks, whatever the variant.
        let blocks = (((1_u64 << 30) as f64 * 0.002) as u64).div_ceil(4096);
        let made = value(&figures, ("E1b", None), candidate, "operations");
        assert_eq!(made, Some((3 * blocks) as f64));
    }
    assert_empty(folder.path());
}

/// With root and loop devices nothing is left out.
#[test]
fn the_kernel_runs_on_the_same_device_and_ages_as_we_do() {
    let folder = tempfile::tempdir().unwrap();
    let targets = [Target::Uext4, Target::Kernel];
    let plan = Plan {
        aged: true,
        ageing: Ageing { churn: 0.2, ..Ageing::default() },
        forms: vec![Form::Foreign],
        ..plan(&["E1a", "E1b"], folder.path(), &targets, Route::Device)
    };
    let able: Vec<Target> =
        targets.into_iter().filter(|target| target.obstacle(&plan).is_none()).collect();
    let Told { figures, notes, .. } = measure(&plan);
    assert!(notes.iter().any(|note| note.contains("needs at most")), "the space: {notes:?}");
    assert_documented(&figures);
    assert!(figures.iter().all(|m| m.form != Some("own")), "one form was asked for");
    for target in able {
        for variant in ["default", "mb_optimize_scan=0"] {
            let candidate = (target.name(), variant);
            let speed = value(&figures, ("E1a", Some("foreign")), candidate, "ops_per_s");
            assert_eq!(speed.is_some(), variant == "default" || target.is_own(), "{candidate:?}");
            for metric in ["bytes_per_s", "extents_per_file", "aged_extents_per_file"] {
                let found = value(&figures, ("E1b", Some("aged")), candidate, metric);
                assert!(found.is_some_and(|value| value > 0.0), "{candidate:?} {metric}");
            }
        }
    }
    assert_empty(folder.path());
}

#[test]
fn small_files_of_one_directory_have_a_form_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        forms: vec![Form::Own, Form::Shared],
        threads: vec![2],
        scale: 0.01,
        variants: Vec::new(),
        ..plan(&["M4", "M6"], folder.path(), &[Target::Uext4], Route::Natural)
    };
    let mut figures = Vec::new();
    run(&plan, &mut |event| match event {
        Event::Measured(figure) => figures.push(figure.clone()),
        Event::Failed(name, error) => panic!("{name}: {error}"),
        _ => {}
    })
    .expect("the run");
    for form in [None, Some("shared")] {
        for id in ["M4", "M6"] {
            let speed = value(&figures, (id, form), ("uext4", "default"), "ops_per_s");
            assert!(speed.is_some_and(|value| value > 0.0), "{id} {form:?}");
            let metric = "neighbour_distance_kib";
            let far = value(&figures, (id, form), ("uext4", "default"), metric);
            assert_eq!(far.is_some(), id == "M4", "{form:?}");
        }
    }
    assert_empty(folder.path());
}

#[test]
fn what_does_not_fit_is_refused_before_it_starts() {
    // Wherever there is less room.
    let room = |folder: &Path| rustix::fs::statvfs(folder).map(|f| f.f_bavail * f.f_frsize);
    let folders = [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")];
    let folders = folders.into_iter().flatten();
    let folder = folders.min_by_key(|f| room(f.path()).unwrap_or(u64::MAX)).unwrap();
    let mut plan = plan(&["E1b"], folder.path(), &[Target::Uext4], Route::Natural);
    // 8,192 files of 1 GiB: their extents alone may take 32 GiB.
    (plan.threads, plan.scale) = (vec![8192], 1.0);
    if room(folder.path()).unwrap() > 34 << 30 {
        println!("skipped: {} has room for it", folder.path().display());
        return;
    }
    let error = run(&plan, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("needs at most") && error.contains("--scale"), "{error}");
    assert_empty(folder.path());
}
