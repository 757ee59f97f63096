//! Mount options as tables.
//!
//! What: a [`Row`] has all that there is to know of an option, or of a few that belong together:
//! the words of `-o`, the values they take, the default, the help, and the effect on the settings
//! of the crate that owns the table. [`apply`] takes one word as mount(8) gives it; [`help`] and
//! [`markdown`] write the rows for `--help` and for a document, so neither can fall behind.
//!
//! Invariants: what [`apply`] accepts is what [`Row::forms`] shows. No word is in two rows of a
//! table ([`duplicates`] tells).

#![forbid(unsafe_code)]

mod show;

pub use show::{Entry, entries, help, markdown};

use std::fmt;
use std::ops::RangeInclusive;

/// Options that belong together, over the settings `T` that they change.
pub struct Row<T: 'static> {
    /// The options, in the order in which they are shown.
    pub options: &'static [Choice<T>],
    /// What holds where none of them is given, as a user reads it; empty: nothing to say.
    pub default: &'static str,
    /// One line.
    pub help: &'static str,
    /// What a document says behind that line, in Markdown; may be empty.
    pub more: &'static str,
}

/// Words with one meaning.
pub struct Choice<T: 'static> {
    /// The word and its synonyms. A name that ends in `...` stands for all that begin like it.
    pub names: &'static [&'static str],
    /// What follows the word.
    pub value: Value<T>,
}

/// The effect of a word.
pub type Set<T> = fn(&mut T);

/// The effect of a word with a value; the error says what is wrong with the value.
pub type Take<T> = fn(&mut T, &str) -> Result<(), String>;

/// What follows the word of an option.
pub enum Value<T: 'static> {
    /// Nothing.
    None(Set<T>),
    /// `=` and one of these words.
    OneOf(&'static [(&'static str, Set<T>)]),
    /// `=` and a text, which the help shows by this name.
    Text(&'static str, Take<T>),
    /// Anything: the word is for others, and ignored.
    Ignored,
    /// Anything: the word is refused, for this reason.
    Refused(&'static str),
}

/// A word without a value.
#[must_use]
pub const fn flag<T>(names: &'static [&'static str], set: Set<T>) -> Choice<T> {
    Choice { names, value: Value::None(set) }
}

/// A word with one of several values.
#[must_use]
pub const fn one_of<T>(
    names: &'static [&'static str],
    values: &'static [(&'static str, Set<T>)],
) -> Choice<T> {
    Choice { names, value: Value::OneOf(values) }
}

/// A word with a value that a function reads; `shown` stands for it in the help.
#[must_use]
pub const fn text<T>(
    names: &'static [&'static str],
    shown: &'static str,
    take: Take<T>,
) -> Choice<T> {
    Choice { names, value: Value::Text(shown, take) }
}

/// Words that are accepted and change nothing.
#[must_use]
pub const fn ignored<T>(names: &'static [&'static str]) -> Choice<T> {
    Choice { names, value: Value::Ignored }
}

/// Words that are refused, with the reason in a few words.
#[must_use]
pub const fn refused<T>(names: &'static [&'static str], why: &'static str) -> Choice<T> {
    Choice { names, value: Value::Refused(why) }
}

/// A word of `-o` that is unknown or has a bad value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionError {
    word: String,
    why: String,
}

impl OptionError {
    /// A word, and what is wrong with it.
    #[must_use]
    pub fn new(word: &str, why: impl Into<String>) -> Self {
        Self { word: word.to_owned(), why: why.into() }
    }

    /// A word that is in no table.
    #[must_use]
    pub fn unknown(word: &str) -> Self {
        Self::new(word, "unknown")
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mount option '{}': {}", self.word, self.why)
    }
}

impl std::error::Error for OptionError {}

/// Takes one word of `-o`. `Ok(false)`: its name is in no row.
///
/// # Errors
/// A name of the table with a value that it does not take, or without one that it needs.
pub fn apply<T>(rows: &[Row<T>], settings: &mut T, word: &str) -> Result<bool, OptionError> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let mut refusal = None;
    for choice in rows.iter().flat_map(|row| row.options).filter(|choice| choice.has(name)) {
        match choice.value.take(settings, value) {
            Ok(()) => return Ok(true),
            // The option may be there once with a value and once without.
            Err(why) => refusal = refusal.or(Some(why)),
        }
    }
    refusal.map_or(Ok(false), |why| Err(OptionError::new(word, why)))
}

/// Whether the name of a word of `-o` is in a table, whatever its value.
#[must_use]
pub fn knows<T>(rows: &[Row<T>], word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    rows.iter().flat_map(|row| row.options).any(|choice| choice.has(name))
}

/// The names of a table that stand for themselves alone.
pub fn names<T>(rows: &[Row<T>]) -> impl Iterator<Item = &'static str> {
    let names = rows.iter().flat_map(|row| row.options).flat_map(|choice| choice.names);
    names.copied().filter(|name| !name.ends_with("..."))
}

impl<T> Choice<T> {
    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|own| match own.strip_suffix("...") {
            Some(start) => name.starts_with(start),
            None => *own == name,
        })
    }
}

impl<T> Value<T> {
    fn take(&self, settings: &mut T, value: Option<&str>) -> Result<(), String> {
        match (self, value) {
            (Value::Ignored, _) => Ok(()),
            (Value::Refused(why), _) => Err((*why).to_owned()),
            (Value::None(set), None) => {
                set(settings);
                Ok(())
            }
            (Value::None(_), Some(_)) => Err("takes no value".to_owned()),
            (Value::Text(_, take), Some(value)) => take(settings, value),
            (Value::Text(..), None) => Err("needs a value".to_owned()),
            (Value::OneOf(values), value) => {
                let found = values.iter().find(|(word, _)| Some(*word) == value);
                let (_, set) = found.ok_or_else(|| any_of(values))?;
                set(settings);
                Ok(())
            }
        }
    }
}

/// Reads a whole number of `unit` within `range`, for [`text`].
///
/// # Errors
/// What is wrong with the value, in a few words: it is no number, or out of range.
pub fn whole(value: &str, range: RangeInclusive<u64>, unit: &str) -> Result<u64, String> {
    let of = if unit.is_empty() { String::new() } else { format!(" of {unit}") };
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("not a number{of}"));
    }
    // Digits that do not fit are too many.
    let number = value.parse().ok().filter(|number| range.contains(number));
    let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
    number.ok_or_else(|| format!("{} to {}{unit}", range.start(), range.end()))
}

/// `0 or 1`, `one of ordered, writeback, journal`.
fn any_of<T>(values: &[(&str, Set<T>)]) -> String {
    let words: Vec<&str> = values.iter().map(|(word, _)| *word).collect();
    match words[..] {
        ["0", "1"] => "0 or 1".to_owned(),
        _ => format!("one of {}", words.join(", ")),
    }
}

/// Names that more than one row has; a table has none.
#[must_use]
pub fn duplicates<T>(rows: &[Row<T>]) -> Vec<&'static str> {
    let mut seen: Vec<(&str, usize)> = Vec::new();
    let mut twice = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        for name in row.options.iter().flat_map(|choice| choice.names) {
            match seen.iter().find(|(other, _)| other == name) {
                Some((_, of)) if *of != index => twice.push(*name),
                _ => seen.push((name, index)),
            }
        }
    }
    twice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq)]
    struct Settings {
        seconds: u32,
        is_on: bool,
    }

    fn seconds(settings: &mut Settings, value: &str) -> Result<(), String> {
        settings.seconds = value.parse().map_err(|_| "not a number of seconds")?;
        Ok(())
    }

    const ROWS: &[Row<Settings>] = &[
        Row {
            options: &[text(&["commit"], "SECONDS", seconds)],
            default: "0",
            help: "commit interval",
            more: "",
        },
        Row {
            options: &[
                one_of(&["power"], &[("0", |s| s.is_on = false), ("1", |s| s.is_on = true)]),
                flag(&["power", "on"], |s| s.is_on = true),
            ],
            default: "0",
            help: "power",
            more: "Much of it.",
        },
        Row { options: &[ignored(&["x-..."])], default: "", help: "for others", more: "" },
        Row { options: &[refused(&["quota"], "not here")], default: "", help: "", more: "" },
    ];

    fn check(word: &str) -> Result<(bool, Settings), String> {
        let mut settings = Settings::default();
        let taken = apply(ROWS, &mut settings, word).map_err(|error| error.to_string())?;
        Ok((taken, settings))
    }

    #[test]
    fn words_are_applied_or_left_to_others() {
        assert_eq!(check("commit=7"), Ok((true, Settings { seconds: 7, is_on: false })));
        for word in ["power", "on", "power=1"] {
            assert_eq!(check(word), Ok((true, Settings { seconds: 0, is_on: true })), "{word}");
        }
        assert_eq!(check("x-anything=1"), Ok((true, Settings::default())));
        assert_eq!(check("other"), Ok((false, Settings::default())));
        assert!(knows(ROWS, "x-anything") && knows(ROWS, "on=1") && !knows(ROWS, "other"));
    }

    #[test]
    fn bad_values_are_named() {
        for (word, why) in [
            ("commit", "needs a value"),
            ("commit=x", "not a number of seconds"),
            ("power=2", "0 or 1"),
            ("on=1", "takes no value"),
            ("quota", "not here"),
            ("quota=1", "not here"),
        ] {
            assert_eq!(check(word), Err(format!("mount option '{word}': {why}")));
        }
    }

    #[test]
    fn numbers_have_a_range() {
        assert_eq!(whole("900", 0..=900, "seconds"), Ok(900));
        for value in ["901", "99999999999999999999999"] {
            assert_eq!(whole(value, 0..=900, "seconds"), Err("0 to 900 seconds".to_owned()));
        }
        for value in ["", "-1", "+1", "1s", "1.5"] {
            assert_eq!(whole(value, 0..=9, ""), Err("not a number".to_owned()), "{value}");
        }
    }

    #[test]
    fn names_are_listed() {
        let names: Vec<&str> = names(ROWS).collect();
        assert_eq!(names, ["commit", "power", "power", "on", "quota"]);
    }

    #[test]
    fn names_of_two_rows_are_found() {
        assert!(duplicates(ROWS).is_empty());
        const TWICE: &[Row<Settings>] = &[
            Row { options: &[ignored(&["a", "b"])], default: "", help: "", more: "" },
            Row { options: &[ignored(&["b"])], default: "", help: "", more: "" },
        ];
        assert_eq!(duplicates(TWICE), ["b"]);
    }
}
