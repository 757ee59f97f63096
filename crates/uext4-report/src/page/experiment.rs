//! The page of an experiment: its verdicts, and the plots of each of its panels.

use maud::{Markup, html};

use super::block::{COLUMNS_MAX, Cell, Table, heading};
use super::profiles;
use super::shown::{blocks, point_name};
use crate::evidence::{Event, Evidence};
use crate::metric::{self, counted, short, show, times};
use crate::panel::{Panel, Point, Series};
use crate::stats::{Spread, noise};
use crate::verdict::{Outcome, Verdict};

/// What experiments do, by their names.
const LOADS: &[(&str, &str)] = &[
    ("E0", "2,048 threads write blocks of 16 KiB at random and fsync after each, a file a thread."),
    ("E1a", "Threads append 8 KiB by fallocate up to 1 MiB, cut the file off, again."),
    ("E1b", "64 threads append 4 KiB by fallocate up to 1 GiB each."),
    ("E2", "Threads overwrite 4 KiB at random in 32 written files of a mapped image."),
    ("E3", "16 threads overwrite one file of 1 MiB at random and fsync after each write."),
    ("E4", "One thread keeps 64 direct requests in flight."),
    ("S1", "One thread appends 16 KiB and fsyncs, again and again."),
    ("M1", "Unpacks a source tree."),
    ("M2", "Reads every file of a source tree, freshly mounted and again."),
    ("M3", "Removes a source tree, freshly mounted."),
    ("M4", "Creates small files and writes 4 KiB into each."),
    ("M5", "Reads the attributes of small files."),
    ("M6", "Removes small files, freshly mounted."),
    ("M7", "Builds an image from a directory."),
];

/// Head of the column of ratios.
pub(super) const TIMES_AS_GOOD: &str = "times as good (95 % interval)";

/// The line about an experiment.
pub(super) fn load(name: &str) -> &'static str {
    LOADS.iter().find(|(known, _)| *known == name).map_or("", |(_, what)| what)
}

/// The page.
pub(super) fn page(evidence: &Evidence, name: &str, panels: &[&Panel<'_>]) -> Markup {
    let why = format!("#{}-why", super::anchor(name));
    html! {
        h1 { (name) }
        p.lead { (load(name)) }
        p { a href=(why) { "Why: what differs between the targets and the variants" } }
        (events(evidence, name))
        @for panel in panels {
            (heading(&panel.label))
            @let table = beside(panel);
            @if !table.rows.is_empty() {
                h3 { "uext4 beside its peers" }
                (table.markup())
            }
            @let table = options(panel);
            @if !table.rows.is_empty() {
                h3 { "What options change" }
                (table.markup())
            }
            @let histograms = profiles::histograms(evidence, panel);
            @for block in blocks(evidence, panel, histograms.calls) { (block.markup()) }
            @if !histograms.engine.is_empty() {
                details.all {
                    summary {
                        "Inside the engine: histograms of "
                        (counted(histograms.engine.len(), "phase"))
                    }
                    @for block in &histograms.engine { (block.markup()) }
                }
            }
            (noise_note(panel))
            (everything(panel))
        }
    }
}

/// What was skipped or failed, and what was noted, to open.
fn events(evidence: &Evidence, name: &str) -> Markup {
    let own = evidence.events.iter().filter(|e| e.experiment.as_deref() == Some(name));
    let (notes, others): (Vec<&Event>, Vec<&Event>) = own.partition(|e| e.event == "note");
    html! {
        (remarks(&others, false))
        @if !notes.is_empty() {
            details {
                summary { "Notes of the run (" (notes.len()) ")" }
                @for event in notes { p.note { (event.text) } }
            }
        }
    }
}

/// A remark for each kind of event: what happened in several rounds is said once.
pub(super) fn remarks(events: &[&Event], has_experiment: bool) -> Markup {
    let mut kinds: Vec<(&Event, Vec<u32>)> = Vec::new();
    for event in events {
        let is_like = |known: &Event| {
            known.event == event.event
                && known.text == event.text
                && known.place().eq(event.place())
        };
        match kinds.iter_mut().find(|(known, _)| is_like(known)) {
            Some((_, rounds)) => rounds.extend(event.round),
            None => kinds.push((event, event.round.into_iter().collect())),
        }
    }
    // A round is told once, though each number of threads has it.
    for (_, rounds) in &mut kinds {
        rounds.sort_unstable();
        rounds.dedup();
    }
    html! {
        @for (event, rounds) in &kinds {
            p.remark.(if event.event == "failed" { "bad" } else { "" }) {
                strong { (event.event) }
                @let place = [&event.target, &event.variant];
                @if has_experiment { @if let Some(name) = &event.experiment { " " (name) } }
                @for word in place.into_iter().flatten() { " " (word) }
                @match rounds.as_slice() {
                    [] => {}
                    [round] => { ", round " (round) }
                    [first, .., last] => {
                        ", " (rounds.len()) " rounds from " (first) " to " (last)
                    }
                }
                ": " (event.text)
            }
        }
    }
}

/// `0.91x (0.88x to 0.95x)`, or `0.91x (least 0.8x, most 1.1x)` of few rounds.
pub(super) fn ratio(verdict: &Verdict<'_>) -> String {
    let mean = times(verdict.ratio.mean);
    match verdict.ratio.bounds {
        None => mean,
        Some((least, most)) if verdict.ratio.is_range() => {
            format!("{mean} (least {}, most {})", times(least), times(most))
        }
        Some((lower, upper)) => format!("{mean} ({} to {})", times(lower), times(upper)),
    }
}

/// The word of a verdict, with what it lacks.
pub(super) fn word(verdict: &Verdict<'_>) -> String {
    let mut word = verdict.outcome.word().to_owned();
    if verdict.outcome == Outcome::FewRounds {
        word += &format!(" ({})", verdict.ratio.pairs);
    }
    if verdict.without_ratio > 0 {
        word += &format!("; no ratio in {} (of 0)", counted(verdict.without_ratio, "round"));
    }
    word
}

fn beside(panel: &Panel<'_>) -> Table {
    let head = ["target", "beside", "verdict", TIMES_AS_GOOD, "noise", "figure", "load"];
    let mut table = Table::new("uext4 beside its peers", &head);
    for verdict in &panel.verdicts.beside {
        table.rows.push(vec![
            verdict.own.name().into(),
            Cell::words(verdict.peer.name()),
            Cell::marked(word(verdict), verdict.outcome.class()),
            ratio(verdict).into(),
            verdict.noise.map_or("-".to_owned(), |noise| show(noise, "%")).into(),
            Cell::words(metric::title(verdict.metric)),
            Cell::words(point_name(panel, verdict.point)),
        ]);
    }
    table
}

fn options(panel: &Panel<'_>) -> Table {
    let head = ["target", "option", "with it", TIMES_AS_GOOD, "with it", "without"];
    let mut table = Table::new("With an option, beside the same target without", &head);
    for verdict in &panel.verdicts.options {
        let of = |series: &Series| {
            let spread = panel.spread(series, verdict.point, verdict.metric);
            spread.map_or("-".into(), |s| show(s.median, panel.unit(verdict.metric)))
        };
        table.rows.push(vec![
            verdict.own.target.clone().into(),
            Cell::words(verdict.own.variant.clone()),
            Cell::marked(word(verdict), verdict.outcome.class()),
            ratio(verdict).into(),
            of(&verdict.own).into(),
            of(&verdict.peer).into(),
        ]);
    }
    table
}

/// What a target differs from itself by.
fn noise_note(panel: &Panel<'_>) -> Markup {
    let point = panel.points.last().copied().unwrap_or_default();
    let Some(metric) = panel.headline() else { return html! {} };
    let is_repeated = panel.is_repeated();
    let ratios: Vec<f64> =
        panel.series.iter().flat_map(|series| panel.repeated(series, point, metric)).collect();
    let by =
        if is_repeated { "a target that ran twice in each round" } else { "successive rounds" };
    html! {
        @if let Some(noise) = noise(&ratios, 1) {
            p.note {
                "Noise: two rounds of the same differ by up to " (show(noise.exp() - 1.0, "%"))
                " here, from " (counted(ratios.len(), "pair")) " of " (by) "."
            }
        }
    }
}

/// Every metric of every series at every point.
fn everything(panel: &Panel<'_>) -> Markup {
    let mut table = Table::new("All figures: median (least to most)", &["figure"]);
    let pairs = panel.points.iter().flat_map(|point| panel.series.iter().map(|s| (s, *point)));
    let columns = pairs.filter(|(series, point)| panel.has_run(series, *point));
    // As many as a table shows, which says that it is cut, since its names are a column, too.
    let columns: Vec<(&Series, Point)> = columns.take(COLUMNS_MAX).collect();
    for (series, point) in &columns {
        let at = panel.axis().map(|_| point_name(panel, *point));
        let at = at.map_or(String::new(), |at| format!(", {at}"));
        table.head.push(format!("{}{at}", series.name()));
    }
    for metric in panel.metrics() {
        let unit = panel.unit(metric);
        let mut row = vec![metric::title(metric).into()];
        row.extend(columns.iter().map(|(series, point)| {
            let spread = panel.spread(series, *point, metric);
            let text = spread.map_or("-".to_owned(), |spread| show_spread(spread, unit));
            text.into()
        }));
        table.rows.push(row);
    }
    html! { details.all { summary { "All figures" } (table.markup()) } }
}

fn show_spread(Spread { median, least, most, count }: Spread, unit: &str) -> String {
    let median = show(median, unit);
    match count {
        1 => median,
        _ => format!("{median} ({} to {})", short(least, unit), short(most, unit)),
    }
}
