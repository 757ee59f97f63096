//! The report in a real browser: it opens from disk without errors and asks the network for
//! nothing; every page can be reached, is no wider than the window, and can be read.
//!
//! Fault model: a script that fails, a resource from elsewhere, a link to nothing, a table or a
//! plot that is wider than the page, text that is too small or too pale, a plot without a table.

mod chromium;

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chromium::Chromium;
use serde_json::{Value, json};

const EVIDENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/evidence");
const CHECKS: &str = include_str!("checks.js");
const WIDTHS: [u32; 2] = [375, 1440];
const HEIGHT: u32 = 900;
/// Pixels of a picture at most.
const PICTURE_MAX: f64 = 6000.0;
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn every_page_of_the_report_can_be_read() {
    let Some(program) = chromium::find() else {
        println!("skipped: neither chromium nor google-chrome is installed");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    copy(Path::new(EVIDENCE), folder.path());
    let report = uext4_report::write(folder.path()).unwrap();
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report");
    std::fs::create_dir_all(&pictures).unwrap();
    println!("pictures: {}", pictures.display());

    let profile = tempfile::tempdir().unwrap();
    let mut browser = Chromium::start(&program, profile.path());
    let address = format!("file://{}", report.display());
    for theme in ["light", "dark"] {
        for width in WIDTHS {
            prepare(&mut browser, theme, width);
            browser.open(&address);
            let pages = pages(&mut browser);
            assert!(pages.len() > 10, "{pages:?}");
            for page in &pages {
                let height = visit(&mut browser, page, &format!("{page} {theme} {width}"));
                // Pictures of two of the four, since they take most of the time.
                if (theme == "dark") == (width == WIDTHS[0]) {
                    let name = pictures.join(format!("{page}-{theme}-{width}.png"));
                    std::fs::write(name, whole(&mut browser, width, height)).unwrap();
                }
            }
        }
    }
    links(&mut browser);
    addresses(&mut browser, &address);
    switch(&mut browser);
    flames(&mut browser);
    assert_eq!(browser.errors, Vec::<String>::new());
    let is_own = |url: &&String| ["file:", "data:", "about:"].iter().any(|s| url.starts_with(s));
    let foreign: Vec<_> = browser.requested.iter().filter(|url| !is_own(url)).collect();
    assert_eq!(foreign, Vec::<&String>::new());
    assert!(browser.requested.contains(&address), "{:?}", browser.requested);
}

fn prepare(browser: &mut Chromium, theme: &str, width: u32) {
    let size = json!({
        "width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": false,
    });
    browser.call("Emulation.setDeviceMetricsOverride", &size);
    let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
    browser.call("Emulation.setEmulatedMedia", &media);
}

/// The pages of the report, after teaching the window the questions.
fn pages(browser: &mut Chromium) -> Vec<String> {
    browser.ask(CHECKS);
    let list = "[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1)).join(' ')";
    browser.ask(list).as_str().unwrap().split(' ').map(str::to_owned).collect()
}

/// Opens a page, which must be without objection, and returns its height.
fn visit(browser: &mut Chromium, page: &str, place: &str) -> f64 {
    let answer = browser.ask(&format!("visit('{page}')"));
    let answer: Value = serde_json::from_str(answer.as_str().unwrap()).unwrap();
    for (kind, list) in answer["objections"].as_object().unwrap() {
        assert_eq!(list, &json!([]), "{place}: {kind}");
    }
    answer["height"].as_f64().unwrap()
}

/// A picture of the whole page.
fn whole(browser: &mut Chromium, width: u32, height: f64) -> Vec<u8> {
    let height = height.min(PICTURE_MAX);
    let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
    picture(browser, &json!({ "clip": clip, "captureBeyondViewport": true }))
}

fn picture(browser: &mut Chromium, parameters: &Value) -> Vec<u8> {
    let answer = browser.call("Page.captureScreenshot", parameters);
    STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
}

/// Every link inside a page leads to a page that is there; downloads hold their data.
fn links(browser: &mut Chromium) {
    assert!(browser.ask("links()").as_u64().unwrap() > 20);
    let data = "[...document.querySelectorAll('a[download]')].map(a => a.href.slice(0, 5)).join()";
    let data = browser.ask(data);
    assert!(data.as_str().unwrap().split(',').all(|scheme| scheme == "data:"), "{data}");
    let saved = browser.ask("download('raw.jsonl')");
    let raw = std::fs::read_to_string(Path::new(EVIDENCE).join("raw.jsonl")).unwrap();
    let saved: Value = serde_json::from_str(saved.as_str().unwrap()).unwrap();
    assert_eq!(saved, json!(["raw.jsonl", raw]));
}

/// An address that leads nowhere shows the first page.
fn addresses(browser: &mut Chromium, address: &str) {
    for end in ["#%", "#nowhere", "#x-E0"] {
        browser.open("about:blank");
        browser.open(&format!("{address}{end}"));
        let shown = browser.ask("[...document.querySelectorAll('.page.current')].map(p => p.id)");
        let wanted = if end == "#x-E0" { "x-E0" } else { "overview" };
        assert_eq!(shown, json!([wanted]), "{end}");
    }
    browser.ask(CHECKS);
}

/// The button switches between light and dark, and back.
fn switch(browser: &mut Chromium) {
    let paper = "getComputedStyle(document.body).backgroundColor";
    let before = browser.ask(paper);
    browser.ask("document.getElementById('theme').click()");
    assert_ne!(browser.ask(paper), before);
    visit(browser, "overview", "overview, switched");
    browser.ask("document.getElementById('theme').click()");
    assert_eq!(browser.ask(paper), before);
}

/// A flame graph answers a click, by its own script.
fn flames(browser: &mut Chromium) {
    visit(browser, "flames", "flames");
    let place = "(() => { const frame = document.querySelector('.graph iframe');\
                 frame.scrollIntoView({ block: 'center' });\
                 const box = frame.getBoundingClientRect();\
                 return { x: box.left + box.width / 2, y: box.bottom - 50 }; })()";
    let place = browser.ask(place);
    let before = picture(browser, &json!({}));
    let begun = Instant::now();
    // The frame may not have been drawn yet, so it is clicked until it answers.
    loop {
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({
                "type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1,
            });
            browser.call("Input.dispatchMouseEvent", &event);
        }
        if picture(browser, &json!({})) != before {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the flame graph does not answer");
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
