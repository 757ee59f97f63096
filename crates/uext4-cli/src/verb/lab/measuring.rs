//! `uext4 lab run`: what it does and tells.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use uext4_lab::{Cell, Event, Evidence, Form, Plan, RunName, Summary};

use super::run::{self, Args};
use super::{failed, not_measured};
use crate::failure::{At, Failure, Result, say};
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

/// Runs a plan.
pub(super) fn measure(mut plan: Plan, kept: &Kept<'_>) -> Result<()> {
    plan.name_once();
    let cells = plan.cells();
    if cells.is_empty() {
        let text = format!("lab: nothing to run: {}", plan.why_nothing());
        return Err(not_measured(Failure::line(&text)));
    }
    plan.require_room(&cells).map_err(|error| not_measured(failed(error)))?;
    plan.require_directory().map_err(|error| not_measured(failed(error)))?;
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
        count => format!(", of which {count} are done"),
    };
    // How long a job file takes nobody knows.
    let time = match plan.job {
        None => format!(", about {} in all", duration(seconds)),
        Some(_) => String::new(),
    };
    format!("{runs} runs{done}{time}, at most {} MiB in {}", largest >> 20, plan.folder().display())
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
    failures: u32,
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
            failures: 0,
            kept: Ok(()),
        }
    }

    fn all(mut self, source: Source<'_>) -> Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let stop = Arc::clone(&self.plan.stop);
            signal_hook::flag::register(signal, stop).at("lab", "signals")?;
        }
        if !self.json {
            let lines = uext4_lab::describe_machine();
            lines.iter().for_each(|line| self.print(&format!("{line}\n")));
        }
        let ran = source(&mut |event| self.take(&event));
        self.end(ran)
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
                self.progress.begin(&describe(name));
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
                self.failures += 1;
                let (load, target) = (name.run.load.id, name.run.target.name());
                let variant = name.variant;
                self.tell(&format!("lab: {load} on {target} {variant} gives no figure: {error}"));
            }
        }
    }

    fn tell(&self, line: &str) {
        self.progress.beside(|| say(line));
    }

    fn end(mut self, ran: uext4_lab::Result<()>) -> Result<()> {
        self.progress.end();
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
        if self.failures != 0 {
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
        let summary = evidence.finish(stopped.as_deref()).map_err(failed)?;
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
        Ok(Some(summary))
    }
}

fn describe(name: &RunName<'_>) -> String {
    let run = name.run;
    let form = run.form.map(|form| format!(" {}", form.name())).unwrap_or_default();
    let (id, target, variant) = (run.load.id, run.target.name(), name.variant);
    format!("{id}{form} {target} {variant} x{} round {}", run.threads, run.round)
}
