//! One plot as a file of its own, for a README: ratios by experiment, a mark for each peer.
//!
//! Invariant: it has its own style and its own paper, so that it can be read on a light and on a
//! dark page; it asks for nothing from elsewhere.

use maud::{PreEscaped, html};

use super::overview::{Found, found};
use crate::evidence::Evidence;
use crate::metric::{counted, times};
use crate::panel::panels;
use crate::plot::{Forest, Look, ROWS_MAX, WIDE, forest};
use crate::verdict::judge;

const STYLE: &str = include_str!("picture.css");
/// Around the plot, and above and below it.
const MARGIN: usize = 20;
const TOP: usize = 88;
const BOTTOM: usize = 36;
/// From one peer of the legend to the next.
const LEGEND: usize = 130;

/// The picture; `None` where there is no ratio.
///
/// A row is what one own target did in one panel, with a mark for each peer: with its default
/// options, or the first ones that it has.
pub(crate) fn render(evidence: &Evidence) -> Option<String> {
    let (mut panels, _) = panels(&evidence.figures);
    judge(&mut panels);
    let found = found(&panels);
    let groups = by_own(&found);
    if groups.is_empty() {
        return None;
    }
    let rows: Vec<Forest> = groups.iter().flat_map(|group| row(group)).collect();
    let title = "How many times as good uext4 is as its peers";
    let plot = forest(WIDE, title, &rows, &times);
    let (width, height) = (WIDE as usize + 2 * MARGIN, height(&plot) + TOP + BOTTOM);
    let note = "Right of 1 uext4 is better. Bars: 95 % intervals, over 1 no difference; dashed: \
                few rounds; dashed marks: goals.";
    let mut about = machine(evidence);
    if groups.len() > ROWS_MAX {
        about += &format!(". The first {ROWS_MAX} of {} rows", groups.len());
    }
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
            viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(title) {
            style { (PreEscaped(STYLE)) }
            rect.paper width=(width) height=(height) rx="8" {}
            text.title x=(MARGIN) y="30" { (title) }
            text.note x=(MARGIN) y="50" { (about) }
            @for (at, (peer, look)) in peers(&groups).into_iter().enumerate() {
                @let x = MARGIN + at * LEGEND;
                svg x=(x) y="61" width="24" height="14" { (PreEscaped(look.sign())) }
                text.note x=(x + 30) y="72" { (peer) }
            }
            svg x=(MARGIN) y=(TOP) width=(WIDE) height=(height - TOP - BOTTOM) {
                (PreEscaped(plot))
            }
            text.note x=(MARGIN) y=(height - 14) { (note) }
        }
    };
    Some(svg.into_string() + "\n")
}

/// What each own target did in each panel beside each peer, the best known own target first.
fn by_own<'a>(found: &'a [Found<'a>]) -> Vec<Vec<&'a Found<'a>>> {
    let mut groups: Vec<Vec<&Found<'_>>> = Vec::new();
    for ratio in found {
        let own = &ratio.verdict.own;
        let group = groups.iter_mut().find(|group| {
            let first = group[0].verdict;
            std::ptr::eq(group[0].panel, ratio.panel)
                && first.own == *own
                && first.metric == ratio.verdict.metric
        });
        let Some(group) = group else {
            groups.push(vec![ratio]);
            continue;
        };
        let target = &ratio.verdict.peer.target;
        match group.iter_mut().find(|other| other.verdict.peer.target == *target) {
            None => group.push(ratio),
            Some(other) if ratio.verdict.peer.is_default() => *other = ratio,
            Some(_) => {}
        }
    }
    groups.sort_by_key(|group| group[0].verdict.own.target != "uext4");
    groups
}

/// The marks of the peers, once each.
fn peers<'a>(groups: &[Vec<&'a Found<'a>>]) -> Vec<(&'a str, Look)> {
    let mut peers: Vec<(&str, Look)> = Vec::new();
    for Found { verdict, .. } in groups.iter().flatten() {
        let target = verdict.peer.target.as_str();
        if !peers.iter().any(|(known, _)| *known == target) {
            peers.push((target, Look::of(target, None)));
        }
    }
    peers
}

/// The ratios of a group; the first has the label of the row.
fn row(group: &[&Found<'_>]) -> Vec<Forest> {
    let verdict = group[0].verdict;
    let mut name = group[0].place();
    if verdict.own.target != "uext4" {
        name = format!("{}: {name}", verdict.own.target);
    }
    group
        .iter()
        .map(|Found { panel, verdict }| Forest {
            label: std::mem::take(&mut name),
            look: Look::of(&verdict.peer.target, None),
            mean: verdict.ratio.mean,
            bounds: verdict.ratio.bounds,
            is_range: verdict.ratio.is_range(),
            goal: crate::goal::of_verdict(panel, verdict),
        })
        .collect()
}

/// What it was measured on, in a line.
fn machine(evidence: &Evidence) -> String {
    let text = |name: &str| evidence.env.get(name).and_then(|value| value.as_str());
    let kernel =
        text("kernel").map(|kernel| format!("Linux {}", kernel.trim_start_matches("Linux ")));
    let processors = evidence.env.get("cpus").and_then(serde_json::Value::as_u64);
    let processors = processors.map(|count| counted(count, "processor"));
    let store = text("store").map(|store| format!("store {store}"));
    let day = text("begun").map(|begun| begun.chars().take(10).collect());
    [processors, kernel, store, day].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Pixels of a plot, by its own word.
fn height(plot: &str) -> usize {
    let text = plot.split_once(" height=\"").map_or("", |(_, rest)| rest);
    text.split('"').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}
