//! `uext4 lab run`: what it does and tells.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::Ordering;

use uext4_lab::{Cell, Event, Evidence, Form, Plan, RunName, Summary, counted};

use super::failures::Failures;
use super::run::{self, Args};
use super::{failed, not_measured};
use crate::ended::Ended;
use crate::failure::{Failure, Result, say};
use crate::progress::{Progress, Runs};

/// What becomes of the figures of a plan.
pub(super) struct Kept<'a> {
    /// Told as JSON.
    pub(super) json: bool,
    /// Folder for the evidence.
    pub(super) out: Option<&'a Path>,
    /// Whether the run in that folder goes on.
    pub(super) resume: bool,
    /// Whether only the plan is told.
    pub(super) dry_run: bool,
}

/// Runs the verb.
pub(super) fn run(args: &Args) -> Result<()> {
    let mut plan = run::plan(args).map_err(not_measured)?;
    args.lent.take(&mut plan)?;
    let Args { json, resume, dry_run, .. } = *args;
    measure(plan, &Kept { json, out: args.out.as_deref(), resume, dry_run })
}

/// The cells of a plan that can be run; all that can be refused before anything runs is.
pub(super) fn cells_of(plan: &mut Plan) -> Result<Vec<Cell>> {
    plan.name_once();
    let cells = plan.cells();
    if cells.is_empty() {
        let text = format!("lab: nothing to run: {}", plan.why_nothing());
        return Err(Failure::line(&text));
    }
    plan.require_used(&cells).map_err(failed)?;
    plan.require_folder().map_err(failed)?;
    plan.require_room(&cells).map_err(failed)?;
    plan.require_directory().map_err(failed)?;
    Ok(cells)
}

/// Runs a plan.
pub(super) fn measure(mut plan: Plan, kept: &Kept<'_>) -> Result<()> {
    let cells = cells_of(&mut plan).map_err(not_measured)?;
    if kept.dry_run {
        return tell_plan(&plan, &cells);
    }
    let mut evidence = None;
    if let Some(dir) = kept.out {
        let open = Evidence::open(dir, &mut plan, kept.resume);
        evidence = Some(open.map_err(|error| not_measured(failed(error)))?);
        if plan.resumed.lost() > 0 {
            say(&format!("lab: {}: {}", dir.display(), plan.resumed.loss()));
        }
        say(&format!("lab: {}", sum(&plan, &cells)));
    }
    let run = Measuring::new(kept.json, &plan, &cells, evidence);
    run.all(&mut |tell| uext4_lab::run(&plan, tell))
}

/// What gives events.
type Source<'a> = &'a mut dyn FnMut(&mut dyn FnMut(Event<'_>)) -> uext4_lab::Result<()>;

/// The plan in a line.
fn sum(plan: &Plan, cells: &[Cell]) -> String {
    let runs: u32 = cells.iter().map(|cell| cell.rounds).sum();
    let seconds: f64 = cells.iter().map(|cell| cell.seconds).sum();
    let largest = cells.iter().map(|cell| cell.bytes).max().unwrap_or(0);
    let done = match plan.resumed.count() {
        0 => String::new(),
        1 => ", of which 1 is done".to_owned(),
        count => format!(", of which {count} are done"),
    };
    // How long a job file takes nobody knows.
    let time = match plan.job {
        None => format!(", about {} in all", duration(seconds)),
        Some(_) => String::new(),
    };
    format!(
        "{}{done}{time}, at most {} MiB in {}",
        counted(runs, "run"),
        largest >> 20,
        plan.folder().display()
    )
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 90.0 => format!("{s:.0} s"),
        s => format!("{:.0} min", s / 60.0),
    }
}

fn tell_plan(plan: &Plan, cells: &[Cell]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut row = |[id, form, threads, bs, target, seconds, space, variant]: [&str; 8]| {
        let line = format!(
            "{id:<3} {form:<7} {threads:>7} {bs:>6} {target:<11} {seconds:>7} {space:>7}  {variant}"
        );
        writeln!(out, "{line}").map_err(crate::output::failed)
    };
    row(["id", "form", "threads", "bytes", "target", "seconds", "MiB", "variant"])?;
    for cell in cells {
        let [threads, bs] = [cell.threads, cell.bs].map(|number| number.to_string());
        let (seconds, space) = (format!("{:.1}", cell.seconds), (cell.bytes >> 20).to_string());
        let form = cell.form.map_or("-", Form::name);
        let target = cell.target.name();
        row([cell.load.id, form, &threads, &bs, target, &seconds, &space, &cell.variant])?;
    }
    writeln!(out, "{}", sum(plan, cells)).map_err(crate::output::failed)
}

/// A run that is going on.
struct Measuring<'a> {
    json: bool,
    plan: &'a Plan,
    evidence: Option<Evidence>,
    summary: Summary,
    progress: Runs,
    /// Whether a run has begun.
    has_begun: bool,
    failures: Failures,
    /// The first failure to write what was found: it ends the run.
    kept: Result<()>,
}

impl<'a> Measuring<'a> {
    fn new(json: bool, plan: &'a Plan, cells: &[Cell], evidence: Option<Evidence>) -> Self {
        let known = if plan.job.is_none() { cells } else { &[] };
        let runs = known.iter().flat_map(|cell| {
            let each = cell.seconds / f64::from(cell.rounds);
            std::iter::repeat_n(each, cell.rounds as usize)
        });
        Self {
            json,
            plan,
            evidence,
            summary: Summary::default(),
            progress: Progress::runs("lab", runs.collect(), plan.resumed.count()),
            has_begun: false,
            failures: Failures::default(),
            kept: Ok(()),
        }
    }

    fn all(mut self, source: Source<'_>) -> Result<()> {
        let ended = Ended::listen("lab", &self.plan.stop)?;
        if !self.json {
            let lines = uext4_lab::describe_machine();
            lines.iter().for_each(|line| self.print(&format!("{line}\n")));
        }
        let ran = source(&mut |event| self.take(&event));
        ended.or(self.end(ran))
    }

    /// A reader that has gone, as `head` does, ends the run.
    fn print(&mut self, text: &str) {
        let printed = std::io::stdout().write_all(text.as_bytes());
        self.or_stop(printed.map_err(crate::output::failed));
    }

    fn or_stop(&mut self, done: Result<()>) {
        if done.is_err() {
            self.plan.stop.store(true, Ordering::Relaxed);
            if self.kept.is_ok() {
                self.kept = done;
            }
        }
    }

    fn take(&mut self, event: &Event<'_>) {
        if let Some(evidence) = &mut self.evidence {
            let kept = evidence.keep(event).map_err(failed);
            self.or_stop(kept);
        }
        match event {
            Event::Run(name) => {
                self.has_begun = true;
                self.progress.begin(&format!("{} round {}", describe(name), name.run.round));
            }
            Event::Ended(_) | Event::Found(..) => {}
            Event::Note(load, text) => self.tell(&format!("lab: {}: {text}", load.id)),
            Event::Skipped(load, target, reason) => {
                let of = load.map(|load| format!("{}: ", load.id)).unwrap_or_default();
                self.tell(&format!("lab: {of}{} is left out: {reason}", target.name()));
            }
            // JSON has no such number.
            Event::Measured(figure) if !figure.value.is_finite() => {}
            Event::Measured(figure) => match self.json {
                true => self.print(&format!("{}\n", figure.to_json())),
                false => self.summary.add((*figure).clone()),
            },
            Event::Failed(name, error) => {
                if let Some(line) = self.failures.add(name, error) {
                    self.tell(&line);
                }
            }
        }
    }

    fn tell(&self, line: &str) {
        self.progress.beside(|| say(line));
    }

    fn end(mut self, ran: uext4_lab::Result<()>) -> Result<()> {
        self.progress.end();
        self.failures.others().for_each(|line| say(&line));
        let mut text = self.summary.to_text();
        let closed = self.close(&ran);
        if let Ok(Some(summary)) = &closed {
            text.clone_from(summary);
        }
        if !self.json {
            self.print(&text);
        }
        // The first cause first: what comes after it is often its consequence.
        self.kept.and(ran.map_err(failed)).and(closed.map(drop))?;
        if !self.failures.is_empty() {
            return Err(Failure::Reported);
        }
        Ok(())
    }

    /// Ends the evidence, and returns its summary; what has not begun leaves nothing.
    fn close(&mut self, ran: &uext4_lab::Result<()>) -> Result<Option<String>> {
        let Some(evidence) = self.evidence.take() else { return Ok(None) };
        if !self.has_begun && self.plan.resumed.count() == 0 {
            return evidence.discard().map(|()| None).map_err(failed);
        }
        let dir = evidence.dir().to_owned();
        let stopped = ran.as_ref().err().map(ToString::to_string);
        let summary = evidence.finish(stopped.as_deref()).map_err(failed);
        // What is there is shown, whatever could not be written.
        match uext4_report::write(&dir) {
            Ok(report) => say(&format!("lab: the report is {}", report.display())),
            Err(error) => {
                // Without a figure there is nothing to show.
                if !matches!(error, uext4_report::Error::NoEvidence(_)) {
                    say(&format!("lab: no report: {error}"));
                }
                say(&format!("lab: the evidence is in {}", dir.display()));
            }
        }
        summary.map(Some)
    }
}

/// A candidate in its setting.
pub(super) fn describe(name: &RunName<'_>) -> String {
    let run = name.run;
    let form = run.form.map(|form| format!(" {}", form.name())).unwrap_or_default();
    let (id, target, variant) = (run.load.id, run.target.name(), name.variant);
    format!("{id}{form} on {target} {variant} x{}", run.threads)
}
