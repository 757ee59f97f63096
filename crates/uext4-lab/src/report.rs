//! Figures: one at a time as JSON, and together as medians and ratios.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::load::Load;
use crate::mkfs_option;
use crate::target::Target;

/// One figure of one run. Its JSON form is the interface for scripts.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Measurement {
    /// The load.
    pub experiment: &'static str,
    /// What it ran on.
    pub target: &'static str,
    /// `default`, or what was different.
    pub variant: String,
    /// `ram` or `disk`.
    pub store: &'static str,
    /// `natural` or `device`.
    pub path: &'static str,
    /// Processes or threads of the load.
    pub threads: u32,
    /// Bytes of one read or write of the load; 0 where programs choose.
    pub bs: u32,
    /// The form of a load that has several; no key where there is nothing to tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub form: Option<&'static str>,
    /// What was measured.
    pub metric: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Round, from 1; 0 for a figure over all rounds.
    pub round: u32,
}

impl Measurement {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What it is compared within: for loads that take variants, everything with the same journal,
    /// or of the same part of the load; else the same variant.
    fn group(&self) -> &str {
        if Load::find(self.experiment).is_some_and(Load::takes_variants) {
            split_variant(&self.variant).1
        } else {
            &self.variant
        }
    }

    /// Its target, with what is different about it within its group.
    fn series(&self) -> Series {
        let rest = self.variant.strip_suffix(self.group()).unwrap_or(&self.variant);
        let rest = rest.trim_end_matches(',');
        Series { target: self.target, variant: if rest == DEFAULT { "" } else { rest }.to_owned() }
    }
}

/// Whether a metric is one of those that targets are compared by.
pub(crate) fn is_headline(metric: &str) -> bool {
    matches!(
        plain(metric),
        "wall_s"
            | "ops_per_s"
            | "bytes_per_s"
            | "iops"
            | "latency_p99_us"
            | "extents_per_file"
            | "free_extent_mean_kib"
            | "aged_extents_per_file"
            | "aged_free_extent_mean_kib"
            | "neighbour_distance_kib"
    )
}

/// A metric without the part of its load that it is of: `seq.read.iops` of a job file.
fn plain(metric: &str) -> &str {
    metric.rsplit('.').next().unwrap_or(metric)
}

/// The variant in which nothing is different.
pub(crate) const DEFAULT: &str = "default";
/// The variant in which nothing is different, a second time in the same round.
pub(crate) const AA: &str = "aa";
/// Parts of a load that are told apart: what a variant ends with.
const LAPS: [&str; 2] = ["warm", "fresh"];

/// A variant without its last words, where those are no options of a mount, and these words: what
/// the file system is made with, or part of the load.
pub(crate) fn split_variant(variant: &str) -> (&str, &str) {
    let mut rest = variant;
    loop {
        match rest.rsplit_once(',') {
            Some((before, part)) if is_part(part) => rest = before,
            None if is_part(rest) => return (DEFAULT, variant),
            _ if rest.len() == variant.len() => return (variant, DEFAULT),
            _ => return (rest, &variant[rest.len() + 1..]),
        }
    }
}

/// Whether the last word of a variant is no option of a mount: the journal (`journal=4`, in MiB),
/// an option of mke2fs, or a part of the load.
fn is_part(part: &str) -> bool {
    LAPS.contains(&part)
        || part.starts_with(mkfs_option::PREFIX)
        || part.strip_prefix("journal=").is_some_and(|mib| mib.parse::<u32>().is_ok())
}

/// Unit of a metric; `1` where it is a plain ratio or number.
pub(crate) fn unit(metric: &str) -> &'static str {
    match plain(metric) {
        "ops_per_s" | "iops" => "1/s",
        "bytes_per_s" => "B/s",
        "wall_s" | "cpu_s" => "s",
        _ if metric.ends_with("_us") => "us",
        _ if metric.ends_with("_kib") => "KiB",
        _ => "1",
    }
}

/// All figures of a run, for medians and ratios.
#[derive(Debug, Default)]
pub struct Summary {
    measurements: Vec<Measurement>,
}

/// Experiment, form, group, threads, bytes of a request and place among the metrics.
type Row<'a> = (&'static str, &'static str, &'a str, u32, u32, usize);

/// The figures of a target in a variant: a line of a table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Series {
    target: &'static str,
    variant: String,
}

impl Series {
    fn name(&self) -> String {
        format!("{} {}", self.target, self.variant).trim_end().to_owned()
    }

    fn is_own(&self) -> bool {
        Target::find(self.target).is_some_and(Target::is_own)
    }
}

impl Summary {
    /// Adds a figure.
    pub fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// A table: for each load and target the median (least to most), and how many times as good
    /// uext4 is as each peer, pair by pair: the figures of one round are one pair.
    #[must_use]
    pub fn to_text(&self) -> String {
        let metrics = in_order(self.measurements.iter().map(|m| m.metric));
        let mut rows: BTreeMap<Row<'_>, Vec<&Measurement>> = BTreeMap::new();
        for m in &self.measurements {
            let place = metrics.iter().position(|metric| *metric == m.metric).unwrap_or(0);
            let form = m.form.unwrap_or_default();
            let row = (m.experiment, form, m.group(), m.threads, m.bs, place);
            rows.entry(row).or_default().push(m);
        }
        let mut text = String::new();
        for ((experiment, form, group, threads, bs, place), figures) in rows {
            let metric = metrics[place];
            let load = format!("{experiment} {form}");
            let (load, unit) = (load.trim_end(), unit(metric));
            let size = match Load::find(experiment) {
                Some(load) if !load.sizes.is_empty() => format!("{bs} B, "),
                _ => String::new(),
            };
            let _ = writeln!(text, "{load} {group}, {threads} x, {size}{metric} ({unit})");
            table(&mut text, metric, &figures);
        }
        text
    }
}

/// Each value once, in the order of its first appearance.
fn in_order<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn table(text: &mut String, metric: &str, figures: &[&Measurement]) {
    let all = in_order(figures.iter().map(|m| m.series()));
    let width = all.iter().map(|series| series.name().len()).max().unwrap_or(0).max(12);
    for series in &all {
        let values = by_round(figures, series);
        let Some(spread) = Spread::of(values.values().copied()) else { continue };
        let _ = write!(text, "  {:<width$} {}", series.name(), spread.show(metric));
        if series.is_own() && is_headline(metric) {
            for peer in all.iter().filter(|peer| !peer.is_own()) {
                let peers = by_round(figures, peer);
                let ratios = values.iter().filter_map(|(round, own)| {
                    peers.get(round).map(|peer| times_as_good(metric, *own, *peer))
                });
                if let Some(ratio) = Spread::of(ratios) {
                    let _ = write!(text, "   {}: {}", peer.name(), ratio.show("ratio"));
                }
            }
        }
        text.push('\n');
    }
}

fn by_round(figures: &[&Measurement], series: &Series) -> BTreeMap<u32, f64> {
    let own = figures.iter().filter(|m| m.series() == *series);
    own.map(|m| (m.round, m.value)).collect()
}

/// How many times as good `own` is as `peer`.
pub(crate) fn times_as_good(metric: &str, own: f64, peer: f64) -> f64 {
    let less_is_better = metric == "wall_s"
        || metric.ends_with("_us")
        || metric.ends_with("extents_per_file")
        || metric == "neighbour_distance_kib";
    if less_is_better { peer / own } else { own / peer }
}

/// Median, least and most of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len().is_multiple_of(2) {
            f64::midpoint(values[middle - 1], values[middle])
        } else {
            values[middle]
        };
        Some(Self { median, least, most })
    }

    pub(crate) fn show(self, metric: &str) -> String {
        let show = |value: f64| show(metric, value);
        format!("{} ({} to {})", show(self.median), show(self.least), show(self.most))
    }
}

/// A value in as many digits as its metric deserves.
pub(crate) fn show(metric: &str, value: f64) -> String {
    match plain(metric) {
        "ratio" => format!("{value:.2}x"),
        "ops_per_s" | "bytes_per_s" | "iops" | "operations" => format!("{value:.0}"),
        _ if metric.ends_with("_us") || metric.ends_with("_kib") => format!("{value:.0}"),
        "wall_s" if value < 1.0 => format!("{value:.4}"),
        "flushes_per_fsync" | "log_space_wait_share" => format!("{value:.4}"),
        _ if metric.ends_with("switches_per_op") => format!("{value:.4}"),
        _ if metric.contains("_ratio_") => format!("{value:.3}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(target: &'static str, round: u32, value: f64) -> Measurement {
        Measurement {
            experiment: "M1",
            target,
            variant: DEFAULT.into(),
            store: "ram",
            path: "natural",
            threads: 1,
            bs: 0,
            form: None,
            metric: "wall_s",
            value,
            unit: unit("wall_s"),
            round,
        }
    }

    #[test]
    fn the_json_form_is_the_documented_one() {
        assert_eq!(
            figure("kernel", 2, 1.5).to_json(),
            concat!(
                r#"{"experiment":"M1","target":"kernel","variant":"default","store":"ram","#,
                r#""path":"natural","threads":1,"bs":0,"metric":"wall_s","value":1.5,"#,
                r#""unit":"s","round":2}"#
            )
        );
    }

    #[test]
    fn a_variant_is_split_where_its_options_end() {
        let pairs = [
            ("a=b,c", ("a=b,c", DEFAULT)),
            ("a=b,journal=4", ("a=b", "journal=4")),
            ("mkfs.b=1024", (DEFAULT, "mkfs.b=1024")),
            ("aa,warm", ("aa", "warm")),
            ("nodelalloc,fresh", ("nodelalloc", "fresh")),
            ("mkfs.b=1024,warm", (DEFAULT, "mkfs.b=1024,warm")),
            ("a,mkfs.b=1024,journal=4", ("a", "mkfs.b=1024,journal=4")),
        ];
        for (variant, parts) in pairs {
            assert_eq!(split_variant(variant), parts, "{variant}");
        }
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let mut summary = Summary::default();
        for (round, own, peer) in [(1, 1.0, 4.0), (2, 2.0, 4.0), (3, 4.0, 4.0)] {
            summary.add(figure("uext4", round, own));
            summary.add(figure("kernel", round, peer));
        }
        let text = summary.to_text();
        assert!(text.contains("2.00 (1.00 to 4.00)   kernel: 2.00x (1.00x to 4.00x)"), "{text}");
    }

    #[test]
    fn variants_of_a_load_that_syncs_meet_in_one_table() {
        let mut summary = Summary::default();
        let series = [
            ("uext4", "default", 9000.0),
            ("uext4", "journal_join=herd", 4500.0),
            ("kernel", "dioread_lock", 3000.0),
            ("uext4", "journal=4", 100.0),
            ("kernel", "dioread_lock,journal=4", 50.0),
        ];
        for (target, variant, value) in series {
            let variant = variant.to_owned();
            let figure = figure(target, 1, value);
            summary.add(Measurement { experiment: "E0", metric: "iops", variant, ..figure });
        }
        let wanted = "\
E0 default, 1 x, iops (1/s)
  uext4                   9000 (9000 to 9000)   kernel dioread_lock: 3.00x (3.00x to 3.00x)
  uext4 journal_join=herd 4500 (4500 to 4500)   kernel dioread_lock: 1.50x (1.50x to 1.50x)
  kernel dioread_lock     3000 (3000 to 3000)
E0 journal=4, 1 x, iops (1/s)
  uext4               100 (100 to 100)   kernel dioread_lock: 2.00x (2.00x to 2.00x)
  kernel dioread_lock 50 (50 to 50)
";
        assert_eq!(summary.to_text(), wanted);
    }
}
