//! The first page: verdicts, goals, the machine, what is missing.

use maud::{Markup, html};
use serde_json::Value;

use super::block::{Block, Cell, Legend, Table, breakable};
use super::experiment::{TIMES_AS_GOOD, ratio, remarks as remarks_of, word};
use super::shown::{look, point_name};
use super::why::{in_a_line, striking};
use super::{anchor, experiments};
use crate::evidence::{Event, Evidence};
use crate::goal::{self, GOALS, Measured};
use crate::metric::{self, show, times};
use crate::panel::{Panel, Series};
use crate::plot::{self, Forest, Plot};
use crate::verdict::{Outcome, Verdict, verdicts};

/// A verdict with where it was found.
pub(super) struct Found<'a> {
    pub(super) panel: &'a Panel<'a>,
    pub(super) verdict: Verdict,
}

/// The page.
pub(super) fn page(evidence: &Evidence, panels: &[Panel<'_>], told: &[String]) -> Markup {
    let found = found(panels);
    html! {
        h1 { "Overview" }
        p.lead {
            @if panels.is_empty() {
                "This folder holds no figures of a run."
            } @else {
                "uext4 beside its peers on one machine: " (experiments(panels)) "."
            }
        }
        (cards(&found))
        (results(evidence))
        (findings(evidence, panels))
        @for own in own_targets(&found) { (beside(&found, own)) }
        (goals(evidence, panels))
        (remarks(evidence, told))
        (machine(evidence))
    }
}

/// Links to what is no figure of a run.
fn results(evidence: &Evidence) -> Markup {
    let all = [
        (&evidence.compare, "compare", "Two builds beside each other"),
        (&evidence.guard, "guard", "Costs of operations beside a baseline"),
        (&evidence.crash, "crash", "Crash test: what a loss of power could leave"),
    ];
    let there = all.into_iter().filter(|(value, ..)| value.is_some());
    html! {
        @for (_, id, title) in there { p { a href=(format!("#{id}")) { (title) } } }
    }
}

/// The verdicts by headline at the last point of each panel.
pub(super) fn found<'a>(panels: &'a [Panel<'a>]) -> Vec<Found<'a>> {
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
fn findings(evidence: &Evidence, panels: &[Panel<'_>]) -> Markup {
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
                        (in_a_line(evidence, pair)) " "
                        a href=(format!("#{}-why", anchor(pair.panel.experiment))) { "Why" }
                    }
                }
            }
        }
    }
}

/// A target beside its peers: intervals as a plot, and the table.
fn beside(found: &[Found<'_>], own: &str) -> Markup {
    let head = ["experiment", "beside", "verdict", TIMES_AS_GOOD, own, "peer", "noise", "goal"];
    let mut table = Table::new(format!("{own} beside its peers"), &head);
    let mut rows = Vec::new();
    for Found { panel, verdict } in found.iter().filter(|found| found.verdict.own.target == own) {
        let name = format!("{} {}", panel.experiment, panel.label);
        let name = format!("{}, {}", name.trim(), point_name(panel, verdict.point));
        let goal = goal::of_verdict(panel, verdict);
        rows.push(Forest {
            label: format!("{name}: {}", verdict.peer.name()),
            look: look(panel, &verdict.peer),
            mean: verdict.ratio.mean,
            bounds: verdict.ratio.bounds,
            is_range: verdict.ratio.is_range(),
            goal,
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
            goal.map_or("-".to_owned(), times).into(),
        ]);
    }
    let label = format!("{own}: how many times as good it is as each peer, with intervals");
    let plot = Plot::of_rows(rows.len(), |width| plot::forest(width, &label, &rows, &times));
    let block = Block {
        title: format!("{own}: how many times as good as its peers"),
        note: "Right of 1 it wins, left of 1 it loses. The bar is the 95 % interval over the \
               rounds, a dashed bar the least and the most of fewer than five, which give no \
               verdict; the dashed mark is the goal. At the most threads of each experiment; its \
               page has the others."
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
fn goals(evidence: &Evidence, panels: &[Panel<'_>]) -> Markup {
    let head = ["experiment", "target", "figure", "goal", "measured", "goal met"];
    let mut table = Table::new("What uext4, in its default, was built to reach", &head);
    let not_full = goal::not_at_full_size(evidence);
    let mut is_left_out = false;
    for panel in panels {
        for measured in GOALS.iter().filter_map(|goal| goal.measure(panel)) {
            let is_told = not_full.is_none() || !measured.goal.is_absolute();
            is_left_out |= !is_told;
            table.rows.push(goal_row(panel, &measured, is_told));
        }
    }
    html! {
        @if !table.rows.is_empty() {
            h2 { "Goals" }
            (table.markup())
            @if let Some(why) = not_full.filter(|_| is_left_out) {
                p.note {
                    "Goals that are times or rates are those of a load at its full size, on two "
                    "processors with a store in memory; " (why) "."
                }
            }
        }
    }
}

fn goal_row(panel: &Panel<'_>, measured: &Measured, is_told: bool) -> Vec<Cell> {
    let name = format!("{} {}", panel.experiment, panel.label).trim().to_owned();
    let met = match measured.is_met {
        _ if !is_told => Cell::marked("not at this size", "even"),
        _ if !measured.is_sure() => {
            Cell::marked(format!("few rounds ({})", measured.rounds), "even")
        }
        true => Cell::marked("met", "win"),
        false => Cell::marked("missed", "loss"),
    };
    vec![
        name.into(),
        Cell::words(measured.goal.target),
        Cell::words(metric::title(measured.goal.metric)),
        Cell::words(measured.wanted.clone()),
        measured.measured.clone().into(),
        met,
    ]
}

/// What was left out, failed or could not be read.
fn remarks(evidence: &Evidence, told: &[String]) -> Markup {
    let events = evidence.events.iter().filter(|event| event.event != "note");
    let events: Vec<&Event> = events.collect();
    let is_empty = told.is_empty() && events.is_empty();
    html! {
        @if !is_empty {
            h2 { "What is missing" }
            (remarks_of(&events, true))
            @for remark in told { p.remark { (remark) } }
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
