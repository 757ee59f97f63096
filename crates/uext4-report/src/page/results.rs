//! What `compare` and `guard` printed with --json.

use maud::{Markup, html};
use serde_json::Value;

use super::block::{Block, COLUMNS_MAX, Cell, Legend, Table};
use crate::metric::{counted, show, times};
use crate::plot::{self, Forest, Look, Plot};

/// What a comparison says of a figure with fewer pairs of rounds than it takes for a verdict.
const FEW_ROUNDS: &str = "few rounds";

/// Two builds beside each other: `{"threshold": .., "rows": [..]}`.
pub(super) fn compare(compare: &Value) -> Markup {
    let rows = list(&compare["rows"]);
    let head = ["figure", "A", "B", "B by A", "noise", "pairs", "verdict"];
    let mut table = Table::new("B beside A", &head);
    let mut forest = Vec::new();
    for row in rows {
        let text = |name: &str| row[name].as_str().unwrap_or("").to_owned();
        let number = |name: &str| row[name].as_f64();
        let figure = |name: &str| number(name).map_or("-".to_owned(), |v| show(v, ""));
        let bounds = number("lower").zip(number("upper"));
        let ratio = number("ratio").map_or("-".to_owned(), |mean| {
            let mean = times(mean);
            bounds.map_or(mean.clone(), |(l, u)| format!("{mean} ({} to {})", times(l), times(u)))
        });
        let verdict = text("verdict");
        if let Some(mean) = number("ratio") {
            let look = Look::part(if verdict == "WORSE" { 0 } else { 1 });
            let label = text("figure");
            let is_range = verdict == FEW_ROUNDS;
            forest.push(Forest { label, look, mean, bounds, is_range, goal: None });
        }
        let noise = number("noise").map_or("-".to_owned(), |noise| show(noise, "%"));
        table.rows.push(vec![
            text("figure").into(),
            figure("a").into(),
            figure("b").into(),
            ratio.into(),
            noise.into(),
            number("pairs").map_or("-".to_owned(), |pairs| show(pairs, "")).into(),
            Cell::marked(verdict.clone(), class(&verdict)),
        ]);
    }
    let count = |verdict: &str| rows.iter().filter(|row| row["verdict"] == verdict).count();
    let (worse, undecided) = (count("WORSE"), count(FEW_ROUNDS));
    let title = "How many times as good B is as A".to_owned();
    let plot = Plot::of_rows(forest.len(), |width| plot::forest(width, &title, &forest, &times));
    let note =
        "Right of 1 B is better. The bar is the interval of all pairs of rounds; a dashed bar \
                is the least and the most of few."
            .to_owned();
    let without_ratio = compare["without_ratio"].as_u64().unwrap_or(0);
    html! {
        h1 { "Two builds" }
        p.lead {
            @if rows.is_empty() { "The comparison holds no figure." }
            @else if worse != 0 {
                strong { "B is worse by " (worse) " of " (counted(rows.len(), "figure")) "." }
            }
            @else if undecided == 0 { "B is worse nowhere." }
            @else { "No figure of B is shown to be worse." }
            @if undecided != 0 {
                " Too few rounds for a verdict: " (counted(undecided, "figure")) "."
            }
        }
        @if without_ratio > 0 {
            p.remark { "Of 0, without a ratio: " (counted(without_ratio, "figure")) "." }
        }
        @if !rows.is_empty() {
            (Block { title, note, plot, legend: Legend::new(), table }.markup())
        }
    }
}

fn class(verdict: &str) -> &'static str {
    match verdict {
        "better" => "win",
        "WORSE" => "loss",
        _ => "even",
    }
}

/// Costs of operations: `{"costs": {operation: {what: cost}}, "changes": [..]}`.
pub(super) fn guard(guard: &Value) -> Markup {
    let changes = list(&guard["changes"]);
    let mut changed = Table::new("What differs from the baseline", &["operation", "what"]);
    changed.head.extend(["baseline", "now", "verdict"].map(str::to_owned));
    for change in changes {
        let text = |name: &str| change[name].as_str().unwrap_or("").to_owned();
        let cost = |name: &str| change[name].as_f64().map_or("-".to_owned(), |v| show(v, ""));
        let is_worse = change["worse"].as_bool().unwrap_or(true);
        let word = if is_worse { "WORSE" } else { "better" };
        changed.rows.push(vec![
            text("operation").into(),
            Cell::marked(text("what"), "text"),
            cost("before").into(),
            cost("now").into(),
            Cell::marked(word, if is_worse { "loss" } else { "win" }),
        ]);
    }
    // A file of costs alone, as `--update` writes it, is shown too.
    let costs = guard.get("costs").unwrap_or(guard);
    let all = costs_table(costs);
    let left_out: Vec<&str> = list(&guard["left_out"]).iter().filter_map(Value::as_str).collect();
    let of = if left_out.is_empty() { "" } else { ", of those that both have" };
    html! {
        h1 { "Costs of operations" }
        p.lead {
            @match guard["changes"].as_array().map(Vec::len) {
                Some(0) => { "No cost differs from the baseline" (of) "." }
                Some(1) => { "One cost differs from the baseline" (of) "." }
                Some(count) => { (count) " costs differ from the baseline" (of) "." }
                None => { "Costs of one build: they were not compared with a baseline." }
            }
        }
        @for line in left_out { p.remark { (line) } }
        @if !changed.rows.is_empty() { (changed.markup()) }
        @if !all.rows.is_empty() { (all.markup()) }
    }
}

/// A row for each operation, a column for each thing that is counted.
fn costs_table(costs: &Value) -> Table {
    let mut table = Table::new("Costs of one operation", &["operation"]);
    let Some(operations) = costs.as_object() else { return table };
    let of_operations = operations.iter().filter(|(_, costs)| costs.is_object());
    let mut columns: Vec<&String> = Vec::new();
    for name in
        of_operations.clone().filter_map(|(_, costs)| costs.as_object()).flat_map(|c| c.keys())
    {
        if columns.len() <= COLUMNS_MAX && !columns.contains(&name) {
            columns.push(name);
        }
    }
    table.head.extend(columns.iter().map(ToString::to_string));
    for (operation, costs) in of_operations {
        let mut row = vec![operation.clone().into()];
        let cost = |name: &&String| costs[name.as_str()].as_f64();
        row.extend(
            columns
                .iter()
                .map(|name| cost(name).map_or("-".to_owned(), |cost| show(cost, "")).into()),
        );
        table.rows.push(row);
    }
    table
}

pub(super) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
