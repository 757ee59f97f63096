//! The folder of evidence, read.
//!
//! Invariant: only a folder without evidence is an error. A file that is missing, too large or of
//! another form is a remark; what the others say stays.

mod detail;
mod figure;

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use detail::{Histogram, Latency, Moment, Waits};
pub(crate) use figure::{DEFAULT, Figure, REPEATED};

use crate::Error;

/// Bytes of a file that are read at most.
const FILE_MAX: u64 = 64 << 20;
/// Bytes of an output of a tool that are shown at most, and of all together.
const TOOL_MAX: usize = 64 << 10;
const TOOLS_MAX: usize = 2 << 20;
/// Lines of a file that are told as broken, each.
const BROKEN_MAX: usize = 5;

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

/// Reads a folder.
pub(crate) fn read(folder: &Path) -> Result<Evidence, Error> {
    let has = |name: &str| folder.join(name).is_file();
    if !has("raw.jsonl") && !has("crash.json") {
        return Err(Error::NoEvidence(folder.to_owned()));
    }
    let mut evidence = Evidence::default();
    let mut reading = Reading { folder, remarks: Vec::new() };
    if has("raw.jsonl") {
        evidence.raw = reading.text("raw.jsonl").unwrap_or_default();
        evidence.figures = reading.lines("raw.jsonl", &evidence.raw);
        evidence.figures.retain(|figure| figure.value.is_finite());
        if evidence.figures.is_empty() {
            reading.remarks.push("raw.jsonl holds no figure".to_owned());
        }
    }
    match reading.json("env.json") {
        Some(Value::Object(env)) => evidence.env = env,
        Some(_) => reading.remarks.push("env.json: no object".to_owned()),
        None => reading.remarks.push("no env.json: the machine is not known".to_owned()),
    }
    if let Some(text) = reading.text("events.jsonl") {
        evidence.events = reading.lines("events.jsonl", &text);
    }
    evidence.plan = reading.json("plan.json");
    evidence.explain = reading.json("explain.json");
    evidence.compare = reading.json("compare.json");
    evidence.guard = reading.json("guard.json");
    evidence.crash = reading.json("crash.json");
    for (key, path) in reading.files("latency", ".jsonl") {
        let Some(text) = reading.text(&path) else { continue };
        let lines = reading.lines(&path, &text);
        evidence.latency.insert(key, Latency::of(lines));
    }
    for (key, path) in reading.files("profile", ".folded") {
        evidence.stacks.extend(reading.text(&path).map(|text| (key, text)));
    }
    for (key, path) in reading.files("profile", ".waits.json") {
        evidence.waits.extend(reading.json(&path).map(|waits| (key, waits)));
    }
    evidence.tools = reading.tools();
    evidence.remarks = reading.remarks;
    Ok(evidence)
}

struct Reading<'a> {
    folder: &'a Path,
    remarks: Vec<String>,
}

impl Reading<'_> {
    /// A file; `None` where there is none.
    fn text(&mut self, name: &str) -> Option<String> {
        let path = self.folder.join(name);
        let length = std::fs::metadata(&path).ok()?.len();
        if length > FILE_MAX {
            self.remarks.push(format!("{name}: {length} bytes are too many"));
            return None;
        }
        match std::fs::read(&path) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) => {
                self.remarks.push(format!("{name}: {error}"));
                None
            }
        }
    }

    fn json<T: DeserializeOwned>(&mut self, name: &str) -> Option<T> {
        let text = self.text(name)?;
        match serde_json::from_str(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.remarks.push(format!("{name}: {error}"));
                None
            }
        }
    }

    /// An object a line; lines of another form are told.
    fn lines<T: DeserializeOwned>(&mut self, name: &str, text: &str) -> Vec<T> {
        let mut broken = 0;
        let mut all = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            if line.trim().is_empty() {
                continue;
            }
            match serde_json::from_str(line) {
                Ok(value) => all.push(value),
                Err(error) => {
                    broken += 1;
                    if broken <= BROKEN_MAX {
                        self.remarks.push(format!("{name}, line {number}: {error}"));
                    }
                }
            }
        }
        if broken > BROKEN_MAX {
            self.remarks.push(format!("{name}: {broken} lines are broken"));
        }
        all
    }

    /// Files below a folder with that ending: name without it, and path.
    fn files(&mut self, folder: &str, ending: &str) -> Vec<(String, String)> {
        let Ok(entries) = std::fs::read_dir(self.folder.join(folder)) else { return Vec::new() };
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        let of = |name: String| {
            let key = name.strip_suffix(ending)?.to_owned();
            Some((key, format!("{folder}/{name}")))
        };
        let mut files: Vec<(String, String)> = names.filter_map(of).collect();
        files.sort();
        files
    }

    /// Outputs of tools that are text, as far as they fit.
    fn tools(&mut self) -> Vec<(String, String, String)> {
        let mut tools = Vec::new();
        let mut left = TOOLS_MAX;
        for (key, folder) in self.files("tools", "") {
            for (name, path) in self.files(&folder, "") {
                let Some(mut text) = self.text(&path) else { continue };
                if text.len() > TOOL_MAX {
                    let end = (0..=TOOL_MAX).rev().find(|at| text.is_char_boundary(*at));
                    text.truncate(end.unwrap_or(0));
                    text.push_str("\n[cut off here]");
                }
                if text.len() > left {
                    self.remarks.push(format!("{path} and what follows is not in the report"));
                    return tools;
                }
                left -= text.len();
                tools.push((key.clone(), name, text));
            }
        }
        tools
    }
}
