//! The first page: verdicts, goals, the machine, what is missing.

use maud::{Markup, html};
use serde_json::Value;

use super::block::{Block, Cell, Legend, Table, breakable};
use super::experiment::{ratio, word};
use super::shown::{look, point_name};
use super::why::striking;
use super::{anchor, experiments};
use crate::evidence::Evidence;
use crate::metric::{self, show, times};
use crate::panel::{Panel, Series};
use crate::plot::{self, Forest, Plot};
use crate::verdict::{GOALS, Goal, Outcome, Verdict, goal, verdicts};

/// A verdict with where it was found.
struct Found<'a> {
    panel: &'a Panel<'a>,
    verdict: Verdict,
}

/// The page.
pub(super) fn page(evidence: &Evidence, panels: &[Panel<'_>]) -> Markup {
    let found = found(panels);
    html! {
        h1 { "Overview" }
        p.lead {
            @if panels.is_empty() {
                "This folder holds no figures."
            } @else {
                "uext4 beside its peers on one machine: " (experiments(panels)) "."
            }
        }
        (cards(&found))
        (findings(panels))
        @for own in own_targets(&found) { (beside(&found, own)) }
        (goals(panels))
        (remarks(evidence))
        (machine(evidence))
    }
}

/// The verdicts by headline at the last point of each panel.
fn found<'a>(panels: &'a [Panel<'a>]) -> Vec<Found<'a>> {
    let of = |panel: &'a Panel<'a>| {
        let is_shown = |verdict: &Verdict| {
            Some(verdict.metric) == panel.headline() && panel.points.last() == Some(&verdict.point)
        };
        let own = verdicts(panel).into_iter().filter(is_shown).collect::<Vec<_>>();
        own.into_iter().map(move |verdict| Found { panel, verdict })
    };
    panels.iter().flat_map(of).collect()
}

fn own_targets<'a>(found: &'a [Found<'_>]) -> Vec<&'a str> {
    let mut targets: Vec<&str> = Vec::new();
    for target in found.iter().map(|found| found.verdict.own.target.as_str()) {
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    targets
}

/// A card for each pair of targets: how often it wins and loses.
fn cards(found: &[Found<'_>]) -> Markup {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for Found { verdict, .. } in found {
        let pair = (verdict.own.target.clone(), verdict.peer.name());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    // Those of one target together.
    let place = |own: &str| found.iter().position(|f| f.verdict.own.target == own);
    pairs.sort_by_key(|(own, _)| place(own));
    html! {
        div.cards {
            @for (own, peer) in &pairs {
                @let of = found.iter().filter(|f| {
                    f.verdict.own.target == *own && f.verdict.peer.name() == *peer
                });
                @let count = |outcome| of.clone().filter(|f| f.verdict.outcome == outcome).count();
                @let (wins, losses) = (count(Outcome::Wins), count(Outcome::Loses));
                @let rest = of.clone().count() - wins - losses;
                div.card {
                    p.who { (own) " beside " (peer) }
                    p.score {
                        span.win { (wins) " won" }
                        span.loss { (losses) " lost" }
                        @if rest > 0 { span.even { (rest) " open" } }
                    }
                }
            }
        }
    }
}

/// Options that make the difference, of targets that are slow without one or with one.
fn findings(panels: &[Panel<'_>]) -> Markup {
    let found: Vec<_> = panels.iter().flat_map(striking).collect();
    html! {
        @if !found.is_empty() {
            h2 { "Found" }
            ul.findings {
                @for pair in &found {
                    li {
                        strong { (pair.panel.experiment) }
                        @if !pair.panel.label.is_empty() { " " (pair.panel.label) } ": "
                        (breakable(&pair.slow.name())) " is " strong { (times(pair.times)) }
                        " worse than " (breakable(&pair.fast.name())) ". "
                        a href=(format!("#{}-why", anchor(pair.panel.experiment))) { "Why" }
                    }
                }
            }
        }
    }
}

/// A target beside its peers: intervals as a plot, and the table.
fn beside(found: &[Found<'_>], own: &str) -> Markup {
    let head =
        ["experiment", "beside", "verdict", "times as good (95 %)", own, "peer", "noise", "goal"];
    let mut table = Table::new(format!("{own} beside its peers"), &head);
    let mut rows = Vec::new();
    for Found { panel, verdict } in found.iter().filter(|found| found.verdict.own.target == own) {
        let name = format!("{} {}", panel.experiment, panel.label);
        let name = format!("{}, {}", name.trim(), point_name(panel, verdict.point));
        let goal = goal(panel.experiment, verdict);
        rows.push(Forest {
            label: format!("{name}: {}", verdict.peer.name()),
            look: look(panel, &verdict.peer),
            mean: verdict.ratio.mean,
            bounds: verdict.ratio.bounds,
            goal: goal.map(|goal| goal.bound),
        });
        let figure = |series: &Series| {
            let spread = panel.spread(series, verdict.point, verdict.metric);
            spread.map_or("-".to_owned(), |s| show(s.median, panel.unit(verdict.metric)))
        };
        table.rows.push(vec![
            name.into(),
            Cell::words(verdict.peer.name()),
            Cell::marked(word(verdict), verdict.outcome.class()),
            ratio(verdict).into(),
            figure(&verdict.own).into(),
            figure(&verdict.peer).into(),
            verdict.noise.map_or("-".to_owned(), |noise| show(noise, "%")).into(),
            goal.map_or("-".to_owned(), |goal| times(goal.bound)).into(),
        ]);
    }
    let label = format!("{own}: how many times as good it is as each peer, with intervals");
    let plot = Plot::of(|width| plot::forest(width, &label, &rows, &times));
    let block = Block {
        title: format!("{own}: how many times as good as its peers"),
        note: "Right of 1 it wins, left of 1 it loses. The bar is the 95 % interval over the \
               rounds, the dashed mark the goal. At the most threads of each experiment; its page \
               has the others."
            .into(),
        plot,
        legend: Legend::new(),
        table,
    };
    let mut names: Vec<&str> = found.iter().map(|found| found.panel.experiment).collect();
    names.dedup();
    html! {
        (block.markup())
        p.links {
            "Pages: "
            @for name in names { a href=(format!("#{}", anchor(name))) { (name) } " " }
        }
    }
}

/// Goals that the figures say something about.
fn goals(panels: &[Panel<'_>]) -> Markup {
    let head = ["experiment", "figure", "goal", "measured", "goal met"];
    let mut table =
        Table::new("What uext4 (the library, in its default) was built to reach", &head);
    for panel in panels {
        for goal in GOALS.iter().filter(|goal| goal.experiment == panel.experiment) {
            table.rows.extend(goal_row(panel, goal));
        }
    }
    html! {
        @if !table.rows.is_empty() {
            h2 { "Goals" }
            (table.markup())
        }
    }
}

fn goal_row(panel: &Panel<'_>, goal: &Goal) -> Option<Vec<Cell>> {
    let own = Series { target: "uext4".to_owned(), variant: String::new() };
    let unit = panel.unit(goal.metric);
    let name = format!("{} {}", panel.experiment, panel.label).trim().to_owned();
    let title = metric::title(goal.metric);
    let (title, wanted, measured, is_met) = match goal.peer {
        Some((target, variant)) => {
            let peer = Series { target: target.to_owned(), variant: variant.to_owned() };
            let of = |point: &(u32, u32)| Verdict::of(panel, &own, &peer, *point, goal.metric);
            let all: Vec<Verdict> = panel.points.iter().filter_map(of).collect();
            let least = all.iter().map(|v| v.ratio.mean).fold(f64::MAX, f64::min);
            all.first()?;
            let title = format!("{title}, by {}", peer.name());
            (title, format!("at least {}", times(goal.bound)), times(least), least >= goal.bound)
        }
        None => {
            let of = |point: &(u32, u32)| panel.spread(&own, *point, goal.metric);
            let most = panel.points.iter().filter_map(of).map(|s| s.median);
            let most = most.reduce(f64::max)?;
            let bound = show(goal.bound, unit);
            (title, format!("at most {bound}"), show(most, unit), most <= goal.bound)
        }
    };
    let met = if is_met { Cell::marked("met", "win") } else { Cell::marked("missed", "loss") };
    Some(vec![name.into(), Cell::words(title), wanted.into(), measured.into(), met])
}

/// What was left out, failed or could not be read.
fn remarks(evidence: &Evidence) -> Markup {
    let events = evidence.events.iter().filter(|event| event.event != "note");
    let is_empty = evidence.remarks.is_empty() && events.clone().next().is_none();
    html! {
        @if !is_empty {
            h2 { "What is missing" }
            @for event in events {
                p.remark.(if event.event == "failed" { "bad" } else { "" }) {
                    strong { (event.event) }
                    @for word in event.place() { " " (word) }
                    ": " (event.text)
                }
            }
            @for remark in &evidence.remarks { p.remark { (remark) } }
        }
    }
}

/// `env.json` as a table.
fn machine(evidence: &Evidence) -> Markup {
    let mut table = Table::new("Machine and command", &["what", "value"]);
    for (name, value) in &evidence.env {
        let row = vec![name.replace('_', " ").into(), Cell::words(plain(value))];
        table.rows.push(row);
    }
    html! {
        @if !table.rows.is_empty() {
            h2 { "Machine" }
            (table.markup())
        }
    }
}

/// A value as a reader expects it.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "not known".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Object(map) => {
            let pairs = map.iter().map(|(name, value)| format!("{name}: {}", plain(value)));
            pairs.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    }
}
