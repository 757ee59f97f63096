//! Evidence that is not whole gives a page that says so; a folder without evidence gives none.
//!
//! Fault model: a run that was interrupted, a machine without some of the tools, a file that was
//! cut off or is of another program, text that is HTML.

use std::path::Path;

const LINE: &str = concat!(
    r#"{"experiment":"E3","target":"uext4","variant":"default","store":"ram","path":"natural","#,
    r#""threads":16,"bs":16384,"metric":"iops","value":1000.0,"unit":"1/s","round":1}"#,
    "\n"
);

/// The page of a folder with these files.
fn page(files: &[(&str, &str)]) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    uext4_report::render(folder.path()).map_err(|error| {
        let place = folder.path().display().to_string();
        error.to_string().replace(&place, "DIR")
    })
}

#[test]
fn a_folder_without_evidence_is_an_error() {
    let error = page(&[("env.json", "{}")]).unwrap_err();
    assert_eq!(
        error,
        "DIR: no evidence: neither raw.jsonl nor compare.json nor crash.json is there"
    );
    assert!(uext4_report::write(Path::new("/nowhere")).is_err());
}

#[test]
fn what_is_missing_is_told() {
    let html = page(&[("raw.jsonl", LINE)]).unwrap();
    assert!(html.contains("no env.json: the machine is not known"), "{html}");
    assert!(html.contains("There is nothing to compare"), "{html}");
    assert!(!html.contains("id=\"flames\""));

    let html = page(&[("raw.jsonl", "")]).unwrap();
    assert!(html.contains("raw.jsonl holds no figure"), "{html}");
}

#[test]
fn lines_and_files_that_are_broken_are_told_and_the_rest_stays() {
    let cut_off = &LINE[..40];
    let raw = format!("{LINE}{cut_off}\n{LINE}");
    let files = [
        ("raw.jsonl", raw.as_str()),
        ("env.json", "[1]"),
        ("events.jsonl", "{\"event\":\"interrupted\",\"text\":\"by a signal\"}\n17\n"),
        ("latency/E3-one-16-16384-uext4-default-r1.jsonl", "{\"kind\":\"histogram\"}\nno\n"),
        ("profile/E3-one-16-16384-uext4-default-r1.folded", "no stack at all\n"),
        ("profile/E3-one-16-16384-uext4-default-r1.waits.json", "{\"waits\":[{}],\"seconds\":0}"),
        ("profile/unheard-of.folded", "a;b 3\n"),
        ("compare.json", "{\"rows\":[]}"),
        ("explain.json", "[]"),
        ("guard.json", "7"),
        ("crash.json", "{}"),
    ];
    let html = page(&files).unwrap();
    let told = [
        "raw.jsonl, line 2",
        "env.json: no object",
        "by a signal",
        "events.jsonl, line 2",
        "belongs to no figure",
        "The comparison holds no figure",
        "explain.json is not understood",
        "guard.json is not understood",
        "crash.json is not understood",
    ];
    for text in told {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(!html.contains("No cost differs") && !html.contains("id=\"crash\""), "{html}");
    assert!(html.contains("1,000/s"), "{html}");
}

#[test]
fn rounds_without_a_number_and_figures_of_zero_are_shown() {
    let zero = LINE.replace("1000.0", "0.0").replace("\"uext4\"", "\"kernel\"");
    let all = LINE.replace("\"round\":1", "\"round\":0").replace("iops", "iops_ratio_raw");
    let huge = LINE.replace("1000.0", "1e308").replace("\"round\":1", "\"round\":2");
    let html = page(&[("raw.jsonl", &format!("{LINE}{zero}{all}{huge}"))]).unwrap();
    assert!(![">NaN", " NaN", ">inf"].iter().any(|text| html.contains(text)), "{html}");
}

#[test]
fn a_number_that_is_missing_is_no_zero() {
    let key = "E3-one-16-16384-uext4-default-r1";
    let waits = r#"{"seconds":1,"threads":1,"waits":[{"cause":"a lock","total_ms":500},
        {"cause":"b","total_ms":1,"count":2,"mean_us":500,"p99_us":600}],
        "locks":[{"name":"a name"}],"commit_phases":[{"phase":"p"}]}"#;
    let latency = r#"{"kind":"series","phase":"fsync","t_s":1}"#;
    let crash = r#"{"states":3,"timeline":[{"call":"open(/a)"}],"failure":{"description":
        {"steps":[{"step":0,"call":"write(/a)"}]}}}"#;
    let [latency_of, waits_of] =
        [format!("latency/{key}.jsonl"), format!("profile/{key}.waits.json")];
    let files =
        [("raw.jsonl", LINE), (&latency_of, latency), (&waits_of, waits), ("crash.json", crash)];
    let html = page(&files).unwrap();
    for row in ["a lock", "a name", "open(/a)", "write(/a)"] {
        let (_, rest) = html.split_once(&format!("<th scope=\"row\">{row}")).unwrap();
        let (row, _) = rest.split_once("</tr>").unwrap();
        assert!(row.contains(">-<") && !row.contains(">0 "), "{row}");
    }
}

/// Rounds of uext4 and of the kernel, each with its figures.
fn rounds(own: &[f64], peer: &[f64]) -> String {
    let of = |target: &str, values: &[f64]| {
        let line = LINE.replace("\"uext4\"", &format!("\"{target}\""));
        let lines = values.iter().zip(1..).map(|(value, round)| {
            let line = line.replace("1000.0", &format!("{value:?}"));
            line.replace("\"round\":1", &format!("\"round\":{round}"))
        });
        lines.collect::<String>()
    };
    of("uext4", own) + &of("kernel", peer)
}

#[test]
fn few_rounds_have_a_range_and_no_verdict_and_zeroes_are_told() {
    let two = page(&[("raw.jsonl", &rounds(&[2.0, 4.0], &[1.0, 1.0]))]).unwrap();
    assert!(two.contains("few rounds (2)") && two.contains("(least 2.00x, most 4.00x)"), "{two}");
    assert!(!two.contains(">wins") && !two.contains(">met"), "{two}");
    let own = [2.0, 0.0, 2.1, 2.0, 1.9, 2.0];
    let six = page(&[("raw.jsonl", &rounds(&own, &[1.0; 6]))]).unwrap();
    assert!(six.contains("wins; no ratio in 1 round (of 0)"), "{six}");
    assert!(six.contains(">met"), "{six}");
}

/// Fault model: a reader sees "1.00x" and beside it that uext4 loses.
#[test]
fn a_ratio_that_is_written_as_one_is_neither_won_nor_lost() {
    for (by, word, count) in [
        (0.998, "little difference", "1 even"),
        (1.002, "little difference", "1 even"),
        (0.98, "loses", "1 lost"),
        (1.02, "wins", "1 won"),
    ] {
        let html = page(&[("raw.jsonl", &rounds(&[by; 5], &[1.0; 5]))]).unwrap();
        assert!(html.contains(&format!(">{word}<")) && html.contains(count), "{by}: {html}");
        let is_slight = word == "little difference";
        assert_eq!(html.contains("Little difference: operations per second"), is_slight, "{html}");
        assert_eq!(html.contains("1.00x (1.00x to 1.00x)"), is_slight, "{html}");
        assert!(!html.contains("1.00x</strong> as good"), "{html}");
        assert!(!html.contains(" undecided"), "{html}");
    }
    // Of two rounds nothing is known, however little they differ.
    let html = page(&[("raw.jsonl", &rounds(&[1.0; 2], &[1.0; 2]))]).unwrap();
    assert!(html.contains("1 undecided") && html.contains("too few for a verdict"), "{html}");
    assert!(!html.contains("Little difference"), "{html}");
    assert!(!html.contains("1.00x</strong> as good"), "{html}");
}

/// Fault model: the same wait is 20 % of the time in a table and 43 % in a sentence, since one of
/// them takes sleeps that are no waits of the load for time of its threads.
#[test]
fn shares_of_waits_are_of_the_time_in_which_threads_ran_or_waited() {
    let cell = |row: &str| row.split_once('>').unwrap().1.to_owned();
    let waits = |running: &str| {
        let text = r#"{"seconds":2,"threads":2,RUNNING"waits":[
            {"cause":"a lock","total_ms":600},{"cause":"a queue","total_ms":200}]}"#;
        text.replace("RUNNING", running)
    };
    let share = |running: &str, whole: &str| {
        let [own, peer] = ["uext4", "kernel"]
            .map(|target| format!("profile/E3-one-16-16384-{target}-default-r6.waits.json"));
        let waits = waits(running);
        let raw = rounds(&[2.0; 5], &[1.0; 5]);
        let html = page(&[("raw.jsonl", &raw), (&own, &waits), (&peer, &waits)]).unwrap();
        let (_, rest) = html.split_once("most for &quot;a lock&quot;: ").unwrap();
        let share = rest.split(&format!(" of {whole}")).next().unwrap();
        // The sentence in the overview and in why, the table and plot there, the page of waits.
        let (_, rest) = html.split_once(&format!("as a share of {whole}")).unwrap();
        let (_, rest) = rest.split_once("a lock</th>").unwrap();
        assert!(cell(rest).starts_with(&format!("{share}<")), "{share}: {html}");
        let (_, waits) = html.split_once("id=\"waits\"").unwrap();
        let (_, rest) = waits.split_once("a lock</th>").unwrap();
        assert!(cell(rest).starts_with(&format!("{share}<")), "{share}: {waits}");
        share.to_owned()
    };
    let seen = "the time in which they ran or waited";
    assert_eq!(share("\"running_ms\":200,", seen), "60 %");
    assert_eq!(share("", "the time of all threads"), "15 %");
    // Shares of two things are not told beside each other.
    let [own, peer] = ["uext4", "kernel"]
        .map(|target| format!("profile/E3-one-16-16384-{target}-default-r6.waits.json"));
    let [with, without] = ["\"running_ms\":200,", ""].map(waits);
    let raw = rounds(&[2.0; 5], &[1.0; 5]);
    let html = page(&[("raw.jsonl", &raw), (&own, &with), (&peer, &without)]).unwrap();
    assert!(html.contains("most for &quot;a lock&quot;.") && !html.contains("as a share of"));
}

/// The page of five rounds of a load, with what `env.json` says.
fn goals_of(raw: &str, env: &str) -> String {
    let mut files = vec![("raw.jsonl", raw)];
    if !env.is_empty() {
        files.push(("env.json", env));
    }
    page(&files).unwrap()
}

const FULL: &str = r#"{"cpus":2,"store":"ram","options":{"scale":1.0,"quick":false}}"#;

#[test]
fn times_are_goals_of_one_size_and_machine() {
    let raw = rounds(&[0.1; 5], &[1.0; 5]).replace("E3", "M1").replace("iops", "wall_s");
    let raw = raw.replace("1/s", "s");
    let full = goals_of(&raw, FULL);
    assert!(full.contains("at most 1.4 s") && full.contains(">met"), "{full}");
    let others = [
        (FULL.replace("1.0", "0.01"), "this run has the scale 0.01"),
        (FULL.replace("false", "true"), "a quick run makes its loads smaller"),
        (FULL.replace("\"cpus\":2", "\"cpus\":8"), "this machine has 8 processors"),
        (FULL.replace("\"cpus\":2,", ""), "env.json does not tell the number of processors"),
        (FULL.replace("\"scale\":1.0,", ""), "env.json does not tell the scale"),
        (FULL.replace("\"ram\"", "\"device\""), "the store is device"),
        (String::new(), "without env.json neither size nor machine is known"),
    ];
    for (env, reason) in others {
        let html = goals_of(&raw, &env);
        assert!(html.contains("not judged") && !html.contains(">met"), "{reason}: {html}");
        assert!(html.contains(&format!("Not judged, M1: {reason}")), "{reason}: {html}");
    }
    let disk =
        goals_of(&raw.replace("\"ram\"", "\"disk\""), "{\"cpus\":2,\"options\":{\"scale\":1}}");
    assert!(disk.contains("Not judged, M1: the store is disk"), "{disk}");
}

#[test]
fn goals_hold_for_the_usual_form_and_for_all_threads() {
    let form = |form: &str| format!("\"form\":\"{form}\",\"metric\"");
    let raw = rounds(&[9.0; 5], &[1.0; 5]).replace("iops", "wall_s").replace("1/s", "s");
    let shared = raw.replace("E3", "M7").replace("\"metric\"", &form("shared"));
    let html = goals_of(&shared, FULL);
    assert!(!html.contains("Goals") && !html.contains(">missed"), "{html}");
    let usual = goals_of(&raw.replace("E3", "M7"), FULL);
    assert!(usual.contains(">missed"), "{usual}");

    let raw = rounds(&[9.0; 5], &[1.0; 5]).replace("E3", "E1b").replace("iops", "bytes_per_s");
    let aged = raw.replace("\"metric\"", &form("aged"));
    assert!(goals_of(&raw, FULL).contains(">met"));
    assert!(!goals_of(&aged, FULL).contains("Goals"));
    // Files of a hundredth of their length have fewer extents on any file system; a ratio stays.
    let extents = raw.replace("bytes_per_s", "extents_per_file").replace("16,\"bs\"", "64,\"bs\"");
    let html = goals_of(&format!("{raw}{extents}"), &FULL.replace("1.0", "0.01"));
    assert!(html.contains("Not judged, E1b: this run has the scale 0.01"), "{html}");
    assert_eq!((html.matches(">met").count(), html.matches(">not judged").count()), (1, 1));

    let raw = rounds(&[9e6; 5], &[1.0; 5]).replace("E3", "M4").replace("iops", "ops_per_s");
    let one = goals_of(&raw.replace("\"threads\":16", "\"threads\":1"), FULL);
    assert!(one.contains("Not judged, M4: it ran with 1 of 2 threads"), "{one}");
    let two = goals_of(&raw.replace("\"threads\":16", "\"threads\":2"), FULL);
    assert!(two.contains(">met"), "{two}");
}

/// Fault model: a report that is mostly the evidence, written out a second time.
#[test]
fn data_is_packed_and_can_be_had_without_scripts() {
    use base64::Engine;
    use std::io::Read;

    let raw = rounds(&[2.0; 400], &[1.0; 400]);
    let html = page(&[("raw.jsonl", &raw)]).unwrap();
    let (_, link) = html.split_once("download=\"raw.jsonl.gz\" href=\"").unwrap();
    let data = link.split('"').next().unwrap().strip_prefix("data:application/gzip;base64,");
    let data = base64::engine::general_purpose::STANDARD.decode(data.unwrap()).unwrap();
    assert!(data.len() < raw.len() / 10, "{} of {}", data.len(), raw.len());
    let mut text = String::new();
    flate2::read::GzDecoder::new(&*data).read_to_string(&mut text).unwrap();
    assert_eq!(text, raw);
}

/// Fault model: figures of a quick run, of which nobody can tell how small its loads were.
#[test]
fn what_was_run_is_told_of_each_experiment() {
    let line = |experiment: &str| rounds(&[1.0; 3], &[1.0; 3]).replace("E3", experiment);
    let raw = line("E0") + &line("E0").replace("\"threads\":16", "\"threads\":2048") + &line("M1");
    let row = |html: &str, name: &str| {
        let (_, rest) = html.split_once("Each load as it was run").unwrap();
        let (_, rest) = rest.split_once(&format!("\"row\">{name}</th>")).unwrap();
        let row = rest.split("</tr>").next().unwrap().replace("<wbr>", "");
        let cells = row.split("<td").skip(1).map(|cell| cell.split_once('>').unwrap().1);
        cells.map(|cell| cell.trim_end_matches("</td>").to_owned()).collect::<Vec<_>>()
    };
    let env = FULL.replace("false", "true");
    let plan = r#"{"sizes":[{"experiment":"E0","scale":0.05,"seconds":1.0},
        {"experiment":"M1","scale":0.02,"seconds":null}],
        "cells":[{"experiment":"E0","rounds":5},{"experiment":"M1","rounds":3}]}"#;
    let html = page(&[("raw.jsonl", &raw), ("env.json", &env), ("plan.json", plan)]).unwrap();
    assert_eq!(row(&html, "E0"), ["0.05", "about 1 s on uext4", "3 of 5", "16, 2,048", "16 KiB"]);
    assert_eq!(row(&html, "M1"), ["0.02", "until it is done", "3", "16", "16 KiB"]);
    let fewer = rounds(&[1.0; 5], &[1.0; 3]);
    let html = page(&[("raw.jsonl", &fewer.replace("E3", "E0")), ("plan.json", plan)]).unwrap();
    assert_eq!(row(&html, "E0")[2], "3 to 5 of 5");
    // Without a plan that tells it, the scale of a quick run is not known.
    assert_eq!(row(&goals_of(&raw, &env), "E0"), ["3", "16, 2,048", "16 KiB"]);
    assert_eq!(row(&goals_of(&raw, FULL), "E0"), ["1", "3", "16, 2,048", "16 KiB"]);
}

/// Fault model: a goal in bytes, and a load that is compared by operations, never meet.
#[test]
fn the_goal_of_a_load_stands_beside_its_verdict() {
    let operations = rounds(&[9.0; 5], &[1.0; 5]).replace("iops", "ops_per_s");
    let both = operations.clone() + &operations.replace("ops_per_s", "bytes_per_s");
    for (experiment, goal) in [("E1a", "2.00x"), ("E1b", "2.00x")] {
        let html = goals_of(&both.replace("E3", experiment), FULL);
        let name = format!("\"row\">{experiment},<wbr> 16 threads<");
        let (_, rest) = html.split_once(&name).unwrap();
        let row = rest.split("</tr>").next().unwrap();
        assert!(row.ends_with(&format!(">{goal}</td>")), "{experiment}: {row}");
    }
}

#[test]
fn a_run_that_was_looked_at_explains_its_own_form_and_journal() {
    let told = |own: [&str; 2], of: [&str; 2]| {
        let raw = rounds(&[2.0; 5], &[1.0; 5]).replace("E3", "E4");
        let raw = raw.replace("\"metric\"", &format!("\"form\":\"{}\",\"metric\"", own[0]));
        let raw = raw.replace("\"default\"", &format!("\"{}\"", own[1]));
        let side = |target: &str| serde_json::json!({ "target": target, "variant": of[1] });
        let pair = serde_json::json!({
            "experiment": "E4", "form": of[0], "threads": 16, "bs": 16384,
            "a": side("uext4"), "b": side("kernel"), "words": ["so it is"],
        });
        let explain = serde_json::json!({ "pairs": [pair] }).to_string();
        page(&[("raw.jsonl", &raw), ("explain.json", &explain)]).unwrap().contains("so it is")
    };
    for of in [["write", "default"], ["read", "default"], ["write", "journal=4"]] {
        for own in [["write", "default"], ["write", "journal=4"]] {
            assert_eq!(told(own, of), own == of, "{own:?} by {of:?}");
        }
    }
}

/// Fault model: a reader looks for the flame graph of a run and finds neither it nor why.
#[test]
fn a_run_without_a_profile_says_why() {
    let key = "E3-one-16-16384-kernel-default-r6";
    let run = |reason: &str| serde_json::json!({ "key": key, "profile_missing": reason });
    let explain = |reason: &str| {
        serde_json::json!({ "pairs": [], "runs": [run(reason), { "key": "x" }] }).to_string()
    };
    let (raw, told) = (rounds(&[2.0; 5], &[1.0; 5]), "perf is not here");
    let html = page(&[("raw.jsonl", &raw), ("explain.json", &explain(told))]).unwrap();
    let (why, flames) = html.split_once("id=\"flames\"").unwrap();
    assert!(why.contains("kernel: No profile of the processor: perf is not here."), "{html}");
    assert!(flames.contains("<h3>E3, kernel</h3>") && flames.contains(told), "{html}");
    assert_eq!(html.matches(told).count(), 2, "{html}");

    let own = "profile/E3-one-16-16384-kernel-default-r7.folded";
    let with = [("raw.jsonl", raw.as_str()), ("explain.json", &explain(told)), (own, "a;b 3\n")];
    let (page_of, told_of) = (page(&with).unwrap(), told);
    let (before_data, _) = page_of.split_once("id=\"data\"").unwrap();
    assert!(!before_data.contains(told_of), "{page_of}");
    let long = page(&[("raw.jsonl", &raw), ("explain.json", &explain(&"y".repeat(9_999)))]);
    assert!(!long.unwrap().contains(&"y".repeat(301)));
}

#[test]
fn each_group_of_a_job_file_has_its_verdict_and_its_plot() {
    let raw = rounds(&[2.0; 5], &[1.0; 5]).replace("E3", "fio:mixed");
    let group = |name: &str| raw.replace("iops", &format!("{name}.iops"));
    let html = page(&[("raw.jsonl", &(group("seq.read") + &group("rnd.write")))]).unwrap();
    assert!(html.contains("<h3>seq.read: Operations per second"), "{html}");
    assert!(html.contains("fio:mixed rnd.write, 16 threads"), "{html}");
    assert!(html.contains("2 won"), "{html}");
}

#[test]
fn only_what_was_compared_and_checked_passes() {
    let costs = r#"{"costs":{"write":{"flushes":1}}}"#;
    let guard = |guard: &str| page(&[("raw.jsonl", LINE), ("guard.json", guard)]).unwrap();
    assert!(!guard(costs).contains("No cost differs"));
    assert!(guard(costs).contains("they were not compared with a baseline"));
    assert!(guard(r#"{"changes":[]}"#).contains("No cost differs"));
    let crash = |failure: &str| {
        let crash = format!("{{\"states\":3{failure}}}");
        page(&[("crash.json", &crash)]).unwrap()
    };
    for failure in ["", ",\"failure\":null"] {
        assert!(crash(failure).contains("Each of 3 states passes the check."), "{failure}");
    }
    for failure in [",\"failure\":\"yes\"", ",\"failure\":[1]", ",\"failure\":true"] {
        let html = crash(failure);
        assert!(!html.contains("passes the check"), "{html}");
        assert!(html.contains("crash.json is not understood: its failure is no state"), "{html}");
    }
}

#[test]
fn histograms_of_the_engine_are_folded() {
    let line = |phase: &str| {
        format!("{{\"kind\":\"histogram\",\"phase\":\"{phase}\",\"buckets\":[[1,5],[2,1]]}}\n")
    };
    let lines = ["fsync", "engine: commit", "engine: flush"].map(line).concat();
    let file = "latency/E3-one-16-16384-uext4-default-r2.jsonl";
    let html = page(&[("raw.jsonl", LINE), (file, &lines)]).unwrap();
    let (open, folded) = html.split_once("Inside the engine: histograms of 2 phases").unwrap();
    assert!(open.contains("<h3>Histogram: fsync"), "{html}");
    assert!(!open.contains("<h3>Histogram: engine") && folded.contains("<h3>Histogram: engine"));
}

#[test]
fn a_picture_stands_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (raw, svg) = (folder.path().join("raw.jsonl"), folder.path().join("ratios.svg"));
    std::fs::write(&raw, rounds(&[2.0; 5], &[1.0; 5])).unwrap();
    uext4_report::write_picture(folder.path(), &svg).unwrap();
    let text = std::fs::read_to_string(&svg).unwrap();
    assert!(text.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""), "{text}");
    assert!(text.contains("prefers-color-scheme: dark"), "{text}");
    assert!(text.contains(">kernel</text>"), "the legend: {text}");
    assert_eq!(text.matches("http").count(), text.matches("http://www.w3.org/2000/svg").count());
    std::fs::write(&raw, LINE).unwrap();
    let error = uext4_report::write_picture(folder.path(), &svg).unwrap_err().to_string();
    assert!(error.ends_with("no picture: uext4 and a peer have no figure of the same round"));
}

#[test]
fn text_of_the_folder_stays_text() {
    const EVIL: &str = "</script><img src=x onerror=alert(1)>";
    let raw = LINE.replace("\"default\"", &serde_json::to_string(EVIL).unwrap());
    let event = serde_json::json!({ "event": EVIL, "experiment": "E3", "text": EVIL }).to_string();
    let env = serde_json::json!({ "kernel": EVIL, EVIL: [EVIL] }).to_string();
    let stack = format!("a;{EVIL} 3\n");
    let waits = serde_json::json!({
        "seconds": 1, "threads": 1,
        "waits": [{ "cause": EVIL, "total_ms": 5, "stacks": [[[EVIL], 1]] }],
        "locks": [{ "name": EVIL, "total_ms": 1 }],
        "commit_phases": [{ "phase": EVIL, "mean_us": 1 }],
    });
    let key = "E3-one-16-16384-uext4-__script__img_src=x_onerror=alert_1__-r1";
    let [folded, waits_of, tool] = [
        format!("profile/{key}.folded"),
        format!("profile/{key}.waits.json"),
        format!("tools/{key}/jbd2-info.txt"),
    ];
    let files = [
        ("raw.jsonl", raw.as_str()),
        ("env.json", &env),
        ("events.jsonl", &event),
        (&folded, &stack),
        (&waits_of, &waits.to_string()),
        (&tool, EVIL),
        ("crash.json", &serde_json::json!({ "states": 1, "program": EVIL }).to_string()),
        (
            "compare.json",
            &serde_json::json!({ "rows": [{ "figure": EVIL, "ratio": 1 }] }).to_string(),
        ),
        ("guard.json", &serde_json::json!({ "costs": { EVIL: { EVIL: 1 } } }).to_string()),
    ];
    let html = page(&files).unwrap();
    assert!(html.contains("Flame graphs") && html.contains("Outputs of tools"), "{html}");
    assert!(html.contains("&lt;/script&gt;&lt;img"), "{html}");
    assert!(!html.contains("<img"), "{html}");
    // Those of the page itself: its script and the data of graphs.
    let ends = html.matches("</script>").count();
    assert_eq!(ends, html.matches("<script").count(), "{html}");
}

/// Fault model: a cost that is no longer counted, on a page that says that none differs.
#[test]
fn what_a_baseline_does_not_share_is_told() {
    let page = |left_out: &str| {
        let guard = format!(r#"{{"changes":[],"left_out":[{left_out}],"costs":{{}}}}"#);
        page(&[("raw.jsonl", LINE), ("guard.json", &guard)]).unwrap()
    };
    assert!(page("").contains("No cost differs from the baseline."));
    let html = page("\"locks: left out\"");
    assert!(html.contains("from the baseline, of those that both have."), "{html}");
    assert!(html.contains(">locks: left out<"), "{html}");
}
