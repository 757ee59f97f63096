//! The first page: verdicts, goals, the machine, what is missing.

use maud::{Markup, html};
use serde_json::Value;

use super::block::{Block, Cell, Legend, Table, breakable};
use super::experiment::{TIMES_AS_GOOD, ratio, remarks as remarks_of, word};
use super::ran;
use super::shown::{look, point_name};
use super::why::{in_a_line, striking};
use super::{anchor, experiments};
use crate::evidence::{Event, Evidence};
use crate::goal::{self, GOALS, Measured};
use crate::metric::{self, counted, show, times};
use crate::panel::{Panel, Series};
use crate::plot::{self, Forest, Plot};
use crate::verdict::{Outcome, Verdict};

/// A verdict with where it was found.
pub(super) struct Found<'a> {
    pub(super) panel: &'a Panel<'a>,
    pub(super) verdict: &'a Verdict<'a>,
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
        (ran::table(evidence))
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
        let headlines = panel.headlines();
        let is_shown = move |verdict: &&Verdict<'_>| {
            headlines.contains(&verdict.metric) && panel.points.last() == Some(&verdict.point)
        };
        let own = panel.verdicts.beside.iter().filter(is_shown);
        own.map(move |verdict| Found { panel, verdict })
    };
    panels.iter().flat_map(of).collect()
}

impl Found<'_> {
    /// Experiment, what is special about the panel, part of the load, threads or size.
    pub(super) fn place(&self) -> String {
        let Self { panel, verdict } = self;
        let part = metric::part(verdict.metric).unwrap_or("");
        let words = [panel.experiment, &panel.label, part];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        format!("{}, {}", words.join(" "), point_name(panel, verdict.point))
    }
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

/// For each target how often it wins and loses, and a card of the same for each peer.
fn cards(found: &[Found<'_>]) -> Markup {
    html! {
        @for own in own_targets(found) {
            @let of_own = found.iter().filter(|f| f.verdict.own.target == own);
            (cards_of(own, &of_own.collect::<Vec<_>>()))
        }
    }
}

fn cards_of(own: &str, found: &[&Found<'_>]) -> Markup {
    let mut peers: Vec<String> = Vec::new();
    for name in found.iter().map(|f| f.verdict.peer.name()) {
        if !peers.contains(&name) {
            peers.push(name);
        }
    }
    html! {
        div.total { strong { (own) } " in " (counted(found.len(), "comparison")) (score(found)) }
        div.cards {
            @for peer in &peers {
                @let beside = found.iter().copied().filter(|f| f.verdict.peer.name() == *peer);
                div.card {
                    p.who { "beside " (breakable(peer)) }
                    (score(&beside.collect::<Vec<_>>()))
                }
            }
        }
    }
}

/// How many are won, lost, even, and undecided.
fn score(found: &[&Found<'_>]) -> Markup {
    let count = |outcome| found.iter().filter(|f| f.verdict.outcome == outcome).count();
    let (wins, losses) = (count(Outcome::Wins), count(Outcome::Loses));
    let even = count(Outcome::Slight);
    let rest = found.len() - wins - losses - even;
    html! {
        p.score {
            span.(if wins > 0 { "win" } else { "even" }) { (wins) " won" }
            span.(if losses > 0 { "loss" } else { "even" }) { (losses) " lost" }
            @if even > 0 { span.even { (even) " even" } }
            @if rest > 0 { span.even { (rest) " undecided" } }
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
    for found in found.iter().filter(|found| found.verdict.own.target == own) {
        let (Found { panel, verdict }, name) = (found, found.place());
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
        note: "Right of 1 it wins, left of 1 it loses, by a bar that does not reach over 1 and a \
               ratio that is not written as 1.00x. The bar is the 95 % interval over the rounds, a \
               dashed bar the least and the most of fewer than five, which give no verdict; the \
               dashed mark is the goal. At the most threads of each experiment; its page has the \
               others."
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
    // Why some are not judged, each with its experiments.
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for panel in panels {
        for measured in GOALS.iter().filter_map(|goal| goal.measure(panel)) {
            let reason = measured.goal.not_judged(evidence, panel);
            table.rows.push(goal_row(panel, &measured, reason.is_none()));
            let Some(reason) = reason else { continue };
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, names)) => names.push(panel.experiment),
                None => reasons.push((reason, vec![panel.experiment])),
            }
        }
    }
    reasons.iter_mut().for_each(|(_, names)| names.dedup());
    html! {
        @if !table.rows.is_empty() {
            h2 { "Goals" }
            (table.markup())
            @for (reason, names) in &reasons {
                p.note { "Not judged, " (names.join(", ")) ": " (reason) "." }
            }
        }
    }
}

fn goal_row(panel: &Panel<'_>, measured: &Measured, is_judged: bool) -> Vec<Cell> {
    let name = format!("{} {}", panel.experiment, panel.label).trim().to_owned();
    let met = match measured.is_met {
        _ if !is_judged => Cell::marked("not judged", "even"),
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

/// `env.json` as a table; a run without a device or a directory says nothing of them.
fn machine(evidence: &Evidence) -> Markup {
    let mut table = Table::new("Machine and command", &["what", "value"]);
    for (name, value) in &evidence.env {
        if value.is_null() && ["device", "dir"].contains(&name.as_str()) {
            continue;
        }
        let text = match value {
            Value::Object(options) if name == "options" => set(options),
            value => plain(value),
        };
        table.rows.push(vec![name.replace('_', " ").into(), Cell::words(text)]);
    }
    html! {
        @if !table.rows.is_empty() {
            h2 { "Machine" }
            (table.markup())
        }
    }
}

/// Options that have a value.
fn set(options: &serde_json::Map<String, Value>) -> String {
    let is_set = |value: &Value| !value.is_null() && value.as_array().is_none_or(|v| !v.is_empty());
    let set = options.iter().filter(|(_, value)| is_set(value));
    set.map(|(name, value)| format!("{name}: {}", plain(value))).collect::<Vec<_>>().join(", ")
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
