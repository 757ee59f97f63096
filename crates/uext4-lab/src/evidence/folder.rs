//! The folder of evidence of a run, and going on with one.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::counted::counted;
use crate::error::{Doing, Error, Result};
use crate::evidence::line_file::LineFile;
use crate::evidence::taken_up::{self, Mark, TakenUp};
use crate::evidence::{environment, identity, json_file, plan_difference, summary};
use crate::plan::{Event, Plan};
use crate::record;

const HOLDS: &str = "holds something: name a new folder, or go on with --resume";
const HOLDS_NO_RUN: &str = "holds no run to go on with: it has no plan.json";
const FIGURES: &str = "keeping figures";
const MARKS: &str = "keeping what is done";
const EVENTS: &str = "keeping an event";

/// A folder that is being written.
#[derive(Debug)]
pub struct Evidence {
    dir: PathBuf,
    /// Whether it was not there before, and whether it held no run.
    is_made: bool,
    is_new: bool,
    /// The folder itself, locked as long as this lives.
    folder: File,
    raw: LineFile,
    events: LineFile,
    /// Notes and reasons that were told before: a run that goes on comes by them again.
    told: HashSet<String>,
    runs: LineFile,
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
    /// Seconds that runs have taken.
    seconds: f64,
    told: HashSet<String>,
    /// When and by which words it was begun.
    environment: Value,
    /// What is to be told of going on.
    resumed: Option<String>,
}

impl Before {
    /// Takes up what a run of the same plan, build and machine has left: the plan goes on there.
    fn take_up(dir: &Path, plan: &mut Plan) -> Result<Self> {
        let before = json_file::read(&dir.join("plan.json"))?;
        let environment = json_file::read(&dir.join("env.json"))?;
        let now = environment::describe(plan);
        let others = identity::differences(&environment, &now);
        // Another build writes its plan in its own way.
        let differences = match identity::is_other_program(&environment, &now) {
            true => Vec::new(),
            false => plan_difference::differences(&before, &plan.to_json()),
        };
        for (text, differences) in [
            ("was begun with another plan", differences),
            ("was begun by another build or on another machine", others),
        ] {
            if !differences.is_empty() {
                return Err(refuse(dir, &format!("{text}: {}", differences.join("; "))));
            }
        }
        let TakenUp { resumed, seconds, events } = taken_up::take_up(dir)?;
        let mut text = format!("{} had ended", counted(resumed.count(), "run"));
        if resumed.lost() > 0 {
            text += &format!(", {}", resumed.loss());
        }
        plan.resumed = Arc::new(resumed);
        let told = events.lines().map(str::to_owned).collect();
        // One that was killed has said its seconds with its last run.
        let seconds = environment["seconds"].as_f64().unwrap_or(0.0).max(seconds);
        Ok(Self { seconds, told, environment, resumed: Some(text) })
    }

    /// Begins a run in a folder that holds none. What is made last says that a run is there.
    fn begin(dir: &Path, plan: &Plan) -> Result<Self> {
        let environment = environment::describe(plan);
        json_file::write(&dir.join("env.json"), &environment)?;
        json_file::write(&dir.join("plan.json"), &plan.to_json())?;
        Ok(Self { environment, ..Self::default() })
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
        match resume {
            true if !holds_run(dir) => return Err(refuse(dir, HOLDS_NO_RUN)),
            false if !is_free(dir)? => return Err(refuse(dir, HOLDS)),
            _ => {}
        }
        let is_made = !dir.exists();
        fs::create_dir_all(dir).doing(format_args!("making {}", dir.display()))?;
        let dir = fs::canonicalize(dir).doing(dir.display())?;
        let folder = lock(&dir)?;
        // Looked at again: until it was locked another run may have had it.
        let before = match resume {
            true if holds_run(&dir) => Before::take_up(&dir, plan)?,
            true => return Err(refuse(&dir, HOLDS_NO_RUN)),
            false if is_free(&dir)? => Before::begin(&dir, plan)?,
            false => return Err(refuse(&dir, HOLDS)),
        };
        plan.out = Some(dir.clone());
        let mut evidence = Self {
            raw: LineFile::open(&dir.join("raw.jsonl"))?,
            events: LineFile::open(&dir.join("events.jsonl"))?,
            told: before.told,
            runs: LineFile::open(&dir.join("runs.jsonl"))?,
            pending: String::new(),
            over_rounds: String::new(),
            environment: before.environment,
            began: Instant::now(),
            seconds_before: before.seconds,
            folder,
            is_made,
            is_new: !resume,
            dir,
        };
        if let Some(text) = before.resumed {
            evidence.tell(&json!({"event": "resumed", "text": text}))?;
        }
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
            // JSON has no such number, and readers of the figures would stop there.
            Event::Measured(figure) if !figure.value.is_finite() => {
                let (target, metric, round) = (figure.target, figure.metric, figure.round);
                let text = format!(
                    "{target} {}, round {round}: {metric} is no number and is left out",
                    figure.variant
                );
                let experiment = figure.experiment;
                return self
                    .tell(&json!({"event": "note", "experiment": experiment, "text": text}));
            }
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
                    "variant": name.variant, "round": run.round, "key": name.key(),
                    "text": error.to_string(),
                }));
            }
        }
        Ok(())
    }

    /// Ends it: the time that it took, the summary, and what has stopped it early, if that is so.
    /// Returns the summary.
    ///
    /// # Errors
    /// The first thing that could not be written; what can be is.
    pub fn finish(mut self, interrupted: Option<&str>) -> Result<String> {
        let told = interrupted
            .map_or(Ok(()), |text| self.tell(&json!({"event": "interrupted", "text": text})));
        let timed = self.write_environment();
        let over_rounds = std::mem::take(&mut self.over_rounds);
        let kept = self.raw.append_durably(&over_rounds, FIGURES);
        let summary = self.write_summary();
        told.and(timed).and(kept).and(summary)
    }

    /// Of the runs that are in the folder.
    fn write_summary(&self) -> Result<String> {
        let raw = self.dir.join("raw.jsonl");
        let text = fs::read_to_string(&raw).doing(format_args!("reading {}", raw.display()))?;
        let text = summary::of(&self.environment, &record::parse(&text)?);
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
            // Of a run that does not count.
            match fs::remove_dir_all(self.dir.join("tools")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            // As long as the last two are there the run can go on; with the last one alone the
            // folder can be had by another.
            for name in ["events.jsonl", "raw.jsonl", "runs.jsonl", "plan.json", "env.json"] {
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
        // Before its mark: after a loss of power no mark may tell of figures that are not there.
        self.raw.append_durably(&figures, FIGURES)?;
        let (key, raw_bytes) = (key.to_owned(), Some(self.raw.bytes()));
        let seconds = Some((self.seconds() * 100.0).round() / 100.0);
        self.mark(&Mark { key, raw_bytes, seconds, number: None })
    }

    fn mark(&mut self, mark: &Mark) -> Result<()> {
        let line = serde_json::to_string(mark).doing("JSON")?;
        self.runs.append_durably(&format!("{line}\n"), MARKS)
    }

    fn tell_once(&mut self, line: &Value) -> Result<()> {
        if self.told.contains(&line.to_string()) { Ok(()) } else { self.tell(line) }
    }

    fn tell(&mut self, line: &Value) -> Result<()> {
        self.events.append(&format!("{line}\n"), EVENTS)
    }

    /// Seconds that it took, those before it went on among them.
    fn seconds(&self) -> f64 {
        self.seconds_before + self.began.elapsed().as_secs_f64()
    }

    fn write_environment(&self) -> Result<()> {
        let mut environment = self.environment.clone();
        environment["seconds"] = ((self.seconds() * 10.0).round() / 10.0).into();
        json_file::write(&self.dir.join("env.json"), &environment)
    }
}

impl Drop for Evidence {
    fn drop(&mut self) {
        // A process that is just being started has the folder open, too, until it runs its program.
        let _ = flock(&self.folder, FlockOperation::Unlock);
    }
}

fn refuse(dir: &Path, text: &str) -> Error {
    Error::new(format!("{} {text}", dir.display()))
}

/// Whether a run has begun in a folder.
fn holds_run(dir: &Path) -> bool {
    dir.join("plan.json").exists()
}

/// Whether a run can begin in a folder: it is not there, or holds nothing, or only what one that
/// was killed has made before its plan.
fn is_free(dir: &Path) -> Result<bool> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error).doing(dir.display()),
    };
    for entry in entries {
        let entry = entry.doing(dir.display())?;
        let is_of_beginning = match entry.file_name().to_str() {
            Some("env.new" | "plan.new") => true,
            Some("env.json") => {
                json_file::read(&entry.path()).is_ok_and(|env| env["begun"].is_string())
            }
            _ => false,
        };
        if !is_of_beginning {
            return Ok(false);
        }
    }
    Ok(true)
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
mod tests;
