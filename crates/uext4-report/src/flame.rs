//! Flame graphs of stacks, and of the difference of two variants.
//!
//! What: each graph is an SVG with a script of its own (zoom, search), by `inferno`. The page keeps
//! them as text and gives each a frame without any rights but that script when it is shown.

use std::collections::BTreeSet;
use std::fmt::Write;

use inferno::{differential, flamegraph};
use maud::{Markup, html};

use crate::evidence::{Evidence, of_runs};
use crate::metric::counted;
use crate::packed::packed;
use crate::panel::{Panel, Series};

/// Graphs of a report at most, and bytes of one.
const GRAPHS_MAX: usize = 60;
const BYTES_MAX: usize = 4 << 20;
/// Parts of a graph that are narrower, in percent, are not drawn.
const NARROWEST: f64 = 0.1;
/// Series without a profile that are named.
const MISSING_MAX: usize = 200;
/// Profiles without figures that are named.
const STRAY_MAX: usize = 20;
const HEIGHT_DEFAULT: u32 = 400;

/// A graph.
#[derive(Clone, Debug)]
pub(crate) struct Flame {
    /// Its anchor.
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) experiment: String,
    /// What it compares, of a difference: without and with the options.
    pub(crate) pair: Option<(Series, Series)>,
    /// Of which panel.
    pub(crate) label: String,
    /// How many samples the stacks have.
    pub(crate) samples: u64,
    /// Functions with the most samples of their own.
    pub(crate) hottest: Vec<(String, u64)>,
    svg: String,
}

/// A graph that cannot be there: the run that was looked at has no profile.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    pub(crate) title: String,
    pub(crate) reason: String,
    /// Its place: before the graph of this number.
    pub(crate) before: usize,
}

/// All graphs.
#[derive(Debug, Default)]
pub(crate) struct Flames {
    pub(crate) graphs: Vec<Flame>,
    pub(crate) missing: Vec<Missing>,
    /// What could not be drawn.
    pub(crate) remarks: Vec<String>,
    /// Graphs that were begun, with those that could not be drawn.
    begun: usize,
}

impl Flames {
    /// The graphs of all profiles: one of each series, one of each series with options beside the
    /// one without.
    pub(crate) fn of(evidence: &Evidence, panels: &[Panel<'_>]) -> Self {
        let mut flames = Self::default();
        let mut left: BTreeSet<&String> = evidence.stacks.keys().collect();
        for panel in panels {
            for series in &panel.series {
                let keys = keys(panel, series);
                let mut has_own = false;
                for (name, _) in keys.iter().flat_map(|key| of_runs(&evidence.stacks, key)) {
                    left.remove(name);
                    has_own = true;
                }
                if !has_own {
                    flames.add_missing(evidence, panel, series);
                }
                if !has_own || !flames.has_room() {
                    continue;
                }
                let own = stacks(evidence, &keys);
                flames.add(panel, series.name(), None, &own);
                if !series.is_default() {
                    flames.add_difference(evidence, panel, series, &own);
                }
            }
        }
        for key in left.iter().take(STRAY_MAX) {
            flames.remarks.push(format!("profile/{key}.folded belongs to no figure"));
        }
        if left.len() > STRAY_MAX {
            let left = counted(left.len(), "profile");
            flames.remarks.push(format!("In all, of no figure: {left}"));
        }
        flames
    }

    /// Tells why a series has no graph, where that is known.
    fn add_missing(&mut self, evidence: &Evidence, panel: &Panel<'_>, series: &Series) {
        let Some(reason) = why_missing(evidence, panel, series) else { return };
        if self.missing.len() == MISSING_MAX {
            let remark = format!("The first {MISSING_MAX} series without a profile are named.");
            if self.remarks.last() != Some(&remark) {
                self.remarks.push(remark);
            }
            return;
        }
        let (title, before) = (title(panel, &series.name()), self.graphs.len());
        self.missing.push(Missing { title, reason: reason.to_owned(), before });
    }

    /// What the options of a series change.
    fn add_difference(
        &mut self,
        evidence: &Evidence,
        panel: &Panel<'_>,
        series: &Series,
        own: &str,
    ) {
        let plain = Series { variant: String::new(), ..series.clone() };
        let before = stacks(evidence, &keys(panel, &plain));
        if own.is_empty() || before.is_empty() || !self.has_room() {
            return;
        }
        let title = format!("{}: what {} changes", series.target, series.variant);
        let lines = difference(&before, own);
        self.add(panel, title, Some((plain, series.clone())), &lines);
    }

    /// Whether another graph may be begun: stacks are gone through several times for each.
    fn has_room(&mut self) -> bool {
        let has_room = self.begun < GRAPHS_MAX;
        let remark = format!("The report has the first {GRAPHS_MAX} graphs.");
        if !has_room && self.remarks.last() != Some(&remark) {
            self.remarks.push(remark);
        }
        has_room
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.graphs.is_empty() && self.missing.is_empty() && self.remarks.is_empty()
    }

    fn add(
        &mut self,
        panel: &Panel<'_>,
        name: String,
        pair: Option<(Series, Series)>,
        lines: &str,
    ) {
        if lines.trim().is_empty() {
            return;
        }
        self.begun += 1;
        let experiment = panel.experiment.to_owned();
        let title = title(panel, &name);
        match draw(pair.is_some(), lines) {
            Ok(svg) if svg.len() <= BYTES_MAX => {
                let id = format!("flame-{}", self.graphs.len());
                let (samples, hottest) = hottest(lines);
                let label = panel.label.clone();
                let flame = Flame { id, title, experiment, pair, label, samples, hottest, svg };
                self.graphs.push(flame);
            }
            Ok(svg) => self.remarks.push(format!("{title}: {} bytes are too many", svg.len())),
            Err(error) => self.remarks.push(format!("{title}: {error}")),
        }
    }

    /// The difference of a pair.
    pub(crate) fn find(&self, panel: &Panel<'_>, with: &Series) -> Option<&Flame> {
        self.graphs.iter().find(|flame| {
            let is_pair = flame.pair.as_ref().is_some_and(|(_, series)| series == with);
            is_pair && flame.experiment == panel.experiment && flame.label == panel.label
        })
    }

    /// The graphs as data of the page, which its script unpacks and puts into frames.
    pub(crate) fn embedded(&self) -> Markup {
        html! {
            @for flame in &self.graphs {
                script type="text/plain" id=(format!("{}-svg", flame.id)) { (packed(&flame.svg)) }
            }
        }
    }
}

impl Flame {
    /// Its height, in pixels.
    pub(crate) fn height(&self) -> u32 {
        let text = self.svg.split_once(" height=\"").map_or("", |(_, rest)| rest);
        text.split('"').next().and_then(|text| text.parse().ok()).unwrap_or(HEIGHT_DEFAULT)
    }
}

/// What a graph shows.
fn title(panel: &Panel<'_>, name: &str) -> String {
    let place = [panel.experiment, &panel.label].join(" ");
    format!("{}, {name}", place.trim())
}

/// Why a series has no profile, as the first of its runs that says so does.
pub(crate) fn why_missing<'e>(
    evidence: &'e Evidence,
    panel: &Panel<'_>,
    series: &Series,
) -> Option<&'e str> {
    let keys = keys(panel, series);
    if keys.iter().any(|key| of_runs(&evidence.stacks, key).next().is_some()) {
        return None;
    }
    let reason = |key: &String| Some(of_runs(&evidence.without_profile, key).next()?.1.as_str());
    keys.iter().find_map(reason)
}

/// The keys of all runs of a series.
fn keys(panel: &Panel<'_>, series: &Series) -> Vec<String> {
    panel.points.iter().flat_map(|point| panel.keys(series, *point)).collect()
}

/// The stacks of some runs together.
fn stacks(evidence: &Evidence, keys: &[String]) -> String {
    let mut all = String::new();
    for (_, text) in keys.iter().flat_map(|key| of_runs(&evidence.stacks, key)) {
        all.push_str(text);
        all.push('\n');
    }
    all
}

/// Lines with the counts of both, as many of the one as of the other.
fn difference(before: &str, after: &str) -> String {
    let mut lines = Vec::new();
    let options = differential::Options { normalize: true, strip_hex: true };
    let made = differential::from_readers(options, before.as_bytes(), after.as_bytes(), &mut lines);
    if made.is_err() {
        return String::new();
    }
    String::from_utf8_lossy(&lines).into_owned()
}

fn draw(is_difference: bool, lines: &str) -> std::io::Result<String> {
    let mut options = flamegraph::Options::default();
    // The page has the title above it.
    options.title = String::new();
    options.deterministic = true;
    options.min_width = NARROWEST;
    options.font_type = "monospace".to_owned();
    options.count_name = "samples".to_owned();
    options.bgcolors = Some(flamegraph::color::BackgroundColor::Flat((255, 255, 255).into()));
    if is_difference {
        options.subtitle = Some("red: more than without the option, blue: less".to_owned());
    }
    let mut svg = Vec::new();
    let lines = lines.lines().filter(|line| !line.trim().is_empty());
    flamegraph::from_lines(&mut options, lines, &mut svg)?;
    let svg = String::from_utf8_lossy(&svg).into_owned();
    Ok(svg.find("<svg").map_or_else(String::new, |at| svg[at..].to_owned()))
}

/// All samples, and the functions with the most of their own.
fn hottest(lines: &str) -> (u64, Vec<(String, u64)>) {
    let mut by_name = std::collections::BTreeMap::<&str, u64>::new();
    let mut all = 0;
    for line in lines.lines() {
        let Some((stack, count)) = line.trim().rsplit_once(' ') else { continue };
        let Ok(count) = count.parse::<u64>() else { continue };
        // A difference has two counts; the last is the one with the option.
        let stack = match stack.rsplit_once(' ') {
            Some((stack, number)) if number.bytes().all(|b| b.is_ascii_digit()) => stack,
            _ => stack,
        };
        let name = stack.rsplit(';').next().unwrap_or(stack);
        *by_name.entry(name).or_default() += count;
        all += count;
    }
    let mut names: Vec<(String, u64)> =
        by_name.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    names.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    names.truncate(10);
    (all, names)
}

/// A short list of samples as text, for tables.
pub(crate) fn share(count: u64, all: u64) -> String {
    let mut text = String::new();
    let _ = write!(text, "{:.1} %", count as f64 * 100.0 / all.max(1) as f64);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Figure;

    #[test]
    fn a_profile_without_stacks_is_no_graph() {
        assert!(draw(false, "no count\n").is_err());
        let svg = draw(false, "a;b 1\na;c;</script> 2\n").unwrap();
        assert!(svg.starts_with("<svg"), "{svg}");
    }

    /// Fault model: a folder of very many profiles, which would be gone through for hours.
    #[test]
    fn no_more_graphs_are_begun_than_are_shown() {
        let mut evidence = Evidence::default();
        for number in 0..200 {
            let variant = if number == 0 { "default" } else { &format!("option={number}") };
            let figure = Figure::of_a_test("uext4", variant, 1);
            evidence.stacks.insert(format!("{}1", figure.key()), "a;b 1\n".into());
            evidence.figures.push(figure);
        }
        let panels = crate::panel::panels(&evidence.figures).0;
        let flames = Flames::of(&evidence, &panels);
        assert_eq!((flames.begun, flames.graphs.len()), (GRAPHS_MAX, GRAPHS_MAX));
        assert_eq!(flames.remarks, [format!("The report has the first {GRAPHS_MAX} graphs.")]);
    }

    #[test]
    fn functions_are_counted_by_their_own_samples() {
        assert_eq!(hottest("a;b 3\na 1\nx;b 2\n"), (6, vec![("b".into(), 5), ("a".into(), 1)]));
        assert_eq!(hottest("a;b 3 4\n"), (4, vec![("b".into(), 4)]));
    }
}
