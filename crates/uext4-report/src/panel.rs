//! Figures that are compared with each other.
//!
//! What: a [`Panel`] has the figures of one experiment that differ in nothing but target, variant,
//! threads and block size: one form, one store, one journal, one kind of file system. A [`Series`]
//! is a target in a variant.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{DEFAULT, Figure, REPEATED};
use crate::metric::{headlines, plain};
use crate::stats::Spread;
use crate::verdict::Verdicts;

/// Variants that are a part of the load.
const OF_LOAD: &[&str] = &["warm", "fresh"];
/// How variants begin that are other file systems.
const OF_FILE_SYSTEM: &str = "mkfs.";

/// Forms of a load that goals do not hold for.
const UNUSUAL_FORMS: &[&str] = &["shared", "aged"];

/// Panels of a report at most.
pub(crate) const PANELS_MAX: usize = 300;

/// A target in a variant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Series {
    pub(crate) target: String,
    /// Empty where nothing is different.
    pub(crate) variant: String,
}

impl Series {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.target, self.variant).trim_end().to_owned()
    }

    pub(crate) fn is_own(&self) -> bool {
        self.target.starts_with("uext4")
    }

    pub(crate) fn is_default(&self) -> bool {
        self.variant.is_empty()
    }
}

/// What of a variant is the series, and what the panel: its last words, where they are no options
/// of a mount.
fn divide(variant: &str) -> (String, String) {
    let words: Vec<&str> = variant.split(',').collect();
    let rest = words.iter().rposition(|word| !is_of_panel(word)).map_or(0, |last| last + 1);
    let (rest, group) = words.split_at(rest);
    let rest = rest.join(",");
    (if rest == DEFAULT { String::new() } else { rest }, group.join(","))
}

/// Whether the last word of a variant says what the load runs on or a part of it: the journal, an
/// option of mke2fs, a lap.
fn is_of_panel(word: &str) -> bool {
    let is_number = |mib: &str| !mib.is_empty() && mib.bytes().all(|b| b.is_ascii_digit());
    OF_LOAD.contains(&word)
        || word.starts_with(OF_FILE_SYSTEM)
        || word.strip_prefix("journal=").is_some_and(is_number)
}

/// A form as it is compared: none is that of a load that has but one.
pub(crate) fn plain_form(form: &str) -> &str {
    if form == "one" { "" } else { form }
}

/// What changes from point to point of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    Threads,
    Bytes,
}

/// Threads and bytes.
pub(crate) type Point = (u32, u32);

/// Figures that are compared with each other.
#[derive(Debug)]
pub(crate) struct Panel<'a> {
    pub(crate) experiment: &'a str,
    /// Empty of a load that has but one.
    pub(crate) form: &'a str,
    pub(crate) store: &'a str,
    /// What is special about it, as the page says it; empty where there is but one.
    pub(crate) label: String,
    /// What of the variant is not of its series: a part of the load, a journal, a file system.
    group: String,
    /// In the order in which they are shown.
    pub(crate) series: Vec<Series>,
    /// In order.
    pub(crate) points: Vec<Point>,
    /// With their units, in the order in which they come.
    metrics: Vec<(&'a str, &'a str)>,
    runs: BTreeMap<(Series, Point), Runs<'a>>,
    /// Empty until they are made.
    pub(crate) verdicts: Verdicts<'a>,
}

/// The runs of a series at a point.
#[derive(Debug, Default)]
struct Runs<'a> {
    /// Of their files.
    keys: BTreeSet<String>,
    /// Figures by metric and round.
    figures: BTreeMap<&'a str, BTreeMap<u32, f64>>,
}

/// The panels of all figures, in the order in which they come, and how many figures were in those
/// that are too many.
pub(crate) fn panels(figures: &[Figure]) -> (Vec<Panel<'_>>, usize) {
    let sizes = several(figures);
    let mut places: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    let mut panels: Vec<(Vec<String>, Panel<'_>)> = Vec::new();
    let mut lost = 0;
    for figure in figures {
        let (variant, group) = divide(&figure.variant);
        let Figure { experiment, form, store, path, bs, .. } = figure;
        // Points have one axis: where threads and bytes both change, each size is a panel.
        let is_divided = sizes.contains(experiment.as_str());
        let size = if is_divided { format!("{bs} B") } else { String::new() };
        let form = plain_form(form);
        let key: Vec<String> =
            [experiment, form, &group, &size, store, path].map(ToString::to_string).into();
        let at = match places.get(&key) {
            Some(at) => *at,
            None if panels.len() == PANELS_MAX => {
                lost += 1;
                continue;
            }
            None => {
                places.insert(key.clone(), panels.len());
                panels.push((key, Panel::new(figure, group)));
                panels.len() - 1
            }
        };
        let series = Series { target: figure.target.clone(), variant };
        panels[at].1.add(series, figure);
    }
    label(&mut panels);
    let mut panels: Vec<Panel<'_>> = panels.into_iter().map(|(_, panel)| panel).collect();
    panels.iter_mut().for_each(Panel::arrange);
    (panels, lost)
}

/// The experiments of which both threads and bytes change.
fn several(figures: &[Figure]) -> BTreeSet<&str> {
    let mut seen: BTreeMap<&str, [BTreeSet<u32>; 2]> = BTreeMap::new();
    for figure in figures {
        let [threads, bytes] = seen.entry(&figure.experiment).or_default();
        threads.insert(figure.threads);
        bytes.insert(figure.bs);
    }
    let both = seen.into_iter().filter(|(_, sets)| sets.iter().all(|set| set.len() > 1));
    both.map(|(experiment, _)| experiment).collect()
}

/// Labels say what is not the same in all panels of an experiment.
fn label(panels: &mut [(Vec<String>, Panel<'_>)]) {
    let keys: Vec<Vec<String>> = panels.iter().map(|(key, _)| key.clone()).collect();
    for (key, panel) in panels {
        let like: Vec<&Vec<String>> = keys.iter().filter(|other| other[0] == key[0]).collect();
        let differs = |at: usize| like.iter().any(|other| other[at] != key[at]);
        let words = (1..key.len()).filter(|at| differs(*at)).map(|at| match (at, &*key[at]) {
            (1, "") => "usual form".to_owned(),
            (1, form) => format!("form {form}"),
            (2, "") => "usual".to_owned(),
            (4, store) => format!("store {store}"),
            (5, path) => format!("path {path}"),
            (_, word) => word.to_owned(),
        });
        panel.label = words.collect::<Vec<_>>().join(", ");
    }
}

impl<'a> Panel<'a> {
    /// The panel of a figure, still without it.
    fn new(figure: &'a Figure, group: String) -> Self {
        let (label, series, points, metrics, runs) = Default::default();
        let (experiment, store) = (figure.experiment.as_str(), figure.store.as_str());
        let (form, verdicts) = (plain_form(&figure.form), Verdicts::default());
        Self { experiment, form, store, label, group, series, points, metrics, runs, verdicts }
    }

    /// Whether it is the load as goals mean it: in a usual form, with the usual journal.
    pub(crate) fn is_usual(&self) -> bool {
        let is_usual_form = !UNUSUAL_FORMS.contains(&self.form);
        is_usual_form && (self.group.is_empty() || self.group == "journal=128")
    }

    /// The variant of a series as the lab names it, with what is not of the series.
    pub(crate) fn variant(&self, series: &Series) -> String {
        match (series.variant.as_str(), self.group.as_str()) {
            ("", "") => DEFAULT.to_owned(),
            ("", group) => group.to_owned(),
            (variant, "") => variant.to_owned(),
            (variant, group) => format!("{variant},{group}"),
        }
    }

    fn add(&mut self, series: Series, figure: &'a Figure) {
        let (metric, unit) = (figure.metric.as_str(), figure.unit.as_str());
        if !self.metrics.iter().any(|(known, _)| *known == metric) {
            self.metrics.push((metric, unit));
        }
        if series.variant != REPEATED && !self.series.contains(&series) {
            self.series.push(series.clone());
        }
        let runs = self.runs.entry((series, (figure.threads, figure.bs))).or_default();
        runs.keys.insert(figure.key());
        runs.figures.entry(metric).or_default().insert(figure.round, figure.value);
    }

    fn arrange(&mut self) {
        let points: BTreeSet<Point> = self.runs.keys().map(|(_, point)| *point).collect();
        self.points = points.into_iter().collect();
        self.series.sort_by_key(|series| (!series.is_own(), series.target != "uext4"));
    }

    /// What its points differ in; `None` of a single one.
    pub(crate) fn axis(&self) -> Option<Axis> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        match (first.0 != last.0, self.points.len() > 1) {
            (true, _) => Some(Axis::Threads),
            (_, true) => Some(Axis::Bytes),
            _ => None,
        }
    }

    /// The metric that its verdict goes by.
    pub(crate) fn headline(&self) -> Option<&'a str> {
        self.headlines().first().copied()
    }

    /// The same, and those of each other part of the load: groups of a job file have their own.
    pub(crate) fn headlines(&self) -> Vec<&'a str> {
        for name in headlines(self.experiment) {
            let all: Vec<&str> = self.metrics().filter(|metric| plain(metric) == name).collect();
            if !all.is_empty() {
                return all;
            }
        }
        Vec::new()
    }

    pub(crate) fn has(&self, metric: &str) -> bool {
        self.metrics.iter().any(|(known, _)| *known == metric)
    }

    /// Its metrics, in the order in which they come.
    pub(crate) fn metrics(&self) -> impl Iterator<Item = &'a str> {
        self.metrics.iter().map(|(metric, _)| *metric)
    }

    /// Whether a target ran twice in each round.
    pub(crate) fn is_repeated(&self) -> bool {
        self.runs.keys().any(|(series, _)| series.variant == REPEATED)
    }

    /// Whether a series has figures at a point.
    pub(crate) fn has_run(&self, series: &Series, point: Point) -> bool {
        self.runs.contains_key(&(series.clone(), point))
    }

    /// Figures by round.
    pub(crate) fn rounds(&self, series: &Series, point: Point, metric: &str) -> BTreeMap<u32, f64> {
        let runs = self.runs.get(&(series.clone(), point));
        runs.and_then(|runs| runs.figures.get(metric)).cloned().unwrap_or_default()
    }

    pub(crate) fn spread(&self, series: &Series, point: Point, metric: &str) -> Option<Spread> {
        Spread::of(self.rounds(series, point, metric).into_values())
    }

    pub(crate) fn unit(&self, metric: &str) -> &'a str {
        let like = self.metrics.iter().find(|(known, _)| *known == metric);
        like.map_or("", |(_, unit)| unit)
    }

    /// Keys of the files of a series at a point.
    pub(crate) fn keys(&self, series: &Series, point: Point) -> Vec<String> {
        let runs = self.runs.get(&(series.clone(), point));
        runs.map_or_else(Vec::new, |runs| runs.keys.iter().cloned().collect())
    }

    /// The ratios of a target to itself: those to the run that repeats it, or of successive rounds
    /// where there is none.
    pub(crate) fn repeated(&self, series: &Series, point: Point, metric: &str) -> Vec<f64> {
        let own = self.rounds(series, point, metric);
        let again = Series { target: series.target.clone(), variant: REPEATED.to_owned() };
        let again = self.rounds(&again, point, metric);
        if series.is_default() && !again.is_empty() {
            let pairs = own.iter().filter_map(|(round, own)| Some(own / again.get(round)?));
            return pairs.collect();
        }
        let own: Vec<f64> = own.into_values().collect();
        own.chunks_exact(2).map(|pair| pair[1] / pair[0]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(variant: &str, threads: u32, round: u32, value: f64) -> Figure {
        Figure { threads, value, ..Figure::of_a_test("uext4", variant, round) }
    }

    #[test]
    fn journals_and_parts_of_a_load_are_panels_and_options_are_series() {
        let variants = ["default", "journal=4", "nodelalloc,journal=4", "nodelalloc", "aa"];
        let figures = variants.map(|variant| figure(variant, 1, 1, 1.0));
        let (panels, _) = panels(&figures);
        let labels: Vec<&str> = panels.iter().map(|panel| &*panel.label).collect();
        assert_eq!(labels, ["usual", "journal=4"]);
        assert!(panels.iter().all(|panel| panel.series.len() == 2), "{panels:?}");
    }

    /// Fault model: a file system with small blocks is compared with one that has large ones.
    #[test]
    fn like_is_with_like() {
        for (variant, series, group) in [
            ("default", "", ""),
            ("warm", "", "warm"),
            ("aa", "aa", ""),
            ("a=b,c", "a=b,c", ""),
            ("mkfs.b=1024", "", "mkfs.b=1024"),
            ("aa,warm", "aa", "warm"),
            ("nodelalloc,fresh", "nodelalloc", "fresh"),
            ("mkfs.b=1024,warm", "", "mkfs.b=1024,warm"),
            ("a,mkfs.b=1024,mkfs.I=512,journal=4", "a", "mkfs.b=1024,mkfs.I=512,journal=4"),
        ] {
            assert_eq!(divide(variant), (series.to_owned(), group.to_owned()), "{variant}");
        }
        let figures = ["default", "mkfs.b=1024"].map(|variant| figure(variant, 1, 1, 1.0));
        assert_eq!(panels(&figures).0.len(), 2);
    }

    #[test]
    fn a_repeated_target_gives_the_noise_of_its_rounds() {
        let mut figures = vec![figure("default", 1, 1, 2.0), figure("default", 1, 2, 4.0)];
        let own = Series { target: "uext4".into(), variant: String::new() };
        assert_eq!(panels(&figures).0[0].repeated(&own, (1, 4096), "iops"), [2.0]);
        figures.push(figure("aa", 1, 1, 2.0));
        figures.push(figure("aa", 1, 2, 5.0));
        assert_eq!(panels(&figures).0[0].repeated(&own, (1, 4096), "iops"), [1.0, 0.8]);
    }

    #[test]
    fn the_name_of_a_runs_files_has_plain_characters() {
        let key = figure("a=b,c d/..", 16, 3, 0.0).key();
        assert_eq!(key, "E0-one-16-4096-uext4-a=b_c_d_..-r");
    }
}
