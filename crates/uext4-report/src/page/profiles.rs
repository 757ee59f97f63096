//! Waits, histograms, commit phases and flame graphs.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::block::{Block, Legend, Table};
use super::shown::{look, of_run, waits_of};
use crate::evidence::{Evidence, Histogram, Waits};
use crate::flame::{Flames, share};
use crate::metric::{counted, short, show, show_known};
use crate::panel::{Panel, Series};
use crate::plot::{self, Line, Look, PARTS, Plane, Plot, Scale, Stack};

/// What shares of waits are of.
const SHARE_OF: &str = "Share of the time in which the threads of the load ran or waited: sleeps \
                        for the other end of a pipe, for children and for the clock are neither. \
                        Of a run that does not tell how long they ran it is of the time of all \
                        threads.";
/// How many causes have a part of their own.
const CAUSES_MAX: usize = PARTS - 1;
/// What the reason why there is no flame graph follows.
pub(super) const NO_PROFILE: &str = "No profile of the processor: ";
/// Stacks of a cause that are shown.
const STACKS_MAX: usize = 3;

/// Histograms: of what a caller sees, and of the phases inside the engine.
pub(super) struct Histograms {
    pub(super) calls: Vec<Block>,
    pub(super) engine: Vec<Block>,
}

/// What the phases inside the engine begin with.
const ENGINE: &str = "engine: ";
/// Histograms of each kind that are drawn.
const HISTOGRAMS_MAX: usize = 24;

/// A histogram for each phase.
pub(super) fn histograms(evidence: &Evidence, panel: &Panel<'_>) -> Histograms {
    let of = |series: &Series| {
        let (_, latency) = of_run(&evidence.latency, panel, series)?;
        Some((series.clone(), &latency.histograms))
    };
    let all: Vec<(Series, &Vec<Histogram>)> = panel.series.iter().filter_map(of).collect();
    let mut phases: Vec<&str> = Vec::new();
    for histogram in all.iter().flat_map(|(_, histograms)| histograms.iter()) {
        if !phases.contains(&histogram.phase.as_str()) {
            phases.push(&histogram.phase);
        }
    }
    let (engine, calls): (Vec<&str>, Vec<&str>) =
        phases.into_iter().partition(|phase| phase.starts_with(ENGINE));
    let draw = |phases: Vec<&str>| {
        let blocks = phases.into_iter().filter_map(|phase| histogram(panel, &all, phase));
        blocks.take(HISTOGRAMS_MAX).collect()
    };
    Histograms { calls: draw(calls), engine: draw(engine) }
}

fn histogram(panel: &Panel<'_>, all: &[(Series, &Vec<Histogram>)], phase: &str) -> Option<Block> {
    let title = format!("Histogram: {phase}");
    let mut table = Table::new(title.clone(), &["target", "up to", "operations", "share"]);
    let (mut lines, mut legend) = (Vec::new(), Legend::new());
    for (series, histograms) in all {
        let Some(histogram) = histograms.iter().find(|h| h.phase == phase) else { continue };
        let count: f64 = histogram.buckets.iter().map(|(_, count)| count).sum();
        if count <= 0.0 {
            continue;
        }
        let mut points = Vec::new();
        let mut before = histogram.buckets.first().map_or(1.0, |(upper, _)| upper / 2.0);
        let mut add = |x: f64, y: f64| points.push(plot::Mark { x, y, bounds: None });
        add(before, 0.0);
        for (upper, number) in &histogram.buckets {
            let part = number / count;
            add(before, part);
            add(*upper, part);
            before = *upper;
            table.push(|| {
                let row = [series.name(), show(*upper, "us"), show(*number, ""), show(part, "%")];
                row.map(Into::into).into()
            });
        }
        add(before, 0.0);
        let look = look(panel, series);
        lines.push(Line { look, points, has_marks: false });
        legend.push((look.sign(), series.name()));
    }
    if lines.is_empty() {
        return None;
    }
    let xs = lines.iter().flat_map(|line| line.points.iter().map(|p| p.x));
    let ys = lines.iter().flat_map(|line| line.points.iter().map(|p| p.y));
    let plane = Plane {
        label: &title,
        x: Scale::log(xs),
        y: Scale::zero(ys),
        x_marks: Vec::new(),
        x_title: "latency (logarithmic)",
        x_text: &|value| short(value, "us"),
        y_text: &|value| short(value, "%"),
    };
    let plot = Plot::of(|width| plot::lines(width, &plane, &lines));
    let note = "Share of operations by how long they took, of one round of each target.".into();
    Some(Block { title, note, plot, legend, table })
}

/// Waiting by cause, as the share of the time of all threads.
pub(super) fn waiting(evidence: &Evidence, panel: &Panel<'_>) -> Option<Block> {
    let rows = all_waits(evidence, panel, &panel.series, |waits| {
        let wait = waits.waits.iter();
        wait.filter_map(|w| Some((w.cause.as_str(), waits.share(w.total_ms)?))).collect()
    });
    let title = "Waiting by cause".to_owned();
    let note = format!("{SHARE_OF} Of one round of each target.");
    stack_block(title, note, rows, "%")
}

/// Phases of a commit.
pub(super) fn commit_phases(
    evidence: &Evidence,
    panel: &Panel<'_>,
    series: &[Series],
) -> Option<Block> {
    let rows = all_waits(evidence, panel, series, |waits| {
        let phases = waits.commit_phases.iter();
        phases.filter_map(|phase| Some((phase.phase.as_str(), phase.mean_us?))).collect()
    });
    let note = "Mean time of each phase, of one round of each target.".into();
    stack_block("Phases of a commit".to_owned(), note, rows, "us")
}

/// A row of named parts.
type Row<'e> = (String, Vec<(&'e str, f64)>);

fn all_waits<'e>(
    evidence: &'e Evidence,
    panel: &Panel<'_>,
    series: &[Series],
    parts: impl Fn(&'e Waits) -> Vec<(&'e str, f64)>,
) -> Vec<Row<'e>> {
    let of = |series: &Series| {
        let (_, waits) = waits_of(evidence, panel, series)?;
        Some((series.name(), parts(waits)))
    };
    series.iter().filter_map(of).collect()
}

/// Stacked bars of named parts: the largest have a colour of their own.
fn stack_block(title: String, note: String, mut rows: Vec<Row<'_>>, unit: &str) -> Option<Block> {
    rows.retain(|(_, parts)| parts.iter().any(|(_, value)| *value > 0.0));
    if rows.is_empty() {
        return None;
    }
    let names = names(&rows);
    let drawn = largest(&names);
    let number = |name: &str| drawn.iter().position(|d| *d == name).unwrap_or(CAUSES_MAX);
    let stacks = rows.iter().take(plot::ROWS_MAX).map(|(label, parts)| {
        let mut parts: Vec<(usize, f64)> =
            parts.iter().map(|(name, value)| (number(name), value.max(0.0))).collect();
        parts.sort_by_key(|(number, _)| *number);
        let sum: f64 = parts.iter().map(|(_, value)| value).sum();
        let parts = parts.into_iter().map(|(number, value)| (Look::part(number), value)).collect();
        Stack { label: label.clone(), parts, text: short(sum, unit) }
    });
    let stacks: Vec<Stack> = stacks.collect();
    let plot = Plot::of_rows(rows.len(), |width| plot::stacked(width, &title, &stacks));
    let named = drawn.iter().enumerate().map(|(at, name)| (at, (*name).to_owned()));
    let rest = (drawn.len() < names.len()).then(|| (CAUSES_MAX, "all others".to_owned()));
    let legend = named.chain(rest).map(|(at, name)| (Look::part(at).patch(), name)).collect();
    let table = parts_table(&title, &names, &rows, unit);
    Some(Block { title, note, plot, legend, table })
}

/// All names in the order in which they come, with the largest value of each.
fn names<'e>(rows: &[Row<'e>]) -> Vec<(&'e str, f64)> {
    let mut places = BTreeMap::<&str, usize>::new();
    let mut names: Vec<(&'e str, f64)> = Vec::new();
    for (name, value) in rows.iter().flat_map(|(_, parts)| parts) {
        let at = *places.entry(*name).or_insert(names.len());
        match names.get_mut(at) {
            Some((_, most)) => *most = most.max(*value),
            None => names.push((*name, *value)),
        }
    }
    names
}

/// The names that have a colour of their own, in their order.
fn largest<'e>(names: &[(&'e str, f64)]) -> Vec<&'e str> {
    let mut by_size: Vec<(usize, f64)> =
        names.iter().enumerate().map(|(at, (_, most))| (at, *most)).collect();
    by_size.sort_by(|a, b| b.1.total_cmp(&a.1));
    by_size.truncate(CAUSES_MAX);
    by_size.sort_by_key(|(at, _)| *at);
    by_size.into_iter().map(|(at, _)| names[at].0).collect()
}

fn parts_table(title: &str, names: &[(&str, f64)], rows: &[Row<'_>], unit: &str) -> Table {
    let mut table = Table::new(title, &["target"]);
    let shown = table.columns(names.iter().map(|(name, _)| *name));
    for (label, parts) in rows {
        table.push(|| {
            let mut row = vec![label.clone().into()];
            row.extend(names[..shown].iter().map(|(name, _)| {
                let of = parts.iter().filter(|(n, _)| n == name).map(|(_, v)| *v);
                show_known(of.reduce(|a, b| a + b), unit).into()
            }));
            row
        });
    }
    table
}

/// The page of flame graphs.
pub(super) fn flames(flames: &Flames) -> Markup {
    html! {
        h1 { "Flame graphs" }
        p.lead {
            "Where processors spent their time. Click a frame to zoom, search by Ctrl-F or the "
            "button in the graph. In a difference red grew with the option, blue shrank."
        }
        @for remark in &flames.remarks { p.remark { (remark) } }
        ul.contents {
            @for flame in &flames.graphs {
                li { a href=(format!("#{}", flame.id)) { (flame.title) } }
            }
        }
        @for (number, flame) in flames.graphs.iter().enumerate() {
            (without_profile(flames, number))
            figure.block.flame id=(flame.id) {
                figcaption {
                    h3 { (flame.title) }
                    p.note { (counted(flame.samples, "sample")) "." }
                }
                div.graph data-svg=(format!("{}-svg", flame.id)) data-height=(flame.height())
                    data-title=(flame.title) {
                    noscript { "The graph needs scripts; the table below does not." }
                }
                (hottest(flame.samples, &flame.hottest).markup())
            }
        }
        (without_profile(flames, flames.graphs.len()))
    }
}

/// What stands in the place of graphs before that of a number: why there are none.
fn without_profile(flames: &Flames, number: usize) -> Markup {
    html! {
        @for missing in flames.missing.iter().filter(|missing| missing.before == number) {
            h3 { (missing.title) }
            p.note { (NO_PROFILE) (missing.reason) "." }
        }
    }
}

fn hottest(samples: u64, functions: &[(String, u64)]) -> Table {
    let mut table = Table::new("Functions with most samples of their own", &["function"]);
    table.head.extend(["samples", "share"].map(str::to_owned));
    for (name, count) in functions {
        let row = [name.clone(), show(*count as f64, ""), share(*count, samples)];
        table.rows.push(row.map(Into::into).into());
    }
    table
}

/// The page of waits: causes with their stacks, and locks by name, for each run.
pub(super) fn waits(evidence: &Evidence) -> Markup {
    html! {
        h1 { "Waits and locks" }
        p.lead { "What the threads of each run waited for, and for which locks." }
        p.note { (SHARE_OF) }
        @for (key, waits) in &evidence.waits {
            section.run {
                h2 { (key) }
                p.note {
                    (threads(waits)) ", " (show_known(waits.seconds, "s"))
                    @if let Some(n) = waits.context_switches_per_op {
                        ", " (show(n, "")) " context switches per operation"
                    }
                    @if let Some(n) = waits.wakeups_per_op {
                        ", " (show(n, "")) " wake-ups per operation"
                    }
                    "."
                }
                @if waits.waits.is_empty() { p.note { "No wait was seen." } }
                @else { (causes(waits).markup()) }
                (stacks(waits))
                @if !waits.locks.is_empty() { (locks(waits).markup()) }
            }
        }
    }
}

fn threads(waits: &Waits) -> String {
    waits.threads.map_or_else(|| "- threads".to_owned(), |count| counted(count as u64, "thread"))
}

fn causes(waits: &Waits) -> Table {
    let mut table = Table::new("Waits by cause", &["cause", "share"]);
    table.head.extend(["times seen", "total", "mean", "99th percentile"].map(str::to_owned));
    for wait in &waits.waits {
        let row = [
            wait.cause.clone(),
            show_known(waits.share(wait.total_ms), "%"),
            show_known(wait.count, ""),
            show_known(wait.total_ms.map(|ms| ms * 1000.0), "us"),
            show_known(wait.mean_us, "us"),
            show_known(wait.p99_us, "us"),
        ];
        table.rows.push(row.map(Into::into).into());
    }
    table.known()
}

/// The most frequent stacks of each cause, to open.
pub(super) fn stacks(waits: &Waits) -> Markup {
    let with = waits.waits.iter().filter(|wait| !wait.stacks.is_empty());
    html! {
        @for wait in with {
            details {
                summary { "Stacks: " (wait.cause) }
                @for (stack, count) in wait.stacks().into_iter().take(STACKS_MAX) {
                    pre.stack { (counted(count, "time")) ": " (stack) }
                }
            }
        }
    }
}

fn locks(waits: &Waits) -> Table {
    let mut table = Table::new("Waits for locks", &["lock", "waits", "total", "mean"]);
    for lock in &waits.locks {
        let total = lock.total_ms.map(|ms| ms * 1000.0);
        let mean = total.zip(lock.waits).and_then(|(us, n)| (n > 0.0).then_some(us / n));
        let row = [
            lock.name.clone(),
            show_known(lock.waits, ""),
            show_known(total, "us"),
            show_known(mean, "us"),
        ];
        table.rows.push(row.map(Into::into).into());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::block::{COLUMNS_MAX, ROWS_MAX};
    use super::*;

    /// Fault model: thousands of variants, each with causes of its own: all rows by all columns
    /// would be a thousand million cells.
    #[test]
    fn cells_that_are_not_shown_are_not_made() {
        let causes: Vec<String> = (0..200_000).map(|number| format!("cause {number}")).collect();
        let mut rows: Vec<Row<'_>> = Vec::new();
        for own in causes.chunks(50) {
            let parts = own.iter().map(|name| (name.as_str(), 1.0)).collect();
            rows.push((format!("row {}", rows.len()), parts));
        }
        let block = stack_block("Waits".into(), String::new(), rows, "%").unwrap();
        assert_eq!(block.table.rows.len(), ROWS_MAX);
        assert!(block.table.rows.iter().all(|row| row.len() == COLUMNS_MAX));
        assert_eq!((block.table.count(), block.plot.rows), (4_000, 4_000));
        let html = block.markup().into_string();
        assert!(html.contains("the first 2000 rows of 4000 are shown"));
        assert!(html.contains("the first 60 columns of 200001 are shown"));
    }
}
