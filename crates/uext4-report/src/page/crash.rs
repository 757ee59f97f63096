//! The crash test: what a program had done, what had returned, and what is missing.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::Value;

use super::block::{Block, Cell, Legend, ROWS_MAX, Table};
use super::overview::plain;
use super::results::list;
use crate::metric::{counted, show, show_known};
use crate::plot::{self, Look, Plot, Span};

/// Calls that the plot of a timeline shows at most: the last before the crash.
const CALLS_MAX: usize = 40;
/// Calls that are named as missing.
const NAMED_MAX: usize = 5;

/// The page.
pub(super) fn page(crash: &Value) -> Markup {
    let failure = &crash["failure"];
    let states = crash["states"].as_u64().unwrap_or(0);
    html! {
        h1 { "Crash test" }
        p.lead {
            @if failure.is_object() {
                strong { "A state that a loss of power could leave fails the check." }
            } @else if !failure.is_null() {
                "crash.json is not understood: its failure is no state. Whether one of " (states)
                " states fails the check is not known."
            } @else if crash["is_exhaustive"] == true {
                "All " (states) " states that were found pass the check."
            } @else {
                "Each of " (states) " states passes the check."
            }
        }
        (summary(crash).markup())
        @for remark in list(&crash["remarks"]) { p.remark { (plain(remark)) } }
        @if failure.is_object() { (failed(failure)) }
        (kinds(crash))
        @let calls = list(&crash["timeline"]);
        @if !calls.is_empty() {
            details {
                summary { "All calls of the program (" (calls.len()) ")" }
                (all_calls(calls).markup())
            }
        }
    }
}

/// What was run.
fn summary(crash: &Value) -> Table {
    let mut table = Table::new("What was run", &["what", "value"]);
    let elsewhere = ["guarantees", "states_by_kind", "failure", "timeline", "remarks"];
    let first = ["setup", "run", "check"];
    let of = crash.as_object().into_iter().flatten();
    let (words, others): (Vec<_>, Vec<_>) = of
        .filter(|(name, _)| !elsewhere.contains(&name.as_str()))
        .partition(|(name, _)| first.contains(&name.as_str()));
    let mut words = words;
    words.sort_by_key(|(name, _)| first.iter().position(|known| known == name));
    for (name, value) in words.into_iter().chain(others) {
        let text = match (name.as_str(), value.as_f64()) {
            ("image_size", Some(bytes)) => show(bytes / 1024.0, "KiB"),
            ("seconds" | "recorded_seconds", Some(seconds)) => show(seconds, "s"),
            ("setup", _) if value.is_null() => "none".to_owned(),
            _ => plain(value),
        };
        table.rows.push(vec![name.replace('_', " ").into(), Cell::words(text)]);
    }
    if !crash["guarantees"].is_null() {
        let promised = plain(&crash["guarantees"]);
        table.rows.push(vec!["the file system".into(), Cell::words(promised)]);
    }
    table
}

fn kinds(crash: &Value) -> Markup {
    let mut table = Table::new("States by what they lacked", &["what they lacked", "states"]);
    for (kind, count) in crash["states_by_kind"].as_object().into_iter().flatten() {
        table.rows.push(vec![kind.clone().into(), plain(count).into()]);
    }
    html! { @if !table.rows.is_empty() { (table.markup()) } }
}

/// The smallest state that fails.
fn failed(failure: &Value) -> Markup {
    let description = &failure["description"];
    let steps = list(&description["steps"]);
    let losses = list(&description["losses"]);
    let lost = lost(losses);
    html! {
        h2 { "The smallest state that fails" }
        p {
            "The power fails after " (counted(steps.len(), "call")) ", and "
            (plain(&description["not_begun"])) " had not begun. The check: "
            strong { (plain(&failure["status"])) } "."
            @if failure["fails_again"] == false {
                " It did not fail a second time: it depends on more than the state."
            }
        }
        @for (title, name) in [("The check said", "said"), ("The program had printed", "printed")] {
            @if let Some(text) = failure[name].as_str().filter(|text| !text.is_empty()) {
                h3 { (title) }
                pre { (text) }
            }
        }
        (not_kept(steps, &lost))
        (timeline(steps, &lost).markup())
        @if !losses.is_empty() {
            h3 { "What is missing" }
            (missing(losses).markup())
        }
    }
}

/// The calls that had returned and whose effect is missing, in words.
fn not_kept(steps: &[Value], lost: &Lost<'_>) -> Markup {
    let is_missing =
        |step: &&Value| state(step, lost).0 == "missing" && step["progress"] == "returned";
    let last = &steps[steps.len().saturating_sub(ROWS_MAX)..];
    let calls: Vec<&Value> = last.iter().filter(is_missing).collect();
    html! {
        @if !calls.is_empty() {
            p.remark.bad {
                strong { "Had returned, and is missing: " }
                @for (at, step) in calls.iter().take(NAMED_MAX).enumerate() {
                    @if at > 0 { ", " }
                    code { (plain(&step["call"])) }
                    @if loss_of(step, lost).is_some() { " (its data)" }
                    @else { " (not in the journal)" }
                }
                @if calls.len() > NAMED_MAX { ", and " (calls.len() - NAMED_MAX) " more" }
                "."
            }
        }
    }
}

/// What is missing of what a step wrote, by its number.
type Lost<'l> = BTreeMap<u64, &'l Value>;

fn lost(losses: &[Value]) -> Lost<'_> {
    let of = |loss| Some((number_of(loss)?, loss));
    // The first of a step is the one that is told.
    losses.iter().rev().filter_map(of).collect()
}

fn number_of(step: &Value) -> Option<u64> {
    step["step"].as_u64()
}

/// What is missing of a step.
fn loss_of<'l>(step: &Value, lost: &Lost<'l>) -> Option<&'l Value> {
    lost.get(&number_of(step)?).copied()
}

/// How a step stands when the power fails, and its place among the looks of parts.
fn state(step: &Value, lost: &Lost<'_>) -> (&'static str, usize) {
    if loss_of(step, lost).is_some() || step["committed"] == false {
        ("missing", 0)
    } else if step["progress"] == "in_flight" {
        ("on its way", 3)
    } else {
        ("returned", 1)
    }
}

fn timeline(steps: &[Value], lost: &Lost<'_>) -> Block {
    let number = |step: &Value, name: &str| step[name].as_f64();
    let title = "What had happened when the power failed";
    let head = ["call", "started", "returned", "process", "when the power failed", "metadata"];
    let mut table = Table::new(title, &head);
    let last = &steps[steps.len().saturating_sub(ROWS_MAX)..];
    for step in last {
        let (word, _) = state(step, lost);
        let how = loss_of(step, lost)
            .map_or(String::new(), |loss| format!(": {}", plain(&loss["how"]).replace('_', " ")));
        let class = if word == "missing" { "loss" } else { "even" };
        let metadata = match step["committed"].as_bool() {
            Some(true) => "in the journal",
            Some(false) => "not in the journal",
            None => "-",
        };
        table.rows.push(vec![
            plain(&step["call"]).into(),
            show_known(number(step, "started_us"), "us").into(),
            show_known(number(step, "returned_us"), "us").into(),
            plain(&step["pid"]).into(),
            Cell::marked(format!("{word}{how}"), class),
            Cell::words(metadata),
        ]);
    }
    let shown = &steps[steps.len().saturating_sub(CALLS_MAX)..];
    let times = ["started_us", "returned_us"];
    let end = steps.iter().flat_map(|step| times.iter().filter_map(|name| number(step, name)));
    let end = end.fold(0.0, f64::max);
    let span = |step: &Value| {
        let from = number(step, "started_us")?;
        // A call that has not returned goes on until the power fails.
        let to = number(step, "returned_us").unwrap_or(end);
        let look = Look::part(state(step, lost).1);
        Some(Span { label: plain(&step["call"]), look, from, to })
    };
    let spans: Vec<Span> = shown.iter().filter_map(span).collect();
    let plot = Plot::of(|width| plot::spans(width, title, &spans));
    let looks = [("returned, and kept", 1), ("on its way", 3), ("missing", 0)];
    let legend: Legend =
        looks.map(|(name, part)| (Look::part(part).patch(), name.to_owned())).into();
    let note = format!(
        "Each call from its start to its answer. The plot has the last {} of {}, the table the \
         last {}.",
        shown.len(),
        steps.len(),
        last.len()
    );
    Block { title: title.to_owned(), note, plot, legend, table }
}

fn missing(losses: &[Value]) -> Table {
    let head = ["file", "from", "bytes", "how", "written by call"];
    let mut table = Table::new("What is not on the medium", &head);
    for loss in losses {
        table.push(|| {
            let path = loss["path"].as_str().unwrap_or("a file without a name").to_owned();
            vec![
                path.into(),
                plain(&loss["offset"]).into(),
                plain(&loss["len"]).into(),
                Cell::words(plain(&loss["how"]).replace('_', " ")),
                plain(&loss["step"]).into(),
            ]
        });
    }
    table
}

fn all_calls(calls: &[Value]) -> Table {
    let mut table = Table::new("All calls", &["call", "started", "returned", "process"]);
    for call in calls {
        table.push(|| {
            let time = |name: &str| show_known(call[name].as_f64(), "us").into();
            let process =
                call["process"].as_str().map_or_else(|| plain(&call["pid"]), str::to_owned);
            vec![
                plain(&call["call"]).into(),
                time("started_us"),
                time("returned_us"),
                Cell::words(process),
            ]
        });
    }
    table
}
