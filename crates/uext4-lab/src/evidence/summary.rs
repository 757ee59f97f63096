//! `summary.md`: what a run found, for people.
//!
//! What: for each load and setting a table for each figure that targets are compared by: median,
//! least and most of each series, and how many times as good each own target's default is, with the
//! interval over the pairs of its rounds. The A/A series of the run says how far apart two runs of
//! the same thing lie: a ratio within that is no difference.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::bench::{Interval, PAIRS_MIN, with_logarithm};
use crate::evidence::noise::Noise;
use crate::record::Record;
use crate::report::{AA, DEFAULT, Spread, is_headline, show, split_variant, times_as_good, unit};

/// Part of all intervals that may miss their mean.
const OUTSIDE: f64 = 0.05;

/// A table: experiment, form, threads, bytes of a request, part of the load, metric.
type Place<'a> = (&'a str, &'a str, u32, u32, &'a str, &'a str);
/// Target and variant.
type Series<'a> = (&'a str, &'a str);
type ByRound = BTreeMap<u32, f64>;

/// The figures of a table by series, in the order of their first appearance.
#[derive(Default)]
struct Table<'a>(Vec<(Series<'a>, ByRound)>);

impl<'a> Table<'a> {
    fn rounds(&self, series: Series<'_>) -> Option<&ByRound> {
        self.0.iter().find(|(of, _)| *of == series).map(|(_, rounds)| rounds)
    }

    /// How many times as good `own` is as `other`, by round.
    fn ratios(&self, metric: &str, own: Series<'_>, other: Series<'_>) -> Vec<f64> {
        let Some((own, other)) = self.rounds(own).zip(self.rounds(other)) else {
            return Vec::new();
        };
        let pair =
            |(round, own): (&u32, &f64)| Some(times_as_good(metric, *own, *other.get(round)?));
        own.iter().filter_map(pair).collect()
    }

    /// How far two runs of one of these series lie apart: of one that ran twice in each round by
    /// these, of another by its successive rounds.
    fn noise(&self, metric: &str, of: &[Series<'_>]) -> Noise {
        let same = |series: &Series<'_>| {
            let twice = self.ratios(metric, *series, (series.0, AA));
            if series.1 == DEFAULT && !twice.is_empty() {
                return twice;
            }
            let rounds: Vec<f64> =
                self.rounds(*series).into_iter().flatten().map(|(_, value)| *value).collect();
            rounds.chunks_exact(2).map(|pair| pair[1] / pair[0]).collect()
        };
        let same: Vec<f64> = of.iter().flat_map(same).collect();
        Noise::of(with_logarithm(&same))
    }

    /// The target that ran twice.
    fn repeated(&self) -> Option<&'a str> {
        self.series().find(|(_, variant)| *variant == AA).map(|(target, _)| target)
    }

    fn series(&self) -> impl Iterator<Item = Series<'a>> + '_ {
        self.0.iter().map(|(series, _)| *series)
    }
}

/// The summary of figures, with the environment that they were taken in.
pub(super) fn of(environment: &Value, records: &[Record]) -> String {
    let mut tables: Vec<(Place<'_>, Table<'_>)> = Vec::new();
    for record in records.iter().filter(|r| r.round > 0 && is_headline(&r.metric)) {
        let (variant, part) = split_variant(&record.variant);
        let r = record;
        let place = (&*r.experiment, &*r.form, r.threads, r.bs, part, &*r.metric);
        let at = tables.iter().position(|(other, _)| *other == place).unwrap_or_else(|| {
            tables.push((place, Table::default()));
            tables.len() - 1
        });
        let table = &mut tables[at].1.0;
        let series = (&*r.target, variant);
        let of = table.iter().position(|(other, _)| *other == series).unwrap_or_else(|| {
            table.push((series, ByRound::new()));
            table.len() - 1
        });
        table[of].1.insert(r.round, r.value);
    }
    let mut text = "# uext4 lab\n\n".to_owned();
    head(&mut text, environment);
    let noises: Vec<_> = tables
        .iter()
        .filter_map(|(place, table)| {
            Some((title(*place), table.noise(place.5, &[(table.repeated()?, DEFAULT)])))
        })
        .collect();
    text.push_str(&Noise::verdict(&noises));
    for (place, table) in &tables {
        write_table(&mut text, *place, table);
    }
    text
}

fn head(text: &mut String, environment: &Value) {
    let word = |name: &str| match &environment[name] {
        Value::Null => "unknown".to_owned(),
        Value::String(word) => word.clone(),
        other => other.to_string(),
    };
    for (title, names) in [
        ("processor", &["cpus", "cpu"][..]),
        ("kernel", &["kernel"]),
        ("store", &["store", "store_file_system", "store_device"]),
        ("uext4", &["uext4"]),
        ("checkout", &["checkout_head"]),
        ("begun", &["begun"]),
    ] {
        let words: Vec<_> = names.iter().map(|name| word(name)).collect();
        let _ = writeln!(text, "- {title}: {}", words.join(", "));
    }
    let command = environment["command_line"].as_array().cloned().unwrap_or_default();
    let command: Vec<_> = command.iter().filter_map(Value::as_str).collect();
    let _ = writeln!(text, "- command: `{}`\n", command.join(" "));
}

fn title((experiment, form, threads, bs, part, metric): Place<'_>) -> String {
    let words = [experiment, form, if part == DEFAULT { "" } else { part }];
    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let size = if bs == 0 { String::new() } else { format!(", {bs} B") };
    format!("{}, {threads} x{size}: {metric} ({})", words.join(" "), unit(metric))
}

fn write_table(text: &mut String, place: Place<'_>, table: &Table<'_>) {
    let metric = place.5;
    let _ = writeln!(text, "\n## {}\n", title(place));
    let own: Vec<&str> = table
        .series()
        .filter(|(target, variant)| target.starts_with("uext4") && *variant == DEFAULT)
        .map(|(target, _)| target)
        .collect();
    let columns = own.iter().map(|own| format!(" {own} by it |"));
    let _ = writeln!(
        text,
        "| target | variant | rounds | median (least to most) |{}",
        columns.collect::<String>()
    );
    let _ = writeln!(text, "|---|---|---|---|{}", "---|".repeat(own.len()));
    for (series, rounds) in &table.0 {
        let Some(spread) = Spread::of(rounds.values().copied()) else { continue };
        let (target, variant) = series;
        let (count, spread) = (rounds.len(), spread.show(metric));
        let _ = write!(text, "| {target} | {variant} | {count} | {spread} |");
        for own in &own {
            let own = (*own, DEFAULT);
            let cell = if own == *series {
                String::new()
            } else {
                let ratios = table.ratios(metric, own, *series);
                // Twice the same is what tells the noise: it has no verdict.
                let noise = (*variant != AA).then(|| table.noise(metric, &[own, *series]));
                ratio(&ratios, noise.as_ref())
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
}

/// A ratio with its interval, and what that means beside the noise; of few pairs with the least and
/// the most.
fn ratio(ratios: &[f64], noise: Option<&Noise>) -> String {
    let known = with_logarithm(ratios);
    let pairs = known.len();
    let Some(spread) = Spread::of(known.iter().copied()) else { return "-".to_owned() };
    let mut cell = match Interval::of(&known, OUTSIDE) {
        None => format!("{} (one round)", show("ratio", spread.median)),
        Some(Interval { mean, .. }) if pairs < PAIRS_MIN => {
            let range = |value: fn(f64, f64) -> f64| known.iter().copied().fold(known[0], value);
            let (least, most) = (range(f64::min), range(f64::max));
            format!("{mean:.2}x (least {least:.2}, most {most:.2}) few rounds")
        }
        Some(interval) => {
            let Interval { mean, lower, upper } = interval;
            let word = noise.map(|noise| noise.judge(interval, pairs)).unwrap_or_default();
            format!("{mean:.2}x ({lower:.2} to {upper:.2}) {word}").trim_end().to_owned()
        }
    };
    if pairs < ratios.len() {
        let _ = write!(cell, "; {} rounds of 0 have no ratio", ratios.len() - pairs);
    }
    cell
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(target: &str, variant: &str, round: u32, value: f64) -> Record {
        Record {
            experiment: "E3".into(),
            target: target.into(),
            variant: variant.into(),
            store: "ram".into(),
            path: "device".into(),
            threads: 16,
            bs: 16384,
            form: String::new(),
            metric: "iops".into(),
            value,
            round,
        }
    }

    #[test]
    fn ratios_are_judged_by_the_noise_of_the_run_itself() {
        let mut records = Vec::new();
        for round in 1..=8 {
            let drift = 1.0 + 0.01 * f64::from(round % 3);
            let series = [
                ("uext4", DEFAULT, 1000.0),
                ("uext4", AA, 1000.0 * drift),
                ("kernel", DEFAULT, 500.0),
                ("raw", DEFAULT, 1000.5),
            ];
            for (target, variant, value) in series {
                records.push(record(target, variant, round, value));
            }
        }
        let text = of(&Value::Null, &records);
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap();
        assert!(line("| kernel |").ends_with("2.00x (2.00 to 2.00) better |"), "{text}");
        assert!(line("| raw |").ends_with("within noise |"), "{text}");
        assert!(line("| uext4 | aa |").contains("0.99x"), "{text}");
        assert!(text.contains("Noise: quiet"), "{text}");
        assert!(text.contains("## E3, 16 x, 16384 B: iops (1/s)"), "{text}");
    }

    #[test]
    fn one_round_has_no_verdict() {
        let records = [record("uext4", DEFAULT, 1, 10.0), record("kernel", DEFAULT, 1, 5.0)];
        let text = of(&Value::Null, &records);
        assert!(text.contains("2.00x (one round)"), "{text}");
        assert!(text.contains("Noise: not measured"), "{text}");
    }

    /// Fault model: a peer that failed in all rounds but two is called better or worse.
    #[test]
    fn a_verdict_needs_five_pairs() {
        let mut records = Vec::new();
        for round in 1..=8 {
            records.push(record("uext4", DEFAULT, round, 1000.0));
            records.push(record("uext4", AA, round, 1000.0));
            if round <= 2 {
                records.push(record("kernel", DEFAULT, round, 400.0 + f64::from(round)));
            }
        }
        let text = of(&Value::Null, &records);
        let line = text.lines().find(|line| line.starts_with("| kernel |")).unwrap();
        assert!(line.ends_with("2.49x (least 2.49, most 2.49) few rounds |"), "{line}");
    }

    #[test]
    fn rounds_without_a_ratio_are_told() {
        let mut records = Vec::new();
        for round in 1..=6 {
            records.push(record("uext4", DEFAULT, round, 1000.0));
            records.push(record("raw", DEFAULT, round, if round == 3 { 0.0 } else { 500.0 }));
        }
        let text = of(&Value::Null, &records);
        assert!(
            text.contains("2.00x (2.00 to 2.00) better; 1 rounds of 0 have no ratio"),
            "{text}"
        );
    }
}
