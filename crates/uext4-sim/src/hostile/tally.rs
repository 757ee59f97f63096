//! How many calls of each verb ended with which status.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How calls of the command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<(&'static str, String), BTreeMap<String, u64>>);

impl Tally {
    /// Counts a call on a sort of material.
    pub fn count(&mut self, material: &'static str, verb: &str, status: &str) {
        let ends = self.0.entry((material, verb.to_owned())).or_default();
        *ends.entry(status.to_owned()).or_default() += 1;
    }

    /// Adds the calls of another one.
    pub fn add(&mut self, other: &Self) {
        for (call, ends) in &other.0 {
            for (status, count) in ends {
                let own = self.0.entry(call.clone()).or_default();
                *own.entry(status.clone()).or_default() += count;
            }
        }
    }

    /// Calls on a sort of material, and how many of these ended with status 0; of all sorts for "".
    #[must_use]
    pub fn of(&self, material: &str) -> (u64, u64) {
        let rows = self.0.iter().filter(|((on, _), _)| material.is_empty() || *on == material);
        rows.fold((0, 0), |(calls, done), (_, ends)| {
            (calls + ends.values().sum::<u64>(), done + ends.get("0").unwrap_or(&0))
        })
    }

    fn materials(&self) -> BTreeSet<&'static str> {
        self.0.keys().map(|(material, _)| *material).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let statuses: BTreeSet<&String> = self.0.values().flat_map(BTreeMap::keys).collect();
        let mut statuses: Vec<&String> = statuses.into_iter().collect();
        statuses.sort_by_key(|status| status.parse::<u32>().unwrap_or(u32::MAX));
        write!(f, "| calls on | verb | calls |")?;
        statuses.iter().try_for_each(|status| write!(f, " {status} |"))?;
        write!(f, "\n|---|---|---|{}", "---|".repeat(statuses.len()))?;
        for ((material, verb), ends) in &self.0 {
            write!(f, "\n| {material} | {verb} | {} |", ends.values().sum::<u64>())?;
            for status in &statuses {
                match ends.get(*status) {
                    Some(count) => write!(f, " {count} |")?,
                    None => write!(f, " |")?,
                }
            }
        }
        for material in self.materials() {
            let (calls, done) = self.of(material);
            write!(f, "\n| {material} | all | {calls} | {done} |")?;
            write!(f, "{}", " |".repeat(statuses.len().saturating_sub(1)))?;
        }
        Ok(())
    }
}
