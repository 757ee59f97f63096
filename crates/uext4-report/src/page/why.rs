//! Why: for each pair what differs most, where threads waited, and which option is the difference.

use maud::{Markup, html};
use serde_json::Value;

use super::block::{Block, Cell, Table, breakable, heading};
use super::experiment::ratio;
use super::option::changes;
use super::results::list;
use super::shown::waits_of;
use super::{anchor, profiles};
use crate::evidence::{DEFAULT, Evidence, LockWait, Waits};
use crate::flame::{Flames, why_missing};
use crate::metric::{self, HEADLINES, counted, is_written_as_one, show, show_known, times};
use crate::panel::{Panel, Series, plain_form};
use crate::verdict::{Outcome, Verdict};

/// Counters of a pair that are shown, and waits.
const COUNTERS_MAX: usize = 8;
const WAITS_MAX: usize = 6;
/// Times that a counter differs by at least.
const DIFFERS: f64 = 1.15;
/// Times that makes a pair worth telling first.
const STRIKING: f64 = 1.5;
/// Place of a counter that is 0 on one side, among the logarithms of the others.
const FROM_NOTHING: f64 = 3.0;

/// Two series: `slow` is worse.
pub(super) struct Pair<'a> {
    pub(super) panel: &'a Panel<'a>,
    pub(super) fast: Series,
    pub(super) slow: Series,
    verdict: &'a Verdict<'a>,
    /// How many times as good the faster one is.
    pub(super) times: f64,
}

/// Options that make a target much better or worse.
pub(super) fn striking<'a>(panel: &'a Panel<'a>) -> Vec<Pair<'a>> {
    let mut pairs = pairs(panel);
    pairs.retain(|pair| pair.is_one_target() && pair.is_found());
    pairs
}

/// A metric of both sides.
struct Counter {
    name: String,
    unit: String,
    fast: f64,
    slow: f64,
    /// How far they are apart, by a logarithm.
    apart: f64,
}

/// The page.
pub(super) fn page(
    evidence: &Evidence,
    name: &str,
    panels: &[&Panel<'_>],
    flames: &Flames,
) -> Markup {
    let mut by_panel: Vec<(&Panel<'_>, Vec<Pair<'_>>)> = Vec::new();
    for panel in panels {
        by_panel.push((panel, pairs(panel)));
    }
    let is_empty = by_panel.iter().all(|(_, pairs)| pairs.is_empty());
    html! {
        h1 { (name) ": why" }
        p.lead { (super::experiment::load(name)) }
        p { a href=(format!("#{}", anchor(name))) { "The figures and plots of " (name) } }
        @if is_empty {
            p.remark { "There is nothing to compare: one target, or none with a common round." }
        }
        @for (panel, pairs) in &by_panel {
            (heading(&panel.label))
            @for pair in pairs { (explain(evidence, pair, flames)) }
        }
    }
}

/// The pairs of a panel, the most striking first: options first, then uext4 beside its peers.
fn pairs<'a>(panel: &'a Panel<'a>) -> Vec<Pair<'a>> {
    let (headlines, point) = (panel.headlines(), panel.points.last());
    let is_told = |verdict: &&Verdict<'_>| {
        headlines.contains(&verdict.metric) && point == Some(&verdict.point)
    };
    let of = |verdicts: &'a [Verdict<'a>]| {
        let mut pairs: Vec<Pair<'a>> =
            verdicts.iter().filter(is_told).map(|verdict| Pair::of(panel, verdict)).collect();
        pairs.sort_by(|a, b| b.times.total_cmp(&a.times));
        pairs
    };
    let (options, beside) = (of(&panel.verdicts.options), of(&panel.verdicts.beside));
    options.into_iter().chain(beside).collect()
}

impl<'a> Pair<'a> {
    fn of(panel: &'a Panel<'a>, verdict: &'a Verdict<'a>) -> Self {
        let mean = verdict.ratio.mean;
        let (own, peer) = (verdict.own.clone(), verdict.peer.clone());
        let (fast, slow) = if mean >= 1.0 { (own, peer) } else { (peer, own) };
        Self { panel, fast, slow, verdict, times: mean.max(1.0 / mean) }
    }

    fn is_found(&self) -> bool {
        self.times >= STRIKING && is_shown(self.verdict.outcome)
    }

    /// `5.46x (5.30x to 5.61x)`, of the faster by the slower.
    fn ratio(&self) -> String {
        let mut verdict = self.verdict.clone();
        if verdict.ratio.mean < 1.0 {
            let ratio = &mut verdict.ratio;
            ratio.mean = 1.0 / ratio.mean;
            ratio.bounds = ratio.bounds.map(|(lower, upper)| (1.0 / upper, 1.0 / lower));
        }
        ratio(&verdict)
    }

    fn is_one_target(&self) -> bool {
        self.fast.target == self.slow.target
    }

    fn figure(&self, series: &Series) -> String {
        let spread = self.panel.spread(series, self.verdict.point, self.verdict.metric);
        let unit = self.panel.unit(self.verdict.metric);
        spread.map_or("-".to_owned(), |spread| show(spread.median, unit))
    }

    /// The metrics that both have, those that differ most first; what is an effect is left out.
    fn counters(&self, waits: Option<(&Waits, &Waits)>) -> Vec<Counter> {
        let is_effect = |metric: &str| {
            let plain = metric::plain(metric);
            HEADLINES.contains(&plain) || plain.contains("latency") || plain == "operations"
        };
        let mut all = Vec::new();
        for metric in self.panel.metrics().filter(|metric| !is_effect(metric)) {
            let of = |series| self.panel.spread(series, self.verdict.point, metric);
            if let Some((fast, slow)) = of(&self.fast).zip(of(&self.slow)) {
                let unit = self.panel.unit(metric);
                all.push(Counter::of(metric, unit, fast.median, slow.median));
            }
        }
        let of_waits = |name: &str, of: fn(&Waits) -> Option<f64>| {
            let (fast, slow) = waits?;
            let known = all.iter().any(|counter| counter.name == name);
            let (fast, slow) = of(fast).zip(of(slow)).filter(|_| !known)?;
            Some(Counter::of(name, "1", fast, slow))
        };
        let more = [
            of_waits("context_switches_per_op", |waits| waits.context_switches_per_op),
            of_waits("wakeups_per_op", |waits| waits.wakeups_per_op),
        ];
        all.extend(more.into_iter().flatten());
        all.retain(|counter| counter.apart >= DIFFERS.ln());
        all.sort_by(|a, b| b.apart.total_cmp(&a.apart));
        all.truncate(COUNTERS_MAX);
        all
    }
}

impl Counter {
    fn of(name: &str, unit: &str, fast: f64, slow: f64) -> Self {
        let apart = if fast == slow {
            0.0
        } else if fast <= 0.0 || slow <= 0.0 {
            FROM_NOTHING
        } else {
            (slow / fast).ln().abs()
        };
        Self { name: name.to_owned(), unit: unit.to_owned(), fast, slow, apart }
    }

    fn factor(&self) -> String {
        if self.fast > 0.0 && self.slow > 0.0 {
            times(self.slow / self.fast)
        } else if self.fast > 0.0 {
            "none".to_owned()
        } else {
            "from 0".to_owned()
        }
    }

    fn word(&self) -> &'static str {
        if self.slow > self.fast { "rose" } else { "fell" }
    }
}

/// What moved, where threads waited and what cures: a pair in a line of the overview.
pub(super) fn in_a_line(evidence: &Evidence, pair: &Pair<'_>) -> Markup {
    let waits = |series| waits_of(evidence, pair.panel, series).map(|(_, waits)| waits);
    let both = waits(&pair.fast).zip(waits(&pair.slow));
    html! {
        @if let Some(sentence) = in_short(&pair.counters(both), both) { (sentence) " " }
        (cure(pair))
    }
}

fn explain(evidence: &Evidence, pair: &Pair<'_>, flames: &Flames) -> Markup {
    let waits = |series| waits_of(evidence, pair.panel, series).map(|(_, waits)| waits);
    let both = waits(&pair.fast).zip(waits(&pair.slow));
    let counters = pair.counters(both);
    html! {
        section.pair.(if pair.is_found() && pair.is_one_target() { "found" } else { "" }) {
            h3 { (breakable(&pair.slow.name())) " beside " (breakable(&pair.fast.name())) }
            p.finding { (finding(pair)) }
            @if pair.is_one_target() { (option(pair)) }
            @if let Some(sentence) = in_short(&counters, both) { p { (sentence) } }
            @if counters.is_empty() {
                p.note { "No counter of both differs by more than 15 %." }
            } @else {
                (counter_table(pair, &counters).markup())
            }
            (looked_at(evidence, pair))
            @match both {
                Some((fast, slow)) => {
                    (wait_table(pair, fast, slow).markup())
                    (lock_table(pair, fast, slow))
                    @if let Some(block) = phases(evidence, pair) { (block.markup()) }
                    details {
                        summary { "Stacks of " (pair.slow.name()) " while it waited" }
                        (profiles::stacks(slow))
                    }
                }
                None => {
                    p.note { "Where threads waited was not recorded for both." }
                }
            }
            @let with = if pair.fast.is_default() { &pair.slow } else { &pair.fast };
            @if let Some(flame) = flames.find(pair.panel, with) {
                p { a href=(format!("#{}", flame.id)) { "Flame graph of the difference" } }
            }
            @for series in [&pair.fast, &pair.slow] {
                @if let Some(reason) = why_missing(evidence, pair.panel, series) {
                    p.note { (series.name()) ": " (profiles::NO_PROFILE) (reason) "." }
                }
            }
        }
    }
}

/// The sentence that says how much.
fn finding(pair: &Pair<'_>) -> Markup {
    let (fast, slow) = (&pair.fast, &pair.slow);
    let title = metric::title(pair.verdict.metric).to_lowercase();
    html! {
        @if pair.verdict.outcome == Outcome::Even {
            "No difference is shown: " (title) " "
        } @else if pair.verdict.outcome == Outcome::Slight {
            "Little difference: " (title) " "
        } @else if is_written_as_one(pair.times) {
            "About the same: " (title) " "
        } @else {
            strong { (breakable(&fast.name())) } " is " strong { (times(pair.times)) }
            " as good as " strong { (breakable(&slow.name())) } ": " (title) " "
        }
        (pair.figure(fast)) " beside " (pair.figure(slow)) "; ratio " (pair.ratio())
        @if pair.verdict.outcome == Outcome::FewRounds {
            ", of " (counted(pair.verdict.ratio.pairs, "round")) ", too few for a verdict"
        }
        "."
    }
}

/// What a run that was looked at says of the pair: sentences, and its own counters.
fn looked_at(evidence: &Evidence, pair: &Pair<'_>) -> Markup {
    let all = evidence.explain.as_ref().map_or(&[][..], |explain| list(&explain["pairs"]));
    let (threads, bytes) = pair.verdict.point;
    let is_side = |side: &Value, series: &Series| {
        let variant = side["variant"].as_str().unwrap_or(DEFAULT);
        side["target"] == series.target.as_str() && variant == pair.panel.variant(series)
    };
    let found = all.iter().find(|told| {
        let is_panel = told["experiment"] == pair.panel.experiment
            && plain_form(told["form"].as_str().unwrap_or("")) == pair.panel.form
            && told["threads"] == threads
            && told["bs"] == bytes;
        let both = |a, b| is_side(&told["a"], a) && is_side(&told["b"], b);
        is_panel && (both(&pair.fast, &pair.slow) || both(&pair.slow, &pair.fast))
    });
    let Some(found) = found else { return html! {} };
    let is_turned = is_side(&found["a"], &pair.slow);
    let (fast, slow) = (pair.fast.name(), pair.slow.name());
    let head = ["counter", fast.as_str(), slow.as_str(), "of"];
    let mut table = Table::new("Counters of a run that was looked at", &head);
    for moved in list(&found["counters"]).iter().take(COUNTERS_MAX) {
        let of = |name: &str| moved[name].as_f64().map_or("-".to_owned(), |value| show(value, ""));
        let (a, b) = if is_turned { (of("b"), of("a")) } else { (of("a"), of("b")) };
        let per = match moved["per"].as_str() {
            Some("operation") => "an operation",
            _ => "mean",
        };
        let name = moved["name"].as_str().unwrap_or_default().replace('_', " ");
        table.rows.push(vec![name.into(), a.into(), b.into(), Cell::words(per)]);
    }
    let words: Vec<&str> = list(&found["words"]).iter().filter_map(Value::as_str).collect();
    html! {
        @if !table.rows.is_empty() { (table.markup()) }
        @if !words.is_empty() {
            details {
                summary { "What that run says, in words" }
                @for words in words { p.note { (words) } }
            }
        }
    }
}

/// Whether a difference is more than chance: one round says nothing about itself.
const fn is_shown(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Wins | Outcome::Loses)
}

/// Which option is the difference, and what cures.
fn option(pair: &Pair<'_>) -> Markup {
    let with = if pair.slow.is_default() { &pair.fast } else { &pair.slow };
    html! {
        p {
            @let option = html! { code { (breakable(&with.variant)) } };
            "The difference between the two is " (option) " of " (with.target) ". "
            @if is_shown(pair.verdict.outcome) { (cure(pair)) }
        }
        @for (word, what) in changes(&with.variant) {
            @if let Some(what) = what {
                p.note { "With " code { (word) } " " (what) "." }
            }
        }
    }
}

/// What makes the slower one as good as the faster.
fn cure(pair: &Pair<'_>) -> Markup {
    html! {
        @if pair.slow.is_default() {
            strong { "Cure: mount with " code { (breakable(&pair.fast.variant)) } "." }
        } @else {
            strong {
                "Cure: leave " code { (breakable(&pair.slow.variant)) } " out, as the default does."
            }
        }
    }
}

/// What rose and fell, and the longest wait, in a sentence.
fn in_short(counters: &[Counter], waits: Option<(&Waits, &Waits)>) -> Option<String> {
    let told: Vec<String> = counters
        .iter()
        .take(3)
        .map(|c| {
            let (fast, slow) = (show(c.fast, &c.unit), show(c.slow, &c.unit));
            format!("{} {} from {fast} to {slow}", metric::title(&c.name), c.word())
        })
        .collect();
    let longest = waits.and_then(|(fast, slow)| {
        // The first is the longest.
        let longest = slow.waits.first()?;
        let (cause, whole) = (&longest.cause, slow.whole());
        let most = format!("In the slower one threads waited most for \"{cause}\"");
        // Shares of two things say nothing about each other.
        if fast.whole() != whole {
            return Some(format!("{most}."));
        }
        let share = show(slow.share(longest.total_ms)?, "%");
        let before = fast.waits.iter().find(|wait| wait.cause == longest.cause);
        let before = match before {
            Some(wait) => show(fast.share(wait.total_ms)?, "%"),
            None => "none".to_owned(),
        };
        Some(format!("{most}: {share} of {whole}, beside {before} in the faster one."))
    });
    let mut text = String::new();
    if !told.is_empty() {
        text = format!("From the faster to the slower one: {}. ", told.join("; "));
    }
    text.extend(longest);
    (!text.is_empty()).then_some(text)
}

fn counter_table(pair: &Pair<'_>, counters: &[Counter]) -> Table {
    let (fast, slow) = (pair.fast.name(), pair.slow.name());
    let head = ["counter", &fast, &slow, "times", "what it means"];
    let mut table = Table::new("Counters that differ most", &head);
    for counter in counters {
        let meaning = metric::find(&counter.name).map_or("", |metric| metric.meaning);
        table.rows.push(vec![
            metric::title(&counter.name).into(),
            show(counter.fast, &counter.unit).into(),
            show(counter.slow, &counter.unit).into(),
            counter.factor().into(),
            Cell::words(meaning),
        ]);
    }
    table
}

fn wait_table(pair: &Pair<'_>, fast: &Waits, slow: &Waits) -> Table {
    let (fast_name, slow_name) = (pair.fast.name(), pair.slow.name());
    let of = |name: &str| format!("{name}, mean wait");
    let head = ["cause", &fast_name, &slow_name, &of(&fast_name), &of(&slow_name)];
    let is_alike = fast.whole() == slow.whole();
    let title = match is_alike {
        true => format!("Where threads waited, as a share of {}", slow.whole()),
        false => "Where threads waited".to_owned(),
    };
    let mut table = Table::new(title, &head);
    let mut causes: Vec<(&str, f64)> = Vec::new();
    for (waits, wait) in
        [fast, slow].into_iter().flat_map(|waits| waits.waits.iter().map(move |w| (waits, w)))
    {
        let share = waits.share(wait.total_ms).unwrap_or(0.0);
        match causes.iter_mut().find(|(cause, _)| *cause == wait.cause) {
            Some((_, most)) => *most = most.max(share),
            None => causes.push((&wait.cause, share)),
        }
    }
    causes.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (cause, _) in causes.into_iter().take(WAITS_MAX) {
        let of = |waits: &Waits| waits.waits.iter().find(|wait| wait.cause == cause).cloned();
        let share = |waits: &Waits| {
            let wait = of(waits);
            if !is_alike {
                return "-".to_owned();
            }
            // A cause that a run does not name took none of its time.
            wait.map_or("0 %".to_owned(), |wait| show_known(waits.share(wait.total_ms), "%"))
        };
        let mean = |waits| show_known(of(waits).and_then(|wait| wait.mean_us), "us");
        let row = [cause.to_owned(), share(fast), share(slow), mean(fast), mean(slow)];
        table.rows.push(row.map(Into::into).into());
    }
    table.known()
}

fn lock_table(pair: &Pair<'_>, fast: &Waits, slow: &Waits) -> Markup {
    let mut locks: Vec<_> = slow.locks.iter().chain(&fast.locks).collect();
    let total = |lock: &LockWait| lock.total_ms.unwrap_or(0.0);
    locks.sort_by(|a, b| total(b).total_cmp(&total(a)));
    let mut names: Vec<&str> = Vec::new();
    for lock in locks {
        if !names.contains(&lock.name.as_str()) {
            names.push(&lock.name);
        }
    }
    let (fast_name, slow_name) = (pair.fast.name(), pair.slow.name());
    let mut table =
        Table::new("Waits for locks, in all", &["lock", fast_name.as_str(), slow_name.as_str()]);
    for name in names.into_iter().take(WAITS_MAX) {
        let of = |waits: &Waits| {
            let lock = waits.locks.iter().find(|lock| lock.name == name);
            show_known(lock.and_then(|lock| lock.total_ms).map(|ms| ms * 1000.0), "us")
        };
        let row = [name.to_owned(), of(fast), of(slow)];
        table.rows.push(row.map(Into::into).into());
    }
    html! { @if !table.rows.is_empty() { (table.markup()) } }
}

/// The phases of a commit of the two.
fn phases(evidence: &Evidence, pair: &Pair<'_>) -> Option<Block> {
    let series = [pair.fast.clone(), pair.slow.clone()];
    profiles::commit_phases(evidence, pair.panel, &series)
}
