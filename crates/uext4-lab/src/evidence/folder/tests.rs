//! Tests of the folder of evidence.

use super::*;
use crate::evidence::{RunName, TargetRun};
use crate::load::Load;
use crate::plan::Figure;
use crate::target::Target;

fn plan() -> Plan {
    let loads = vec![Load::find("E3").unwrap()];
    Plan { loads, targets: vec![Target::Uext4], ..Plan::default() }
}

fn name(round: u32) -> RunName<'static> {
    let run = TargetRun {
        load: Load::find("E3").unwrap(),
        target: Target::Uext4,
        form: None,
        threads: 16,
        bs: 16384,
        round,
    };
    RunName { run, variant: "default" }
}

/// A run with that figure, kept.
fn keep(evidence: &mut Evidence, round: u32, value: f64) {
    let name = name(round);
    let figure = Figure { variant: name.variant.to_owned(), metric: "iops", value };
    let figure = plan().measurement(name.run, &figure);
    evidence.keep(&Event::Run(name)).unwrap();
    evidence.keep(&Event::Measured(&figure)).unwrap();
    evidence.keep(&Event::Ended(name)).unwrap();
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

/// Fault model: two runs whose figures and marks are mixed in one folder.
#[test]
fn a_folder_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let first = Evidence::open(&out, &mut plan(), false).unwrap();
    let error = Evidence::open(&out, &mut plan(), true).unwrap_err().to_string();
    assert!(error.ends_with("is being written by another run"), "{error}");
    drop(first);
    Evidence::open(&out, &mut plan(), true).unwrap();
}

/// Fault model: a figure that JSON has no number for cuts all behind it off.
#[test]
fn a_figure_that_is_no_number_is_told_and_left_out() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let mut evidence = Evidence::open(&out, &mut plan(), false).unwrap();
    keep(&mut evidence, 1, f64::INFINITY);
    keep(&mut evidence, 2, 7.0);
    evidence.finish(None).unwrap();
    assert_eq!(read(&out, "raw.jsonl").lines().count(), 1);
    assert!(read(&out, "events.jsonl").contains("round 1: iops is no number"));
    let mut plan = plan();
    Evidence::open(&out, &mut plan, true).unwrap();
    assert_eq!(plan.resumed.count(), 2);
}

/// Fault model: a run that is killed at any moment of its beginning; a word for a folder that
/// is not there.
#[test]
fn every_folder_can_be_begun_or_gone_on_with() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    for is_there in [false, true] {
        let error = Evidence::open(&out, &mut plan(), true).unwrap_err().to_string();
        assert!(error.contains("holds no run to go on with"), "{error}");
        assert_eq!(out.exists(), is_there);
        fs::create_dir_all(&out).unwrap();
    }
    // Killed before the plan was there.
    json_file::write(&out.join("env.json"), &environment::describe(&plan())).unwrap();
    fs::write(out.join("plan.new"), "{").unwrap();
    drop(Evidence::open(&out, &mut plan(), false).unwrap());
    // And behind it.
    for name in ["raw.jsonl", "events.jsonl", "runs.jsonl"] {
        fs::remove_file(out.join(name)).unwrap();
    }
    Evidence::open(&out, &mut plan(), true).unwrap();
    let other = scratch.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("env.json"), "{\"of\": \"somebody else\"}").unwrap();
    assert!(Evidence::open(&other, &mut plan(), false).is_err());
}

/// Fault model: a run that was killed took no time.
#[test]
fn seconds_of_all_parts_of_a_run_count() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let mut evidence = Evidence::open(&out, &mut plan(), false).unwrap();
    evidence.seconds_before = 100.0;
    keep(&mut evidence, 1, 7.0);
    drop(evidence);
    let mut evidence = Evidence::open(&out, &mut plan(), true).unwrap();
    assert!(evidence.seconds() >= 100.0, "{}", evidence.seconds());
    keep(&mut evidence, 2, 7.0);
    evidence.finish(None).unwrap();
    assert!(read(&out, "runs.jsonl").lines().all(|line| line.contains("\"seconds\":10")));
    let environment = json_file::read(&out.join("env.json")).unwrap();
    assert!(environment["seconds"].as_f64().unwrap() >= 100.0, "{environment}");
    assert!(read(&out, "events.jsonl").contains("\"resumed\""));
}

/// Fault model: hours of runs without a summary, because one line of another file had no room.
#[test]
fn what_can_be_written_at_the_end_is_written() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["events.jsonl", "raw.jsonl"] {
        let out = scratch.path().join(name);
        let mut evidence = Evidence::open(&out, &mut plan(), false).unwrap();
        keep(&mut evidence, 1, 7.0);
        let full = LineFile::open(Path::new("/dev/full")).unwrap();
        match name {
            "raw.jsonl" => {
                evidence.over_rounds = "{}\n".to_owned();
                evidence.raw = full;
            }
            _ => evidence.events = full,
        }
        let error = evidence.finish(Some("interrupted")).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        let summary = read(&out, "summary.md");
        assert!(summary.contains("E3") && summary.contains("| uext4 |"), "{summary}");
    }
}

/// Fault model: a run that did not begin leaves a folder that no other can have.
#[test]
fn what_has_not_begun_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    let evidence = Evidence::open(&out, &mut plan(), false).unwrap();
    fs::create_dir_all(out.join("tools/E0-r0")).unwrap();
    fs::write(out.join("tools/E0-r0/uext4-stats.json"), "{}").unwrap();
    evidence.discard().unwrap();
    assert!(!out.exists());
}

/// Fault model: a new build, which writes its plan in another way, is told as another plan.
#[test]
fn another_build_is_told_before_another_plan() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out");
    drop(Evidence::open(&out, &mut plan(), false).unwrap());
    let change = |name: &str, key: &str| {
        let path = out.join(name);
        let mut value = json_file::read(&path).unwrap();
        value[key] = "another".into();
        json_file::write(&path, &value).unwrap();
    };
    let refused = || Evidence::open(&out, &mut plan(), true).unwrap_err().to_string();
    change("plan.json", "sizes");
    assert!(refused().contains("with another plan: "), "{}", refused());
    change("env.json", "program_sha256");
    assert!(refused().contains("by another build or on another machine: "), "{}", refused());
}
