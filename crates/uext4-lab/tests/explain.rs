//! What `--explain` says of options that are known to move a counter.
//!
//! Fault model: the counter that an option moves is not among those that are told, or moves the
//! wrong way; a run without its files, or with files of another form; an explained run that gives a
//! figure. Not covered: whether profiles and waits are right, as the machine decides what is seen.

mod common;

use std::fs;
use std::path::Path;
use std::time::Duration;

use common::{assert_empty, measure};
use serde_json::Value;
use uext4_lab::{Form, Load, Plan, Target};

/// An option, its load, and a counter that it moves: up, or down.
const MOVED: &[(&str, &str, &str, bool)] = &[
    ("dio_completion=deferred", "E4", "direct_completions_deferred", true),
    ("dax_overwrite=journal", "E2", "dax_overwrite_handles", true),
    ("mb_reserve=off", "E1a", "mb_preallocation_hits", false),
];

fn plan(id: &str, images: &Path, explain: &Path) -> Plan {
    Plan {
        loads: vec![Load::find(id).expect("a load")],
        targets: vec![Target::Uext4],
        folder: Some(images.to_path_buf()),
        rounds: 1,
        scale: 0.02,
        threads: vec![if id == "E4" { 1 } else { 2 }],
        forms: vec![if id == "E4" { Form::Write } else { Form::Own }],
        blocks: vec![4096],
        duration: Duration::from_millis(300),
        variants: if id == "E1a" { vec!["mb_reserve=off".into()] } else { Vec::new() },
        explain: Some(explain.to_path_buf()),
        ..Plan::default()
    }
}

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
    for (_, id, ..) in MOVED {
        let told = measure(&plan(id, images.path(), explain.path()));
        assert!(told.figures.iter().all(|figure| figure.round <= 1), "a figure of a watched run");
        assert!(told.notes.iter().any(|note| note.contains("makes")), "{:?}", told.notes);
    }
    assert_empty(images.path());
    let all = read(&explain.path().join("explain.json"));
    let pairs = all["pairs"].as_array().unwrap();
    for (option, id, counter, up) in MOVED {
        let is_it = |pair: &&Value| pair["experiment"] == *id && pair["difference"] == *option;
        let pair = pairs.iter().find(is_it).unwrap_or_else(|| panic!("no pair of {option}"));
        let counters = pair["counters"].as_array().unwrap();
        let moved = counters.iter().find(|moved| moved["name"] == *counter);
        let moved = moved.unwrap_or_else(|| panic!("{option}: {counter} is not in {counters:?}"));
        assert_eq!(moved["b"].as_f64() > moved["a"].as_f64(), *up, "{option}: {moved}");
        let words: Vec<&str> =
            pair["words"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert!(words[0].contains(option) && words[1].contains(counter), "{words:?}");
    }
    let runs = all["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * MOVED.len());
    for run in runs {
        files_of(run, explain.path());
    }
}

/// The files of a run are there, in their forms.
fn files_of(run: &Value, folder: &Path) {
    let key = run["key"].as_str().unwrap();
    let stacks = folder.join(format!("profile/{key}.folded"));
    // Where perf is missing or forbidden the reason stands here.
    assert_eq!(run["profile"].is_string(), stacks.exists(), "{key}");
    assert_ne!(run["profile"].is_string(), run["profile_missing"].is_string(), "{key}");
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
