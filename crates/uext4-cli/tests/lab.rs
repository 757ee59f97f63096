//! `uext4 lab`: the verdict of `compare` as an exit status, and the folder of evidence of `run`.
//!
//! Fault model: a regression that a script does not see; an alarm without one; files that are no
//! runs taken for equal ones; a run that was killed while it wrote figures, and goes on; a folder
//! that is somebody else's. Not covered: the loads themselves (docs/lab.md).

mod common;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Scratch, UEXT4};

/// A run of E3 of ten rounds about `rate`, in a file.
fn run(scratch: &Scratch, name: &str, rate: f64) -> PathBuf {
    let mut text = String::new();
    for round in 1..=10 {
        let value = rate * (1.0 + 0.01 * f64::from(round % 3));
        let _ = write!(text, r#"{{"experiment":"E3","target":"uext4","variant":"default","#);
        let _ = write!(text, r#""store":"ram","path":"device","threads":16,"bs":16384,"#);
        let _ = writeln!(text, r#""metric":"iops","value":{value},"unit":"1/s","round":{round}}}"#);
    }
    let path = scratch.path(name);
    std::fs::write(&path, text).expect("a file");
    path
}

fn compare(a: &Path, b: &Path) -> (Option<i32>, String, String) {
    let output =
        Command::new(UEXT4).args(["lab", "compare"]).args([a, b]).output().expect("uext4 runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_status_says_whether_a_run_is_worse() {
    let scratch = Scratch::new();
    let (before, same) = (run(&scratch, "a", 1000.0), run(&scratch, "same", 1001.0));
    let slower = run(&scratch, "slower", 700.0);
    let (status, table, _) = compare(&before, &slower);
    assert_eq!(status, Some(1), "{table}");
    assert!(table.contains("WORSE"), "{table}");
    let (status, table, _) = compare(&slower, &before);
    assert_eq!(status, Some(0), "{table}");
    let (status, table, _) = compare(&before, &same);
    assert_eq!(status, Some(0), "{table}");
    assert!(table.contains("within noise"), "{table}");
}

/// The folder of a run is as good as its figures.
#[test]
fn folders_of_runs_are_compared() {
    let scratch = Scratch::new();
    let [before, after] = ["before", "after"].map(|name| scratch.path(name));
    for (dir, rate) in [(&before, 1000.0), (&after, 700.0)] {
        std::fs::create_dir(dir).expect("a folder");
        let name = dir.join("raw.jsonl");
        run(&scratch, name.to_str().expect("a name"), rate);
    }
    let (status, table, said) = compare(&before, &after);
    assert_eq!((status, table.contains("WORSE")), (Some(1), true), "{table}{said}");
    let (status, table, _) = compare(&before.join("raw.jsonl"), &before);
    assert_eq!(status, Some(0), "{table}");
    let (status, _, said) = compare(&before, scratch.dir.path());
    assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("raw.jsonl"), "{said}");
}

#[test]
fn what_is_no_run_is_neither_better_nor_worse() {
    let scratch = Scratch::new();
    let good = run(&scratch, "a", 1000.0);
    let bad = scratch.path("bad");
    std::fs::write(&bad, "no figure\n").expect("a file");
    for other in [bad, scratch.path("missing")] {
        let (status, table, line) = compare(&good, &other);
        assert_eq!((status, table.as_str()), (Some(2), ""), "{line}");
        assert!(line.contains("no figure of a run") || line.contains("missing"), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

/// Fault model: `git bisect run` takes every status but 0 and 125 for a bad commit, so a commit
/// whose run is broken would be blamed.
#[test]
fn bisection_skips_what_cannot_be_compared() {
    let scratch = Scratch::new();
    let (good, slow) = (run(&scratch, "a", 1000.0), run(&scratch, "slow", 700.0));
    let bad = scratch.path("bad");
    std::fs::write(&bad, "no figure\n").expect("a file");
    let status = |words: &[&Path]| {
        let run = Command::new(UEXT4).arg("lab").args(words).arg("--bisect").output();
        run.expect("uext4 runs").status.code()
    };
    let compare = Path::new("compare");
    assert_eq!(status(&[compare, &good, &good]), Some(0));
    assert_eq!(status(&[compare, &good, &slow]), Some(1));
    assert_eq!(status(&[compare, &good, &bad]), Some(125));
    // No other commit has another baseline.
    let guard = Path::new("guard");
    assert_eq!(status(&[guard, &bad]), Some(255));
    assert_eq!(status(&[guard, &scratch.path("missing")]), Some(255));
    // Nor does one read another command line.
    assert_eq!(status(&[guard]), Some(255));
    assert_eq!(status(&[guard, &bad, Path::new("--frob")]), Some(255));
    assert_eq!(status(&[compare, &good]), Some(255));
    assert_eq!(status(&[compare, &scratch.path("missing"), &good]), Some(255));
}

/// The page that `lab report` makes of a folder.
fn report(dir: &Path) -> String {
    let run = Command::new(UEXT4).args(["lab", "report"]).arg(dir).output().expect("uext4 runs");
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
    std::fs::read_to_string(dir.join("report.html")).expect("a page")
}

/// Fault model: what `compare` writes is not what the report reads.
#[test]
fn two_builds_are_a_page_of_the_report() {
    let scratch = Scratch::new();
    let (before, slower) = (run(&scratch, "a", 1000.0), run(&scratch, "slower", 700.0));
    let json = Command::new(UEXT4)
        .args(["lab", "compare", "--json"])
        .args([&before, &slower])
        .output()
        .expect("uext4 runs");
    assert_eq!(json.status.code(), Some(1));
    let dir = scratch.path("compared");
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("compare.json"), json.stdout).expect("a file");
    let page = report(&dir);
    assert!(page.contains("B is worse by 1 of 1 figure."), "{page}");
    assert!(page.contains("E3 uext4 default ram x16 16384 B iops"), "{page}");
    assert!(page.contains(">0.70x "), "{page}");

    let dir = scratch.path("pair");
    let pair = Command::new(UEXT4)
        .args(["lab", "pair", UEXT4, "--rounds", "1", "--out"])
        .arg(&dir)
        .args("-- E3 --own uext4 --threads 1 --seconds 0.05".split(' '))
        .output()
        .expect("uext4 runs");
    assert_eq!(pair.status.code(), Some(0), "{}", String::from_utf8_lossy(&pair.stderr));
    let page = report(&dir);
    assert!(page.contains("Too few rounds for a verdict: 2 figures."), "{page}");
    assert!(page.contains("E3 uext4 default ram x1 16384 B iops"), "{page}");
}

/// A script must not take a run without a target for one that went well, nor find a folder of it.
/// Fault model: an hour of measuring before a word is refused, and figures that are written over.
#[test]
fn a_pair_is_refused_before_anything_runs() {
    let scratch = Scratch::new();
    let dir = scratch.path("pair");
    let pair = |more: &[&str]| {
        let run = Command::new(UEXT4)
            .args(["lab", "pair", "/nowhere/uext4", "--out"])
            .arg(&dir)
            .args(more)
            .output()
            .expect("uext4 runs");
        (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
    };
    for (words, reason) in [
        (&["--threshold", "100", "--", "E3"][..], "threshold"),
        (&["--", "E3", "--rounds", "3"], "before --"),
        (&["--", "E3", "--peer=raw"], "sets it itself"),
        (&["--", "E3", "--out", "/nowhere"], "before --"),
        (&["--", "E3", "--dry-run"], "sets it itself"),
        (&["--", "E99"], "no such load"),
        (&["--", "E3", "--frobnicate"], "unexpected argument"),
        (&["--", "E3", "--help"], "not behind --"),
        (&["--", "E3", "--own", "mke2fs"], "nothing to run"),
        (&["--", "M1", "--aged"], "M1 takes no notice of --aged"),
        (&["--rounds", "0", "--", "E3"], "0 is not in 1.."),
    ] {
        let (status, said) = pair(words);
        assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains(reason) && !dir.exists(), "{said}");
    }
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("b.jsonl"), "of before").expect("a file");
    let (status, said) = pair(&["--", "E3"]);
    assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("earlier pair"), "{said}");
    assert_eq!(std::fs::read_to_string(dir.join("b.jsonl")).expect("a file"), "of before");
    // A commit that has no such load is skipped; a word that no commit takes ends the search.
    assert_eq!(pair(&["--bisect", "--", "E99"]).0, Some(125));
    for words in [
        &["--", "E3", "--json"][..],
        &["--", "E3", "--frobnicate"],
        &["--", "--js", "E3"],
        &["--", "E3", "--own", "none"],
        &["--rounds", "0", "--", "E3"],
    ] {
        let (status, said) = pair(&[&["--bisect"][..], words].concat());
        assert_eq!((status, said.lines().count()), (Some(255), 1), "{said}");
    }
    // That is no option of the pair.
    assert_eq!(pair(&["--rounds", "0", "--", "E3", "--bisect"]).0, Some(2));
}

#[test]
fn a_run_of_nothing_is_wrong_usage() {
    let scratch = Scratch::new();
    let out = scratch.path("out");
    for words in [
        "E3 --own none --peer none",
        "E3 --own mke2fs --peer none",
        "E2 --own none --peer kernel",
        "E3 --own mke2fs --peer none --dry-run",
    ] {
        let mut run = Command::new(UEXT4);
        let run = run.args(["lab", "run", "--out"]).arg(&out).args(words.split(' ')).output();
        let run = run.expect("uext4 runs");
        let line = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!((run.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains("nothing to run") && run.stdout.is_empty(), "{line}");
        assert!(!out.exists(), "{words}");
    }
    // A peer that is not in every build says how it gets into one.
    if !cfg!(feature = "peer-rust-fs-ext4") {
        let words = ["lab", "run", "M4", "--own", "none", "--peer", "rust-fs-ext4"];
        let run = Command::new(UEXT4).args(words).output().expect("uext4 runs");
        let line = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!((run.status.code(), line.lines().count()), (Some(2), 1), "{line}");
        assert!(line.contains("--features peer-rust-fs-ext4"), "{line}");
    }
    // What fails before the first run leaves nothing either.
    let mut run = Command::new(UEXT4);
    run.args(["lab", "run", "E3", "--own", "uext4", "--peer", "none", "--store", "disk", "--out"]);
    let run = run.arg(&out).args(["--folder", "/dev/shm"]).output().expect("uext4 runs");
    let line = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success() && line.contains("is in memory"), "{line}");
    assert!(!out.exists(), "{line}");
}

/// A short run of E3 into `dir`; its status and what it said.
fn evidence(dir: &Path, more: &[&str]) -> (Option<i32>, String) {
    let words = "lab run E3 --own uext4 --peer raw --threads 2 --seconds 0.1 --rounds 2 --out";
    let run = Command::new(UEXT4).args(words.split(' ')).arg(dir).args(more).output();
    let run = run.expect("uext4 runs");
    (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
}

fn lines(dir: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(name)).expect("a file of the folder");
    text.lines().map(str::to_owned).collect()
}

/// The run, without its value, of each figure.
fn runs_of(figures: &[String]) -> Vec<String> {
    let key = |line: &String| {
        let (before, after) = line.split_once("\"value\":").expect("a figure");
        format!("{before}{}", after.split_once(',').expect("a figure").1)
    };
    let mut keys: Vec<_> = figures.iter().map(key).collect();
    keys.sort();
    keys
}

#[test]
fn a_run_that_was_killed_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let dir = scratch.path("run");
    let (status, said) = evidence(&dir, &[]);
    assert_eq!(status, Some(0), "{said}");
    let whole = lines(&dir, "raw.jsonl");
    // uext4, raw, and uext4 again, in two rounds.
    assert_eq!(lines(&dir, "runs.jsonl").len(), 6);
    for file in ["env.json", "plan.json", "events.jsonl", "summary.md"] {
        assert!(dir.join(file).is_file(), "{file}");
    }
    let stats = dir.join("tools/E3-one-2-16384-uext4-aa-r2/uext4-stats.json");
    assert!(std::fs::read_to_string(stats).expect("statistics").contains("transactions"));

    // Killed while it wrote: the last two runs have not ended, and their figures are torn.
    let ended = lines(&dir, "runs.jsonl")[..4].join("\n");
    std::fs::write(dir.join("runs.jsonl"), format!("{ended}\n{{\"key\":\"E3-o")).expect("torn");
    let torn = whole.join("\n");
    std::fs::write(dir.join("raw.jsonl"), &torn[..torn.len() - 20]).expect("torn");
    let (status, said) = evidence(&dir, &["--resume"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("of which 4 are done"), "{said}");
    let resumed = lines(&dir, "raw.jsonl");
    assert_eq!(runs_of(&resumed), runs_of(&whole));
    let kept = resumed.iter().zip(&whole).take_while(|(now, before)| now == before).count();
    assert!(kept >= whole.len() / 2, "runs that had ended were repeated: {kept}");
}

#[test]
fn a_folder_of_somebody_else_is_left_alone() {
    let scratch = Scratch::new();
    let dir = scratch.path("mine");
    std::fs::create_dir(&dir).expect("a folder");
    std::fs::write(dir.join("letter"), "dear").expect("a file");
    for more in [&[][..], &["--resume"]] {
        let (status, said) = evidence(&dir, more);
        assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.contains("holds"), "{said}");
    }
    assert_eq!(dir.read_dir().expect("the folder").count(), 1);
    // Another plan is another run.
    let dir = scratch.path("run");
    assert_eq!(evidence(&dir, &[]).0, Some(0));
    let before = lines(&dir, "raw.jsonl");
    let (status, said) = evidence(&dir, &["--resume", "--scale", "0.5"]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.ends_with("was begun with another plan: --scale: 1.0, now 0.5\n"), "{said}");
    assert_eq!(lines(&dir, "raw.jsonl"), before);
}

/// Fault model: figures of two builds, or of two kernels, in one folder, taken for one run.
#[test]
fn another_build_or_machine_does_not_go_on_with_a_run() {
    let scratch = Scratch::new();
    let dir = scratch.path("run");
    let (status, said) = evidence(&dir, &[]);
    assert_eq!(status, Some(0), "{said}");
    let as_it_was = std::fs::read_to_string(dir.join("env.json")).expect("an environment");
    let files = || {
        let entries = dir.read_dir().expect("the folder").map(|entry| entry.expect("an entry"));
        let times = entries.map(|e| (e.file_name(), e.metadata().expect("a file").modified().ok()));
        let mut all: Vec<_> = times.collect();
        all.sort();
        all
    };
    for (name, word) in [("program_sha256", "program: "), ("kernel", "kernel: 0.0.0-other, now ")] {
        let mut other: serde_json::Value = serde_json::from_str(&as_it_was).expect("JSON");
        other[name] = "0.0.0-other".into();
        std::fs::write(dir.join("env.json"), other.to_string()).expect("a file");
        let before = files();
        let (status, said) = evidence(&dir, &["--resume"]);
        assert_eq!((status, said.lines().count()), (Some(2), 1), "{said}");
        assert!(
            said.contains("another build or on another machine") && said.contains(word),
            "{said}"
        );
        assert_eq!(files(), before, "{name}");
    }
    std::fs::write(dir.join("env.json"), as_it_was).expect("a file");
    let (status, said) = evidence(&dir, &["--resume"]);
    assert_eq!(status, Some(0), "{said}");
}

/// Fault model: ratios over all rounds that an earlier part of the run has left, beside new ones.
#[test]
fn what_is_over_all_rounds_stands_once() {
    let scratch = Scratch::new();
    let dir = scratch.path("run");
    let run = |more: &[&str]| {
        let words = "lab run E2 --own uext4 --peer raw --threads 1 --seconds 0.02 --scale 0.01 \
                     --rounds 2 --no-aa --out";
        let run = Command::new(UEXT4).args(words.split_whitespace()).arg(&dir).args(more).output();
        let run = run.expect("uext4 runs");
        assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
        let raw = lines(&dir, "raw.jsonl");
        let ratios = raw.iter().filter(|line| line.contains("\"iops_ratio_raw\""));
        assert_eq!(ratios.count(), 1, "{more:?}");
        let last: serde_json::Value =
            serde_json::from_str(raw.last().expect("figures")).expect("JSON");
        assert_eq!(last["round"], 0, "{last}");
        last["value"].as_f64().expect("a number")
    };
    let first = run(&[]);
    // A number that was read from text may be another one in its last digit.
    let again = run(&["--resume"]);
    assert!((again / first - 1.0).abs() < 1e-12, "{again} {first}");
    // The last run is made again, and counts.
    let marks = lines(&dir, "runs.jsonl");
    std::fs::write(dir.join("runs.jsonl"), marks[..marks.len() - 1].join("\n") + "\n")
        .expect("marks");
    run(&["--resume"]);
    assert_eq!(lines(&dir, "runs.jsonl").len(), marks.len());
}

/// Fault model: an explanation that an earlier run has left, judged for this build.
#[test]
fn an_earlier_explanation_is_not_judged() {
    let scratch = Scratch::new();
    let file = scratch.path("explain.json");
    std::fs::write(&file, "{\"runs\": [], \"pairs\": []}\n").expect("a file");
    let mut check = Command::new(UEXT4);
    check.args(["lab", "explain-check", "--out"]).arg(scratch.dir.path());
    let check = check.output().expect("uext4 runs");
    let said = String::from_utf8_lossy(&check.stderr);
    assert_eq!((check.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("explanation of an earlier run") && check.stdout.is_empty(), "{said}");
}

/// Where perf(1) may not look, the process looks at itself, and leaves nothing where others keep
/// what is temporary.
#[test]
#[cfg(feature = "sampler")]
fn there_is_a_profile_where_perf_is_forbidden() {
    use std::os::unix::fs::PermissionsExt;

    let scratch = Scratch::new();
    let [out, programs, temporary] = ["out", "bin", "tmp"].map(|name| scratch.path(name));
    [&programs, &temporary].map(|dir| std::fs::create_dir(dir).expect("a folder"));
    let perf = programs.join("perf");
    std::fs::write(&perf, "#!/bin/sh\necho not permitted >&2\nexit 1\n").expect("a file");
    std::fs::set_permissions(&perf, PermissionsExt::from_mode(0o755)).expect("permissions");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut lab = Command::new(UEXT4);
    let words = "lab run E3 --store ram --own uext4 --peer none --rounds 1 --seconds 1 --threads 2 \
                 --no-aa --explain --out";
    lab.args(words.split_whitespace()).arg(&out).env("TMPDIR", &temporary);
    lab.env("PATH", format!("{}:{path}", programs.display()));
    let done = lab.output().expect("uext4 runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(0), "{said}");
    let text = |name: &str| std::fs::read_to_string(out.join(name)).expect("a file of the run");
    let all: serde_json::Value = serde_json::from_str(&text("explain.json")).expect("JSON");
    let run = &all["runs"][0];
    let by = run["profile_by"].as_str().unwrap_or_default();
    assert!(by.starts_with("a sampler in this process") && by.contains("not permitted"), "{run}");
    let folded = text(&format!("profile/{}.folded", run["key"].as_str().expect("a key")));
    assert!(!folded.contains("::inside::spin"), "{folded}");
    let functions = folded.split([';', ' ', '\n']);
    let mut of_engine = functions.filter(|name| name.starts_with("uext4::"));
    let report = text("report.html");
    assert!(of_engine.any(|name| report.contains(name)), "{folded}");
    let left: Vec<_> = temporary.read_dir().expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Fault model: a run of an ordinary user that begins, and fails where it makes its first folder.
#[test]
fn a_folder_that_nobody_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let scratch = Scratch::new();
    let (folder, out) = (scratch.path("images"), scratch.path("out"));
    std::fs::create_dir(&folder).expect("a folder");
    for (path, mode) in [(&folder, 0o555), (&scratch.path("."), 0o755)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("permissions");
    }
    let mut lab = Command::new(UEXT4);
    if common::is_root() {
        if !common::has("setpriv") {
            skip!("setpriv is not installed");
        }
        let program = scratch.path("uext4");
        common::copy_program(Path::new(UEXT4), &program);
        lab = Command::new("setpriv");
        lab.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(program);
    }
    lab.args("lab run E3 --own uext4 --peer none --folder".split(' ')).arg(&folder);
    let run = lab.arg("--out").arg(&out).output().expect("uext4 runs");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!((run.status.code(), said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("this user can make no files there"), "{said}");
}

/// A matrix is told by its plan; a word that means nothing costs nothing.
#[test]
fn bad_words_are_one_line_and_the_matrix_is_planned() {
    let lab = |words: &str| {
        let run = Command::new(UEXT4).args(["lab", "run"]).args(words.split(' ')).output();
        let run = run.expect("uext4 runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (run.status.code(), text(&run.stdout), text(&run.stderr))
    };
    let scratch = Scratch::new();
    let out = scratch.path("out");
    for (words, reason) in [
        ("E99", "no such load"),
        ("E3 --own nothing", "no such target"),
        ("E3 --store moon", "no such store"),
        ("E3 --set nothing=1", "nothing"),
        ("E3 --set journal_join=zebra", "zebra"),
        ("E3 --set delalloc", "not an option with values"),
        ("E3 --folder /nowhere/at/all", "/nowhere/at/all"),
        ("E3 --folder /proc/version", "not a directory"),
        ("E3 --rounds 0", "0 is not in 1.."),
        ("M1 --threads 2", "M1 takes 1 thread\n"),
        ("E3,M4 --form foreign", "E3, M4 take no notice of --form foreign"),
        ("E1b --churn 2", "--aged"),
    ] {
        let (status, told, line) = lab(&format!("{words} --out {}", out.display()));
        assert_eq!((status, told.as_str(), line.lines().count()), (Some(2), "", 1), "{line}");
        assert!(line.contains(reason), "{words}: {line}");
        assert!(!out.exists(), "{words}");
    }
    let matrix = "E3 --own uext4 --peer none --dry-run --rounds 2 --set journal_join=herd,fifo";
    let (status, plan, line) = lab(&format!("{matrix} --set delalloc=off"));
    assert_eq!(status, Some(0), "{line}");
    // fifo is the default: no candidate of its own.
    assert!(plan.ends_with('\n') && plan.contains("nodelalloc"), "{plan}");
    assert!(!plan.contains("fifo") && plan.contains("6 runs, "), "{plan}");
    // What is named twice runs once.
    let (_, plan, line) = lab("E3,E3 --own uext4,uext4 --peer none --threads 2,2 --dry-run");
    assert!(plan.contains("3 runs, "), "{plan}{line}");
    let (_, plan, line) = lab(&format!("{matrix} --set delalloc=off --combine"));
    assert!(plan.contains("journal_join=herd,nodelalloc"), "{plan}{line}");
    assert!(plan.contains("6 runs, "), "{plan}");
}
