//! The folder of evidence of a run, and going on with one.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::error::{Doing, Error, Result};
use crate::evidence::taken_up::{self, Mark};
use crate::evidence::{environment, identity, summary};
use crate::plan::{Event, Plan};
use crate::record;

const HOLDS: &str = "holds something: name a new folder, or go on with --resume";

/// A folder that is being written.
#[derive(Debug)]
pub struct Evidence {
    dir: PathBuf,
    /// Whether it was not there before, and whether it was empty.
    is_made: bool,
    is_new: bool,
    /// The folder itself, locked as long as this lives.
    folder: File,
    raw: File,
    raw_bytes: u64,
    events: File,
    /// Notes and reasons that were told before: a run that goes on comes by them again.
    told: HashSet<String>,
    runs: File,
    /// Figures of the run that has not ended yet.
    pending: String,
    /// Figures over all rounds.
    over_rounds: String,
    environment: Value,
    began: Instant,
    seconds_before: f64,
}

/// What the folder held.
#[derive(Default)]
struct Before {
    raw_bytes: u64,
    /// Seconds that runs have taken.
    seconds: f64,
    told: HashSet<String>,
    /// When and by which words it was begun.
    environment: Value,
}

impl Before {
    /// Takes up what a run of the same plan, build and machine has left: the plan goes on there.
    fn take_up(dir: &Path, plan: &mut Plan) -> Result<Self> {
        let plan_file = dir.join("plan.json");
        if !plan_file.exists() {
            return Err(refuse(dir, "holds no run to go on with: it has no plan.json"));
        }
        if read_json(&plan_file).ok() != Some(plan.to_json()) {
            let text = "was begun with another plan: name the same loads and options";
            return Err(refuse(dir, text));
        }
        let environment = read_json(&dir.join("env.json"))?;
        let differences = identity::differences(&environment, &environment::describe(plan));
        if !differences.is_empty() {
            let text = "was begun by another build or on another machine";
            return Err(refuse(dir, &format!("{text}: {}", differences.join("; "))));
        }
        let (resumed, raw_bytes) = taken_up::take_up(dir)?;
        plan.resumed = Arc::new(resumed);
        let events = fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
        let told = events.lines().map(str::to_owned).collect();
        let seconds = environment["seconds"].as_f64().unwrap_or(0.0);
        Ok(Self { raw_bytes, seconds, told, environment })
    }
}

impl Evidence {
    /// Makes the folder, or takes it up where a run of the same plan, build and machine has ended
    /// if `resume` says so, and lets the plan use it.
    ///
    /// # Errors
    /// It holds something, and is not taken up; another run writes it; the plan, the build or the
    /// machine was another; it cannot be written. Nothing in it has changed then.
    pub fn open(dir: &Path, plan: &mut Plan, resume: bool) -> Result<Self> {
        if !resume && !is_empty(dir)? {
            return Err(refuse(dir, HOLDS));
        }
        let is_made = !dir.exists();
        fs::create_dir_all(dir).doing(format_args!("making {}", dir.display()))?;
        let dir = fs::canonicalize(dir).doing(dir.display())?;
        let folder = lock(&dir)?;
        // Looked at again: until it was locked another run may have had it.
        let is_new = is_empty(&dir)?;
        let before = match (is_new, resume) {
            (true, _) => {
                write_json(&dir.join("plan.json"), &plan.to_json())?;
                Before { environment: environment::describe(plan), ..Before::default() }
            }
            (false, true) => Before::take_up(&dir, plan)?,
            (false, false) => return Err(refuse(&dir, HOLDS)),
        };
        plan.out = Some(dir.clone());
        let append = |name: &str| {
            let file = OpenOptions::new().create(true).append(true).open(dir.join(name));
            file.doing(format_args!("opening {}", dir.join(name).display()))
        };
        let evidence = Self {
            raw: append("raw.jsonl")?,
            raw_bytes: before.raw_bytes,
            events: append("events.jsonl")?,
            told: before.told,
            runs: append("runs.jsonl")?,
            pending: String::new(),
            over_rounds: String::new(),
            environment: before.environment,
            began: Instant::now(),
            seconds_before: before.seconds,
            folder,
            is_made,
            is_new,
            dir: dir.clone(),
        };
        evidence.write_environment()?;
        evidence.folder.sync_all().doing("keeping the folder")?;
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
            // Of all rounds: a run that goes on forms them anew, so they are no run that has ended.
            Event::Ended(name) if name.run.round == 0 => {
                self.over_rounds.push_str(&std::mem::take(&mut self.pending));
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
                return self.tell_once(&line);
            }
            Event::Note(load, text) => {
                let line = json!({"event": "note", "experiment": load.id, "text": text});
                return self.tell_once(&line);
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
        let over_rounds = std::mem::take(&mut self.over_rounds);
        self.raw.write_all(over_rounds.as_bytes()).doing("keeping figures")?;
        self.raw.sync_data().doing("keeping figures")?;
        let records = record::parse(&read(&self.dir.join("raw.jsonl"))?)?;
        let text = summary::of(&self.environment, &records);
        let path = self.dir.join("summary.md");
        fs::write(&path, &text).doing(format_args!("writing {}", path.display()))?;
        Ok(text)
    }

    /// Takes away what was written of a run that has not begun: the folder is as it was before.
    /// One that was taken up stays.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn discard(self) -> Result<()> {
        let remove = || {
            for name in ["env.json", "events.jsonl", "raw.jsonl", "runs.jsonl", "plan.json"] {
                fs::remove_file(self.dir.join(name))?;
            }
            if self.is_made { fs::remove_dir(&self.dir) } else { Ok(()) }
        };
        if !self.is_new {
            return Ok(());
        }
        remove().doing(format_args!("removing {}", self.dir.display()))
    }

    fn end_run(&mut self, key: &str) -> Result<()> {
        let figures = std::mem::take(&mut self.pending);
        self.raw.write_all(figures.as_bytes()).doing("keeping figures")?;
        // Before its mark: after a loss of power no mark may tell of figures that are not there.
        self.raw.sync_data().doing("keeping figures")?;
        self.raw_bytes += figures.len() as u64;
        let (key, raw_bytes) = (key.to_owned(), Some(self.raw_bytes));
        let seconds = Some((self.began.elapsed().as_secs_f64() * 100.0).round() / 100.0);
        self.mark(&Mark { key, raw_bytes, seconds, number: None })
    }

    fn mark(&mut self, mark: &Mark) -> Result<()> {
        let line = serde_json::to_string(mark).doing("JSON")?;
        self.runs.write_all(format!("{line}\n").as_bytes()).doing("keeping what is done")?;
        self.runs.sync_data().doing("keeping what is done")
    }

    fn tell_once(&mut self, line: &Value) -> Result<()> {
        if self.told.contains(&line.to_string()) { Ok(()) } else { self.tell(line) }
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

fn refuse(dir: &Path, text: &str) -> Error {
    Error::new(format!("{} {text}", dir.display()))
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).doing(format_args!("reading {}", path.display()))
}

fn read_json(path: &Path) -> Result<Value> {
    serde_json::from_str(&read(path)?).doing(path.display())
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).doing("JSON")?;
    // A crash leaves the old one or the new one, whole.
    let new = path.with_extension("new");
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all((text + "\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().doing(format_args!("writing {}", path.display()))
}

/// Whether a folder holds nothing, or is not there.
fn is_empty(dir: &Path) -> Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error).doing(dir.display()),
    }
}

/// The folder, for one run alone until it is closed.
fn lock(dir: &Path) -> Result<File> {
    let folder = File::open(dir).doing(dir.display())?;
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(folder),
        Err(Errno::WOULDBLOCK) => {
            Err(Error::new(format!("{} is being written by another run", dir.display())))
        }
        Err(error) => Err(error).doing(format_args!("locking {}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Load;
    use crate::target::Target;

    fn plan() -> Plan {
        let loads = vec![Load::find("E3").unwrap()];
        Plan { loads, targets: vec![Target::Uext4], ..Plan::default() }
    }

    /// Fault model: two runs whose figures and marks are mixed in one folder.
    #[test]
    fn a_folder_has_one_writer() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let first = Evidence::open(&out, &mut plan(), false).unwrap();
        let error = Evidence::open(&out, &mut plan(), true).unwrap_err().to_string();
        assert!(error.ends_with("is being written by another run"), "{error}");
        drop(first);
        Evidence::open(&out, &mut plan(), true).unwrap();
    }
}
