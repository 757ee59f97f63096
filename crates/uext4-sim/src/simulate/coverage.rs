//! What the runs have reached.

use std::collections::BTreeMap;
use std::fmt;
use uext4_schedule::Waited;

/// Counts by name, of one run or many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Waits, by the lock and the place.
    pub waits: BTreeMap<String, u64>,
    /// Losses of power, by what the engine was at.
    pub cuts: BTreeMap<String, u64>,
    /// Errors, by the place that made them.
    pub errors: BTreeMap<String, u64>,
}

impl Coverage {
    pub(super) fn waited(&mut self, waits: &BTreeMap<Waited, u64>) {
        for (at, count) in waits {
            if !at.what.is_empty() && at.what != "some time" {
                let name = format!("{} {}", at.what, place(at));
                *self.waits.entry(name).or_default() += count;
            }
        }
    }

    pub(super) fn erred(&mut self, reached: &BTreeMap<Waited, u64>) {
        for (at, count) in reached {
            *self.errors.entry(place(at)).or_default() += count;
        }
    }

    pub(super) fn cut(&mut self, stage: &str) {
        *self.cuts.entry(stage.to_owned()).or_default() += 1;
    }

    /// Adds another's counts.
    pub fn add(&mut self, other: &Coverage) {
        let pairs = [
            (&mut self.waits, &other.waits),
            (&mut self.cuts, &other.cuts),
            (&mut self.errors, &other.errors),
        ];
        for (all, more) in pairs {
            for (name, count) in more {
                *all.entry(name.clone()).or_default() += count;
            }
        }
    }

    /// From the lines that [`Coverage`] prints; others are passed over.
    pub fn add_line(&mut self, line: &str) {
        let mut words = line.splitn(3, '\t');
        let (Some(what), Some(count), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let all = match what {
            "wait" => &mut self.waits,
            "cut" => &mut self.cuts,
            "error" => &mut self.errors,
            _ => return,
        };
        *all.entry(name.to_owned()).or_default() += count.parse::<u64>().unwrap_or(0);
    }
}

fn place(at: &Waited) -> String {
    format!("{}:{}", at.file.rsplit("src/").next().unwrap_or(at.file), at.line)
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, all) in [("wait", &self.waits), ("cut", &self.cuts), ("error", &self.errors)] {
            for (name, count) in all {
                writeln!(f, "{what}\t{count}\t{name}")?;
            }
        }
        Ok(())
    }
}
