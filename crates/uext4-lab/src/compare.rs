//! Two runs beside each other: what became faster, what slower, and how sure that is.
//!
//! What: the figures of two runs (lines of JSON, as `lab run --json` prints them) are matched by
//! load, target, threads and metric, and paired by their order: the first of one run with the first
//! of the other. A ratio says how many times as good B is as A. Its interval (`bench::Interval`) is
//! over the pairs; 95 % hold for all rows together (Bonferroni), so that many rows raise no false
//! alarm.
//!
//! Invariants:
//! - Noise is measured in the runs themselves: successive rounds of one run are A/A pairs, and
//!   their spread says how far apart two runs of the same build lie. A difference below that is no
//!   difference, whatever the interval says.
//! - Few rounds give no verdict, and no interval but the least and the most ratio.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde_json::{Value, json};

use crate::bench::{self, Interval, PAIRS_MIN};
use crate::error::{Error, Result};
use crate::record::{self, Record};
use crate::report::{Spread, is_headline, times_as_good};

/// Part of all verdicts together that chance may get wrong.
const OUTSIDE: f64 = 0.05;

/// The figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Run(Vec<Record>);

impl Run {
    /// The figures in `text`: one object of JSON a line, as `lab run --json` prints them. Lines
    /// that are empty are skipped; any other is an error.
    pub fn parse(text: &str) -> Result<Self> {
        record::parse(text).map(Self)
    }

    /// The figures of each row, in their order, and how many have no ratio: they are 0 or less.
    fn rows(&self, variant: Option<&str>) -> (BTreeMap<Row, Vec<f64>>, usize) {
        let mut rows: BTreeMap<Row, Vec<f64>> = BTreeMap::new();
        let mut without_ratio = 0;
        let wanted = |r: &&Record| {
            is_headline(&r.metric)
                && r.round > 0
                && variant.is_none_or(|variant| r.variant == variant)
        };
        for record in self.0.iter().filter(wanted) {
            let mut row = Row::of(record);
            if variant.is_some() {
                row.variant.clear();
            }
            if record.value > 0.0 {
                rows.entry(row).or_default().push(record.value);
            } else if row.is_own() {
                without_ratio += 1;
            }
        }
        (rows, without_ratio)
    }
}

/// What is compared with its like.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    experiment: String,
    target: String,
    variant: String,
    store: String,
    path: String,
    form: String,
    threads: u32,
    bs: u32,
    metric: String,
}

impl Row {
    fn of(record: &Record) -> Self {
        let r = record.clone();
        Self {
            experiment: r.experiment,
            target: r.target,
            variant: r.variant,
            store: r.store,
            path: r.path,
            form: r.form,
            threads: r.threads,
            bs: r.bs,
            metric: r.metric,
        }
    }

    fn is_own(&self) -> bool {
        self.target.starts_with("uext4")
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [&self.experiment, &self.form, &self.target, &self.variant, &self.store];
        let words: Vec<&str> =
            words.into_iter().map(String::as_str).filter(|word| !word.is_empty()).collect();
        write!(f, "{} x{} {} B {}", words.join(" "), self.threads, self.bs, self.metric)
    }
}

/// What two runs say about a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// B is better, by more than the threshold and the noise.
    Better,
    /// B is worse, by more than the threshold and the noise.
    Worse,
    /// B is better, by more than the noise, but not surely by more than the threshold.
    LittleBetter,
    /// B is worse, by more than the noise, but not surely by more than the threshold.
    LittleWorse,
    /// No difference is shown.
    WithinNoise,
    /// Too few rounds to say.
    FewRounds,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::LittleBetter => "better, within threshold",
            Self::LittleWorse => "worse, within threshold",
            Self::WithinNoise => "within noise",
            Self::FewRounds => "few rounds",
        }
    }
}

/// How runs are compared.
#[derive(Clone, Debug)]
pub struct Comparing {
    /// Part that B may be worse by: 0.05 for 5 %.
    pub threshold: f64,
    /// Variants of A and of B that are compared with each other; without them each with its like.
    pub variants: Option<[String; 2]>,
}

/// A row of the result.
#[derive(Debug)]
struct Compared {
    row: Row,
    a: f64,
    b: f64,
    pairs: usize,
    ratio: Option<Interval>,
    /// What two runs of one build may differ by, as a part.
    noise: Option<f64>,
    verdict: Verdict,
}

/// Two runs beside each other.
#[derive(Debug)]
pub struct Comparison {
    rows: Vec<Compared>,
    threshold: f64,
    /// Figures of both that have no ratio.
    without_ratio: usize,
}

impl Comparing {
    /// Compares run `b` with run `a`; an error where they have no row in common.
    pub fn compare(&self, a: &Run, b: &Run) -> Result<Comparison> {
        let [of_a, of_b] = match &self.variants {
            Some([a, b]) => [Some(a.as_str()), Some(b.as_str())],
            None => [None, None],
        };
        let ((a, zeroes_of_a), (mut b, zeroes_of_b)) = (a.rows(of_a), b.rows(of_b));
        let both: Vec<(Row, Vec<f64>, Vec<f64>)> = a
            .into_iter()
            .filter(|(row, _)| row.is_own())
            .filter_map(|(row, a)| Some((row.clone(), a, b.remove(&row)?)))
            .collect();
        if both.is_empty() {
            return Err(Error::new("the runs have no figure of uext4 in common"));
        }
        let outside = OUTSIDE / both.len() as f64;
        let rows = both.into_iter().map(|(row, a, b)| self.row(row, &a, &b, outside)).collect();
        let without_ratio = zeroes_of_a + zeroes_of_b;
        Ok(Comparison { rows, threshold: self.threshold, without_ratio })
    }

    fn row(&self, row: Row, a: &[f64], b: &[f64], outside: f64) -> Compared {
        let ratios: Vec<f64> =
            a.iter().zip(b).map(|(a, b)| times_as_good(&row.metric, *b, *a)).collect();
        let median = |values: &[f64]| Spread::of(values.iter().copied()).map_or(0.0, |s| s.median);
        let mut ratio = Interval::of(&ratios, outside);
        if let Some(ratio) = ratio.as_mut().filter(|_| ratios.len() < PAIRS_MIN) {
            // Of so few the range says more.
            ratio.lower = ratios.iter().copied().fold(f64::MAX, f64::min);
            ratio.upper = ratios.iter().copied().fold(f64::MIN, f64::max);
        }
        let noise = noise(&[a, b], ratios.len());
        let verdict = match (ratio, noise) {
            (Some(ratio), Some(noise)) if ratios.len() >= PAIRS_MIN => self.verdict(ratio, noise),
            _ => Verdict::FewRounds,
        };
        let (a, b) = (median(a), median(b));
        Compared { row, a, b, pairs: ratios.len(), ratio, noise, verdict }
    }

    fn verdict(&self, ratio: Interval, noise: f64) -> Verdict {
        if ratio.mean.ln().abs() <= noise {
            Verdict::WithinNoise
        } else if ratio.upper < 1.0 - self.threshold {
            Verdict::Worse
        } else if ratio.lower > 1.0 + self.threshold {
            Verdict::Better
        } else if ratio.upper < 1.0 {
            Verdict::LittleWorse
        } else if ratio.lower > 1.0 {
            Verdict::LittleBetter
        } else {
            Verdict::WithinNoise
        }
    }
}

/// What the mean ratio of so many pairs may be off 1 for runs of one build: from the spread of
/// successive rounds of each run.
fn noise(runs: &[&[f64]], pairs: usize) -> Option<f64> {
    let neighbours = runs.iter().flat_map(|run| run.chunks_exact(2));
    bench::noise(&neighbours.map(|pair| pair[1] / pair[0]).collect::<Vec<_>>(), pairs)
}

impl Comparison {
    /// Whether B is worse anywhere.
    #[must_use]
    pub fn is_worse(&self) -> bool {
        self.rows.iter().any(|row| row.verdict == Verdict::Worse)
    }

    /// A table: the medians of A and B, how many times as good B is with the interval of that, the
    /// noise, pairs and the verdict.
    #[must_use]
    pub fn to_text(&self) -> String {
        let width = self.rows.iter().map(|c| c.row.to_string().len()).max().unwrap_or(0);
        let mut text = format!(
            "{:<width$} {:>12} {:>12}  {:<20} {:>6} {:>5}  verdict\n",
            "figure", "A", "B", "B by A", "noise", "pairs"
        );
        for c in &self.rows {
            let number = |value: f64| {
                if value < 1000.0 { format!("{value:.2}") } else { format!("{value:.0}") }
            };
            // Two dots for the least and the most of few pairs.
            let to = if c.pairs < PAIRS_MIN { ".." } else { "-" };
            let ratio = c.ratio.map_or("-".into(), |r| {
                format!("{:.3} ({:.3}{to}{:.3})", r.mean, r.lower, r.upper)
            });
            let noise = c.noise.map_or("-".into(), |noise| format!("{:.1} %", noise * 100.0));
            let _ = writeln!(
                text,
                "{:<width$} {:>12} {:>12}  {ratio:<20} {noise:>6} {:>5}  {}",
                c.row.to_string(),
                number(c.a),
                number(c.b),
                c.pairs,
                c.verdict.name(),
            );
        }
        if self.without_ratio > 0 {
            let _ = writeln!(text, "{} figures of 0 have no ratio", self.without_ratio);
        }
        text
    }

    /// The same as JSON, as `compare.json` of a folder of evidence has it: what is not known is
    /// null.
    #[must_use]
    pub fn to_json(&self) -> String {
        let row = |c: &Compared| {
            json!({
                "figure": c.row.to_string(),
                "a": c.a,
                "b": c.b,
                "ratio": c.ratio.map(|ratio| ratio.mean),
                "lower": c.ratio.map(|ratio| ratio.lower),
                "upper": c.ratio.map(|ratio| ratio.upper),
                "noise": c.noise,
                "pairs": c.pairs,
                "verdict": c.verdict.name(),
            })
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let all = json!({
            "threshold": self.threshold,
            "without_ratio": self.without_ratio,
            "rows": rows,
        });
        format!("{all:#}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Random;

    /// A run of `rounds`, each `rate` by up to `spread` more or less.
    fn run(seed: u64, rounds: u32, rate: f64, spread: f64) -> Run {
        let mut random = Random(seed);
        let line = |round| {
            let part = random.below(2001) as f64 / 1000.0 - 1.0;
            let value = rate * (1.0 + spread * part);
            format!(
                r#"{{"experiment":"E3","target":"uext4","variant":"default","store":"ram",
                "path":"device","threads":16,"bs":16384,"metric":"iops","value":{value},
                "unit":"1/s","round":{round}}}"#
            )
            .replace('\n', "")
        };
        let text: Vec<String> = (1..=rounds).map(line).collect();
        Run::parse(&text.join("\n")).unwrap()
    }

    fn verdict(a: &Run, b: &Run) -> Verdict {
        let comparing = Comparing { threshold: 0.05, variants: None };
        comparing.compare(a, b).unwrap().rows[0].verdict
    }

    #[test]
    fn an_injected_regression_is_flagged_and_a_pair_of_one_build_is_not() {
        for seed in 0..200 {
            let a = run(2 * seed + 1, 10, 1000.0, 0.1);
            let alike = run(1_000_000 + seed, 10, 1000.0, 0.1);
            let slower = run(2_000_000 + seed, 10, 800.0, 0.1);
            let between = verdict(&a, &alike);
            assert!(!matches!(between, Verdict::Worse | Verdict::Better), "{between:?} {seed}");
            assert_eq!(verdict(&a, &slower), Verdict::Worse, "seed {seed}");
            assert_eq!(verdict(&slower, &a), Verdict::Better, "seed {seed}");
        }
    }

    #[test]
    fn few_rounds_and_runs_without_a_common_row_give_no_verdict() {
        let (a, b) = (run(1, 4, 1000.0, 0.1), run(2, 4, 10.0, 0.1));
        assert_eq!(verdict(&a, &b), Verdict::FewRounds);
        let few = Comparing { threshold: 0.05, variants: None }.compare(&a, &b).unwrap();
        let (least, most) = (few.rows[0].ratio.unwrap().lower, few.rows[0].ratio.unwrap().upper);
        let ratios: Vec<f64> = a.0.iter().zip(&b.0).map(|(a, b)| b.value / a.value).collect();
        assert!(ratios.contains(&least) && ratios.contains(&most), "{ratios:?} {few:?}");
        assert!(few.to_text().contains(".."), "{}", few.to_text());
        let comparing = Comparing { threshold: 0.05, variants: None };
        assert!(comparing.compare(&a, &Run::default()).is_err());
        let error = Run::parse("{}\n").unwrap_err().to_string();
        assert!(error.starts_with("line 1 is no figure of a run"), "{error}");
    }

    #[test]
    fn figures_of_zero_are_counted_and_json_says_what_the_table_says() {
        let (mut a, b) = (run(1, 10, 1000.0, 0.1), run(2, 10, 500.0, 0.1));
        a.0[3].value = 0.0;
        let comparison = Comparing { threshold: 0.05, variants: None }.compare(&a, &b).unwrap();
        assert!(comparison.to_text().ends_with("\n1 figures of 0 have no ratio\n"));
        let json: Value = serde_json::from_str(&comparison.to_json()).unwrap();
        assert_eq!((&json["without_ratio"], &json["threshold"]), (&json!(1), &json!(0.05)));
        let row = &json["rows"][0];
        assert_eq!(row["figure"], "E3 uext4 default ram x16 16384 B iops");
        assert_eq!((&row["pairs"], &row["verdict"]), (&json!(9), &json!("WORSE")));
        let [ratio, lower, upper] = ["ratio", "lower", "upper"].map(|k| row[k].as_f64().unwrap());
        assert!(lower < ratio && ratio < upper && upper < 0.95, "{row}");
    }

    #[test]
    fn a_small_difference_is_told_and_is_no_regression() {
        let (a, b) = (run(5, 60, 1000.0, 0.02), run(6, 60, 970.0, 0.02));
        assert_eq!(verdict(&a, &b), Verdict::LittleWorse);
        assert_eq!(verdict(&b, &a), Verdict::LittleBetter);
    }

    #[test]
    fn a_longer_time_is_worse() {
        let longer = |run: &Run, by: f64| {
            let change =
                |r: &Record| Record { metric: "wall_s".into(), value: r.value * by, ..r.clone() };
            Run(run.0.iter().map(change).collect())
        };
        let a = run(3, 10, 1.0, 0.02);
        assert_eq!(verdict(&longer(&a, 1.0), &longer(&a, 1.2)), Verdict::Worse);
    }
}
