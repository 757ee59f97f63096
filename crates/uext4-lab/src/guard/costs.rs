//! Costs by operation, as a file, and beside those of a baseline.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Doing, Result};

/// Part that instructions may differ by: hash seeds and addresses move them.
const INSTRUCTIONS: f64 = 0.03;
/// Sleeps may differ for a lock that the engine's own threads hold, and locks for what they leave
/// to this one.
const OF_THREADS: f64 = 0.1;
/// What other counts may differ by: three in two hundred operations.
const COUNTS: f64 = 0.015;

/// What each operation costs: by operation and by what is counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Costs(BTreeMap<String, BTreeMap<String, f64>>);

/// A cost that differs from the baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The operation.
    pub operation: String,
    /// What is counted.
    pub what: String,
    /// Of one operation, in the baseline; `None` where it has none.
    pub before: Option<f64>,
    /// Of one operation, now; `None` where it is not counted any more.
    pub now: Option<f64>,
}

impl Change {
    /// Whether it costs more, or is not known to cost no more.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        self.before.zip(self.now).is_none_or(|(before, now)| now > before)
    }
}

impl Costs {
    pub(super) fn add(&mut self, operation: &str, what: &str, cost: f64) {
        // As many digits as mean something, so that a baseline is easy to read.
        let cost = (cost * 1000.0).round() / 1000.0;
        self.0.entry(operation.to_owned()).or_default().insert(what.to_owned(), cost);
    }

    /// Those in a file that [`Costs::to_json`] made.
    ///
    /// # Errors
    /// Text of another form.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).doing("baseline")
    }

    /// Their file.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// What differs from a baseline by more than chance.
    #[must_use]
    pub fn against(&self, baseline: &Self) -> Vec<Change> {
        let places = |costs: &Self| -> Vec<(String, String)> {
            let of = |(operation, costs): (&String, &BTreeMap<String, f64>)| {
                costs.keys().map(|what| (operation.clone(), what.clone())).collect::<Vec<_>>()
            };
            costs.0.iter().flat_map(of).collect()
        };
        let mut all = places(self);
        all.extend(places(baseline));
        all.sort();
        all.dedup();
        let change = |(operation, what): (String, String)| {
            let cost = |costs: &Self| costs.0.get(&operation)?.get(&what).copied();
            let (before, now) = (cost(baseline), cost(self));
            let same = before
                .zip(now)
                .is_some_and(|(before, now)| (now - before).abs() <= slack(&what, before));
            (!same).then_some(Change { operation, what, before, now })
        };
        all.into_iter().filter_map(change).collect()
    }
}

/// Costs and what differs from a baseline as JSON, as `guard.json` of a folder of evidence has it.
#[must_use]
pub fn to_json(costs: &Costs, changes: &[Change]) -> String {
    let change = |change: &Change| {
        json!({
            "operation": change.operation,
            "what": change.what,
            "before": change.before,
            "now": change.now,
            "worse": change.is_worse(),
        })
    };
    let changes: Vec<Value> = changes.iter().map(change).collect();
    format!("{:#}\n", json!({ "changes": changes, "costs": costs }))
}

/// What a cost may differ by.
fn slack(what: &str, before: f64) -> f64 {
    match what {
        "instructions" => before * INSTRUCTIONS,
        "sleeps" | "locks" => OF_THREADS,
        _ => COUNTS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(instructions: f64, flushes: f64) -> Costs {
        let mut costs = Costs::default();
        costs.add("create", "instructions", instructions);
        costs.add("append and fsync", "flushes", flushes);
        costs
    }

    #[test]
    fn one_flush_and_five_percent_of_instructions_are_seen() {
        let baseline = costs(20_000.0, 2.0);
        assert_eq!(costs(20_400.0, 2.0).against(&baseline), []);
        let changes = costs(21_000.0, 3.0).against(&baseline);
        assert_eq!(changes.len(), 2);
        assert!(changes.iter().all(Change::is_worse));
        assert!(!costs(19_000.0, 2.0).against(&baseline)[0].is_worse());
    }

    #[test]
    fn a_cost_without_a_baseline_is_told() {
        let mut now = costs(1.0, 1.0);
        now.add("rename", "locks", 4.0);
        let changes = now.against(&costs(1.0, 1.0));
        assert_eq!((changes.len(), changes[0].before, changes[0].is_worse()), (1, None, true));
    }

    #[test]
    fn json_has_changes_beside_costs() {
        let now = costs(30_000.0, 2.0);
        let changes = now.against(&costs(20_000.0, 2.0));
        let json: Value = serde_json::from_str(&to_json(&now, &changes)).unwrap();
        assert_eq!(
            json,
            json!({
                "changes": [{
                    "operation": "create", "what": "instructions", "before": 20_000.0,
                    "now": 30_000.0, "worse": true,
                }],
                "costs": {
                    "create": { "instructions": 30_000.0 },
                    "append and fsync": { "flushes": 2.0 },
                },
            })
        );
    }

    #[test]
    fn a_file_of_costs_is_read_back() {
        let all = costs(20_000.5, 1.0 / 3.0);
        assert_eq!(Costs::parse(&all.to_json()).unwrap(), all);
        assert!(Costs::parse("[]").is_err());
    }
}
