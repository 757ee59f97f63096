//! What was run: how large each load was, how often, with how many threads.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use serde_json::Value;

use super::block::{Cell, Table};
use super::results::list;
use crate::evidence::Evidence;
use crate::metric::{short, show, show_known};

/// The load whose runs make as many writes on each target as uext4 makes in the time that is asked
/// for.
const BY_UEXT4: &str = "E0";

/// What the figures of an experiment say about its runs.
#[derive(Default)]
struct Runs<'e> {
    /// Of each candidate.
    rounds: BTreeMap<(&'e str, &'e str), BTreeSet<u32>>,
    threads: BTreeSet<u32>,
    bytes: BTreeSet<u32>,
}

/// A row for each experiment.
pub(super) fn table(evidence: &Evidence) -> Markup {
    let mut order: Vec<&str> = Vec::new();
    let mut all: BTreeMap<&str, Runs<'_>> = BTreeMap::new();
    for figure in &evidence.figures {
        let name = figure.experiment.as_str();
        let runs = all.entry(name).or_insert_with(|| {
            order.push(name);
            Runs::default()
        });
        // 0 is no round but a figure over all of them.
        if figure.round > 0 {
            let of = (figure.target.as_str(), figure.variant.as_str());
            runs.rounds.entry(of).or_default().insert(figure.round);
        }
        runs.threads.insert(figure.threads);
        runs.bytes.insert(figure.bs);
    }
    let head = ["experiment", "scale", "a run takes", "rounds", "threads", "size of a request"];
    let mut table = Table::new("Each load as it was run", &head);
    for name in order {
        let runs = &all[name];
        let sizes = runs.bytes.iter().filter(|bytes| **bytes > 0);
        let sizes = sizes.map(|bytes| short(f64::from(*bytes) / 1024.0, "KiB"));
        let threads = runs.threads.iter().map(|threads| show(f64::from(*threads), "1"));
        table.rows.push(vec![
            name.into(),
            show_known(scale(evidence, name), "1").into(),
            Cell::words(length(evidence, name)),
            Cell::words(rounds(evidence, name, runs)),
            Cell::words(several(threads.collect())),
            Cell::words(several(sizes.collect())),
        ]);
    }
    html! {
        @if !table.rows.is_empty() {
            h2 { "What was run" }
            (table.known().markup())
            p.note {
                "Scale 1 is the full size of a load; --quick gives each load a scale and a length "
                "of its own. What the files of this run do not tell is a dash, or has no column."
            }
        }
    }
}

/// What the plan says about the size of a load.
fn planned<'e>(evidence: &'e Evidence, name: &str) -> Option<&'e Value> {
    let plan = evidence.plan.as_ref()?;
    list(&plan["sizes"]).iter().find(|size| size["experiment"] == name)
}

fn scale(evidence: &Evidence, name: &str) -> Option<f64> {
    if let Some(size) = planned(evidence, name) {
        return size["scale"].as_f64();
    }
    // A plan that does not tell it of each load: of a quick one it is not known then.
    let options = evidence.env.get("options")?;
    (options["quick"] != true).then(|| options["scale"].as_f64()).flatten()
}

fn length(evidence: &Evidence, name: &str) -> String {
    match planned(evidence, name).map(|size| &size["seconds"]) {
        Some(Value::Null) => "until it is done".to_owned(),
        seconds => {
            let text = show_known(seconds.and_then(Value::as_f64), "s");
            let is_about = name == BY_UEXT4 && text != "-";
            if is_about { format!("about {text} on uext4") } else { text }
        }
    }
}

/// Rounds that have figures, from the least to the most of a candidate, and those that were planned
/// if there are fewer.
fn rounds(evidence: &Evidence, name: &str, runs: &Runs<'_>) -> String {
    let counts = || runs.rounds.values().map(BTreeSet::len);
    let (least, most) = (counts().min().unwrap_or(0), counts().max().unwrap_or(0));
    let told = if least == most { most.to_string() } else { format!("{least} to {most}") };
    let cells = evidence.plan.as_ref().map_or(&[][..], |plan| list(&plan["cells"]));
    let own = cells.iter().filter(|cell| cell["experiment"] == name);
    match own.filter_map(|cell| cell["rounds"].as_u64()).max() {
        Some(planned) if planned > least as u64 => format!("{told} of {planned}"),
        _ => told,
    }
}

fn several(values: Vec<String>) -> String {
    if values.is_empty() { "-".to_owned() } else { values.join(", ") }
}
