//! The folder of evidence, read.
//!
//! Invariant: only a folder without evidence gives none. A file that is missing, too large, of
//! another form or no file at all is a remark; what the others say stays.

mod bounds;
mod detail;
mod figure;
mod folded;
mod reading;

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;

use serde_json::Value;

pub(crate) use detail::{Histogram, Latency, LockWait, Moment, Waits};
pub(crate) use figure::{DEFAULT, Figure, REPEATED};

use crate::metric::counted;
use reading::Reading;

/// Figures and events of a report at most.
const FIGURES_MAX: usize = 400_000;
const EVENTS_MAX: usize = 2_000;
/// Bytes of an output of a tool that are shown at most, and of all together; files of them.
const TOOL_MAX: usize = 64 << 10;
const TOOLS_MAX: usize = 2 << 20;
const TOOL_FILES_MAX: usize = 2_000;
/// Characters of the reason why a run has no profile.
const REASON_MAX: usize = 300;
/// Bytes of a profile: each is gone through for every graph that it is in.
const FOLDED_MAX: u64 = 8 << 20;

/// What a folder holds.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    /// `env.json`.
    pub(crate) env: serde_json::Map<String, Value>,
    /// `plan.json`.
    pub(crate) plan: Option<Value>,
    /// The figures, in their order.
    pub(crate) figures: Vec<Figure>,
    /// `raw.jsonl` as it was.
    pub(crate) raw: String,
    pub(crate) events: Vec<Event>,
    /// `events.jsonl` as it was.
    pub(crate) events_text: String,
    /// What is missing or cannot be read.
    pub(crate) remarks: Vec<String>,
    /// By key of a run.
    pub(crate) latency: BTreeMap<String, Latency>,
    /// Folded stacks, by key of a run.
    pub(crate) stacks: BTreeMap<String, String>,
    pub(crate) waits: BTreeMap<String, Waits>,
    /// Outputs of tools: key of a run, file, text.
    pub(crate) tools: Vec<(String, String, String)>,
    /// `explain.json`.
    pub(crate) explain: Option<Value>,
    /// Why runs that were looked at have no profile, by key of a run.
    pub(crate) without_profile: BTreeMap<String, String>,
    pub(crate) compare: Option<Value>,
    pub(crate) guard: Option<Value>,
    pub(crate) crash: Option<Value>,
}

/// A line of `events.jsonl`.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    pub(crate) event: String,
    pub(crate) experiment: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) variant: Option<String>,
    pub(crate) round: Option<u32>,
    /// Of the run that failed.
    pub(crate) key: Option<String>,
    pub(crate) text: String,
}

impl Event {
    /// Where it happened.
    pub(crate) fn place(&self) -> impl Iterator<Item = &String> {
        [&self.experiment, &self.target, &self.variant].into_iter().flatten()
    }
}

/// The files of the runs of a key, in the order of their names.
pub(crate) fn of_runs<'e, 'k, T>(
    files: &'e BTreeMap<String, T>,
    key: &'k str,
) -> impl Iterator<Item = (&'e String, &'e T)> + use<'e, 'k, T> {
    let begins = files.range(key.to_owned()..).take_while(move |(name, _)| name.starts_with(key));
    begins.filter(move |(name, _)| name[key.len()..].bytes().all(|b| b.is_ascii_digit()))
}

/// Reads a folder; `None` where there is no evidence.
pub(crate) fn read(folder: OwnedFd) -> Option<Evidence> {
    let mut reading = Reading::new(folder);
    if !["raw.jsonl", "crash.json", "compare.json"].iter().any(|name| reading.has(name)) {
        return None;
    }
    let mut evidence = Evidence::default();
    read_figures(&mut reading, &mut evidence);
    match reading.json("env.json") {
        Some(Value::Object(env)) => evidence.env = env,
        Some(_) => reading.remark("env.json: no object"),
        None if evidence.raw.is_empty() => {}
        None => reading.remark("no env.json: the machine is not known"),
    }
    if let Some(text) = reading.text("events.jsonl") {
        let events = reading.lines("events.jsonl", &text, EVENTS_MAX);
        evidence.events = standing(events, &evidence.figures);
        evidence.events_text = text;
    }
    evidence.plan = reading.json("plan.json");
    evidence.explain = understood(&mut reading, "explain.json", |v| v["pairs"].is_array());
    evidence.without_profile = without_profile(evidence.explain.as_ref());
    evidence.compare = understood(&mut reading, "compare.json", |v| v["rows"].is_array());
    evidence.guard = understood(&mut reading, "guard.json", is_guard);
    evidence.crash = understood(&mut reading, "crash.json", |v| v["states"].is_u64());
    read_details(&mut reading, &mut evidence);
    evidence.tools = tools(&mut reading);
    evidence.remarks = reading.into_remarks();
    Some(evidence)
}

/// The events that still say something: not that a run ended early which went on later, nor that
/// one failed which was made again.
fn standing(events: Vec<Event>, figures: &[Figure]) -> Vec<Event> {
    let Some(resumed) = events.iter().rposition(|event| event.event == "resumed") else {
        return events;
    };
    let ended: HashSet<String> =
        figures.iter().map(|figure| format!("{}{}", figure.key(), figure.round)).collect();
    let is_over = |at: usize, event: &Event| match &*event.event {
        "resumed" => true,
        "interrupted" => at < resumed,
        "failed" => event.key.as_ref().is_some_and(|key| {
            let fails_later = |later: &Event| later.event == "failed" && later.key == event.key;
            ended.contains(key) || events[at + 1..].iter().any(fails_later)
        }),
        _ => false,
    };
    let stand = events.iter().enumerate().filter(|(at, event)| !is_over(*at, event));
    stand.map(|(_, event)| event.clone()).collect()
}

fn read_figures(reading: &mut Reading, evidence: &mut Evidence) {
    if !reading.has("raw.jsonl") {
        return;
    }
    evidence.raw = reading.text("raw.jsonl").unwrap_or_default();
    evidence.figures = reading.lines("raw.jsonl", &evidence.raw, FIGURES_MAX);
    evidence.figures.retain(|figure: &Figure| figure.value.is_finite());
    for remark in bounds::keep_within(&mut evidence.figures) {
        reading.remark(remark);
    }
    if evidence.figures.is_empty() {
        reading.remark("raw.jsonl holds no figure");
    }
}

/// The files of single runs.
fn read_details(reading: &mut Reading, evidence: &mut Evidence) {
    for (key, path) in reading.files("latency", ".jsonl") {
        let Some(text) = reading.text(&path) else { continue };
        let mut latency = Latency::default();
        reading.each_line(&path, &text, detail::LINES_MAX, |line| latency.add(&line));
        latency.arrange();
        evidence.latency.insert(key, latency);
    }
    for (key, path) in reading.files("profile", ".folded") {
        let Some(text) = reading.text_within(&path, FOLDED_MAX) else { continue };
        let (stacks, lost) = folded::clean(&text);
        if lost > 0 {
            reading.remark(format!("{path}: no stack with a count in {}", counted(lost, "line")));
        }
        evidence.stacks.insert(key, stacks);
    }
    for (key, path) in reading.files("profile", ".waits.json") {
        let Some(mut waits) = reading.json::<Waits>(&path) else { continue };
        waits.add_up();
        if waits.keep_within() {
            reading.remark(format!("{path}: the report has the first causes, locks and phases"));
        }
        evidence.waits.insert(key, waits);
    }
}

/// A file with what a page needs of it; another is a remark.
fn understood(
    reading: &mut Reading,
    name: &str,
    is_understood: impl Fn(&Value) -> bool,
) -> Option<Value> {
    let value = reading.json(name)?;
    if is_understood(&value) {
        return Some(value);
    }
    reading.remark(format!("{name} is not understood: it has nothing that its page shows"));
    None
}

/// The runs of `explain.json` that say why they have no profile.
fn without_profile(explain: Option<&Value>) -> BTreeMap<String, String> {
    let runs =
        explain.and_then(|explain| explain["runs"].as_array()).map_or(&[][..], Vec::as_slice);
    let reason = |run: &Value| {
        let reason = run["profile_missing"].as_str()?.chars().take(REASON_MAX).collect();
        Some((run["key"].as_str()?.to_owned(), reason))
    };
    runs.iter().filter_map(reason).collect()
}

/// Changes and costs, or a file of costs alone, as `--update` writes it.
fn is_guard(value: &Value) -> bool {
    let costs = value.get("costs").unwrap_or(value);
    let is_costs =
        |costs: &Value| costs.as_object().is_some_and(|all| all.values().any(Value::is_object));
    value["changes"].is_array() || is_costs(costs)
}

/// Outputs of tools that are text, as far as they fit.
fn tools(reading: &mut Reading) -> Vec<(String, String, String)> {
    let mut tools = Vec::new();
    let mut left = TOOLS_MAX;
    for (key, folder) in reading.files("tools", "") {
        for (name, path) in reading.files(&folder, "") {
            let Some((mut text, is_cut)) = reading.beginning(&path, TOOL_MAX as u64) else {
                continue;
            };
            if is_cut {
                text.push_str("\n[cut off here]");
            }
            if text.len() > left || tools.len() == TOOL_FILES_MAX {
                reading.remark(format!("{path} and what follows is not in the report"));
                return tools;
            }
            left -= text.len();
            tools.push((key.clone(), name, text));
        }
    }
    tools
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault model: a run that went on and ended well is told as interrupted and failed for ever.
    #[test]
    fn what_later_runs_cover_is_not_told() {
        let event = |event: &str, key: &str| Event {
            event: event.to_owned(),
            key: Some(key.to_owned()).filter(|key| !key.is_empty()),
            ..Event::default()
        };
        let figure: Figure = serde_json::from_str(
            r#"{"experiment":"E3","target":"uext4","threads":2,"bs":16384,"metric":"iops",
                "value":1,"round":1}"#,
        )
        .unwrap();
        let (made, open) = ("E3-one-2-16384-uext4-default-r1", "E3-one-2-16384-uext4-default-r2");
        let before = [
            event("failed", made),
            event("failed", open),
            event("note", ""),
            event("interrupted", ""),
        ];
        let told = |events: &[Event]| {
            let stand = standing(events.to_vec(), std::slice::from_ref(&figure));
            stand.into_iter().map(|e| (e.event, e.key.unwrap_or_default())).collect::<Vec<_>>()
        };
        assert_eq!(told(&before).len(), 4);
        let again = [event("resumed", ""), event("failed", open), event("interrupted", "")];
        let wanted = [("note", ""), ("failed", open), ("interrupted", "")];
        let wanted = wanted.map(|(event, key)| (event.to_owned(), key.to_owned()));
        assert_eq!(told(&[&before[..], &again].concat()), wanted);
    }
}
