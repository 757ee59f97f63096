//! What `--explain` says of options that are known to move a counter.
//!
//! Fault model: the counter that an option moves is not among those that are told, or moves the
//! wrong way; a run without its files, or with files of another form; an explained run that gives a
//! figure. Not covered: whether profiles and waits are right, as the machine decides what is seen.

mod common;

use std::fs;
use std::path::Path;

use common::assert_empty;
use serde_json::Value;
use uext4_lab::explain::cases::CASES;
use uext4_lab::{Event, Load, Plan, Target};

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_counter_that_an_option_moves_is_named() {
    // E2 maps its image.
    let Ok(images) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let explain = tempfile::tempdir().unwrap();
    let mut notes = Vec::new();
    let short = || CASES.iter().filter(|case| case.is_short());
    for case in short() {
        let plan = Plan {
            folder: Some(images.path().to_path_buf()),
            explain: Some(explain.path().to_path_buf()),
            ..Plan::default()
        };
        let checked = case.check(plan, &mut |event| match event {
            Event::Note(_, text) => notes.push(text),
            Event::Measured(figure) => assert!(figure.round <= 1, "a figure of a watched run"),
            Event::Failed(name, error) => panic!("{name}: {error}"),
            _ => {}
        });
        for one in checked.expect("a run") {
            println!("{one}");
            assert!(one.is_right, "{one}\n{}", notes.join("\n"));
        }
    }
    assert_empty(images.path());
    // How much faster is a matter of the machine.
    assert!(notes.iter().any(|note| note.contains("; with dio_completion=deferred ")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("direct_completions_deferred rises from 0 to")));
    let all = read(&explain.path().join("explain.json"));
    let runs = all["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * short().count());
    runs.iter().for_each(|run| files_of(run, explain.path()));
}

#[test]
fn loads_on_files_are_explained_by_the_file() {
    let images = tempfile::tempdir().unwrap();
    let explain = tempfile::tempdir().unwrap();
    let mut notes = Vec::new();
    let plan = Plan {
        loads: ["M4", "M5"].iter().filter_map(|id| Load::find(id)).collect(),
        targets: vec![Target::Uext4],
        folder: Some(images.path().to_path_buf()),
        explain: Some(explain.path().to_path_buf()),
        rounds: 2,
        scale: 0.01,
        threads: vec![2],
        variants: vec!["journal_credits=worst".to_owned()],
        ..Plan::default()
    };
    uext4_lab::run(&plan, &mut |event| match event {
        Event::Note(_, text) => notes.push(text),
        Event::Measured(figure) => assert!(figure.round <= 2, "a figure of a watched run"),
        Event::Failed(name, error) => panic!("{name}: {error}"),
        _ => {}
    })
    .unwrap();
    assert_empty(images.path());
    let has = |word: &str| notes.iter().any(|note| note.contains(word));
    assert!(
        has("with journal_credits=worst it was") && has("in 2 rounds, fewer than five"),
        "{notes:?}"
    );
    assert!(has(" a file"), "{notes:?}");
    let all = read(&explain.path().join("explain.json"));
    let runs = all["runs"].as_array().unwrap();
    let operations: Vec<u64> = runs.iter().filter_map(|run| run["operations"].as_u64()).collect();
    assert_eq!(operations, [600, 600, 1800, 1800]);
    let rose = all["pairs"][0]["counters"].as_array().unwrap().iter();
    assert!(rose.into_iter().any(|moved| moved["name"] == "credits"), "{all}");
    for run in runs {
        assert_eq!(run["rounds"], 2, "{run}");
        let key = run["key"].as_str().unwrap();
        assert!(explain.path().join(format!("profile/{key}.waits.json")).exists(), "{key}");
        assert!(explain.path().join(format!("latency/{key}.jsonl")).exists(), "{key}");
    }
}

/// The files of a run are there, in their forms.
fn files_of(run: &Value, folder: &Path) {
    let key = run["key"].as_str().unwrap();
    let stacks = folder.join(format!("profile/{key}.folded"));
    // What took it, or the reason why there is none, stands here.
    assert_eq!(run["profile_by"].is_string(), stacks.exists(), "{key}");
    assert_ne!(run["profile_by"].is_string(), run["profile_missing"].is_string(), "{key}");
    if let Ok(text) = fs::read_to_string(stacks) {
        let is_line =
            |line: &str| line.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<u64>().is_ok());
        assert!(text.lines().all(is_line), "{key}: {text}");
    }
    let waits = read(&folder.join(format!("profile/{key}.waits.json")));
    for name in ["seconds", "threads", "context_switches_per_op", "wakeups_per_op"] {
        assert!(waits[name].is_number(), "{key}: {name}: {waits}");
    }
    for name in ["waits", "locks", "commit_phases"] {
        assert!(waits[name].is_array(), "{key}: {name}: {waits}");
    }
    let text = fs::read_to_string(folder.join(format!("latency/{key}.jsonl"))).unwrap();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["phase"].is_string(), "{line}");
        let has_form = match line["kind"].as_str() {
            Some("histogram") => line["buckets"].is_array() && line["unit"] == "us",
            Some("series") => {
                ["t_s", "ops", "p50", "p99", "max"].iter().all(|k| line[k].is_number())
            }
            _ => false,
        };
        assert!(has_form, "{line}");
    }
    // E1a times no calls of its own.
    let is_timed = text.contains("\"series\"") && text.contains("\"histogram\"");
    assert!(is_timed || run["experiment"] == "E1a", "{key}: {text}");
}
