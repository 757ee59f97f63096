//! Costs by operation, as a file, and beside those of a baseline.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{Doing, Error, Result};

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
    /// Of one operation, in the baseline.
    pub before: f64,
    /// Of one operation, now.
    pub now: f64,
}

/// Costs beside a baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// What differs by more than chance.
    pub changes: Vec<Change>,
    /// What only one of both has, a line for each.
    pub left_out: Vec<String>,
    /// Whether the baseline has something that this build does not count.
    pub is_short: bool,
}

impl Change {
    /// Whether it costs more.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        self.now > self.before
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

    /// What differs from a baseline by more than chance, of what both have: a release build counts
    /// no locks, and another commit may have other operations.
    ///
    /// # Errors
    /// They have nothing in common.
    pub fn against(&self, baseline: &Self) -> Result<Compared> {
        let mut compared = Compared::default();
        let mut is_any = false;
        for (operation, now) in &self.0 {
            let Some(before) = baseline.0.get(operation) else { continue };
            for (what, &now) in now {
                let Some(&before) = before.get(what) else { continue };
                is_any = true;
                if (now - before).abs() > slack(what, before) {
                    let (operation, what) = (operation.clone(), what.clone());
                    compared.changes.push(Change { operation, what, before, now });
                }
            }
        }
        if !is_any {
            return Err(Error::new("nothing to compare: the baseline counts other things"));
        }
        let [more, less] =
            [(self, baseline), (baseline, self)].map(|(has, other)| has.beyond(other));
        let told = |why: &str, all: BTreeSet<String>| -> Vec<String> {
            all.iter().map(|what| format!("{what}: left out, {why}")).collect()
        };
        compared.is_short = !less.is_empty();
        compared.left_out = told("the baseline has none", more);
        compared.left_out.extend(told("this build counts none", less));
        Ok(compared)
    }

    /// What another has not: operations, kinds of costs, and single costs.
    fn beyond(&self, other: &Self) -> BTreeSet<String> {
        let kinds: BTreeSet<&String> = other.0.values().flat_map(BTreeMap::keys).collect();
        let mut all = BTreeSet::new();
        for (operation, costs) in &self.0 {
            let Some(others) = other.0.get(operation) else {
                all.insert(operation.clone());
                continue;
            };
            for what in costs.keys().filter(|what| !others.contains_key(*what)) {
                let is_single = kinds.contains(what);
                all.insert(if is_single { format!("{operation}, {what}") } else { what.clone() });
            }
        }
        all
    }
}

/// Costs and what differs from a baseline as JSON, as `guard.json` of a folder of evidence has it.
#[must_use]
pub fn to_json(costs: &Costs, changes: &[Change], left_out: &[String]) -> String {
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
    format!("{:#}\n", json!({ "changes": changes, "left_out": left_out, "costs": costs }))
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

    fn changes(now: &Costs, baseline: &Costs) -> Vec<Change> {
        now.against(baseline).unwrap().changes
    }

    #[test]
    fn one_flush_and_five_percent_of_instructions_are_seen() {
        let baseline = costs(20_000.0, 2.0);
        assert_eq!(changes(&costs(20_400.0, 2.0), &baseline), []);
        let worse = changes(&costs(21_000.0, 3.0), &baseline);
        assert_eq!(worse.len(), 2);
        assert!(worse.iter().all(Change::is_worse));
        assert!(!changes(&costs(19_000.0, 2.0), &baseline)[0].is_worse());
    }

    /// Fault model: a release build, which counts no locks, is worse than a debug build; a commit
    /// is blamed for an operation that came later.
    #[test]
    fn what_only_one_side_has_is_left_out_and_told() {
        let mut debug = costs(1.0, 1.0);
        for operation in ["create", "append and fsync"] {
            debug.add(operation, "locks", 4.0);
        }
        debug.add("create", "flushes", 4.0);
        let mut release = costs(1.0, 3.0);
        release.add("rename", "flushes", 1.0);
        let wanted = |lines: [&str; 3]| lines.map(str::to_owned).to_vec();
        let compared = release.against(&debug).unwrap();
        assert_eq!(compared.changes.len(), 1, "{compared:?}");
        let lines = [
            "rename: left out, the baseline has none",
            "create, flushes: left out, this build counts none",
            "locks: left out, this build counts none",
        ];
        assert_eq!(compared.left_out, wanted(lines));
        assert!(compared.is_short);
        release.0.remove("rename");
        let whole = debug.against(&release).unwrap();
        assert!(!whole.left_out.is_empty() && !whole.is_short, "{whole:?}");
        release.add("rename", "flushes", 1.0);
        let compared = debug.against(&release).unwrap();
        let lines = [
            "create, flushes: left out, the baseline has none",
            "locks: left out, the baseline has none",
            "rename: left out, this build counts none",
        ];
        assert_eq!(compared.left_out, wanted(lines));
        assert!(!compared.changes[0].is_worse());
        assert!(Costs::default().against(&debug).is_err());
    }

    #[test]
    fn json_has_changes_beside_costs() {
        let now = costs(30_000.0, 2.0);
        let changes = changes(&now, &costs(20_000.0, 2.0));
        let left_out = ["locks".to_owned()];
        let json: Value = serde_json::from_str(&to_json(&now, &changes, &left_out)).unwrap();
        assert_eq!(
            json,
            json!({
                "changes": [{
                    "operation": "create", "what": "instructions", "before": 20_000.0,
                    "now": 30_000.0, "worse": true,
                }],
                "left_out": ["locks"],
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
