//! One plot as a file of its own, for a README: ratios by experiment and peer.
//!
//! Invariant: it has its own style and its own paper, so that it can be read on a light and on a
//! dark page; it asks for nothing from elsewhere.

use maud::{PreEscaped, html};

use super::overview::{Found, found};
use super::shown::{look, point_name};
use crate::evidence::Evidence;
use crate::metric::times;
use crate::panel::panels;
use crate::plot::{Forest, ROWS_MAX, WIDE, forest};

const STYLE: &str = include_str!("picture.css");
/// Around the plot, and above and below it.
const MARGIN: usize = 20;
const TOP: usize = 64;
const BOTTOM: usize = 36;

/// The picture; `None` where there is no ratio.
pub(crate) fn render(evidence: &Evidence) -> Option<String> {
    let (panels, _) = panels(&evidence.figures);
    let found = found(&panels);
    if found.is_empty() {
        return None;
    }
    let rows: Vec<Forest> = found.iter().map(row).collect();
    let title = "How many times as good uext4 is as its peers";
    let plot = forest(WIDE, title, &rows, &times);
    let (width, height) = (WIDE as usize + 2 * MARGIN, height(&plot) + TOP + BOTTOM);
    let mut note =
        "Right of 1 uext4 is better. Bars: 95 % intervals; dashed: few rounds; dashed marks: goals."
            .to_owned();
    if rows.len() > ROWS_MAX {
        note = format!("The first {ROWS_MAX} of {} ratios. {note}", rows.len());
    }
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
            viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(title) {
            style { (PreEscaped(STYLE)) }
            rect.paper width=(width) height=(height) rx="8" {}
            text.title x=(MARGIN) y="30" { (title) }
            text.note x=(MARGIN) y="50" { (machine(evidence)) }
            svg x=(MARGIN) y=(TOP) width=(WIDE) height=(height - TOP - BOTTOM) {
                (PreEscaped(plot))
            }
            text.note x=(MARGIN) y=(height - 14) { (note) }
        }
    };
    Some(svg.into_string() + "\n")
}

fn row(Found { panel, verdict }: &Found<'_>) -> Forest {
    let name = format!("{} {}", panel.experiment, panel.label);
    let name = format!("{}, {}", name.trim(), point_name(panel, verdict.point));
    let own = match verdict.own.target.as_str() {
        "uext4" => String::new(),
        other => format!("{other} "),
    };
    Forest {
        label: format!("{name}: {own}beside {}", verdict.peer.name()),
        look: look(panel, &verdict.peer),
        mean: verdict.ratio.mean,
        bounds: verdict.ratio.bounds,
        is_range: verdict.ratio.is_range(),
        goal: crate::goal::of_verdict(panel, verdict),
    }
}

/// What it was measured on, in a line.
fn machine(evidence: &Evidence) -> String {
    let text = |name: &str| evidence.env.get(name).and_then(|value| value.as_str());
    let kernel =
        text("kernel").map(|kernel| format!("Linux {}", kernel.trim_start_matches("Linux ")));
    let processors = evidence.env.get("cpus").map(|count| format!("{count} processors"));
    let store = text("store").map(|store| format!("store {store}"));
    let day = text("begun").map(|begun| begun.chars().take(10).collect());
    [processors, kernel, store, day].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Pixels of a plot, by its own word.
fn height(plot: &str) -> usize {
    let text = plot.split_once(" height=\"").map_or("", |(_, rest)| rest);
    text.split('"').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}
