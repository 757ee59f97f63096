//! The result of a test as text.

use std::fmt::Write;
use std::path::Path;

use uext4_crashtest::model::{Description, How, Loss, Progress, StepLine};
use uext4_crashtest::report::{Failure, Report};

/// Calls before the crash that are shown; crash.json has all.
const CALLS: usize = 20;
/// Losses that are shown.
const LOSSES: usize = 20;
/// Lines of what was printed that are shown.
const LINES: usize = 10;

/// The report, for a reader.
pub(super) fn of(report: &Report, folder: Option<&Path>) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = summary(&mut text, report);
    if let Some(failure) = &report.failure {
        let _ = failed(&mut text, report, failure);
    }
    for remark in &report.remarks {
        let _ = writeln!(text, "Note: {remark}.");
    }
    if let Some(folder) = folder {
        let (folder, also) = (folder.display(), report.failure.is_some());
        let image = if also { ", the failing state in failing.img" } else { "" };
        let _ = writeln!(text, "The whole timeline is in {folder}/crash.json{image}.");
    }
    text
}

fn summary(text: &mut String, report: &Report) -> std::fmt::Result {
    let Report { steps, states, seconds, .. } = report;
    let verdict = match &report.failure {
        Some(failure) => format!("FAILED: state {} is not sound", failure.number),
        None if report.cut_short.is_some() => "INTERRUPTED: no state failed so far".to_owned(),
        None if report.is_exhaustive => "all states that were found are sound".to_owned(),
        None => "no state failed".to_owned(),
    };
    writeln!(text, "{verdict}: {states} different states of {steps} calls in {seconds:.1} s")?;
    for (kind, count) in &report.states_by_kind {
        writeln!(text, "  {count:>7} {kind}")?;
    }
    Ok(())
}

fn failed(text: &mut String, report: &Report, failure: &Failure) -> std::fmt::Result {
    let Failure { description, .. } = failure;
    let Failure { failed, repeated, .. } = failure;
    if *repeated == 0 {
        writeln!(text, "The check was not repeated on the state below.")?;
    }
    if failed < repeated {
        writeln!(
            text,
            "Repeated on the state below, the check fails {failed} of {repeated} times: it depends \
             on more than the state."
        )?;
    }
    writeln!(text, "\nThe smallest state that fails, by {} checks:", failure.checks)?;
    calls(text, report, description)?;
    losses(text, &description.losses)?;
    writeln!(text, "\nThe program had printed {} bytes:", description.acknowledged)?;
    last_lines(text, &failure.printed)?;
    writeln!(text, "\nThe check: {}:", failure.status)?;
    last_lines(text, &failure.said)
}

fn calls(text: &mut String, report: &Report, description: &Description) -> std::fmt::Result {
    let steps = &description.steps;
    let shown = &steps[steps.len().saturating_sub(CALLS)..];
    let hidden = steps.len() - shown.len();
    let more =
        if hidden == 0 { String::new() } else { format!(", {hidden} earlier ones left out") };
    writeln!(text, "\nCalls until the power failed{more}:")?;
    for line in shown {
        let process = report.timeline.get(line.step).and_then(|step| step.process.as_deref());
        let process = process.unwrap_or("kernel");
        let seconds = line.started_us as f64 / 1e6;
        let (step, call, place) = (line.step, &line.call, place(line));
        writeln!(text, "  {step:>6}  {seconds:10.6}  {process:<15} {call}{place}")?;
    }
    match description.not_begun {
        0 => Ok(()),
        count => writeln!(text, "  {count} later calls had not begun"),
    }
}

/// Where a call was, if it was not simply done.
fn place(line: &StepLine) -> &'static str {
    match (line.progress, line.committed) {
        _ if line.in_part => "  [in the journal in part]",
        (Progress::InFlight, Some(false)) => "  [in flight, not in the journal]",
        (Progress::InFlight, _) => "  [in flight]",
        (Progress::Returned, Some(false)) => "  [returned, not in the journal]",
        (Progress::Returned, _) => "",
    }
}

fn losses(text: &mut String, losses: &[Loss]) -> std::fmt::Result {
    if losses.is_empty() {
        return Ok(());
    }
    writeln!(text, "\nNot on the medium as it was written:")?;
    for loss in losses.iter().take(LOSSES) {
        let Loss { step, offset, len, how, .. } = loss;
        let path = loss.path.as_deref().unwrap_or("(a file without a name)");
        let how = match how {
            How::Older => "the older content is there",
            How::Zeros => "zeros are there",
            How::Stale => "bytes of another file are there",
            How::Torn => "only a part was written",
            How::BeyondEnd => "the file ends before",
        };
        writeln!(text, "  {path}, {len} bytes at {offset} (call {step}): {how}")?;
    }
    match losses.len().saturating_sub(LOSSES) {
        0 => Ok(()),
        more => writeln!(text, "  and {more} more"),
    }
}

/// The end of a text, each line indented.
fn last_lines(text: &mut String, printed: &str) -> std::fmt::Result {
    let lines: Vec<&str> = printed.lines().collect();
    for line in &lines[lines.len().saturating_sub(LINES)..] {
        let line: String = line.chars().filter(|c| !c.is_control() || *c == '\t').collect();
        writeln!(text, "  {line}")?;
    }
    Ok(())
}
