//! Pairs of candidates that differ by one thing, and what that thing does, in words.

use serde::Serialize;

use crate::bench::Candidate;
use crate::explain::Explained;
use crate::explain::difference::{self, Moved, RUNNING, Share};
use crate::explain::rate::Rate;
use crate::load::{How, Load, Work};
use crate::report::DEFAULT;

/// Looks, or stacks, of a side that a share is told of: one of fewer says more of chance.
const BASIS_MIN: u64 = 30;
/// Counters and causes that a sentence names.
const NAMED: usize = 5;
/// Counters that say what a transaction or an operation is like: told first where they move.
const TELLING: &[&str] =
    &["handles_per_txn", "transactions", "commit_mean_us", "commit_moving_average_us"];

/// What counts of a load are divided by, in words.
fn operation(load: &Load) -> &'static str {
    match load.how {
        How::Tree(Work::Unpack | Work::RemoveTree | Work::Build, _) => "entry",
        How::Tree(..) => "file",
        How::Bench(_) => "operation",
    }
}

/// A candidate of a pair.
#[derive(Clone, Debug, Serialize)]
struct Side {
    target: &'static str,
    variant: String,
    key: String,
}

/// What shares are made of, of a and b.
#[derive(Clone, Copy, Debug, Serialize)]
struct Basis {
    /// Looks at threads of the load.
    looks: [u64; 2],
    /// Stacks of processors.
    stacks: [u64; 2],
}

/// What was found of a pair.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pair {
    experiment: &'static str,
    /// What counts are divided by.
    operation: &'static str,
    form: Option<&'static str>,
    threads: u32,
    bs: u32,
    a: Side,
    b: Side,
    /// What is different.
    difference: String,
    rate: Rate,
    basis: Basis,
    counters: Vec<Moved>,
    waits: Vec<Share>,
    functions: Vec<Share>,
    words: Vec<String>,
}

/// All pairs that differ by one thing.
pub(super) fn pairs(all: &[Explained]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for (at, a) in all.iter().enumerate() {
        for b in &all[at + 1..] {
            if let Some(difference) = difference_of(&a.candidate, &b.candidate) {
                pairs.push(Pair::of(a, b, difference));
            }
        }
    }
    pairs
}

/// The one thing that two candidates differ by.
fn difference_of(a: &Candidate, b: &Candidate) -> Option<String> {
    if a.target != b.target {
        let alike = a.variant == b.variant || (a.variant == DEFAULT && b.variant == DEFAULT);
        return alike.then(|| format!("{} instead of {}", b.target.name(), a.target.name()));
    }
    let words = |of: &Candidate| -> Vec<String> {
        of.variant.split(',').filter(|word| *word != DEFAULT).map(str::to_owned).collect()
    };
    let (of_a, of_b) = (words(a), words(b));
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|word| !those.contains(word)).cloned().collect()
    };
    // The size of the journal belongs to the load.
    let is_default = |words: &[String]| words.iter().all(|word| word.starts_with("journal="));
    let (less, more) = (only(&of_a, &of_b), only(&of_b, &of_a));
    match (&less[..], &more[..]) {
        ([], []) => None,
        ([], more) if is_default(&of_a) || more.len() == 1 => Some(more.join(",")),
        (less, []) if is_default(&of_b) || less.len() == 1 => {
            Some(format!("without {}", less.join(",")))
        }
        ([less], [more]) if is_choice(less, more) => Some(format!("{more} instead of {less}")),
        _ => None,
    }
}

/// Whether two words are values of one option, or names of ways to do one thing.
fn is_choice(a: &str, b: &str) -> bool {
    match (a.split_once('='), b.split_once('=')) {
        (Some((a, _)), Some((b, _))) => a == b,
        (None, None) => true,
        _ => false,
    }
}

impl Pair {
    fn of(a: &Explained, b: &Explained, difference: String) -> Self {
        let side = |of: &Explained| Side {
            target: of.candidate.target.name(),
            variant: of.candidate.variant.clone(),
            key: of.key.clone(),
        };
        let mut pair = Self {
            experiment: a.run.load.id,
            operation: operation(a.run.load),
            form: a.run.form.map(crate::load::Form::name),
            threads: a.run.threads,
            bs: a.run.bs,
            a: side(a),
            b: side(b),
            difference,
            rate: Rate::of(a, b),
            basis: Basis {
                looks: [a, b].map(difference::looks),
                stacks: [a, b].map(difference::stacks),
            },
            counters: difference::counters(a, b),
            waits: difference::waits(a, b),
            functions: difference::functions(a, b),
            words: Vec::new(),
        };
        pair.words = pair.in_words();
        pair
    }

    /// The sentences.
    pub(super) fn words(&self) -> &[String] {
        &self.words
    }

    /// What was found, in sentences.
    fn in_words(&self) -> Vec<String> {
        let names = [&self.a, &self.b].map(|side| format!("{} ({})", side.target, side.variant));
        let [a, b] = &names;
        let mut words = vec![self.rate.in_words(&self.difference, a, b)];
        let (told, rest): (Vec<&Moved>, Vec<&Moved>) =
            self.counters.iter().partition(|moved| TELLING.contains(&moved.name.as_str()));
        let named = told.into_iter().chain(rest).take(NAMED + 2);
        let named: Vec<String> = named.map(|of| moved(of, self.operation)).collect();
        if !named.is_empty() {
            let what = named.join("; ");
            words.push(format!("From {a} to {b}, counters of one run each move: {what}."));
        }
        let share = |share: &Share| {
            let percent = |part: f64| format!("{:.0} %", part * 100.0);
            format!("{} {} and {}", share.name, percent(share.a_share), percent(share.b_share))
        };
        let is_enough = |of: [u64; 2]| of.into_iter().all(|count| count >= BASIS_MIN);
        let waits = self.waits.iter().filter(|share| share.name != RUNNING);
        let waits: Vec<String> = waits.take(NAMED).map(share).collect();
        if !waits.is_empty() && is_enough(self.basis.looks) {
            let what = waits.join("; ");
            let [of_a, of_b] = self.basis.looks;
            words.push(format!(
                "Of the time of its threads, by {of_a} and {of_b} looks at one run each, {a} \
                 and {b} spent waiting: {what}."
            ));
        }
        let functions: Vec<String> = self.functions.iter().take(NAMED).map(share).collect();
        if !functions.is_empty() && is_enough(self.basis.stacks) {
            let what = functions.join("; ");
            let [of_a, of_b] = self.basis.stacks;
            words.push(format!(
                "Of the processor, by {of_a} and {of_b} stacks of one run each, {a} and {b} spent \
                 in: {what}."
            ));
        }
        words
    }
}

fn moved(moved: &Moved, operation: &str) -> String {
    let article = if operation == "file" { "a" } else { "an" };
    let by_one = || format!(" {article} {operation}");
    let per = if moved.per == "operation" { by_one() } else { String::new() };
    let how = if moved.score > 0.0 { "rises" } else { "falls" };
    let by = match moved.ratio {
        Some(ratio) if ratio >= 1.0 => format!(" ({ratio:.1} times)"),
        Some(ratio) if ratio > 0.0 => format!(" (to 1 in {:.1})", 1.0 / ratio),
        _ => String::new(),
    };
    format!("{} {how} from {} to {}{per}{by}", moved.name, number(moved.a), number(moved.b))
}

/// A number with as many digits as tell something.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        _ if value == 0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Target;

    fn between(a: (Target, &str), b: (Target, &str)) -> Option<String> {
        difference_of(&Candidate::new(a.0, a.1), &Candidate::new(b.0, b.1))
    }

    #[test]
    fn candidates_that_differ_by_one_thing_are_pairs() {
        let own = |variant| (Target::Uext4, variant);
        let (kernel, lock) = ((Target::Kernel, DEFAULT), (Target::Kernel, "dioread_lock"));
        let said = |what: &str| Some(what.to_owned());
        assert_eq!(between(kernel, lock), said("dioread_lock"));
        assert_eq!(between(own(DEFAULT), kernel), said("kernel instead of uext4"));
        assert_eq!(between(own(DEFAULT), lock), None);
        assert_eq!(between(own(DEFAULT), own("a=1,b=2")), said("a=1,b=2"));
        assert_eq!(between(own("a=1"), own("a=1,b=2")), said("b=2"));
        assert_eq!(between(own("a=1,b=2"), own("a=1")), said("without b=2"));
        assert_eq!(between(own("a=1"), own("a=2")), said("a=2 instead of a=1"));
        assert_eq!(between(own("a=1"), own("b=1")), None);
        // The size of the journal belongs to the load.
        assert_eq!(between(own("journal=4"), own("a=1,b=2,journal=4")), said("a=1,b=2"));
        let (ring, fio) = ((Target::Kernel, "io_uring"), (Target::Kernel, "libaio"));
        assert_eq!(between(ring, fio), said("libaio instead of io_uring"));
    }

    #[test]
    fn numbers_have_as_many_digits_as_tell_something() {
        let said = [0.0, 0.000_123, 0.0123, 1.25, 1234.5].map(number);
        assert_eq!(said, ["0", "1.2e-4", "0.012", "1.2", "1234"]);
    }
}
