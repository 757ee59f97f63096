//! Blocks of a panel: which plots it has, from which figures.

use std::collections::BTreeSet;

use super::block::{Block, Legend, Table};
use crate::evidence::{Evidence, Latency, Moment, Waits, of_runs};
use crate::metric::{self, counted, short, show, show_known};
use crate::panel::{Axis, Panel, Point, Series};
use crate::plot::{self, Bar, Dots, Line, Look, Plane, Plot, Scale, Shape};
use crate::stats::Spread;

/// Parts of a load that have plots of their own.
const PARTS_MAX: usize = 8;

/// How a series looks in a panel.
pub(super) fn look(panel: &Panel<'_>, series: &Series) -> Look {
    let variants = panel.series.iter().filter(|other| !other.is_default());
    let number = variants.clone().position(|other| other == series);
    Look::of(&series.target, number)
}

/// A point as text.
pub(super) fn point_name(panel: &Panel<'_>, (threads, bytes): Point) -> String {
    match panel.axis() {
        Some(Axis::Bytes) => show(f64::from(bytes) / 1024.0, "KiB"),
        _ => counted(threads, "thread"),
    }
}

/// All that a panel shows, with histograms in their place.
pub(super) fn blocks(evidence: &Evidence, panel: &Panel<'_>, histograms: Vec<Block>) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut headlines = panel.headlines();
    headlines.truncate(PARTS_MAX);
    for metric in &headlines {
        blocks.extend(by_point(panel, metric));
        blocks.extend(every_round(panel, metric));
        blocks.extend(match metric::part(metric) {
            None => percentiles(panel, "latency", "Latency percentiles"),
            Some(part) => {
                let title = format!("{part}: Latency percentiles");
                percentiles(panel, &format!("{part}.latency"), &title)
            }
        });
    }
    if panel.axis().is_some() {
        blocks.extend(by_point(panel, "latency_p99_us"));
    }
    blocks.extend(percentiles(panel, "write_latency", "Latency of the write before the fsync"));
    blocks.extend(over_time(evidence, panel));
    blocks.extend(histograms);
    blocks.extend(super::profiles::waiting(evidence, panel));
    blocks.extend(super::profiles::commit_phases(evidence, panel, &panel.series));
    let rest = [
        "handles_per_txn",
        "flushes_per_fsync",
        "log_space_wait_share",
        "extents_per_file",
        "free_extent_mean_kib",
        "context_switches_per_op",
        "cpu_s",
    ];
    blocks.extend(ageing(panel));
    let is_drawn = |metric: &&str| !headlines.contains(metric) && panel.has(metric);
    blocks.extend(rest.into_iter().filter(is_drawn).filter_map(|metric| by_point(panel, metric)));
    blocks
}

/// A metric of all series: by threads or sizes where there are several, else as bars.
fn by_point(panel: &Panel<'_>, metric: &str) -> Option<Block> {
    let unit = panel.unit(metric);
    let has = |series: &&Series| {
        panel.points.iter().any(|point| panel.spread(series, *point, metric).is_some())
    };
    let series: Vec<&Series> = panel.series.iter().filter(has).collect();
    if series.is_empty() {
        return None;
    }
    let title = metric::title(metric);
    let direction =
        if metric::is_less_better(metric) { "less is better" } else { "more is better" };
    let by = match panel.axis() {
        Some(Axis::Threads) => " by threads",
        Some(Axis::Bytes) => " by size of a request",
        None => "",
    };
    let meaning = metric::find(metric).map_or("", |metric| metric.meaning);
    let note = if meaning.is_empty() { String::new() } else { format!("; {meaning}") };
    let note = format!("Median of the rounds, with the least and the most; {direction}{note}.");
    let table = points_table(panel, &series, metric, &format!("{title}{by}"));
    let (plot, legend) = match panel.axis() {
        None => (bar_plot(panel, &series, metric, &title), Legend::new()),
        Some(_) => {
            let legend =
                series.iter().map(|s| (look(panel, s).sign(), s.name())).collect::<Legend>();
            (line_plot(panel, &series, metric, &title, unit), legend)
        }
    };
    Some(Block { title: format!("{title}{by}"), note, plot, legend, table })
}

fn points_table(panel: &Panel<'_>, series: &[&Series], metric: &str, caption: &str) -> Table {
    let unit = panel.unit(metric);
    if panel.axis().is_none() {
        let mut table = Table::new(caption, &["target", "median", "least", "most", "rounds"]);
        for series in series {
            let Some(point) = panel.points.first() else { continue };
            let Some(s) = panel.spread(series, *point, metric) else { continue };
            let figures = [s.median, s.least, s.most].map(|value| show(value, unit).into());
            let mut row = vec![series.name().into()];
            row.extend(figures);
            row.push(s.count.to_string().into());
            table.rows.push(row);
        }
        return table;
    }
    let mut table = Table::new(caption, &["target"]);
    table.head.extend(panel.points.iter().map(|point| point_name(panel, *point)));
    for series in series {
        let mut row = vec![series.name().into()];
        row.extend(panel.points.iter().map(|point| {
            let spread = panel.spread(series, *point, metric);
            let text = spread.map_or("-".to_owned(), |s| {
                let (least, most) = (short(s.least, unit), short(s.most, unit));
                format!("{} ({least} to {most})", show(s.median, unit))
            });
            text.into()
        }));
        table.rows.push(row);
    }
    table
}

fn bar_plot(panel: &Panel<'_>, series: &[&Series], metric: &str, title: &str) -> Plot {
    let unit = panel.unit(metric);
    let point = panel.points.first().copied().unwrap_or_default();
    let bar = |series: &&Series| {
        let Spread { median, least, most, .. } = panel.spread(series, point, metric)?;
        Some(Bar {
            label: series.name(),
            look: look(panel, series),
            value: median,
            bounds: (least, most),
            text: short(median, unit),
        })
    };
    let bars: Vec<Bar> = series.iter().filter_map(bar).collect();
    let said: Vec<String> = bars.iter().map(|bar| format!("{} {}", bar.label, bar.text)).collect();
    let label = format!("{title}: {}", said.join(", "));
    Plot::of_rows(bars.len(), |width| plot::bars(width, &label, &bars))
}

fn line_plot(panel: &Panel<'_>, series: &[&Series], metric: &str, title: &str, unit: &str) -> Plot {
    let line = |series: &&Series| {
        let point = |(at, point): (usize, &Point)| {
            let s = panel.spread(series, *point, metric)?;
            Some(plot::Mark { x: at as f64, y: s.median, bounds: Some((s.least, s.most)) })
        };
        let points = panel.points.iter().enumerate().filter_map(point).collect();
        Line { look: look(panel, series), points, has_marks: true }
    };
    let lines: Vec<Line> = series.iter().map(line).collect();
    let highest = lines.iter().flat_map(|line| line.points.iter().map(|p| p.y)).collect::<Vec<_>>();
    let is_wide = Spread::of(highest.iter().copied().filter(|y| *y > 0.0))
        .is_some_and(|spread| spread.most > 50.0 * spread.least);
    let bounds = lines.iter().flat_map(|line| line.points.iter()).flat_map(|p| {
        let (least, most) = p.bounds.unwrap_or((p.y, p.y));
        [least, most]
    });
    let y = if is_wide { Scale::log(bounds) } else { Scale::zero(bounds) };
    let is_bytes = panel.axis() == Some(Axis::Bytes);
    let names = panel.points.iter().enumerate().map(|(at, point)| {
        let name = match is_bytes {
            true => short(f64::from(point.1) / 1024.0, "KiB"),
            false => point.0.to_string(),
        };
        (at as f64, name)
    });
    let plane = Plane {
        label: &format!("{title} of {}", counted(lines.len(), "target")),
        x: Scale::places(panel.points.len()),
        y,
        x_marks: names.collect(),
        x_title: if is_bytes { "size of a request" } else { "threads" },
        x_text: &|value| value.to_string(),
        y_text: &|value| short(value, unit),
    };
    Plot::of(|width| plot::lines(width, &plane, &lines))
}

/// The figure of each round: how much of a difference is noise.
fn every_round(panel: &Panel<'_>, metric: &str) -> Option<Block> {
    let point = *panel.points.last()?;
    let unit = panel.unit(metric);
    let of = |series: &&Series| panel.rounds(series, point, metric).len() > 1;
    let series: Vec<&Series> = panel.series.iter().filter(of).collect();
    if series.is_empty() {
        return None;
    }
    // Only rounds that there are have a place: a number of one may be anything.
    let all = series.iter().flat_map(|series| panel.rounds(series, point, metric).into_keys());
    let rounds: Vec<u32> = all.collect::<BTreeSet<u32>>().into_iter().collect();
    let lines: Vec<Line> = series
        .iter()
        .map(|series| {
            let values = panel.rounds(series, point, metric);
            let mark = |(at, round): (usize, &u32)| {
                let y = *values.get(round)?;
                Some(plot::Mark { x: at as f64, y, bounds: None })
            };
            let points = rounds.iter().enumerate().filter_map(mark).collect();
            Line { look: look(panel, series), points, has_marks: true }
        })
        .collect();
    let title = format!("{}, round by round", metric::title(metric));
    let is_log = Spread::of(lines.iter().flat_map(|l| l.points.iter().map(|p| p.y)))
        .is_some_and(|spread| spread.least > 0.0 && spread.most > 20.0 * spread.least);
    let ys = lines.iter().flat_map(|line| line.points.iter().map(|p| p.y));
    let plane = Plane {
        label: &title,
        x: Scale::places(rounds.len()),
        y: if is_log { Scale::log(ys) } else { Scale::zero(ys) },
        x_marks: rounds.iter().enumerate().map(|(at, n)| (at as f64, n.to_string())).collect(),
        x_title: "round",
        x_text: &|value| value.to_string(),
        y_text: &|value| short(value, unit),
    };
    let plot = Plot::of(|width| plot::lines(width, &plane, &lines));
    let mut table = Table::new(title.clone(), &["target"]);
    table.head.extend(rounds.iter().map(|round| format!("round {round}")));
    for series in &series {
        let values = panel.rounds(series, point, metric);
        let mut row = vec![series.name().into()];
        row.extend(rounds.iter().map(|round| show_known(values.get(round).copied(), unit).into()));
        table.rows.push(row);
    }
    let legend = series.iter().map(|s| (look(panel, s).sign(), s.name())).collect();
    let at = match panel.axis() {
        Some(_) => format!(" Of {}.", point_name(panel, point)),
        None => String::new(),
    };
    let note = format!("What rounds of one target differ by is noise of this machine.{at}");
    Some(Block { title, note, plot, legend, table })
}

/// Median, 99th percentile and longest, of each series.
fn percentiles(panel: &Panel<'_>, kind: &str, title: &str) -> Option<Block> {
    let point = *panel.points.last()?;
    let parts = [
        ("p50", "median", Shape::Circle),
        ("p99", "99th percentile", Shape::Diamond),
        ("max", "longest", Shape::Square),
    ];
    let name = |part: &str| format!("{kind}_{part}_us");
    let mut table = Table::new(title, &["target", "median", "99th percentile", "longest"]);
    let mut rows = Vec::new();
    for series in &panel.series {
        let of = |part: &str| panel.spread(series, point, &name(part)).map(|s| s.median);
        let values = parts.iter().filter_map(|(part, _, shape)| Some((of(part)?, *shape)));
        let values: Vec<(f64, Shape)> = values.collect();
        if values.is_empty() {
            continue;
        }
        rows.push(Dots { label: series.name(), look: look(panel, series), values });
        let mut row = vec![series.name().into()];
        row.extend(parts.map(|(part, ..)| of(part).map_or("-".into(), |v| show(v, "us")).into()));
        table.rows.push(row);
    }
    if rows.is_empty() {
        return None;
    }
    let text = |value| short(value, "us");
    let plot = Plot::of_rows(rows.len(), |width| plot::dots(width, title, &rows, &text));
    let has = |part: &str| panel.has(&name(part));
    let legend = parts.iter().filter(|(part, ..)| has(part)).map(|(_, name, shape)| {
        let look = Look { shape: *shape, ..Look::of("raw", None) };
        (look.sign(), (*name).to_owned())
    });
    let legend: Legend = legend.collect();
    let at = panel.axis().map_or(String::new(), |_| format!(" at {}", point_name(panel, point)));
    Some(Block {
        title: format!("{title}{at}"),
        note: "Medians over the rounds; a logarithmic axis; less is better.".into(),
        plot,
        legend,
        table,
    })
}

/// The files of the first round of a series that has some.
pub(super) fn of_run<'e, T>(
    files: &'e std::collections::BTreeMap<String, T>,
    panel: &Panel<'_>,
    series: &Series,
) -> Option<(String, &'e T)> {
    let points = panel.points.iter().rev();
    let keys = points.flat_map(|point| panel.keys(series, *point));
    keys.into_iter().find_map(|key| {
        let (name, file) = of_runs(files, &key).next()?;
        Some((name.clone(), file))
    })
}

/// Latency by time.
fn over_time(evidence: &Evidence, panel: &Panel<'_>) -> Option<Block> {
    let of = |series: &Series| {
        let (_, latency) = of_run(&evidence.latency, panel, series)?;
        (!latency.moments.is_empty()).then(|| (series.clone(), latency))
    };
    let all: Vec<(Series, &Latency)> = panel.series.iter().filter_map(of).collect();
    let moments = || all.iter().flat_map(|(_, latency)| latency.moments.iter());
    let has = |phase: &&str| moments().any(|moment| moment.phase == *phase);
    let phase = ["fsync", "request", "write"].into_iter().find(has);
    let phase = phase.or(moments().next().map(|moment| moment.phase.as_str()))?;
    let mut table =
        Table::new("99th percentile over time", &["target", "second", "operations", "median"]);
    table.head.extend(["99th percentile", "longest"].map(str::to_owned));
    for (series, latency) in &all {
        for m in latency.of_phase(phase) {
            table.push(|| {
                let times = [m.p50, m.p99, m.max].map(|value| show_known(value, "us"));
                let row = [series.name(), show(m.t_s, ""), show_known(m.ops, "")];
                row.into_iter().chain(times).map(Into::into).collect()
            });
        }
    }
    let drawn = &all[..all.len().min(plot::ROWS_MAX)];
    let lines: Vec<Line> = drawn
        .iter()
        .map(|(series, latency)| {
            let mark = |m: &Moment| Some(plot::Mark { x: m.t_s, y: m.p99?, bounds: None });
            let points: Vec<plot::Mark> = latency.of_phase(phase).filter_map(mark).collect();
            let has_marks = points.len() < 40;
            Line { look: look(panel, series), points, has_marks }
        })
        .collect();
    let xs = lines.iter().flat_map(|line| line.points.iter().map(|p| p.x));
    let ys = lines.iter().flat_map(|line| line.points.iter().map(|p| p.y));
    let title = format!("{phase}: 99th percentile over time");
    let plane = Plane {
        label: &title,
        x: Scale::zero(xs),
        y: Scale::log(ys),
        x_marks: Vec::new(),
        x_title: "seconds from the start",
        x_text: &|value| short(value, ""),
        y_text: &|value| short(value, "us"),
    };
    let plot = Plot::of_rows(all.len(), |width| plot::lines(width, &plane, &lines));
    let legend = drawn.iter().map(|(s, _)| (look(panel, s).sign(), s.name())).collect();
    let note = "Of one round of each target: stalls show as peaks. Logarithmic axis.".into();
    Some(Block { title, note, plot, legend, table })
}

/// The layout of files and of free space, before the load and after it.
fn ageing(panel: &Panel<'_>) -> Option<Block> {
    if !panel.has("aged_extents_per_file") {
        return None;
    }
    let point = *panel.points.last()?;
    let mut bars = Vec::new();
    let head = ["target", "extents of a file", "mean free extent", "e4defrag score"];
    let mut table = Table::new("Layout before the load and after it", &head);
    for series in &panel.series {
        for (when, prefix) in [("after ageing, before the load", "aged_"), ("after the load", "")] {
            let of = |metric: &str| {
                panel.spread(series, point, &format!("{prefix}{metric}")).map(|s| s.median)
            };
            let label = format!("{}, {when}", series.name());
            let cell = |value: Option<f64>, unit: &str| {
                value.map_or("-".to_owned(), |value| show(value, unit)).into()
            };
            let row = [
                cell(of("extents_per_file"), "1"),
                cell(of("free_extent_mean_kib"), "KiB"),
                cell(of("frag_score"), "1"),
            ];
            table.rows.push([vec![label.clone().into()], row.into()].concat());
            let Some(value) = of("free_extent_mean_kib") else { continue };
            let text = short(value, "KiB");
            let look = look(panel, series);
            bars.push(Bar { label, look, value, bounds: (value, value), text });
        }
    }
    let title = "Mean free extent before the load and after it".to_owned();
    let plot = Plot::of_rows(bars.len(), |width| plot::bars(width, &title, &bars));
    let note = "On a file system that was filled and rewritten at random; more is better.".into();
    Some(Block { title, note, plot, legend: Legend::new(), table })
}

/// The waits of a series.
pub(super) fn waits_of<'e>(
    evidence: &'e Evidence,
    panel: &Panel<'_>,
    series: &Series,
) -> Option<(String, &'e Waits)> {
    of_run(&evidence.waits, panel, series)
}
