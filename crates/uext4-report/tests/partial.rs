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
    assert_eq!(error, "DIR: no evidence: neither raw.jsonl nor crash.json is there");
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
        ("compare.json", "{}"),
        ("guard.json", "7"),
        ("crash.json", "{\"runs\":0,\"steps\":{\"a\":1}}"),
    ];
    let html = page(&files).unwrap();
    let told = [
        "raw.jsonl, line 2",
        "env.json: no object",
        "by a signal",
        "events.jsonl, line 2",
        "belongs to no figure",
        "The comparison holds no figure",
    ];
    for text in told {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(html.contains("1,000/s"), "{html}");
}

#[test]
fn rounds_without_a_number_and_figures_of_zero_are_shown() {
    let zero = LINE.replace("1000.0", "0.0").replace("\"uext4\"", "\"kernel\"");
    let all = LINE.replace("\"round\":1", "\"round\":0").replace("iops", "iops_ratio_raw");
    let huge = LINE.replace("1000.0", "1e308").replace("\"round\":1", "\"round\":2");
    let html = page(&[("raw.jsonl", &format!("{LINE}{zero}{all}{huge}"))]).unwrap();
    assert!(!html.contains("NaN") && !html.contains(">inf"), "{html}");
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
        ("crash.json", &serde_json::json!({ "program": EVIL }).to_string()),
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
