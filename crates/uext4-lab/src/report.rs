//! Figures: one at a time as JSON, and together as medians and ratios.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::target::Target;

/// One figure of one run. Its JSON form is the interface for scripts.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Measurement {
    /// The load.
    pub experiment: &'static str,
    /// What it ran on.
    pub target: &'static str,
    /// `default`, or what was different.
    pub variant: &'static str,
    /// `ram` or `disk`.
    pub store: &'static str,
    /// `natural` or `device`.
    pub path: &'static str,
    /// Processes or threads of the load.
    pub threads: u32,
    /// Bytes of one read or write of the load; 0 where programs choose.
    pub bs: u32,
    /// What was measured.
    pub metric: &'static str,
    /// The figure.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// Turn, from 1.
    pub round: u32,
}

impl Measurement {
    /// One line of JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether it is one of the figures that sides are compared by.
    fn is_headline(&self) -> bool {
        matches!(self.metric, "wall_s" | "ops_per_s")
    }
}

/// Unit of a metric.
pub(crate) fn unit(metric: &str) -> &'static str {
    match metric {
        "ops_per_s" => "1/s",
        "peak_rss_kib" => "KiB",
        _ => "s",
    }
}

/// All figures of a run, for medians and ratios.
#[derive(Debug, Default)]
pub struct Summary {
    measurements: Vec<Measurement>,
}

type Row = (&'static str, &'static str, u32, &'static str);

impl Summary {
    /// Adds a figure.
    pub fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    /// A table: for each load and target the median (least to most), and how many times as fast
    /// uext4 is as each peer, pair by pair: the figures of one round are one pair.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut rows: BTreeMap<Row, Vec<&Measurement>> = BTreeMap::new();
        for m in &self.measurements {
            rows.entry((m.experiment, m.variant, m.threads, m.metric)).or_default().push(m);
        }
        let mut text = String::new();
        for ((experiment, variant, threads, metric), figures) in rows {
            let _ = writeln!(text, "{experiment} {variant}, {threads} x, {metric}");
            for target in Target::ALL {
                let values = by_round(&figures, target);
                let Some(spread) = Spread::of(values.values().copied()) else { continue };
                let _ = write!(text, "  {:<12} {}", target.name(), spread.show(metric));
                if target.is_own() && figures[0].is_headline() {
                    for peer in Target::ALL.into_iter().filter(|peer| !peer.is_own()) {
                        let peers = by_round(&figures, peer);
                        let ratios = values.iter().filter_map(|(round, own)| {
                            peers.get(round).map(|peer| times_as_fast(metric, *own, *peer))
                        });
                        if let Some(ratio) = Spread::of(ratios) {
                            let _ = write!(text, "   {}: {}", peer.name(), ratio.show("ratio"));
                        }
                    }
                }
                text.push('\n');
            }
        }
        text
    }
}

fn by_round(figures: &[&Measurement], target: Target) -> BTreeMap<u32, f64> {
    let own = figures.iter().filter(|m| m.target == target.name());
    own.map(|m| (m.round, m.value)).collect()
}

fn times_as_fast(metric: &str, own: f64, peer: f64) -> f64 {
    if metric == "wall_s" { peer / own } else { own / peer }
}

/// Median, least and most of some figures.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
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

    fn show(self, metric: &str) -> String {
        let show = |value: f64| match metric {
            "ratio" => format!("{value:.2}x"),
            "ops_per_s" | "peak_rss_kib" => format!("{value:.0}"),
            _ => format!("{value:.2}"),
        };
        format!("{} ({} to {})", show(self.median), show(self.least), show(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(target: &'static str, round: u32, value: f64) -> Measurement {
        Measurement {
            experiment: "M1",
            target,
            variant: "default",
            store: "ram",
            path: "natural",
            threads: 1,
            bs: 0,
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
    fn ratios_are_taken_within_a_round() {
        let mut summary = Summary::default();
        for (round, own, peer) in [(1, 1.0, 4.0), (2, 2.0, 4.0), (3, 4.0, 4.0)] {
            summary.add(figure("uext4", round, own));
            summary.add(figure("kernel", round, peer));
        }
        let text = summary.to_text();
        assert!(text.contains("2.00 (1.00 to 4.00)   kernel: 2.00x (1.00x to 4.00x)"), "{text}");
    }
}
