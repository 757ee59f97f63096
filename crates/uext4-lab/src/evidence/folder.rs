//! The folder of evidence of a run, and going on with one.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Doing, Error, Result};
use crate::evidence::{environment, summary};
use crate::plan::{Event, Plan};
use crate::record;

/// What a run before this one has left.
#[derive(Debug, Default)]
pub struct Resumed {
    /// Figures by metric of the runs that have ended, by key.
    runs: HashMap<String, HashMap<String, f64>>,
    numbers: HashMap<String, u32>,
}

impl Resumed {
    /// Whether the run of that key has ended.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.runs.contains_key(key)
    }

    /// Its figures.
    pub(crate) fn figures(&self, key: &str) -> Option<&HashMap<String, f64>> {
        self.runs.get(key)
    }

    /// A number that all rounds go by.
    pub(crate) fn number(&self, key: &str) -> Option<u32> {
        self.numbers.get(key).copied()
    }

    /// Runs that have ended.
    #[must_use]
    pub fn count(&self) -> usize {
        self.runs.len()
    }
}

/// A line of `runs.jsonl`.
#[derive(Debug, Deserialize, Serialize)]
struct Mark {
    key: String,
    /// Length of `raw.jsonl` when the run had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    raw_bytes: Option<u64>,
    /// When it had, in seconds since the command began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// A number that all rounds go by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    number: Option<u32>,
}

/// A folder that is being written.
#[derive(Debug)]
pub struct Evidence {
    dir: PathBuf,
    raw: File,
    raw_bytes: u64,
    events: File,
    runs: File,
    /// Figures of the run that has not ended yet.
    pending: String,
    environment: Value,
    began: Instant,
    seconds_before: f64,
}

impl Evidence {
    /// Makes the folder, or takes it up where a run of the same plan has ended if `resume` says so,
    /// and lets the plan use it.
    ///
    /// # Errors
    /// It holds something, and is not taken up; the plan was another; it cannot be written.
    pub fn open(dir: &Path, plan: &mut Plan, resume: bool) -> Result<Self> {
        let is_empty = match fs::read_dir(dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => return Err(error).doing(dir.display()),
        };
        if !is_empty && !resume {
            let text = "holds something: name a new folder, or go on with --resume";
            return Err(Error::new(format!("{} {text}", dir.display())));
        }
        fs::create_dir_all(dir).doing(format_args!("making {}", dir.display()))?;
        let dir = fs::canonicalize(dir).doing(dir.display())?;
        let plan_file = dir.join("plan.json");
        let wanted = plan.to_json();
        let (mut raw_bytes, mut seconds_before) = (0, 0.0);
        if is_empty || !plan_file.exists() {
            if !is_empty {
                let text = "holds no run to go on with: it has no plan.json";
                return Err(Error::new(format!("{} {text}", dir.display())));
            }
            write_json(&plan_file, &wanted)?;
        } else {
            let before = read(&plan_file)?;
            if serde_json::from_str::<Value>(&before).ok() != Some(wanted) {
                let text = "was begun with another plan: name the same loads and options";
                return Err(Error::new(format!("{} {text}", dir.display())));
            }
            let (resumed, bytes) = take_up(&dir)?;
            (plan.resumed, raw_bytes) = (Arc::new(resumed), bytes);
            let before = fs::read_to_string(dir.join("env.json")).unwrap_or_default();
            let before: Value = serde_json::from_str(&before).unwrap_or_default();
            seconds_before = before["seconds"].as_f64().unwrap_or(0.0);
        }
        plan.out = Some(dir.clone());
        let append = |name: &str| {
            let file = OpenOptions::new().create(true).append(true).open(dir.join(name));
            file.doing(format_args!("opening {}", dir.join(name).display()))
        };
        let evidence = Self {
            raw: append("raw.jsonl")?,
            raw_bytes,
            events: append("events.jsonl")?,
            runs: append("runs.jsonl")?,
            pending: String::new(),
            environment: environment::describe(plan),
            began: Instant::now(),
            seconds_before,
            dir: dir.clone(),
        };
        evidence.write_environment()?;
        Ok(evidence)
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Keeps what happens.
    ///
    /// # Errors
    /// No room for it.
    pub fn keep(&mut self, event: &Event<'_>) -> Result<()> {
        match event {
            Event::Run(_) => self.pending.clear(),
            Event::Measured(figure) => {
                self.pending.push_str(&figure.to_json());
                self.pending.push('\n');
            }
            Event::Ended(name) => return self.end_run(&name.key()),
            Event::Found(key, number) => {
                let key = (*key).to_owned();
                return self.mark(&Mark {
                    key,
                    raw_bytes: None,
                    seconds: None,
                    number: Some(*number),
                });
            }
            Event::Skipped(load, target, text) => {
                let mut line = json!({"event": "skipped", "target": target.name(), "text": text});
                if let Some(load) = load {
                    line["experiment"] = load.id.into();
                }
                return self.tell(&line);
            }
            Event::Note(load, text) => {
                return self.tell(&json!({"event": "note", "experiment": load.id, "text": text}));
            }
            Event::Failed(name, error) => {
                self.pending.clear();
                let run = name.run;
                return self.tell(&json!({
                    "event": "failed", "experiment": run.load.id, "target": run.target.name(),
                    "variant": name.variant, "round": run.round, "text": error.to_string(),
                }));
            }
        }
        Ok(())
    }

    /// Ends it: the time that it took, the summary, and what has stopped it early, if that is so.
    /// Returns the summary.
    ///
    /// # Errors
    /// No room for it.
    pub fn finish(mut self, interrupted: Option<&str>) -> Result<String> {
        if let Some(text) = interrupted {
            self.tell(&json!({"event": "interrupted", "text": text}))?;
        }
        self.write_environment()?;
        let records = record::parse(&read(&self.dir.join("raw.jsonl"))?)?;
        let text = summary::of(&self.environment, &records);
        let path = self.dir.join("summary.md");
        fs::write(&path, &text).doing(format_args!("writing {}", path.display()))?;
        Ok(text)
    }

    fn end_run(&mut self, key: &str) -> Result<()> {
        let figures = std::mem::take(&mut self.pending);
        self.raw.write_all(figures.as_bytes()).doing("keeping figures")?;
        self.raw_bytes += figures.len() as u64;
        let (key, raw_bytes) = (key.to_owned(), Some(self.raw_bytes));
        let seconds = Some((self.began.elapsed().as_secs_f64() * 100.0).round() / 100.0);
        self.mark(&Mark { key, raw_bytes, seconds, number: None })
    }

    fn mark(&mut self, mark: &Mark) -> Result<()> {
        let line = serde_json::to_string(mark).doing("JSON")?;
        self.runs.write_all(format!("{line}\n").as_bytes()).doing("keeping what is done")
    }

    fn tell(&mut self, line: &Value) -> Result<()> {
        self.events.write_all(format!("{line}\n").as_bytes()).doing("keeping an event")
    }

    fn write_environment(&self) -> Result<()> {
        let mut environment = self.environment.clone();
        let seconds = self.seconds_before + self.began.elapsed().as_secs_f64();
        environment["seconds"] = ((seconds * 10.0).round() / 10.0).into();
        write_json(&self.dir.join("env.json"), &environment)
    }
}

/// What has ended in a folder. Figures behind that are cut off: their run has not.
fn take_up(dir: &Path) -> Result<(Resumed, u64)> {
    let [raw_path, runs_path, events_path] =
        ["raw.jsonl", "runs.jsonl", "events.jsonl"].map(|name| dir.join(name));
    for path in [&runs_path, &events_path] {
        drop_torn_line(path)?;
    }
    let raw = fs::read(&raw_path).unwrap_or_default();
    let mut resumed = Resumed::default();
    let mut end = 0_usize;
    for line in fs::read_to_string(&runs_path).unwrap_or_default().lines() {
        let mark: Mark = serde_json::from_str(line).doing(runs_path.display())?;
        if let Some(number) = mark.number {
            resumed.numbers.insert(mark.key, number);
            continue;
        }
        let to = usize::try_from(mark.raw_bytes.unwrap_or(0)).unwrap_or(usize::MAX);
        let Some(text) = raw.get(end..to) else { break };
        let records = record::parse(&String::from_utf8_lossy(text)).doing(raw_path.display())?;
        let figures = records.into_iter().map(|r| (r.metric, r.value)).collect();
        resumed.runs.insert(mark.key, figures);
        end = to;
    }
    if raw.len() > end {
        let file = OpenOptions::new().write(true).open(&raw_path);
        file.and_then(|file| file.set_len(end as u64)).doing(raw_path.display())?;
    }
    Ok((resumed, end as u64))
}

fn drop_torn_line(path: &Path) -> Result<()> {
    let text = fs::read(path).unwrap_or_default();
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if whole < text.len() {
        let file = OpenOptions::new().write(true).open(path);
        file.and_then(|file| file.set_len(whole as u64)).doing(path.display())?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).doing(format_args!("reading {}", path.display()))
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).doing("JSON")?;
    // A crash leaves the old one or the new one.
    let (new, doing) = (path.with_extension("new"), format!("writing {}", path.display()));
    fs::write(&new, text + "\n").and_then(|()| fs::rename(&new, path)).doing(doing)
}
